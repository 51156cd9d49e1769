"""Weights of rewards that change during a run: the rules by hand, and runs that are interrupted."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest
from accelerate import Accelerator

from mmgrpo.advantages.weighting import WEIGHTINGS, RewardWeights, advance
from mmgrpo.config.registry import bind
from mmgrpo.rollout import sample_round
from mmgrpo.scoring import Scorer
from tests.building import recipe, trainer
from tests.toys import toy_policy, toy_prompts


def after(rule, state, **observed):
    return advance([bind(rule, WEIGHTINGS, "weighting")], state, **observed)


def weights(*values):
    return RewardWeights(tuple(map(float, values)))


# The rules


def test_the_price_of_a_constraint_rises_while_it_is_missed_and_falls_to_zero():
    rule, names = "dual_ascent(by='safe', least=0.9, rate=2, limit=0.5)", ["good", "safe"]
    state = weights(1, 0)
    prices = []
    for mean in (0.8, 0.8, 0.8, 0.95, 1.0, 1.0, 1.0):
        state = after(rule, state, names=names, round_means=[5.0, mean])
        prices.append(state.values[1])
    # + .2 twice, then the limit; - .1, - .2, - .2, and no further
    assert prices == pytest.approx([0.2, 0.4, 0.5, 0.4, 0.2, 0, 0]) and state.values[0] == 1
    assert after(rule, state, names=names, round_means=[5.0, math.nan]) == state


def test_a_price_changes_one_weight_and_leaves_those_before_and_behind_it():
    rule = "dual_ascent(by='b', least=1, rate=1)"
    got = after(rule, weights(7, 1, 5, 6), names=["a", "b", "c", "d"], round_means=[9.0, 0.5, 9.0, 9.0])
    assert got.values == (7, 1.5, 5, 6)


def test_the_smallest_mean_gains_weight():
    got = after("least_first(rate=1)", weights(1, 1, 0), round_means=[math.log(3), 0.0, -9.0])
    assert got.values == pytest.approx((0.5, 1.5, 0))  # 1/3 : 1, of sum 2; weight 0 stays 0
    assert after("least_first", weights(1, 1), round_means=[0.3, 0.3]).values == pytest.approx((1, 1))
    assert after("least_first", weights(0.7), round_means=[0.3]).values == pytest.approx((0.7,))


def test_a_stricter_rule_takes_over_from_an_easier_one():
    rule, names = "relay(of='easy', by='strict', at=2)", ["easy", "other", "strict"]
    seen = [after(rule, RewardWeights((0.5, 1.0, 0.0), rounds=count), names=names).values for count in (0, 1, 2, 3)]
    assert seen == [(0.5, 1, 0)] * 2 + [(0, 1, 0.5)] * 2
    assert after(rule, RewardWeights((0.0, 1.0, 0.5), rounds=3), names=names).values == (0, 1, 0.5)


def test_rewards_whose_gradients_agree_gain_weight():
    inner = [[1.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0]]  # sums 2, 3
    got = after("gradient(rate=1)", weights(1, 1, 0), inner_products=inner)
    share = 1 / (1 + math.e)
    assert got.values == pytest.approx((2 * share, 2 - 2 * share, 0))
    assert after("gradient(rate=1)", weights(1, 1), inner_products=[[math.nan, 0.0], [0.0, 1.0]]) == weights(1, 1)
    unused = [[*inner[0][:2], 0.0], [*inner[1][:2], 0.0], [math.nan] * 3]
    assert after("gradient(rate=1)", weights(1, 1, 0), inner_products=unused) == got, "weight 0 has no say"


def test_the_gain_of_hypervolume_is_a_factor_of_the_advantages():
    state = weights(1, 1, 0)
    factors = []
    for point in [(0.0, 0.0, 9.0), (1.0, 0.5, 9.0), (0.5, 1.0, 9.0), (0.4, 0.4, 9.0), (math.nan, 1.0, 9.0)]:
        state = after("hypervolume", state, evaluation_means=list(point))
        factors.append(state.factor)
    # gains .5, .25 and 0; the last point is not known, so nothing changes
    wanted = [1, 0.5 + 1.5 * math.tanh(0.5), 0.86738, 0.5, 0.5]
    assert factors == pytest.approx(wanted, abs=5e-6)
    assert state.front == ((0, 0), (1, 0.5), (0.5, 1)) and state.values == (1, 1, 0)


def test_a_reward_that_is_to_fall_gains_where_it_falls():
    state = after("hypervolume", weights(1, -1), evaluation_means=[0.0, 1.0])
    assert after("hypervolume", state, evaluation_means=[1.0, 0.5]).factor > 0.5
    assert after("hypervolume", state, evaluation_means=[1.0, 1.5]).factor == 0.5


def test_a_rule_waits_for_what_it_looks_at():
    assert after("hypervolume", weights(1), names=["a"], round_means=[0.5]) == weights(1)
    assert after("least_first", weights(1, 2), evaluation_means=[0.5, 1.0]) == weights(1, 2)


def test_the_state_survives_json_exactly():
    state = RewardWeights((1 / 3, 0.1), 0.86738, ((0.1, 1 / 7), (0.3, math.pi)), 7)
    assert RewardWeights.read(json.loads(json.dumps(asdict(state)))) == state
    assert (
        RewardWeights.read({"values": [1.0], "factor": 1.0, "front": []})
        == RewardWeights((1.0,), 1.0, (), 0)
        == weights(1)
    )


# Runs


def low(prompts, outputs):
    return [float(output.pixels[0].mean()) for output in outputs]


def high(prompts, outputs):
    return [-float(output.pixels[0].mean()) + 0.1 * float(output.pixels[1].mean()) for output in outputs]


@pytest.mark.parametrize(
    "blocks, message",
    [
        ({"weighting": ["dual_ascent(by='safe', least=0, rate=1)"]}, "'safe'"),
        ({"transform": ["gate(by='hihg', least=0, floor=0)"]}, "'high'"),
        ({"combine": "minimum(members=['low', 'x'])"}, "reward 'x'"),
        ({"transform": ["par"]}, "'0'.*reference_rewards None.*'low'"),
        ({"weighting": ["hypervolume", "least_first"]}, "hypervolume"),
    ],
)
def test_blocks_that_do_not_suit_the_rewards_are_refused_before_anything_is_sampled(blocks, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        trainer(
            toy_policy(steps=3),
            tmp_path,
            toy_prompts(2),
            heldout=toy_prompts(2),
            every=1,
            advantages=recipe(**blocks),
            scorers=[Scorer("low", low), Scorer("high", high)],
        )


def test_members_without_weight_negative_weights_and_absent_evaluations_are_refused(tmp_path):
    def refused(second, **blocks):
        scorers = [Scorer("low", low), Scorer("high", high, second)]
        trainer(toy_policy(steps=3), tmp_path, toy_prompts(2), advantages=recipe(**blocks), scorers=scorers)

    with pytest.raises(ValueError, match="'high'.*0"):
        refused(0.0, combine="minimum(members=['low', 'high'])")
    with pytest.raises(ValueError, match="weights.*negative"):
        refused(-1.0, weighting=["least_first"])
    with pytest.raises(ValueError, match="eval.every.*data.heldout"):
        refused(1.0, weighting=["hypervolume"])


# References of the prompts


def test_rewards_are_compared_with_the_references_of_their_own_prompt(tmp_path):
    prompts = [replace(p, meta={"reference_rewards": {"low": [i, i]}}) for i, p in enumerate(toy_prompts(2))]
    run = trainer(
        toy_policy(steps=3),
        tmp_path,
        prompts,
        advantages=recipe(transform=["par(of='low', slope=100)"], baseline="none", scale="none"),
        scorers=[Scorer("low", lambda p, o: [0.5] * len(o)), Scorer("high", high, 0.0)],
        steps=1,
    )
    round_ = sample_round(
        run.policy, run.scorers, run.recipe, prompts, run.order, run.rounds,
        cursor=0, number=0, seed=0, accelerator=Accelerator(cpu=True),
    )  # fmt: skip
    advantages = round_.batch.advantages[:, 0].view(2, 4).tolist()
    found = [{round(advantage, 6) for advantage in group} for group in advantages]
    assert sorted(map(tuple, found)) == [(0.0,), (1.0,)]  # .5 against 0 wins, against 1 loses


@pytest.mark.parametrize("second", [[1.0], [1.0, math.nan], [], None, [1.0, "2"]])
def test_a_prompt_without_as_many_references_as_the_first_is_named(second, tmp_path):
    given = [{"low": [0.0, 1.0]}, {"low": second}]
    prompts = [replace(p, meta={"reference_rewards": g}) for p, g in zip(toy_prompts(2), given, strict=True)]
    with pytest.raises(ValueError, match="'1'.*reference_rewards.*'low'.*list.*2"):
        trainer(
            toy_policy(steps=3),
            tmp_path,
            prompts,
            advantages=recipe(transform=["log_sigmoid_quantile(of='low')"]),
            scorers=[Scorer("low", low), Scorer("high", high)],
        )
