"""What a preset is: the defaults of a recipe's ``algorithm`` section, and changes of them. It imports no torch."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

BASE: dict[str, Any] = {
    "transform": [],
    "weighting": [],
    "combine": "weighted_sum",
    "keys": ["prompt"],
    "baseline": "group_mean",
    "scale": "group_std(ddof=1, eps=1e-4)",
    "shape": [],
    "credit": "broadcast",
    "select": [],
    "sampler": [],
    "objective": "ppo(low=0.2, high=0.2)",
    "off_policy": "importance",
    "mismatch": "none",
    "aggregation": "per_sample",
    "terms": [],
    "kl_weight": "none",
}
"""The defaults of a preset: GRPO (arXiv:2402.03300) with the sample std, without its KL."""


@dataclass(frozen=True)
class Preset:
    """A named choice of blocks."""

    about: str
    """A description in one sentence."""
    policies: str
    """``any``, ``tokens``, ``gaussian`` or ``matching``."""
    blocks: dict[str, Any]


def for_any(about: str, **changes: Any) -> Preset:
    assert changes.keys() <= BASE.keys(), changes
    return Preset(about, "any", deepcopy(BASE | changes))


def for_tokens(about: str, **changes: Any) -> Preset:
    return Preset(about, "tokens", for_any(about, **changes).blocks)


def for_matching(about: str, **changes: Any) -> Preset:
    return Preset(about, "matching", for_any(about, **changes).blocks)


def for_gaussian(about: str, **changes: Any) -> Preset:
    return Preset(about, "gaussian", for_any(about, **changes).blocks)


DYNAMIC = {"select": ["drop_zero_spread"], "sampler": ["dynamic_sampling(rounds=10)"]}
"""DAPO (arXiv:2503.14476): groups without spread are dropped and replaced, at most 10 times."""

FLOW = {"scale": "batch_std(ddof=0, eps=1e-4)", "shape": ["clamp(limit=5)"], "select": ["drop_zero_spread"]}
"""Flow-GRPO (arXiv:2505.05470), advantages of its released configurations: prompt mean, batch std
(population, 1e-4 added), clip at 5, rows without advantage removed."""

DANCE = {"combine": "per_reward", "scale": "group_std(ddof=1, eps=1e-8)", "shape": ["clamp(limit=5)"]}
"""DanceGRPO (arXiv:2505.07818): each reward standardized in its group (1e-8 added), clip at 5."""
