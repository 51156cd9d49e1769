"""The ledger of a run: numbers per prompt, per category and of the run that outlive rounds.

    prompts      visits, draws, sum, squares, best, last_mean, last_variance, last_count, last_round
    categories   visits
    run          rounds                                            and in each the columns of trackers

It is updated once per round, after its optimizer steps, from the gathered rows in canonical order (group, member), so
that it is the same on every process and for any number of them. A round reads what earlier rounds left. It is in every
checkpoint, and ``prompts.jsonl`` of the run folder shows it: a summary, then a line per prompt, the hardest first.

Prompts are numbered as in the training set, whose fingerprint a resumed run checks; in files their ``key`` is the hash
of their content, by which another run finds them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.config.registry import Bound
from mmgrpo.data.splits import content
from mmgrpo.files import write_text
from mmgrpo.prompts.trackers import CATEGORIES, COLUMNS, PROMPTS, READS, RUN, Seen
from mmgrpo.types import OWN, REPLACED, Decisions, Prompt

FILE = "prompts.jsonl"

BASE: Mapping[str, Mapping[str, float | int]] = {
    PROMPTS: {"visits": 0, "draws": 0, "sum": 0.0, "squares": 0.0, "best": 0.0}
    | {"last_mean": 0.0, "last_variance": 0.0, "last_count": 0, "last_round": 0},
    CATEGORIES: {"visits": 0},
    RUN: {"rounds": 0},
}
"""Columns that every ledger has, with their start values. ``last_variance`` is that of the population."""

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
HISTORY = ("round", "visited", "flat", *(f"q{round(100 * level)}" for level in QUANTILES))
"""What is kept of every round: prompts visited so far, the fraction of them whose last rewards were all equal, and
quantiles of their last mean rewards."""

LETTERS = 120
"""Letters of a prompt's text in the file."""


def key_of(prompt: Prompt) -> str:
    """The identity of a prompt over runs: the hash of its text, its media (files by name) and its answer."""
    text = repr((content(prompt), prompt.answer))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Rows:
    """The gathered rows of a round, as a ledger sees them."""

    prompt: Int[Tensor, "B"]
    """Number of the prompt in the training set."""
    group: Int[Tensor, "B"]
    member: Int[Tensor, "B"]
    reward: Float[Tensor, "B"]
    """The rewards as one number; NaN where the row was not scored."""
    length: Int[Tensor, "B"]
    log_prob: Float[Tensor, "B"]
    advantage: Float[Tensor, "B"]
    own: Bool[Tensor, "B"]
    """Sampled by the policy itself, from the prompt as it is."""
    scores: Float[Tensor, "B R"]
    """Each reward as it was scored; NaN where it was not."""

    @staticmethod
    def of(
        decisions: Decisions,
        totals: Float[Tensor, "B"],
        advantages: Float[Tensor, "B T"],
        loss_mask: Bool[Tensor, "B T"],
        scores: Float[Tensor, "B R"],
    ) -> Rows:
        """The rows of a round, whose numbers are on the host; ``decisions`` have the field ``prompt_index``. Members
        are in gathered order, which is that of drawing: all members of a draw are on one rank."""
        index, group = decisions.fields["prompt_index"], decisions.keys["prompt"]
        order = group.argsort(stable=True)
        _, counts = torch.unique(group, return_counts=True)
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)[:-1]]).repeat_interleave(counts)
        member = torch.empty_like(order)
        member[order] = torch.arange(len(order)) - starts
        mask, trained = decisions.decision_mask, loss_mask
        length, number = mask.sum(1), trained.sum(1)
        log_probs, size = decisions.log_probs.double(), advantages.double().abs()
        return Rows(
            prompt=index,
            group=group,
            member=member,
            reward=totals.double(),
            length=length,
            log_prob=torch.where(mask, log_probs, 0.0).sum(1) / length.clamp(min=1),
            advantage=torch.where(trained, size, 0.0).sum(1) / number.clamp(min=1),
            own=torch.isin(decisions.origin, torch.tensor([OWN, REPLACED])) & (index >= 0),
            scores=scores.double(),
        )

    def canonical(self) -> Rows:
        """The scored rows of the policy's own, in order of group and member."""
        order = self.member.argsort(stable=True)
        order = order[self.group[order].argsort(stable=True)]
        order = order[(self.own & ~self.reward.isnan())[order]]
        return Rows(**{name: value[order] for name, value in vars(self).items()})

    def to_seen(self, rows: Tensor, first: bool) -> Seen:
        numbers = self.reward[rows], self.length[rows], self.log_prob[rows], self.advantage[rows], self.group[rows]
        return Seen(*numbers, first, scores=self.scores[rows])


@dataclass(frozen=True)
class Measured:
    """Rewards of a prompt that were measured before the run."""

    mean: float
    variance: float
    best: float
    count: int

    @staticmethod
    def of(rewards: Sequence[float]) -> Measured:
        values = torch.tensor(rewards, dtype=torch.float64)
        return Measured(float(values.mean()), float(values.var(correction=0)), float(values.max()), len(values))


@dataclass(frozen=True)
class TrainingPrompts:
    """The prompts that a run trains on, and what it knows of each."""

    prompts: Sequence[Prompt]
    ledger: Ledger


class Ledger:
    """Tables of numbers by prompt, by category and of the run."""

    def __init__(
        self,
        size: int,
        trackers: Sequence[Bound] = (),
        category: Sequence[int] = (),
        names: Sequence[str] = (),
        given: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        """``category`` is the index in ``names`` of the category of each prompt, where a sampler has categories;
        ``given`` are columns of the data set that filters read."""
        self.size, self.trackers, self.names, self.given = size, tuple(trackers), tuple(names), given
        self.category = torch.tensor(category, dtype=torch.long)
        self.columns = {
            table: {name: torch.full((self.length(table),), value) for name, value in start.items()}
            for table, start in BASE.items()
        }
        for table in self.columns.values():
            for name, value in table.items():
                table[name] = value.double() if value.is_floating_point() else value
        for bound in self.trackers:
            columns = COLUMNS[bound.block.fn]
            for name, value in columns.of(bound).items():
                if name in self.columns[columns.table]:
                    raise ValueError(f"algorithm.trackers: got '{bound.text}' twice, or a column '{name}' that is kept")
                start = torch.tensor(value, dtype=torch.float64)
                self.columns[columns.table][name] = start.expand(self.length(columns.table), *start.shape).clone()
        self.history = torch.zeros(0, len(HISTORY), dtype=torch.float64)
        self.predict: Callable[[Sequence[int]], Float[Tensor, "N"]] | None = None
        """The rewards of prompts, by number, as a network of the run predicts them; None where it has none."""
        self.labels: dict[int, dict[str, str]] = {}

    def length(self, table: str) -> int:
        """Rows of a table."""
        return {PROMPTS: self.size, CATEGORIES: len(self.names), RUN: 1}[table]

    @property
    def rounds(self) -> int:
        """Rounds that were entered."""
        return int(self.columns[RUN]["rounds"][0])

    def read(self, name: str) -> Float[Tensor, "N ..."]:
        """The number, or numbers, ``name`` (``READS``) of every row of its table."""
        read = READS[name]
        return read.value({**self.columns[RUN], **self.columns[read.table]}).double()

    def fields(self, names: Iterable[str], prompt: Int[Tensor, "B"]) -> dict[str, Float[Tensor, "B ..."]]:
        """The numbers ``names`` for rows of prompts (numbers on the host), -1 for rows of none; those of the run are
        equal in all rows."""
        values = {name: self.read(name) for name in names}
        place = prompt.clamp(min=0)
        look_up = {PROMPTS: lambda value: value[place], CATEGORIES: lambda value: value[self.category[place]]}
        whole = lambda value: value.expand(len(place), *value.shape[1:])  # noqa: E731
        return {name: look_up.get(READS[name].table, whole)(value) for name, value in values.items()}

    def update(self, rows: Rows, number: int) -> None:
        """Enter round ``number``. A round without any scored row of the policy's own changes nothing."""
        rows = rows.canonical()
        if not len(rows.reward):
            return
        for group in torch.unique(rows.group).tolist():
            here = rows.group == group
            index = int(rows.prompt[here][0])
            self._visit(index, rows.to_seen(here, not self.columns[PROMPTS]["visits"][index]), number)
        if len(self.names):
            category = self.category[rows.prompt]
            for index in torch.unique(category).tolist():
                first = not self.columns[CATEGORIES]["visits"][index]
                self._track(CATEGORIES, index, rows.to_seen(category == index, first))
                self.columns[CATEGORIES]["visits"][index] += 1
        all_rows = torch.ones_like(rows.own)
        self._track(RUN, 0, rows.to_seen(all_rows, self.rounds == 0))
        self.columns[RUN]["rounds"] += 1
        self.history = torch.cat([self.history, self._moment(number)[None]])

    def lose(self, losses: Mapping[int, float]) -> None:
        """Enter the losses of given answers, by number of the category."""
        none = torch.zeros(0, dtype=torch.float64)
        for index, loss in losses.items():
            first = not self.columns[CATEGORIES]["visits"][index]
            self._track(CATEGORIES, index, Seen(none, none.long(), none, none, none.long(), first, loss=loss))
            self.columns[CATEGORIES]["visits"][index] += 1

    def start(self, measured: Mapping[int, Measured]) -> None:
        """Enter what was measured before the run, by number of the prompt."""
        for index, prior in measured.items():
            rewards = torch.full((prior.count,), prior.mean, dtype=torch.float64)
            zero = torch.zeros_like(rewards)
            seen = Seen(rewards, zero.long(), zero, zero, zero.long(), first=True, offline=True)
            self._visit(index, seen, 0)
            row = {
                "best": prior.best,
                "last_variance": prior.variance,
                "squares": prior.count * (prior.variance + prior.mean**2),
            }
            for name, value in row.items():
                self.columns[PROMPTS][name][index] = value

    def _visit(self, index: int, seen: Seen, number: int) -> None:
        self._track(PROMPTS, index, seen)
        table, rewards = self.columns[PROMPTS], seen.rewards
        best = float(rewards.max())
        table["best"][index] = best if seen.first else max(best, float(table["best"][index]))
        table["visits"][index] += 1
        table["draws"][index] += len(rewards)
        table["sum"][index] += rewards.sum()
        table["squares"][index] += rewards.square().sum()
        last = {"mean": rewards.mean(), "variance": rewards.var(correction=0), "count": len(rewards), "round": number}
        for name, value in last.items():
            table[f"last_{name}"][index] = value

    def _track(self, table: str, index: int, seen: Seen) -> None:
        columns = self.columns[table]
        for bound in self.trackers:
            if COLUMNS[bound.block.fn].table == table:
                names = COLUMNS[bound.block.fn].start
                before = {
                    n: columns[n][index].clone() if columns[n].dim() > 1 else float(columns[n][index]) for n in names
                }
                for name, value in bound({**before, "seen": seen}).items():
                    columns[name][index] = value

    def _moment(self, number: int) -> Float[Tensor, "columns"]:
        """The row of the history after a round."""
        table = self.columns[PROMPTS]
        visited = table["visits"] > 0
        flat = (table["last_variance"][visited] == 0).double().mean()
        levels = torch.tensor(QUANTILES, dtype=torch.float64)
        ordered = table["last_mean"][visited].sort().values
        at = (levels * (len(ordered) - 1)).round().long()
        head = torch.tensor([float(number), float(visited.sum()), float(flat)], dtype=torch.float64)
        return torch.cat([head, ordered[at]])

    def tensors(self) -> dict[str, Tensor]:
        """The ledger as named tensors, for a checkpoint."""
        named = {f"{table}.{name}": value for table, columns in self.columns.items() for name, value in columns.items()}
        return {name: value for name, value in {**named, "history": self.history}.items() if value.numel()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of ``tensors``; ValueError for the ledger of other trackers or another training set."""
        mine = self.tensors() | {"history": self.history}
        if not tensors and self.trackers:
            raise ValueError(
                "the checkpoint has no ledger, which algorithm.trackers need; go on without them, or start a new run "
                "with data.ledger naming this one"
            )
        for name in sorted((mine.keys() ^ tensors.keys()) - {"history"}) if tensors else ():
            raise ValueError(
                f"the ledger of the checkpoint and that of this run differ in '{name}'; go on with the trackers "
                "(algorithm.trackers) and samplers that the run began with"
            )
        for name, value in tensors.items():
            if name != "history" and value.shape != mine[name].shape:
                raise ValueError(
                    f"the ledger of the checkpoint has {list(value.shape)} in '{name}', expected "
                    f"{list(mine[name].shape)}; go on with the training set and trackers that the run began with"
                )
            table, _, column = name.partition(".")
            if column:
                self.columns[table][column] = value.clone()
        self.history = tensors["history"].clone() if "history" in tensors else self.history[:0]

    def metrics(self) -> dict[str, float]:
        """What trackers of the run and of categories hold, as metrics."""
        single = {name: value for name, value in self.columns[RUN].items() if value.dim() == 1 and name != "rounds"}
        run = {f"tracker/{name}": float(value[0]) for name, value in single.items()}
        arms = {name: value for name, value in self.columns[CATEGORIES].items() if name != "visits"}
        return run | {
            f"category/{name}/{column}": float(value[index])
            for column, value in arms.items()
            for index, name in enumerate(self.names)
        }

    def entries(self, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        """The visited prompts as they are shown, the hardest first."""
        table = self.columns[PROMPTS]
        visited = table["visits"].nonzero()[:, 0].tolist()
        for index in visited:
            if index not in self.labels:
                prompt = prompts[index]
                text = " ".join(prompt.text.split())[:LETTERS]
                self.labels[index] = {"id": prompt.id, "key": key_of(prompt), "task": prompt.task, "text": text}
        rows = []
        for index in visited:
            draws, best = int(table["draws"][index]), float(table["best"][index])
            numbers = {"mean": float(table["sum"][index]) / draws, "best": best, "visits": int(table["visits"][index])}
            numbers |= {"draws": draws, "squares": float(table["squares"][index])}
            last = {name: table[f"last_{name}"][index].item() for name in ("mean", "variance", "round")}
            rows.append({**self.labels[index], **numbers, **{f"last_{name}": value for name, value in last.items()}})
            rows[-1] |= {name: self._column_value(name, index) for name in self._tracker_columns()}
        return sorted(rows, key=lambda row: (row["mean"], -row["draws"]))

    def _tracker_columns(self) -> list[str]:
        """Columns of trackers, without the sizes of those that hold several numbers."""
        names = [name for name in self.columns[PROMPTS] if name not in BASE[PROMPTS]]
        return [name for name in names if not name.endswith("_size")]

    def _column_value(self, name: str, index: int) -> float | list[float]:
        column = self.columns[PROMPTS][name]
        if column.dim() == 1:
            return float(column[index])
        return column[index][column.shape[1] - int(self.columns[PROMPTS][f"{name}_size"][index]) :].tolist()

    def write(self, folder: Path, prompts: Sequence[Prompt], step: int) -> None:
        """Write ``prompts.jsonl``: a summary, then a line per visited prompt."""
        entries = self.entries(prompts)
        head = {"step": step, "prompts": self.size, "visited": len(entries), "columns": HISTORY}
        lines = [{**head, "history": self.history.tolist()}, *entries]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        write_text(folder / FILE, text.encode(errors="replace").decode())


def read_ledger(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary and the lines of ``prompts.jsonl``; ValueError for another file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; runs write it with every checkpoint")
    try:
        head, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not all(isinstance(line, dict) and isinstance(line["key"], str) for line in lines) or "history" not in head:
            raise ValueError
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: got another content, expected the ledger of a run ({FILE})") from error
    return head, lines


def read_measurements(path: str | Path, weights: Mapping[str, float]) -> dict[str, Measured]:
    """Rewards measured before a run, by ``key_of``: from a run folder, or from a file that ``mmgrpo evaluate`` wrote,
    the sum of its rewards with ``weights``."""
    place = Path(path)
    if place.is_dir():
        _, lines = read_ledger(place / FILE)
        return {
            line["key"]: Measured(
                line["mean"],
                max(0.0, line["squares"] / line["draws"] - line["mean"] ** 2),
                line["best"],
                line["draws"],
            )
            for line in lines
        }
    if not place.is_file():
        raise FileNotFoundError(
            f"data.ledger: {place}: no such file or folder; mmgrpo evaluate writes one with --output"
        )
    try:
        values = json.loads(place.read_text(encoding="utf-8"))["values"]
        rows = {row["key"]: row for row in values}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"data.ledger: {place}: got another content, expected a run folder or the file that mmgrpo evaluate writes"
        ) from error
    names = [name for name, weight in weights.items() if weight]
    if not names:
        raise ValueError(f"data.ledger: got {place} and no rewards with a weight; name in rewards what it measured")
    for row in values:
        if missing := [name for name in names if name not in row]:
            raise ValueError(
                f"data.ledger: {place} has no values of the reward '{missing[0]}'; evaluate with the rewards of the run"
            )
    measured = {}
    for key, row in rows.items():
        samples = [
            sum(weights[name] * v for name, v in zip(names, values)) if None not in values else math.nan
            for values in zip(*(row[name] for name in names))
        ]
        scored = [value for value in samples if not math.isnan(value)]
        if scored:
            measured[key] = Measured.of(scored)
    return measured


def by_number(prompts: Iterable[Prompt], measured: Mapping[str, Measured], path: str) -> dict[int, Measured]:
    """``measured`` by number of the prompt; ValueError where it is of none of them."""
    matches = {index: measured[key] for index, prompt in enumerate(prompts) if (key := key_of(prompt)) in measured}
    if not matches:
        raise ValueError(
            f"data.ledger: {path}: got {len(measured)} prompts, expected some of the training set; evaluate data.train"
        )
    return matches
