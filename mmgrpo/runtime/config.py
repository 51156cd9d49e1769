"""Configuration: dataclasses with the meaning under each field, and how they are read.

A configuration is read in three layers, later ones winning: the dataclass defaults, the YAML file
given by ``--config``, the command line. The ``algorithm`` section has one more layer below the
file: its preset. Configuration stops at the scripts; nothing else in the library takes one.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
import typing
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from mmgrpo.presets import CATALOGUE, PRESETS
from mmgrpo.runtime.files import write_text

C = TypeVar("C")


@dataclass
class Algorithm:
    """Which group-relative algorithm: named pure functions, written ``name(parameter=value)``."""

    preset: str = "grpo"
    """Named choice of the fields below (mmgrpo/presets.py); the fields then override it."""
    combine: str = "weighted_sum"
    """How several rewards become advantages: weighted_sum (of rewards), per_reward (normalise each,
    then sum: DanceGRPO), gdpo (per_reward, then whiten over the batch)."""
    keys: list[str] = field(default_factory=lambda: ["prompt"])
    """What is compared with each other: prompt, tree(weight=...), ...; several are summed."""
    baseline: str = "group_mean"
    """What is subtracted from a reward."""
    scale: str = "group_std"
    """What the difference is divided by (ddof and eps are parameters)."""
    shape: list[str] = field(default_factory=list)
    """What is done after scaling, in order: clamp(limit=5), ..."""
    credit: str = "broadcast"
    """How a sample's advantage reaches its decisions: broadcast, tree_depth, ..."""
    select: list[str] = field(default_factory=list)
    """Which samples or decisions are trained: drop_zero_spread, best_worst(count=...), ..."""
    sampler: list[str] = field(default_factory=list)
    """dynamic_sampling(rounds=...): replace groups without spread by fresh prompts, at most so many times."""
    objective: str = "ppo"
    """The per-decision loss: ppo(low=..., high=...), gspo, cispo_cap, policy_gradient, ..."""
    off_policy: str = "importance"
    """The loss of answers that the data set supplies (data.reference_in_group): importance, luffy(gamma=...)."""
    mismatch: str = "none"
    """Correction when the sampler is not the trainer: none, tis(cap=...), mis(low=..., high=...), ..."""
    aggregation: str = "per_sample"
    """How much each decision counts: per_sample, per_decision, constant_horizon(length=...), noise_aware."""
    terms: list[str] = field(default_factory=list)
    """Further losses: kl_k3(coef=...), kl_gaussian_exact(coef=...), kl_velocity(coef=...), ..."""


@dataclass
class Optim:
    """The optimizer and how a rollout is cut into updates."""

    lr: float = 1e-4
    """Peak learning rate of AdamW."""
    weight_decay: float = 1e-4
    """Decoupled weight decay."""
    beta1: float = 0.9
    """AdamW beta1."""
    beta2: float = 0.999
    """AdamW beta2."""
    warmup: int = 0
    """Optimizer steps of linear warm-up."""
    decay: str = "constant"
    """Schedule after the warm-up: constant, linear or cosine (both to zero at --steps)."""
    max_grad_norm: float = 1.0
    """Clip the gradient to this norm; 0 leaves it as it is (and still logs it)."""
    updates: int = 1
    """Optimizer steps a rollout is cut into: its groups are dealt to so many minibatches."""
    epochs: int = 1
    """How often a rollout is used."""
    micro_batch_size: int = 64
    """Memory limit: network evaluations of one forward and backward pass. It never changes the gradient."""
    ema: float = 0.0
    """Decay of the average of the trained weights, min((1+s)/(10+s), ema) at step s; 0 keeps none."""
    ema_every: int = 1
    """Optimizer steps between two updates of the average."""
    interpolation: float = 1.0
    """Share of the weights' change that evaluation and the saved model keep: before + blend (after - before). Below 1
    they forget less of what the model could do before (WiSE-FT, arXiv:2109.01903)."""


@dataclass
class Eval:
    """Evaluation on prompts that are never trained on."""

    every: int = 0
    """Optimizer steps between evaluations during the run; 0 evaluates before and after only."""
    prompts: int = 0
    """How many held-out prompts (and of each file of also); 0 takes all of them."""
    extra: list[str] = field(default_factory=list)
    """Further prompt files that are evaluated before and after, each told by its name: what should not be forgotten."""
    samples: int = 1
    """Samples a prompt; their mean is the prompt's score."""
    seed: int = 1234
    """Seed of the evaluation samples, the same before and after."""
    skip: bool = False
    """Leave evaluation out altogether (for benchmarks)."""


@dataclass
class Run:
    """What every training script has."""

    name: str = "run"
    """Name of the run; its folder is <output-dir>/<name>."""
    output_dir: str = "runs"
    """Where run folders live."""
    steps: int = 100
    """Optimizer steps."""
    seed: int = 0
    """A run is its config, its seed and its commit."""
    resume: bool = False
    """Continue from the newest checkpoint of this run folder."""
    overwrite: bool = False
    """Start afresh although the run folder already holds a run."""
    dry_run: bool = False
    """Print the arithmetic of the run and stop before anything is loaded."""
    save_every: int = 50
    """Optimizer steps between checkpoints (taken at the end of the round)."""
    keep: int = 2
    """How many checkpoints to keep."""
    trackers: list[str] = field(default_factory=lambda: ["tensorboard"])
    """Trackers through accelerate: tensorboard (in the run folder), wandb, trackio; an empty list for none."""
    threads: int = 0
    """CPU threads of torch; 0 leaves torch's own choice."""
    samples_shown: int = 16
    """Held-out samples in the before/after pictures."""


def read(kind: type[C], arguments: Sequence[str] | None = None, description: str = "") -> C:
    """Read a configuration of the given dataclass from ``--config file.yaml`` and overrides.

    Unknown keys, values of the wrong type and unknown presets are errors that name the file, the
    key and the nearest known name.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    path, arguments = take_option(arguments, "--config")
    section = load_yaml(path) if path else {}
    # The preset lies below the file's own algorithm keys, so it is resolved before they are laid over it.
    preset, _ = take_option(arguments, "--algorithm.preset")
    algorithm = section.get("algorithm")
    if preset and isinstance(algorithm, dict):
        algorithm["preset"] = preset
    elif preset:
        section["algorithm"] = {"preset": preset}
    default = build(kind, section, path or "the command line")
    more = "--config FILE reads a YAML recipe first; every field below overrides it."
    return from_arguments(default, arguments, f"{description}\n\n{more}" if description else more)


def from_arguments(default: C, arguments: Sequence[str], description: str) -> C:
    """Lay a command line over a configuration; an unknown option is an error that names the nearest."""
    import tyro

    config, unknown = tyro.cli(
        type(default), args=arguments, default=default, description=description, return_unknown_args=True
    )
    if unknown:
        name = unknown[0].split("=")[0]
        close = difflib.get_close_matches(name, option_names(type(default)), n=1, cutoff=0.5)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise ValueError(f"the command line: there is no option '{name}'.{hint} --help lists them all.")
    return config


def option_names(kind: type, prefix: str = "--") -> list[str]:
    """The options of a dataclass as they are written on the command line."""
    hints = typing.get_type_hints(kind)
    names: list[str] = []
    for f in dataclasses.fields(kind):
        name = prefix + f.name.replace("_", "-")
        names += option_names(hints[f.name], f"{name}.") if dataclasses.is_dataclass(hints[f.name]) else [name]
    return names


def build(kind: type[C], section: Mapping[str, Any], where: str, prefix: str = "") -> C:
    """Make a dataclass from a mapping, refusing unknown keys by name."""
    hints = typing.get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in section:
        if key not in names:
            close = difflib.get_close_matches(str(key), names, n=1, cutoff=0.5)
            hint = f" Did you mean '{prefix}{close[0]}'?" if close else ""
            raise ValueError(f"{where}: unknown key '{prefix}{key}'.{hint} Known here: {', '.join(names)}.")
    values: dict[str, Any] = {}
    if kind is Algorithm:
        values.update(preset_values(str(section.get("preset", Algorithm.preset)), where))
    # A file that says nothing of the algorithm still means all of the default preset.
    unsaid = {name: {} for name in names if hints[name] is Algorithm}
    for name, value in {**unsaid, **section}.items():
        wanted = hints[name]
        if dataclasses.is_dataclass(wanted):
            if not isinstance(value, Mapping):
                raise ValueError(f"{where}: '{prefix}{name}' must be a section of keys, got {value!r}")
            values[name] = build(wanted, value, where, f"{prefix}{name}.")  # type: ignore[arg-type]
        else:
            values[name] = _coerce(value, wanted, f"{where}: '{prefix}{name}'")
    return kind(**values)


def preset_values(name: str, where: str) -> dict[str, Any]:
    """The fields of ``Algorithm`` that a preset sets."""
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.5)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise ValueError(f"{where}: there is no preset '{name}'.{hint} Known: {', '.join(sorted(PRESETS))}.")
    known = {f.name for f in dataclasses.fields(Algorithm)}
    return {key: deepcopy(value) for key, value in PRESETS[name].items() if key in known}


def refuse_preset(name: str, kind: str) -> None:
    """A preset that is made for another kind of policy is an error that says why and what to take."""
    wanted = CATALOGUE[name].policies
    if wanted not in ("any", kind):
        fitting = sorted(other for other, preset in CATALOGUE.items() if preset.policies in ("any", kind))
        reason = {
            "tokens": "it needs tokens, their entropies or lengths",
            "matching": "its clip range is made for flow-matching errors",
            "gaussian": "it needs Gaussian transitions, or its clip range is made for their log-probabilities",
        }[wanted]
        raise ValueError(
            f"preset '{name}' is for {wanted} policies ({reason}); this policy's decisions are {kind}. "
            f"Presets that fit: {', '.join(fitting)}"
        )


def load_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML mapping; errors name the file and what was wanted."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"--config: there is no file {path}; recipes are in scripts/recipes/")
    try:
        section = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(section, dict):
        raise ValueError(f"{path} must hold a mapping of keys to values, got {type(section).__name__}")
    return section


def write_yaml(path: Path, config: Any) -> None:
    """Write the resolved configuration."""
    write_text(path, yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True))


def take_option(arguments: Sequence[str], option: str) -> tuple[str, list[str]]:
    """The last value of ``--option value`` or ``--option=value``, and the arguments without it."""
    value, rest, skip = "", [], False
    for i, argument in enumerate(arguments):
        if skip:
            skip = False
        elif argument == option:
            if i + 1 == len(arguments):
                raise ValueError(f"{option} needs a value")
            value, skip = arguments[i + 1], True
        elif argument.startswith(option + "="):
            value = argument[len(option) + 1 :]
        else:
            rest.append(argument)
    return value, rest


def _coerce(value: Any, wanted: Any, where: str) -> Any:
    """Check a YAML scalar or list against the field's type; whole numbers and 1e-4 serve as floats."""
    if typing.get_origin(wanted) is list:
        (item,) = typing.get_args(wanted)
        if not isinstance(value, list):
            raise ValueError(f"{where} must be a list, got {value!r}")
        return [_coerce(one, item, where) for one in value]
    if wanted is float and not isinstance(value, bool):
        # YAML 1.1 reads 1e-4 (without a dot) as a string.
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where} must be a number, got {value!r}") from error
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise ValueError(f"{where} must be of type {wanted.__name__}, got {value!r}")
    return value
