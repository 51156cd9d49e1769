"""The families of speech models: recognizers and audio language models, and a policy that speaks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.config.plugins import locate
from mmgrpo.config.settings import Config, Sections
from mmgrpo.family import Arithmetic, Engines, Family, Load
from pipelines.denoising import accept
from pipelines.families import SAMPLER, adapters, previewer, write_page, write_speech
from pipelines.language import Check, language_family, load_model, load_policy, refuse_model
from pipelines.options import check_trainable
from pipelines.speech.options import (
    AudioTextOptions,
    CaptionData,
    CategoricalSampling,
    CodecData,
    CodecOptions,
    CodecSampling,
    CtcOptions,
    CtcSampling,
    DurationData,
    DurationOptions,
    FlowSpeechData,
    FlowSpeechOptions,
    FlowSpeechSampling,
    HearingSampling,
    HiggsAudioOptions,
    SayingData,
    SoundSampling,
    SpeechData,
    SpeechEval,
    StableAudio3Options,
    StableAudio3Sampling,
    StableAudioOptions,
    SteppedSampling,
    WhisperOptions,
    WindowedOptions,
)
from pipelines.speech.spoken import audio_family, captions_of, check_voices, with_texts, without_media

if TYPE_CHECKING:
    from mmgrpo.data.media import Skipped
    from mmgrpo.types import Media, Policy, Prompt
    from pipelines.export import Elsewhere


def check_sounds(config: Config, prompts: Sequence[Prompt], path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The prompts whose clips can be read, and the skipped ones; an error if these are too many."""
    from pipelines.readable import check_skip_limit, filter_readable
    from pipelines.speech.audio import read_audio

    seconds, setting = longest(config.model)

    def inspect(media: Media) -> object:
        return read_audio(media, max_seconds=seconds, setting=setting) if media.kind == "audio" else None

    usable, skipped = filter_readable(prompts, inspect, title=f"clips of {path}")
    check_skip_limit(skipped, len(prompts), config.data.skip_limit, path, "clips cannot be read")
    return usable, skipped


def longest(options: Any) -> tuple[float, str]:
    """Seconds of the longest recording that a family's options allow, and the setting that admits longer ones."""
    from pipelines.speech.audio import LONGEST, MAX_SECONDS, setting_to_raise

    most = LONGEST if isinstance(options, AudioTextOptions) else MAX_SECONDS
    seconds = options.seconds * max(1, options.windows)
    return seconds, setting_to_raise(options.seconds, most=most, windows=bool(options.windows))


ACCENTED, LOANS = re.compile(r"[^\W\d_a-zA-Z]"), 0.1
"""A letter that English has in foreign words only, and the largest share of English sentences that have one: in a
recording of German or French most have."""


def check_transcripts(config: Config, prompts: Sequence[Prompt], path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
    """``check_sounds`` for Whisper: an unknown ``language`` or ``task`` of a row is an error, and rows without a
    language have that of the model, by which rewards compare transcripts."""
    from mmgrpo.data.letters import script_rule
    from pipelines.speech.whisper import check_row, language_code

    try:
        language = language_code(config.model.language)
    except ValueError as error:
        raise ValueError(f"model.language: {error}") from error
    if language != "en":
        prompts = with_language(prompts, language)
    usable, skipped = check_sounds(config, prompts, path)
    strange, accented, english_rows = [], [], 0
    for prompt in usable:
        check_row(prompt)
        refuse_text(prompt)
        english = language_code(str(prompt.meta.get("language") or language)) == "en"
        task = prompt.task or config.model.task
        if english and task == "transcribe" and isinstance(prompt.answer, str):
            english_rows += 1
            strange += [prompt.id] * (script_rule(prompt.answer) != "english")
            accented += [prompt.id] * (ACCENTED.search(prompt.answer) is not None)
    if strange:
        print(
            f"{path}: warning: the answers of {len(strange)} rows are not in Latin letters, and their language is en "
            f"(the first: '{strange[0]}'); set model.language, or the key language of these rows",
            flush=True,
        )
    elif len(accented) > LOANS * english_rows:
        print(
            f"{path}: warning: the answers of {len(accented)} of {english_rows} rows have letters that English lacks, "
            f"and their language is en (the first: '{accented[0]}'); set model.language, or the key language of these "
            "rows",
            flush=True,
        )
    return usable, skipped


def check_clips(config: Config, prompts: Sequence[Prompt], path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
    """``check_sounds`` for CTC recognizers, which are asked nothing."""
    usable, skipped = check_sounds(config, prompts, path)
    for prompt in usable:
        refuse_text(prompt)
    return usable, skipped


def refuse_text(prompt: Prompt) -> None:
    """ValueError, before a model is loaded, for a prompt with a text, which is often its transcript."""
    if text := prompt.text.strip():
        remedy = (
            "leave it empty, or train a model that takes an instruction (qwen_audio)"
            if prompt.answer is not None
            else "where it is the transcript, call it answer in the rows, or --data.columns text=answer"
        )
        raise ValueError(
            f"prompt '{prompt.id}': got the text {text[:80]!r}, expected none, since recognizers take no instruction; "
            f"{remedy}"
        )


def with_language(prompts: Sequence[Prompt], language: str) -> Sequence[Prompt]:
    """The prompts with a language where they have none."""
    from mmgrpo.data.streaming import StoredPrompts

    if isinstance(prompts, StoredPrompts):
        return prompts.with_meta({"language": language})
    return [
        prompt if prompt.meta.get("language") else replace(prompt, meta={**prompt.meta, "language": language})
        for prompt in prompts
    ]


def clips(files: Sequence[str]) -> list[Prompt]:
    """Audio files as prompts, with the file's name as id."""
    from mmgrpo.types import Media, Prompt, Turn

    return [Prompt("", id=Path(file).name, turns=(Turn("user", (Media("audio", file),)),)) for file in files]


def refuse_width(config: Config) -> None:
    """Raise ValueError for a width that the attention heads do not divide."""
    model = config.model
    if not model.path and model.width % (2 * model.heads):
        raise ValueError(
            f"model.width: got {model.width}, expected a multiple of twice model.heads={model.heads}; change either"
        )


def refuse_no_network(config: Config, path: str) -> None:
    """FileNotFoundError for a folder without the files of a duration network: one of its own runs, never from the
    hub."""
    from pipelines.speech.duration import refuse_incomplete

    refuse_incomplete(Path(path))


def tokens(config: Config) -> str:
    """One class, which is a token."""
    return "tokens"


def nothing(config: Config) -> frozenset[str]:
    """Nothing: one choice has no steps, and is drawn by the policy itself."""
    return frozenset()


def count_durations(config: Config) -> Arithmetic:
    """Texts x durations."""
    data, model = config.data, config.model
    samples = data.prompts_per_step * data.group_size
    longest = (model.classes - 1) * model.frames_a_class * 256 / 24_000
    durations = f"those of {model.path}" if model.path else f"{model.classes} durations of up to {longest:.1f} s"
    lines = (
        f"{data.prompts_per_step} texts x {data.group_size} durations = {samples:,} choices, each of {durations}",
        "each pair of a text and a duration is rendered and scored once, however often it is sampled",
    )
    return Arithmetic(lines, groups=data.prompts_per_step, totals={"choices": samples})


def load_durations(
    config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
) -> Policy:
    """Load the network, or pretrain a new one on the lengths of the training texts."""
    from mmgrpo.policies.categorical import CategoricalPolicy
    from pipelines.speech.duration import Shape, create, family, load, pretrain
    from pipelines.speech.renderers import renderer
    from pipelines.training import Training

    options = config.model
    if path := weights or options.path:
        model = load(replace(options, path=locate(path)), Training(device=device))
    else:
        shape = Shape(
            classes=options.classes,
            frames_a_class=options.frames_a_class,
            width=options.width,
            layers=options.layers,
            heads=options.heads,
            inner=options.inner,
        )
        voice = renderer(options.renderer)  # before pretraining, so a missing one is reported at once
        network = create(shape, config.seed).to(device)
        # Not of all ``prompts``: held-out texts would be among them, and other commands could not make it again.
        texts = [prompt.text for prompt in read_texts(config, config.data.train)[0]]
        pretrain(
            network, texts, pace=options.pace, spread=options.spread, steps=options.pretrain_steps, seed=config.seed
        )
        model = family(network, voice, device=device)
    return CategoricalPolicy(model, temperature=config.sampling.temperature, device=device)


def read_texts(config: Config, path: str) -> tuple[list[Prompt], list[Skipped]]:
    """The texts of a file; none is skipped."""
    from mmgrpo.data.columns import columns_for
    from pipelines.hub import load_prompts

    return with_texts(load_prompts(locate(path), columns=columns_for(path, config.data.columns))), []


def whole_network() -> Elsewhere:
    """It has no adapters."""
    from pipelines.export import Elsewhere

    return Elsewhere((), whole=True)


CTC = ("parakeet_ctc", "wav2vec2", "hubert", "wavlm")
"""The tested architectures with a CTC head."""


def hearing_family(
    name: str,
    about: str,
    architectures: tuple[str, ...],
    options: type,
    sampling: type = HearingSampling,
    check: Check = check_sounds,
    load: Load | None = None,
    engines: Engines | None = SAMPLER,
) -> Family:
    """The record of a family that is given recordings and answers in text."""
    sections = Sections(
        model=options,
        sampling=sampling,
        data=SpeechData,
        eval=SpeechEval,
        rewards=("one_minus_wer", "exact_transcript(weight=0)"),
        outputs="Text",
        samples_shown=100,
    )
    more: Any = {"load": load, "from_files": clips, "engines": engines}
    return language_family(name, about, "speech", f"pipelines.speech.{name}", architectures, sections, check, **more)


def load_ctc(
    config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
) -> Policy:
    """Load a recognizer as a policy over whole transcripts."""
    from pipelines.speech.ctc import policy

    return policy(load_model(config, device, training, weights, "ctc", "pipelines.speech.ctc"), config, device)


def beams(config: Config) -> frozenset[str]:
    """The most likely transcripts, where these are searched."""
    return frozenset({"beam"} if config.sampling.search == "beam" else ())


def count_transcripts(config: Config) -> Arithmetic:
    """Clips x transcripts."""
    data = config.data
    samples, trained = data.prompts_per_step * data.group_size, data.prompts_per_step * config.optim.epochs
    lines = (
        f"{data.prompts_per_step} clips x {data.group_size} transcripts = {samples:,} transcripts",
        f"{data.prompts_per_step:,} clips read to sample, {trained:,} forward and backward",
    )
    totals = {"transcripts": samples, "clips read to sample": data.prompts_per_step, "clips to train": trained}
    return Arithmetic(lines, groups=data.prompts_per_step, totals=totals)


def load_rendered(
    config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
) -> Policy:
    """Load a model of speech tokens as a policy whose completions a vocoder renders."""
    from mmgrpo.policies.rendered import RenderedTokenPolicy

    policy: Any = load_policy(
        config,
        device,
        training=training,
        weights=weights,
        name="codec_speech",
        module="pipelines.speech.codec_speech",
    )
    rendered: Any = RenderedTokenPolicy(policy, policy.model.render, policy.model.reading)
    return rendered


def texts_of(config: Config, path: str) -> Sequence[Prompt]:
    """The texts of a file, those of a list of seed-tts-eval included."""
    from pipelines.speech.voices import read_texts

    return read_texts(config, path)


def read_voices(config: Config, path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The texts of a file, and those whose recording of a voice cannot be read."""
    return check_voices(config, texts_of(config, path), path)


def refuse_codec(config: Config, path: str) -> None:
    """FileNotFoundError or ValueError for what is no model of the family, and where the vocoder is a codec and
    ``model.vocoder_path`` names none."""
    refuse_model("codec_speech", "pipelines.speech.codec_speech", CodecOptions, config, path)
    refuse_vocoder(config)


def refuse_vocoder(config: Config) -> None:
    """FileNotFoundError or ValueError where the vocoder is a codec and ``model.vocoder_path`` names none."""
    if config.model.vocoder == "codec":
        from pipelines.speech.vocoders import source_of

        source_of(config.model.vocoder_path)


HIGGS = ("higgs_audio", "pipelines.speech.higgs_audio")
"""Name and module of Higgs Audio."""


def load_stepped(
    config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
) -> Policy:
    """Load Higgs Audio as a policy over codes, of which a step draws one of each codebook."""
    from mmgrpo.policies.parallel_tokens import ParallelTokenPolicy

    name, module = HIGGS
    model, sampling = load_model(config, device, training, weights, name, module), config.sampling
    try:
        drawing, evaluating = (model.variant(n) for n in (sampling.steps, sampling.evaluation_steps or sampling.steps))
    except ValueError as error:
        raise ValueError(f"sampling.{error}") from error
    return ParallelTokenPolicy(
        drawing,
        evaluation=evaluating,
        temperature=sampling.temperature,
        evaluation_temperature=sampling.evaluation_temperature,
        batch_size=sampling.forward_batch_size,
        device=device,
    )


def check_stepped(config: Config) -> None:
    """ValueError for quantized weights without their package."""
    check_trainable(config.model)


def refuse_higgs(config: Config, path: str) -> None:
    """FileNotFoundError or ValueError for what is no model of the family, or no codec."""
    refuse_model(*HIGGS, HiggsAudioOptions, config, path)
    refuse_vocoder(config)


def read_sayings(config: Config, path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
    """The texts of a file; ValueError for recordings."""
    return without_media(config, texts_of(config, path), path)


def count_steps(config: Config) -> Arithmetic:
    """Texts x samples x steps."""
    data, steps = config.data, config.sampling.steps
    samples = data.prompts_per_step * data.group_size
    trained = samples * config.optim.epochs
    lines = (
        f"{data.prompts_per_step} texts x {data.group_size} samples = {samples:,} utterances of at most {steps} steps",
        f"{samples * steps:,} forward passes of one step to sample, {trained:,} forward and backward of all steps",
    )
    totals = {"utterances": samples, "passes to sample": samples * steps, "passes to train": trained}
    return Arithmetic(lines, groups=data.prompts_per_step, totals=totals)


def exports_of_sounds() -> Elsewhere:
    """Adapters as diffusers and peft name them."""
    from pipelines.export import Elsewhere

    return Elsewhere(("diffusers", "peft"))


def exports_of_voices() -> Elsewhere:
    """Adapters as peft names them, and a whole folder."""
    from pipelines.export import Elsewhere

    return Elsewhere(("peft",), whole=True, reset={"folder": ""})


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        replace(
            hearing_family(
                "ctc",
                "CTC recognizers: one clip in, its transcript out",
                CTC,
                CtcOptions,
                CtcSampling,
                check_clips,
                load_ctc,
                None,
            ),
            arithmetic=count_transcripts,
            has=beams,
        ),
        hearing_family(
            "whisper",
            "Whisper: one clip in, its transcript out",
            ("whisper",),
            WhisperOptions,
            check=check_transcripts,
        ),
        hearing_family("qwen_audio", "Qwen2-Audio: clips and text in, text out", ("qwen2_audio",), WindowedOptions),
        hearing_family(
            "audio_text",
            "any other audio-language model of transformers: Voxtral, Granite-Speech, Qwen2.5-Omni, ...",
            (
                *("voxtral", "granite_speech", "granite_speech_plus", "qwen2_5_omni", "qwen2_5_omni_thinker"),
                *("qwen3_omni_moe", "qwen3_omni_moe_thinker", "qwen3_asr", "audioflamingo3", "musicflamingo"),
                *("glmasr", "fun_asr_nano"),
            ),
            AudioTextOptions,
        ),
        Family(
            "duration",
            "a policy that speaks: it chooses durations, which any synthesizer renders (DMOSpeech 2)",
            "speech",
            Sections(
                model=DurationOptions,
                sampling=CategoricalSampling,
                data=DurationData,
                eval=SpeechEval,
                rewards=("spoken_log_prob", "words_a_second(weight=0)"),
                outputs="Audio",
            ),
            load=load_durations,
            decisions=tokens,
            arithmetic=count_durations,
            read=read_texts,
            write_samples=write_speech,
            write_page=partial(write_page, write_speech),
            module="pipelines.speech.duration",
            architectures=("duration",),
            check=refuse_width,
            refuse_model=refuse_no_network,
            has=nothing,
            displayed=previewer,
            elsewhere=whole_network,
        ),
        audio_family(
            "stable_audio",
            "Stable Audio Open: text-to-audio (sound effects and music) of a given duration",
            "pipelines.speech.stable_audio",
            ("StableAudioPipeline",),
            Sections(
                StableAudioOptions,
                SoundSampling,
                CaptionData,
                SpeechEval,
                ("clap",),
                outputs="Audio",
                process="diffusion",
            ),
            "diffusion",
            captions_of,
            without_media,
            exports_of_sounds,
            ("*Block", "*TransformerBlock"),
            waves=True,
        ),
        audio_family(
            "stable_audio3",
            "Stable Audio 3: text-to-audio (sound effects and music) in few steps",
            "pipelines.speech.stable_audio3",
            ("StableAudio3Pipeline",),
            Sections(
                StableAudio3Options,
                StableAudio3Sampling,
                CaptionData,
                SpeechEval,
                ("clap",),
                outputs="Audio",
                process="flow",
            ),
            "flow",
            captions_of,
            without_media,
            exports_of_sounds,
            ("StableAudio3DiTBlock",),
            waves=True,
        ),
        replace(
            language_family(
                "codec_speech",
                "text to speech by a language model over codec tokens, with a vocoder (Llasa, CosyVoice 2)",
                "speech",
                "pipelines.speech.codec_speech",
                ("llama", "qwen2", "qwen3"),
                Sections(
                    CodecOptions,
                    CodecSampling,
                    CodecData,
                    SpeechEval,
                    ("spoken_neg_wer", "words_a_second(weight=0)"),
                    outputs="Audio",
                ),
                check_voices,
                load=load_rendered,
                engines=None,
            ),
            read=read_voices,
            refuse_model=refuse_codec,
            write_samples=write_speech,
            write_page=partial(write_page, write_speech),
        ),
        Family(
            HIGGS[0],
            "Higgs Audio v2: text to speech with several codebooks, one code of each at a step",
            "speech",
            Sections(
                HiggsAudioOptions,
                SteppedSampling,
                SayingData,
                SpeechEval,
                ("spoken_neg_wer", "words_a_second(weight=0)"),
                outputs="Audio",
            ),
            load=load_stepped,
            decisions=tokens,
            arithmetic=count_steps,
            read=read_sayings,
            write_samples=write_speech,
            write_page=partial(write_page, write_speech),
            module=HIGGS[1],
            architectures=("higgs_audio_v2",),
            check=check_stepped,
            refuse_model=refuse_higgs,
            has=nothing,
            readable=without_media,
            accept=accept,
            displayed=previewer,
            blocks=("HiggsAudioV2DecoderLayer",),
            in_step=True,
            elsewhere=adapters,
        ),
        audio_family(
            "flow_speech",
            "F5-TTS: a text and a clip of a voice in, the text in that voice out",
            "pipelines.speech.flow_speech",
            ("f5_tts",),
            Sections(
                FlowSpeechOptions,
                FlowSpeechSampling,
                FlowSpeechData,
                SpeechEval,
                ("spoken_neg_wer", "dnsmos(weight=0)"),
                outputs="Audio",
                process="flow",
            ),
            "flow",
            texts_of,
            check_voices,
            exports_of_voices,
            ("Block",),
        ),
    )
}
"""Name to family."""
