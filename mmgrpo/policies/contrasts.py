"""Contrasts: changes of a prompt under which further completions are sampled for comparison, never for training.

T-GRPO (Video-R1, arXiv:2503.21776, section 3.2) asks the same question about the same frames in shuffled order: a
model that answers as well then has not used the order, and correct answers earn no bonus.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from mmgrpo.config.ranges import POSITIVE_FRACTION
from mmgrpo.config.registry import bind, block, table_of
from mmgrpo.data.perturbations import CHANGES, shuffle_frames
from mmgrpo.policies.token_model import Query
from mmgrpo.policies.token_passes import TokenPasses
from mmgrpo.policies.walks import Addition
from mmgrpo.types import CONTRAST, Media, Prompt, Request

CONTRASTS = table_of("contrast")


@block(CONTRASTS)
def shuffled_frames(
    prompt: Prompt, group_size: int, seed: int, *, fraction: Annotated[float, POSITIVE_FRACTION] = 0.5
) -> tuple[Prompt, int]:
    """The prompt with the frames of its videos shuffled, and the number of its samples: ``fraction`` of the group size,
    0 for a prompt without video."""
    if not 0 < fraction <= 1:
        raise ValueError(f"shuffled_frames: got fraction {fraction}, expected 0 < fraction <= 1")
    shuffled = shuffle_frames(prompt, (), seed)
    if shuffled is prompt:
        return prompt, 0
    return replace(shuffled, meta={**prompt.meta, "contrast": "shuffled_frames"}), max(1, round(fraction * group_size))


@block(CONTRASTS)
def paraphrase(
    prompt: Prompt,
    group_size: int,
    seed: int,
    *,
    column: str = "paraphrase",
    fraction: Annotated[float, POSITIVE_FRACTION] = 1.0,
) -> tuple[Prompt, int]:
    """The question in the words of the row's column ``paraphrase``, and the number of its samples, whose majority
    labels those of the question (``majority(by='contrast')``): Co-Reward (arXiv:2508.00410), which trains both sides;
    so does a file that has each of the two as the other's paraphrase. 0 for a row without one.
    """
    text = prompt.meta.get(column)
    if not isinstance(text, str) or not text.strip():
        return prompt, 0
    last = max((place for place, turn in enumerate(prompt.turns) if turn.role == "user"), default=-1)
    turns = tuple(
        replace(turn, parts=(*(part for part in turn.parts if isinstance(part, Media)), text))
        if place == last
        else turn
        for place, turn in enumerate(prompt.turns)
    )
    other = replace(prompt, text=text, turns=turns, meta={**prompt.meta, "contrast": "paraphrase"})
    return other, max(1, round(fraction * group_size))


@block(CONTRASTS)
def view(
    prompt: Prompt,
    group_size: int,
    seed: int,
    *,
    change: str = "mask_patches(ratio=0.2, patch=14)",
    fraction: Annotated[float, POSITIVE_FRACTION] = 1.0,
) -> tuple[Prompt, int]:
    """The prompt with its media changed (``mmgrpo.data.perturbations``), a second view of the same image, and the
    number of its samples; 0 for a prompt that the change does not concern. With ``majority(by='contrast')`` the two
    views agree: Co-Reward for images (ours)."""
    other = bind(change, CHANGES, "sampling.contrast: change")({"prompt": prompt, "seen": (), "seed": seed})
    if other is prompt:
        return prompt, 0
    return replace(other, meta={**prompt.meta, "contrast": "view"}), max(1, round(fraction * group_size))


class Contrast(Addition):
    """Further samples under a changed prompt."""

    setting = "sampling.contrast"

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.change = bind(value, CONTRASTS, "sampling.contrast")

    def queries(self, policy: TokenPasses, request: Request, queries: list[Query]) -> list[Query]:
        """The queries, and those of changed prompts, without any that the change does not apply to."""
        changed = []
        for prompt, slot in zip(request.prompts, request.slots):
            inputs = {"prompt": prompt, "group_size": request.group_size, "seed": request.seed}
            other, count = self.change(inputs)
            if count:
                changed.append(Query(other, slot, count, CONTRAST))
        return [*queries, *changed]
