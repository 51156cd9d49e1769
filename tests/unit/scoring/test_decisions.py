"""Rewards that read the rollout (its log-probs, lengths and fields), and are left out, aloud, where there is none."""

from __future__ import annotations

import math

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.policies.categorical import CategoricalPolicy
from mmgrpo.rewards import scorer
from mmgrpo.rollout import sample_round
from mmgrpo.scoring import Scorer, begin_scoring, decisions, score_outputs
from mmgrpo.types import Decisions, Prompt, Text
from reward_models.sets.rollout import decision_statistic
from tests.building import trainer
from tests.speaking import TableModel, table_prompts

MASK = torch.tensor([[True, True], [True, False], [False, False]])
NUMBERS = Decisions(
    log_probs=torch.tensor([[-1.0, -3.0], [-0.5, -9.0], [-9.0, -9.0]], requires_grad=True),
    loss_mask=MASK,
    decision_mask=MASK,
    node=torch.arange(6).view(3, 2),
    origin=torch.zeros(3, dtype=torch.long),
    keys={"prompt": torch.zeros(3, dtype=torch.long)},
    fields={"entropy": torch.tensor([[0.25, 0.75], [1.0, 9.0], [9.0, 9.0]])},
)
ROWS = [Prompt("a")] * 3, [Text("x")] * 3


def confidence(prompts, outputs, *, rollout):
    """The log-prob of the first decision of each row; it spoils what it is given."""
    values = rollout.log_probs[:, 0].tolist()
    rollout.log_probs.zero_()
    return values


@pytest.mark.parametrize(
    ("of", "values"),
    [
        ("log_prob_mean", [-2.0, -0.5, math.nan]),
        ("log_prob_sum", [-4.0, -0.5, math.nan]),
        ("entropy_mean", [0.5, 1.0, math.nan]),
        ("decisions", [2.0, 1.0, 0.0]),
    ],
)
def test_statistics_are_over_the_decisions_of_a_row(of, values):
    given = Decisions(**decisions.plain(NUMBERS))
    assert decision_statistic(*ROWS, of=of, rollout=given) == pytest.approx(values, nan_ok=True)


def test_a_policy_without_entropies_is_an_error_that_says_so():
    with pytest.raises(ValueError, match="entropy.*none"):
        decision_statistic(*ROWS, of="entropy_mean", rollout=Decisions(**{**decisions.plain(NUMBERS), "fields": {}}))


OWN = "tests.unit.scoring.test_decisions:confidence"


@pytest.mark.parametrize(
    "process", ["False", pytest.param("True", marks=pytest.mark.slow)], ids=["here", "in a process of its own"]
)
def test_a_reward_is_given_a_copy_of_the_decisions(process, copied):
    one = scorer(f"{OWN}(process={process})")
    scores = score_outputs([one], *ROWS, rollout=NUMBERS)
    assert scores.values[:, 0].tolist() == [-1.0, -0.5, -9.0] and scores.valid.all()
    assert NUMBERS.log_probs[0, 0] == -1.0


def test_nothing_of_a_copy_shares_memory_with_the_rollout():
    def pointers(one: Decisions) -> set[int]:
        named = [one.log_probs, one.loss_mask, one.node, one.origin, *one.keys.values(), *one.fields.values()]
        return {tensor.data_ptr() for tensor in named}

    copied = Decisions(**decisions.plain(NUMBERS))
    assert pointers(copied).isdisjoint(pointers(NUMBERS)) and not copied.log_probs.requires_grad
    assert torch.equal(copied.keys["prompt"], NUMBERS.keys["prompt"])


def test_a_function_of_python_may_read_them_too():
    assert score_outputs([scorer(confidence)], *ROWS, rollout=NUMBERS).values[0, 0] == -1.0


def test_without_a_rollout_the_reward_is_left_out_with_one_warning(monkeypatch):
    monkeypatch.setattr(decisions, "_warned", set())
    with pytest.warns(UserWarning, match="'decision_statistic'") as said:
        for _ in range(2):
            scores = score_outputs(
                [scorer("decision_statistic"), scorer("exact")], [Prompt("a", answer="a")] * 3, [Text("a")] * 3
            )
    assert scores.valid.tolist() == [[False, True]] * 3 and len(said) == 1


def test_the_rollout_is_no_parameter_of_a_recipe():
    with pytest.raises(ValueError, match="'rollout'"):
        scorer("decision_statistic(rollout=1)")


def test_a_run_trains_on_it_and_its_evaluation_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(decisions, "_warned", set())
    prompts = table_prompts(2)
    scorers = [scorer("decision_statistic(of='log_prob_sum')"), scorer("exact")]
    made = trainer(
        CategoricalPolicy(TableModel(2, 7)),
        tmp_path,
        prompts,
        prompts_per_step=2,
        steps=1,
        heldout=prompts,
        scorers=scorers,
    )
    found = sample_round(
        made.policy, made.scorers, made.recipe, prompts, made.order, made.rounds,
        cursor=0, number=0, seed=0, accelerator=Accelerator(cpu=True),
    )  # fmt: skip
    torch.testing.assert_close(found.reward_scores.values[:, 0], found.rollouts[0].decisions.log_probs[:, 0].detach())
    with pytest.warns(UserWarning, match="left out"):
        made.fit()


def test_outputs_that_come_without_decisions_are_left_out():
    """As the greedy ones are that a baseline compares with."""

    def reads(prompts, outputs, rollout):
        pytest.fail("it is called")

    with pytest.warns(UserWarning, match="'greedy'"):
        scores = begin_scoring([Scorer("greedy", reads, reads_rollout=True)], *ROWS)()
    assert not scores.valid.any()
