"""The settings of a run: dataclasses with the meaning under each field.

A run is described by sections. Those of the algorithm, the optimizer and the course of a run are the same for every
model; those of the model, its data and its sampling belong to the model family (``Sections``), which ``model.family``
names. ``config_class`` puts them together. Settings stop at the door: nothing below ``mmgrpo.api`` takes one.

This module imports no torch, so that ``--help`` is quick. ``reading.py`` fills it from YAML and the command line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Any


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
    """The loss of reference answers in a group (data.reference_in_group): importance, luffy(gamma=...)."""
    mismatch: str = "none"
    """Correction when the sampler is not the trainer: none, tis(cap=...), mis(low=..., high=...), ..."""
    aggregation: str = "per_sample"
    """How much each decision counts: per_sample, per_decision, constant_horizon(length=...), noise_aware."""
    terms: list[str] = field(default_factory=list)
    """Further losses: kl_k3(coef=...), kl_gaussian_exact(coef=...), kl_velocity(coef=...), ..."""


@dataclass
class Optim:
    """The optimizer, and how a rollout is cut into updates."""

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
    """Optimizer steps per epoch of a rollout: its groups are dealt to so many minibatches."""
    epochs: int = 1
    """How often a rollout is used."""
    micro_batch_size: int = 64
    """Memory limit: network evaluations of one forward and backward pass. It never changes the gradient."""
    ema: float = 0.0
    """Decay of the average of the trained weights, min((1+s)/(10+s), ema) at step s; 0 keeps none."""
    ema_every: int = 1
    """Optimizer steps between two updates of the average."""
    interpolation: float = 1.0
    """Fraction f of the weights' change that evaluation and the saved model keep: before + f (after - before). Below 1
    the model forgets less of what it could do before (WiSE-FT, arXiv:2109.01903)."""

    def check(self) -> None:
        """Raise ValueError for a schedule that is not known or a count below one."""
        if self.decay not in ("constant", "linear", "cosine"):
            raise ValueError(f"optim.decay must be constant, linear or cosine, got '{self.decay}'")
        for name in ("updates", "epochs", "micro_batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"optim.{name} must be at least 1, got {getattr(self, name)}")

    def lr_at(self, step: int, steps: int) -> float:
        """Learning rate of optimizer step ``step`` of ``steps``, counted from zero."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        if self.decay == "constant":
            return self.lr
        progress = (step - self.warmup) / max(1, steps - self.warmup)
        return self.lr * (1 - progress if self.decay == "linear" else 0.5 * (1 + math.cos(math.pi * progress)))


@dataclass
class Data:
    """Which prompts."""

    train: str = ""
    """Training prompts: JSONL (text or messages, answer, task, meta), text (a prompt per line), a data set
    hf:<folder or hub id>@<split>, or an embedded file, embedded:<modality>/<file>."""
    extra_train: list[str] = field(default_factory=list)
    """Further files of training prompts, mixed with those of train: examples of what should not be forgotten."""
    heldout: str = ""
    """Evaluation prompts; a prompt of the training file among them is an error. Empty: no evaluation."""
    prompts_per_step: int = 8
    """Prompts (groups) of one rollout, over all processes."""
    group_size: int = 16
    """Samples per prompt."""


@dataclass
class Eval:
    """Evaluation on prompts that are never trained on."""

    every: int = 0
    """Optimizer steps between evaluations during the run; 0 evaluates before and after only."""
    prompts: int = 0
    """How many held-out prompts (and of each extra file); 0 takes all of them."""
    extra: list[str] = field(default_factory=list)
    """Further prompt files, evaluated before and after and reported by name: what should not be forgotten."""
    samples: int = 1
    """Samples per prompt; their mean is the prompt's score."""
    seed: int = 1234
    """Seed of the evaluation samples, the same before and after."""
    batch_size: int = 64
    """Memory limit: samples drawn at one time in evaluation."""
    skip: bool = False
    """Leave evaluation out altogether (for benchmarks)."""


@dataclass
class Run:
    """The course of a run, the same for every model."""

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
    """Optimizer steps between checkpoints (taken at the end of a rollout)."""
    keep: int = 2
    """How many checkpoints to keep."""
    trackers: list[str] = field(default_factory=lambda: ["tensorboard"])
    """Trackers through accelerate: tensorboard (in the run folder), wandb, trackio; an empty list for none."""
    threads: int = 0
    """CPU threads of torch; 0 leaves torch's own choice."""
    deterministic: bool = True
    """Use kernels whose results do not depend on the order in which threads end, so that two runs of one seed on one
    machine, with equally many threads, are the same to the last bit."""
    samples_shown: int = 16
    """Held-out samples that the report shows."""


@dataclass
class Config(Run):
    """A whole run. ``config_class`` gives the sections that depend on the model family their types."""

    model: Any = None
    data: Any = field(default_factory=Data)
    sampling: Any = None
    algorithm: Algorithm = field(default_factory=Algorithm)
    rewards: list[str] = field(default_factory=list)
    """name(weight=...) each; weight=0 is scored and logged but not trained on; package.module:function
    names a function of your own, and a recipe that names one is code."""
    optim: Optim = field(default_factory=Optim)
    eval: Any = field(default_factory=Eval)


@dataclass(frozen=True)
class Sections:
    """The sections that a model family declares: a dataclass each, with its defaults."""

    model: type
    """Has at least ``family``, ``path`` and ``device``."""
    sampling: type
    data: type = Data
    eval: type = Eval
    rewards: tuple[str, ...] = ()
    samples_shown: int = 16


@cache
def config_class(sections: Sections) -> type[Config]:
    """``Config`` with the sections of a family."""
    rewards, shown = list(sections.rewards), sections.samples_shown
    own = [(name, getattr(sections, name)) for name in ("model", "data", "sampling", "eval")]
    fields: list[tuple[str, Any, Any]] = [(name, kind, field(default_factory=kind)) for name, kind in own]
    fields += [
        ("rewards", list[str], field(default_factory=rewards.copy)),
        ("samples_shown", int, field(default=shown)),
    ]
    return make_dataclass("Config", fields, bases=(Config,), namespace={"__module__": __name__})


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Config values as trackers take them: one level of names, plain values."""
    values: dict[str, Any] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            values.update(flat(value, f"{prefix}{f.name}."))
        else:
            values[prefix + f.name] = value if isinstance(value, int | float | str | bool) else str(value)
    return values
