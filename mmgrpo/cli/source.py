"""What the commands that use a model without training it have in common: whose weights, which prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mmgrpo.cli.train import DEFAULT, family_of
from mmgrpo.family import Family, family
from mmgrpo.runtime.config import Config, Sections, config_class
from mmgrpo.runtime.plugins import locate
from mmgrpo.runtime.reading import build, from_arguments, load_yaml, take_option

if TYPE_CHECKING:
    from accelerate import Accelerator

    from mmgrpo.types import Policy, Prompt

UNTRAINED = "untrained"


@dataclass
class Source:
    """A model that makes samples: that of a run folder, or the one that the model options name."""

    run: str = ""
    """Run folder, e.g. runs/demo; its config.yaml says whatever the command line does not."""
    weights: str = "model"
    """Which weights of the run: model (those it ended with), latest or a step (of its checkpoints), untrained."""
    file: str = ""
    """Prompt file: JSONL (text or messages, answer, task, meta) or text (a prompt per line)."""
    limit: int = 0
    """Take the first prompts of the file only; 0 takes all of them."""
    samples: int = 1
    """Samples per prompt."""
    seed: int = 1234
    """Seed of the noise: the same seed, prompts and samples give the same noise to every model."""
    batch_size: int = 0
    """Memory limit: samples drawn at one time; 0 takes that of the run, or of the family."""
    threads: int = 0
    """CPU threads of torch; 0 leaves torch's own choice."""


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
"""Options under their old names."""


@cache
def with_sections(options: type[S], sections: Sections) -> type[S]:
    """The options of a command, and the sections of a family."""
    own = [(name, getattr(sections, name)) for name in ("model", "sampling", "data")]
    fields = [(name, kind, field(default_factory=kind)) for name, kind in own]
    return make_dataclass(options.__name__, fields, bases=(options,), namespace={"__module__": __name__})


def read_source(options: type[S], arguments: Sequence[str], about: str) -> tuple[S, Config, Family]:
    """Read the command line over what the run's config says over the defaults of its family; also that config."""
    for argument in arguments:
        name = argument.split("=")[0]
        if name in RENAMED and name[2:].replace("-", "_") not in {f.name for f in dataclasses.fields(options)}:
            raise ValueError(f"the command line: '{name}' is called {RENAMED[name]} now")
    folder, _ = take_option(arguments, "--run")
    section = run_section(folder) if folder else {}
    chosen = family_of(arguments, section, DEFAULT)
    config = run_config(folder, chosen) if folder else config_class(chosen.sections)()
    if folder and config.model.family != chosen.name:
        raise ValueError(f"--model.family {chosen.name}: '{folder}' is a run of {config.model.family}; leave it out")
    further = f"The options of model and sampling are those of the family {chosen.name}; --model.family shows others."
    default = with_sections(options, chosen.sections)(
        run=folder,
        file=config.data.heldout if folder else "",
        samples=config.eval.samples,
        seed=config.eval.seed,
        batch_size=config.eval.batch_size,
        threads=config.threads,
        **{name: getattr(config, name) for name in ("model", "sampling", "data")},
    )
    if folder and config.eval.prompts:
        default.limit = config.eval.prompts
    args = from_arguments(default, arguments, f"{about}\n\n{further}")
    if not args.run and args.weights != "model":
        raise ValueError(f"--weights {args.weights} chooses among the weights of a run; name the run with --run")
    for name in ("samples", "batch_size"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    config = config_of(args, config)
    chosen.check(config)
    return args, config, chosen


def config_of(args: Any, config: Config) -> Config:
    """The configuration that the options stand for."""
    return replace(config, model=args.model, sampling=args.sampling, data=args.data)


def run_section(run: str) -> dict[str, Any]:
    """What the config.yaml of a run folder holds."""
    path = Path(run) / "config.yaml"
    if not path.is_file():
        raise FileNotFoundError(
            f"'{run}' is no run folder: there is no {path}; runs are in runs/ unless told otherwise"
        )
    return load_yaml(path)


def run_config(run: str, chosen: Family) -> Config:
    """The configuration that a run folder was made with; its samples must be drawn as those of ``chosen`` are."""
    section = run_section(run)
    name = section.get("model", {}).get("family", "")
    if not name:
        raise ValueError(f"'{run}' was trained from Python with a policy of its own, which no command can load")
    if family(name).sections.sampling is not chosen.sections.sampling:
        raise ValueError(f"'{run}' is a run of {name}, not of {chosen.name} or its like; the two cannot be compared")
    return build(config_class(family(name).sections), section, str(Path(run) / "config.yaml"))


def prompts_of(args: Any, config: Config, chosen: Family) -> list[Prompt]:
    """The prompts of ``file``, up to the limit; those that are left out are printed."""
    prompts, skipped = chosen.read(config, locate(args.file))
    for one in skipped:
        print(f"left out: {one.id} ({one.reason})", flush=True)
    return prompts[: args.limit or None]


def load_weights(args: Source, config: Config, chosen: Family, device: str) -> Policy:
    """The policy with the weights that are asked for."""
    from mmgrpo.runtime.averaging import WeightInterpolation, assign
    from mmgrpo.runtime.checkpoint import latest_checkpoint, load_checkpoint, restore_network

    folder = Path(args.run)
    if not args.run or args.weights == UNTRAINED:
        return chosen.policy(config, device, training=False)
    if args.weights == "model":
        if not (folder / "model").is_dir():
            raise FileNotFoundError(
                f"{folder / 'model'} does not exist, so this run has not finished; --weights latest takes its newest "
                "checkpoint"
            )
        return chosen.policy(config, device, training=False, weights=str(folder / "model"))
    checkpoint = checkpoint_of(folder / "checkpoints", args.weights, latest_checkpoint(folder / "checkpoints"))
    policy = chosen.policy(config, device, training=False)
    trained = {name: weight for name, weight in policy.network.named_parameters() if weight.requires_grad}
    fraction = config.optim.interpolation
    interpolation = WeightInterpolation(trained, fraction) if fraction != 1 else None
    tensors = load_checkpoint(checkpoint).tensors
    # Where an average of the weights is kept, it is what a run evaluates and saves, and of it a fraction.
    restore_network(policy.network, tensors["ema"] if "ema" in tensors else tensors["weights"])
    if interpolation is not None:
        assign(interpolation.parameters, interpolation.interpolated())
    return policy


def checkpoint_of(folder: Path, weights: str, latest: Path | None) -> Path:
    """Where the checkpoint of ``latest`` or of a step is."""
    if weights == "latest":
        if latest is None:
            raise FileNotFoundError(f"{folder} holds no whole checkpoint; --weights {UNTRAINED} draws without one")
        return latest
    if not weights.isdigit():
        raise ValueError(f"--weights must be model, latest, {UNTRAINED} or the step of a checkpoint, got '{weights}'")
    return folder / f"step-{int(weights):06d}"


def start(args: Any) -> Accelerator:
    """Set torch up, on the device that draws."""
    import torch
    from accelerate import Accelerator

    if args.threads:
        torch.set_num_threads(args.threads)
    return Accelerator(cpu=args.model.device == "cpu")


DRAWN_BY = ("evaluation_temperature", "max_tokens", "evaluation_steps", "renderer")
"""Options of any family on which evaluation samples depend."""


def kept_options(config: Config) -> Mapping[str, Any]:
    """How samples are drawn, for what a command writes and prints."""
    options = {**dataclasses.asdict(config.model), **dataclasses.asdict(config.sampling)}
    return {name: options[name] for name in DRAWN_BY if name in options}
