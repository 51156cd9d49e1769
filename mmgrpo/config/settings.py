"""The settings of a run: dataclasses with a docstring below each field, which is its help text.

Settings are grouped in sections. Those of the algorithm, the optimizer and the run itself are common to all models;
those of the model, its data, its sampling and its evaluation depend on the model family (``Sections``), which
``model.family`` names. ``config_class`` combines them. No function below ``mmgrpo.api`` takes a configuration.

Every field has a range (``ranges.py``), which a subclass that changes the default need not repeat. This module does not
import torch, so ``--help`` is fast. ``readable.py`` reads YAML and the command line.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from mmgrpo.config.conflicts import (
    DECISIONS,
    PROCESS,
    STREAMS,
    WEIGHTS,
    Declaration,
    declared_in,
    excludes,
    reading,
    refuse_conflicts,
    where,
)
from mmgrpo.config.extras import install
from mmgrpo.config.needs import HELDOUT, needs, sections_of, values_of
from mmgrpo.config.ranges import (
    ANY_TEXT,
    CHECKPOINT,
    COUNT,
    COUNT_OR_ZERO,
    FRACTION,
    POSITIVE_FRACTION,
    RUN_NAME,
    SEED,
    THREADS,
    check_ranges,
    one_of,
    within,
)
from mmgrpo.config.sampling import FURTHER_ROWS, SAMPLING
from mmgrpo.config.schedules import of_settings

OPTIMIZERS = ("adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit")
"""Kinds of AdamW (``mmgrpo.runtime.optimizers``)."""

TRACKERS = {
    name: name for name in ("tensorboard", "wandb", "trackio", "aim", "mlflow", "clearml", "dvclive", "swanlab")
} | {"comet_ml": "comet-ml"}
"""Experiment trackers of accelerate to the packages that they need."""


def install_tracker(name: str) -> str:
    """The command that installs an experiment tracker: an extra of ours where there is one, else its package."""
    return install(name) if name in ("wandb", "trackio") else f"pip install {TRACKERS[name]}"


ANOTHER_SAMPLER = (
    needs("rollout.engine", but="policy")
    | needs("sampling.dtype")
    | needs("sampling.temperature_by_entropy")
    | needs("sampling.rollout_guidance")
    | needs("algorithm.mismatch", "off_policy_mask")  # which compares with the present policy
)
OWN_STEP = needs("optim.step", but="natural")
SERVED = needs("rollout.engine", "served")
VLLM = needs("rollout.engine", "vllm", "served")
"""A server reads these from the settings of the run."""


UNCORRECTED = where("algorithm.mismatch", "none")
QUANTIZED = "its samples are of another distribution; tis_beyond(gap=0.01) corrects those that differ by as much"


OF_NO_TEXT = where(DECISIONS, but="tokens")
ONE_REWARD = ("algorithm.transform", "algorithm.weighting", where("algorithm.combine", but="weighted_sum"))
"""Settings by which several rewards are more than their plain weighted sum."""
NO_PROBABILITIES = "log-probs of these decisions are no probabilities"


@dataclass
class Algorithm:
    """The group-relative algorithm, as a choice of named functions, written ``name(parameter=value)``."""

    preset: Annotated[str, ANY_TEXT] = "grpo"
    """Named choice of all fields below (docs/algorithms.md lists them); fields that are set override it."""
    transform: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Functions of the rewards before they are combined, in order: sigmoid(reference=..., of=...), gate(by=...), ..."""
    weighting: Annotated[
        list[str],
        ANY_TEXT,
        excludes(*FURTHER_ROWS, why="it compares gradients of the round's own rows", having="inner_products"),
        excludes(WEIGHTS, why="it changes the weights of rewards too"),
    ] = field(default_factory=list)
    """Rules that change the weights of rewards in a run: dual_ascent(by=...), hypervolume, ...; none by default."""
    combine: Annotated[str, ANY_TEXT] = "weighted_sum"
    """How several rewards are combined: weighted_sum, minimum, ... of the rewards; per_reward, the sum of separately
    normalized advantages (DanceGRPO); gdpo, per_reward and then whitening over the batch."""
    keys: Annotated[list[str], ANY_TEXT] = field(default_factory=lambda: ["prompt"])
    """Groups within which samples are compared: prompt, tree(weight=...), ...; the advantages of several are summed."""
    baseline: Annotated[
        str,
        ANY_TEXT,
        excludes(
            *ONE_REWARD,
            why="its value is one number for all rewards together",
            having=("greedy_value", "reference_value"),
        ),
        excludes(
            where("algorithm.hint", having="shares=*"),
            *("algorithm.added", "algorithm.judging"),
            why="the greedy completion has neither a hint nor an answer",
            having="greedy_value",
        ),
    ] = "group_mean"
    """What is subtracted from each reward: group_mean, leave_one_out, ..."""
    scale: Annotated[str, ANY_TEXT] = "group_std(ddof=1, eps=1e-4)"
    """What the difference is divided by: group_std(ddof=..., eps=...), none, ..."""
    shape: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Functions of the scaled advantages, applied in order: clamp(limit=5), ..."""
    credit: Annotated[
        str,
        ANY_TEXT,
        excludes(*ONE_REWARD, why="rewards of steps are one number for all rewards together", having="step_rewards"),
        excludes(
            *(where("algorithm.baseline", but="none"), where("algorithm.scale", but="none"), "algorithm.shape"),
            why="it normalizes the rewards of steps itself",
            lacking="advantages",
        ),
        excludes(
            *("algorithm.replay", "algorithm.hint", "algorithm.added", "algorithm.judging"),
            why="only samples of the round have rewards or values of steps",
            having=("step_rewards", "step_values", "value"),
        ),
        excludes("data.offline", why="given answers have no values of a critic", having="value"),
        excludes(where("sampling.search", "beam"), why="only samples have a divergence", having="divergence"),
    ] = "broadcast"
    """How the advantage of a sample is assigned to its decisions: broadcast (the same to all), tree_depth, ..."""
    select: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Which samples or decisions are trained: drop_zero_spread, best_worst(count=...), ...; by default all."""
    sampler: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Which prompts a round draws, how often, and when again: dynamic_sampling(rounds=...), variance_weighted, retire,
    mixture(weights=...), staged, ...; by default each in turn, in a seeded order."""
    trackers: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Numbers per prompt that the ledger of the run keeps for samplers and baselines: beta, window, shortest, ..."""
    objective: Annotated[
        str,
        ANY_TEXT,
        excludes(
            where("data.offline", but=1.0),
            why="it reads no reward and would learn every sample alike (data.offline=1 learns given answers; to go on "
            "with samples, train in stages)",
            values=("likelihood",),
        ),
        excludes(
            where("data.offline", but=1.0),
            why="its regions are those of given images (data.offline=1)",
            having="regional",
        ),
        excludes(
            where("algorithm.combine", but="weighted_sum"),
            "algorithm.transform",
            why="it trains on the gradient of the weighted sum of the rewards as they are",
            having="gradient_reward",
        ),
    ] = "ppo(low=0.2, high=0.2)"
    """The loss per decision: ppo(low=..., high=...), gspo, cispo_cap, policy_gradient, ..."""
    off_policy: Annotated[
        str, ANY_TEXT, needs("data.reference_in_group") | needs("algorithm.added") | needs("algorithm.replay")
    ] = "importance"
    """The loss per decision of reference answers in a group (data.reference_in_group, or algorithm.added with
    old='one'): importance, luffy(gamma=...)."""
    replay: Annotated[
        str,
        ANY_TEXT,
        excludes(
            *reading("greedy_value", "reference_value", "reference_rewards"), why="stored rows have no such value"
        ),
        excludes(OF_NO_TEXT, why=NO_PROBABILITIES, having="old=one"),
    ] = "none"
    """Rows of earlier rounds added to those of the round: replay(count=8, strategy='recent', ...); by default none."""
    supervised: Annotated[str, ANY_TEXT, excludes(OF_NO_TEXT, why=NO_PROBABILITIES, having="phi=True")] = "none"
    """A likelihood added to the objective: nll(coef=0.1), of the answers of data.supervised; by default none."""
    hint: Annotated[
        str,
        ANY_TEXT,
        excludes(
            where("algorithm.terms", having="*@*"),
            where("algorithm.objective", having="*@*"),
            why="a prompt is changed by one of them",
        ),
        excludes(OF_NO_TEXT, why="hints are parts of texts"),
    ] = "none"
    """Parts of solutions in the prompt or at the start of samples: staged(...), steps(...), forced(...); by default
    none."""
    added: Annotated[
        str,
        ANY_TEXT,
        excludes(OF_NO_TEXT, why=NO_PROBABILITIES, having="old=one"),
        excludes("data.reference_in_group", why="refined samples are drawn one by one", values=("refined",)),
        excludes(OF_NO_TEXT, why="these rows are texts", values=("refined", "corrected", "interrupted", "exits")),
    ] = "none"
    """Rows added to a group: answers of the data set, refined or corrected samples (answers(count=1), refined(...),
    corrected(...)); by default none."""
    judging: Annotated[
        list[str],
        ANY_TEXT,
        excludes(OF_NO_TEXT, why="what is judged is a text"),
        excludes(*reading("greedy_value", "reference_value", "reference_rewards"), why="verdicts have no such value"),
    ] = field(default_factory=list)
    """What the policy is asked about its own samples, in the round in which it drew them: verdicts(...), which are
    trained, own(reward=...), by which samples without a rule are rewarded; none by default."""
    mismatch: Annotated[str, ANY_TEXT, ANOTHER_SAMPLER] = "none"
    """Correction for samplers whose probabilities differ from the trainer's: none, tis(cap=...), mis(low=...), ..."""
    kl_weight: Annotated[str, ANY_TEXT, needs("algorithm.terms", "kl_*")] = "none"
    """Factor of the KL terms for each sample: none, ensemble_variance(members=...), high_part."""
    aggregation: Annotated[
        str,
        ANY_TEXT,
        excludes(
            where("data.offline", but=1.0),
            where("algorithm.objective", having=("level=decision", "level=row")),
            why="its weights follow the losses of given answers that are compared (data.offline=1)",
            having="category_weight",
        ),
    ] = "per_sample"
    """Weight of each decision in the loss: per_sample, per_decision, constant_horizon(length=...), noise_aware, ..."""
    terms: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Additional losses: kl_k3(coef=...), kl_gaussian_exact(coef=...), kl_velocity(coef=...), ...; by default none."""
    networks: Annotated[
        list[str],
        ANY_TEXT,
        excludes(
            where("distributed.shard", but="none"),
            why="networks that learn beside the policy's own, or guide its samples, are not divided",
            having=("lr=*", "method=*"),
        ),
    ] = field(default_factory=list)
    """Further networks that the loss compares with or that sample, besides the policy and the initial one:
    average(slope=...), renewal(every=...), earlier, frozen(path=...); by default none."""
    parts: Annotated[
        list[str],
        ANY_TEXT,
        excludes(
            *("algorithm.networks", "algorithm.replay", "algorithm.supervised", "algorithm.hint", "algorithm.added"),
            "algorithm.judging",
            *("algorithm.mismatch", "algorithm.kl_weight", "algorithm.weighting", "data.offline"),
            where("optim.step", but="plain"),
            why="it is of rows with decisions of one kind",
        ),
    ] = field(default_factory=list)
    """Lines of each kind of decisions, where rows have several (model.family=rewriter), in place of those above:
    text(preset=..., per='trace', weights=...), image(objective=..., coef=...); by default none."""


@dataclass
class Optim:
    """The optimizer (AdamW), and the split of a rollout into updates."""

    lr: Annotated[float, within("[0, 1000]"), OWN_STEP] = 1e-4
    """Peak learning rate. 1e-4 suits LoRA adapters; training all weights of a large model takes about 1e-6."""
    rates: Annotated[list[str], ANY_TEXT, OWN_STEP] = field(default_factory=list)
    """Factors of the learning rate for parameters by their names, e.g. text=0.1 "image.*bias=2" (* for any letters, and
    a name stands for all below it); the first that fits."""
    weight_decay: Annotated[float, within("[0, 1000]"), OWN_STEP] = 1e-4
    """Decoupled weight decay, relative to the learning rate."""
    beta1: Annotated[float, within("[0, 1)"), OWN_STEP] = 0.9
    """Decay of the average of gradients."""
    beta2: Annotated[float, within("[0, 1)"), OWN_STEP] = 0.999
    """Decay of the average of squared gradients."""
    eps: Annotated[float, within("[0, 1)"), OWN_STEP] = 1e-8
    """AdamW's epsilon, added to the root of the second moment. Gradients below it shrink the update: with gradients of
    5e-9 the step is a third with 1e-8, and full with 1e-15."""
    optimizer: Annotated[str, one_of(*OPTIMIZERS), OWN_STEP] = "adamw"
    """adamw; or from bitsandbytes: adamw_8bit (both moments in 8 bits: 2 bytes per parameter instead of 8), paged_adamw
    and paged_adamw_8bit (moments in memory that is moved to the CPU when the GPU is full)."""
    step: Annotated[str, ANY_TEXT] = "plain"
    """How an update is made: plain; sfpo(fast=..., alpha=...), several fast steps, a move back and a slow step (SFPO);
    natural(delta=...), the constrained natural gradient of TRPO, which ignores lr, weight_decay and betas."""
    warmup: Annotated[int, COUNT_OR_ZERO, OWN_STEP] = 0
    """Optimizer steps of linear warm-up; 0 starts at the peak."""
    decay: Annotated[str, one_of("constant", "linear", "cosine"), OWN_STEP] = "constant"
    """Schedule after the warm-up: constant, linear or cosine (both to zero at --steps)."""
    max_grad_norm: Annotated[float, within("[0, inf)")] = 1.0
    """Gradient clipping: maximum norm; 0 does not clip (the norm is logged either way)."""
    max_nonfinite_steps: Annotated[int, COUNT] = 3
    """Steps with a non-finite loss or gradient are skipped; after this many in a row the run stops."""
    updates: Annotated[int, COUNT] = 1
    """Optimizer steps per epoch of a rollout: its groups are split into so many minibatches. With 1 (and 1 epoch) every
    update is on-policy."""
    epochs: Annotated[int, COUNT] = 1
    """Passes over each rollout."""
    micro_batch_size: Annotated[int, COUNT] = 64
    """Network evaluations per forward and backward pass. Limits memory; does not change the gradient."""
    ema: Annotated[float, within("[0, 1)")] = 0.0
    """Decay of an exponential moving average of the weights, min((1+s)/(10+s), ema) at step s, which evaluation and the
    saved model use; 0 keeps no average."""
    ema_every: Annotated[int, COUNT, needs("optim.ema")] = 1
    """Optimizer steps between updates of the average; using the average updates it first."""
    interpolation: Annotated[float, POSITIVE_FRACTION] = 1.0
    """Interpolation of initial and trained weights in evaluation and the saved model: initial + f (trained - initial),
    f in (0, 1]. Below 1 the model forgets less (WiSE-FT, arXiv:2109.01903)."""

    def check(self) -> None:
        """Raise ValueError for a field outside of its range, and for an optimizer of a package that is missing."""
        check_ranges(self, prefix="optim.")
        if self.optimizer != "adamw":
            refuse_missing("bitsandbytes", f"optim.optimizer: '{self.optimizer}'", "set optim.optimizer=adamw")

    @property
    def steps_per_round(self) -> int:
        """Optimizer steps that are made from one rollout."""
        return self.updates * self.epochs


@dataclass
class Data:
    """The prompts of a run, and how many are sampled per step."""

    train: Annotated[str, ANY_TEXT] = ""
    """Training prompts: a .jsonl, .json, .csv, .parquet or WebDataset .tar file (docs/data.md lists the formats), a
    .txt file (one prompt per line), a folder of media with metadata.jsonl or .csv, hf:<folder or hub id>@<split>, or an
    embedded file embedded:<modality>/<file>."""
    extra_train: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Further files of training prompts, mixed with those of data.train, for example against forgetting."""
    supervised: Annotated[str, ANY_TEXT, needs("algorithm.supervised")] = ""
    """Prompts with the column answer, which algorithm.supervised learns by their likelihood; as data.train."""
    heldout: Annotated[str, ANY_TEXT] = ""
    """Evaluation prompts, as data.train; empty: no evaluation. A prompt that is also a training prompt is an error."""
    unlabelled: bool = False
    """Remove the answers of training prompts, so no reward can read them (votes, certain, ... need none), and allow the
    same prompts with answers in data.heldout: test-time training, measured by a verifier."""
    columns: Annotated[str, ANY_TEXT] = ""
    """Columns of the prompt files under our names, theirs=ours,...: question=problem,solution=answer. A name a.b is the
    key b inside of a; meta.NAME is a parameter of the task. Embedded files keep their own."""
    ledger: Annotated[
        str,
        ANY_TEXT,
        needs("algorithm.sampler") | needs("algorithm.trackers") | needs("algorithm.hint") | needs("data.offline"),
    ] = ""
    """Initial state of the ledger, from rewards measured on the training prompts: a file written by mmgrpo evaluate
    (--file DATA --samples 8), or the folder of another run. Samplers and trackers read it."""
    prompts_per_step: Annotated[int, within("[1, 1e6]")] = 8
    """Prompts (groups) per rollout, over all processes."""
    group_size: Annotated[int, within("[1, 4096]")] = 16
    """Samples per prompt, which are compared with each other; 1 only if no block of the algorithm compares them."""
    prompts_at_once: Annotated[int, COUNT_OR_ZERO] = 0
    """Prompts of a rollout that are sampled together, per process; 0 samples all. Rewards in processes of their own or
    on servers score each part while the next is sampled. Samples may differ from those of another value in rounding."""
    offline: Annotated[
        float,
        FRACTION,
        excludes("algorithm.weighting", why="given answers have no rewards that it could follow"),
        excludes(
            where(DECISIONS, "gaussian", "neighbors", "gradients"),
            why="given answers are scored as tokens or by matching errors (sampling.policy=matching)",
        ),
    ] = 0.0
    """Fraction of the optimizer steps, from the start, that train on the answers in data.train (chosen and rejected
    ones: docs/data.md) instead of samples: 1 trains offline, without rewards; below 1 the run continues online."""
    reference_in_group: ClassVar[bool] = False
    """Fixed for families that have no such option."""
    comparison: ClassVar[str] = ""
    """As ``reference_in_group``."""


@dataclass
class Eval:
    """Evaluation on held-out prompts."""

    every: Annotated[int, COUNT_OR_ZERO, needs(HELDOUT)] = 0
    """Optimizer steps between evaluations during training; 0 evaluates only before and after."""
    prompts: Annotated[int, COUNT_OR_ZERO] = 0
    """Number of held-out prompts, and of prompts of each extra file; 0 takes all."""
    extra: Annotated[list[str], ANY_TEXT, needs("eval.skip", False)] = field(default_factory=list)
    """Further prompt files, evaluated before and after and reported by name, for example to measure forgetting."""
    groups: Annotated[list[str], ANY_TEXT, needs(HELDOUT)] = field(default_factory=list)
    """Columns of the held-out rows, e.g. a kind of question: rewards are also reported for each of their values."""
    samples: Annotated[int, within("[1, 1e6]")] = 1
    """Samples per prompt; the score of a prompt is their mean."""
    seed: Annotated[int, SEED] = 1234
    """Seed of the evaluation samples. It is separate from the seed of the run, so all evaluations are paired."""
    batch_size: Annotated[int, COUNT] = 64
    """Samples generated at a time. Limits memory."""
    patience: Annotated[int, COUNT_OR_ZERO, needs("eval.skip", False), needs(HELDOUT), needs("eval.every")] = 0
    """Early stopping: the run ends after this many evaluations in a row without a new best mean of a reward on the
    held-out prompts (eval.every; the one before training counts as the first); 0: never."""
    patience_reward: Annotated[str, ANY_TEXT, needs("eval.patience")] = ""
    """The reward that eval.patience follows, by name, e.g. one of weight 0; empty: the first that is trained on."""
    skip: bool = False
    """Skip all evaluations, also those before and after (for benchmarks)."""


@dataclass
class Distributed:
    """Sharding of a model over several processes (docs/scaling.md); by default each holds a replica."""

    shard: Annotated[
        str,
        one_of("none", "full"),
        excludes(
            where("optim.optimizer", but="adamw"),
            "model.quantize",
            why="its tensors cannot be divided",
            values=("full",),
        ),
    ] = "none"
    """none: every process holds a replica; full: weights, gradients, optimizer, average and reference are sharded
    (FSDP2). Results differ in rounding only, and checkpoints are interchangeable."""
    replicate: Annotated[int, COUNT, needs("distributed.shard", "full")] = 1
    """Replicas with distributed.shard full (HSDP), each sharded over (processes / replicate) neighbouring ranks, e.g.
    one per machine. 1 shards over all processes."""
    rollout_weights: Annotated[
        str,
        one_of("auto", "blocks", "whole"),
        needs("distributed.shard", "full"),
        excludes(
            where("rollout.engine", but="policy"),
            why="an engine is sent whole weights while rollouts are drawn",
            values=("blocks",),
            given=where("distributed.shard", "full"),
        ),
        excludes(
            where("sampling.plan_per", "prompt"),
            why="plans of single prompts call the network differently often on each process",
            values=("blocks",),
            given=where("distributed.shard", "full"),
        ),
    ] = "auto"
    """Weights gathered during rollouts and evaluations with distributed.shard full. whole: all, once; blocks: one block
    at a time, for every call, which takes less memory and more time; auto: blocks for denoising models with a fixed
    number of calls, whole for all others and where an engine draws."""
    sequence: Annotated[
        int,
        COUNT,
        excludes(
            where("rollout.engine", but="policy"),
            where("sampling.policy", "gradients"),
            "sampling.reward_drift",
            "model.compile",
            why="which is not divided",
            but=1,
        ),
    ] = 1
    """N neighbouring ranks that divide the tokens of every sample (Ulysses), in networks of families that have a plan
    for it. They work on the same prompts, and each keeps 1/N of the activations. 1 divides none."""

    def check(self, processes: int) -> None:
        """ValueError for sequences that so many processes cannot divide, and for copies of which they cannot divide
        each among two or more."""
        lines = processes // self.replicate if self.shard == "full" else processes
        if processes > 1 and lines and lines % self.sequence:
            each = f" in {self.replicate} copies of the model" if self.shard == "full" and self.replicate > 1 else ""
            raise ValueError(
                f"distributed.sequence: got {self.sequence} with {processes} processes{each}, expected a divisor of "
                f"{lines}"
            )
        if self.shard == "full" and processes > 1 and (processes % self.replicate or processes == self.replicate):
            raise ValueError(
                f"distributed.replicate: got {self.replicate} with {processes} processes, expected a divisor of "
                f"{processes} below it: each copy of the model is divided among at least two processes"
            )


ENGINES = ("policy", "sampler", "served", "vllm")
"""What may draw the completions of rollouts."""


@dataclass
class Engine:
    """The engine that samples rollouts (docs/scaling.md)."""

    engine: Annotated[
        str,
        one_of(*ENGINES),
        excludes(
            where("sampling.search", "beam"),
            *("sampling.dtype", "sampling.draw_batch_size", "sampling.rollout_guidance"),
            where("sampling.policy", but=("transitions", "matching")),
            *("sampling.explore_steps", "sampling.boundaries"),
            where("sampling.plan", "expand_prune"),
            where("sampling.plan", having="intervals=*,*"),
            *reading("divergence"),
            why="an engine draws whole groups of the policy's own samples, each by itself",
            but="policy",
        ),
        excludes(STREAMS, why="its log-probs do not tell streams apart", but="policy"),
    ] = "policy"
    """policy: the trained network itself; vllm: vLLM in this process; served: an engine run by 'mmgrpo serve-engine' in
    another process or on another machine; sampler: mmgrpo's own sampler on a second copy of the network. Weights are
    sent and verified before every round, and the run stops if log-probs of engine and trainer differ too much."""
    url: Annotated[list[str], ANY_TEXT, SERVED] = field(default_factory=list)
    """Servers of rollout.engine served, e.g. http://127.0.0.1:8800; several are distributed over the processes, and
    those of a process share the prompts of a round."""
    token_file: Annotated[str, ANY_TEXT, SERVED] = ""
    """File with the servers' token; empty: none."""
    timeout: Annotated[float, within("(0, 1e6]"), SERVED] = 1800.0
    """Seconds to wait for an answer of a server, which may be all completions of a round."""
    patience: Annotated[float, within("[0, 1e6]"), SERVED] = 600.0
    """Seconds for which a run retries a server that does not answer, before it stops with a checkpoint."""
    max_gap: Annotated[float, within("[0, 1000]"), needs("rollout.engine", but="policy")] = 0.0
    """Maximum mean difference between log-probs of engine and trainer, in nats per token; 0 means 0.001 for model.dtype
    float32, 0.05 otherwise, and 0.2 with rollout.quantization fp8."""
    max_staleness: Annotated[
        int,
        COUNT_OR_ZERO,
        excludes(
            *("data.offline", "algorithm.hint"),
            where("schedules", having="by=*"),
            why="the round's own numbers decide there what is drawn",
        ),
        excludes(
            where("sampling.policy", but="matching"),
            why="its loss has the likelihood of what is drawn, so an engine draws with the weights of the round; "
            "presets such as diffusion_nft, awm and dgpo (sampling.policy=matching) may be drawn ahead",
            given=where("rollout.engine", "served"),
        ),
    ] = 0
    """Asynchronous rollouts: rounds by which sampling runs ahead of training, with weights that are as many rounds old.
    Engine served samples while the trainer computes, with this many servers per process. 0: on-policy."""
    lora: Annotated[str, one_of("merged", "adapter"), VLLM, needs("model.lora_rank")] = "merged"
    """How vLLM receives LoRA adapters. merged: merged into the weights, which are sent; adapter: separately, which
    sends less and does not round small changes to the precision of the weights. For served, the server must be started
    with the same value."""
    memory: Annotated[float, POSITIVE_FRACTION, VLLM] = 0.4
    """vllm: fraction of the device memory for its weights and cache."""
    sleep: Annotated[bool, VLLM] = True
    """vllm: free its weights and cache while the trainer computes, on a GPU."""
    tensor_parallel: Annotated[int, COUNT, VLLM] = 1
    """vllm: GPUs that share its network, the first ones that its process sees (CUDA_VISIBLE_DEVICES)."""
    quantization: Annotated[str, one_of("none", "fp8"), VLLM, excludes(UNCORRECTED, why=QUANTIZED)] = "none"
    """vllm: fp8 stores and multiplies its weights in 8 bits; rollout/sampler_gap says what that costs."""
    max_sequences: Annotated[int, COUNT_OR_ZERO, VLLM] = 0
    """vllm: completions that it draws at a time; 0: its default."""
    media_per_prompt: Annotated[int, COUNT_OR_ZERO, VLLM] = 0
    """vllm: images, and videos, that a prompt may have, for which it reserves memory; 0: its default."""
    eager: Annotated[bool, VLLM] = False
    """vllm: no CUDA graphs and no compilation: a faster start, slower sampling."""

    def servers(self, processes: int, process: int) -> list[list[str]]:
        """The servers of a process, which share the prompts of a round; with ``max_staleness`` for each of as many
        rounds, of which a server draws one at a time. ValueError for a number that the rounds cannot share."""
        most = max(1, self.max_staleness)
        urls = self.url[process::processes] or [self.url[process % len(self.url)]]
        if len(self.url) == most:
            urls = self.url
        if len(urls) % most:
            raise ValueError(
                f"rollout.url: got {len(self.url)} servers for {processes} processes with rollout.max_staleness="
                f"{self.max_staleness}, expected {most} in all, or {most} or a multiple for each process, since a "
                "server draws one round at a time"
            )
        return [urls[first::most] for first in range(most)]

    def check(self, processes: int = 1) -> None:
        """ValueError for settings that have no effect together, or that so many processes cannot share."""
        if self.engine == "served" and not self.url:
            raise ValueError("rollout.url: got none with rollout.engine=served, expected one or several")
        for url in self.url:
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
                raise ValueError(f"rollout.url: got '{url}', expected http://HOST:PORT")
        for process in range(processes if self.url else 0):
            self.servers(processes, process)
        if self.engine == "vllm" and processes > 1:
            raise ValueError(
                f"rollout.engine: got vllm with {processes} processes, expected one, whose device it shares; start a "
                "server per process (mmgrpo serve-engine) and set rollout.engine=served with their rollout.url"
            )


@dataclass
class Run:
    """The settings of a run itself, common to all models."""

    name: Annotated[str, RUN_NAME] = ""
    """Name of the run; its folder is <output-dir>/<name>. Empty: the preset and the time of the start, e.g.
    mix_grpo-20260131-154500."""
    output_dir: Annotated[str, ANY_TEXT] = "runs"
    """Parent of the run folders."""
    steps: Annotated[int, COUNT] = 100
    """Total number of optimizer steps."""
    seed: Annotated[int, SEED] = 0
    """Seed of all random numbers: a run is reproducible from its configuration, seed and commit."""
    resume: bool = False
    """Continue from the latest checkpoint of the run folder."""
    resume_from: Annotated[str, CHECKPOINT] = ""
    """Continue from this checkpoint of the run folder, e.g. step-000040; later ones are moved aside."""
    overwrite: bool = False
    """Replace a run that the run folder already contains."""
    dry_run: bool = False
    """Print the sizes and costs of the run and stop before the model is loaded."""
    strict: bool = False
    """End with exit status 3 where the run has raised an alarm (alarms.json, or reward hacking), for scripts."""
    save_every: Annotated[int, COUNT] = 50
    """Optimizer steps between checkpoints, rounded up to the end of a rollout."""
    save_every_minutes: Annotated[float, within("[0, inf)")] = 10.0
    """Also write a checkpoint after this many minutes, at the end of a rollout; 0: by steps only."""
    keep: Annotated[int, COUNT] = 2
    """Number of checkpoints to keep; older ones are removed. With 2, one remains if the latest is damaged."""
    trackers: Annotated[list[str], one_of(*TRACKERS)] = field(default_factory=lambda: ["tensorboard"])
    """Experiment trackers: tensorboard (in the run folder), wandb, trackio, and others that accelerate
    knows, where installed. metrics.jsonl is written without any."""
    schedules: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Settings that change during the run, setting=schedule: data.group_size, data.prompts_per_step,
    sampling.temperature, sampling.max_tokens; e.g. sampling.max_tokens=stages(4096, (100, 8192)). A schedule may also
    stand in the place of their number. Blocks and rewards take schedules themselves: kl_k3(coef=cosine(0.04, 0))."""
    callbacks: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """What is added to the run at its rounds, steps and evaluations: package.module:Class(parameter=value), a subclass
    of mmgrpo.Callback of your own; a recipe that contains one is code."""
    threads: Annotated[int, THREADS] = 0
    """CPU threads of torch; 0 leaves the choice to torch."""
    deterministic: bool = True
    """Use deterministic kernels: two runs with one seed, on one machine and with equally many threads, agree bit for
    bit."""
    samples_shown: Annotated[int, COUNT_OR_ZERO, needs(HELDOUT)] = 16
    """Number of held-out samples in the report."""
    groups_kept: Annotated[int, COUNT_OR_ZERO] = 20
    """Number of training groups that the run folder keeps (groups/), at equal intervals over the run; 0 keeps none."""


LAUNCH = ("resume", "resume_from", "overwrite", "dry_run", "strict")
"""Settings that say how a command starts and not what the run is: they are in no recipe and in no stored configuration,
so nobody inherits them."""


@dataclass
class Config(Run):
    """All settings of a run; ``config_class`` sets the types of the sections that depend on the model family."""

    process: ClassVar[str] = ""
    """``Sections.process`` of the family."""

    model: Any = None
    data: Any = field(default_factory=Data)
    sampling: Any = None
    algorithm: Algorithm = field(default_factory=Algorithm)
    rewards: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Rewards, written name(weight=...). A reward of weight 0 is computed and logged but not trained on. A function of
    your own is written package.module:function; a recipe that contains one is code."""
    optim: Optim = field(default_factory=Optim)
    distributed: Distributed = field(default_factory=Distributed)
    rollout: Engine = field(default_factory=Engine)
    eval: Any = field(default_factory=Eval)

    def check(self, processes: int = 1) -> None:
        """Raise ValueError for a setting outside of its range, that so many processes cannot share, or that does not
        go with another, and for a tracker that is not installed, which accelerate would leave out."""
        check_ranges(self)
        refuse_conflicts(sections_of(self), facts={PROCESS: self.process})
        self.optim.check()
        self.distributed.check(processes)
        if self.data.prompts_per_step % (ranks := max(1, processes // self.distributed.sequence)):
            raise ValueError(
                f"data.prompts_per_step: got {self.data.prompts_per_step} with {processes} processes, expected a "
                f"multiple of {ranks}, since each samples equally many prompts"
            )
        self.rollout.check(processes)
        of_settings(self)
        for tracker in self.trackers:
            if importlib.util.find_spec(tracker) is None:
                raise Missing(
                    f"trackers: got '{tracker}', which is not installed; install it ({install_tracker(tracker)}) "
                    "or leave it out"
                )


COMMON = {"algorithm": Algorithm, "data": Data, "distributed": Distributed, "optim": Optim, "rollout": Engine}
"""Sections as families have them that add nothing."""
DECLARED: Mapping[str, tuple[Declaration, ...]] = {**declared_in(COMMON), **SAMPLING}
"""What settings do not go with, whatever the family."""
DEFAULTS: Mapping[str, Any] = values_of({name: kind() for name, kind in COMMON.items()})
"""Settings of these sections that nobody set."""


@dataclass(frozen=True)
class Sections:
    """The sections of a model family: a dataclass each, and the family's defaults."""

    model: type
    """A dataclass with at least ``family``, ``path`` and ``device``."""
    sampling: type
    data: type = Data
    eval: type = Eval
    rewards: tuple[str, ...] = ()
    samples_shown: int = 16
    outputs: str = ""
    """What the family makes, Text, Image, Video or Audio, so rewards of others are refused; empty: unknown."""
    process: str = "tokens"
    """What its models were trained on, by which presets choose settings: tokens, flow or diffusion."""


@cache
def config_class(sections: Sections) -> type[Config]:
    """``Config`` with the sections of a family."""
    rewards, samples_shown = list(sections.rewards), sections.samples_shown
    sections_of_family = [(name, getattr(sections, name)) for name in ("model", "data", "sampling", "eval")]
    fields: list[tuple[str, Any, Any]] = [
        (name, kind, field(default_factory=kind)) for name, kind in sections_of_family
    ]
    fields += [
        ("rewards", list[str], field(default_factory=rewards.copy)),
        ("samples_shown", int, field(default=samples_shown)),
    ]
    namespace = {"__module__": __name__, "process": sections.process}
    return make_dataclass("Config", fields, bases=(Config,), namespace=namespace)


class Missing(ValueError):
    """A package that a setting needs and that is not installed here, perhaps elsewhere."""


def refuse_missing(package: str, what: str, otherwise: str) -> None:
    """Missing where a package that a setting needs is not installed; ``what`` names the setting and its value."""
    if importlib.util.find_spec(package) is None:
        raise Missing(f"{what} needs {package}, which is not installed; pip install {package}, or {otherwise}")


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """A configuration as one level of ``section.key`` with plain values, for trackers."""
    values: dict[str, Any] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            values.update(flat(value, f"{prefix}{f.name}."))
        else:
            values[prefix + f.name] = value if isinstance(value, int | float | str | bool) else str(value)
    return values
