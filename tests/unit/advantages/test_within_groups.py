"""Blocks that compare a sample with others of its group: worked numbers, reductions and invariances."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.advantages.baseline import BASELINES
from mmgrpo.advantages.estimate import AdvantageRecipe, estimate
from mmgrpo.advantages.scale import SCALES
from mmgrpo.advantages.select import SELECTORS
from mmgrpo.advantages.shape import SHAPES
from mmgrpo.advantages.transform import TRANSFORMS, novelty_reward
from mmgrpo.config.registry import bind
from mmgrpo.config.settings import Algorithm
from mmgrpo.types import HINTED, OWN, REPLAYED, Decisions


def real(rows):
    return torch.tensor(rows, dtype=torch.float64)


def group(values, names=("a", "b"), key=None, **more):
    values = real(values) if isinstance(values[0], list) else real(values)[:, None]
    key = torch.tensor(key or [0] * len(values))
    inputs = {"values": values, "raw": values, "names": names[: values.shape[1]], "key": key}
    return inputs | {"stat": torch.ones(len(values), dtype=torch.bool)} | more


def transformed(text, values, **more):
    return bind(text, TRANSFORMS, "transform")(group(values, **more))


def by_log_prob(*numbers):
    return {"log_probs": real(numbers)[:, None], "decision_mask": torch.ones(len(numbers), 1, dtype=torch.bool)}


def exits(places, answers):
    """Rows that leave a thought at these places, where two given tokens follow before their answers; 0: not at all."""
    position = torch.arange(max(places) + max(answers) + 2)[None]
    place, answer = torch.tensor(places)[:, None], torch.tensor(answers)[:, None]
    given = (answer > 0) & (position >= place) & (position < place + 2)
    decided = position < place + answer + 2 * (answer > 0)
    origin = torch.where(answer[:, 0] > 0, HINTED, OWN)
    return {"decision_mask": decided, "loss_mask": decided & ~given, "origin": origin}


def near(*numbers):
    return pytest.approx(numbers, abs=6e-6)


def test_right_samples_that_are_likely_earn_less():
    given = by_log_prob(-2, -0.5, -1.5, -1)
    assert transformed("unlikely", [1.0, 1, 0, 0], **given)[:, 0].tolist() == [1, 0.8125, 0, 0]
    assert transformed("unlikely(beta=0)", [1.0, 1, 0, 0], **given)[:, 0].tolist() == [1, 1, 0, 0]
    shifted = by_log_prob(-20, 10, -15, -1)  # only the order counts
    assert transformed("unlikely", [1.0, 1, 0, 0], **shifted)[:, 0].tolist() == [1, 0.8125, 0, 0]
    everyone = transformed("unlikely", [1.0] * 4, **given)[:, 0].tolist()
    assert everyone == [1, 0.8125, 0.9375, 0.875]  # a group that is always right has spread


def test_unlikely_ranks_within_each_group():
    given = by_log_prob(-2, -1, -3, -9)
    made = transformed("unlikely(beta=1)", [1.0] * 4, key=[0, 1, 0, 1], **given)[:, 0].tolist()
    assert made == [0.5, 0.5, 1, 1]


def test_the_nth_right_answer_counts_half_as_much():
    """S-GRPO, arXiv:2505.07686: by exit; a wrong one takes no place, and a row that is not counted neither."""
    given = exits([30, 10, 20, 5, 40], [9, 9, 9, 9, 0])
    given["origin"][3] = REPLAYED
    assert transformed("serial", [1.0, 1, 0, 1, 1], **given)[:, 0].tolist() == [0.5, 1, 0, 1, 0.25]


def test_an_early_exit_with_a_long_answer_comes_before_a_late_one_with_a_short_answer():
    """Exits at 100 with an answer of 150 tokens and at 200 with one of 10, and the whole thought of 205."""
    given = exits([100, 200, 205], [150, 10, 0])
    assert transformed("serial", [1.0, 1, 1], **given)[:, 0].tolist() == [1, 0.5, 0.25]


def test_short_right_samples_earn_more_and_wrong_ones_minus_one():
    made = transformed("short_right", [1.0, 1, 0], length=torch.tensor([100, 300, 50]))[:, 0].tolist()
    assert made == near(1.03599, 0.96526, -1)
    assert transformed("short_right", [1.0, 0], length=torch.tensor([9, 5]))[:, 0].tolist() == [1, -1]
    assert transformed("short_right", [1.0, 1], length=torch.tensor([9, 9]))[:, 0].tolist() == [1, 1]
    gated = transformed("short_right(gate=4000, wrong=0)", [1.0, 1, 0], length=torch.tensor([100, 300, 50]))
    assert gated[:, 0].tolist() == [1, 1, 0]


def test_truncation_is_the_only_penalty_and_follows_the_success_rate():
    lengths = torch.tensor([10, 30, 10, 30])
    assert transformed("truncation(longest=20)", [1.0] * 4, length=lengths)[:, 0].tolist() == [1, 0, 1, 0]
    graded = transformed("truncation(longest=20)", [1.0, 0.5, 0.2, -1], length=lengths)[:, 0].tolist()
    assert graded == pytest.approx([1, 0, 0.2, 0]), "0 whatever it was, and not a price"
    key = [0, 0, 1, 1]
    made = transformed("truncation(longest=40, shortest=20)", [1.0, 1, 0, 1], length=lengths, key=key)
    assert made[:, 0].tolist() == [1, 0, 0, 1]  # 2 of 2 are right: 20; 1 of 2: 40


def test_what_others_say_too_counts_less():
    rows = [[1, 2.6], [1, 2.6], [1, 1.8], [0, 3.0]]
    assert transformed("divided(by='b')", rows)[:, 0].tolist() == near(0.384615, 0.384615, 0.555556, 0)
    assert transformed("divided(by='b')", rows)[:, 1].tolist() == [2.6, 2.6, 1.8, 3]
    alike = transformed("divided(by='b')", [[1, 4.0], [0, 4.0]])[:, 0].tolist()
    assert alike == [0.25, 0]
    with pytest.raises(ValueError, match="divided.*negative"):
        transformed("divided(by='b')", [[-1.0, 2.0]])


def test_diversity_is_a_bonus_of_right_samples_only():
    rows = [[1, 0.9], [1, 0.2], [0, 0.9]]
    assert transformed("bonus(by='b', cap=0.68)", rows)[:, 0].tolist() == near(1.68, 1.2, 0)


def test_a_set_earns_its_mean_reward_times_its_diversity():
    rows = [[1, 0], [1, 0], [0, 1], [0, 2.0]]
    made = transformed("set_mean(by='b', size=2)", rows)[:, 0].tolist()
    assert made == near(0.083333, 0.083333, -0.083333, -0.083333)
    # 1, .5 and 0 of classes a, b, b: .75 x 1, .5 x 1 and .25 x .5 of the pairs, less their mean 11/24
    product = transformed("set_mean(by='b', size=2)", [[1, 0], [0.5, 1], [0, 1]])[:, 0].tolist()
    assert product == near(1 / 6, -1 / 48, -7 / 48)
    single = transformed("set_mean(by='b', size=1)", rows)[:, 0].tolist()
    assert single == [0.5, 0.5, -0.5, -0.5]  # r - mean
    few = transformed("set_mean(by='b', size=2, most=2)", rows)[:, 0]
    assert few.isfinite().all()


COSINE = real([[1, 0.9, 0.1], [0.9, 1, 0.2], [0.1, 0.2, 1]])


def test_gradients_that_no_rewarded_sample_has_count_more():
    r = real([[1], [1], [-1]])
    assert novelty_reward(r, COSINE, 1.0, "equation", 3.0)[:, 0].tolist() == near(1.005159, 1, 0)
    assert novelty_reward(r, COSINE, 1.0, "amplify", 3.0)[:, 0].tolist() == near(1.005159, 1, -2)
    assert novelty_reward(r, COSINE, 0.0, "equation", 3.0).tolist() == r.tolist()
    assert novelty_reward(r, torch.eye(3).double(), 1.0, "equation", 3.0).tolist() == r.tolist()  # no spread of novelty
    feature = torch.linalg.cholesky(COSINE + 1e-9 * torch.eye(3))[:, None]
    scaled = feature * real([[[2.0]], [[0.5]], [[7.0]]])
    for given in (feature, scaled):
        made = transformed("gradient_novelty(coef=1.0)", [1.0, 1, -1], gradient_feature=given)[:, 0].tolist()
        assert made == pytest.approx([1.00515, 1, 0], abs=2e-5)


def shaped(text, advantages, rewards, raw, key=None, names=("a", "b")):
    values = real(rewards)
    inputs = group([list(pair) for pair in zip(rewards, raw, strict=True)], names=names, key=key)
    return bind(text, SHAPES, "shape")({**inputs, "values": values, "advantages": real(advantages)}).tolist()


def test_a_majority_is_trusted_by_its_share_and_a_class_by_its_factor():
    assert shaped("scaled(by='b')", [1, -1], [1, 0], [0.625, math.nan]) == [0.625, -1]
    classes = shaped("class_factor(by='b')", [0.866, 0.866, -0.866, -0.866], [1, 1, 0, 0], [1.0, 0, 1, 0])
    assert classes == near(0.433, 0.866, -0.433, -0.866)


def test_prompts_are_compared_where_their_samples_agree():
    key, rewards = [0, 0, 1, 1, 2, 2], [0.0, 0, 0, 1, 1, 1]
    own = [0.0, 0, -1, 1, 0, 0]
    agreed = shaped("consistency(by='b')", own, rewards, [0.0] * 6, key)
    assert agreed == near(-1, -1, 0, 0, 1, 1)  # means 0, .5, 1
    assert shaped("consistency(by='b')", own, rewards, [9.0] * 6, key) == near(*own)
    weights = {math.log(4): 0.093289, math.log(8): 0.999991}
    for entropy, weight in weights.items():
        made = shaped("consistency(by='b')", [1.0, -1.0], [1, 0], [entropy] * 2)
        assert made == near(weight, -weight)  # a single prompt has nobody to be compared with


def test_prompts_far_from_their_demonstration_count_more():
    distance, rewards = real([0.2, 0.2, 0.6, 0.6]), real([1.0, 0, 0, 1])
    inputs = group([[1, 0.2], [0, 0.2], [0, 0.6], [1, 0.6]], key=[0, 0, 1, 1])
    inputs |= {"values": rewards, "advantages": torch.ones(4, dtype=torch.float64)}

    def scaled(gaps):
        return bind("dynamic_scaling(by='b')", SHAPES, "shape")({**inputs, "reference_value": rewards + real(gaps)})

    assert scaled([0.5] * 4).tolist() == pytest.approx([0.91840, 0.91840, 1.07846, 1.07846], abs=2e-5)
    # gaps 0 and 1, mean .5: sigmoid 1 / sigmoid .5 = 1.17447; with 1.07846 that is 1.26662
    assert scaled([0, 0, 1, 1])[2:].tolist() == pytest.approx([1.26662] * 2, abs=2e-5)
    assert distance.mean() == 0.4


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("policy_filter", [0.757009, 0.233645, 0.009346]),
        ("policy_filter(rule='max_random')", [2 / 3, 1 / 6, 1 / 6]),
        ("policy_filter(rule='max_min')", [0.5, 0.5, 0]),
        ("policy_filter(power=0)", [1 / 3] * 3),
    ],
)
def test_rewards_that_can_be_relied_on_are_drawn_more_often(text, wanted):
    made = shaped(text, [1.0] * 3, [0.9, -0.5, 0.1], [0.0] * 3)
    assert [one / 3 for one in made] == near(*wanted)


@pytest.mark.parametrize(
    ("text", "rewards", "wanted"),
    [
        ("group_mean_shifted", [1.0, 0, 0, 1], [0.6, -0.4, -0.4, 0.6]),
        ("group_mean_shifted", [1.0, 0, 0, 0], [0.85, -0.15, -0.15, -0.15]),
        ("group_mean_shifted(delta=0)", [1.0, 0, 0, 1], [0.5, -0.5, -0.5, 0.5]),
        ("group_log_mean_exp", [1.0, 0, 0, 1], [0.379885, -0.620115, -0.620115, 0.379885]),
        ("group_log_mean_exp(tau=1e6)", [1.0, 0, 0, 1], [0.5, -0.5, -0.5, 0.5]),
        ("group_log_mean_exp(tau=1e-3)", [1.0, 0, 0, 1], [0.000693, -0.999307, -0.999307, 0.000693]),
    ],
)
def test_baselines_of_mirror_descent_and_of_asymmetric_reinforce(text, rewards, wanted):
    inputs = group(rewards) | {"values": real(rewards)}
    assert (real(rewards) - bind(text, BASELINES, "baseline")(inputs)).tolist() == near(*wanted)


def test_the_first_of_a_group_are_trained_and_groups_of_little_spread_are_not():
    key, keep = torch.tensor([5, 2, 5, 2, 5]), torch.ones(5, dtype=torch.bool)
    first = bind("first(count=2)", SELECTORS, "select")({"key": key, "keep": keep})
    assert first.tolist() == [True, True, True, True, False]
    wide, narrow = 0.31 / math.sqrt(2), 0.09 / math.sqrt(2)  # of two values +-x the std is x sqrt 2
    values = real([wide, -wide, narrow, -narrow])
    given = {"values": values, "key": torch.tensor([0, 0, 1, 1]), "stat": torch.ones(4, dtype=torch.bool)}
    assert bind("drop_low_std", SELECTORS, "select")(given).tolist() == [True, True, False, False]
    assert bind("drop_low_std(share=0.4)", SELECTORS, "select")(given).all()


def of_rows(text, advantages, numbers, key=None, **more):
    """A shape of rows of two decisions, which have one number each."""
    matrix = real(numbers)[:, None].expand(-1, 2)
    given = group([0.0] * len(numbers), key=key) | {"advantages": real(advantages), "log_probs": -matrix}
    mask = torch.ones(len(numbers), 2, dtype=torch.bool)
    return bind(text, SHAPES, "shape")(
        {**given, "entropy": matrix, "certainty": matrix, "decision_mask": mask, **more}
    ).tolist()


def test_what_a_policy_was_sure_of_counts_less():
    factors = of_rows("perplexity(alpha=0.1)", [1.0, 1, -1], [0.2, 0.4, 0.6])
    assert factors == near(1.1, 1, -0.9)
    assert of_rows("perplexity(alpha=5)", [1.0, 1, 1], [0.2, 0.4, 0.6])[2] == 0  # and never turns
    plus = 3**0.5 / 2
    sure = of_rows("confidence(eps=0)", [plus, plus, -plus], [1.0, 2, 3])  # z = -1, 0, 1
    assert sure == near(1.11200, 0.866025, -1.22895)
    assert of_rows("confidence(eps=0)", [plus, -plus, -plus], [3.0, 2, 1])[::2] == near(0.67446, -0.61028)
    assert of_rows("confidence(positive=0, negative=0)", [1.0, -1], [3.0, 1]) == [1, -1]
    assert of_rows("confidence", [1.0, -1], [2.0, 2]) == [1, -1]
    assert of_rows("entropy_gate", [1.0, -1, 1], [0.5, 0.5, 0.8]) == near(0.95, -1.05, 0)


def test_statistics_over_tokens_weigh_long_samples_more():
    rewards = real([1.0, 1, 0, 0])
    given = group([1.0, 1, 0, 0]) | {"values": rewards, "length": torch.tensor([1, 1, 2, 4])}
    centred = rewards - bind("length_weighted", BASELINES, "baseline")(given)
    scaled = bind("length_weighted_std", SCALES, "scale")({**given, "centred": centred}).tolist()
    assert scaled == near(1.732051, 1.732051, -0.577350, -0.577350)
    # 1 of 101 tokens is right: A would be 10
    given |= {"values": (rewards := real([1.0, 0, 0])), "length": torch.tensor([1, 50, 50])}
    given |= {"key": torch.zeros(3).long(), "stat": torch.ones(3, dtype=torch.bool)}
    centred = rewards - bind("length_weighted", BASELINES, "baseline")(given)
    far = bind("length_weighted_std", SCALES, "scale")({**given, "centred": centred}).tolist()
    assert far == pytest.approx([1.154699, -0.577349, -0.577349], abs=1e-5)


def test_wrong_answers_are_graded_by_how_far_they_were_right():
    rows = [[1, 0.2], [0, 0.0], [0, 0.5], [0, 1.0]]
    made = transformed("graded(by='b', beta=5, gamma=0.5)", rows)
    assert made[:, 0].tolist() == near(1, 0.075858, 0.5, 0.924142)
    assert made[:, 1].tolist() == [0.2, 0, 0.5, 1]


def test_an_answer_that_its_thought_supports_counts_more():
    rows = [[1, 1.0], [1, -1.0], [1, 0.0], [0, 1.0]]
    assert transformed("amplified(by='b', coef=0.5)", rows)[:, 0].tolist() == [1.5, 0.5, 1, 0]


def test_a_judge_and_the_rules_of_a_policy_do_not_make_up_for_each_other():
    """ArGen, arXiv:2509.07006: the mean, or the lower one where either is below .2."""
    rows = [[1, 0.5], [1, 0.1], [0.1, 1], [0.2, 0.2]]
    assert transformed("guarded(by='b')", rows)[:, 0].tolist() == near(0.75, 0.1, 0.1, 0.2)
    assert transformed("guarded(by='b', below=0.6)", rows)[:, 0].tolist() == near(0.5, 0.1, 0.1, 0.2)
    assert transformed("guarded(by='b')", rows)[:, 1].tolist() == near(0.5, 0.1, 1, 0.2)


@pytest.mark.parametrize(("right", "wrong", "kept"), [(6, 2, (2, 2)), (5, 3, (2, 2)), (3, 5, (2, 2)), (8, 0, (4, 0))])
def test_samples_whose_steps_contradict_their_outcome_go_first(right, wrong, kept):
    values = [1.0] * right + [0.0] * wrong
    process = [0.1 * place for place in range(right + wrong)]
    given = group([list(one) for one in zip(values, process, strict=True)]) | {"values": real(values)}
    chosen = bind("consistent(by='b', remove=4)", SELECTORS, "select")({**given, "keep": given["stat"]})
    good, bad = chosen[:right], chosen[right:]
    assert (int(good.sum()), int(bad.sum())) == kept
    assert not good[: right - kept[0]].any() and bad[: kept[1]].all()  # weak steps of right, good ones of wrong samples
    shifted = given | {"raw": given["raw"] + 7}
    assert torch.equal(
        chosen, bind("consistent(by='b', remove=4)", SELECTORS, "select")({**shifted, "keep": given["stat"]})
    )


def test_prompts_that_one_side_nearly_always_wins_are_left_out():
    """Of 16 samples 9 and 11 more are won, then 9 and 11 more lost."""
    won = [1.0] * 12 + [-1.0] * 3 + [0.0] + [1.0] * 13 + [-1.0] * 2 + [0.0]
    values, key = real([*won, *(-one for one in won)]), torch.arange(4).repeat_interleave(16)
    given = {"values": values, "key": key, "stat": torch.ones(64, dtype=torch.bool)}
    kept = bind("drop_decided", SELECTORS, "select")(given)
    assert [bool(one) for one in kept[::16]] == [True, False] * 2 and torch.equal(kept, kept[::16][key])


def test_a_transform_within_groups_sees_own_scored_rows_of_the_batch():
    values = torch.tensor([[1.0], [1.0], [1.0], [0.0]])
    mask = torch.ones(4, 1, dtype=torch.bool)
    log_probs = torch.tensor([[-2.0], [-1.0], [-0.5], [-0.1]])
    decisions = Decisions(
        log_probs, mask, mask, torch.arange(4)[:, None], torch.zeros(4).long(), {"prompt": torch.zeros(4).long()}
    )
    valid = torch.tensor([[True], [True], [False], [True]])
    recipe = AdvantageRecipe.of(Algorithm(transform=["unlikely(beta=0.3)"], scale="none", baseline="none"))
    made = estimate(values, valid, torch.ones(1), decisions, recipe)
    assert made.samples.tolist() == pytest.approx([1, 1 - 0.3 / 3, 0, 0])  # the third was not scored
    assert recipe.records == frozenset()
    assert AdvantageRecipe.of(Algorithm(transform=["gradient_novelty(coef=1)"])).records == {"gradient_feature"}
