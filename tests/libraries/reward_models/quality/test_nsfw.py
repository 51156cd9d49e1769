"""The NSFW classifier: what it sees, how its numbers are read, and that it calls harmless pictures harmless."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mmgrpo.types import Image, Prompt, Text
from reward_models.quality import nsfw as module
from reward_models.quality.nsfw import nsfw, preprocess
from tests.libraries.reward_models.photographs import clock, fetched, image, portrait, texture

PROMPT = Prompt("anything", "0")


def test_the_network_sees_blue_green_red_less_their_means_of_the_centre():
    pixels = torch.zeros(3, 256, 256)
    pixels[0], pixels[1], pixels[2] = 200 / 255, 100 / 255, 50 / 255
    pixels[:, :, :14] = 0  # beyond the crop, and beyond the blocks of JPEG at its edge
    seen = preprocess(Image(pixels))
    assert seen.shape == (224, 224, 3) and seen.dtype == np.float32
    # blocks of chroma are 16 pixels wide, so the first of them is mixed; JPEG is exact to a few levels
    assert np.abs(seen[:, 16:] - (50 - 104, 100 - 117, 200 - 123)).max() <= 3


def answer(monkeypatch, probabilities: list[float]) -> list[int]:
    """Put a network in place that says this; the sizes of its batches."""
    sizes, waiting = [], iter(probabilities)

    def run(_, given):
        sizes.append(len(given["input_0"]))
        return [np.array([(1 - p, p) for p in (next(waiting) for _ in given["input_0"])])]

    monkeypatch.setattr(module, "_session", lambda _: SimpleNamespace(run=run))
    return sizes


def test_the_value_is_the_probability_that_a_picture_is_harmless(monkeypatch):
    broken = Image(torch.full((3, 4, 4), math.nan))
    sizes = answer(monkeypatch, [0.25, 0.75])
    first, second, third = nsfw([PROMPT] * 3, [image(clock()), broken, image(clock())])
    assert (first, third) == (0.75, 0.25) and math.isnan(second) and sizes == [2]


def test_a_threshold_makes_a_gate(monkeypatch):
    broken = Image(torch.full((3, 4, 4), math.nan))
    answer(monkeypatch, [0.49, 0.5, 0.9])
    values = nsfw([PROMPT] * 4, [image(clock()), image(clock()), broken, image(clock())], threshold=0.5)
    assert values[:2] + values[3:] == [1.0, 0.0, 0.0] and math.isnan(values[2])
    for wrong in (0, -0.1, 1.5):
        with pytest.raises(ValueError, match=r"nsfw.*threshold.*1\]"):
            nsfw([PROMPT], [image(clock())], threshold=wrong)


def test_many_pictures_are_seen_in_batches(monkeypatch):
    sizes = answer(monkeypatch, [0.0] * 20)
    assert nsfw([PROMPT] * 20, [Image(torch.rand(3, 1, 1))] * 20) == [1.0] * 20 and sizes == [16, 4]
    assert nsfw([], []) == []


def test_the_network_runs_on_one_thread_of_the_cpu(tmp_path, monkeypatch):
    made = []

    def session(path: str, options: Any, providers: list[str]) -> str:
        made.append((path, options.intra_op_num_threads, providers))
        return "session"

    package = SimpleNamespace(SessionOptions=SimpleNamespace, InferenceSession=session)
    monkeypatch.setitem(sys.modules, "onnxruntime", package)
    monkeypatch.setattr(module, "weights_folder", lambda *asked: {("open-nsfw", "x", "nsfw"): tmp_path}[asked])
    assert module._session.__wrapped__("x") == "session"
    assert made == [(str(tmp_path / "open_nsfw.onnx"), 1, ["CPUExecutionProvider"])]


@pytest.mark.slow
def test_harmless_pictures_are_harmless_alone_and_together():
    fetched("open-nsfw")
    huge, tiny = image(texture(2048)), Image(torch.rand(3, 1, 1))
    outputs = [image(portrait()), image(clock()), image(portrait().convert("L").convert("RGB")), huge, tiny]
    together = nsfw([PROMPT] * 5, outputs)
    assert all(0.9 < value <= 1 for value in together[:3])
    assert together == pytest.approx([nsfw([PROMPT], [output])[0] for output in outputs], abs=1e-5)
    assert nsfw([PROMPT], outputs[:1], threshold=0.2) == [1.0]
    with pytest.raises(TypeError, match="nsfw.*Text"):
        nsfw([PROMPT], [Text("hello")])
