"""What rules of weighting observe of a round: means, and products of the gradients of single rewards."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.advantages.weighting import RewardWeights
from mmgrpo.evaluation import Evaluation, directions
from mmgrpo.rollout import sample_round
from mmgrpo.rounds.reward_weights import WeightingRules, inner_products
from mmgrpo.scoring import Scorer
from mmgrpo.update import LossRecipe
from tests.building import attached, first_number, recipe, trainer
from tests.journeys.cli.running import read_lines
from tests.toys import toy_policy, toy_prompts
from tests.unit.advantages.test_weighting import high, low, weights


def falls(prompts, outputs):
    return [-value for value in first_number(prompts, outputs)]


def constant(prompts, outputs):
    return [1.0] * len(outputs)


def round_of(folder, *scorers, steps=3, **settings):
    made = trainer(toy_policy(steps=steps), folder, toy_prompts(2), scorers=scorers, **settings)
    return made, sample_round(
        made.policy, made.scorers, made.recipe, made.prompts, made.order, made.rounds,
        cursor=0, number=0, seed=0, accelerator=Accelerator(cpu=True),
    )  # fmt: skip


def products(made, round_, weights, tensors=9, **changes):
    made.loss = changes.get("loss", made.loss)
    return torch.tensor(inner_products(made, round_, weights, tensors=tensors))


@pytest.mark.parametrize("steps", [2, 3])
def test_gradients_of_opposite_rewards_are_opposite_and_a_reward_without_weight_has_none(steps, tmp_path):
    scorers = [Scorer("up", first_number), Scorer("off", first_number, 0.0), Scorer("down", falls)]
    made, round_ = round_of(tmp_path, *scorers, steps=steps)
    for parameter in made.trained.values():
        parameter.grad = torch.ones_like(parameter)  # of the last step
    found = products(made, round_, [1.0, 0.0, 1.0])
    size = float(found[0, 0])
    assert size > 0
    torch.testing.assert_close(found / size, torch.tensor([[1.0, 0, -1], [0, 0, 0], [-1, 0, 1]]))
    assert all(parameter.grad is None for parameter in made.trained.values())
    torch.testing.assert_close(products(made, round_, [1.0, 0.0, 5.0]), found)  # weights do not scale gradients
    terms = LossRecipe.of("ppo", "per_sample", terms=["kl_velocity(coef=9.0)"])
    torch.testing.assert_close(products(made, round_, [1.0, 0.0, 1.0], loss=terms), found)  # nor do terms
    last = products(made, round_, [1.0, 0.0, 1.0], tensors=1)
    assert 0 < last[0, 0] < found[0, 0], "of the last tensor alone"


def test_a_reward_that_selects_nothing_has_a_gradient_of_zero(tmp_path):
    scorers = [Scorer("same", constant), Scorer("up", first_number)]
    made, round_ = round_of(tmp_path, *scorers, advantages=recipe(select=["drop_zero_spread"]))
    found = products(made, round_, [1.0, 1.0])
    assert found[1, 1] > 0 and found.flatten()[:3].tolist() == [0, 0, 0]


def test_before_the_first_update_a_coupled_objective_is_scored_once_for_each_reward(tmp_path):
    made, round_ = round_of(tmp_path, Scorer("up", first_number), Scorer("down", falls))
    calls, score = [], made.policy.score
    made.policy.score = lambda *given: (calls.append(1), score(*given))[1]
    products(made, round_, [1.0, 1.0], loss=LossRecipe.of("gspo", "per_decision"))
    assert len(calls) == 2


def test_a_round_tells_the_weights_that_it_had_and_the_rules_make_the_next(tmp_path):
    scorers = [Scorer("one", constant), Scorer("safe", constant, 0.5)]
    blocks = recipe(weighting=["dual_ascent(by='safe', least=3.0, rate=0.25)"])
    made, round_ = round_of(tmp_path, *scorers, advantages=blocks)
    made.reward_weights = RewardWeights((1.0, 0.5), factor=0.75, rounds=4)
    metrics = WeightingRules().on_rollout_end(made, round_)
    assert metrics == {"weight/one": 1.0, "weight/safe": 0.5, "weight/factor": 0.75}
    # the mean is 1, 2 below what is wanted
    assert made.reward_weights == RewardWeights((1.0, 1.0), 0.75, rounds=5)


def test_a_run_samples_each_round_with_the_weights_that_the_round_before_has_made(tmp_path):
    blocks = recipe(weighting=["dual_ascent(by='safe', least=3.0, rate=0.25)"])
    scorers = [Scorer("one", first_number), Scorer("safe", constant, 0.5)]
    made = trainer(toy_policy(), tmp_path, toy_prompts(2), scorers=scorers, advantages=blocks, steps=3)
    made.fit()
    # each round the mean is 1, 2 below what is wanted
    assert [line["weight/safe"] for line in read_lines(tmp_path / "metrics.jsonl")] == [0.5, 1.0, 1.5]


def test_an_evaluation_is_observed_by_its_means_of_what_could_be_scored(tmp_path):
    nan, scorers = float("nan"), [Scorer("a", constant), Scorer("b", constant)]
    blocks = recipe(weighting=["hypervolume"])
    made = trainer(
        toy_policy(), tmp_path, toy_prompts(2), scorers=scorers, advantages=blocks, heldout=toy_prompts(2), every=1
    )

    def observed(title, **values):
        attached(made, WeightingRules).on_evaluate(made, title, Evaluation(values))
        return made.reward_weights.front

    assert observed("before-other", a=[1.0], b=[9.0]) == (), "only held-out prompts have a say"
    assert observed("before", a=[0.0, nan, 1.0], b=[0.25]) == ((0.5, 0.25),)
    assert observed("step-000001", a=[nan], b=[9.0]) == ((0.5, 0.25),)
    made.step = 1
    assert observed("before", a=[9.0], b=[9.0]) == ((0.5, 0.25),), "a resumed run has observed it"


def test_the_direction_of_a_reward_is_the_sign_of_its_weight():
    scorers = [Scorer("up", constant, 0.1), Scorer("down", constant, -3.0), Scorer("off", constant, 0.0)]
    assert directions(scorers, recipe()) == {"up": 1.0, "down": -1.0}
    assert directions([replace(scorers[0], weight=-0.1)], recipe()) == {"up": -1.0}


# Runs of the rules


def weighed(folder, weighting, *, steps=4, second=1.0, **more):
    scorers = [Scorer("low", low, 1.0), Scorer("high", high, second)]
    return trainer(
        toy_policy(steps=3),
        folder,
        toy_prompts(4),
        heldout=toy_prompts(3),
        advantages=recipe(weighting=[weighting], **more),
        scorers=scorers,
        steps=steps,
        every=2,
    )


def lines(folder):
    return [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]


RULES = [
    "dual_ascent(by='high', least=0.5, rate=0.3)",
    "least_first(rate=0.5)",
    "gradient(rate=10.0, tensors=2)",
    "hypervolume",
    "relay(of='low', by='high', at=4)",
]


@pytest.mark.parametrize("rule", RULES)
def test_a_run_that_is_interrupted_goes_on_with_the_same_weights(rule, tmp_path):
    whole = weighed(tmp_path / "whole", rule, steps=6)
    whole.fit()
    first = weighed(tmp_path / "part", rule, steps=6)
    first._evaluate_before()
    for _ in range(3):
        first.run_round()
        if first.step == 2:
            first.measure("step-000002", first.evaluation.prompts)
    first.save()
    second = weighed(tmp_path / "part", rule, steps=6)
    assert second.resume() and second.reward_weights == first.reward_weights
    second.fit()
    assert second.reward_weights == whole.reward_weights != RewardWeights((1.0, 1.0))
    columns = [name for name in lines(tmp_path / "whole")[0] if name.startswith(("weight/", "reward/", "loss"))]
    straight, resumed = ([[row[name] for name in columns] for row in lines(tmp_path / f)] for f in ("whole", "part"))
    assert straight == resumed and {"weight/low", "weight/high", "weight/factor"} <= set(columns)


def test_the_weights_of_a_round_are_those_that_it_was_estimated_with(tmp_path):
    run = weighed(tmp_path, "least_first(rate=5)", steps=3)
    run.fit()
    first, second, third = lines(tmp_path)
    assert (first["weight/low"], first["weight/high"]) == (1, 1)
    factors = [math.exp(-5 * first[f"reward/{name}/mean"]) for name in ("low", "high")]
    wanted = [2 * factor / sum(factors) for factor in factors]
    assert [second["weight/low"], second["weight/high"]] == pytest.approx(wanted)
    assert third["weight/low"] != second["weight/low"]


def test_gradients_of_rewards_are_compared_and_none_is_left_behind(tmp_path):
    """With one reward twice, all four inner products are equal, and the weights stay."""
    run = weighed(tmp_path, "gradient(rate=10.0)", steps=2)
    run.scorers = [replace(run.scorers[0], name=name) for name in ("low", "high")]
    still = weighed(tmp_path / "fixed", "least_first(rate=1e-300)", steps=2)
    still.scorers = run.scorers
    run.fit(), still.fit()
    assert run.reward_weights.values == pytest.approx((1, 1), rel=1e-6)
    pairs = zip(run.trained.values(), still.trained.values(), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in pairs)


def test_gradients_that_oppose_the_others_lose_weight(tmp_path):
    """Of a, a and -a: the sums of inner products are 1, 1 and -1 times |g|^2."""
    run = weighed(tmp_path, "gradient(rate=1e3)", steps=1)
    low_, high_ = run.scorers[0], Scorer("high", lambda p, o: [-value for value in low(p, o)])
    run.scorers = [low_, replace(low_, name="again"), high_]
    run.reward_weights = weights(1, 1, 1)
    run.fit()
    one, two, three = run.reward_weights.values
    assert one == pytest.approx(two) and three < 0.9 < one
