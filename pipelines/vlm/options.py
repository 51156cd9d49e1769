"""The options of models that look. No torch is imported here, so that ``--help`` is quick."""

from __future__ import annotations

from dataclasses import dataclass

from mmgrpo.runtime.config import Data, Eval
from pipelines.options import ModelOptions, TokenSampling


@dataclass
class TextOptions(ModelOptions):
    """Which model is trained, and what of it."""

    max_prompt_tokens: int = 0
    """The longest prompt, media included; 0 sets no limit. Prompts are never cut: see data.too_long."""


@dataclass
class SmolVlmOptions(TextOptions):
    """Which model is trained, what of it, and at which size it sees."""

    freeze_vision: bool = True
    """Train the language model only; the features of media are then computed once per prompt."""
    max_pixels: int = 0
    """Larger pictures are reduced to so many pixels; 0 takes the checkpoint's own."""
    max_frames: int = 0
    """The most frames of a video; 0 takes the family's own."""
    fps: float = 0.0
    """Frames per second at which a video is looked at; 0 takes the family's own."""


@dataclass
class QwenVlOptions(SmolVlmOptions):
    """Which model is trained, what of it, and at which size it sees."""

    family: str = "qwen_vl"
    """Model family; 'mmgrpo families' lists them."""
    path: str = "embedded:vlm/questions/base"
    """Folder or hub id, e.g. Qwen/Qwen2.5-VL-3B-Instruct."""
    min_pixels: int = 0
    """Smaller pictures are enlarged to so many pixels; 0 takes the checkpoint's own."""
    frame_pixels: int = 0
    """The most pixels of a video's frame; 0 takes the family's own."""


@dataclass
class VlmData(Data):
    """Which prompts."""

    train: str = "data/questions/train.jsonl"
    """Training prompts: JSONL (text or messages with image and video parts, answer, task, meta), or a data set
    hf:<folder or hub id>@<split>."""
    heldout: str = "data/questions/heldout.jsonl"
    """Evaluation prompts; a prompt of the training file among them is an error. Empty: no evaluation."""
    group_size: int = 8
    """Samples per prompt."""
    media_root: str = ""
    """Folder that relative paths of media start from; empty takes the prompt file's own folder."""
    reference_in_group: bool = False
    """Make the row's own answer one of the group, off policy (preset mp_grpo compares it with the others)."""
    skip_limit: float = 0.05
    """The largest fraction of prompts that may be left out because their media cannot be read; each is listed in
    skipped.jsonl. 0 stops at the first."""
    picture_cache: int = 1024
    """Memory limit: MiB of decoded pictures that each process keeps between rounds; 0 decodes a picture anew whenever
    it is shown."""
    too_long: str = "refuse"
    """What happens to prompts over model.max_prompt_tokens: refuse (stop when one is met) or filter (look at all of
    them first, leave out and list)."""


@dataclass
class VlmSampling(TokenSampling):
    """How completions are drawn in rollouts and in evaluation."""

    top_p: float = 1.0
    """Nucleus of rollouts; below 1 the gradient is biased, for likelihoods are of the whole distribution."""
    contrast: str = ""
    """Further samples of a changed prompt, scored and compared with but never trained on:
    shuffled_frames(fraction=0.5) for T-GRPO."""
    dtype: str = ""
    """Sample in bfloat16 or float16 though likelihoods are computed in model.dtype; empty samples in that too."""


@dataclass
class VlmEval(Eval):
    """Evaluation on prompts that are never trained on."""

    blind: bool = True
    """After training, also evaluate with every picture and clip blank: what is left was not seen but guessed."""
