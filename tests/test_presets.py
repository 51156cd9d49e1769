"""Every preset binds, says what it is, and matches the kind of policy it is for."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest

from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.objectives import AGGREGATIONS, MISMATCH, OBJECTIVES, TERMS
from mmgrpo.presets import BASE, CATALOGUE, GAUSSIAN_ONLY, PRESETS, TOKENS_ONLY
from mmgrpo.registry import bind, parse
from mmgrpo.runtime.config import Algorithm

GAUSSIAN_SCORES = {"shift", "std", "dt", "level", "reference_shift", "reference_velocity_gap"}
TWENTY = [
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce_pp_baseline",
    "lite_ppo",
    "dapo",
    "gspo",
    "cispo",
    "sapo",
    "grpo_tis",
    "gdpo",
    "gpg",
    "gmpo",
    "grpo_filtered",
    "reinforce_ada",
    "gvpo",
    "disco",
    "ngrpo",
    "tree_grpo",
    "gfpo",
]
VISUAL = [
    "flow_grpo",
    "flow_grpo_fast",
    "dance_grpo",
    "mix_grpo",
    "granular_grpo",
    "branch_grpo",
    "tempflow",
    "grpo_guard",
    "flow_dppo",
]


@pytest.mark.parametrize("name", PRESETS)
def test_every_block_of_a_preset_exists(name):
    blocks = PRESETS[name]
    AdvantageRecipe.of(Algorithm(**blocks))
    bind(blocks["objective"], OBJECTIVES, "objective")
    bind(blocks["mismatch"], MISMATCH, "mismatch")
    bind(blocks["aggregation"], AGGREGATIONS, "weights")
    for term in blocks["terms"]:
        bind(term, TERMS, "term")
    for sampler in blocks["sampler"]:
        assert parse(sampler)[0] == "dynamic_sampling"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_every_field_of_the_algorithm_and_says_what_it_is(name):
    assert PRESETS[name].keys() == BASE.keys() == {f.name for f in fields(Algorithm)} - {"preset"}
    assert CATALOGUE[name].about.endswith(".") and "\n" not in CATALOGUE[name].about


@pytest.mark.parametrize("name", PRESETS)
def test_presets_that_need_gaussian_scores_or_entropies_say_so(name):
    blocks = PRESETS[name]
    bounds = [bind(blocks["objective"], OBJECTIVES, ""), bind(blocks["aggregation"], AGGREGATIONS, "")]
    bounds += [bind(term, TERMS, "") for term in blocks["terms"]]
    needs = {need for bound in bounds for need in bound.block.needs}
    needs |= AdvantageRecipe.of(Algorithm(**blocks)).fields
    if needs & GAUSSIAN_SCORES:
        assert name in GAUSSIAN_ONLY
    if "entropy" in needs:
        assert name in TOKENS_ONLY


def test_the_well_known_are_there():
    assert set(TWENTY) <= PRESETS.keys() and set(VISUAL) <= GAUSSIAN_ONLY
    assert len(TWENTY) == 20 and not TOKENS_ONLY & GAUSSIAN_ONLY


def test_presets_do_not_share_their_lists():
    lists = [id(value) for blocks in (BASE, *PRESETS.values()) for value in blocks.values() if isinstance(value, list)]
    assert len(lists) == len(set(lists))


def test_reading_the_presets_does_not_load_torch():
    code = "import sys, mmgrpo.presets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
