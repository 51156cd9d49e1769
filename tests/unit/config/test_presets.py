"""Every preset binds, says what it is, and matches the kind of policy it is for."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import asdict, fields

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.advantages.estimate import AdvantageRecipe, estimate
from mmgrpo.config.presets import BASE, CATALOGUE, KINDS, PRESETS, presets, read
from mmgrpo.config.registry import bind_scheduled as bind
from mmgrpo.config.settings import Algorithm
from mmgrpo.objectives import AGGREGATIONS, MISMATCH, OBJECTIVES, TERMS
from mmgrpo.prompts.drawing import Sampling
from mmgrpo.rollout import sample_round
from mmgrpo.update import LossRecipe
from tests.building import algorithm_blocks, near_one, trainer
from tests.toys import toy_policy, toy_prompts
from tests.trees import plain

GAUSSIAN_SCORES = {"shift", "std", "dt", "level", "reference.shift", "reference.velocity_gap", "reference.kl"}
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
    samplers = Sampling.of(blocks["sampler"], blocks["trackers"])
    assert samplers.redraws().rounds == (10 if "_sampling(" in "".join(blocks["sampler"]) else 0)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_every_field_of_the_algorithm_and_says_what_it_is(name):
    assert PRESETS[name].keys() == BASE.keys() == {f.name for f in fields(Algorithm)} - {"preset"}
    assert CATALOGUE[name].about.endswith(".") and "\n" not in CATALOGUE[name].about


@pytest.mark.parametrize("name", PRESETS)
def test_presets_that_need_gaussian_scores_or_entropies_say_so(name):
    blocks = PRESETS[name]
    bounds = [bind(blocks["objective"], OBJECTIVES, ""), bind(blocks["aggregation"], AGGREGATIONS, "")]
    bounds += [bind(term, TERMS, "") for term in blocks["terms"]]
    needs = {need for bound in bounds for need in bound.needs}
    needs |= AdvantageRecipe.of(Algorithm(**blocks)).fields
    if needs & GAUSSIAN_SCORES:
        # errors at drawn noise levels have differences of velocities too
        assert CATALOGUE[name].policies == "gaussian" or needs & GAUSSIAN_SCORES == {"reference.velocity_gap"}
    if "entropy" in needs:
        assert CATALOGUE[name].policies == "tokens"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_needs_a_reference_network_exactly_where_a_block_scores_by_it(name):
    blocks = PRESETS[name]
    bounds = [bind(blocks["objective"], OBJECTIVES, ""), *(bind(term, TERMS, "") for term in blocks["terms"])]
    by_it = any(need.startswith("reference.") for bound in bounds for need in bound.needs)
    loss = LossRecipe.of(blocks["objective"], blocks["aggregation"], blocks["mismatch"], blocks["terms"])
    assert loss.needs_reference == by_it


def test_the_well_known_are_there():
    assert set(TWENTY) <= PRESETS.keys() and len(TWENTY) == 20
    assert {CATALOGUE[name].policies for name in VISUAL} == {"gaussian"}


def test_presets_do_not_share_their_lists():
    lists = [id(value) for blocks in (BASE, *PRESETS.values()) for value in blocks.values() if isinstance(value, list)]
    assert len(lists) == len(set(lists))


def test_reading_the_presets_does_not_load_torch():
    code = "import sys, mmgrpo.config.presets as p; sys.exit(not p.CATALOGUE or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_help_of_the_commands_reads_no_presets():
    code = "import sys; from mmgrpo.cli import main; main.run([]); sys.exit('mmgrpo.config.presets' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


# ---- files


def test_people_start_with_a_dozen_presets_and_every_kind_has_some():
    assert len([one for one in CATALOGUE.values() if one.kind == "start_here"]) == 12
    assert list(dict.fromkeys(one.kind for one in CATALOGUE.values())) == list(KINDS)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_preset_has_a_source(name):
    source = CATALOGUE[name].source
    assert re.fullmatch(r"arXiv:\d{4}\.\d{4,5}", source) or "arXiv" not in source


def test_lines_that_a_record_does_not_state_are_the_defaults_of_the_settings(tmp_path):
    (tmp_path / "text.yaml").write_text("a: {about: A., policies: any, source: A, blocks: {scale: none}}")
    [(name, preset)] = read(tmp_path / "text.yaml")
    defaults = asdict(Algorithm())
    assert {"preset": "grpo", **preset.blocks} == defaults | {"scale": "none"}
    assert (name, preset.kind, preset.sampling, preset.data, preset.notes) == ("a", "text", {}, {}, "")


A = "about: A., policies: any, source: A"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "mapping"),
        ("a: 1", "a: .*about"),
        ("a: {about: A., policies: any}", "a: source"),
        (f"a: {{{A}, bloks: {{}}}}", "a: .*'bloks'.*'blocks'"),
        (f"a: {{{A}, notes: 1}}", "a: notes.*1"),
        (f"a: {{{A}, blocks: [ppo]}}", "a: blocks.*ppo"),
        ("a: {about: A., policies: token, source: A}", "a: policies.*'token'.*tokens"),
        (f"a: {{{A}, blocks: {{objectiv: ppo}}}}", "a: blocks: .*'objectiv'.*'objective'"),
        (f"a: {{{A}, blocks: {{objective: [ppo]}}}}", "a: blocks: objective.*ppo"),
        (f"a: {{{A}, blocks: {{terms: kl_k3}}}}", "a: blocks: terms.*kl_k3"),
        (f"a: {{{A}, blocks: {{terms: [1]}}}}", "a: blocks: terms.*1"),
        (f"a: {{{A}, sampling: {{kernel: {{flows: dance}}}}}}", "a: sampling: kernel: .*'flows'.*'flow'"),
        (f"a: {{{A}, data: {{group_size: [2]}}}}", "a: data: group_size.*2"),
        (f"a: {{{A}}}\na: {{{A}}}", "'a'"),
        (f"a: {{{A}, blocks: {{scale: none, scale: none}}}}", "'scale'"),
        ("a: {", "line"),
    ],
)
def test_what_is_no_preset_is_refused_by_file_name_and_key(text, message, tmp_path):
    (tmp_path / "text.yaml").write_text(text)
    with pytest.raises(ValueError, match=rf"^text\.yaml: .*{message}"):
        list(read(tmp_path / "text.yaml"))


def test_a_name_stands_in_one_file(tmp_path, monkeypatch):
    for kind in KINDS:
        (tmp_path / f"{kind}.yaml").write_text(f"{'a' if kind in ('text', 'preferences') else kind}: {{{A}}}")
    monkeypatch.setattr("mmgrpo.config.presets.FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"a .*text\.yaml.*preferences\.yaml"):
        presets()


# ---- what they do


@pytest.mark.parametrize(
    ("name", "plan", "edges"),
    [
        # splits 0, 1, 2 of 5 stochastic steps: 2 + 4 + 8 + 8 + 8 edges a tree
        ("branch_grpo", "branch_tree(splits=[0,1,2])", 2 * 30),
        # after the last split only the better child of each pair: 2 + 4 + 8 + 4 + 4
        ("branch_grpo_pruned", "branch_tree(splits=[0,1,2])", 2 * 22),
        ("flow_tree_grpo", "tree_window(children=2, depth=3)", 2 * 14),  # 2 + 4 + 8
    ],
)
def test_every_edge_of_a_tree_counts_the_same(name, plan, edges, tmp_path):
    """A row of a tree owns between one and all of its edges, so a mean per row would go by ownership."""
    blocks = algorithm_blocks(name)
    made = trainer(toy_policy(plan, steps=6), tmp_path, toy_prompts(2), reward=near_one, group_size=8, **blocks)
    batch = sample_round(
        made.policy, made.scorers, made.recipe, made.prompts, made.order, made.rounds,
        cursor=0, number=0, seed=0, accelerator=Accelerator(cpu=True),
    ).batch  # fmt: skip
    weights = made.loss.aggregation({"loss_mask": batch.loss_mask, "key": batch.decisions.keys["prompt"]})
    owned = batch.loss_mask.sum(1)
    assert owned[owned > 0].unique().numel() > 1
    assert weights[batch.loss_mask].tolist() == pytest.approx([1 / edges] * edges, rel=1e-6)


@pytest.mark.parametrize(("right", "wrong"), [(1.0, 0.0), (1.0, -1.0)])
def test_w_reinforce_learns_mostly_from_what_is_wrong_whatever_stands_for_it(right, wrong):
    """Ten times as much from a wrong answer as from a right one: +0.1 and -1, also where all of a group are wrong."""
    rewards = torch.tensor([[right], [wrong], [wrong], [right], [wrong], [wrong]])
    rows = plain([1] * 6, keys={"prompt": [0, 0, 0, 0, 1, 1]})
    recipe = AdvantageRecipe.of(Algorithm(**PRESETS["w_reinforce"]))
    made = estimate(rewards, torch.ones(6, 1, dtype=torch.bool), torch.ones(1), rows, recipe)
    assert made.samples.tolist() == pytest.approx([0.1, -1, -1, 0.1, -1, -1])
