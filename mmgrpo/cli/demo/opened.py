"""What the demo has opened: runs, pairs of models, the embedded models. A model is loaded when it is first needed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.cli.source import UNTRAINED, Source, load_weights, run_config, run_section
from mmgrpo.cli.train import read
from mmgrpo.family import Family, family
from mmgrpo.runtime.identity import MARKER
from mmgrpo.runtime.plugins import locate

if TYPE_CHECKING:
    from mmgrpo.runtime.config import Config
    from mmgrpo.types import Policy, Prompt

EMBEDDED = ("visual/demo", "visual/demo_video", "vlm/demo", "speech/whisper_adapt", "speech/demo_duration")
"""Recipes of the embedded models."""
KEPT = 2
"""Models that are kept in memory: those before and after."""
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class Pair:
    """A model before and, if it was trained, after training."""

    name: str
    config: Config
    family: Family
    run: Path | None = None
    """The run folder, where there is one."""
    weights: str = ""
    """Weights after training: ``model``, ``latest`` or a path; empty where there are none."""

    @property
    def modality(self) -> str:
        """``visual``, ``vlm`` or ``speech``."""
        return self.family.modality

    @property
    def sides(self) -> tuple[str, ...]:
        """The models that there are."""
        return (BEFORE, AFTER) if self.weights else (BEFORE,)

    def examples(self, count: int) -> list[Prompt]:
        """The first held-out prompts; empty if they cannot be read here."""
        try:
            prompts, _ = self.family.read(self.config, locate(self.config.data.heldout))
        except (OSError, ValueError):
            return []
        return prompts[:count]

    def load(self, side: str, device: str) -> Policy:
        """The model of a side."""
        if side == BEFORE or self.run:
            weights = UNTRAINED if side == BEFORE else self.weights
            source = Source(run=str(self.run or ""), weights=weights)
            return load_weights(source, self.config, self.family, device)
        return self.family.policy(self.config, device, training=False, weights=self.weights)


@dataclass
class Opened:
    """Runs and pairs by the names that the page shows. A name that is not here opens nothing."""

    runs: Mapping[str, Path]
    """Run folders."""
    pairs: Mapping[str, Pair]
    votes: Path
    """File of the votes."""
    device: str = "cpu"
    folders: Sequence[str] = ()
    """The named folders, in which further runs can appear."""
    loaded: OrderedDict[tuple[str, str], Policy] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while models are loaded and while they compute: they share the memory of one device."""

    def of(self, modality: str) -> list[str]:
        """Names of the pairs of a modality."""
        return [name for name, pair in self.pairs.items() if pair.modality == modality]

    def policy(self, name: str, side: str) -> Policy:
        """A model, from memory or loaded; hold ``lock`` while it is used."""
        key = name, side
        if key not in self.loaded:
            while len(self.loaded) >= KEPT:
                self.loaded.popitem(last=False)
            self.loaded[key] = self.pairs[name].load(side, self.device)
        self.loaded.move_to_end(key)
        return self.loaded[key]


def open_all(args: Any, device: str) -> Opened:
    """What the options of the demo name. An error names the folder that cannot be opened."""
    folders = args.runs or (["runs"] if Path("runs").is_dir() else [])
    runs = find_runs(folders)
    pairs = {name: pair for name, folder in runs.items() if (pair := run_pair(name, folder))}
    if bool(args.before) != bool(args.family) or (args.after and not args.before):
        raise ValueError("got one of --before, --after and --family, expected --before and --family, and --after")
    if args.before:
        config = read(["--model.family", args.family, "--model.path", args.before], "")
        pairs["the pair"] = Pair("the pair", config, family(args.family), weights=args.after)
    for recipe in EMBEDDED:
        config = read(["--recipe", recipe], "")
        pairs[f"embedded: {recipe}"] = Pair(f"embedded: {recipe}", config, family(config.model.family))
    return Opened(runs, pairs, Path(args.votes).absolute(), device, folders)


def find_runs(folders: Sequence[str]) -> dict[str, Path]:
    """Run folders by name: those named, and those inside the named ones."""
    found: dict[str, Path] = {}
    for text in folders:
        folder = Path(text)
        inside = sorted(path.parent for path in folder.glob(f"*/{MARKER}") if not path.parent.name.startswith("."))
        several = [folder] if (folder / MARKER).is_file() else inside
        if not several and text != "runs":
            raise FileNotFoundError(f"'{text}' is not a run folder and contains none: no {MARKER}; name a run folder")
        for one in several:
            name = one.resolve().name if one.resolve().name not in found else str(one)
            found[name] = one.resolve()
    return found


def run_pair(name: str, folder: Path) -> Pair | None:
    """The models of a run; None if no family can load them."""
    model = run_section(str(folder)).get("model", {})
    if not isinstance(model, Mapping) or not model.get("family"):
        return None
    model_family = family(str(model["family"]))
    weights = "model" if (folder / "model").is_dir() else "latest" if (folder / "checkpoints").is_dir() else ""
    return Pair(name, run_config(str(folder), model_family), model_family, folder, weights)


def on(config: Config, device: str) -> Config:
    """The configuration with another device."""
    return replace(config, model=replace(config.model, device=device))
