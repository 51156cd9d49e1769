"""What the scripts that draw share: which model, with which weights, and how it draws."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from visual import Model, Sampling, VisualConfig, build_policy, locate

from mmgrpo.config import build, from_arguments, load_yaml, take_option

if TYPE_CHECKING:
    from accelerate import Accelerator

    from mmgrpo.types import Policy, Prompt

UNTRAINED = "untrained"


@dataclass
class Source:
    """A model that draws: that of a run folder, or the one that the model options name."""

    run: str = ""
    """Run folder, e.g. runs/demo; its config.yaml says whatever the command line does not."""
    weights: str = "model"
    """Which weights of the run: model (those it ended with), latest or a step (of its checkpoints), untrained."""
    file: str = ""
    """Prompt file: JSONL (text, answer, task, meta) or text (a prompt a line)."""
    limit: int = 0
    """Take the first prompts of the file only; 0 takes all of them."""
    samples: int = 1
    """Samples a prompt."""
    seed: int = 1234
    """Seed of the noise: the same seed, prompts and samples give the same noise to every model."""
    steps: int = 10
    """Denoising steps (deterministic)."""
    shift: float = 0.0
    """Time shift of the noise levels; 0 takes the checkpoint's own."""
    at_once: int = 256
    """Memory limit: samples drawn in one forward pass."""
    threads: int = 0
    """CPU threads of torch; 0 leaves torch's own choice."""
    model: Model = field(default_factory=Model)


S = TypeVar("S", bound=Source)


def read_source(default: S, description: str) -> tuple[S, VisualConfig]:
    """Read the command line over what the run's config says over the defaults; also that config."""
    run, _ = take_option(sys.argv[1:], "--run")
    config = run_config(run) if run else VisualConfig()
    under = dataclasses.replace(
        default,
        run=run,
        file=config.data.heldout if run else default.file,
        limit=default.limit or config.eval.prompts,
        samples=config.eval.samples,
        seed=config.eval.seed,
        steps=config.sampling.evaluation_steps,
        shift=config.sampling.shift,
        at_once=config.sampling.states_at_once,
        threads=config.threads,
        model=config.model,
    )
    args = from_arguments(under, sys.argv[1:], description)
    if not args.run and args.weights != "model":
        raise ValueError(f"--weights {args.weights} chooses among the weights of a run; name the run with --run")
    for name in ("samples", "steps", "at_once"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    return args, config


def run_config(run: str) -> VisualConfig:
    """The configuration that a run folder was made with."""
    path = Path(run) / "config.yaml"
    if not path.is_file():
        raise FileNotFoundError(
            f"'{run}' is no run folder: there is no {path}; runs are in runs/ unless told otherwise"
        )
    return build(VisualConfig, load_yaml(path), str(path))


def prompts_of_file(source: Source) -> list[Prompt]:
    """The prompts of ``file``, up to the limit."""
    from mmgrpo.prompts import load_prompts

    return load_prompts(locate(source.file))[: source.limit or None]


def load_weights(source: Source, device: str) -> Policy:
    """The policy with the weights that are asked for."""
    from mmgrpo.checkpoint import latest_checkpoint, load_checkpoint, restore_network

    config = VisualConfig(
        model=source.model,
        sampling=Sampling(
            steps=source.steps, shift=source.shift, evaluation_steps=source.steps, states_at_once=source.at_once
        ),
    )
    folder = Path(source.run)
    if not source.run or source.weights == UNTRAINED:
        return build_policy(config, device, for_training=False)
    if source.weights == "model":
        if not (folder / "model").is_dir():
            raise FileNotFoundError(
                f"{folder / 'model'} does not exist, so this run has not finished; --weights latest takes its newest "
                "checkpoint"
            )
        return build_policy(config, device, for_training=False, trained=folder / "model")
    checkpoint = checkpoint_of(folder / "checkpoints", source.weights, latest_checkpoint(folder / "checkpoints"))
    policy = build_policy(config, device, for_training=False)
    tensors = load_checkpoint(checkpoint).tensors
    # Where an average of the weights is kept, it is what a run evaluates and saves.
    restore_network(policy.network, tensors["ema"] if "ema" in tensors else tensors["weights"])
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


def start(source: Source) -> Accelerator:
    """Set torch up, on the device that draws."""
    import torch
    from accelerate import Accelerator

    if source.threads:
        torch.set_num_threads(source.threads)
    return Accelerator(cpu=source.model.device == "cpu")
