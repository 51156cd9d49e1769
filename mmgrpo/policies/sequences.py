"""Completions as a token policy keeps them, sampled or given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor, nn

from mmgrpo.policies.token_model import Context, Features
from mmgrpo.types import REFERENCE, Prompt


@dataclass(frozen=True)
class Tokens:
    """Entries of a part: all decisions of some rows, in the order of ``rows`` and ``positions``."""

    rows: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]


@dataclass(frozen=True)
class Sequences:
    """Prompts and completions as they were sampled."""

    context: Context
    features: Features | None
    """Of the context's media; None when the encoder is trained, so that they are computed anew."""
    prompt: Int[Tensor, "B"]
    """Which row of the context a completion answers."""
    ids: Int[Tensor, "B T"]
    """Completions, padded on the right."""
    real: Bool[Tensor, "B T"]

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Tokens]:
        """Parts of at most ``limit`` rows; a row's tokens share its forward pass."""
        rows = loss_mask.any(1).nonzero()[:, 0]
        for start in range(0, len(rows), limit):
            chunk = rows[start : start + limit]
            picked = torch.zeros_like(loss_mask)
            picked[chunk] = loss_mask[chunk]
            yield Tokens(*picked.nonzero(as_tuple=True))


def with_answers(
    kept: Sequences,
    numbers: Mapping[str, Shaped[Tensor, "B T"]],
    origin: Int[Tensor, "B"],
    answers: Sequence[Sequence[int]],
    pad_id: int,
) -> tuple[Sequences, dict[str, Tensor], Int[Tensor, "rows"]]:
    """Put the data set's answer to prompt i, ``answers[i]``, after the completions of that prompt.

    All numbers of an answer are 0, its old log-probabilities too, as if its author always said just that: the
    importance weight of a token is then its probability (arXiv:2509.16990).
    """
    device = kept.ids.device
    width = max(kept.ids.shape[1], *map(len, answers))
    ids = torch.tensor([[*answer, *[pad_id] * (width - len(answer))] for answer in answers], device=device)
    length = torch.tensor([[len(answer)] for answer in answers], device=device)
    prompt = torch.cat([kept.prompt, torch.arange(len(answers), device=device)])
    order = prompt.argsort(stable=True)

    def joined(own: Tensor, given: Tensor) -> Tensor:
        return torch.cat([nn.functional.pad(own, (0, width - own.shape[1])), given])[order]

    real = torch.arange(width, device=device) < length
    sequences = replace(kept, prompt=prompt[order], ids=joined(kept.ids, ids), real=joined(kept.real, real))
    nothing = torch.zeros(len(answers), width, device=device)
    origins = torch.cat([origin, torch.full((len(answers),), REFERENCE, device=device)])[order]
    return sequences, {name: joined(value, nothing) for name, value in numbers.items()}, origins


def answer_of(prompt: Prompt) -> str:
    """The words of the answer; an error where a prompt has none."""
    if not isinstance(prompt.answer, str) or not prompt.answer:
        raise ValueError(
            f"prompt '{prompt.id}': its answer is {prompt.answer!r}; wanted the words of a right completion, since "
            "data.reference_in_group trains on it"
        )
    return prompt.answer
