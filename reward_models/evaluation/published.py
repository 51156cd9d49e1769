"""Published accuracies of rewards, and whether a copy of a reward reproduces them.

Papers differ about each other's models (LAION's predictor on HPDv2: 72.6 or 76.8), so every target names its source.
A difference of one point is tolerated: resizing, precision and versions of libraries move some pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TOLERANCE = 0.01


@dataclass(frozen=True)
class Target:
    """A number that a table prints for a reward on a benchmark, as a fraction."""

    data: str
    """The format of the benchmark (``protocols``)."""
    value: float
    source: str
    number: str = "headline"
    """Which number of ``evaluate`` it is: a key, or two joined with a dot."""
    parameters: str = ""
    """Parameters of the reward with which it was measured, e.g. ``version='2.1'``."""


HPSV3 = "HPSv3, arXiv:2508.03789, table 2"
CLIP_H = f"{HPSV3}: CLIP ViT-H, not the default"
MPS = "MPS, arXiv:2405.14705, README"
HPSV2 = "HPSv2, arXiv:2306.09341, README"
IMSCORE = "imscore's own measurement (RE-N-Y/imscore, README)"
WITH_TIES = "with_ties.tuned_on_the_same_pairs"

TARGETS: dict[str, tuple[Target, ...]] = {
    "clip_score": (
        Target("imagereward", 0.571, CLIP_H),
        Target("hpdv2", 0.651, CLIP_H),
        Target("pickapic", 0.608, CLIP_H),
        Target("hpdv3", 0.486, CLIP_H),
    ),
    "aesthetic": (
        Target("imagereward", 0.574, HPSV3),
        Target("hpdv2", 0.768, HPSV3),
        Target("hpdv2", 0.726, MPS),
        Target("hpdv3", 0.599, HPSV3),
    ),
    "image_reward": (
        Target("imagereward", 0.651, HPSV3),
        Target("hpdv2", 0.740, HPSV3),
        Target("hpdv2", 0.706, MPS),
        Target("pickapic", 0.611, HPSV3),
        Target("hpdv3", 0.586, HPSV3),
    ),
    "pickscore": (
        Target("imagereward", 0.616, HPSV3),
        Target("imagereward", 0.629, HPSV2),
        Target("hpdv2", 0.798, HPSV3),
        Target("pickapic", 0.705, "PickScore, arXiv:2305.01569, table 1", WITH_TIES),
        Target("pickapic", 0.802, IMSCORE),
        Target("hpdv3", 0.656, HPSV3),
    ),
    "hpsv2": (
        Target("imagereward", 0.657, HPSV2, parameters="version='2.0'"),
        Target("hpdv2", 0.833, HPSV2, parameters="version='2.0'"),
        Target("imagereward", 0.668, HPSV2, parameters="version='2.1'"),
        Target("hpdv2", 0.841, HPSV2, parameters="version='2.1'"),
    ),
    "mps": (
        Target("imagereward", 0.675, MPS),
        Target("hpdv2", 0.835, MPS),
        Target("pickapic", 0.631, HPSV3),
        Target("hpdv3", 0.643, HPSV3),
    ),
    "hpsv3": (
        Target("imagereward", 0.668, HPSV3),
        Target("hpdv2", 0.854, HPSV3),
        Target("pickapic", 0.728, HPSV3),
        Target("hpdv3", 0.769, HPSV3),
    ),
    "scene_score": (Target("scenes", 0.872, "measured here; the check of this check, without any weights"),),
}
"""Published accuracies by reward."""


@dataclass(frozen=True)
class Verdict:
    """A measured number against its target."""

    target: Target
    measured: float | None
    """None where nothing could be measured."""
    failed: int
    """Outputs that could not be scored."""

    @property
    def passed(self) -> bool:
        """Within the tolerance, and every output was scored."""
        near = self.measured is not None and abs(self.measured - self.target.value) <= TOLERANCE + 1e-9
        return near and not self.failed

    def __str__(self) -> str:
        of = f"{self.target.data}, {self.target.number}: published {self.target.value:.3f}"
        if self.measured is None:
            return f"FAIL  {of}, nothing could be scored ({self.target.source})"
        lost = f", {self.failed} outputs could not be scored" if self.failed else ""
        difference = self.measured - self.target.value
        word = "pass" if self.passed else "FAIL"
        return f"{word}  {of}, measured {self.measured:.3f}, difference {difference:+.3f}{lost} ({self.target.source})"


def verdicts(targets: Sequence[Target], result: dict[str, Any]) -> list[Verdict]:
    """The measured numbers of ``evaluate`` against targets of the same benchmark."""
    rows = []
    for target in targets:
        value: Any = result
        for key in target.number.split("."):
            value = value[key]
        rows.append(Verdict(target, value, result["failed"]))
    return rows
