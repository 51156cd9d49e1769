"""Common parts of the commands that use a model without training it: its weights and its prompts."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro

from mmgrpo.cli.prompt_arguments import Given, given_prompts, is_given
from mmgrpo.cli.train import DEFAULT, family_name
from mmgrpo.config.conflicts import PROCESS, refuse_conflicts
from mmgrpo.config.names import nearest
from mmgrpo.config.ranges import ANY_TEXT, COUNT, COUNT_OR_ZERO, SEED, THREADS, short_repr, within
from mmgrpo.config.reading import build, from_arguments, load_yaml, take_option
from mmgrpo.config.settings import LAUNCH, Config, Sections, config_class
from mmgrpo.family import Family, family

if TYPE_CHECKING:
    from accelerate import Accelerator

    from mmgrpo.types import Policy, Prompt

UNTRAINED = "untrained"


def alias(setting: str) -> Any:
    """An option that is also written as the setting of a run that it stands for."""
    return tyro.conf.arg(aliases=[setting])


@dataclass
class Source(Given):
    """The model to use: of a run folder, or of the model options."""

    run: Annotated[str, ANY_TEXT] = ""
    """Run folder, e.g. runs/demo; its config.yaml sets the defaults of the other options."""
    weights: Annotated[str, ANY_TEXT] = "model"
    """Weights of the run: model (the final ones), latest (the latest checkpoint), the step of a checkpoint, or
    untrained."""
    file: Annotated[str, ANY_TEXT] = ""
    """Prompt file: .jsonl and other formats (docs/data.md lists them), or .txt (one prompt per line)."""
    limit: Annotated[int, COUNT_OR_ZERO, alias("--eval.prompts")] = 0
    """Number of prompts to take from the start of the file; 0 takes all."""
    samples: Annotated[int, within("[1, 1e6]"), alias("--eval.samples")] = 1
    """Samples per prompt."""
    seed: Annotated[int, SEED, alias("--eval.seed")] = 1234
    """Seed of the noise, which is the same for every model with the same prompts and samples, so comparisons are
    paired."""
    batch_size: Annotated[int, COUNT, alias("--eval.batch-size")] = 64
    """Samples drawn at a time, which limits memory; by default that of the run or of the family."""
    threads: Annotated[int, THREADS] = 0
    """CPU threads of torch; 0 leaves the choice to torch."""


S = TypeVar("S", bound=Source)

RENAMED = {
    "--temperature": "--sampling.evaluation-temperature",
    "--max-tokens": "--sampling.max-tokens",
    "--steps": "--sampling.evaluation-steps",
    "--shift": "--sampling.grid",
    "--at-once": "--batch-size",
    "--media-root": "--data.media-root",
    "--skip-limit": "--data.skip-limit",
}
"""Old names of options to their present names."""


@cache
def with_sections(options: type[S], sections: Sections) -> type[S]:
    """The options of a command, extended by the sections of a model family."""
    kinds = [(name, getattr(sections, name)) for name in ("model", "sampling", "data")]
    fields = [(name, kind, field(default_factory=kind)) for name, kind in kinds]
    return make_dataclass(options.__name__, fields, bases=(options,))


def read_source(options: type[S], arguments: Sequence[str], about: str) -> tuple[S, Config, Family]:
    """The options of a command, the configuration that they amount to, and the model family.

    The command line overrides the configuration of the run, which overrides the defaults of the family.
    """
    for argument in arguments:
        name = argument.split("=")[0]
        if name in RENAMED and name[2:].replace("-", "_") not in {f.name for f in dataclasses.fields(options)}:
            raise ValueError(f"the command line: '{name}' is called {RENAMED[name]} now")
    folder, _ = take_option(arguments, "--run")
    section = run_section(folder) if folder else {}
    named = family_name(arguments, section, DEFAULT)
    model_family = family(named)
    config = run_config(folder, model_family) if folder else config_class(model_family.sections)()
    if folder and config.model.family != named:
        raise ValueError(f"--model.family {named}: '{folder}' is a run of {config.model.family}; omit the option")
    note = (
        f"The model and sampling options are those of the family {named}; set --model.family to see those of another."
    )
    default = with_sections(options, model_family.sections)(
        file=config.data.heldout if folder else "",
        samples=config.eval.samples,
        seed=config.eval.seed,
        batch_size=config.eval.batch_size,
        threads=config.threads,
        **{name: getattr(config, name) for name in ("model", "sampling", "data")},
    )
    if folder and config.eval.prompts:
        default.limit = config.eval.prompts
    args = from_arguments(default, arguments, f"{about}\n\n{note}")
    refuse_unread(args, default)
    if not args.run and args.weights != "model":
        raise ValueError(f"--weights {args.weights!r} selects weights of a run; name the run with --run")
    if args.data.heldout != config.data.heldout:
        if args.file != default.file:
            raise ValueError(f"--file {args.file}, --data.heldout {args.data.heldout}: name one file of prompts")
        args = replace(args, file=args.data.heldout)
    config = config_of(args, config)
    read = {name: getattr(config, name) for name in ("model", "sampling", "data")}
    refuse_conflicts(read, facts={PROCESS: config.process})
    model_family.check(config)
    return args, config, model_family


def config_of(args: Any, config: Config) -> Config:
    """The configuration with the sections of the options."""
    return replace(config, model=args.model, sampling=args.sampling, data=args.data)


def run_section(run: str) -> dict[str, Any]:
    """The content of the config.yaml of a run folder."""
    path = Path(run) / "config.yaml"
    if not path.is_file():
        near = f".{nearest(run, runs)}" if (runs := runs_near(run)) else ""
        raise FileNotFoundError(
            f"{run!r} is not a run folder: {str(path)!r} is missing; runs are in runs/ by default{near}"
        )
    # Older runs stored how they were started, which is nothing to the commands that read them.
    return {name: value for name, value in load_yaml(path).items() if name not in LAUNCH}


def runs_near(path: str) -> list[str]:
    """The run folders next to a path and in runs/."""
    folders = dict.fromkeys([Path(path).parent, Path("runs")])
    return [str(file.parent) for folder in folders for file in sorted(folder.glob("[!.]*/config.yaml"))]


def run_config(run: str, model_family: Family) -> Config:
    """The configuration of a run, whose family must have the sampling options of ``model_family``."""
    section = run_section(run)
    model = section.get("model", {})
    name = str(model.get("family", "")) if isinstance(model, Mapping) else ""
    if not name:
        raise ValueError(f"'{run}' was trained from Python with a custom policy, which commands cannot load")
    if family(name).sections.sampling is not model_family.sections.sampling:
        raise ValueError(
            f"'{run}' is a run of {name}, whose samples cannot be compared with those of {model_family.name}"
        )
    return build(config_class(family(name).sections), section, str(Path(run) / "config.yaml"))


def refuse_unread(args: Source, default: Source) -> None:
    """ValueError for an option of the prompts of the command line where these are a file's, and of a file where they
    are the command line's."""
    given = is_given(args)
    for name in ("file", "limit") if given else ("answers", "task"):
        if (value := getattr(args, name)) != getattr(default, name):
            if given:
                reason = "prompts of the command line are no file; leave out either"
            else:
                reason = "without --prompts nothing reads it; rows of a file have their own 'answer' and 'task'"
            raise ValueError(f"--{name}: got {short_repr(value)}, which has no effect: {reason}")


def prompts_of(args: Any, config: Config, model_family: Family) -> list[Prompt]:
    """The prompts of the command line, or those of ``file`` up to the limit; skipped ones are printed."""
    if is_given(args):
        return given_prompts(args, config, model_family)
    prompts, skipped = model_family.read(config, args.file)
    for row in skipped:
        print(f"skipped: {row.id} ({row.reason})", flush=True)
    return list(prompts[: args.limit or None])


def refuse_no_prompts(args: Any, example: str) -> None:
    """ValueError where neither the command line nor the run names prompts."""
    if is_given(args) or args.file:
        return
    if args.run:
        raise ValueError(f"--run {args.run}: the run has no held-out prompts (data.heldout); give --file or {example}")
    raise ValueError(f"no prompts given; add --file FILE, {example}, or --run for the held-out prompts of a run")


def load_weights(args: Source, config: Config, model_family: Family, device: str) -> Policy:
    """The policy with the weights of ``args.weights``; a line names them before libraries show their progress."""
    from mmgrpo.rounds.interpolation import WeightInterpolation
    from mmgrpo.runtime.averaging import assign
    from mmgrpo.runtime.checkpoint import latest_checkpoint, load_checkpoint, restore_network
    from mmgrpo.runtime.saved_model import check_model

    folder = Path(args.run)
    if os.environ.get("RANK", "0") == "0":
        whose = f" with the weights '{args.weights}' of {folder}" if args.run and args.weights != UNTRAINED else ""
        print(f"loading {config.model.path or model_family.name}{whose}", file=sys.stderr, flush=True)
    if not args.run or args.weights == UNTRAINED:
        return model_family.policy(config, device, training=False)
    if args.weights == "model":
        if not (folder / "model").is_dir():
            raise FileNotFoundError(
                f"{folder / 'model'} does not exist, so the run is incomplete; --weights latest uses its latest "
                "checkpoint"
            )
        check_model(folder / "model")
        return model_family.policy(config, device, training=False, weights=str(folder / "model"))
    checkpoint = checkpoint_of(folder / "checkpoints", args.weights, latest_checkpoint(folder / "checkpoints"))
    policy = model_family.policy(config, device, training=False)
    trained = {name: weight for name, weight in policy.network.named_parameters() if weight.requires_grad}
    fraction = config.optim.interpolation
    interpolation = WeightInterpolation(trained, fraction) if fraction != 1 else None
    tensors = load_checkpoint(checkpoint).tensors
    # A run evaluates and saves the average of the weights if it keeps one, and interpolates that average.
    restore_network(policy.network, tensors["ema"] if "ema" in tensors else tensors["weights"])
    if interpolation is not None:
        assign(interpolation.parameters, interpolation.interpolate())
    return policy


def checkpoint_of(folder: Path, weights: str, latest: Path | None) -> Path:
    """The folder of the latest checkpoint, or of that of a step."""
    if weights == "latest":
        if latest is None:
            raise FileNotFoundError(
                f"{folder} contains no complete checkpoint; --weights {UNTRAINED} uses the initial weights"
            )
        return latest
    if not (weights.isdecimal() and len(weights) < 10):
        raise ValueError(f"--weights must be model, latest, {UNTRAINED} or the step of a checkpoint, got '{weights}'")
    return folder / f"step-{int(weights):06d}"


def start(args: Any) -> Accelerator:
    """Set the threads of torch, and create the accelerator of the device."""
    import torch

    from mmgrpo.runtime.devices import accelerator

    if args.threads:
        torch.set_num_threads(args.threads)
    return accelerator(args.model.device)


SAMPLING_OPTIONS = (
    *("evaluation_temperature", "max_tokens", "evaluation_steps", "renderer"),
    *("evaluation_guidance", "evaluation_height", "evaluation_width", "evaluation_frames"),
)
"""Options of any family that affect evaluation samples."""


def sampling_options(config: Config) -> Mapping[str, Any]:
    """The options that affect samples, which commands write and print with their results."""
    options = {**dataclasses.asdict(config.model), **dataclasses.asdict(config.sampling)}
    return {name: options[name] for name in SAMPLING_OPTIONS if name in options}
