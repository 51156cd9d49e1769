"""What the demo has opened: runs, pairs of models, the embedded models. A model is loaded when it is first needed."""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.cli.errors import is_user_error
from mmgrpo.cli.source import UNTRAINED, Source, load_weights, run_config, run_section
from mmgrpo.cli.train import read
from mmgrpo.config.registry import parse
from mmgrpo.family import Family, family
from mmgrpo.runtime.checkpoint import latest_checkpoint, step_of
from mmgrpo.runtime.identity import MARKER
from mmgrpo.scoring.load import common_parameters

if TYPE_CHECKING:
    from mmgrpo.config.settings import Config
    from mmgrpo.scoring import Scorer
    from mmgrpo.types import Policy, Prompt

EMBEDDED = ("visual/demo", "visual/demo_video", "vlm/demo", "speech/whisper_adapt", "speech/demo_duration")
"""Recipes of the embedded models."""
KEPT = 2
"""Models that are kept in memory: those before and after."""
BEFORE, AFTER = "before", "after"
STORED, STORED_RUN = "demo (stored)", Path(__file__).parent / "stored"
"""Name and folder of the run that is shown where there is no other: one of ``visual/demo``, without its weights, which
``scripts/pretrain/stored_run.py`` made."""
NAMED = "--before and --after"
"""Name of the pair of these options."""


@dataclass(frozen=True)
class Pair:
    """A model before and, if it was trained, after training."""

    name: str
    config: Config
    family: Family
    run: Path | None = None
    """The run folder, where there is one."""
    weights: str = ""
    """Weights after training of a model without a run: a path or a hub id; empty where there are none."""

    @property
    def modality(self) -> str:
        """``visual``, ``vlm``, ``text`` or ``speech``."""
        return self.family.modality

    @property
    def trained(self) -> str:
        """The weights after training that there are now: of a run ``model``, or the step of its latest checkpoint
        while it goes on; empty where there are none yet."""
        if self.run is None:
            return self.weights
        if (self.run / "model").is_dir():
            return "model"
        folder = self.run / "checkpoints"
        latest = latest_checkpoint(folder) if folder.is_dir() else None
        return str(step_of(latest.name)) if latest else ""

    def version(self, weights: str) -> str:
        """``weights``, and of the model of a run when it was written: another run may replace it."""
        if self.run is None or weights != "model":
            return weights
        return f"{weights} {(self.run / weights).stat().st_mtime_ns}"

    @property
    def sides(self) -> tuple[str, ...]:
        """The models that there are now."""
        return (BEFORE, AFTER) if self.trained else (BEFORE,)

    def weights_of_rewards(self) -> dict[str, float]:
        """The weight in training of every reward, by the name that it has in metrics; none is loaded."""
        weights = {}
        for spec in self.config.rewards:
            name, parameters = parse(spec)
            common = common_parameters(name, parameters, ":" in name, elsewhere=False)
            weights[common.title] = common.weight
        return weights

    def examples(self, count: int | None) -> list[Prompt]:
        """The first held-out prompts, or all; empty if they cannot be read here."""
        return self._heldout[:count]

    @cached_property
    def _heldout(self) -> list[Prompt]:
        try:
            return list(self.family.read(self.config, self.config.data.heldout)[0])
        except (OSError, ValueError, ImportError):
            return []

    def load(self, side: str, device: str, weights: str = "") -> Policy:
        """The model of a side; ``weights`` are those after training, by default the present ones."""
        weights = UNTRAINED if side == BEFORE else weights or self.trained
        if self.run:
            return load_weights(Source(run=str(self.run), weights=weights), self.config, self.family, device)
        config, weights = (self.config, "") if side == BEFORE else trained_model(self.config, weights)
        return self.family.policy(config, device, training=False, weights=weights)


def trained_model(config: Config, after: str) -> tuple[Config, str]:
    """The configuration and the weights with which a family loads what --after names: saved weights of the model of
    ``config``, or another whole model."""
    folder = Path(after)
    whole = not folder.is_dir() or any((folder / name).is_file() for name in ("model_index.json", "config.json"))
    return (replace(config, model=replace(config.model, path=after)), "") if whole else (config, after)


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
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Runs that were found but cannot be opened, or whose models cannot, with the reasons."""
    loaded: OrderedDict[tuple[str, str, str], Policy] = field(default_factory=OrderedDict)
    """Models in memory by pair, side and weights, the least recently used first."""
    rewards: dict[str, tuple[list[Scorer], dict[str, str]]] = field(default_factory=dict)
    """What ``scorers`` has loaded."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while models and rewards are loaded and while they compute: they share the memory of one device. A generator
    must not hold it while it yields, since one that is cancelled never goes on."""

    def of(self, *modalities: str) -> list[str]:
        """Names of the pairs of these modalities."""
        return [name for name, pair in self.pairs.items() if pair.modality in modalities]

    def policy(self, name: str, side: str) -> Policy:
        """A model, from memory or loaded; hold ``lock`` while it is used. KeyError for a name that is not opened.

        Of a run that goes on, it is that of the latest checkpoint.
        """
        pair = self.pairs[name]
        if side not in pair.sides:
            raise ValueError(f"'{name}': got the side '{side}', expected {' or '.join(pair.sides)}")
        weights = pair.trained if side == AFTER else ""
        key = name, side, weights and pair.version(weights)
        if key not in self.loaded:
            # An earlier version of the same weights is of no use any more.
            for old in [other for other in self.loaded if other[:2] == key[:2]]:
                del self.loaded[old]
            while len(self.loaded) >= KEPT:
                self.loaded.popitem(last=False)
            free_memory(self.device)
            self.loaded[key] = pair.load(side, self.device, weights)
        self.loaded.move_to_end(key)
        return self.loaded[key]

    def holds(self, name: str, side: str) -> bool:
        """Whether a model is in memory."""
        return any(key[:2] == (name, side) for key in self.loaded)

    def scorers(self, name: str) -> tuple[list[Scorer], dict[str, str]]:
        """The rewards of a pair, and those that cannot be loaded here with the reasons; hold ``lock`` meanwhile."""
        from mmgrpo.rewards import scorer

        if name not in self.rewards:
            loaded: dict[str, Scorer] = {}
            failed: dict[str, str] = {}
            for spec in self.pairs[name].config.rewards:
                try:
                    reward = scorer(spec, self.device)
                except (Exception, SystemExit) as error:  # a reward is code of somebody else's
                    written = spec.partition("(")[0]
                    failed[written] = failure(error, written)
                else:
                    loaded[reward.name] = reward
            self.rewards[name] = list(loaded.values()), failed
        return self.rewards[name]


def in_a_line(error: BaseException, file: str = "") -> str:
    """An error as one line of text, without its type where it says something, and with the name of an upload in place
    of its path."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.replace(file, Path(file).name)[:500]


def failure(error: BaseException, reward: str) -> str:
    """Why a reward has no values and what to do, in a line: its error, with its type and the line of the user's own
    code unless it is addressed to users; then what is missing here, or how to see it alone."""
    from mmgrpo.rewards import entries
    from mmgrpo.scoring.isolation import in_words
    from mmgrpo.scoring.manifest import obstacle

    for_user = isinstance(error, Exception) and is_user_error(error)
    text = in_a_line(error) if for_user else " ".join(in_words(error).split())[:500]
    entry = entries().get(reward)
    manifest = entry.read_manifest() if entry else None
    alone = f"see it alone: mmgrpo score --reward {reward} FILE"
    advice = (obstacle(manifest) if manifest else "") or (alone if entry else "correct it and start the demo again")
    return text if advice in text else f"{text.rstrip('.;')}; {advice}"


def free_memory(device: str) -> None:
    """Give the memory of models that are not used any more back to the device."""
    import torch

    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def open_all(args: Any, device: str) -> Opened:
    """What the options of the demo name. An error names the folder that cannot be opened; a run of a folder of runs
    that cannot is left out."""
    runs = find_runs(args.runs) if args.runs else find_runs(["runs"], required=False) or {STORED: STORED_RUN}
    named = {Path(text).resolve() for text in args.runs}
    pairs: dict[str, Pair] = {}
    left_out: dict[str, str] = {}
    for name, folder in list(runs.items()):
        try:
            section = run_section(str(folder))
        except (OSError, ValueError) as error:
            if folder in named:
                raise ValueError(f"'{folder}' cannot be opened: {in_a_line(error)}") from error
            left_out[name] = in_a_line(error)
            del runs[name]
            continue
        try:
            pair = run_pair(name, folder, section)
        except (OSError, ValueError, ModuleNotFoundError) as error:
            left_out[name] = f"its models: {in_a_line(error)}"
        else:
            pairs |= {name: pair} if pair else {}
    if bool(args.before) != bool(args.family) or (args.after and not args.before):
        raise ValueError("got one of --before, --after and --family, expected --before and --family, and --after")
    if args.before:
        config = read(["--model.family", args.family, "--model.path", args.before], "")
        config = replace(config, rewards=list(args.rewards))
        pairs[NAMED] = Pair(NAMED, config, family(args.family), weights=args.after)
    elif args.rewards:
        raise ValueError("--rewards are those of --before and --after, and a run has its own; name --before")
    for recipe in EMBEDDED:
        config = read(["--recipe", recipe], "")
        pairs[f"embedded: {recipe}"] = Pair(f"embedded: {recipe}", config, family(config.model.family))
    folders = args.runs or ["runs"]
    return Opened(runs, pairs, Path(args.votes).absolute(), device, folders, left_out)


def find_runs(folders: Sequence[str], required: bool = True) -> dict[str, Path]:
    """Run folders by name: those named, and those inside the named ones, each once."""
    runs: dict[str, Path] = {}
    for text in folders:
        folder = Path(text)
        inside = sorted(path.parent for path in folder.glob(f"*/{MARKER}") if not path.parent.name.startswith("."))
        several = [folder] if (folder / MARKER).is_file() else inside
        if not several and required:
            raise FileNotFoundError(f"'{text}' is not a run folder and contains none: no {MARKER}; name a run folder")
        for run in several:
            if run.resolve() not in runs.values():
                runs[run.resolve().name if run.resolve().name not in runs else str(run)] = run.resolve()
    return runs


def run_pair(name: str, folder: Path, section: Mapping[str, Any]) -> Pair | None:
    """The models of a run, whose config.yaml says ``section``; None if it was trained from Python with a policy of its
    own."""
    model = section.get("model", {})
    if not isinstance(model, Mapping) or not model.get("family"):
        return None
    model_family = family(str(model["family"]))
    return Pair(name, run_config(str(folder), model_family), model_family, folder)
