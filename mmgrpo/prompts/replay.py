"""The replay buffer: rows of earlier rounds, bounded by prompt, in all and by age.

    after a round    its own scored rows enter, in the order of group and member
    in a round       some rows of each of its prompts are drawn before, so no round replays its own rows

It holds the same rows on every process and is in every checkpoint. A row is what its policy needs to score it again
(``Storing.pack``), its rewards, one by one, since their weights may change, and the optimizer step it is of.

What a row of tokens needs is small, and is in memory and in the checkpoint. The latents of an image or video are large
(5.8 MB for 11 states of 16 x 128 x 128 in half precision): with a ``folder`` they are files of it, named by their
content, of which checkpoints hold the names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from mmgrpo.files import write_bytes
from mmgrpo.objectives.origins import Replay
from mmgrpo.types import Record

ENDING = ".safetensors"


@dataclass(frozen=True)
class Stored:
    """A row of an earlier round."""

    prompt: int
    """Number of its prompt in the training set."""
    step: int
    """Optimizer steps before its round."""
    reward: float
    """Its rewards as one number, by the weights of its round."""
    scores: Float[Tensor, "3 R"]
    """Values of the rewards, whether they are valid, and whether the reward abstained."""
    record: Record
    digest: str = ""
    """The name of its file, where ``record`` is kept in one; 32 hexadecimal digits."""


@dataclass
class Buffer:
    """Rows in the order in which they entered."""

    rows: list[Stored] = field(default_factory=list)
    folder: Path | None = None
    """Where the records are kept; None: in memory."""
    writes: bool = True
    """Whether this process writes the files, which are the same for all."""

    def draw(self, prompt: int, settings: Replay, step: int, generator: torch.Generator) -> list[Stored]:
        """Rows of a prompt by the strategy, in the order in which they entered; none below ``settings.least``."""
        stored = [row for row in self.rows if row.prompt == prompt and not is_expired(row, settings, step)]
        if len(stored) < max(1, settings.least):
            return []
        drawn = [stored[place] for place in sorted(choose([row.reward for row in stored], settings, generator))]
        return [replace(row, record=self._read(row.digest)) if row.digest else row for row in drawn]

    def insert(
        self, rows: Sequence[Stored], settings: Replay, step: int, averages: Mapping[int, float] | None = None
    ) -> None:
        """Take in rows of reward above ``settings.above``; what its bounds leave no place for goes, oldest first.
        ``averages`` are the average rewards of the prompts, for ``settings.tiers``."""
        kept, count = [], {}
        entering = [row for row in rows if row.reward > settings.above]
        for row in reversed([*self.rows, *entering]):
            if is_expired(row, settings, step) or count.get(row.prompt, 0) >= settings.per_prompt:
                continue
            count[row.prompt] = count.get(row.prompt, 0) + 1
            kept.append(row)
        if settings.tiers:
            kept = within_tiers(kept, settings, averages or {})
        self.rows = [self._file_record(row) for row in kept[: settings.capacity][::-1]]

    def _file_record(self, row: Stored) -> Stored:
        """The row with its record in a file, where there is a folder."""
        if self.folder is None or row.digest:
            return row
        content = to_bytes(dict(sorted(row.record.items())))
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        path = self.folder / f"{digest}{ENDING}"
        if self.writes and not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content)
        return replace(row, record={}, digest=digest)

    def _read(self, digest: str) -> Record:
        """The record of a file; ValueError for one that is not what was written."""
        assert self.folder is not None
        path = self.folder / f"{digest}{ENDING}"
        content = path.read_bytes() if path.is_file() else b""
        if hashlib.blake2b(content, digest_size=16).hexdigest() != digest:
            raise ValueError(
                f"{path} is {'damaged' if content else 'missing'}, a sample that algorithm.replay keeps; restore it, "
                "or begin a new run"
            )
        return from_bytes(content)

    def clean(self, others: Iterable[str]) -> None:
        """Remove the files that neither this buffer nor ``others`` name."""
        used = {row.digest for row in self.rows} | {*others}
        for path in self.folder.glob(f"*{ENDING}") if self.folder and self.writes else ():
            if path.stem not in used:
                path.unlink(missing_ok=True)

    def tensors(self) -> dict[str, Tensor]:
        """Everything as tensors, for a checkpoint; empty without rows."""
        if not self.rows:
            return {}
        tensors = {
            "places": torch.tensor([[row.prompt, row.step] for row in self.rows]),
            "rewards": torch.tensor([row.reward for row in self.rows], dtype=torch.float64),
            "scores": torch.stack([row.scores for row in self.rows]),
        }
        if self.folder is not None:
            tensors[FILES] = torch.tensor([list(bytes.fromhex(row.digest)) for row in self.rows], dtype=torch.uint8)
        for number, row in enumerate(self.rows):
            tensors |= {f"{number}.{name}": value for name, value in row.record.items()}
        return tensors

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of ``tensors``."""
        records: dict[int, Record] = {}
        for name, value in tensors.items():
            number, dot, key = name.partition(".")
            if dot:
                records.setdefault(int(number), {})[key] = value
        if tensors:
            places, rewards = tensors["places"].tolist(), tensors["rewards"].tolist()
            digests = named_files(tensors) or [""] * len(places)
            rows = [
                Stored(prompt, step, rewards[row], tensors["scores"][row], records.get(row, {}), digests[row])
                for row, (prompt, step) in enumerate(places)
            ]
            self.rows = [self._file_record(row) for row in rows]
        else:
            self.rows = []


FILES = "files"


def files_of(path: Path) -> list[str] | None:
    """``named_files`` of a checkpoint's buffer; None for a file that cannot be read, whose names are not known."""
    try:
        with safe_open(path, "pt") as stored:
            return named_files({FILES: stored.get_tensor(FILES)} if FILES in stored.keys() else {})  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        print(f"{path} cannot be read ({error}), so samples of algorithm.replay are kept until it is gone")
        return None


def named_files(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of the files that a buffer's tensors refer to, by row; none where the records are among them."""
    return [bytes(row).hex() for row in tensors[FILES].tolist()] if FILES in tensors else []


def within_tiers(newest: Sequence[Stored], settings: Replay, averages: Mapping[int, float]) -> list[Stored]:
    """The newest rows of each tier of prompts, as many as its share of the capacity.

    Prompts are ranked by their average reward; shares .25, .35 and .4 of the buffer are those of the best 25 % of them,
    the next 35 % and the worst 40 %.
    """
    prompts = sorted({row.prompt for row in newest}, key=lambda prompt: (-averages.get(prompt, 0.0), prompt))
    bounds = [*accumulate(settings.tiers)]

    def tier(place: int) -> int:
        share = (place + 0.5) / len(prompts)
        return next((number for number, bound in enumerate(bounds) if share <= bound), len(bounds) - 1)

    tiers = {prompt: tier(place) for place, prompt in enumerate(prompts)}
    room = [round(settings.capacity * share) for share in settings.tiers]
    kept = []
    for row in newest:
        if room[tiers[row.prompt]] > 0:
            room[tiers[row.prompt]] -= 1
            kept.append(row)
    return kept


def is_expired(row: Stored, settings: Replay, step: int) -> bool:
    """Whether a row is older than ``settings.age`` optimizer steps."""
    return bool(settings.age) and step - row.step > settings.age


def choose(rewards: Sequence[float], settings: Replay, generator: torch.Generator) -> list[int]:
    """Places of at most ``settings.count`` rewards by ``settings.strategy``.

    The subset of largest variance consists of the lowest and the highest: all splits are compared (RePO,
    arXiv:2506.09340, compares all subsets), among equals that with the larger sum. Ties go to the older row.
    """
    count, places = min(settings.count, len(rewards)), range(len(rewards))
    if settings.strategy == "all":
        return [*places]
    if settings.strategy == "recent":
        return [*places][len(rewards) - count :]
    if settings.strategy == "random":
        return torch.randperm(len(rewards), generator=generator)[:count].tolist()
    highest = sorted(places, key=lambda place: -rewards[place])
    if settings.strategy == "highest":
        return highest[:count]
    lowest = sorted(places, key=lambda place: rewards[place])
    subsets = [highest[: count - low] + lowest[:low] for low in range(count + 1)]
    return max(subsets, key=lambda subset: _variance([rewards[place] for place in subset]))


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / max(1, len(values))
    return sum((value - mean) ** 2 for value in values)
