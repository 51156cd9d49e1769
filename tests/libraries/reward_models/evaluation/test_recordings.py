"""Sounds of benchmarks: wav files that are read without a library."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest
import torch

from reward_models.evaluation.media import read_wav


def written(levels: np.ndarray, channels: int = 1, width: int = 2) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "w") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(8_000)
        file.writeframes(levels.tobytes())
    return buffer.getvalue()


def test_sixteen_bits_become_numbers_from_minus_one_to_one(tmp_path):
    levels = np.array([0, 32767, -32767, -32768], "<i2")
    (tmp_path / "a.wav").write_bytes(written(levels))
    for source in (tmp_path / "a.wav", written(levels)):
        sound = read_wav(source)
        assert sound.rate == 8_000 and sound.samples.tolist() == [[0, 1, -1, -1]]
    both = read_wav(written(levels, channels=2))
    assert torch.equal(both.samples, torch.tensor([[0.0, -1.0], [1.0, -1.0]]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (written(np.zeros(6, np.uint8), width=1), "6.*8.*16"),
        (written(np.zeros(6, np.uint8), width=3), "6.*24"),
        (written(np.zeros(0, "<i2")), "0.*16"),
        (written(np.zeros(6, "<i2"))[:-4], "4.*16.*6"),
        (b"RIFF", "wav"),
        (b"no sound at all", "wav"),
    ],
)
def test_another_or_a_damaged_file_is_an_error(content, message):
    with pytest.raises(OSError, match=message):
        read_wav(content)
