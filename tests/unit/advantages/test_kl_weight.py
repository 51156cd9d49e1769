"""Weights of the KL terms: uncertainty of an ensemble, and the parts of group-invariant learning."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.advantages.estimate import estimate
from mmgrpo.advantages.select import parts, soft_means, variance_slope
from mmgrpo.advantages.shape import SHAPES
from mmgrpo.advantages.transform import TRANSFORMS
from mmgrpo.advantages.weighting import KL_WEIGHTS
from mmgrpo.config.registry import bind
from mmgrpo.requirements.blocks import refuse_beside
from mmgrpo.requirements.rewards import refuse_start
from mmgrpo.rollout import sample_round
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.scoring import Scorer
from mmgrpo.update import LossRecipe, accumulate_gradients
from tests.building import first_number, near_one, recipe, trainer
from tests.toys import toy_policy, toy_prompts
from tests.trees import plain

ALONE = Accelerator(cpu=True)


def real(rows):
    return torch.tensor(rows, dtype=torch.float64)


def weighed(text, rows, weights=None, names=("a", "b", "c")):
    streams = real(rows)
    inputs = {
        "streams": streams,
        "weights": real(weights or [1] * streams.shape[1]),
        "names": names[: streams.shape[1]],
    }
    return bind(text, KL_WEIGHTS, "kl_weight")(inputs).tolist()


# The variance of an ensemble


def test_the_kl_weighs_the_variance_of_the_ensemble():
    """(1 + 4 + 9) / 2 = 7 with mean 3; / 3 with ddof 0; no disagreement, no regularizer."""
    assert weighed("ensemble_variance", [[1, 2, 6], [2, 2, 2]]) == pytest.approx([7, 0])
    assert weighed("ensemble_variance(ddof=0)", [[1, 2, 6]]) == pytest.approx([14 / 3])
    assert weighed("ensemble_variance(members=['a', 'b'])", [[1, 2, 6]]) == pytest.approx([0.5])
    assert weighed("ensemble_variance", [[1, 2, 6]], [2, 2, 2]) == pytest.approx([28]), "quadratic in the scale"
    assert weighed("ensemble_variance", [[5]]) == [0]


def test_an_uncertain_reward_of_one_is_worth_less_by_its_variance():
    """r - beta s^2 log(pi / pi_0) = 1 - .1 * 4 * .5 = .8, where the plain KL leaves 1 - .1 * .5 = .95."""
    (variance,) = weighed("ensemble_variance(ddof=0)", [[3, -1]])  # mean 1, variance 4
    assert [1 - 0.1 * one * 0.5 for one in (variance, 1)] == pytest.approx([0.8, 0.95])


# Group-invariant learning


def rows_cut(values, of="rows", key=None):
    values = real(values)
    key = torch.tensor(key) if key else torch.zeros(len(values), dtype=torch.long)
    return parts(values, key, torch.ones(len(values), dtype=torch.bool), of)


def test_rows_are_cut_where_the_parts_differ_most():
    """.1, .2 | .8, .9: parts .15 and .85, centre .5. Equal rewards are not cut apart."""
    found = rows_cut([0.9, 0.1, 0.8, 0.2])
    assert found.high.tolist() == [True, False, True, False] and float(found.centre) == pytest.approx(0.5)
    assert found.mean.tolist() == pytest.approx([0.85, 0.15, 0.85, 0.15])
    assert rows_cut([1, 1, 1, 0]).high.tolist() == [True, True, True, False]
    assert rows_cut([0.3, 0.3]) is None


def test_no_soft_assignment_has_a_larger_variance_between_its_parts():
    """Why a cut may stand for a classifier: sum_g n_g (R_g - R)^2 with n_g = sum_i p(g | i) is convex in p."""
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(6, generator=generator, dtype=torch.float64)

    def between(p):
        """Of probabilities [n, 6] of the first of two parts."""
        both = torch.stack([p, 1 - p])
        return (both * values).sum(-1).square().div(both.sum(-1).clamp(min=1e-12)).sum(0)

    best = between(rows_cut(values.tolist()).high.double()[None])
    soft = torch.rand(5000, 6, generator=generator, dtype=torch.float64)
    hard = torch.cartesian_prod(*[real([0, 1])] * 6)
    assert (between(soft) < best).all() and torch.isclose(between(hard).max(), best[0])


def test_the_penalty_of_rows_is_the_gradient_of_mean_minus_variance():
    """Parts .85 and .15 about .5 with coef 1: factors 1 - 2 (.35) = .3 and 1.7; hard rows count more."""
    values = real([0.9, 0.1, 0.8, 0.2])
    inputs = {"values": values, "key": torch.zeros(4, dtype=torch.long), "stat": torch.ones(4, dtype=torch.bool)}
    inputs["advantages"] = real([1, -1, 1, -1])
    made = bind("group_invariant(coef=1, of='rows')", SHAPES, "shape")(inputs)
    assert made.tolist() == pytest.approx([0.3, -1.7, 0.3, -1.7])


def test_the_kl_holds_the_easy_part_and_lets_the_hard_one_explore():
    inputs = {"values": real([0.9, 0.1, 0.8, 0.2]), "key": torch.tensor([0, 0, 1, 1])}
    inputs["stat"] = torch.ones(4, dtype=torch.bool)
    assert bind("high_part", KL_WEIGHTS, "kl_weight")(inputs).tolist() == [1, 0, 1, 0]
    prompts = bind("high_part(of='prompts')", KL_WEIGHTS, "kl_weight")
    assert prompts({**inputs, "values": real([0.9, 0.7, 0.3, 0.2])}).tolist() == [1, 1, 0, 0]
    assert prompts({**inputs, "values": real([0.5] * 4)}).tolist() == [1, 1, 1, 1]


CLASSIFIED = {"values": [1.0, 0.0, 9.0], "share": [0.75, 0.25, 0.5], "stat": [True, True, False]}


def test_groups_of_a_classifier_have_soft_means_and_hard_ones_those_of_the_cut():
    """Shares .75 and .25 of rewards 1 and 0: R_1 = .75, R_0 = .25; the factor of the first row is .75 (1 - 2 (.25)) +
    .25 (1 + 2 (.25)) = .75. The third row is not of the policy: .5 (.5 + 1.5)."""
    values, share, stat = (torch.tensor(one) for one in CLASSIFIED.values())
    rows = values.double()[:, None]
    inputs = {"values": rows, "raw": rows, "names": ["a"], "weights": real([2]), "stat": stat}
    inputs["group_share"] = share.double()
    transform, weight = (
        bind("classified_invariant", TRANSFORMS, "test"),
        bind("classified_high", KL_WEIGHTS, "kl_weight"),
    )
    assert transform(inputs)[:, 0].tolist() == pytest.approx([0.75, 0, 9])
    assert weight(inputs)[:2].tolist() == [0.75, 0.25]
    assert weight({**inputs, "group_share": 1 - share})[:2].tolist() == [0.25, 0.75][::-1]  # whatever it is called
    four = {"values": real([[0.9], [0.1], [0.8], [0.2]]), "names": ["a"], "stat": torch.ones(4, dtype=torch.bool)}
    made = transform({**four, "group_share": real([1, 0, 1, 0])})[:, 0]
    assert made.tolist() == pytest.approx([0.9 * 0.3, 0.1 * 1.7, 0.8 * 0.3, 0.2 * 1.7])


def test_rewards_by_group_have_the_policy_gradient_of_mean_minus_variance():
    """Four answers, equally likely, with groups that are equally large: R_g = sum_i pi_i p(g | i) r_i / (1/2)."""
    logits, rewards = torch.zeros(4, dtype=torch.float64, requires_grad=True), real([0.9, 0.1, 0.8, 0.2])
    share, coef = real([0.9, 0.2, 0.6, 0.3]), 0.7
    means = (torch.stack([1 - share, share]) * rewards * logits.softmax(0)).sum(1) / 0.5
    [wanted] = torch.autograd.grad(means.mean() - coef * means.var(correction=0), logits)
    inputs = {"values": rewards[:, None], "names": ["a"], "stat": torch.ones(4, dtype=torch.bool)}
    made = bind(f"classified_invariant(coef={coef})", TRANSFORMS, "test")({**inputs, "group_share": share})[:, 0]
    [found] = torch.autograd.grad((logits.softmax(0) * made).sum(), logits)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_the_slope_of_the_variance_between_groups_is_its_derivative():
    values, share, stat = (torch.tensor(one) for one in CLASSIFIED.values())
    assert variance_slope(values, share, stat).tolist() == pytest.approx([0.25, -0.25, 0])
    generator = torch.Generator().manual_seed(0)
    values, share = torch.rand(2, 7, generator=generator, dtype=torch.float64)
    share.requires_grad_()
    stat = torch.arange(7) != 3
    means, sizes = soft_means(values, share, stat), torch.stack([1 - share, share])[:, stat].sum(1)
    (sizes / 6 * (means - values[stat].mean()).square()).sum().backward()
    torch.testing.assert_close(variance_slope(values, share.detach(), stat), share.grad, rtol=0, atol=1e-12)


# On the way to the loss


def kl_of(tmp_path, kl_weight, micro_batch_size):
    """The KL of each row in the loss of a policy that has left its reference, and the factors."""
    policy = toy_policy()
    scorers = [Scorer("a", first_number), Scorer("b", near_one)]
    loss = LossRecipe.of("ppo", "per_sample", terms=["kl_k3(coef=0.5)"])
    made = trainer(policy, tmp_path, toy_prompts(2), scorers=scorers, loss=loss, advantages=recipe(kl_weight=kl_weight))
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter += 0.05
    settings = {"cursor": 0, "number": 0, "seed": 0, "accelerator": ALONE}
    batch = sample_round(policy, scorers, made.recipe, made.prompts, made.order, made.rounds, **settings).batch
    sums = []
    for row in range(batch.decisions.rows):
        rows = torch.arange(batch.decisions.rows) == row
        settings = {"micro_batch_size": micro_batch_size, "accelerator": ALONE, "on_policy": True}
        sums.append(accumulate_gradients(policy, batch, rows, loss, **settings).sums["term/kl_k3"])
    return torch.tensor(sums), batch.decisions.fields["kl_weight"][:, 0]


@pytest.mark.parametrize("micro_batch_size", [2, 64])
def test_the_factor_multiplies_the_kl_of_each_sample(tmp_path, micro_batch_size):
    plain, ones = kl_of(tmp_path, "none", micro_batch_size)
    uncertain, variance = kl_of(tmp_path, "ensemble_variance", micro_batch_size)
    assert (ones == 1).all() and (plain > 0).all() and variance.std() > 0
    torch.testing.assert_close(uncertain, variance * plain, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_factor_keeps_its_digits_whatever_the_precision_of_the_policy(dtype):
    """The variance of 1000 and 1001 is .5, and of 1000 and 1301 is 45300.5: bfloat16 has 45312, float16 45312 too."""
    values = torch.tensor([[1000.0, 1001.0], [1000.0, 1301.0]])
    decisions = replace(plain([2, 1]), log_probs=torch.zeros(2, 2, dtype=dtype))
    made = recipe(kl_weight="ensemble_variance")
    found = estimate(values, values > 0, torch.ones(2), decisions, made, ["a", "b"])
    assert found.kl_weight.dtype == torch.float32 and found.kl_weight.tolist() == [0.5, 45300.5]
    field = found.weighing(decisions).fields["kl_weight"]
    assert field.dtype == torch.float32 and field.tolist() == [[0.5, 0.5], [45300.5, 45300.5]]


def test_a_weight_without_a_kl_term_and_members_without_a_weight_are_refused():
    weighing = recipe(kl_weight="ensemble_variance(members=['a', 'b'])")
    with pytest.raises(ValueError, match=r"algorithm\.kl_weight.*ensemble_variance.*algorithm\.terms=kl_"):
        refuse_beside(weighing, LossRecipe.of("ppo", "per_sample", terms=[]), {})
    scorers = [Scorer("a", first_number), Scorer("b", near_one, weight=0.0)]
    with pytest.raises(ValueError, match="algorithm.kl_weight.*'b'.*0"):
        refuse_start(2, weighing, LossRecipe.of("ppo", "per_sample"), scorers, 0.0)
    with pytest.raises(ValueError, match="reward 'b'"):
        refuse_start(2, weighing, LossRecipe.of("ppo", "per_sample"), scorers[:1], 0.0)


def gated(fraction):
    raw = real([[0.9, 0.1, 0.2], [0.2, 0.8, 0.9], [0.6, 0.5, 0.6], [0.4, 0.7, 0.4]])
    inputs = {"raw": raw, "names": ("main", "a", "b"), "stat": torch.ones(4, dtype=torch.bool)}
    text = f"uncertain_part(of='main', auxiliary=['a', 'b'], fraction={fraction})"
    return bind(text, KL_WEIGHTS, "kl_weight")(inputs).tolist()


def test_the_kl_is_the_mean_over_what_the_main_reward_ranks_far_above_the_others():
    # win rates 1 0 2/3 1/3 against (0 1 1/3 2/3 and 0 1 2/3 1/3): U = 1 -1 1/6 -1/6; of 1 and 1/6 the median is 7/12
    assert gated(0.5) == gated(0.1) == [4, 0, 0, 0]
    assert gated(1.0) == [4, 0, 0, 0]  # above the smallest of both


def test_the_gated_fraction_follows_how_far_the_rewards_disagree(tmp_path):
    """A run: each round has the fraction that the uncertainties of the rounds before it leave, within its bounds."""
    scorers = [Scorer("a", first_number), Scorer("b", near_one, weight=0.0)]
    text = "uncertain_part(of='a', auxiliary=['b'], fraction=recent(0.1))"
    loss = LossRecipe.of("ppo", "per_sample", terms=["kl_k3(coef=0.1)"])
    run = {"scorers": scorers, "loss": loss, "advantages": recipe(kl_weight=text), "steps": 6, "lr": 0.1}
    trainer(toy_policy(), tmp_path, toy_prompts(2), **run).fit()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    wanted, seen = [0.1], []
    for line in lines:
        now = line["group/uncertainty"]
        move = 1 if not seen else 1.1 if now > max(seen) else 0.9 if now < min(seen) else 1
        wanted, seen = [*wanted, wanted[-1] * move], [*seen, now]
    assert [line["schedule/uncertain_part.fraction"] for line in lines] == pytest.approx(wanted[:-1])
    assert len({*wanted}) > 1 and min(seen) > 0 and max(seen) <= 1


def test_good_samples_that_differ_from_the_others_count_more():
    inputs = {
        "advantages": real([0.3, 0.1, -0.1, -0.3]),
        "values": real([0.9, 0.7, 0.5, 0.3]),
        "raw": real([[0.2], [0.2], [0.2], [0.4]]),
        "names": ("apart",),
        "key": torch.zeros(4, dtype=torch.long),
        "stat": torch.ones(4, dtype=torch.bool),
    }
    shape = bind("diversity(by='apart')", SHAPES, "shape")
    assert shape(inputs).tolist() == pytest.approx([0.24, 0.08, -0.1, -0.3])  # .2 / .25 above the mean
    assert shape({**inputs, "raw": real([[0.0]] * 4)}).tolist() == inputs["advantages"].tolist()
