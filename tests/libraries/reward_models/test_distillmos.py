"""DistillMOS with its real weights: the scores of its own code, and what noise and cutting do to a voice."""

from __future__ import annotations

import math
import pickle
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from torch import nn

from mmgrpo.types import Audio, Prompt, Text
from reward_models.speech import distillmos as module
from reward_models.speech.distillmos import WINDOW, compressed_spectrum, distillmos
from tests import ROOT
from tests.libraries.reward_models.photographs import fetched

PROMPT = Prompt("One two three", "one")


def voice(name: str) -> Audio:
    file = ROOT / "pipelines" / "speech" / "assets" / "natural" / f"natural-{name}.flac"
    samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
    return Audio(torch.from_numpy(samples.T.copy()), rate)


def test_a_tone_is_one_band_whose_magnitude_is_compressed():
    """20 ms at 16 kHz: bands of 50 Hz; a tone of 2000 Hz and amplitude 1 is 160 samples under a Hann window, 80."""
    wave = torch.sin(2 * math.pi * 2000 * torch.arange(WINDOW) / 16_000)[None]
    spectrum = compressed_spectrum(wave)
    assert spectrum.shape == (1, 2, 161, WINDOW // 160)
    magnitude = spectrum.square().sum(1).sqrt()[0, :, 100]
    assert int(magnitude.argmax()) == 40
    assert float(magnitude[40]) == pytest.approx(80**0.3, rel=1e-3)


def test_a_long_sound_is_the_mean_of_windows_that_cover_it():
    starts = []

    def network(waves):
        starts.append(float(waves[0, 0]))
        assert waves.shape == (1, WINDOW)
        return torch.tensor([float(len(starts))])

    long = np.arange(WINDOW + 16_001, dtype=np.float32)
    assert module.mean_opinion_score(network, long) == 2.0  # of 1, 2 and 3
    assert starts == [0.0, 8000.0, 16_001.0]
    assert module.mean_opinion_score(network, np.ones(5, np.float32)) == 4.0


class Bands(nn.Module):
    """Takes the place of the convolutions: 256 channels of 4 bands, which repeat the magnitudes of a spectrum."""

    def forward(self, spectrum: torch.Tensor) -> torch.Tensor:
        magnitude = spectrum.square().sum(1).sqrt()[:, :128, : module.FRAMES]
        return magnitude.repeat(1, 8, 1).unflatten(1, (256, 4)) - 1


@pytest.fixture(scope="module")
def network() -> module.DistillMos:
    torch.manual_seed(0)
    made = module.DistillMos().eval()
    made.transformer_encoder.layers = made.transformer_encoder.layers[:1]
    made.pe.normal_()
    return made


def test_the_convolutions_have_the_published_sizes():
    layers = [layer for layer in module.DistillMos().cnn if isinstance(layer, nn.Conv2d)]
    sizes = [(layer.in_channels, layer.out_channels, layer.stride) for layer in layers]
    assert sizes[0] == (2, 64, (1, 1)) and sizes[-1] == (256, 256, (2, 2))
    assert sizes[1:-1] == [(64, 64, (2, 1)), (64, 128, (2, 1)), (128, 256, (2, 1)), (256, 256, (2, 1))]
    assert {(layer.kernel_size, layer.padding) for layer in layers} == {((3, 3), (0, 1))}
    assert {one.negative_slope for one in module.DistillMos().cnn if isinstance(one, nn.LeakyReLU)} == {0.1}
    # 161 bands: 159, and (n - 3) // 2 + 1 five times, 4 at last; 768 frames are halved once
    with torch.device("meta"):
        made = module.DistillMos().cnn(torch.empty(1, 2, 161, WINDOW // 160))
    assert made.shape == (1, 256, 4, module.FRAMES)
    assert sum(p.numel() for p in module.DistillMos().transformer_encoder.parameters()) == 7 * 322_200


def test_the_score_is_a_sigmoid_of_states_that_attention_sums_up(network, monkeypatch):
    monkeypatch.setattr(network, "cnn", Bands())
    waves = torch.randn(2, WINDOW, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        x = Bands()(compressed_spectrum(waves / waves.abs().amax(1, keepdim=True))).flatten(1, 2)
        x = x / (1 + network.norm.eps)  # both are fresh
        x = torch.cat([network.transformer_encoder(one) for one in (network.linear_proj(x.mT) + network.pe).split(1)])
        x = x / (1 + network.norm_trans.eps) ** 0.5
        scores = network.linear2(network.linear1(x).clamp(min=0)).exp()
        pooled = (scores * x).sum(1) / scores.sum(1)
        wanted = 1 + 4 / (1 + (-network.linear3(pooled)[:, 0]).exp())
        torch.testing.assert_close(network(waves), wanted, atol=1e-4, rtol=0)
        assert (wanted[0] - wanted[1]).abs() > 1e-4
        torch.testing.assert_close(network(waves / 4), wanted, atol=1e-4, rtol=0)  # however loud


def test_weights_are_read_under_the_names_of_the_package(network, tmp_path, monkeypatch):
    def packaged(name: str) -> str:
        if name == "pe":
            return "transformer_pool_attn.pos.pe"
        if name.startswith("transformer_encoder.layers."):
            return f"transformer_pool_attn.encoder.{name}"
        return f"cnn.{name}" if name.startswith("cnn.") else f"transformer_pool_attn.part.{name}"

    torch.manual_seed(3)
    whole = module.DistillMos()
    torch.save({"model": {packaged(k): v for k, v in whole.state_dict().items()}}, tmp_path / "distill_mos_v7.pt")
    monkeypatch.setattr(module, "weights_folder", lambda *asked: {("distillmos", "x", "distillmos"): tmp_path}[asked])
    read = module._network.__wrapped__("x")
    assert all(torch.equal(value, whole.state_dict()[key]) for key, value in read.state_dict().items())


def test_weights_are_tensors_and_no_program(tmp_path, monkeypatch):
    torch.save({"model": SimpleNamespace()}, tmp_path / "distill_mos_v7.pt")
    monkeypatch.setattr(module, "weights_folder", lambda *_: tmp_path)
    monkeypatch.setattr(torch, "load", partial(torch.load, weights_only=False))  # the default before torch 2.6
    with pytest.raises(pickle.UnpicklingError, match="SimpleNamespace"):
        module._network.__wrapped__("x")


def test_each_sound_is_scored_by_the_network_at_16_khz(monkeypatch):
    shown = []

    def network(wave):
        shown.append(wave)
        return torch.tensor([float(len(shown))])

    monkeypatch.setattr(module, "_network", {"there": network}.__getitem__)
    sound = Audio(torch.rand(1, 8_000, generator=torch.Generator().manual_seed(5)) - 0.5, 16_000)
    assert distillmos([PROMPT], [sound], weights="there") == [1.0]
    assert shown[0].shape == (1, WINDOW) and torch.equal(shown[0][0, :8_000], sound.samples[0])
    assert shown[0][0, 8_000:].abs().max() == 0


@pytest.mark.slow
def test_the_scores_are_those_of_the_package_and_noise_lowers_them():
    fetched("distillmos")
    clean = voice("0920")
    noise = torch.randn(clean.samples.shape, generator=torch.Generator().manual_seed(0))
    noisy = [Audio((clean.samples + level * noise).clamp(-1, 1), clean.rate) for level in (0.01, 0.05)]
    first, some, much, short = distillmos([PROMPT] * 4, [clean, *noisy, voice("001")])
    # by ConvTransformerSQAModel of distillmos 0.9.1; resampling varies a little between versions of soxr
    assert first == pytest.approx(4.29795, abs=0.01) and short == pytest.approx(3.81606, abs=0.01)
    assert first > some + 0.5 > much + 0.7
    assert distillmos([PROMPT], [clean]) == [first]


@pytest.mark.slow
def test_what_cannot_be_scored_is_nan_and_what_is_no_sound_an_error():
    fetched("distillmos")
    silent, empty = torch.zeros(1, 8000), torch.zeros(1, 0)
    broken = torch.full((1, 8000), math.nan)
    values = distillmos([PROMPT] * 3, [Audio(samples, 8_000) for samples in (silent, empty, broken)])
    assert all(math.isnan(value) for value in values)
    tiny, stereo = Audio(torch.ones(1, 1) / 2, 16_000), Audio(torch.rand(2, 40_000) - 0.5, 44_100)
    assert all(1 <= value <= 5 for value in distillmos([PROMPT] * 2, [tiny, stereo]))
    with pytest.raises(TypeError, match="distillmos.*Text.*Audio"):
        distillmos([PROMPT], [Text("hello")])
