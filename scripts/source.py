"""What the scripts that use a model without training it share: whose weights, which prompts."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import speech
import vlm
import voice
from run import locate

from mmgrpo.runtime.config import build, from_arguments, load_yaml, take_option

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
    """Prompt file: JSONL (text or messages, answer, task, meta) or text (a prompt a line)."""
    limit: int = 0
    """Take the first prompts of the file only; 0 takes all of them."""
    samples: int = 1
    """Samples a prompt."""
    seed: int = 1234
    """Seed of the noise: the same seed, prompts and samples give the same noise to every model."""
    at_once: int = 256
    """Memory limit: samples drawn in one forward pass."""
    threads: int = 0
    """CPU threads of torch; 0 leaves torch's own choice."""


@dataclass(frozen=True)
class Kind:
    """How models of one modality are set up and used."""

    modality: str
    config: type
    """The configuration of its runs."""
    settings: Callable[[Any], dict[str, Any]]
    """What a run's configuration says of the options that only this kind has."""
    policy: Callable[..., Policy]
    """``policy(source, device, trained)``: the model, with the weights of a folder where one is named."""
    prompts: Callable[..., list[Prompt]]
    """``prompts(source, path)``: the prompts of a file."""
    told: Callable[[Any], dict[str, Any]]
    """What a result says of how its samples were made."""


S = TypeVar("S", bound=Source)


def modality_of(run: str, family: str) -> str:
    """``visual``, ``vlm``, ``speech`` or ``voice``: what the model family of a run, or the named one, is for."""
    if run:
        family = read_config(run).get("model", {}).get("family", "")
    families = {"vlm": vlm.FAMILIES, "speech": speech.FAMILIES, "voice": voice.FAMILIES}
    return next((modality for modality, known in families.items() if family in known), "visual")


def read_source(options: Mapping[str, S], kinds: Mapping[str, Kind], description: str) -> tuple[S, Any, Kind]:
    """Read the command line over what the run's config says over the options of its modality; also that config."""
    run, _ = take_option(sys.argv[1:], "--run")
    family, _ = take_option(sys.argv[1:], "--model.family")
    modality = modality_of(run, family)
    kind, default = kinds[modality], options[modality]
    config = run_config(run, kind) if run else kind.config()
    under = dataclasses.replace(
        default,
        run=run,
        file=config.data.heldout if run else default.file,
        limit=default.limit or config.eval.prompts,
        samples=config.eval.samples,
        seed=config.eval.seed,
        threads=config.threads,
        **kind.settings(config),
    )
    args = from_arguments(under, sys.argv[1:], description)
    if not args.run and args.weights != "model":
        raise ValueError(f"--weights {args.weights} chooses among the weights of a run; name the run with --run")
    for name, value in {"samples": args.samples, "at_once": args.at_once, **kind.told(args)}.items():
        if isinstance(value, int) and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    return args, config, kind


def read_config(run: str) -> dict[str, Any]:
    """What the config.yaml of a run folder holds."""
    path = Path(run) / "config.yaml"
    if not path.is_file():
        raise FileNotFoundError(
            f"'{run}' is no run folder: there is no {path}; runs are in runs/ unless told otherwise"
        )
    return load_yaml(path)


def run_config(run: str, kind: Kind) -> Any:
    """The configuration that a run folder was made with."""
    section = read_config(run)
    if modality_of(run, "") != kind.modality:
        raise ValueError(f"'{run}' is not a {kind.modality} run, so the two cannot be compared")
    return build(kind.config, section, str(Path(run) / "config.yaml"))


def prompts_of_file(source: Source, kind: Kind) -> list[Prompt]:
    """The prompts of ``file``, up to the limit."""
    return kind.prompts(source, locate(source.file))[: source.limit or None]


def load_weights(source: Source, kind: Kind, device: str) -> Policy:
    """The policy with the weights that are asked for."""
    from mmgrpo.runtime.checkpoint import latest_checkpoint, load_checkpoint, restore_network
    from mmgrpo.runtime.optim import WeightInterpolation, fill

    folder = Path(source.run)
    if not source.run or source.weights == UNTRAINED:
        return kind.policy(source, device, "")
    if source.weights == "model":
        if not (folder / "model").is_dir():
            raise FileNotFoundError(
                f"{folder / 'model'} does not exist, so this run has not finished; --weights latest takes its newest "
                "checkpoint"
            )
        return kind.policy(source, device, folder / "model")
    checkpoint = checkpoint_of(folder / "checkpoints", source.weights, latest_checkpoint(folder / "checkpoints"))
    policy = kind.policy(source, device, "")
    share = read_config(source.run)["optim"].get("interpolation", 1.0)
    trained = {name: weight for name, weight in policy.network.named_parameters() if weight.requires_grad}
    interpolation = WeightInterpolation(trained, share) if share != 1 else None
    tensors = load_checkpoint(checkpoint).tensors
    # Where an average of the weights is kept, it is what a run evaluates and saves, and of it a share.
    restore_network(policy.network, tensors["ema"] if "ema" in tensors else tensors["weights"])
    if interpolation is not None:
        fill(interpolation.parameters, interpolation.interpolated())
    return policy


def checkpoint_of(folder: Path, weights: str, latest: Path | None) -> Path:
    """Where the checkpoint of ``latest`` or of a step is."""
    if weights == "latest":
        if latest is None:
            raise FileNotFoundError(f"{folder} holds no whole checkpoint; --weights {UNTRAINED} draws without one")
        return latest
    if not weights.isdigit():
        raise ValueError(f"--weights: wanted model, latest, {UNTRAINED} or the step of a checkpoint, got '{weights}'")
    return folder / f"step-{int(weights):06d}"


def start(source: Any) -> Accelerator:
    """Set torch up, on the device that draws."""
    import torch
    from accelerate import Accelerator

    if source.threads:
        torch.set_num_threads(source.threads)
    return Accelerator(cpu=source.model.device == "cpu")
