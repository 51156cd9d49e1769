"""What rules of weighting observe of a round: means, and products of the gradients of single rewards."""

from __future__ import annotations

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
