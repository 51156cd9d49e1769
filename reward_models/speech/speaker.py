"""Is it the same voice? A speaker encoder (GE2E, arXiv:1710.10467) compares the sound with a reference.

Its weights are Resemblyzer's (Apache-2.0, resemble-ai/Resemblyzer). They are taken out of its wheel and not out of the
installed package, which would need a compiler (webrtcvad), librosa, and a module that scipy has dropped. So pauses are
not cut out before listening, as Resemblyzer does; sounds that begin and end with speech give what it gives.
"""

from __future__ import annotations

import functools
import io
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmgrpo.runtime.plugins import locate
from mmgrpo.runtime.pypi_weights import checked_wheel, fetch_wheel
from mmgrpo.types import Audio, Output, Prompt
from reward_models.speech.sounds import heard, judged, needed

WHEEL = "Resemblyzer==0.1.4"
SHA256 = "8f12eb2f1a9982d32e8db7856de754709b59c93a77bcf0ff536584b619a9dd1f"
CACHE = Path("~/.cache/mmgrpo/resemblyzer")
"""Where paths of the project's own voices start, whatever the working directory."""

RATE, HOP, SPAN, BANDS, WIDTH = 16_000, 160, 400, 40, 256
"""Samples a second, between frames and in one; mel bands; numbers of an embedding."""
FRAMES, STEP, COVERED = 160, 77, 0.75
"""Frames of a part (1.6 s), between parts (1.3 a second), and the share of the last that must be sound."""
LEVEL = 10 ** (-30 / 20)
"""Root mean square to which quieter sounds are raised, -30 dB of full scale."""


def speaker_similarity(
    prompts: Sequence[Prompt], outputs: Sequence[Output], reference: str = "", weights: str = ""
) -> list[float]:
    """Cosine of the embeddings of the sound and of the voice it should have: in [0, 1], the same voice about 0.8 up.

    The voice is the file ``reference``, or else the first sound that the prompt shows. ``weights`` names the wheel's
    file where the package index cannot be reached. A sound that is empty, silent or NaN is NaN.
    """
    encoder = speaker_encoder(weights)

    def judge(samples: np.ndarray, prompt: Prompt) -> float:
        return float(encoder.embed(samples) @ embedding_of(voice(prompt, reference), weights))

    return judged(
        prompts,
        outputs,
        judge,
        rate=RATE,
        reward=f"speaker_similarity({weights!r})",
        asked=lambda prompt: voice(prompt, reference),
    )


def voice(prompt: Prompt, reference: str) -> str:
    """The file of the voice that the prompt's sound should have."""
    sources = [reference] if reference else [media.source for media in prompt.media if media.kind == "audio"]
    if not sources or not isinstance(sources[0], str):
        raise ValueError(
            f"speaker_similarity: prompt '{prompt.id}' ({prompt.text!r}) shows no file of a voice; give one for all "
            'prompts with speaker_similarity(reference="voice.flac")'
        )
    return locate(sources[0])


@functools.lru_cache(maxsize=4096)
def embedding_of(file: str, weights: str = "") -> Float[np.ndarray, " width"]:
    """Embedding of a voice's file."""
    soundfile = needed("soundfile")
    if not Path(file).is_file():
        raise FileNotFoundError(f"speaker_similarity: there is no file '{file}' (looked from {Path.cwd()})")
    samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
    spoken = heard(Audio(torch.from_numpy(samples.T.copy()), rate), RATE)
    if spoken is None:
        raise ValueError(f"speaker_similarity: '{file}' is silent, empty or not finite; it is no voice")
    return speaker_encoder(weights).embed(spoken)


class SpeakerEncoder(nn.Module):
    """Three LSTM layers over mel spectrograms, a linear layer and a rectifier."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(BANDS, WIDTH, 3, batch_first=True)
        self.linear = nn.Linear(WIDTH, WIDTH)
        from transformers.audio_utils import mel_filter_bank

        bank = mel_filter_bank(SPAN // 2 + 1, BANDS, 0.0, RATE / 2, RATE, norm="slaney", mel_scale="slaney")
        self.bank: Tensor
        self.register_buffer("bank", torch.from_numpy(bank).float(), persistent=False)

    def forward(self, mels: Float[Tensor, "parts frames bands"]) -> Float[Tensor, "parts width"]:
        """Embeddings of length one."""
        _, (hidden, _) = self.lstm(mels)
        return nn.functional.normalize(torch.relu(self.linear(hidden[-1])), dim=1)

    @torch.no_grad()
    def embed(self, samples: Float[np.ndarray, " samples"]) -> Float[np.ndarray, " width"]:
        """Mean embedding of the parts of a sound, of length one."""
        wave = torch.from_numpy(samples)
        wave = wave * max(1.0, LEVEL / float(wave.square().mean().sqrt()))
        starts = part_starts(len(wave))
        wave = nn.functional.pad(wave, (0, max(0, (starts[-1] + FRAMES) * HOP - len(wave))))
        window = torch.hann_window(SPAN)
        spectrum = torch.stft(wave, SPAN, HOP, window=window, pad_mode="constant", return_complex=True)
        mel = spectrum.abs().square().T @ self.bank
        mean = self(torch.stack([mel[start : start + FRAMES] for start in starts])).mean(0)
        return nn.functional.normalize(mean, dim=0).numpy()


def part_starts(samples: int) -> list[int]:
    """Frames at which the parts of a sound begin; the last is left out where too little of it is sound."""
    frames = -(-(samples + 1) // HOP)
    starts = list(range(0, max(1, frames - FRAMES + STEP + 1), STEP))
    covered = (samples - starts[-1] * HOP) / (FRAMES * HOP)
    return starts[:-1] if covered < COVERED and len(starts) > 1 else starts


@functools.cache
def speaker_encoder(weights: str = "") -> SpeakerEncoder:
    """The encoder with its weights, read once."""
    needed("transformers")
    from safetensors.torch import load_file

    network = SpeakerEncoder()
    network.load_state_dict(load_file(encoder_file(CACHE, weights)), strict=True)
    return network.eval().requires_grad_(False)


def encoder_file(cache: str | Path = CACHE, wheel: str | Path = "") -> Path:
    """The weights as safetensors; made once from the wheel, which pip fetches (16 MB), later calls return at once."""
    from safetensors.torch import save_file

    file = Path(cache).expanduser() / "speaker_encoder.safetensors"
    if file.is_file():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as workshop:
        otherwise = "Without network: fetch that wheel elsewhere and name it, speaker_similarity(weights=...)."
        found = wheel or fetch_wheel(WHEEL, SHA256, Path(workshop), "the speaker encoder", 16, otherwise)
        with zipfile.ZipFile(checked_wheel(Path(found), WHEEL, SHA256)) as archive:
            stored = io.BytesIO(archive.read("resemblyzer/pretrained.pt"))
        state = torch.load(stored, map_location="cpu", weights_only=True)["model_state"]
        kept = {name: value.clone() for name, value in state.items() if name.startswith(("lstm.", "linear."))}
        made = Path(workshop) / file.name
        save_file(kept, made)
        made.replace(file)
    return file
