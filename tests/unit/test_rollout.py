"""What a round draws, and what it takes from its prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.advantages.weighting import RewardWeights
from mmgrpo.policies.categorical import CategoricalPolicy
from mmgrpo.prompts.drawing import PromptOrder, Sampling
from mmgrpo.randomness import derive
from mmgrpo.rollout import Round, begin_rollout, sample_round
from mmgrpo.runtime import distributed
from mmgrpo.scoring import Scorer
from mmgrpo.types import Output, Prompt, Request, Rollout, Text
from tests.building import recipe, trainer
from tests.speaking import TableModel, table_prompts
from tests.trees import plain
from tests.unit.runtime.test_ranks import Meeting, Rank
from tests.unit.test_update import Leaf


def test_a_round_may_draw_again_as_often_as_its_samplers_allow():
    assert Sampling.of([]).redraws().rounds == 0
    assert Sampling.of(["dynamic_sampling"]).redraws().rounds == 10
    assert Sampling.of(["dynamic_sampling(rounds=3)"]).redraws().rounds == 3
    assert Sampling.of(["dynamic_sampling(rounds=1)"]).redraws().rounds == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_sampler", "algorithm.sampler.*'no_such_sampler'.*dynamic_sampling"),
        ("dynamic_samplin", "'dynamic_samplin'.*'dynamic_sampling'"),
        ("dynamic_sampling(round=3)", "'round'.*'rounds'"),
        ("dynamic_sampling(rounds=0)", "rounds 0.*1"),
    ],
)
def test_a_sampler_that_does_not_exist_is_refused_with_the_nearest(text, message):
    with pytest.raises(ValueError, match=message):
        Sampling.of([text])


def odd(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 for an odd class, 0 for an even one."""
    return [float(int(output.text) % 2) for output in outputs]  # type: ignore[union-attr]


def advantages_and_rewards(
    folder: Path, values: Sequence[object], advantages: AdvantageRecipe
) -> tuple[list[list[float]], list[list[float]]]:
    """Of one round of groups of four, prompt by prompt."""
    prompts = [replace(p, meta={"reference_value": v}) for p, v in zip(table_prompts(len(values)), values, strict=True)]
    made = trainer(
        CategoricalPolicy(TableModel(len(values), 7)),
        folder,
        prompts,
        reward=odd,
        advantages=advantages,
        prompts_per_step=len(values),
    )
    found = sample_round(
        made.policy, made.scorers, made.recipe, prompts, made.order, made.rounds,
        cursor=0, number=0, seed=0, accelerator=Accelerator(cpu=True),
    )  # fmt: skip
    slot = [int(prompt.id) for prompt in found.rollouts[0].prompts]
    got, rewards = found.batch.advantages[:, 0].tolist(), found.reward_scores.values[:, 0].tolist()
    groups = [[row for row, prompt in enumerate(slot) if prompt == number] for number in range(len(values))]
    return [[got[row] for row in group] for group in groups], [[rewards[row] for row in group] for group in groups]


def test_a_sample_is_compared_with_the_reference_value_of_its_prompt(tmp_path):
    blocks = recipe(baseline="static_reference", scale="none")
    got, rewards = advantages_and_rewards(tmp_path, [0.25, 1], blocks)
    assert {0.0, 1.0} == {reward for group in rewards for reward in group}
    assert got == [[reward - 0.25 for reward in rewards[0]], [reward - 1 for reward in rewards[1]]]


def test_momentum_adds_the_gain_over_the_reference_value(tmp_path):
    blocks = recipe(baseline="none", scale="none", shape=["momentum(low=-0.2, high=0.28)"])
    [got], [rewards] = advantages_and_rewards(tmp_path, [0.9], blocks)
    # r = 1: 1 + min(.1, .28); r = 0: max(-.9, -.2)
    assert got == pytest.approx([1.1 if reward else -0.2 for reward in rewards])


@pytest.mark.parametrize("value", [None, "0.5", float("nan")])
def test_a_prompt_without_a_reference_value_is_named_before_anything_is_sampled(value, tmp_path):
    prompts = [replace(p, meta={"reference_value": v}) for p, v in zip(table_prompts(2), [0.25, value], strict=True)]
    policy, blocks = CategoricalPolicy(TableModel(2, 7)), recipe(baseline="static_reference")
    with pytest.raises(ValueError, match="'1'.*reference_value"):
        trainer(policy, tmp_path, prompts, reward=odd, advantages=blocks)


def test_a_round_that_asks_for_no_reference_value_needs_none(tmp_path):
    got, _ = advantages_and_rewards(tmp_path, [None], recipe())
    assert torch.tensor(got).isfinite().all()


def test_a_round_names_its_randomness_and_counts_its_draws(tmp_path):
    """Groups are of one kind of rewards until the third draw; every draw has slots of its own."""
    made = trainer(
        CategoricalPolicy(TableModel(6, 7)),
        tmp_path,
        table_prompts(6),
        advantages=recipe(select=["drop_zero_spread"]),
        reward=lambda prompts, outputs: [float(len(asked) > 2) * (row % 2) for row in range(len(outputs))],
        redraws=5,
    )
    asked, rollout = [], made.policy.rollout
    made.policy.rollout = lambda request: (asked.append(request), rollout(request))[1]
    found = sample_round(
        made.policy, made.scorers, made.recipe, made.prompts, made.order, made.rounds,
        cursor=1, number=4, seed=9, accelerator=Accelerator(cpu=True),
    )  # fmt: skip
    assert [list(one.slots) for one in asked] == [[0, 1], [2, 3], [4, 5]] and found.cursor == 1 + 6
    assert {(one.seed, one.round, one.group_size) for one in asked} == {(derive(9, "round", 4), 4, 4)}
    assert [prompt.id for one in asked for prompt in one.prompts] == [str(n) for n in made.order.take(1, 6)]
    assert (found.metrics["group/draws"], found.metrics["rollout/rows"]) == (3, 24)
    assert found.metrics["rollout/evaluations"] == sum(one.evaluations for one in found.rollouts)
    assert [place.tolist() for place in found.batch.places] == [[*range(8 * n, 8 * n + 8)] for n in range(3)]


def test_a_round_without_redraws_is_drawn_once_and_with_too_few_stays_short(tmp_path):
    for redraws_, draws in ((0, 1), (2, 3)):
        made = trainer(
            CategoricalPolicy(TableModel(6, 7)), tmp_path, table_prompts(6), redraws=redraws_,
            advantages=recipe(select=["drop_zero_spread"]), reward=lambda prompts, outputs: [1.0] * len(outputs),
        )  # fmt: skip
        found = sample_round(
            made.policy, made.scorers, made.recipe, made.prompts, made.order, made.rounds,
            cursor=0, number=0, seed=0, accelerator=Accelerator(cpu=True),
        )  # fmt: skip
        assert (found.metrics["group/draws"], len(found.rollouts)) == (draws, draws)


def test_ranks_draw_a_round_together_and_know_all_of_it(tmp_path, monkeypatch):
    """Of the first four groups one has spread; three are missing, and two ranks draw two each."""
    prompts, meeting, cpu = table_prompts(8), Meeting(2), Accelerator(cpu=True)
    monkeypatch.setattr(distributed, "gather", lambda value: torch.cat(meeting.all(value)))
    spread = {prompts[place].id for place in PromptOrder(8, 0).take(0, 8)[3:]}
    trainers = [
        trainer(
            CategoricalPolicy(TableModel(8, 7)), tmp_path, prompts, prompts_per_step=4, redraws=3, accelerator=cpu,
            advantages=recipe(select=["drop_zero_spread"]),
            reward=lambda prompts, _: [float(one.id in spread) * (row % 2) for row, one in enumerate(prompts)],
        )
        for _ in range(2)
    ]  # fmt: skip
    asked: list[list[list[int]]] = [[], []]

    def work(rank: int) -> Round:
        made = trainers[rank]
        rollout = made.policy.rollout
        made.policy.rollout = lambda request: (asked[rank].append(list(request.slots)), rollout(request))[1]
        return sample_round(
            made.policy, made.scorers, made.recipe, prompts, made.order, made.rounds,
            cursor=0, number=0, seed=0, accelerator=Rank(rank, meeting),
        )  # fmt: skip

    first, second = meeting.of_all(work)
    assert asked == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert [place.tolist() for place in first.batch.places] == [[*range(8)], [*range(16, 24)]]
    assert [place.tolist() for place in second.batch.places] == [[*range(8, 16)], [*range(24, 32)]]
    for found in (first, second):
        own = sum(one.evaluations for one in found.rollouts)
        assert (found.cursor, found.metrics["rollout/rows"], found.metrics["group/draws"]) == (8, 32, 2)
        assert found.metrics["rollout/evaluations"] == 2 * own > 0
        assert found.reward_scores.values[:, 0].tolist() == 12 * [0.0] + 10 * [0.0, 1.0]
    assert torch.equal(first.batch.advantages, second.batch.advantages)


def test_the_weights_of_a_round_are_the_scorers_unless_others_are_given(tmp_path):
    scorers = [Scorer("one", lambda p, o: [1.0] * len(o)), Scorer("ten", lambda p, o: [10.0] * len(o), 0.0)]
    made = trainer(CategoricalPolicy(TableModel(2, 7)), tmp_path, table_prompts(2), scorers=scorers)
    for given, total in ((None, 1.0), (RewardWeights((0.0, 0.5)), 5.0)):
        found = sample_round(
            made.policy, made.scorers, made.recipe, made.prompts, made.order, made.rounds,
            cursor=0, number=0, seed=0, accelerator=Accelerator(cpu=True), reward_weights=given,
        )  # fmt: skip
        assert found.totals.tolist() == [total] * 8 and list(found.names) == ["one", "ten"]


def test_previews_are_columns_behind_those_of_the_outputs_with_the_same_references():
    prompts = [Prompt("p", meta={"reference_rewards": {"length": [1.0, 2.0]}}), Prompt("changed")]
    prompts[1] = replace(prompts[1], meta={"reference_rewards": {"length": [3.0, 4.0]}})
    rows = Rollout(
        prompts, [Text("a"), Text("bb")], plain([1, 1]), Leaf([[0.0], [0.0]]),
        previews={"half": [Text("ccc"), Text("dddd")]},
    )  # fmt: skip
    scorers = [
        Scorer("length", lambda p, o: [float(len(one.text)) for one in o]),
        Scorer("zero", lambda p, o: [0.0, 0.0], 0.0),
    ]
    request = Request(prompts[:1], [0], 2, 0)
    decisions, scores = begin_rollout(
        scorers, recipe(transform=["par"]), request, rows, [], torch.tensor([1.0, 0.0, 1.0, 0.0])
    )()
    assert scores.values.tolist() == [[1, 0, 3, 0], [2, 0, 4, 0]] and scores.valid.all()
    references = decisions.fields["reference_rewards"]
    assert references.shape == (2, 4, 2)
    assert references[0, 0].tolist() == references[0, 2].tolist() == [1, 2]
    assert references[1, 0].tolist() == references[1, 2].tolist() == [3, 4] and references[:, [1, 3]].isnan().all()


def test_a_row_of_a_changed_prompt_is_compared_with_whatever_there_is():
    prompt, changed = Prompt("p"), Prompt("changed")
    rows = Rollout([prompt, changed], [Text("a"), Text("bb")], plain([1, 1]), Leaf([[0.0], [0.0]]))
    scorers = [Scorer("length", lambda p, o: [float(len(one.text)) for one in o])]
    blocks = recipe(baseline="greedy", scale="none")
    decisions, scores = begin_rollout(
        scorers, blocks, Request([prompt], [0], 2, 0), rows, [Text("greedy")], torch.tensor([1.0])
    )()
    assert decisions.fields["greedy_value"].tolist() == [6, 6] and scores.valid.all()
    assert decisions.fields.keys() == {"greedy_value"}, "nothing that the recipe does not ask for"


@pytest.mark.parametrize(("at_once", "slots"), [(0, [[0, 1, 2, 3]]), (3, [[0, 1, 2], [3]]), (9, [[0, 1, 2, 3]])])
def test_a_round_is_sampled_in_parts_of_so_many_prompts(at_once, slots, tmp_path):
    policy = CategoricalPolicy(TableModel(4, 7))
    made = trainer(policy, tmp_path, table_prompts(4), prompts_per_step=4, reward=odd)
    asked, rollout = [], made.policy.rollout
    made.policy.rollout = lambda request: (asked.append(list(request.slots)), rollout(request))[1]
    sample_round(
        made.policy, made.scorers, made.recipe, made.prompts, made.order, replace(made.rounds, prompts_at_once=at_once),
        cursor=0, number=0, seed=0, accelerator=Accelerator(cpu=True),
    )  # fmt: skip
    assert asked == slots
