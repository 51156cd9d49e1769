"""What the visual scripts share: the configuration of a run, and how its parts are put together."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that the scripts run from a checkout that is not installed

from mmgrpo.config import Algorithm, Eval, Optim, Run, load_yaml, refuse_preset, write_yaml  # noqa: E402

if TYPE_CHECKING:
    from accelerate import Accelerator

    from mmgrpo.evaluation import Shown
    from mmgrpo.policies.denoising import DenoisingPolicy
    from mmgrpo.policies.forward import ForwardPolicy
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
    heldout: str = "assets/scenes/heldout.jsonl"
    """Evaluation prompts; a prompt of the training file among them is an error. Empty: no evaluation."""
    per_round: int = 8
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
    states_at_once: int = 256
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


def locate(path: str) -> str:
    """A path of the project's own assets is found from any working directory."""
    inside = ROOT / path
    return str(inside) if not Path(path).exists() and inside.exists() else path


def arithmetic(config: VisualConfig) -> str:
    """What the run will do, as numbers: prompts x samples x steps -> optimizer steps."""
    data, optim = config.data, config.optim
    if data.group_size < 2:
        raise ValueError(
            f"data.group_size must be at least 2, got {data.group_size}: a sample is compared with others of its group"
        )
    branch_points, rows, forward, trained, backward = _costs(config)
    if optim.updates > data.per_round * branch_points:
        raise ValueError(
            f"a round of {data.per_round * branch_points} groups cannot be cut into "
            f"optim.updates={optim.updates} steps; raise data.per_round or lower optim.updates"
        )
    per_round = optim.updates * optim.epochs
    rounds = -(-config.steps // per_round)
    groups = f"{data.per_round} prompts x {data.group_size} samples"
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
    from mmgrpo.blocks import bind
    from mmgrpo.planners import PLANS
    from mmgrpo.randomness import stream

    data, sampling = config.data, config.sampling
    double = data.per_round * (2 if config.model.guidance != 1 else 1)
    epochs = config.optim.epochs
    if kind_of(config) == "matching":
        drawn = data.group_size * sampling.draws
        forward = data.group_size * sampling.steps + drawn
        rows = data.per_round * data.group_size
        return 1, rows, double * forward, data.per_round * drawn, double * drawn * epochs
    inputs = {
        "steps": sampling.steps,
        "group_size": data.group_size,
        "round": 0,
        "generator": stream(config.seed, "arithmetic"),
    }
    plans = bind(sampling.plan, PLANS, "sampling.plan")(inputs)
    return (
        len(plans),
        data.per_round * sum(plan.rows for plan in plans),
        double * sum(plan.evaluations for plan in plans),
        data.per_round * sum(plan.trained_edges for plan in plans),
        double * sum(plan.training_evaluations for plan in plans) * epochs,
    )


def build_policy(
    config: VisualConfig, device: str, for_training: bool = True, trained: str | Path = ""
) -> DenoisingPolicy | ForwardPolicy:
    """Load the model and make it a policy; ``trained`` is a folder of weights that training saved."""
    from mmgrpo.policies.denoising import DenoisingPolicy
    from mmgrpo.policies.forward import ForwardPolicy
    from pipelines import family

    model = config.model
    needs_reference = any(term.startswith("kl") for term in config.algorithm.terms)
    loaded = family(model.family).load(
        locate(model.path),
        height=model.height,
        width=model.width,
        guidance=model.guidance,
        lora_rank=model.lora_rank,
        lora_alpha=model.lora_alpha,
        lora_targets=tuple(model.lora_targets) or family(model.family).LORA_TARGETS,
        lora_seed=config.seed,
        lora_path=trained if model.lora_rank else "",
        transformer_path="" if model.lora_rank else trained,
        gradient_checkpointing=model.gradient_checkpointing and for_training,
        keep_reference=needs_reference and for_training and model.lora_rank == 0,
        max_sequence_length=model.max_sequence_length,
        dtype=model.dtype,
        device=device,
    )
    if config.sampling.shift:
        loaded.shift = config.sampling.shift
    sampling = config.sampling
    if sampling.policy == "matching":
        return ForwardPolicy(
            loaded,
            steps=sampling.steps,
            draws=sampling.draws,
            error=sampling.error,
            evaluation_steps=sampling.evaluation_steps,
            states_at_once=sampling.states_at_once,
            device=device,
        )
    return DenoisingPolicy(
        loaded,
        steps=sampling.steps,
        kernel_text=sampling.kernel,
        plan=sampling.plan,
        evaluation_steps=sampling.evaluation_steps,
        states_at_once=sampling.states_at_once,
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
    """Everything of a run, ready to fit.

    ``open_run`` makes the run folder; it is called last, so that a run that cannot start removes nothing.
    """
    from mmgrpo.advantages.estimate import AdvantageRecipe
    from mmgrpo.blocks import parse
    from mmgrpo.collect import RoundSettings
    from mmgrpo.optim import Schedule
    from mmgrpo.prompts import load_prompts
    from mmgrpo.trainer import EvalSettings, Trainer
    from mmgrpo.update import LossRecipe
    from reward_models import scorers

    algorithm, optim = config.algorithm, config.optim
    refuse_preset(algorithm.preset, kind_of(config))
    prompts = load_prompts(locate(config.data.train))
    heldout = [] if config.eval.skip or not config.data.heldout else load_prompts(locate(config.data.heldout))
    seen = {prompt.text for prompt in prompts}
    for prompt in heldout:
        if prompt.text in seen:
            raise ValueError(
                f"{config.data.heldout}: prompt '{prompt.id}' ({prompt.text!r}) is also in {config.data.train}"
            )
    heldout = heldout[: config.eval.prompts or None]
    made = scorers(config.rewards)
    recipe = AdvantageRecipe.of(algorithm)
    loss = LossRecipe.of(algorithm.objective, algorithm.weights, algorithm.mismatch, algorithm.terms)
    policy = build_policy(config, str(accelerator.device))
    if config.model.forget_encoders:
        policy.family.forget_encoders([*prompts, *heldout])  # type: ignore[attr-defined]
    redraws = sum(int(parse(text)[1].get("rounds", 10)) for text in algorithm.sampler)
    return Trainer(
        policy=policy,
        scorers=made,
        recipe=recipe,
        loss=loss,
        prompts=prompts,
        rounds=RoundSettings(config.data.per_round, config.data.group_size, redraws),
        schedule=Schedule(
            steps=config.steps,
            lr=optim.lr,
            warmup=optim.warmup,
            decay=optim.decay,
            weight_decay=optim.weight_decay,
            betas=(optim.beta1, optim.beta2),
            max_grad_norm=optim.max_grad_norm,
            updates=optim.updates,
            epochs=optim.epochs,
            evaluations_at_once=optim.evaluations_at_once,
            ema=optim.ema,
            ema_every=optim.ema_every,
        ),
        evaluation=EvalSettings(
            prompts=heldout,
            every=config.eval.every,
            samples=config.eval.samples,
            seed=config.eval.seed,
            rows_at_once=config.sampling.states_at_once,
            shown=config.samples_shown,
        ),
        folder=open_run(),
        seed=config.seed,
        accelerator=accelerator,
        save_every=config.save_every,
        keep=config.keep,
        exhibit=exhibit,
    )


def exhibit(stem: Path, shown: Shown) -> None:
    """A grid of pictures with prompts and rewards, ``samples/<title>.png``."""
    from mmgrpo.report import sample_grid

    captions = [
        f"{prompt.text}\n" + "  ".join(f"{name} {value:.2f}" for name, value in values.items())
        for prompt, values in zip(shown.prompts, shown.values, strict=True)
    ]
    stem.parent.mkdir(parents=True, exist_ok=True)
    sample_grid(shown.outputs, captions, columns=4).save(stem.with_suffix(".png"))


CONTINUES = {"resume", "overwrite", "dry_run", "steps", "save_every", "keep", "trackers", "threads", "output_dir"}
"""Fields that may differ when a run is resumed."""


def run_folder(config: VisualConfig) -> Path:
    """Where the run lives."""
    return Path(config.output_dir) / config.name


def refuse_folder(config: VisualConfig) -> None:
    """An earlier run is never overwritten, nor continued with other settings, by accident."""
    folder = run_folder(config)
    kept = folder / "config.yaml"
    if not kept.is_file():
        return
    if config.resume:
        before, now = load_yaml(kept), dataclasses.asdict(config)
        changed = [key for key in now if key not in CONTINUES and before.get(key) != now[key]]
        if changed:
            raise ValueError(
                f"{kept} was written with other settings of {', '.join(changed)}; resume with the same ones, "
                "or start another run with --name"
            )
    elif not config.overwrite:
        raise FileExistsError(
            f"{folder} already holds a run; continue it with --resume, start afresh with --overwrite, "
            "or choose another --name"
        )


def open_folder(config: VisualConfig, accelerator: Accelerator) -> Path:
    """Make the run folder, with the resolved config in it; what an earlier run left there goes, unless resumed."""
    import shutil

    folder = run_folder(config)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        refuse_folder(config)
        if (folder / "config.yaml").is_file() and not config.resume:
            shutil.rmtree(folder)
        write_yaml(folder / "config.yaml", config)
    accelerator.wait_for_everyone()
    return folder


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Config values as trackers take them: one level of names, plain values."""
    values: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            values.update(flat(value, f"{prefix}{f.name}."))
        else:
            values[prefix + f.name] = value if isinstance(value, int | float | str | bool) else str(value)
    return values
