"""Presets against the released code of their papers, on numbers that can be checked by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.advantages.estimate import AdvantageRecipe, estimate
from mmgrpo.config.presets import CATALOGUE, PRESETS
from mmgrpo.config.registry import bind
from mmgrpo.config.settings import Algorithm
from mmgrpo.objectives import AGGREGATIONS, OBJECTIVES, TERMS
from tests.trees import plain


def estimated(name, rewards, groups, lengths=None, **changes):
    """The advantages of a preset for rewards of rows in groups."""
    values = torch.tensor(rewards)[:, None]
    rows = plain(lengths or [1] * len(rewards), keys={"prompt": groups})
    recipe = AdvantageRecipe.of(Algorithm(**PRESETS[name] | changes))
    return estimate(values, torch.ones_like(values, dtype=torch.bool), torch.ones(1), rows, recipe)


PER_PROMPT = {"scale": "group_std(ddof=0, eps=1e-4)"}


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        # rewards 1, 0 and 3, 3: sqrt(19 / 4 - (7 / 4)^2) = 1.299038, .5 / 1.299138 = .384871
        ("dgpo", {}, 0.384871),
        # its setting for GenEval: the population std of 1, 0 is .5, .5 / .5001
        ("dgpo", PER_PROMPT, 0.99980),
        ("awm", {}, 0.384871 / 5),
    ],
)
def test_advantages_of_matching_presets(name, changes, expected):
    made = estimated(name, [1.0, 0.0, 3.0, 3.0], [0, 0, 1, 1], **changes)
    assert made.samples.tolist() == pytest.approx([expected, -expected, 0, 0], abs=2e-6)
    assert made.loss_mask.all(), "rows without advantage stay, for the KL terms"


@pytest.mark.parametrize(("name", "largest"), [("dgpo", 5.0), ("awm", 1.0)])
def test_advantages_of_matching_presets_are_clipped_at_five_stds(name, largest):
    # 99 groups 0, 0 and one of 1, -1: std .1, so .1 would be 10
    made = estimated(name, [0.0] * 198 + [1.0, -1.0], [row // 2 for row in range(200)])
    assert made.samples[-2:].tolist() == pytest.approx([largest, -largest])


def test_awm_holds_the_policy_by_a_moving_average_and_hardly_clips():
    blocks, sampling = PRESETS["awm"], CATALOGUE["awm"].sampling
    assert blocks["objective"] == "ppo(low=1.0, high=1.0)"
    assert blocks["terms"] == ["kl_velocity(coef=0.003)", "kl_velocity_old(coef=1.0)"]
    assert blocks["networks"] == ["average(slope=0.001, most=0.3)"]
    assert sampling["error"] == "huber(power=0.25)" and CATALOGUE["awm"].data == {"group_size": 24}


@pytest.mark.parametrize("name", ["opmd", "asymre", "unlikeliness"])
def test_every_token_counts_the_same(name):
    weight = bind(PRESETS[name]["aggregation"], AGGREGATIONS, "")
    mask = torch.tensor([[True, True, True], [True, False, False]])
    assert weight({"loss_mask": mask})[mask].tolist() == [0.25] * 4


def test_unlikeliness_trains_groups_of_right_and_wrong_answers_only():
    # the row of index 0 is as likely as the others (ties go by row): rewards 1, .9375, 0, 0; a group that is always
    # right would have spread by the ranks
    made = estimated("unlikeliness", [1.0, 1.0, 0.0, 0.0] + [1.0] * 4, [0] * 4 + [1] * 4)
    values = torch.tensor([1, 0.9375, 0, 0], dtype=torch.float64)
    expected = (values - values.mean()) / (values.std() + 1e-6)
    assert made.samples.tolist() == pytest.approx([*expected.tolist(), 0, 0, 0, 0], abs=1e-6)
    assert made.loss_mask[:, 0].tolist() == [True] * 4 + [False] * 4
    assert CATALOGUE["unlikeliness"].data == {"group_size": 32}


@pytest.mark.parametrize("name", ["disco", "drpo"])
def test_the_divisor_of_disco_counts_all_questions_and_its_kl_all_tokens(name):
    """Question 0: right at log-prob -1, wrong at -3; question 1: both right, of 3 tokens each. The gain is 2 / 2, and K
    the mean over all 8 tokens, of which 2 have .4: K .1, force 1e3 (.1 - 1e-4), and their product 9.99."""
    log_probs = torch.tensor([[-1.0, 0, 0], [-3.0, 0, 0], [-2.0] * 3, [-2.0] * 3])
    mask = torch.tensor([[True, False, False]] * 2 + [[True] * 3] * 2)
    made = estimated(name, [1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1], [1, 1, 3, 3])
    assert made.loss_mask.sum() == 8
    inputs = {
        "log_probs": log_probs,
        "old_log_probs": torch.where(mask & (log_probs != -2), log_probs + 0.4, log_probs),
        "advantages": made.advantages.float(),
        "loss_mask": mask,
        "decision_mask": mask,
        "key": torch.tensor([0, 0, 1, 1]),
    }
    weights = bind(PRESETS[name]["aggregation"], AGGREGATIONS, "")({"loss_mask": mask})
    objective = bind(PRESETS[name]["objective"], OBJECTIVES, "")(inputs).values
    [term] = [bind(one, TERMS, "")(inputs) for one in PRESETS[name]["terms"]]
    assert (weights * objective).sum().item() == pytest.approx(-1.0)
    assert (weights * term).sum().item() == pytest.approx(9.99, rel=1e-5)


def test_risk_po_divides_by_the_spread_of_the_sums_of_a_bundle():
    """Five questions of two samples, sums 5 and 3 of the first round, whose sample std is sqrt(2). q = 3.4 and 4.6:
    of sum 5 the gain is 1.6 - .4 = 1.2 / .6 = 2, and no tail; of sum 3 it is 0, and the tail -.4 / .2 = -2. A = 2 / 2.5
    and 1.5 (-2) / 2.5, divided by sqrt(2): .565685 and -.848528, shared by the two questions with spread."""
    rewards = [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    values = torch.tensor(rewards)[:, None]
    rows = plain([1] * 10, keys={"prompt": [row // 2 for row in range(10)]})
    unknown = torch.full((10, 1), float("nan"))
    rows = type(rows)(**{**rows.__dict__, "fields": {"quantile_low": unknown[:, 0], "quantile_high": unknown[:, 0]}})
    recipe = AdvantageRecipe.of(Algorithm(**PRESETS["risk_po"]))
    made = estimate(values, torch.ones_like(values, dtype=torch.bool), torch.ones(1), rows, recipe)
    good, bad = 0.565685 / 2, -0.848528 / 2
    assert made.samples.tolist() == pytest.approx([good, bad] * 2 + [0] * 6, abs=1e-5)
