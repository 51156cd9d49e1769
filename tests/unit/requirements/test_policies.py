"""Algorithms that do not suit a policy or the rewards of a run, and those that do."""

from __future__ import annotations

from math import inf

import pytest

from mmgrpo.prompts.drawing import Sampling
from mmgrpo.requirements.policies import refuse_mismatch
from mmgrpo.requirements.rewards import refuse_ranges, refuse_start, refuse_unsuited
from mmgrpo.scoring import Scorer
from mmgrpo.scoring.manifest import Manifest
from mmgrpo.types import Prompt
from mmgrpo.update import LossRecipe
from tests.building import recipe
from tests.unit.test_update import Leaf


def loss(*terms: str) -> LossRecipe:
    return LossRecipe.of("ppo", "per_sample", terms=list(terms))


def scored(**weights: float) -> list[Scorer]:
    return [Scorer(name, lambda prompts, outputs: [0.0] * len(outputs), float(one)) for name, one in weights.items()]


@pytest.mark.parametrize(
    ("blocks", "terms", "message"),
    [
        ({}, ["entropy_bonus(coef=0.1)"], "log_probs.*reference.log_probs"),
        ({"select": ["drop_truncated"]}, [], "sampler_log_probs"),
        ({"keys": ["tree"]}, [], "algorithm.keys.*tree"),
        ({"credit": "tree_depth(beta=1.0)"}, [], "algorithm.credit.*tree_depth.*sampling.tree"),
        ({"credit": "tree_softmax"}, [], "algorithm.credit.*tree_softmax.*sampling.tree"),
        ({"credit": "tree_siblings"}, [], "algorithm.credit.*tree_siblings.*sampling.tree"),
        ({"select": ["parent_top1"]}, [], "algorithm.select.*parent_top1.*sampling.tree"),
    ],
)
def test_what_a_policy_cannot_do_is_refused_by_name(blocks, terms, message):
    with pytest.raises(ValueError, match=message):
        refuse_mismatch(Leaf([[0.0]]), recipe(**blocks), loss(*terms))


def test_what_a_policy_can_do_and_a_round_adds_is_taken():
    policy = Leaf([[0.0]])
    refuse_mismatch(policy, recipe(), loss())
    refuse_mismatch(policy, recipe(baseline="static_reference"), loss("kl_k3(coef=0.1)"))
    policy.provides |= {"entropy"}
    bonus = loss("entropy_bonus(coef=0.1)")
    refuse_mismatch(policy, recipe(), bonus)
    policy.fields |= frozenset(recipe(kl_weight="high_part").fields)
    refuse_mismatch(policy, recipe(kl_weight="high_part"), loss("kl_k3(coef=0.1)", "entropy_bonus(coef=0.1)"))


PROMPTS = [Prompt("p", "1", meta={"reference_value": 0.5, "reference_rewards": {"a": [1.0]}})]


@pytest.mark.parametrize(
    ("blocks", "weights", "evaluates", "message"),
    [
        ({"combine": "minimum(members=['a', 'c'])"}, {"a": 1}, True, "reward 'c'"),
        (
            {"combine": "minimum(members=['a', 'b'])"},
            {"a": 1, "b": 0},
            True,
            "combine.*'b'",
        ),
        ({"weighting": ["hypervolume"]}, {"a": 1}, False, "evaluations"),
        ({"weighting": ["least_first"]}, {"a": 1, "b": -1}, True, "algorithm.weighting.*least_first.*negative"),
        ({"weighting": ["gradient(rate=1)"]}, {"a": -1}, True, "algorithm.weighting.*gradient.rate=1.*negative"),
        ({"kl_weight": "ensemble_variance(members=['a', 'b'])"}, {"a": 1, "b": 1}, True, "kl_weight.*terms"),
        ({"weighting": ["hypervolume", "least_first"]}, {"a": 1}, True, "hypervolume"),
        ({"baseline": "static_reference"}, {"a": 1}, True, "'2'.*reference_value None"),
        ({"transform": ["par"]}, {"a": 1}, True, "'2'.*reference_rewards None.*'a'"),
    ],
)
def test_what_the_rewards_do_not_bear_is_refused(blocks, weights, evaluates, message):
    with pytest.raises(ValueError, match=message):
        unsuited(blocks, weights, [*PROMPTS, Prompt("p", "2")], evaluates)


@pytest.mark.parametrize(
    ("blocks", "weights", "evaluates"),
    [
        ({}, {"a": -1}, False),
        ({"weighting": ["hypervolume"]}, {"a": -1}, True),
        ({"weighting": ["least_first"]}, {"a": 1, "b": 0}, False),
        ({"weighting": ["least_first", "gradient(rate=1)"]}, {"a": 1}, False),
        ({"combine": "minimum(members=['a'])"}, {"a": -2, "b": 0}, False),
        ({"baseline": "static_reference"}, {"a": 1}, False),
        ({"transform": ["par"]}, {"a": 1, "b": 0}, False),  # b is not trained on and needs no references
    ],
)
def test_what_they_bear_is_taken(blocks, weights, evaluates):
    unsuited(blocks, weights, PROMPTS, evaluates)


def unsuited(blocks, weights, prompts, evaluates):
    """What a run by hand with these blocks, weights of rewards and prompts is refused."""
    advantages, rewards = recipe(**blocks), scored(**weights)
    refuse_start(2, advantages, loss(), rewards, 0.0)
    refuse_unsuited(Leaf([[0.0]]), advantages, loss(), rewards, prompts, evaluates, {})


def declaring(*rewards: tuple[float, float, float]) -> list[Scorer]:
    """Rewards a, b, ... of a range and a weight."""
    made = [
        (name, Manifest(("Text",), low, high), weight)
        for name, (low, high, weight) in zip("abc", rewards, strict=False)
    ]
    return [Scorer(n, lambda prompts, outputs: [0.0] * len(outputs), w, manifest=one) for n, one, w in made]


UNIT, SIGNED, BELOW, ANY = (0, 1, 1.0), (-1, 1, 1.0), (-inf, 0, 1.0), (-inf, inf, 1.0)
OUTSIDE = [
    ({}, ["beta"], [BELOW], "trackers.*'beta'.*a: at most 0"),
    ({}, ["beta"], [ANY], "trackers.*'beta'.*any number"),
    ({}, ["beta(half=1.0)"], [UNIT, UNIT], r"trackers.*half.*\[0, 2\]"),
    ({}, ["beta"], [(0, 1, -1.0)], r"trackers.*\[-1, -?0\]"),
    ({"scale": "bernoulli"}, [], [SIGNED], r"scale.*bernoulli.*\[-1, 1\]"),
    ({"scale": "beta_pdf(low=-1, high=0)"}, [], [UNIT], r"scale.*beta_pdf.*\[-1, 0\].*\[0, 1\]"),
    ({"scale": "bernoulli", "combine": "per_reward"}, [], [UNIT, (-1, 0, 0.5)], "scale.*bernoulli"),
    ({"scale": "mapo"}, [], [SIGNED], "scale.*mapo"),
    ({"shape": ["noise_weight"]}, [], [(0, 5, 1.0)], "shape.*noise_weight"),
]


@pytest.mark.parametrize(("blocks", "trackers", "rewards", "words"), OUTSIDE)
def test_a_block_that_reads_rates_is_refused_by_what_rewards_declare(blocks, trackers, rewards, words):
    bound = Sampling.of([], trackers).trackers
    with pytest.raises(ValueError, match=f"algorithm.{words}"):
        refuse_ranges(recipe(**blocks), bound, declaring(*rewards))
    # What a transform makes of them, or a reward without a range, is known in the round alone.
    refuse_ranges(recipe(**blocks, transform=["clip(low=0, high=1)"]), bound, declaring(*rewards))
    refuse_ranges(recipe(**blocks), bound, [*declaring(*rewards), *scored(d=1)])
    refuse_ranges(recipe(**blocks), bound, [])


@pytest.mark.parametrize(
    ("blocks", "trackers", "rewards"),
    [
        ({}, ["beta"], [UNIT]),
        ({}, ["beta"], [(0, 1, 0.5), (0, 1, 0.5), (0, 6, 0.0)]),
        ({}, ["beta"], [(0, 2, 0.5)]),
        ({}, ["window"], [ANY]),
        ({"scale": "bernoulli", "combine": "per_reward"}, [], [UNIT, (0, 1, 5.0)]),
        ({"scale": "beta_pdf(low=-1, high=1)"}, [], [SIGNED]),
        ({"scale": "mean"}, [], [(0, inf, 2.0)]),
    ],
)
def test_rewards_within_the_range_that_a_block_reads_are_taken(blocks, trackers, rewards):
    refuse_ranges(recipe(**blocks), Sampling.of([], trackers).trackers, declaring(*rewards))


def test_rewards_that_pass_on_those_of_others_declare_no_range():
    from mmgrpo.rewards import entries

    manifests = {name: row.read_manifest() for name, row in entries().items()}
    delegating = {name for name, one in manifests.items() if one and one.delegates}
    assert {"task", "by_task", "served", "frames", "tool_reward"} <= delegating
    assert not {"exact", "jpeg_compressibility", "pickscore"} & delegating
