"""Decisions of a token policy scored again under a changed prompt (``mmgrpo.data.perturbations``).

The change of a prompt is drawn once per round from the seed of the round and the slot of its group, so that all members
of a group share it, all optimizer steps of the round see the same one, and neither ranks nor an interruption matter.

Contrasts: changes of a prompt under which further completions are sampled for comparison, never for training.

T-GRPO (Video-R1, arXiv:2503.21776, section 3.2) asks the same question about the same frames in shuffled order: a
model that answers as well then has not used the order, and correct answers earn no bonus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.config.ranges import POSITIVE_FRACTION
from mmgrpo.config.registry import bind, block, table_of
from mmgrpo.data.messages import appended
from mmgrpo.data.perturbations import CHANGES, shuffle_frames
from mmgrpo.policies.token_model import Context, Features, Sequences, Tokens
from mmgrpo.randomness import derive
from mmgrpo.types import Media, Prompt, Rollout

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


VARIANTS = table_of("variants")
"""Forms of a prompt among which its group is divided; all of them are trained. A block returns the forms, each with its
number, the field ``variant`` of its samples."""


@block(VARIANTS)
def budgets(
    prompt: Prompt,
    *,
    tokens: Sequence[int],
    text: str = "I will answer the question with {tokens} tokens.",
) -> list[tuple[Prompt, float]]:
    """The question with a budget of each of the ``tokens``, in words after it, which is the number of the form and
    ``meta.budget`` (HBPO, arXiv:2507.15844: 512, 1024, 2048, 2560; there the sentence opens the thought)."""
    if not tokens or "{tokens}" not in text:
        raise ValueError(
            f"budgets: got tokens {tokens!r} and text {text!r}, expected numbers, and text with {{tokens}}"
        )
    return [(_asked(prompt, text.format(tokens=one), budget=one), float(one)) for one in tokens]


@block(VARIANTS)
def instructions(prompt: Prompt, *, texts: Sequence[str]) -> list[tuple[Prompt, float]]:
    """The question with each of the ``texts`` after it, an empty one for the question as it is; forms are numbered from
    0, which is ``meta.variant`` too. Samples asked to add auxiliary constructions and samples asked not to are GCPO's
    two halves (GeometryZero, arXiv:2506.07160; reward ``auxiliary``)."""
    if len(texts) < 2:
        raise ValueError(f"instructions: got texts {texts!r}, expected at least two")
    return [(_asked(prompt, text, variant=place), float(place)) for place, text in enumerate(texts)]


def _asked(prompt: Prompt, text: str, **meta: int) -> Prompt:
    """The prompt with a sentence at the end of its last user turn."""
    return replace(appended(prompt, f" {text}") if text else prompt, meta={**prompt.meta, **meta})


Encode: TypeAlias = Callable[[Sequence[Prompt]], tuple[Context, "Features | None"]]
"""Prompts to what a network reads of them, with the features of frozen media."""


class ChangedPrompts:
    """The changed prompts of the newest rollout that was scored, each encoded once for all its parts."""

    def __init__(self, encode: Encode) -> None:
        self.encode = encode
        self.steps: Sequences | None = None
        self.entries: dict[str, tuple[Sequences, Bool[Tensor, "B"]]] = {}

    def log_probs(
        self,
        rollout: Rollout,
        part: Tokens,
        change: str,
        own: Float[Tensor, "N"],
        score: Callable[[Sequences, Tokens], Float[Tensor, "N"]],
    ) -> Float[Tensor, "N"]:
        """Log-probs of the part's tokens under the change. ``own`` are those under the prompt itself, which they are
        where nothing changes; ``score`` scores tokens of sequences."""
        sequences, changed = self.sequences(rollout, change)
        entries = changed[part.rows].nonzero()[:, 0]
        if not len(entries):
            return own
        scored = score(sequences, Tokens.of(part.rows[entries], part.positions[entries]))
        return own.index_copy(0, entries, scored)

    def sequences(self, rollout: Rollout, change: str) -> tuple[Sequences, Bool[Tensor, "B"]]:
        """The completions of a rollout after their changed prompts, and which rows have one."""
        steps: Sequences = rollout.steps  # type: ignore[assignment]
        if self.steps is not steps:
            self.steps, self.entries = steps, {}
        if change not in self.entries:
            self.entries[change] = self._change(rollout, steps, change)
        return self.entries[change]

    def _change(self, rollout: Rollout, steps: Sequences, change: str) -> tuple[Sequences, Bool[Tensor, "B"]]:
        bound = bind(change, CHANGES, "algorithm.terms: change")
        first: dict[int, int] = {}  # a row of each prompt
        for row, index in enumerate(steps.prompt.tolist()):
            first.setdefault(index, row)
        slots, seen = rollout.decisions.keys["prompt"].tolist(), steps.context.seen
        prompts: list[Prompt] = []
        place = torch.full((len(steps.context.ids),), -1)
        for index, row in sorted(first.items()):
            inputs = {"prompt": rollout.prompts[row], "seen": seen[index] if seen else ()}
            prompt = bound({**inputs, "seed": derive(steps.seed, "change", slots[row])})
            if prompt is not rollout.prompts[row]:
                place[index] = len(prompts)
                prompts.append(prompt)
        of_rows = place.to(steps.prompt.device)[steps.prompt]
        changed = of_rows >= 0
        if not prompts:
            return steps, changed
        context, features = self.encode(prompts)
        return replace(steps, context=context, features=features, prompt=of_rows), changed
