"""Spectrograms of sounds, and sounds of spectrograms."""

from __future__ import annotations

import math

import pytest
import torch

from pipelines.speech.mel import FLOOR, GriffinLim, MelFormat, bank

FORM = MelFormat()


def tone(hertz: float, seconds: float = 0.4) -> torch.Tensor:
    return torch.sin(torch.arange(int(seconds * FORM.rate)) * (2 * math.pi * hertz / FORM.rate)) / 2


def test_a_frame_is_a_hop_and_silence_is_the_floor():
    assert FORM.mel(torch.zeros(2560)).shape == (100, 11)
    assert FORM.mel(torch.zeros(2560)).unique().tolist() == pytest.approx([FLOOR])
    assert FORM.mel(torch.zeros(3)).shape == (100, 5)  # padded to a window
    assert FORM.frames(2.0) == 188  # 187.5


def test_a_tone_is_loudest_in_its_band_and_as_loud_as_its_amplitude():
    """Band centres on the HTK scale, 2595 lg(1 + f / 700); a sine of amplitude 1/2 has 1/2 * 512 / 2 at its bin."""
    place = 60
    highest = 2595 * math.log10(1 + 12_000 / 700)
    centre = 700 * (10 ** (highest * (place + 1) / 101 / 2595) - 1)
    mel = FORM.mel(tone(centre))[:, 10]
    assert mel.argmax() == place
    assert bank(FORM).max() <= 1
    magnitude = torch.stft(tone(3000), 1024, 256, window=torch.hann_window(1024), return_complex=True).abs()
    assert magnitude[:, 10].max().item() == pytest.approx(128, rel=1e-3)  # 3000 Hz is bin 128 exactly


def test_the_sound_of_a_spectrogram_has_it_again():
    loud = (tone(500) + tone(2_100)) / 2
    mel = FORM.mel(loud)
    sound = GriffinLim().sound(mel[:, :-1])
    assert sound.shape == (256 * (mel.shape[1] - 1),)
    again, inner = FORM.mel(sound)[:, 4:-5], mel[:, 4:-5]
    heard = inner > inner.max() - 3  # what is not 20 times quieter than the loudest
    assert heard.any(0).all() and (again - inner)[heard].abs().mean() < 0.2
    assert torch.equal(GriffinLim().sound(mel[:, :-1]), sound)


def test_rounds_bring_the_sound_nearer():
    mel = FORM.mel(tone(500) * torch.linspace(0, 1, 9600))

    def gap(rounds: int) -> float:
        return float((FORM.mel(GriffinLim(FORM, rounds).sound(mel[:, :-1])).exp() - mel.exp()).square().mean())

    assert gap(16) < 0.5 * gap(0)


def test_a_spectrogram_out_of_range_or_of_one_frame_makes_a_finite_sound():
    for mel in (torch.full((100, 1), 80.0), torch.full((100, 7), -90.0)):
        sound = GriffinLim().sound(mel)
        assert len(sound) == 256 * mel.shape[1] and bool(sound.isfinite().all())


def test_the_sound_of_silence_is_silent():
    assert GriffinLim().sound(torch.full((100, 6), FLOOR)).abs().max() < 1e-3


def test_four_times_the_magnitude_sounds_four_times_as_loud():
    mel, voice = FORM.mel(tone(500))[:, :-1], GriffinLim(FORM, rounds=0)
    torch.testing.assert_close(voice.sound(mel + math.log(4)), 4 * voice.sound(mel), rtol=1e-3, atol=1e-5)
