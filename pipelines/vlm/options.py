"""The options of (vision-)language models. This file imports no torch, so ``--help`` is fast."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from mmgrpo.config.conflicts import at_most
from mmgrpo.config.needs import IMAGES, MEDIA, VIDEOS, needs
from mmgrpo.config.ranges import (
    ANY_TEXT,
    COUNT,
    COUNT_OR_ZERO,
    FRACTION,
    LONG_TEXT,
    POSITIVE_FRACTION,
    Text,
    one_of,
    within,
)
from mmgrpo.config.sampling import SAMPLING
from mmgrpo.config.settings import Data, Eval
from pipelines.options import ModelOptions, TokenSampling

SEEN = needs(MEDIA) | needs("sampling.tools")
"""Media of prompts, or images that tools return."""


@dataclass
class TextOptions(ModelOptions):
    """The model, and which of its weights are trained."""

    seconds: ClassVar[float] = math.inf
    """The longest recording that it hears."""
    max_prompt_tokens: Annotated[int, COUNT_OR_ZERO] = 0
    """Maximum length of a prompt, media included; 0: no limit. Prompts are never truncated: see data.too_long."""
    template: Annotated[dict[str, bool | int | float | str], LONG_TEXT] = field(default_factory=dict)
    """Arguments of the chat template, e.g. {enable_thinking: false} of Qwen3, or {date_string: 1 May 2026} of Llama 3.
    One that the template does not read is an error."""
    head_dtype: Annotated[str, one_of("", "float32"), needs("model.dtype", but="float32") | needs("sampling.dtype")] = (
        ""
    )
    """Precision of the output layer; empty is that of dtype. float32 with a dtype or a sampling.dtype of 16 bits
    keeps log-probs of sampling and training together (ScaleRL); its weights are then stored in fp32."""


@dataclass
class SmolVlmOptions(TextOptions):
    """The model, which of its weights are trained, and the resolution of media."""

    freeze_vision: Annotated[bool, SEEN] = True
    """Train the language model only; features of media are then computed once per prompt."""
    max_pixels: Annotated[int, COUNT_OR_ZERO, SEEN] = 0
    """Larger images are scaled down to this number of pixels; 0: the checkpoint's limit."""
    max_frames: Annotated[int, within("[0, 1e6]"), needs(VIDEOS)] = 0
    """Maximum number of frames of a video; 0: the family's default."""
    fps: Annotated[float, within("0", "[0.001, 1000]"), needs(VIDEOS)] = 0.0
    """Sampled frames per second of a video; 0: the family's default."""


@dataclass
class QwenVlOptions(SmolVlmOptions):
    """The model, which of its weights are trained, and the resolution of media."""

    family: str = "qwen_vl"
    path: str = "embedded:vlm/questions/base"
    """Folder or hub id, e.g. Qwen/Qwen2.5-VL-3B-Instruct."""
    min_pixels: Annotated[
        int, COUNT_OR_ZERO, SEEN, at_most("model.max_pixels", why="to which larger images are scaled down")
    ] = 0
    """Smaller images are scaled up to this number of pixels; 0: the checkpoint's limit."""
    frame_pixels: Annotated[int, COUNT_OR_ZERO, needs(VIDEOS)] = 0
    """Maximum number of pixels per frame of a video; 0: the family's default."""


@dataclass
class OmniOptions(QwenVlOptions):
    """The model, which of its weights are trained, and the limits of media."""

    family: str = "qwen_omni"
    path: str = ""
    """Folder or hub id, e.g. Qwen/Qwen2.5-Omni-3B."""
    seconds: Annotated[float, within("[0.02, 1800]"), needs(MEDIA)] = 30.0
    """Maximum duration of a recording; on loading it is tried whether the model hears the end of one."""


@dataclass
class VlmData(Data):
    """The data sets of prompts."""

    train: str = "data/questions/train.jsonl"
    """Training prompts: JSONL (text or messages with image and video parts, answer, task, meta), or a data set
    hf:<folder or hub id>@<split>."""
    heldout: str = "data/questions/heldout.jsonl"
    """Evaluation prompts; a prompt of the training file among them is an error. Empty: no evaluation."""
    system: Annotated[str, LONG_TEXT] = ""
    """System prompt of every row that has none (key system, or a system turn); empty: the chat template's own."""
    template: Annotated[str, Text(r"([^\0]*\{text\}[^\0]*)?", "text with {text} in it", longest=1 << 20)] = ""
    """Text around the question of every row, with {text} in its place, e.g. one that asks for the form that a reward
    reads: "{text} Answer in <answer> </answer>." Empty: the question as it is."""
    comparison: Annotated[str, ANY_TEXT] = ""
    """Ask of every row of two answers (docs/data.md#training-a-judge) which is better, in a seeded order: verdict() or
    rubric_verdict(); sampling.variants: both_orders() samples both orders. Empty: the question alone."""
    group_size: int = 8
    """Samples per prompt."""
    media_root: Annotated[str, ANY_TEXT, needs(MEDIA)] = ""
    """Root of relative paths of media; empty: the folder of the prompt file."""
    stream: bool = False
    """Keep prompts in their files and read them when a round draws them, for sets that do not fit in memory. Order,
    checks and results are the same."""
    reference_in_group: bool = False
    """Add the row's answer to the group as an off-policy sample (for the preset mp_grpo)."""
    skip_limit: Annotated[float, FRACTION] = 0.05
    """The largest fraction of prompts that may be skipped because their media cannot be read; each is listed in
    skipped.jsonl. 0 stops at the first."""
    image_cache: Annotated[int, within("[0, 1e8]"), needs(IMAGES)] = 1024
    """Memory limit: MiB of decoded images that each process caches between rounds; 0 decodes an image at each
    use."""
    video_reader: Annotated[str, one_of("av", "decord", "torchcodec"), needs(VIDEOS)] = "av"
    """Decoder of video files: av, or decord or torchcodec, which are extras. All select the same frames, and check the
    same limits first."""
    too_long: Annotated[str, one_of("refuse", "filter"), needs("model.max_prompt_tokens")] = "refuse"
    """Prompts over model.max_prompt_tokens: refuse (stop at the first) or filter (check all of them at the start, skip
    and list)."""


@dataclass
class VlmSampling(TokenSampling):
    """Sampling of completions in rollouts and in evaluation."""

    top_p: Annotated[float, POSITIVE_FRACTION, needs("sampling.search", "sample")] = 1.0
    """Top-p (nucleus) sampling in rollouts; below 1 the gradient is biased, since log-probabilities are of the full
    distribution."""
    contrast: Annotated[str, ANY_TEXT, *SAMPLING["sampling.contrast"]] = ""
    """Additional samples of a modified prompt, scored but not trained on: shuffled_frames(fraction=0.5) for T-GRPO;
    paraphrase, or view(change=...), whose votes label the others."""
    variants: Annotated[str, ANY_TEXT, *SAMPLING["sampling.variants"]] = ""
    """Variants of each prompt over which its group is divided, all trained on: budgets(tokens=[512, 1024]) (HBPO),
    instructions(texts=["...", "..."]) (GCPO); empty: the prompt as it is."""
    total_tokens: Annotated[int, COUNT_OR_ZERO, *SAMPLING["sampling.total_tokens"]] = 0
    """Completions that are cut off at max_tokens go on in the next round, up to so many tokens in all, with the credit
    window_gae (T-PPO); 0: they do not."""
    temperature_by_entropy: Annotated[float, within("[0, 1)"), *SAMPLING["sampling.temperature_by_entropy"]] = 0.0
    """How much hotter than temperature the most uncertain tokens are drawn, and colder the surest: 0.05 is 5 % (HAPO).
    They are scored at temperature; algorithm.mismatch may correct the difference."""
    states: Annotated[str, ANY_TEXT, *SAMPLING["sampling.states"]] = ""
    """How the state after each step of a completion is scored, for credits that read step_rewards: judged(by=...)
    scores the text so far, completed(count=9) completions sampled from there (VinePPO); empty: not at all."""
    tree: Annotated[str, ANY_TEXT, *SAMPLING["sampling.tree"]] = ""
    """Tree sampling, in which the samples of a prompt share prefixes: text_tree(children=2, depth=3, tokens=64)
    (TreeRPO), with one sample per leaf, or with tools turn_tree(trees=2, expand=2, rounds=1, keep=3) (Tree-GRPO);
    empty: independent samples."""
    tools: Annotated[list[str], ANY_TEXT, *SAMPLING["sampling.tools"]] = field(default_factory=list)
    """Tools that completions may call, functions or classes of your own: my_tools:search. Calls and results are parts
    of one completion, of which only the model's own tokens are trained on; empty: none."""
    program: Annotated[str, ANY_TEXT, *SAMPLING["sampling.program"]] = ""
    """Generator function of your own, my_program:answer, that makes each sample of several calls of the model, trained
    together: modules of a pipeline, or agents; max_tokens is that of a call. Empty: none."""
    trained_modules: Annotated[list[str], ANY_TEXT, needs("sampling.program")] = field(default_factory=list)
    """With a program: modules whose calls are trained; the others are drawn without the adapters (model.lora_rank).
    Empty: all."""
    turns: Annotated[int, within("[1, 1e4]"), needs("sampling.tools") | needs("sampling.program")] = 4
    """With tools: maximum number of turns of the model in a completion; calls in the last one are not answered. With a
    program: that of calls."""
    calls_per_turn: Annotated[int, COUNT_OR_ZERO, needs("sampling.tools")] = 0
    """With tools: maximum number of calls of a turn that are answered; the others are answered by one error; 0: all are
    answered."""
    observation_tokens: Annotated[int, COUNT, needs("sampling.tools")] = 512
    """With tools: length to which the result of a call is cut. It counts in max_tokens."""
    tool_seconds: Annotated[float, within("[0.001, 86400]"), needs("sampling.tools")] = 30.0
    """With tools: time after which a call that has not answered counts as failed, and its process is ended; also that
    in which a class must begin."""
    tool_memory: Annotated[float, within("[0, 1e6]"), needs("sampling.tools")] = 8.0
    """With tools: GB that the process of an instance of a class, or of a function, may allocate beyond what was loaded
    at import; more is a MemoryError to the model, and 0 is no limit."""
    unreadable_calls: Annotated[int, COUNT_OR_ZERO, needs("sampling.tools")] = 0
    """With tools: number of calls in a row that cannot be read after which a completion ends; 0: each is answered by an
    error, and the completion goes on."""
    tool_workers: Annotated[int, COUNT, needs("sampling.tools")] = 1
    """With tools: completions whose calls are answered at a time, by threads. Raise it for tools that wait for others,
    a search over the network for instance; 1: one after the other, always in the same order."""
    context_tokens: Annotated[int, COUNT_OR_ZERO, needs("sampling.tools")] = 0
    """With tools: length behind the prompt beyond which the model is asked to sum up its work, and goes on with the
    prompt and the summary alone (SUPO); max_tokens counts all contexts. 0: never."""
    summaries: Annotated[int, COUNT, needs("sampling.context_tokens")] = 7
    """Maximum number of summaries of a completion; where the context after the last is full, it is cut off."""
    summary_instruction: Annotated[str, LONG_TEXT, needs("sampling.context_tokens")] = (
        "The context is full. Do not call a tool now: sum up what you have found and done, and what is left to do. You "
        "will read this summary and the question alone."
    )
    """What the model reads behind the last result where it is to write a summary."""
    dtype: Annotated[str, one_of("", "bfloat16", "float16")] = ""
    """Precision of sampling, bfloat16 or float16, with log-probabilities recomputed in model.dtype; empty:
    model.dtype."""


@dataclass
class VlmEval(Eval):
    """Evaluation on prompts that are never trained on."""

    blind: Annotated[bool, needs(MEDIA)] = True
    """After training, also evaluate with blank images and videos; rewards that remain do not depend on the media."""
