"""What the scripts of policies that speak share: the configuration of a run, and how its parts are put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import run
from run import Loaded, needs_reference, read_prompts, refuse_lonely, rounds_of

from mmgrpo.runtime.config import Algorithm, Eval, Optim, Run

if TYPE_CHECKING:
    from accelerate import Accelerator

    from mmgrpo.evaluation import ErrorRate, Shown
    from mmgrpo.policies.categorical import CategoricalPolicy
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Output, Prompt

FAMILIES = ("duration",)
"""Rows of pipelines.PIPELINES that say how something is spoken, and are trained by scripts/train_duration.py."""


@dataclass
class Model:
    """Which network says how long, and what speaks."""

    family: str = "duration"
    """A row of pipelines.PIPELINES: duration."""
    path: str = ""
    """Folder of a duration network. Empty: a new one of the sizes below, pre-trained on the lengths of texts."""
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
    """Pre-training of a new network: characters a second. People read about 15 aloud."""
    spread: float = 0.25
    """Pre-training of a new network: standard deviation of the logarithm of the pace."""
    pretrain_steps: int = 300
    """Pre-training of a new network: optimizer steps."""
    device: str = "auto"
    """auto (accelerate's choice), cpu or cuda."""


@dataclass
class Data:
    """Which texts."""

    train: str = "assets/speech/say_train.txt"
    """Texts to speak in training: a text a line, or JSONL with text."""
    extra_train: list[str] = field(default_factory=list)
    """Further files of training texts, mixed with those of train: some of what should not be forgotten."""
    heldout: str = "assets/speech/say_heldout.txt"
    """Texts of evaluation; one of the training file among them is an error. Empty: no evaluation."""
    prompts_per_step: int = 4
    """Texts (groups) a round, over all processes."""
    group_size: int = 16
    """Durations tried for a text."""


@dataclass
class Sampling:
    """How durations are drawn. Evaluation takes the most likely one."""

    temperature: float = 1.0
    """Temperature of rollouts; likelihoods are those of the distribution that was sampled from."""
    eval_batch_size: int = 32
    """Texts of one forward pass in evaluation."""


@dataclass
class VoiceConfig(Run):
    """A run that trains a policy that speaks."""

    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    sampling: Sampling = field(default_factory=Sampling)
    algorithm: Algorithm = field(default_factory=Algorithm)
    rewards: list[str] = field(default_factory=lambda: ["spoken_log_prob", "words_a_second(weight=0)"])
    """name(weight=...) each; weight=0 is scored and logged but not trained on; package.module:function
    names a function of your own."""
    optim: Optim = field(default_factory=Optim)
    eval: Eval = field(default_factory=Eval)


def arithmetic(config: VoiceConfig) -> str:
    """What the run will do, as numbers: texts x durations -> optimizer steps."""
    data, model = config.data, config.model
    refuse_lonely(data.group_size)
    per_round, rounds = rounds_of(config, data.prompts_per_step)
    rows = data.prompts_per_step * data.group_size
    second = 24_000 / 256
    sizes = f"{model.classes} durations of up to {(model.classes - 1) * model.frames_a_class / second:.1f} s"
    return "\n".join(
        [
            f"a round:  {data.prompts_per_step} texts x {data.group_size} durations = {rows:,} choices, each of "
            f"{f'those of {model.path}' if model.path else sizes}",
            f"          cut into {config.optim.updates} update(s) x {config.optim.epochs} epoch(s) = "
            f"{per_round} optimizer step(s)",
            f"the run:  {config.steps:,} optimizer steps = {rounds:,} rounds = {rounds * rows:,} choices; a text is "
            "spoken and judged once in every duration that is tried, however often",
        ]
    )


def build_policy(config: VoiceConfig, device: str, texts: Sequence[str], trained: str | Path = "") -> CategoricalPolicy:
    """Load or pre-train the network and make it a policy; ``trained`` is a folder of weights that training saved."""
    from mmgrpo.policies.categorical import CategoricalPolicy
    from pipelines.speech.duration import Shape, create, family, load, pretrain
    from pipelines.speech.renderers import renderer

    model, reference = config.model, needs_reference(config)
    if path := trained or model.path:
        loaded = load(path, renderer_name=model.renderer, keep_reference=reference, device=device)
    else:
        shape = Shape(
            classes=model.classes,
            frames_a_class=model.frames_a_class,
            width=model.width,
            layers=model.layers,
            heads=model.heads,
            inner=model.inner,
        )
        voice = renderer(model.renderer)  # before the network, so that one that is missing is told at once
        network = create(shape, config.seed).to(device)
        pretrain(network, texts, pace=model.pace, spread=model.spread, steps=model.pretrain_steps, seed=config.seed)
        loaded = family(network, voice, keep_reference=reference, device=device)
    return CategoricalPolicy(loaded, temperature=config.sampling.temperature, device=device)


def recognizer_of(rewards: Sequence[str]) -> str | None:
    """The recognizer of the first reward that asks one: its path, empty for the default; None where none does."""
    from mmgrpo.registry import parse

    named = [parse(reward) for reward in rewards]
    paths = [str(parameters.get("path", "")) for name, parameters in named if name.startswith("spoken_")]
    return paths[0] if paths else None


def build_trainer(config: VoiceConfig, accelerator: Accelerator, open_run: Callable[[], Path]) -> Trainer:
    """Everything of a run, ready to fit."""
    from mmgrpo.data.prompts import load_prompts
    from pipelines.speech.whisper_weights import whisper_tiny_en

    listener = recognizer_of(config.rewards)

    def load() -> Loaded:
        prompts, heldout, extra = read_prompts(config, load_prompts)
        if listener == "":
            whisper_tiny_en()  # once; it is what rewards take where they name no recognizer
        policy = build_policy(config, str(accelerator.device), [prompt.text for prompt in prompts])
        return Loaded(policy, prompts, heldout, extra)

    return run.build_trainer(
        config,
        accelerator,
        open_run,
        kind="tokens",
        load=load,
        eval_batch_size=config.sampling.eval_batch_size,
        exhibit=partial(exhibit, listener),
        rates=[] if listener is None else [word_error_rate(listener)],
    )


def word_error_rate(listener: str) -> ErrorRate:
    """All word errors of what a recognizer hears / all words that were to be said."""
    from mmgrpo.evaluation import ErrorRate
    from reward_models.rules.transcripts import normalizer, word_errors
    from reward_models.speech.recognizer import transcripts

    rule = normalizer("english")

    def errors(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        said = transcripts(prompts, outputs, listener)
        return [
            float(word_errors(rule(prompt.text).split(), rule(one).split()))
            for prompt, one in zip(prompts, said, strict=True)
        ]

    def units(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        return [float(len(rule(prompt.text).split())) for prompt in prompts]

    return ErrorRate("wer", errors, units)


def exhibit(listener: str | None, stem: Path, shown: Shown) -> None:
    """Held-out texts as they are spoken, with what was understood where a recognizer listens."""
    from sounds_shown import small

    from mmgrpo.report.completions import write_sounds
    from mmgrpo.types import Audio
    from reward_models.rules.transcripts import aligned
    from reward_models.speech.recognizer import transcripts

    sounds = [small(output) for output in shown.outputs if isinstance(output, Audio)]
    if listener is None:
        write_sounds(stem, shown, sounds)
        return
    said = transcripts(shown.prompts, shown.outputs, listener)
    words = [aligned(prompt.text, one) for prompt, one in zip(shown.prompts, said, strict=True)]
    write_sounds(stem, shown, sounds, aligned=words, heard=said)
