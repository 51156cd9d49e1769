"""The data set's answer as a member of each group (``data.reference_in_group``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from mmgrpo.policies.token_model import Query, Sequences, answer_of
from mmgrpo.policies.token_passes import TokenPasses
from mmgrpo.policies.walks import Addition, Walked
from mmgrpo.types import REFERENCE, Request


def with_answers(
    sequences: Sequences,
    numbers: Mapping[str, Shaped[Tensor, "B T"]],
    origin: Int[Tensor, "B"],
    answers: Sequence[Sequence[int]],
    pad_id: int,
) -> tuple[Sequences, dict[str, Tensor], Int[Tensor, "rows"]]:
    """Insert the data set's answer to prompt i, ``answers[i]``, after the completions of that prompt.

    All ``numbers`` of an answer are 0. Old log-probs of 0 take it for certain under its author, so the importance
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


class GivenAnswers(Addition):
    """One member of each group is the answer of its prompt."""

    setting = "data.reference_in_group"

    def queries(self, policy: TokenPasses, request: Request, queries: list[Query]) -> list[Query]:
        """One sample fewer of each prompt."""
        if request.group_size < 2:
            raise ValueError(
                f"got data.group_size {request.group_size} with data.reference_in_group, expected at least 2: one "
                "sample of the policy besides the reference answer; raise data.group_size"
            )
        return [replace(query, count=query.count - 1) for query in queries]

    def rows(self, policy: TokenPasses, request: Request, walked: Walked, most: int) -> Walked:
        """With the answers, cut at ``most`` tokens, after the samples of their prompts."""
        answers = [policy.model.spell(answer_of(prompt))[:most] for prompt in request.prompts]
        sequences, numbers, origin = with_answers(
            walked.sequences, walked.numbers, walked.origin, answers, policy.model.pad_id
        )
        return replace(walked, sequences=sequences, numbers=numbers, origin=origin)
