"""DNSMOS P.835 (arXiv:2110.01763): Microsoft's predictor of the mean opinion score that listeners give a recording.

The network is part of the package speechmos (MIT), from which it is read directly: the package's own code needs librosa
for another score. It was trained to assess noise suppression and measures noise and artefacts, not words.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.speech.audio import import_library, score_sounds

RATE = 16_000
WINDOW = 144_160
"""Samples of the network's input, 9.01 s; a shorter recording is doubled until it fills it."""

POLYNOMIALS = {
    "sig": (-0.08397278, 1.22083953, 0.0052439),
    "bak": (-0.13166888, 1.60915514, -0.39604546),
    "ovrl": (-0.06766283, 1.11546468, 0.04602535),
}
"""Coefficients a, b, c of a x^2 + b x + c, from the network's output to the scale of listeners (DNS Challenge,
microsoft/DNS-Challenge, DNSMOS/dnsmos_local.py)."""


@reward(
    "Audio",
    range=(1, 5),
    scale="mean opinion score, about",
    packages=("onnxruntime", "speechmos"),
    extra="voice",
    source="DNSMOS P.835, arXiv:2110.01763",
)
def dnsmos(prompts: Sequence[Prompt], outputs: Sequence[Output], part: str = "ovrl") -> list[float]:
    """Predicted mean opinion score, about 1 (bad) to 5 (excellent), by ``part``: ovrl (overall), sig (speech), bak
    (background).

    The mean over windows of 9.01 s that begin at whole seconds (``window_starts``), as in Microsoft's dnsmos_local.py.
    A recording that is empty, silent or NaN is NaN.
    """
    if part not in POLYNOMIALS:
        raise ValueError(f"dnsmos: got part '{part}', expected one of {', '.join(POLYNOMIALS)}")

    _session()  # here, since concurrent first calls from the threads below would each load the network

    def score(samples: np.ndarray, prompt: Prompt) -> float:
        return mean_opinion_scores(samples)[part]

    return score_sounds(prompts, outputs, score, rate=RATE, reward=f"dnsmos({part})", prompt_key=lambda prompt: "")


def mean_opinion_scores(samples: np.ndarray) -> dict[str, float]:
    """All three scores of a recording at 16 kHz."""
    while len(samples) < WINDOW:
        samples = np.append(samples, samples)
    session, starts = _session(), window_starts(len(samples))
    rows = [session.run(None, {"input_1": samples[None, start : start + WINDOW]})[0][0] for start in starts]
    scores = {
        name: [float(np.polyval(coefficients, row[column])) for row in rows]
        for column, (name, coefficients) in enumerate(POLYNOMIALS.items())
    }
    return {name: float(np.mean(values)) for name, values in scores.items()}


def window_starts(length: int) -> range:
    """First samples of the windows of a recording of at least ``WINDOW`` samples: every second as long as the sound's
    whole seconds have another 9.01 of them, and the beginning.

    10.9 s have one window, 11 s two. (The published code loses the windows from the eighth second to the 24th, whose
    ends it rounds to one sample less than the network takes.)
    """
    return range(0, max(1, length // RATE - WINDOW // RATE) * RATE, RATE)


@functools.cache
def _session() -> Any:
    runtime = import_library("onnxruntime")
    spec = importlib.util.find_spec("speechmos")
    if spec is None or spec.origin is None:
        import_library("speechmos")
        raise FileNotFoundError(
            "dnsmos: the package speechmos is installed without files on disk, from which its network is read; "
            "install its wheel: pip install speechmos"
        )
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1  # several recordings are scored in parallel
    model = Path(spec.origin).parent / "dnsmos_models" / "sig_bak_ovr.onnx"
    return runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
