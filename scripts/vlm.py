"""What the vision-language scripts share: the configuration of a run, and how its parts are put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import run
from answers_shown import exhibit
from completing import Completing, check_words, completing_policy
from readable import read_file, readable, short_enough, then_list
from run import Loaded, locate, read_prompts, refuse_lonely, rounds_of, training_of

from mmgrpo.runtime.config import Algorithm, Eval, Optim, Run

if TYPE_CHECKING:
    from accelerate import Accelerator

    from mmgrpo.data.media import Skipped
    from mmgrpo.policies.token import TokenPolicy
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Prompt

FAMILIES = ("qwen_vl", "smolvlm", "causal_lm")
"""Rows of pipelines.PIPELINES that answer in words, and are trained by scripts/train_vlm.py."""


@dataclass
class Model:
    """Which model is trained, what of it, and at which size it sees."""

    family: str = "qwen_vl"
    """Model family, a row of pipelines.PIPELINES: qwen_vl, smolvlm or causal_lm (text only)."""
    path: str = "assets/questions/base"
    """Folder or hub id, e.g. Qwen/Qwen2.5-VL-3B-Instruct."""
    lora_rank: int = 0
    """Rank of the LoRA adapters; 0 trains all weights."""
    lora_alpha: float = 64.0
    """LoRA alpha; the update is scaled by alpha / rank."""
    lora_targets: list[str] = field(default_factory=list)
    """Ends of the names of adapted modules; empty takes the family's attention projections."""
    freeze_vision: bool = True
    """Train the language model only; the features of media are then computed once per prompt."""
    dtype: str = "float32"
    """What the network computes in: float32, bfloat16 or float16. Likelihoods are fp32 always."""
    device: str = "auto"
    """auto (accelerate's choice), cpu or cuda."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    min_pixels: int = 0
    """Smaller pictures are enlarged to so many pixels; 0 takes the checkpoint's own."""
    max_pixels: int = 0
    """Larger pictures are reduced to so many pixels; 0 takes the checkpoint's own."""
    frame_pixels: int = 0
    """The most pixels of a video's frame; 0 takes the family's own."""
    max_frames: int = 0
    """The most frames of a video; 0 takes the family's own."""
    fps: float = 0.0
    """Frames per second at which a video is looked at; 0 takes the family's own."""
    max_prompt_tokens: int = 0
    """The longest prompt, media included; 0 sets no limit. Prompts are never cut: see data.too_long."""


@dataclass
class Data:
    """Which prompts."""

    train: str = "data/questions/train.jsonl"
    """Training prompts: JSONL (text or messages with image and video parts, answer, task, meta), or a data set
    hf:<folder or hub id>@<split>."""
    extra_train: list[str] = field(default_factory=list)
    """Further files of training prompts, mixed with those of train: some of what should not be forgotten."""
    heldout: str = "data/questions/heldout.jsonl"
    """Evaluation prompts; a prompt of the training file among them is an error. Empty: no evaluation."""
    media_root: str = ""
    """Folder that relative paths of media start from; empty takes the prompt file's own folder."""
    prompts_per_step: int = 8
    """Prompts (groups) a round, over all processes."""
    group_size: int = 8
    """Samples a prompt."""
    reference_in_group: bool = False
    """Make the row's own answer one of the group, off policy (preset mp_grpo compares it with the others)."""
    skip_limit: float = 0.05
    """The largest share of prompts that may be left out because their media cannot be read; each is listed in
    skipped.jsonl. 0 stops at the first."""
    too_long: str = "refuse"
    """What happens to prompts over model.max_prompt_tokens: refuse (stop when one is met) or filter (look at all of
    them first, leave out and list)."""


@dataclass
class Sampling(Completing):
    """How completions are drawn in rollouts and in evaluation."""

    top_p: float = 1.0
    """Nucleus of rollouts; below 1 the gradient is biased, for likelihoods are of the whole distribution."""
    contrast: str = ""
    """Further samples of a changed prompt, judged and compared with but never trained on:
    shuffled_frames(fraction=0.5) for T-GRPO."""
    dtype: str = ""
    """Sample in bfloat16 or float16 though likelihoods are computed in model.dtype; empty samples in that too."""
    features_kept: int = 0
    """Prompts whose features of media are kept over the rounds, with a frozen vision tower only; costs memory."""


@dataclass
class VlmEval(Eval):
    """Evaluation on prompts that are never trained on."""

    blind: bool = True
    """After training, also evaluate with every picture and clip blank: what is left was not seen but guessed."""


@dataclass
class VlmConfig(Run):
    """A run that trains a model that looks and answers in words."""

    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    sampling: Sampling = field(default_factory=Sampling)
    algorithm: Algorithm = field(default_factory=Algorithm)
    rewards: list[str] = field(default_factory=lambda: ["task", "format(weight=0.5)"])
    """name(weight=...) each; weight=0 is scored and logged but not trained on; package.module:function
    names a function of your own."""
    optim: Optim = field(default_factory=Optim)
    eval: VlmEval = field(default_factory=VlmEval)


def arithmetic(config: VlmConfig) -> str:
    """What the run will do, as numbers: prompts x samples x tokens -> optimizer steps."""
    check(config)
    data, optim, tokens = config.data, config.optim, config.sampling.max_tokens
    refuse_lonely(data.group_size)
    per_round, rounds = rounds_of(config, data.prompts_per_step)
    sequences = data.prompts_per_step * data.group_size
    lines = [
        f"a round:  {data.prompts_per_step} prompts x {data.group_size} samples = {sequences:,} sequences of at most "
        f"{tokens:,} tokens, {sequences * tokens:,} in all"
    ]
    if config.sampling.contrast:
        lines.append(f"          and those of changed prompts ({config.sampling.contrast}), judged but not trained on")
    scored = sequences * optim.epochs
    lines += [
        f"          {sequences * tokens:,} tokens sampled, {scored:,} sequences forward and backward",
        f"          cut into {optim.updates} update(s) x {optim.epochs} epoch(s) = {per_round} optimizer step(s)",
        f"the run:  {config.steps:,} optimizer steps = {rounds:,} rounds = {rounds * sequences:,} sequences, at most "
        f"{rounds * sequences * tokens:,} tokens sampled, {rounds * scored:,} sequences forward and backward",
    ]
    return "\n".join(lines)


def check(config: VlmConfig) -> None:
    """Words that must be among a few."""
    from mmgrpo.registry import nearest

    check_words(config, FAMILIES)
    if config.data.too_long not in (known := ("refuse", "filter")):
        raise ValueError(f"data.too_long: there is no '{config.data.too_long}'.{nearest(config.data.too_long, known)}")


def build_policy(config: VlmConfig, device: str, for_training: bool = True, trained: str | Path = "") -> TokenPolicy:
    """Load the model and make it a policy; ``trained`` is a folder of weights that training saved."""
    from pipelines import family

    model, sampling = config.model, config.sampling
    loaded = family(model.family).load(
        locate(model.path),
        training_of(config, device, for_training, trained),
        freeze_vision=model.freeze_vision,
        min_pixels=model.min_pixels,
        max_pixels=model.max_pixels,
        frame_pixels=model.frame_pixels,
        max_frames=model.max_frames,
        fps=model.fps,
        max_prompt_tokens=model.max_prompt_tokens,
    )
    return completing_policy(
        loaded, config, device, top_p=sampling.top_p, sampling_dtype=sampling.dtype, contrast=sampling.contrast
    )


def build_trainer(config: VlmConfig, accelerator: Accelerator, open_run: Callable[[], Path]) -> Trainer:
    """Everything of a run, ready to fit; ``open_run`` makes the run folder, where skipped prompts are listed."""
    skipped: list[Skipped] = []

    def read(path: str) -> list[Prompt]:
        kept, unreadable = readable(read_file(path, config.data.media_root), path, config.data.skip_limit)
        skipped.extend(unreadable)
        return kept

    def load() -> Loaded:
        prompts, heldout, extra = read_prompts(config, read)
        policy = build_policy(config, str(accelerator.device))
        most = config.model.max_prompt_tokens
        if most and config.data.too_long == "filter":
            length = policy.family.prompt_length  # type: ignore[attr-defined]
            sets = {name: short_enough(one, length, most) for name, one in extra.items()}
            (prompts, long), (heldout, longer) = (short_enough(one, length, most) for one in (prompts, heldout))
            extra = {name: kept for name, (kept, _) in sets.items()}
            skipped.extend([*long, *longer, *(one for _, left_out in sets.values() for one in left_out)])
        return Loaded(policy, prompts, heldout, extra)

    return run.build_trainer(
        config,
        accelerator,
        then_list(open_run, skipped, accelerator.is_main_process),
        kind="tokens",
        load=load,
        eval_batch_size=config.sampling.eval_batch_size,
        exhibit=exhibit,
    )


def blind_score(config: VlmConfig, trainer: Trainer) -> dict[str, Any]:
    """The ``blind`` section of summary.json: the held-out rewards after training when all media are blank."""
    from blind import blinded

    prompts = trainer.evaluation.prompts
    if not config.eval.blind or not any(prompt.media for prompt in prompts):
        return {}
    return {"blind": trainer.measure("blind", blinded(prompts)).intervals()}
