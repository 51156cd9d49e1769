"""Completions as a token policy stores them, sampled or from the data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor, nn

from mmgrpo.policies.token_model import Context, Features
from mmgrpo.types import CONTRAST, OWN, REFERENCE, Prompt

AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Precisions of sampling by name."""

STREAMS = {OWN: "tokens", CONTRAST: "contrast"}
"""Name of the random stream by the origin of its rows."""


@dataclass(frozen=True)
class Query:
    """A prompt and the number of completions to sample for it."""

    prompt: Prompt
    slot: int
    count: int
    origin: int = OWN


@dataclass(frozen=True)
class Tokens:
    """Entries of a part: the decisions of some rows, in the order of ``rows`` and ``positions``."""

    rows: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]


@dataclass(frozen=True)
class Sequences:
    """Prompts and completions in token ids."""

    context: Context
    features: Features | None
    """Features of the context's media; None when the encoder is trained, so that every score computes them again."""
    prompt: Int[Tensor, "B"]
    """Index of each completion's prompt in the context."""
    ids: Int[Tensor, "B T"]
    """Completions, padded on the right."""
    real: Bool[Tensor, "B T"]
    seed: int = 0
    """Seed of the request, from which changes of the prompts are drawn."""

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Tokens]:
        """Parts of at most ``limit`` rows; a row's tokens share its forward pass."""
        rows = loss_mask.any(1).nonzero()[:, 0]
        for start in range(0, len(rows), limit):
            chunk = rows[start : start + limit]
            entries = torch.zeros_like(loss_mask)
            entries[chunk] = loss_mask[chunk]
            yield Tokens(*entries.nonzero(as_tuple=True))


def with_answers(
    sequences: Sequences,
    numbers: Mapping[str, Shaped[Tensor, "B T"]],
    origin: Int[Tensor, "B"],
    answers: Sequence[Sequence[int]],
    pad_id: int,
) -> tuple[Sequences, dict[str, Tensor], Int[Tensor, "rows"]]:
    """Insert the data set's answer to prompt i, ``answers[i]``, after the completions of that prompt.

    All ``numbers`` of an answer are 0. Old log-probs of 0 take it for certain under its author, so that the importance
    weight of a token is its probability under the policy (arXiv:2509.16990).
    """
    device = sequences.ids.device
    width = max(sequences.ids.shape[1], *map(len, answers))
    ids = torch.tensor([[*answer, *[pad_id] * (width - len(answer))] for answer in answers], device=device)
    length = torch.tensor([[len(answer)] for answer in answers], device=device)
    prompt = torch.cat([sequences.prompt, torch.arange(len(answers), device=device)])
    order = prompt.argsort(stable=True)  # members of a group stay adjacent

    def join(sampled: Tensor, reference: Tensor) -> Tensor:
        return torch.cat([nn.functional.pad(sampled, (0, width - sampled.shape[1])), reference])[order]

    real = torch.arange(width, device=device) < length
    joint = replace(sequences, prompt=prompt[order], ids=join(sequences.ids, ids), real=join(sequences.real, real))
    zeros = torch.zeros(len(answers), width, device=device)
    origins = torch.cat([origin, torch.full((len(answers),), REFERENCE, device=device)])[order]
    return joint, {name: join(value, zeros) for name, value in numbers.items()}, origins


def answer_of(prompt: Prompt) -> str:
    """The text of the prompt's answer; a prompt without one is an error."""
    if not isinstance(prompt.answer, str) or not prompt.answer:
        raise ValueError(
            f"prompt '{prompt.id}': got answer {prompt.answer!r}, expected the text of a correct completion, which "
            "data.reference_in_group trains on; add the column answer, or leave data.reference_in_group out"
        )
    return prompt.answer
