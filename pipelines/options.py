"""The options that model families have in common. This file imports no torch, so ``--help`` is fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from mmgrpo.config.conflicts import excludes, where
from mmgrpo.config.needs import needs
from mmgrpo.config.ranges import ANY_TEXT, COUNT, COUNT_OR_ZERO, DEVICE, POSITIVE_FRACTION, one_of, within
from mmgrpo.config.sampling import SAMPLING
from mmgrpo.config.settings import refuse_missing

SCALE = within("[1, 1000]", note="1 is no guidance")
"""Scales of classifier-free guidance."""


TRANSITIONS = needs("sampling.policy", "transitions")
MATCHING = needs("sampling.policy", "matching")
NEIGHBORS = needs("sampling.policy", "neighbors")
GRADIENTS = needs("sampling.policy", "gradients")


@dataclass
class ModelOptions:
    """The model, and which of its weights are trained."""

    family: Annotated[str, ANY_TEXT] = ""
    """Model family; 'mmgrpo families' lists them."""
    path: Annotated[str, ANY_TEXT] = ""
    """Folder or hub id of the model."""
    lora_rank: Annotated[int, within("[0, 65536]")] = 0
    """Rank of the LoRA adapters; 0 trains the weights of the model itself."""
    lora_alpha: Annotated[float, within("(0, 1e6]"), needs("model.lora_rank")] = 64.0
    """LoRA alpha; the update is scaled by alpha / rank."""
    lora_targets: Annotated[list[str], ANY_TEXT, needs("model.lora_rank")] = field(default_factory=list)
    """Name suffixes of the adapted modules; empty: the family's attention projections."""
    lora_path: Annotated[
        str,
        ANY_TEXT,
        excludes(
            where("model.lora_rank", 0),
            why="existing adapters are continued at their rank or a higher one (model.lora_mode=merge adds them to "
            "the base)",
            given=where("model.lora_mode", "continue"),
        ),
    ] = ""
    """Existing LoRA adapters to start from: a safetensors file in the format of diffusers, peft, ComfyUI or kohya, a
    folder that contains one, or a hub id (owner/name, owner/name:file.safetensors)."""
    lora_mode: Annotated[str, one_of("continue", "merge"), needs("model.lora_path")] = "continue"
    """How lora_path is used: continue trains these adapters, at lora_rank (theirs or higher) and lora_alpha, with the
    initial ones as reference; merge adds them to the base, on which new adapters or all weights are trained."""
    dtype: Annotated[str, one_of("float32", "bfloat16", "float16")] = "float32"
    """Precision of the network's computation: float32, bfloat16 or float16. Log-probabilities are always fp32."""
    quantize: Annotated[
        str,
        one_of("none", "8bit", "4bit"),
        excludes(where("model.lora_rank", 0), why="quantized weights cannot be trained"),
    ] = "none"
    """Storage of the frozen base under LoRA: none (that of dtype), or by bitsandbytes, where it is installed, 8bit or
    4bit (NF4) in the linear layers of its blocks. The quantized network is the policy, and samples and scores alike."""
    device: Annotated[str, DEVICE] = "auto"
    """auto (accelerate's choice), cpu, cuda, one GPU of several (cuda:1), mps, xpu or npu."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory for about a third more time."""
    offload_activations: Annotated[bool, needs("model.gradient_checkpointing")] = False
    """Keep what the blocks recompute from, their inputs, in the memory of the host until the backward pass."""
    allow_pickle: bool = False
    """Read weights from pickles (pytorch_model.bin) where a checkpoint has no safetensors. torch then unpickles tensors
    only (weights_only=True), but a pickle is a program, and a gap in that restriction would run it: convert instead."""
    head_dtype: ClassVar[str] = ""
    """Fixed where a family has no such option: the output layer is of dtype."""


def check_trainable(options: ModelOptions) -> None:
    """ValueError for quantized weights where bitsandbytes is missing."""
    if options.quantize != "none":
        refuse_missing("bitsandbytes", f"model.quantize: '{options.quantize}'", "set model.quantize=none")


@dataclass
class TokenSampling:
    """Sampling of completions in rollouts and in evaluation. What only some families let a recipe choose is fixed for
    the others."""

    max_tokens: Annotated[int, within("[1, 1e6]")] = 64
    """Maximum length of a completion."""
    temperature: Annotated[float, within("[0.001, 1000]")] = 1.0
    """Temperature of rollouts; log-probabilities are those of the tempered distribution."""
    search: Annotated[str, one_of("sample", "beam")] = "sample"
    """How a group is generated: sample, or beam search for the most likely completions (for the preset mwer_n_best)."""
    evaluation_temperature: Annotated[float, within("0", "[0.001, 1000]")] = 0.0
    """Temperature of evaluation samples; 0 is greedy."""
    truncated: Annotated[str, one_of("train", "mask")] = "train"
    """Completions that do not end within max_tokens: train on them, or mask them (they are still scored; the overlong
    filtering of DAPO)."""
    share_prefix: bool = True
    """Compute a prompt once for all its samples; False is slower and gives the same numbers."""
    logits_chunk_size: Annotated[int, COUNT] = 4096
    """Memory limit: tokens whose logits are in memory at a time."""
    draw_batch_size: Annotated[int, COUNT_OR_ZERO, *SAMPLING["sampling.draw_batch_size"]] = 0
    """Memory limit: completions sampled concurrently, for groups that do not fit in memory; 0 means all. Samples are
    the same up to rounding (micro-sampled groups, Infinite Sampling)."""
    features_kept: Annotated[int, COUNT_OR_ZERO, needs("model.freeze_vision") | needs("model.freeze_encoder")] = 0
    """Prompts whose media features are cached between rollouts, with a frozen encoder only; costs memory."""
    top_p: ClassVar[float] = 1.0
    contrast: ClassVar[str] = ""
    variants: ClassVar[str] = ""
    states: ClassVar[str] = ""
    tree: ClassVar[str] = ""
    temperature_by_entropy: ClassVar[float] = 0.0
    total_tokens: ClassVar[int] = 0
    tools: ClassVar[Sequence[str]] = ()
    program: ClassVar[str] = ""
    dtype: ClassVar[str] = ""


@dataclass
class DenoisingSampling:
    """Sampling in rollouts and in evaluation."""

    steps: Annotated[int, within("[1, 10000]")] = 10
    """Denoising steps of a rollout."""
    kernel: Annotated[str, ANY_TEXT, TRANSITIONS] = "flow_sde(a=0.7)"
    """Stochastic transition: flow_sde(a=...), dance(eta=...), cps(a=...), flow_ddim(eta=...); of a diffusion model
    ddim(eta=...), consistency."""
    policy: Annotated[str, one_of("transitions", "matching", "neighbors", "gradients")] = "transitions"
    """The kind of decisions: transitions (Gaussian steps of the reverse SDE; options kernel and plan), matching (errors
    at sampled noise levels, with ODE rollouts; options draws and error), neighbors (which sample of the group an ODE
    step is nearest to; options draws, anchors, spread and temperature) or gradients (of differentiable rewards, through
    the last steps; option gradient)."""
    plan: Annotated[str, ANY_TEXT, TRANSITIONS, *SAMPLING["sampling.plan"]] = "every_step"
    """Which steps are stochastic, trained and branched: every_step, random_subset, random_window, sliding_window,
    one_step_branch, branch_tree, branch_mix, tree_window."""
    plan_per: Annotated[str, one_of("round", "prompt"), TRANSITIONS] = "round"
    """Whether a plan is drawn once a round, for all prompts, or for each prompt; the samples of one always share it."""
    draws: Annotated[int, within("[1, 10000]"), needs("sampling.policy", "matching", "neighbors")] = 2
    """matching: noise levels sampled per group; neighbors: steps that are trained."""
    draws_per: Annotated[str, one_of("prompt", "sample"), MATCHING] = "prompt"
    """matching: whether the samples of a prompt share levels and noise, as in DGPO, or each has its own, as in
    DiffusionNFT and AWM."""
    times: Annotated[str, one_of("uniform", "logit_normal"), MATCHING, needs("sampling.boundaries", False)] = "uniform"
    """matching: how noise levels are drawn: different ones, all equally likely, or independently with logit-normal
    levels, as flows are pretrained (Stable Diffusion 3)."""
    anchors: Annotated[int, COUNT, NEIGHBORS, *SAMPLING["sampling.anchors"]] = 4
    """neighbors: samples of a group that take a trained step again."""
    spread: Annotated[float, within("(0, 1]"), NEIGHBORS] = 0.3
    """neighbors: how different the initial noises of a group are; 1 means independent."""
    temperature: Annotated[float, within("(0, 1e9]"), NEIGHBORS] = 1.0
    """neighbors: divisor of the squared distances, which are sums over the latent; about its size for images."""
    gradient: Annotated[str, ANY_TEXT, GRADIENTS, *SAMPLING["sampling.gradient"]] = "draft(last=1)"
    """gradients: which steps carry the gradient of a reward: draft(last=K), refl(first=.., last=..),
    srpo(wanted=.., unwanted=..), ascent(step=..) or adjoint(scale=..)."""
    noisy_fraction: Annotated[float, POSITIVE_FRACTION, MATCHING, needs("sampling.boundaries", False)] = 1.0
    """matching: fraction of the noise levels, from the noisiest, that are sampled (DGPO: .7 or .5 of 10 steps)."""
    solver: Annotated[str, one_of("euler", "dpmpp_2m"), MATCHING, *SAMPLING["sampling.solver"]] = "euler"
    """matching: ODE solver of rollouts: euler, or the second-order dpmpp_2m."""
    error: Annotated[str, ANY_TEXT, MATCHING] = "self_normalized"
    """matching: velocity, weighted(power=...) or self_normalized."""
    explore_steps: Annotated[int, within("[0, 10000]"), MATCHING] = 0
    """matching: number of steps for a first, cheap sampling and scoring of groups, of which only the best and worst
    samples are generated in all steps and trained on; 0 generates all in full."""
    explore_keep: Annotated[
        int, within("[2, 4096]"), needs("sampling.explore_steps"), *SAMPLING["sampling.explore_keep"]
    ] = 24
    """matching with explore_steps: samples per prompt that are generated in full, half of them the best."""
    draw_dtype: Annotated[str, one_of("", "bfloat16", "float16"), MATCHING] = ""
    """matching, whose loss has no likelihood of what was drawn: precision in which rollouts are sampled, with
    explore_steps the first, cheap samples alone. Scores keep that of the model; empty: the same."""
    boundaries: Annotated[bool, MATCHING, *SAMPLING["sampling.boundaries"]] = False
    """matching: re-noise the states at the ends of the steps of a few-step sampler, in place of clean samples (TDM)."""
    least_level: Annotated[float, within("[0, 1)"), needs("sampling.boundaries")] = 0.0
    """matching with boundaries: the lowest noise level of a draw."""
    grid: Annotated[str, ANY_TEXT, *SAMPLING["sampling.grid"]] = "checkpoint"
    """Noise levels: checkpoint (the scheduler's own, as in diffusers' pipeline) or shifted_linspace(shift=...)."""
    evaluation_steps: Annotated[int, within("[1, 10000]")] = 10
    """Denoising steps of an evaluation sample (deterministic)."""
    completion_steps: Annotated[int, within("[0, 10000]"), TRANSITIONS, *SAMPLING["sampling.completion_steps"]] = 0
    """Maximum number of deterministic steps to complete the states around each decision, for rewards of single steps
    (credits that read step_rewards). As many as there are steps follow the complete ODE; 0 completes none."""
    reward_drift: Annotated[str, ANY_TEXT, TRANSITIONS, *SAMPLING["sampling.reward_drift"]] = ""
    """A reward whose gradient moves what is drawn: gradient(reward='NAME', beta=.., first=..); empty: none."""
    forward_batch_size: Annotated[int, COUNT] = 256
    """Memory limit: network evaluations of one forward pass without gradient."""


@dataclass
class DiffusionSampling(DenoisingSampling):
    """Sampling in rollouts and in evaluation, by DDIM whatever scheduler the checkpoint has."""

    steps: int = 50
    kernel: str = "ddim(eta=1.0)"
    """Stochastic transition; eta scales its noise, and 1 is that of DDPM."""
    evaluation_steps: int = 50
