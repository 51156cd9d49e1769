"""What the visual scripts share: the configuration of a run, and how its parts are put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import run
from run import Loaded, locate, read_prompts, refuse_lonely, rounds_of, training_of

from mmgrpo.runtime.config import Algorithm, Eval, Optim, Run

if TYPE_CHECKING:
    from accelerate import Accelerator

    from mmgrpo.evaluation import Shown
    from mmgrpo.policies.denoising import DenoisingPolicy
    from mmgrpo.policies.flow_matching import FlowMatchingPolicy
    from mmgrpo.trainer import Trainer


@dataclass
class Model:
    """Which model is trained, and what of it."""

    family: str = "sd3"
    """Model family, a row of pipelines.PIPELINES."""
    path: str = "assets/scenes/base"
    """Folder or hub id, e.g. stabilityai/stable-diffusion-3.5-medium."""
    height: int = 32
    """Height of the pictures in pixels."""
    width: int = 32
    """Width of the pictures in pixels."""
    guidance: float = 1.0
    """Classifier-free guidance in rollout, training and evaluation alike; 1 is none."""
    lora_rank: int = 0
    """Rank of the LoRA adapters; 0 trains all weights."""
    lora_alpha: float = 64.0
    """LoRA alpha; the update is scaled by alpha / rank."""
    lora_targets: list[str] = field(default_factory=list)
    """Ends of the names of adapted modules; empty takes the family's attention projections."""
    dtype: str = "float32"
    """What the network computes in: float32, bfloat16 or float16. Likelihoods are fp32 always."""
    device: str = "auto"
    """auto (accelerate's choice), cpu or cuda."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    max_sequence_length: int = 256
    """Tokens that T5 reads of a prompt."""
    forget_encoders: bool = False
    """Encode all prompts at the start and free the text encoders' memory."""


@dataclass
class Data:
    """Which prompts."""

    train: str = "assets/scenes/train.jsonl"
    """Training prompts: JSONL (text, answer, meta) or text (a prompt a line)."""
    extra_train: list[str] = field(default_factory=list)
    """Further files of training prompts, mixed with those of train: some of what should not be forgotten."""
    heldout: str = "assets/scenes/heldout.jsonl"
    """Evaluation prompts; a prompt of the training file among them is an error. Empty: no evaluation."""
    prompts_per_step: int = 8
    """Prompts (groups) a round, over all processes."""
    group_size: int = 16
    """Samples a prompt."""


@dataclass
class Sampling:
    """How samples are drawn in rollouts and in evaluation."""

    steps: int = 10
    """Denoising steps of a rollout."""
    kernel: str = "flow_sde(a=0.7)"
    """Stochastic transition: flow_sde(a=...), dance(eta=...), cps(a=...), flow_ddim(eta=...)."""
    policy: str = "transitions"
    """What a decision is: transitions (Gaussian steps of the reverse SDE, by kernel and plan) or matching
    (flow-matching error at drawn noise levels; rollouts by the ODE, by draws and error)."""
    plan: str = "every_step"
    """What happens at each step: every_step, random_subset, random_window, sliding_window,
    one_step_branch, branch_tree, branch_mix, tree_window."""
    draws: int = 2
    """matching: noise levels drawn for each group."""
    error: str = "self_normalized"
    """matching: velocity, weighted(power=...) or self_normalized."""
    shift: float = 0.0
    """Time shift of the noise levels; 0 takes the checkpoint's own."""
    evaluation_steps: int = 10
    """Denoising steps of an evaluation sample (deterministic)."""
    forward_batch_size: int = 256
    """Memory limit: network evaluations of one forward pass without gradient."""


@dataclass
class VisualConfig(Run):
    """A run that trains an image (or video) generator."""

    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    sampling: Sampling = field(default_factory=Sampling)
    algorithm: Algorithm = field(default_factory=Algorithm)
    rewards: list[str] = field(default_factory=lambda: ["scene_all"])
    """name(weight=...) each; weight=0 is scored and logged but not trained on; package.module:function
    names a function of your own."""
    optim: Optim = field(default_factory=Optim)
    eval: Eval = field(default_factory=Eval)


def arithmetic(config: VisualConfig) -> str:
    """What the run will do, as numbers: prompts x samples x steps -> optimizer steps."""
    data, optim = config.data, config.optim
    refuse_lonely(data.group_size)
    branch_points, rows, forward, trained, backward = _costs(config)
    per_round, rounds = rounds_of(config, data.prompts_per_step * branch_points)
    groups = f"{data.prompts_per_step} prompts x {data.group_size} samples"
    if branch_points > 1:
        groups += f" x {branch_points} branch points"
    return "\n".join(
        [
            f"a round:  {groups} = {rows:,} samples, {config.sampling.steps} denoising steps",
            f"          {forward:,} network evaluations to sample, {trained:,} decisions trained "
            f"with {backward:,} evaluations forward and backward",
            f"          cut into {optim.updates} update(s) x {optim.epochs} epoch(s) = {per_round} optimizer step(s)",
            f"the run:  {config.steps:,} optimizer steps = {rounds:,} rounds = {rounds * rows:,} samples, "
            f"{rounds * forward:,} evaluations to sample, {rounds * backward:,} to train",
        ]
    )


def _costs(config: VisualConfig) -> tuple[int, int, int, int, int]:
    """Of a round: groups a prompt, samples, evaluations to sample, decisions, evaluations to train."""
    from mmgrpo.diffusion.planners import PLANS
    from mmgrpo.registry import bind
    from mmgrpo.runtime.randomness import stream

    data, sampling = config.data, config.sampling
    double = data.prompts_per_step * (2 if config.model.guidance != 1 else 1)
    epochs = config.optim.epochs
    if kind_of(config) == "matching":
        drawn = data.group_size * sampling.draws
        forward = data.group_size * sampling.steps + drawn
        rows = data.prompts_per_step * data.group_size
        return 1, rows, double * forward, data.prompts_per_step * drawn, double * drawn * epochs
    inputs = {
        "steps": sampling.steps,
        "group_size": data.group_size,
        "round": 0,
        "generator": stream(config.seed, "arithmetic"),
    }
    plans = bind(sampling.plan, PLANS, "sampling.plan")(inputs)
    return (
        len(plans),
        data.prompts_per_step * sum(plan.rows for plan in plans),
        double * sum(plan.evaluations for plan in plans),
        data.prompts_per_step * sum(plan.trained_edges for plan in plans),
        double * sum(plan.training_evaluations for plan in plans) * epochs,
    )


def build_policy(
    config: VisualConfig, device: str, for_training: bool = True, trained: str | Path = ""
) -> DenoisingPolicy | FlowMatchingPolicy:
    """Load the model and make it a policy; ``trained`` is a folder of weights that training saved."""
    from mmgrpo.policies.denoising import DenoisingPolicy
    from mmgrpo.policies.flow_matching import FlowMatchingPolicy
    from pipelines import family

    model = config.model
    loaded = family(model.family).load(
        locate(model.path),
        training_of(config, device, for_training, trained),
        height=model.height,
        width=model.width,
        guidance=model.guidance,
        max_sequence_length=model.max_sequence_length,
    )
    if config.sampling.shift:
        loaded.shift = config.sampling.shift
    sampling = config.sampling
    if sampling.policy == "matching":
        return FlowMatchingPolicy(
            loaded,
            steps=sampling.steps,
            draws=sampling.draws,
            error=sampling.error,
            evaluation_steps=sampling.evaluation_steps,
            forward_batch_size=sampling.forward_batch_size,
            device=device,
        )
    return DenoisingPolicy(
        loaded,
        steps=sampling.steps,
        kernel_text=sampling.kernel,
        plan=sampling.plan,
        evaluation_steps=sampling.evaluation_steps,
        forward_batch_size=sampling.forward_batch_size,
        device=device,
    )


KINDS = {"transitions": "gaussian", "matching": "matching"}
"""``sampling.policy`` and the kind of decisions it makes, which presets are made for."""


def kind_of(config: VisualConfig) -> str:
    """The kind of decisions of the configured policy."""
    if config.sampling.policy not in KINDS:
        raise ValueError(f"sampling.policy must be one of {', '.join(KINDS)}, got '{config.sampling.policy}'")
    return KINDS[config.sampling.policy]


def build_trainer(config: VisualConfig, accelerator: Accelerator, open_run: Callable[[], Path]) -> Trainer:
    """Everything of a run, ready to fit; ``open_run`` makes the run folder."""
    from mmgrpo.data.prompts import load_prompts

    def load() -> Loaded:
        prompts, heldout, extra = read_prompts(config, load_prompts)
        policy = build_policy(config, str(accelerator.device))
        if config.model.forget_encoders:
            policy.family.forget_encoders([*prompts, *heldout, *chain(*extra.values())])  # type: ignore[attr-defined]
        return Loaded(policy, prompts, heldout, extra)

    return run.build_trainer(
        config,
        accelerator,
        open_run,
        kind=kind_of(config),
        load=load,
        eval_batch_size=config.sampling.forward_batch_size,
        exhibit=exhibit,
    )


def exhibit(stem: Path, shown: Shown) -> None:
    """A grid of pictures with prompts and rewards, ``samples/<title>.png``."""
    from mmgrpo.report.html import sample_grid

    captions = [
        f"{prompt.text}\n" + "  ".join(f"{name} {value:.2f}" for name, value in values.items())
        for prompt, values in zip(shown.prompts, shown.values, strict=True)
    ]
    stem.parent.mkdir(parents=True, exist_ok=True)
    sample_grid(shown.outputs, captions, columns=4).save(stem.with_suffix(".png"))
