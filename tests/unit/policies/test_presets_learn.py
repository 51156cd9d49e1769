"""Every kind of policy learns in about a second under every preset that is for any of them.

The worlds are those of the twins (``benchmarks.twins.worlds``): points on a circle, that is a mixture of all its
angles in two dimensions, of which one is asked for; words; and a scale of classes. Presets for denoising or matching
policies alone have twins with thresholds of their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import pytest

from benchmarks.twins.derive import Twin, derive_twin, train_twin
from mmgrpo.config.plugins import recipe
from mmgrpo.config.presets import CATALOGUE
from mmgrpo.config.reading import load_yaml


@dataclass(frozen=True)
class Kind:
    """A kind of policy: the recipe whose sampling, groups and optimizer it takes, and the least gain."""

    recipe: str
    least: float
    """At most half of the smallest gain of any preset and seed that were looked at; who learns nothing gains 0."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    optim: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 0
    policies: tuple[str, ...] = ("any",)
    """Presets that it takes (``Preset.policies``)."""
    refuses: tuple[str, ...] = ()
    """Presets whose blocks this policy does not have (``test_presets_on_policies``)."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Presets that do not learn here, and why."""


OFFLINE = ("gr_dpo", "gr_ipo", "sft")
"""Trained on given answers alone (tests/unit/test_offline.py, test_supervised_rounds.py)."""
DATA = ("chord", "chord_phi", "rmt", "hc_grpo")
"""Their data sets have solutions."""
TEACHERS = ("rto", "opd", "va_opd", "tgdpo")
STEPS = ("treerpo", "vineppo", "clip_delta", "text2grad", "subpo", "tw_grpo", "gigpo", "igpo", "turn_ppo", "sepo")
STEPS += ("polychromic_ppo", "archer", "module_grpo", "agent_flow", "magrpo")
"""They need sampling of their own: trees, states of texts, turns, divergences, tokens given all others."""
BUNDLES = {"risk_po": "sums over bundles of five prompts: their noise hides what a sample earned"}
PUSHED = {"w_reinforce": "good samples count a tenth of bad ones, and what is pushed away goes without a bound"}

KINDS: Mapping[str, Kind] = {
    "gaussian": Kind("visual/flow_grpo", 0.2, refuses=(*OFFLINE, *DATA, "tree_grpo", "tempsamp_r1"), others=BUNDLES),
    "matching": Kind(
        "visual/diffusion_nft",
        0.025,
        refuses=(*OFFLINE, *DATA, "tree_grpo", "tempsamp_r1"),
        others={**BUNDLES, **PUSHED},
    ),
    "neighbors": Kind(
        "visual/neighbor_grpo",
        0.05,
        sampling={"temperature": 2.0},  # the values of a latent, as in the recipe
        refuses=(*OFFLINE, *DATA, "tree_grpo", "tempsamp_r1", "xpo", "knapsack"),
        others={**BUNDLES, **PUSHED},
    ),
    "tokens": Kind(
        "vlm/visual_rft",
        0.15,
        policies=("any", "tokens"),
        refuses=(*OFFLINE, *DATA, *TEACHERS, *STEPS, "tree_grpo"),
        others={"ar_grpo": "meant for codes of images: words gain .125 with it in as many rounds (seed 0)"},
    ),
    "choices": Kind(
        "speech/dmospeech2",
        0.015,
        optim={"lr": 6e-2},
        rounds=32,
        refuses=(*OFFLINE, *DATA, "tree_grpo", "tempsamp_r1", "xpo"),
        others={
            **BUNDLES,
            "brpo": "its advantage is the reward, which is never negative here",
            "semi_online_dpo": "a class is right from .5 on, as most are before training",
        },
    ),
}


def cases() -> list[tuple[str, str]]:
    return [
        (name, preset)
        for name, kind in KINDS.items()
        for preset, entry in CATALOGUE.items()
        if entry.policies in kind.policies and preset not in (*kind.refuses, *kind.others)
    ]


def twin_of(name: str, preset: str) -> Twin:
    """The recipe of the kind with another preset, at the size of its world."""
    kind = KINDS[name]
    section = load_yaml(recipe(kind.recipe))
    section["algorithm"] = {"preset": preset}
    section["sampling"] = {**section.get("sampling", {}), **kind.sampling}
    made = derive_twin(f"{name}/{preset}", section)
    steps = kind.rounds * made.section["optim"].get("updates", 1) or made.section["steps"]
    steps *= 2 if preset == "xpo" else 1  # half of its rows are the reference's
    changed = {"steps": steps, "optim": {**made.section["optim"], **kind.optim}}
    if preset == "prorl":  # its reset follows evaluations
        changed["eval"] = {**made.section["eval"], "every": 8}
    return replace(made, section={**made.section, **changed})


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize(("kind", "preset"), cases())
def test_a_policy_learns_under_a_preset(kind, preset, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = train_twin(twin_of(kind, preset), 0, tmp_path)
    assert fmean(made["after"]) - fmean(made["before"]) > KINDS[kind].least
