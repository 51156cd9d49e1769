"""Completions that are drawn in windows: what is cut off in a round goes on in the next (T-PPO, arXiv:2506.15050).

a round     windows of ``sampling.max_tokens`` tokens of its own prompts, and the next windows of what was cut off
policy      learns from the tokens of this round's windows, also of completions that are not finished
critic      learns from whole completions that are finished, with the tokens of their earlier windows
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmgrpo.policies.token import TokenPolicy
from mmgrpo.randomness import derive
from mmgrpo.rollout import RoundRows
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.rounds.rows import unpack_rows
from mmgrpo.runtime.distributed import DataRank, gather_tables
from mmgrpo.scoring import RewardScores
from mmgrpo.types import OWN, Record, Rollout, Storing

LINE = "sampling.total_tokens"
HEAD = "windows.head"
"""Of a record that travels: its place in the round and the number of its prompt."""


def join_windows(begun: Record, rest: Record) -> Record:
    """A completion with its next window, of which alone the policy learns; old log-probs are those of their rounds."""
    whole = {n: torch.cat([tensor, rest[n]]) if tensor.dim() else rest[n] for n, tensor in begun.items()}
    mask = torch.cat([torch.zeros_like(begun["loss_mask"]), rest["loss_mask"]])
    return whole | {"loss_mask": mask}


class Windows(Callback):
    """What was cut off, of at most ``total`` tokens."""

    key: ClassVar[str] = "windows"

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = {LINE: total}
        self.waiting: list[tuple[int, Record]] = []
        """Number of the prompt and tokens so far."""

    def attach(self, run: Run) -> None:
        assert isinstance(run.policy, TokenPolicy)
        window = run.policy.max_tokens
        if self.total % window:
            raise ValueError(f"{LINE}: got {self.total}, expected a multiple of sampling.max_tokens, {window}")

    def on_draw(self, run: Run, rollout: Rollout) -> Rollout:
        """``cut``: 1 for rows that go on."""
        decisions = rollout.decisions
        going = (decisions.fields["truncated"] > 0) & (decisions.decision_mask.sum(1) < self.total)
        return rollout.with_decisions(replace(decisions, fields={**decisions.fields, "cut": going.float()}))

    def on_rows(self, run: Run, rows: RoundRows) -> None:
        """Draw the next windows of what was cut off before, on each rank those of its share, and keep what is now."""
        going, rank = self.waiting, DataRank.of(run.accelerator)
        if going:
            free = 1 + max(int(part.keys["prompt"].max()) for part in rows.decisions)
            places = torch.arange(len(going)).tensor_split(rank.count)[rank.index].tolist()
            rows.add(*(self._continue_rows(run, rows, places, free) if places else (None, None)))
        self.waiting = self._cut(run, rows)

    def _continue_rows(
        self, run: Run, rows: RoundRows, places: Sequence[int], free: int
    ) -> tuple[Rollout, RewardScores]:
        """The next windows of what waits at these places, in groups of their own from the key ``free`` on."""
        policy, going = run.policy, [self.waiting[place] for place in places]
        assert isinstance(policy, Storing)
        prompts, numbers = [run.prompts[number] for number, _ in going], [number for number, _ in going]
        request = replace(
            rows.request,
            prompts=prompts,
            slots=places,
            group_size=1,
            seed=derive(run.seed, "windows", run.round),
            beginnings=[tuple(record["ids"].tolist()) for _, record in going],
        )
        drawn = policy.rollout(request)
        rests = policy.pack(drawn, range(len(going)))
        whole = [join_windows(record, rest) for (_, record), rest in zip(going, rests, strict=True)]
        keys = [free + place for place in places]
        continued = unpack_rows(policy, [*zip(prompts, whole, strict=True)], keys, OWN, numbers, rows.request)
        continued = run.callbacks.change_rollout(run, replace(continued, evaluations=drawn.evaluations))
        decisions, scores = rows.judge(request, continued)()
        return continued.with_decisions(decisions), scores

    @staticmethod
    def _cut(run: Run, rows: RoundRows) -> list[tuple[int, Record]]:
        """What goes on, of all ranks and in the order of the round, so it depends on their number as little as on
        which of them drew it."""
        policy, cut = run.policy, list[dict[str, Tensor]]()
        assert isinstance(policy, Storing)
        for rollout, places in zip(rows.rollouts, rows.places, strict=True):
            decisions = rollout.decisions
            here = ((decisions.fields["cut"] > 0) & (decisions.origin == OWN)).nonzero()[:, 0].cpu()
            heads = torch.stack([places[here], decisions.fields["prompt_index"].cpu()[here].long()], 1)
            records = policy.pack(rollout, here.tolist())
            cut += [{**record, HEAD: head} for head, record in zip(heads, records, strict=True)]
        everywhere = gather_tables(cut, run.accelerator)
        heads = [table.pop(HEAD).tolist() for table in everywhere]
        ordered = sorted(zip(heads, everywhere, strict=True), key=lambda entry: entry[0])
        return [(number, record) for (_, number), record in ordered]

    def state(self) -> list[int]:
        return [number for number, _ in self.waiting]

    def tensors(self) -> Mapping[str, Tensor]:
        return {
            f"{place}.{n}": tensor for place, (_, record) in enumerate(self.waiting) for n, tensor in record.items()
        }

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        records: Sequence[dict[str, Tensor]] = [{} for _ in state or ()]
        for name, tensor in tensors.items():
            place, _, field = name.partition(".")
            records[int(place)][field] = tensor
        self.waiting = [*zip(state or (), records, strict=True)]


def callbacks(choices: Choices) -> Sequence[Callback]:
    """What the settings ask for."""
    return [Windows(choices.total_tokens)]
