"""Answers that are learned beside a round's samples (``algorithm.supervised``): of other data, or of prompts of which
every sample failed.

They have no reward and join no statistics; their loss and its weight are mmgrpo/objectives/origins.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmgrpo.objectives.origins import Supervision
from mmgrpo.prompts.drawing import PromptOrder
from mmgrpo.randomness import derive
from mmgrpo.rollout import Round, RoundRows
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.rounds.rows import refuse_unanswered, refuse_unstoring, unpack_rows
from mmgrpo.runtime.distributed import RankSlice
from mmgrpo.scoring import RewardScores
from mmgrpo.types import OWN, REPLACED, SUPERVISED, Prompt, Storing

FIRST_GIVEN = 1 << 33
"""First key of supervised rows."""


class SupervisedRows(Callback):
    """Adds supervised rows to each round; a checkpoint has the prompts that wait as ``waiting``."""

    key: ClassVar[str] = "waiting"

    def __init__(self, given: Sequence[Prompt] = ()) -> None:
        self.given = given
        """Prompts with answers of a second data set (``data.supervised``)."""
        self.waiting: list[int] = []
        """Numbers of prompts whose samples all failed, the newest last."""
        self.settings = Supervision()
        """Those of the present round."""

    def attach(self, run: Run) -> None:
        settings, text = run.loss.supervised({}), run.loss.supervised.text
        refuse_unstoring(run.policy, "algorithm.supervised", text)
        if settings.source == "data" and not self.given:
            raise ValueError(
                f"algorithm.supervised: got '{text}' without rows to learn from; set data.supervised to a file of "
                "prompts with the column answer, or source='failed'"
            )
        refuse_unanswered(run.policy, self.given, "algorithm.supervised")
        RankSlice.of(settings.count, run.accelerator, "algorithm.supervised: count")

    def on_rows(self, run: Run, rows: RoundRows) -> dict[str, float]:
        self.settings = settings = run.loss.supervised({})
        if not settings.count or not settings.coef:
            return {}
        if settings.source == "data":
            order = PromptOrder(len(self.given), derive(run.seed, "supervised"))
            places = order.take(run.round * settings.count, settings.count)
            prompts, numbers = [self.given[place] for place in places], [-1] * len(places)
        elif len(self.waiting) >= settings.count:
            numbers = self.waiting[: -settings.count - 1 : -1]  # the newest first
            self.waiting = self.waiting[: -settings.count]
            prompts = [run.prompts[number] for number in numbers]
        else:
            return {}
        here = RankSlice.of(len(prompts), run.accelerator, "algorithm.supervised: count")
        share = slice(here.start, here.stop)
        assert isinstance(run.policy, Storing)
        answers = run.policy.answers(prompts[share])
        pairs = [(prompt, records[0]) for prompt, records in zip(prompts[share], answers, strict=True)]
        keys = [FIRST_GIVEN + place for place in range(here.start, here.stop)]
        rollout = unpack_rows(run.policy, pairs, keys, SUPERVISED, numbers[share], rows.request)
        zeros = torch.zeros(len(pairs), rows.scores[0].values.shape[1])
        rows.add(rollout, RewardScores(zeros, zeros > 0))
        rows.unrewarded = (*rows.unrewarded, SUPERVISED)
        return {"supervised/rows": float(rows.decisions[-1].rows)}

    def on_round_end(self, run: Run, round_: Round) -> None:
        """Let prompts wait whose samples all failed, and for which there is an answer."""
        if self.settings.source != "failed":
            return
        decisions = round_.batch.decisions
        index, drawn = decisions.fields["prompt_index"], torch.isin(decisions.origin, torch.tensor([OWN, REPLACED]))
        rewards = torch.where(drawn & ~round_.totals.isnan(), round_.totals, -torch.inf)
        for number in dict.fromkeys(index[drawn].tolist()):
            best, prompt = float(rewards[drawn & (index == number)].max()), run.prompts[number]
            if best <= 0 and best > -torch.inf and isinstance(prompt.answer, str) and prompt.answer:
                self.waiting = [other for other in self.waiting if other != number] + [number]

    def tensors(self) -> Mapping[str, Tensor]:
        return {"prompts": torch.tensor(self.waiting)} if self.waiting else {}

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        self.waiting = tensors["prompts"].tolist() if tensors else []


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [SupervisedRows(choices.given)]
