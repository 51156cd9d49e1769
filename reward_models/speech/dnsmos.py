"""How good does it sound? DNSMOS (arXiv:2110.01763), Microsoft's predictor of what listeners would say.

Its network lies in the package speechmos (MIT) and is read from there without the package's code, which would need
librosa for another score. Made to judge noise suppression, it hears noise and artefacts, not words.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmgrpo.types import Output, Prompt
from reward_models.speech.sounds import judged, needed

RATE = 16_000
WINDOW = 144_160
"""Samples that the network hears at a time, 9.01 s; a shorter sound is repeated to fill it."""

FITS = {
    "sig": (-0.08397278, 1.22083953, 0.0052439),
    "bak": (-0.13166888, 1.60915514, -0.39604546),
    "ovrl": (-0.06766283, 1.11546468, 0.04602535),
}
"""Coefficients a, b, c of a x^2 + b x + c, from the network's output to the scale of listeners (DNS Challenge,
microsoft/DNS-Challenge, DNSMOS/dnsmos_local.py)."""


def dnsmos(prompts: Sequence[Prompt], outputs: Sequence[Output], part: str = "ovrl") -> list[float]:
    """Mean opinion score, about 1 (bad) to 5 (excellent): ``ovrl`` all in all, ``sig`` speech, ``bak`` background.

    The mean over windows of 9.01 s, one a second. A sound that is empty, silent or NaN is NaN.
    """
    if part not in FITS:
        raise ValueError(f"dnsmos: part must be one of {', '.join(FITS)}, got '{part}'")

    _session()  # so that the threads below find it made

    def judge(samples: np.ndarray, prompt: Prompt) -> float:
        return opinion(samples)[part]

    return judged(prompts, outputs, judge, rate=RATE, reward=f"dnsmos({part})", asked=lambda prompt: "")


def opinion(samples: np.ndarray) -> dict[str, float]:
    """All three scores of a sound of 16 kHz."""
    if len(samples) < WINDOW:
        samples = np.resize(samples, WINDOW)
    session, windows = _session(), range(0, len(samples) - WINDOW + 1, RATE)
    heard = [session.run(None, {"input_1": samples[None, start : start + WINDOW]})[0][0] for start in windows]
    scores = {name: [float(np.polyval(FITS[name], row[place])) for row in heard] for place, name in enumerate(FITS)}
    return {name: float(np.mean(values)) for name, values in scores.items()}


@functools.cache
def _session() -> Any:
    runtime = needed("onnxruntime")
    found = importlib.util.find_spec("speechmos")
    if found is None or found.origin is None:
        needed("speechmos")
        raise FileNotFoundError("dnsmos: the package speechmos is installed, but not as files on disk")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1  # sounds are judged side by side
    model = Path(found.origin).parent / "dnsmos_models" / "sig_bak_ovr.onnx"
    return runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
