"""Sets of sounds: an embedding without a model, Fréchet audio distances with numbers, exemplars of sounds and texts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import soundfile
import torch

from mmgrpo.rewards import scorer
from mmgrpo.types import Audio, Prompt, Text
from reward_models.sets import rewards
from reward_models.sets.audio import BANDS, LOWEST, bands, windows

RATE = 8_000


def tone(frequency, level=0.5, seconds=0.5, rate=RATE):
    return Audio(level * torch.sin(torch.arange(int(seconds * rate)) * 2 * math.pi * frequency / rate)[None], rate)


def loudness(outputs):
    """The root mean square of a sound: of a constant, its value."""
    return torch.stack([output.samples.square().mean().sqrt()[None] for output in outputs])


LOUDNESS = "tests.libraries.reward_models.sets.test_audio_sets:loudness"


def constants(*levels, samples=100):
    return [Audio(torch.full((1, samples), float(level)), 100) for level in levels]


def write(folder, sounds):
    folder.mkdir()
    for number, sound in enumerate(sounds):
        soundfile.write(folder / f"{number}.wav", sound.samples.T.numpy(), sound.rate, subtype="FLOAT")
    return str(folder)


def prompts(ids):
    return [Prompt("", name) for name in ids]


def test_bands_are_computed_in_double_precision():
    samples = torch.rand(1, 2048, generator=torch.Generator().manual_seed(0)) - 0.5
    sound = samples[0].double().numpy()
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(1024) / 1024)  # 0.1 s, 800 samples, up to a power of two
    frames = np.stack([sound[start : start + 1024] * window for start in range(0, 1025, 512)])
    power = np.abs(np.fft.rfft(frames)) ** 2 / window.sum() ** 2
    octaves = 2 * np.log2(np.maximum(np.arange(513), 1e-9) * RATE / 1024 / LOWEST)
    levels = [np.log10(power[:, (octaves >= b) & (octaves < b + 1)].sum(1) + 1e-9) for b in range(BANDS)]
    expected = [one.mean() for one in levels] + [one.std() for one in levels]
    np.testing.assert_allclose(bands([Audio(samples, RATE)])[0].numpy(), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("frequency", "rate"), [(100, 8_000), (440, 44_100), (3000, 8_000), (3000, 48_000)])
def test_a_tone_is_in_its_half_octave_whatever_the_rate(frequency, rate):
    levels = bands([tone(frequency, rate=rate)])[0, :BANDS]
    assert int(levels.argmax()) == int(2 * math.log2(frequency / LOWEST))
    louder = bands([tone(frequency, level=0.05, rate=rate)])[0, :BANDS]
    assert float(levels.max() - louder.max()) == pytest.approx(2, abs=1e-3)  # ten times the amplitude


def test_only_a_sound_that_changes_has_a_deviation_and_silence_is_at_the_floor():
    still, changing = bands([tone(440), Audio(torch.cat([tone(440).samples, tone(440, 0.005).samples], 1), RATE)])
    place = int(still[:BANDS].argmax())
    assert still[BANDS + place] < 0.01 and changing[BANDS + place] > 0.5
    nothing = (torch.zeros(2, 99), torch.full((1, 9), math.nan), torch.zeros(1, 0))
    silent, broken, empty = bands([Audio(samples, RATE) for samples in nothing])
    assert silent.tolist() == pytest.approx([-9] * BANDS + [0] * BANDS)
    assert broken.isnan().all() and empty.isnan().all()
    with pytest.raises(TypeError, match="Audio"):
        bands([Text("")])


def test_the_distance_of_a_group_to_exemplar_sounds_and_what_each_adds(tmp_path):
    """Exemplars of loudness .25 and .75: mean .5, deviation .25. A group of .5 and 1: mean .75, deviation .25."""
    exemplars = write(tmp_path / "exemplars", constants(0.25, 0.75))
    group = constants(0.5, 1.0)
    shared = rewards.frechet(prompts("aa"), group, exemplars, embed=LOUDNESS, over="prompt", credit="shared")
    assert shared == pytest.approx([-0.0625] * 2)  # (.75 - .5)^2 + (.25 - .25)^2
    # Without one, the other is alone: -(1 - .5)^2 - .25^2 = -.3125 and -(.5 - .5)^2 - .25^2 = -.0625.
    own = rewards.frechet(prompts("aa"), group, exemplars, embed=LOUDNESS, over="prompt")
    assert own == pytest.approx([-0.0625 + 0.3125, -0.0625 + 0.0625])
    # Two prompts are two sets, and each sound of the second is as far as the first's louder one.
    two = rewards.frechet(prompts("aabb"), [*group, *constants(1.0, 1.0)], exemplars, embed=LOUDNESS, over="prompt")
    assert two == pytest.approx([0.25, 0, 0, 0])


def test_the_distance_of_one_song_is_that_of_its_windows(tmp_path):
    """A second of .25 and one of .75 have the exemplars' mean and deviation, two of .5 only the mean."""
    exemplars = write(tmp_path / "exemplars", constants(0.25, 0.75))
    pairs = ((0.25, 0.75), (0.5, 0.5))
    songs = [Audio(torch.cat([part.samples for part in constants(*pair)], 1), 100) for pair in pairs]
    found = rewards.frechet(prompts("ab"), songs, exemplars, embed=LOUDNESS, over="output")
    assert found == pytest.approx([0, -0.0625], abs=1e-9)
    assert [part.samples.shape[1] for part in windows(Audio(torch.zeros(1, 249), 100), 1.0)] == [100, 100]
    assert [part.samples.shape[1] for part in windows(Audio(torch.zeros(1, 250), 100), 1.0)] == [100, 100, 50]
    assert [part.samples.shape[1] for part in windows(Audio(torch.zeros(1, 9), 100), 1.0)] == [9]
    with pytest.raises(TypeError, match="Audio.*over='output"):
        rewards.frechet(prompts("a"), [Text("")], exemplars, embed=LOUDNESS, over="output")


def test_sounds_are_contrasted_by_the_halves_of_dragon(tmp_path):
    """Halves (.5, 1) and (.75, .25): the second has the exemplars' moments, and no exchange improves it."""
    exemplars = write(tmp_path / "exemplars", constants(0.25, 0.75))
    given = constants(0.5, 1, 0.75, 0.25)
    found = rewards.frechet(prompts("aaaa"), given, exemplars, embed=LOUDNESS, credit="contrast")
    assert found == [0, 0, 1, 1]


def test_the_odd_one_of_three_tones_adds_most_to_their_diversity():
    found = rewards.vendi(prompts("aaa"), [tone(100), tone(100), tone(3000)], embed="bands")
    assert found[0] == pytest.approx(found[1]) and found[2] > found[0]


def test_files_that_are_no_sounds_and_too_few_are_named(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"RIFF none")
    with pytest.raises(ValueError, match=r"frechet.*a\.wav"):
        rewards.frechet(prompts("a"), [tone(100)], str(tmp_path), embed="bands")
    (tmp_path / "texts.txt").write_text("rain\na bell\n")
    with pytest.raises(ValueError, match="embed.*bands.*clap"):
        rewards.frechet(prompts("a"), [tone(100)], str(tmp_path / "texts.txt"), embed="bands")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("frechet(exemplars='a', over='song')", "prompt or call"),
        ("frechet(exemplars='a', over='output', window=0)", "window.*0"),
        ("vendi(over='output')", "prompt or call"),
        ("vendi(embed='brands')", "embed.*brands.*package.module:function"),
        ("vendi(embed='clap(weight=1)')", "embed.*'clap'.*weight"),
    ],
)
def test_wrong_parameters_are_refused_before_a_run(spec, message):
    with pytest.raises(ValueError, match=message):
        scorer(spec)
