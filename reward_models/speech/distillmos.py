"""DistillMOS (arXiv:2502.05356): Microsoft's predictor of the mean opinion score of speech, distilled from XLS-R.

The weights are those of the package distillmos 0.9.1 (MIT), read from its wheel: the package itself imports torchaudio.
It was trained on other recordings than DNSMOS, so one of them can be trained on and the other held out.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.checkpoints import load_exactly
from reward_models.speech.audio import score_sounds
from reward_models.wheels import weights_folder

RATE = 16_000
WINDOW, HOP = 122_880, 16_000
"""Samples of the network's input, 7.68 s, and the most between two of them; a shorter recording ends with silence."""

SPAN, STEP, FRAMES, WIDTH = 320, 160, 384, 200
"""Samples of a spectrum and between two; steps of the sequence; its width."""
CHANNELS = (64, 64, 128, 256, 256, 256)


@reward(
    "Audio",
    range=(1, 5),
    scale="mean opinion score",
    weights={"pypi:distillmos": ("distill_mos_v7.pt",)},
    licence="MIT",
    source="DistillMOS, arXiv:2502.05356",
)
def distillmos(prompts: Sequence[Prompt], outputs: Sequence[Output], weights: str = "pypi:distillmos") -> list[float]:
    """Predicted mean opinion score of listeners, 1 (bad) to 5 (excellent): the mean over windows of 7.68 s.

    A recording that is empty, silent or NaN is NaN. ``weights`` is the wheel's file or a folder with distill_mos_v7.pt
    where the package index cannot be reached.
    """
    network = _network(weights)  # here, since concurrent first calls from the threads below would each load it

    def score(samples: np.ndarray, prompt: Prompt) -> float:
        return mean_opinion_score(network, samples)

    return score_sounds(prompts, outputs, score, rate=RATE, reward="distillmos", prompt_key=lambda prompt: "")


@torch.no_grad()
def mean_opinion_score(network: DistillMos, samples: Float[np.ndarray, " samples"]) -> float:
    """The score of a recording at 16 kHz."""
    wave = functional.pad(torch.from_numpy(samples), (0, max(0, WINDOW - len(samples))))
    extra = len(wave) - WINDOW
    starts = [int(part * extra) for part in np.linspace(0, 1, -(-extra // HOP) + 1)]
    return float(np.mean([network(wave[None, start : start + WINDOW]).item() for start in starts]))


class DistillMos(nn.Module):
    """Convolutions over a compressed spectrum, a transformer, and attention that sums up its sequence."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, (before, after) in enumerate(zip((2, *CHANNELS), CHANNELS, strict=False)):
            stride = (2 if number else 1, 2 if number == len(CHANNELS) - 1 else 1)
            layers += [nn.Conv2d(before, after, 3, stride, padding=(0, 1)), nn.LeakyReLU(0.1)]
        self.cnn = nn.Sequential(*layers)
        bands = 4 * CHANNELS[-1]
        self.norm_input, self.norm, self.norm_trans = (nn.BatchNorm1d(size) for size in (bands, bands, WIDTH))
        self.linear_proj = nn.Linear(bands, WIDTH)
        self.pe: Tensor
        self.register_buffer("pe", torch.zeros(1, FRAMES, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 2 * WIDTH, batch_first=True)
        self.transformer_encoder = nn.TransformerEncoder(layer, 7)
        self.linear1, self.linear2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, 1)
        self.linear3 = nn.Linear(WIDTH, 1)

    def forward(self, waves: Float[Tensor, "sounds 122880"]) -> Float[Tensor, " sounds"]:
        """Scores in [1, 5]."""
        waves = waves / (waves.abs().amax(1, keepdim=True) + 1e-8)
        x = self.norm(self.norm_input(self.cnn(compressed_spectrum(waves)).flatten(1, 2)))
        x = self.transformer_encoder(self.linear_proj(x.transpose(1, 2)) + self.pe)
        x = self.norm_trans(x.transpose(1, 2)).transpose(1, 2)
        attention = self.linear2(functional.relu(self.linear1(x))).softmax(1)
        return 1 + 4 * self.linear3((attention * x).sum(1)).sigmoid()[:, 0]


def compressed_spectrum(waves: Float[Tensor, "sounds samples"]) -> Float[Tensor, "sounds 2 bands frames"]:
    """Real and imaginary part of the spectrum, its magnitude raised to the power of 0.3."""
    padded = functional.pad(waves, ((SPAN - STEP) // 2,) * 2, mode="reflect")
    window = torch.hann_window(SPAN, device=waves.device)
    spectrum = torch.stft(padded, SPAN, STEP, window=window, center=False, return_complex=True)
    magnitude = spectrum.abs().clamp_min(1e-12)
    return torch.view_as_real(magnitude ** (0.3 - 1) * spectrum).permute(0, 3, 1, 2)


@functools.cache
def _network(weights: str) -> DistillMos:
    file = weights_folder("distillmos", weights, "distillmos") / "distill_mos_v7.pt"
    tensors = torch.load(file, map_location="cpu", weights_only=True)["model"]

    def network_key(key: str) -> str:
        *_, module, name = key.removeprefix("transformer_pool_attn.").split(".")
        if ".layers." in key:
            return key[key.index("transformer_encoder.") :]
        return key.removeprefix("cnn.") if key.startswith("cnn.") else "pe" if name == "pe" else f"{module}.{name}"

    return load_exactly(DistillMos(), tensors, file, "distillmos", network_key)
