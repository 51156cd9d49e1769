"""Decisions of a token policy scored again under a changed prompt (``mmgrpo.data.perturbations``).

The change of a prompt is drawn once per round from the seed of the round and the slot of its group, so all members
of a group share it, all optimizer steps of the round see the same one, and neither ranks nor an interruption matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.config.registry import bind
from mmgrpo.data.perturbations import CHANGES
from mmgrpo.policies.token_model import Context, Features, Sequences, Tokens
from mmgrpo.randomness import derive
from mmgrpo.types import Prompt, Rollout

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
        unchanged: Float[Tensor, "N"],
        score: Callable[[Sequences, Tokens], Float[Tensor, "N"]],
    ) -> Float[Tensor, "N"]:
        """Log-probs of the part's tokens under the change. ``unchanged`` are those under the prompt itself, which they
        are where nothing changes; ``score`` scores tokens of sequences."""
        sequences, changed = self.sequences(rollout, change)
        entries = changed[part.rows].nonzero()[:, 0]
        if not len(entries):
            return unchanged
        scored = score(sequences, Tokens.of(part.rows[entries], part.positions[entries]))
        return unchanged.index_copy(0, entries, scored)

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
