"""Speaker similarity: a speaker encoder (GE2E, arXiv:1710.10467) compares the recording with a reference recording.

Its weights are Resemblyzer's (Apache-2.0, resemble-ai/Resemblyzer), read from its wheel rather than from an installed
package, which requires a compiler (webrtcvad), librosa, and a module that scipy has removed. Pauses are therefore not
removed by voice activity detection first; recordings that begin and end with speech have Resemblyzer's embeddings.
"""

from __future__ import annotations

import functools
import io
import math
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmgrpo.config.plugins import locate
from mmgrpo.files import write_tensors
from mmgrpo.runtime.pypi_weights import check_tensors, check_wheel, fetch_wheel
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Audio, Output, Prompt
from reward_models.speech.audio import import_library, score_sounds, waveform
from reward_models.speech.xvector import XVectorEncoder, xvector_encoder

WHEEL = "Resemblyzer==0.1.4"
SHA256 = "8f12eb2f1a9982d32e8db7856de754709b59c93a77bcf0ff536584b619a9dd1f"
TENSORS = "977a87dc3d5d955105fab368ff1dadfed88e7599d6243711278d31fafe0835e9"
"""Hash of the converted weights, which is compared on every use."""
CACHE = Path("~/.cache/mmgrpo/resemblyzer")
"""Folder of the converted weights."""

RATE, HOP, SPAN, BANDS, WIDTH = 16_000, 160, 400, 40, 256
"""Sampling rate in Hz; hop and length of a frame in samples; mel bands; dimension of an embedding."""
FRAMES, STEP, MIN_COVERAGE = 160, 77, 0.75
"""Length of a part in frames (1.6 s), hop between parts (1.3 parts per second), and the smallest fraction of the last
part that must be sound."""
MIN_RMS = 10 ** (-30 / 20)
"""Root mean square to which quieter recordings are amplified, -30 dB of full scale."""


@reward("Audio", range=(-1, 1), reads=("media",))
def speaker_similarity(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    reference: str = "",
    weights: str = "",
    encoder: str = "",
    device: str = "cpu",
    allow_pickle: bool = False,
) -> list[float]:
    """Cosine of the embeddings of the recording and of a reference recording; 1 for equal recordings.

    The recording is the file ``reference``, or else the first recording of the prompt. The default encoder is GE2E:
    cosines in [0, 1], about 0.8 and more for one voice; ``weights`` names its wheel's file where the package index
    cannot be reached. ``encoder`` names a WavLM with an x-vector head instead (folder or hub id, on ``device``):
    cosines in [-1, 1]; microsoft/wavlm-base-plus-sv suggests 0.86 as the threshold of one voice. ``allow_pickle`` reads
    one that has no safetensors (``xvector_encoder``). A recording that is empty, silent, NaN, or too short for the
    encoder is NaN.
    """
    if encoder and weights:
        raise ValueError(
            f"speaker_similarity: got encoder='{encoder}' and weights='{weights}', expected one of them: weights are "
            "those of the default encoder"
        )
    model = encoder_of(encoder, weights, device, allow_pickle)

    def score(samples: np.ndarray, prompt: Prompt) -> float:
        # A policy may produce any duration: a recording too short to be scored is no reason to stop a run.
        if len(samples) < model.shortest:
            return math.nan
        file, span = reference_file(prompt, reference), reference_span(prompt, reference)
        embedding = reference_embedding(file, encoder, weights, device, allow_pickle, span)
        return float(model.embed(samples) @ embedding)

    return score_sounds(
        prompts,
        outputs,
        score,
        rate=model.rate,
        reward=f"speaker_similarity({encoder!r}, {weights!r})",
        prompt_key=lambda prompt: (reference_file(prompt, reference), reference_span(prompt, reference)),
    )


def encoder_of(encoder: str, weights: str, device: str, allow_pickle: bool = False) -> SpeakerEncoder | XVectorEncoder:
    """The encoder of a reward's parameters, loaded once per process."""
    return xvector_encoder(encoder, device, allow_pickle) if encoder else speaker_encoder(weights)


def reference_file(prompt: Prompt, reference: str) -> str:
    """The recording of the voice that the prompt's recording should have."""
    sources = [reference] if reference else [media.source for media in prompt.media if media.kind == "audio"]
    if not sources or not isinstance(sources[0], str):
        raise ValueError(
            f"speaker_similarity: prompt '{prompt.id}' ({prompt.text!r}) has no recording of a voice, expected a file "
            'as its first recording; name one for all prompts: speaker_similarity(reference="voice.flac")'
        )
    return locate(sources[0])


def reference_span(prompt: Prompt, reference: str) -> tuple[float, float | None]:
    """The part of the prompt's recording, in seconds; None is its end."""
    options = next((media.options for media in prompt.media if media.kind == "audio" and not reference), {})
    return float(options.get("start", 0)), options.get("end")


@functools.lru_cache(maxsize=4096)
def reference_embedding(
    file: str,
    encoder: str = "",
    weights: str = "",
    device: str = "cpu",
    allow_pickle: bool = False,
    span: tuple[float, float | None] = (0.0, None),
) -> Float[np.ndarray, " width"]:
    """Embedding of a recording, or of its part from ``span``'s first to its second time in seconds."""
    soundfile = import_library("soundfile")
    if not Path(file).is_file():
        raise FileNotFoundError(f"speaker_similarity: no such file: '{file}' (working directory: {Path.cwd()})")
    samples, rate = soundfile.read(file, always_2d=True)
    start, end = span
    samples = samples[round(start * rate) : None if end is None else round(end * rate)]
    model = encoder_of(encoder, weights, device, allow_pickle)
    mono = waveform(Audio(torch.from_numpy(samples.T.copy()), rate), model.rate)
    if mono is None:
        raise ValueError(
            f"speaker_similarity: '{file}' is silent, empty or not finite, expected a recording of a voice; name "
            "another"
        )
    if len(mono) < model.shortest:
        raise ValueError(
            f"speaker_similarity: '{file}': got {len(mono)} samples at {model.rate} Hz, expected at least "
            f"{model.shortest} ({model.shortest / model.rate:.3f} s); name a longer recording"
        )
    return model.embed(mono)


class SpeakerEncoder(nn.Module):
    """Three LSTM layers over mel spectrograms, a linear layer and a ReLU."""

    rate = RATE
    shortest = 1
    """A recording shorter than a part is padded with silence."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(BANDS, WIDTH, 3, batch_first=True)
        self.linear = nn.Linear(WIDTH, WIDTH)
        from transformers.audio_utils import mel_filter_bank

        bank = mel_filter_bank(SPAN // 2 + 1, BANDS, 0.0, RATE / 2, RATE, norm="slaney", mel_scale="slaney")
        self.bank: Tensor
        self.register_buffer("bank", torch.from_numpy(bank).float(), persistent=False)

    def forward(self, mels: Float[Tensor, "parts frames bands"]) -> Float[Tensor, "parts width"]:
        """Embeddings of unit norm."""
        _, (hidden, _) = self.lstm(mels)
        return nn.functional.normalize(torch.relu(self.linear(hidden[-1])))

    @torch.no_grad()
    def embed(self, samples: Float[np.ndarray, " samples"]) -> Float[np.ndarray, " width"]:
        """Mean embedding of the parts of a recording, of unit norm."""
        wave = torch.from_numpy(samples)
        wave = wave * max(1.0, MIN_RMS / float(wave.square().mean().sqrt()))
        starts = part_starts(len(wave))
        wave = nn.functional.pad(wave, (0, max(0, (starts[-1] + FRAMES) * HOP - len(wave))))
        window = torch.hann_window(SPAN)
        spectrum = torch.stft(wave, SPAN, HOP, window=window, pad_mode="constant", return_complex=True)
        mel = spectrum.abs().square().T @ self.bank
        mean = self(torch.stack([mel[start : start + FRAMES] for start in starts])).mean(0)
        return nn.functional.normalize(mean, dim=0).numpy()


def part_starts(samples: int) -> list[int]:
    """First frame of each part of a recording; the last part is dropped where too little of it is sound."""
    frames = -(-(samples + 1) // HOP)
    starts = list(range(0, max(1, frames - FRAMES + STEP + 1), STEP))
    coverage = (samples - starts[-1] * HOP) / (FRAMES * HOP)
    return starts[:-1] if coverage < MIN_COVERAGE and len(starts) > 1 else starts


@functools.cache
def speaker_encoder(weights: str = "") -> SpeakerEncoder:
    """The encoder with its weights, loaded once per process."""
    import_library("transformers")
    from safetensors.torch import load_file

    network = SpeakerEncoder()
    network.load_state_dict(load_file(encoder_file(CACHE, weights)), strict=True)
    return network.eval().requires_grad_(False)


def encoder_file(cache: str | Path = CACHE, wheel: str | Path = "") -> Path:
    """The weights as safetensors, converted once from the wheel, which pip downloads (16 MB)."""
    file = Path(cache).expanduser() / "speaker_encoder.safetensors"
    if file.is_file():
        return check_tensors(file, TENSORS)
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as workspace:
        otherwise = "Without network: download that wheel elsewhere and name it, speaker_similarity(weights=...)."
        source = wheel or fetch_wheel(WHEEL, SHA256, Path(workspace), "the speaker encoder", 16, otherwise)
        with zipfile.ZipFile(check_wheel(Path(source), WHEEL, SHA256)) as archive:
            stored = io.BytesIO(archive.read("resemblyzer/pretrained.pt"))
        state = torch.load(stored, map_location="cpu", weights_only=True)["model_state"]
        tensors = {name: value.clone() for name, value in state.items() if name.startswith(("lstm.", "linear."))}
        converted = Path(workspace) / file.name
        write_tensors(converted, tensors)
        check_tensors(converted, TENSORS).replace(file)  # atomic: another process never reads half a file
    return file
