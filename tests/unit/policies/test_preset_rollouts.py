"""What policies that are made for a preset really draw: shared decisions, windows, subsets, branches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mmgrpo
from mmgrpo.toy import scenes
from mmgrpo.types import Decisions, Policy, Prompt, Request
from pipelines import visual
from pipelines.visual import sd3
from tests.unit.test_api import brightness

PROMPTS = [Prompt("a red circle"), Prompt("two blue squares")]
SIZES = {"height": 16, "width": 16, "evaluation_steps": 2, "seed": 3}
SMALL = {"steps": 1, "prompts_per_step": 2, "trackers": [], "threads": 1}


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> str:
    """A tiny Stable Diffusion 3 that draws scenes."""
    return str(sd3.tiny_words(tmp_path_factory.mktemp("words"), scenes.vocabulary()))


def policy_for(words: str, preset: str, **options) -> Policy:
    return visual.policy(words, preset=preset, **SIZES, **options)


def drawn(policy: Policy, group_size: int, number: int = 0, prompts: int = 1) -> Decisions:
    return policy.rollout(Request(PROMPTS[:prompts], range(prompts), group_size, seed=5, round=number)).decisions


def stochastic(decisions: Decisions) -> list[int]:
    """Steps in which the first row draws noise."""
    return decisions.decision_mask[0].nonzero().flatten().tolist()


def distinct(decisions: Decisions) -> list[int]:
    """Different decisions at each step in which noise is drawn."""
    return [len(decisions.node[:, step].unique()) for step in stochastic(decisions)]


def test_branch_grpo_draws_a_tree_whose_rows_share_their_beginnings(words):
    decisions = drawn(policy_for(words, "branch_grpo"), 16)
    # Splits in two at steps 0, 3, 6 and 9 of 20; the last step draws nothing.
    assert distinct(decisions) == [2] * 3 + [4] * 3 + [8] * 3 + [16] * 10
    assert int(decisions.loss_mask.sum()) == 202  # of 16 x 19: what rows share is trained once


def test_mix_grpo_draws_and_trains_its_window_alone(words):
    policy = policy_for(words, "mix_grpo")
    for number, window in ((0, [0, 1, 2, 3]), (24, [0, 1, 2, 3]), (25, [1, 2, 3, 4])):  # it moves every 25 rounds
        decisions = drawn(policy, 4, number)
        assert stochastic(decisions) == window
        assert torch.equal(decisions.loss_mask, decisions.decision_mask) and int(decisions.loss_mask.sum()) == 16


def test_flow_grpo_fast_draws_two_steps_of_the_first_half(words):
    policy = policy_for(words, "flow_grpo_fast")
    starts = set()
    for seed in range(12):
        decisions = policy.rollout(Request(PROMPTS[:1], [0], 4, seed=seed)).decisions
        first, second = stochastic(decisions)
        assert second == first + 1 and int(decisions.loss_mask.sum()) == 8
        starts.add(first)
    assert starts <= set(range(6)) and len(starts) > 1  # up to .5 of 10 steps


def test_dance_grpo_draws_every_step_and_trains_a_subset_of_each_row(words):
    decisions = drawn(policy_for(words, "dance_grpo"), 8)
    assert stochastic(decisions) == [*range(9)]
    assert decisions.loss_mask.sum(1).tolist() == [5] * 8  # int(.6 * 9)
    assert len({tuple(row) for row in decisions.loss_mask.tolist()}) > 1


def test_tempflow_draws_one_step_from_four_noises(words):
    decisions = drawn(policy_for(words, "tempflow"), 8)
    assert len(stochastic(decisions)) == 1 and stochastic(decisions)[0] < 5
    assert decisions.keys["tree"].unique(return_counts=True)[1].tolist() == [2] * 4


def test_granular_grpo_branches_once_at_every_step_of_the_first_half_and_previews(words):
    policy = policy_for(words, "granular_grpo")
    rollout = policy.rollout(Request(PROMPTS[:1], [0], 4, seed=5))
    noisy = rollout.decisions.decision_mask[::4]  # the first row of each of the groups
    assert noisy.sum(1).tolist() == [1] * 5 and sorted(noisy.long().argmax(1).tolist()) == [*range(5)]
    assert rollout.previews.keys() == {"interval2", "interval3"}


def test_e_grpo_branches_once_in_the_first_half(words):
    decisions = drawn(policy_for(words, "e_grpo"), 4)
    assert distinct(decisions) == [4] and stochastic(decisions)[0] < 5


def test_pro_grpo_completes_a_quarter_of_what_it_begins(words):
    policy = policy_for(words, "pro_grpo")
    request = Request(PROMPTS[:1], [0], 48, seed=5, judge=lambda prompts, outputs: torch.arange(float(len(outputs))))
    decisions = policy.rollout(request).decisions
    assert len(decisions.loss_mask) == 12 and stochastic(decisions) == [*range(9)]


def test_flow_tree_grpo_splits_in_three_at_three_steps_in_a_row(words):
    decisions = drawn(policy_for(words, "flow_tree_grpo"), 27)
    first = stochastic(decisions)[0]
    assert stochastic(decisions) == [first, first + 1, first + 2] and distinct(decisions) == [3, 9, 27]


def test_tree_grpo_compares_within_trees_of_four_samples(words):
    decisions = drawn(policy_for(words, "tree_grpo"), 16)
    assert decisions.keys["tree"].unique(return_counts=True)[1].tolist() == [4] * 4


def test_cm_grpo_trains_one_step_which_is_another_for_each_prompt(words):
    policy, steps = policy_for(words, "cm_grpo"), set()
    for seed in range(6):
        decisions = policy.rollout(Request(PROMPTS, [0, 1], 4, seed=seed)).decisions
        assert decisions.loss_mask.sum(1).tolist() == [1] * 8
        chosen = decisions.loss_mask.long().argmax(1).tolist()
        assert len({*chosen[:4]}) == len({*chosen[4:]}) == 1
        steps.add(chosen[0] == chosen[4])
    assert False in steps


def test_dense_grpo_completes_states_by_the_whole_ode_of_however_many_steps(words):
    def evaluations(**options) -> int:
        return policy_for(words, "dense_grpo", **options).rollout(Request(PROMPTS[:1], [0], 2, seed=5)).evaluations

    for steps in (4, 12):
        whole = evaluations(steps=steps)
        assert whole == evaluations(steps=steps, completion_steps=steps) > evaluations(steps=steps, completion_steps=1)


@pytest.mark.parametrize(
    ("preset", "kind"), [("awm", "matching"), ("tdm_r1", "matching"), ("neighbor_grpo", "neighbors")]
)
def test_decisions_are_of_the_kind_of_the_preset(words, preset, kind):
    assert policy_for(words, preset).kind == kind


# ---- the policy exists before the preset is known


@pytest.mark.parametrize(
    ("preset", "made", "name"),
    [
        ("mix_grpo", {}, "sliding_window.*every_step"),
        ("dance_grpo", {"plan": "random_subset"}, r"kernel='dance\(eta=0.3\)'.*flow_sde"),
        ("branch_grpo", {"preset": "mix_grpo"}, "branch_tree.*sliding_window"),
        ("awm", {}, "policy='matching'.*transitions"),
        ("neighbor_grpo", {}, "policy='neighbors'.*transitions"),
    ],
)
def test_a_policy_with_the_defaults_is_refused_by_a_preset_that_has_others(
    words, preset, made, name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    policy = visual.policy(words, **SIZES, **made)
    with pytest.raises(ValueError, match=f"^preset: '{preset}'.*{name}.*preset='{preset}'"):
        mmgrpo.train(policy, ["a red circle", "two blue squares"], [brightness], preset=preset, **SMALL)
    assert not Path("runs").exists()


@pytest.mark.slow
def test_what_a_caller_chose_is_kept_and_stated(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    policy = visual.policy(words, **SIZES, steps=4, plan="random_window(size=1)")
    run = mmgrpo.train(policy, ["a red circle", "two blue squares"], [brightness], preset="mix_grpo", **SMALL)
    kept = {"sampling.plan": "random_window(size=1)", "sampling.kernel": "flow_sde(a=0.7)"}
    assert run.summary["preset_settings"] == kept and run.metrics[0]["decisions"] == 2 * 8


@pytest.mark.slow
def test_a_policy_that_is_made_for_a_preset_trains_as_it_says_in_groups_of_its_size(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    policy = policy_for(words, "branch_grpo")
    run = mmgrpo.train(policy, ["a red circle", "two blue squares"], [brightness], preset="branch_grpo", **SMALL)
    assert run.summary["preset_settings"] == {
        **{"sampling.plan": "branch_tree(splits=[0, 3, 6, 9], factor=2, sibling_scale=4.0)", "sampling.steps": 20},
        **{"sampling.kernel": "dance(eta=0.3)", "data.group_size": 16},
    }
    assert run.metrics[0]["decisions"] == 2 * 202
