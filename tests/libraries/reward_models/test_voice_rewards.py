"""Rewards of sounds, on real voices and on sounds with a known answer."""

from __future__ import annotations

import importlib.util
import math

import numpy as np
import pytest
import soundfile
import torch

from mmgrpo.data.prompts import load_prompts
from mmgrpo.rewards import scorer
from mmgrpo.types import Audio, Media, Prompt, Text, Turn
from pipelines.speech import whisper
from pipelines.speech.whisper_weights import CACHE
from reward_models.speech import audio, recognizer, speaker
from reward_models.speech.dnsmos import dnsmos, mean_opinion_scores
from reward_models.speech.rate import seconds, speaking_rate, syllables, words_a_second
from reward_models.speech.speaker import speaker_similarity
from tests import ROOT

SPEECH = ROOT / "pipelines" / "speech" / "assets"
needs_whisper = pytest.mark.skipif(
    not CACHE.expanduser().is_dir(),
    reason="Whisper tiny.en is not there; fetch it: pipelines.speech.whisper_weights.whisper_tiny_en()",
)
needs_speaker = pytest.mark.skipif(
    not (speaker.CACHE.expanduser() / "speaker_encoder.safetensors").is_file(),
    reason="the speaker encoder is not there; fetch it: reward_models.speech.speaker.encoder_file()",
)
needs_dnsmos = pytest.mark.skipif(
    importlib.util.find_spec("speechmos") is None, reason="speechmos is not installed: pip install 'mmgrpo[voice]'"
)


def sound(file: str) -> Audio:
    samples, rate = soundfile.read(SPEECH / file, dtype="float32", always_2d=True)
    return Audio(torch.from_numpy(samples.T.copy()), rate)


def hum(length: float, rate: int = 8_000, loud: float = 0.5) -> Audio:
    return Audio(torch.sin(torch.arange(int(length * rate)) * 0.3)[None] * loud, rate)


def noisy(clean: Audio, level: float) -> Audio:
    noise = torch.randn(clean.samples.shape, generator=torch.Generator().manual_seed(0))
    return Audio((clean.samples + level * noise).clamp(-1, 1), clean.rate)


PROMPT = Prompt("One two three four five six", "one")
UNSCORABLE = {
    "silent": Audio(torch.zeros(1, 8000), 8_000),
    "empty": Audio(torch.zeros(1, 0), 8_000),
    "NaN": Audio(torch.full((1, 8000), math.nan), 8_000),
    "infinite": Audio(torch.full((1, 8000), math.inf), 8_000),
}


def test_the_rate_is_words_over_seconds_and_its_score_a_log_ratio():
    assert words_a_second([PROMPT], [hum(2.0)]) == [3.0]
    assert seconds([PROMPT], [hum(2.0)]) == [2.0]
    assert speaking_rate([PROMPT] * 3, [hum(2.0), hum(1.0), hum(6.0)], low=2, high=3) == pytest.approx(
        [0, -math.log(2), -math.log(2)]  # 3, 6 and 1 words a second
    )
    assert speaking_rate([PROMPT], [hum(2.0)], low=3, high=3, unit="syllables") == [0.0]  # 6 syllables
    assert speaking_rate([PROMPT], [hum(24.0)], low=0.5, high=1) == pytest.approx([-math.log(2)])  # 0.25 a second
    with pytest.raises(ValueError, match="low=3.*high=2.*0"):
        speaking_rate([PROMPT], [hum(1.0)], low=3, high=2)
    with pytest.raises(ValueError, match="words_a_second.*unit.*letters"):
        words_a_second([PROMPT], [hum(1.0)], unit="letters")


@pytest.mark.parametrize(("text", "count"), [("little table", 4), ("made", 1), ("the", 1), ("banana", 3), ("hmm", 1)])
def test_syllables_are_groups_of_vowels_without_the_silent_e(text, count):
    assert syllables(text) == count


@pytest.mark.parametrize("kind", UNSCORABLE)
@pytest.mark.parametrize(
    "reward",
    [
        "speaking_rate",
        "words_a_second",
        pytest.param("dnsmos", marks=needs_dnsmos),
        pytest.param("spoken_neg_wer", marks=needs_whisper),
        pytest.param("spoken_neg_cer", marks=needs_whisper),
        pytest.param("spoken_log_prob", marks=needs_whisper),
        pytest.param(f"speaker_similarity(reference='{SPEECH}/voice.opus')", marks=needs_speaker),
    ],
)
def test_a_sound_that_cannot_be_scored_is_nan(reward, kind):
    (value,) = scorer(reward).fn([PROMPT], [UNSCORABLE[kind]])
    assert math.isnan(value)


def test_samples_on_another_scale_and_outputs_that_are_no_sound_are_errors():
    loud = Audio(hum(1.0).samples * 3, 8_000)
    with pytest.raises(ValueError, match=r"seconds.*1.5.*\[-1, 1\]"):
        seconds([PROMPT], [loud])
    with pytest.raises(TypeError, match="seconds.*Text.*Audio"):
        seconds([PROMPT], [Text("hello")])
    with pytest.raises(ValueError, match="empty"):
        words_a_second([Prompt(" ", "empty")], [hum(1.0)])


def test_a_sound_is_scored_once_per_text_to_be_spoken():
    texts = []

    def length(samples: np.ndarray, prompt: Prompt) -> float:
        texts.append(prompt.text)
        return float(len(samples))

    def score(prompts, outputs, longest=math.inf):
        return audio.score_sounds(
            prompts,
            outputs,
            length,
            rate=8_000,
            reward="length",
            prompt_key=lambda p: (p.text, longest),
            longest=longest,
        )

    one, two = Prompt("one"), Prompt("two")
    assert score([one, one, two], [hum(1.0), hum(1.0), hum(2.0)]) == [8_000, 8_000, 16_000]
    assert score([two, one], [hum(1.0), hum(1.0)]) == [8_000, 8_000]  # the second is cached
    assert sorted(texts) == ["one", "two", "two"]
    assert score([one], [hum(1.0, loud=0.4)]) == [8_000] and len(texts) == 4  # another sound
    assert math.isnan(*score([one], [hum(1.0)], longest=0.9))


def test_channels_are_averaged_and_rates_changed():
    stereo = Audio(torch.cat([hum(1.0).samples, -hum(1.0).samples]), 8_000)
    assert audio.waveform(stereo, 8_000) is None  # the two cancel
    unequal = Audio(torch.tensor([[0.5, -0.25], [0.25, 0.75]]), 8_000)
    assert audio.waveform(unequal, 8_000).tolist() == [0.375, 0.25]
    resampled = audio.waveform(hum(1.0), 16_000)
    assert resampled is not None and len(resampled) == 16_000 and resampled.dtype == np.float32


def test_a_voice_in_memory_is_no_file_and_the_first_sound_of_a_prompt_is_its_voice():
    def asked(*sources) -> Prompt:
        return Prompt("a", "a", turns=(Turn("user", tuple(Media(kind, one) for kind, one in sources)),))

    files = asked(("image", "a.png"), ("audio", "a.wav"), ("audio", "b.wav"))
    assert speaker.reference_file(files, "") == "a.wav" and speaker.reference_file(files, "c.wav") == "c.wav"
    for prompt in (asked(("image", "a.png")), asked(("audio", hum(0.1)))):
        with pytest.raises(ValueError, match="'a'"):
            speaker.reference_file(prompt, "")


def test_a_sound_is_silent_below_a_ten_thousandth_and_too_loud_above_1():
    def level(peak: float) -> Audio:
        return Audio(torch.full((1, 8), peak), 8_000)

    heard = {peak: audio.waveform(level(peak), 8_000) is not None for peak in (0.9e-4, 1e-4, 1.5e-4, 1.0)}
    assert heard == {0.9e-4: False, 1e-4: True, 1.5e-4: True, 1.0: True}
    assert seconds([PROMPT], [level(1.0)]) == [0.001]
    with pytest.raises(ValueError, match="1.001"):
        seconds([PROMPT], [level(-1.001)])


def test_what_resampling_adds_to_full_scale_is_cut_off():
    square = Audio(torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0]).repeat(100)[None], 8_000)
    soxr = pytest.importorskip("soxr")
    assert np.abs(soxr.resample(square.samples[0].numpy(), 8_000, 16_000)).max() > 1.05
    wave = audio.waveform(square, 16_000)
    assert (wave.max(), wave.min()) == (1.0, -1.0)


def test_a_text_without_units_has_no_rate_and_bounds_are_above_0():
    assert math.isnan(words_a_second([Prompt("1 2 3", "digits")], [hum(1.0)], unit="syllables")[0])
    with pytest.raises(ValueError, match="low=0.*high=2.*0"):
        speaking_rate([PROMPT], [hum(1.0)], low=0, high=2)


@needs_dnsmos
@pytest.mark.slow
def test_noise_lowers_the_opinion_score():
    clean = sound("natural/natural-0890.flac")
    values = dnsmos([PROMPT] * 3, [clean, noisy(clean, 0.01), noisy(clean, 0.1)])
    assert 2.5 < values[0] < 4.0 and values[0] > values[1] > values[2] and values[2] < 2.0
    assert dnsmos([PROMPT], [clean], part="bak")[0] > dnsmos([PROMPT], [noisy(clean, 0.1)], part="bak")[0] + 1
    # the scores that speechmos 0.0.1.1 itself gives this sound
    scores = mean_opinion_scores(np.resize(sound("natural/natural-0870.flac").samples[0].numpy(), 160_000))
    assert scores == pytest.approx({"sig": 3.60339, "bak": 3.92126, "ovrl": 3.23463}, abs=1e-3)
    with pytest.raises(ValueError, match="part.*'all'"):
        dnsmos([PROMPT], [clean], part="all")


@needs_speaker
def test_the_same_speaker_is_more_alike_than_another():
    reader = [sound(f"natural/natural-{number}.flac") for number in ("0870", "0890", "0930")]
    robot, voice = sound("clips/train-000.opus"), sound("voice.opus")
    same, again, other, another = speaker_similarity(
        [PROMPT] * 4, [reader[1], reader[2], robot, voice], reference=str(SPEECH / "natural" / "natural-0870.flac")
    )
    assert min(same, again) > 0.8 and max(other, another) < 0.7


@needs_speaker
def test_a_missing_recording_is_named():
    with pytest.raises(ValueError, match="'one'"):
        speaker_similarity([PROMPT], [hum(1.0)])
    with pytest.raises(FileNotFoundError, match="nobody.flac"):
        speaker_similarity([PROMPT], [hum(1.0)], reference="nobody.flac")


@needs_whisper
@pytest.mark.slow
def test_people_are_understood_and_a_wrong_text_is_not():
    clips = {prompt.id: prompt for prompt in load_prompts(SPEECH / "natural.jsonl")}
    heard = sound("natural/natural-0930.flac")
    right, wrong = Prompt(clips["natural-0930"].answer, "right"), Prompt("the ice on the pond is thin", "wrong")
    wer = scorer("spoken_neg_wer").fn([right, wrong], [heard, heard])
    assert wer[0] > -0.15 and wer[1] <= -1
    cer = scorer("spoken_neg_cer").fn([right, wrong], [heard, heard])
    assert wer[0] <= cer[0] <= 0 and cer[1] < -0.5
    likely = scorer("spoken_log_prob").fn([right, wrong], [heard, noisy(heard, 0.0)])
    assert -1 < likely[0] < 0 and likely[1] < -3


def test_a_recognizer_that_is_not_there_is_named_with_the_default(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(FileNotFoundError, match="pypi:whisper-tiny.en"):
        recognizer.recognizer(str(tmp_path / "nothing"))


def test_a_text_too_long_for_the_recognizer_is_named(tmp_path):
    whisper_tiny = recognizer.recognizer(whisper.tiny(tmp_path))
    long = Prompt("eleven " * 40, "long")
    with pytest.raises(ValueError, match="eleven eleven.*64"):
        whisper_tiny.log_prob(hum(0.5, 16_000).samples[0].numpy(), long.text)
