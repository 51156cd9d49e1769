"""Replay: rows of earlier rounds join a round (``algorithm.replay``).

    a round's own rows -> packed, on all ranks -> Buffer (mmgrpo/prompts/replay.py)
    Buffer -> rows of the prompts of a later round -> unpacked, with the rewards that they had -> gathered as REPLAYED

What they count in losses is mmgrpo/objectives/origins.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate import Accelerator
from torch import Tensor

from mmgrpo.objectives.origins import Replay
from mmgrpo.prompts.replay import ENDING, Buffer, Stored, files_of
from mmgrpo.randomness import stream
from mmgrpo.rollout import Round, RoundRows
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.rounds.rows import (
    Group,
    groups_of,
    refuse_unstoring,
    unpack_rows,
    with_old_log_probs,
    without_log_probs,
    without_success,
    worst_give_way,
)
from mmgrpo.runtime.checkpoint import checkpoints
from mmgrpo.runtime.distributed import gather_rows, gather_tables
from mmgrpo.scoring import RewardScores
from mmgrpo.types import OWN, REPLACED, REPLAYED, Storing

SPLIT = 1 << 32
"""Added to the key of replayed rows that are compared among themselves."""
REPLAYED_FILES = "replay"
"""The folder of replayed images and videos, in the run folder."""


class ReplayedRows(Callback):
    """Keeps a buffer of the policy's rows and adds some of them to each round; a checkpoint has it as ``replay``."""

    key: ClassVar[str] = "replay"

    def __init__(self) -> None:
        self.buffer = Buffer()
        self.folder = Path()
        """That of the run, which keeps replayed images and videos."""
        self.settings, self.begun = Replay(), 0
        """Those of the present round, and the optimizer step at which it began."""

    def attach(self, run: Run) -> None:
        refuse_unstoring(run.policy, "algorithm.replay", run.loss.replay.text)
        self.folder = run.folder
        if run.policy.kind != "tokens":
            self.buffer = Buffer(folder=run.folder / REPLAYED_FILES, writes=run.accelerator.is_main_process)

    def on_rows(self, run: Run, rows: RoundRows) -> dict[str, float]:
        self.settings, self.begun = run.loss.replay({}), run.step
        replay = self.settings
        if not replay.count or not self.buffer.rows:
            return {}
        decisions, _, result = rows.estimate()
        failed = without_success(decisions, result, replay.above) if replay.when == "failed" else None
        drawn: list[tuple[Group, Stored]] = []
        for group in groups_of(rows.rollouts):
            if failed is not None and group.key not in failed:
                continue
            generator = stream(run.seed, "replay", run.round, group.key)
            drawn += [(group, row) for row in self.buffer.draw(group.number, replay, run.step, generator)]
        rollout, scores = None, None
        if drawn:
            # With statistics of their own the replayed rows of a group are a group beside it.
            keys = [group.key + SPLIT * (replay.statistics == "split") for group, _ in drawn]
            stored = [row.record if replay.old == "stored" else without_log_probs(row.record) for _, row in drawn]
            pairs = [(group.prompt, record) for (group, _), record in zip(drawn, stored, strict=True)]
            rollout = unpack_rows(run.policy, pairs, keys, REPLAYED, [group.number for group, _ in drawn], rows.request)
            if replay.old == "recomputed":
                rollout = with_old_log_probs(run.policy, rollout)
            table = torch.stack([row.scores for _, row in drawn])
            scores = RewardScores(table[:, 0], table[:, 1] > 0, table[:, 2] > 0)
        rows.add(rollout, scores)
        if replay.statistics != "own":
            rows.counted = (*rows.counted, REPLAYED)
        last = rows.decisions[-1]
        if replay.replaces:
            worst_give_way(rows, decisions, result, last.keys["prompt"] % SPLIT)
        ages = gather_rows(torch.tensor([float(run.step - row.step) for _, row in drawn]), run.accelerator)
        return {"replay/rows": float(last.rows), "replay/age": float(ages.mean()) if last.rows else 0.0}

    def on_round_end(self, run: Run, round_: Round) -> None:
        """Take in the round's own rows, of which the ledger knows."""
        replay, batch, decisions = self.settings, round_.batch, round_.batch.decisions
        if not replay.count:
            return
        stored: list[tuple[int, int, Stored]] = []
        assert isinstance(run.policy, Storing)
        scores = round_.reward_scores
        for rollout, place in zip(batch.rollouts, batch.places, strict=True):
            origin, reward = decisions.origin[place].tolist(), round_.totals[place].tolist()
            kept = [row for row, kind in enumerate(origin) if kind in (OWN, REPLACED) and reward[row] > replay.above]
            records = run.policy.pack(rollout, kept)
            for row, record in zip(kept, records, strict=True):
                where = int(place[row])
                table = torch.stack(
                    [column[where].float() for column in (scores.values, scores.valid, scores.abstentions)]
                )
                number = int(decisions.fields["prompt_index"][where])
                entry = Stored(number, self.begun, reward[row], table, record)
                stored.append((int(decisions.keys["prompt"][where]), where, entry))
        everywhere = gather_stored(stored, run.accelerator)
        entering = [entry for *_, entry in sorted(everywhere, key=lambda row: row[:2])]
        averages = dict(enumerate(run.ledger.read("window_mean").tolist())) if replay.tiers else None
        self.buffer.insert(entering, replay, self.begun, averages)
        if self.buffer.folder is not None:
            run.accelerator.wait_for_everyone()  # the files are there

    def tensors(self) -> Mapping[str, Tensor]:
        """The buffer. Files of samples that no checkpoint refers to are removed."""
        if self.buffer.folder is not None:
            saved = [path / f"replay{ENDING}" for path in checkpoints(self.folder / "checkpoints")]
            names = [files_of(path) for path in saved if path.is_file()]
            known = [files for files in names if files is not None]
            if len(known) == len(names):
                self.buffer.clean(name for files in known for name in files)
        return self.buffer.tensors()

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        self.buffer.load(tensors)


def gather_stored(stored: Sequence[tuple[int, int, Stored]], accelerator: Accelerator) -> list[tuple[int, int, Stored]]:
    """The entries of all ranks."""
    tables = []
    for key, place, row in stored:
        head = torch.tensor([key, place, row.prompt, row.step])
        numbers = {"head": head, "reward": torch.tensor([row.reward], dtype=torch.float64), "scores": row.scores}
        tables.append({**numbers, **{f"record.{name}": value for name, value in row.record.items()}})
    rows = []
    for table in gather_tables(tables, accelerator):
        key, place, prompt, step = table.pop("head").tolist()
        reward, scores = float(table.pop("reward")), table.pop("scores")
        record = {name.partition(".")[2]: value for name, value in table.items()}
        rows.append((key, place, Stored(prompt, step, reward, scores, record)))
    return rows


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [ReplayedRows()]
