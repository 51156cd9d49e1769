"""NaN and infinity: skipped and counted where that is safe, an error elsewhere, never a score or a saved model."""

from __future__ import annotations

import math

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.evaluation import draw_samples
from mmgrpo.runtime.finite import NotFinite, is_finite, refuse_nan, refuse_nonfinite, refuse_tensors
from mmgrpo.scoring import Scorer
from tests.building import average_of, first_number, recipe, trainer
from tests.journeys.cli.running import read_lines
from tests.toys import toy_policy, toy_prompts

BAD = [math.nan, math.inf, -math.inf]


def weights(policy):
    return {name: value.detach().clone() for name, value in policy.network.named_parameters()}


def same(first, second):
    return all(torch.equal(value, second[name]) for name, value in first.items())


def breaking(policy, steps, value=math.nan):
    """The policy, whose scores are ``value`` in the optimizer steps of these numbers, counted from one."""
    score, seen = policy.score, []

    def broken(rollout, part, names):
        seen.append(rollout)
        scores = score(rollout, part, names)
        return {**scores, "log_probs": scores["log_probs"] * (value if len(seen) in steps else 1.0)}

    policy.score = broken
    return policy


@pytest.mark.parametrize("value", BAD)
def test_a_step_whose_loss_is_not_finite_is_skipped_and_counted_and_the_next_one_trains(value, tmp_path):
    policy = breaking(toy_policy(), {2}, value)
    made = trainer(policy, tmp_path, toy_prompts(2), steps=3, ema=0.5)
    made.run_round()
    after_one, average = weights(policy), [value.clone() for value in average_of(made).shadow]
    made.run_round()
    assert same(after_one, weights(policy)) and is_finite(average_of(made).shadow) and made.step == 2
    assert not all(torch.equal(a, b) for a, b in zip(average, average_of(made).shadow, strict=True))
    made.run_round()
    assert not same(after_one, weights(policy)) and is_finite(weights(policy).values())
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert [line["nonfinite"] for line in lines] == [0, 1, 0]
    assert [line["skipped"] for line in lines] == [0, 0, 0]
    assert (made.nonfinite_steps, made.nonfinite_row, made.skipped) == (1, 0, 0)


def test_the_moments_of_the_optimizer_do_not_see_a_skipped_step(tmp_path):
    made = trainer(breaking(toy_policy(), {2}), tmp_path, toy_prompts(2))
    made.run_round()
    before = [value.clone() for state in made.optimizer.state.values() for value in state.values()]
    made.run_round()
    after = [value for state in made.optimizer.state.values() for value in state.values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_after_several_such_steps_in_a_row_the_run_stops_and_says_how_to_go_on(tmp_path, capsys):
    made = trainer(breaking(toy_policy(), {3, 5, 6, 7}), tmp_path, toy_prompts(2), steps=9, save_every=2)
    made.record.again = "COMMAND"
    with pytest.raises(NotFinite, match="3.*step 7.*--resume-from"):
        made.fit(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-000004", "step-000006"]
    assert not (tmp_path / "model").exists()
    assert "step-000006" in capsys.readouterr().out


def test_a_step_without_anything_to_train_does_not_break_the_row(tmp_path):
    rounds = []

    def without_spread_in_the_second(prompts, outputs):
        rounds.append(len(outputs))
        return [1.0] * len(outputs) if len(rounds) == 2 else first_number(prompts, outputs)

    made = trainer(
        breaking(toy_policy(), {1, 2}),  # the second step scores nothing
        tmp_path,
        toy_prompts(2),
        reward=without_spread_in_the_second,
        advantages=recipe(select=["drop_zero_spread"]),
        max_nonfinite_steps=2,
    )
    with pytest.raises(NotFinite, match="2.*step 3"):
        made.fit()
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert [(line["nonfinite"], line["skipped"]) for line in lines] == [(1, 0), (0, 1), (1, 0)]


def test_how_many_is_a_setting(tmp_path):
    made = trainer(breaking(toy_policy(), {1}), tmp_path, toy_prompts(2), max_nonfinite_steps=1)
    with pytest.raises(NotFinite, match="1.*step 1"):
        made.fit()


def test_weights_that_an_update_breaks_end_the_run_at_once_without_a_checkpoint_of_them(tmp_path):
    made = trainer(toy_policy(), tmp_path, toy_prompts(2), steps=4, save_every=1)
    step, calls = made.optimizer.step, []

    def broken():
        step()
        calls.append(0)
        if len(calls) == 3:
            with torch.no_grad():
                made.policy.network.outer.bias[0] = math.nan

    made.optimizer.step = broken
    with pytest.raises(NotFinite, match="step 3.*1.*4"):
        made.fit(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-000001", "step-000002"]
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("value", BAD)
def test_an_evaluation_of_broken_weights_is_an_error_and_never_a_score(value, tmp_path):
    policy = toy_policy()
    made = trainer(policy, tmp_path, toy_prompts(2), heldout=toy_prompts(2))
    with torch.no_grad():
        policy.network.outer.weight[0, 0] = value
    with pytest.raises(NotFinite, match="evaluated"):
        made.measure("before", toy_prompts(2))
    scorers, accelerator = [Scorer("constant", lambda prompts, outputs: [1.0] * len(outputs))], Accelerator(cpu=True)
    with pytest.raises(NotFinite):
        draw_samples(
            *(policy, scorers, toy_prompts(2)),
            **{"samples": 1, "seed": 0, "batch_size": 8, "shown": 0, "accelerator": accelerator, "title": "t"},
        )
    assert not (tmp_path / "evaluations").exists()


def test_a_broken_average_is_neither_evaluated_nor_saved_and_the_trained_weights_come_back(tmp_path):
    policy = toy_policy()
    made = trainer(policy, tmp_path, toy_prompts(2), heldout=toy_prompts(2), ema=0.5)
    before = weights(policy)
    average_of(made).shadow[0].fill_(math.nan)
    with pytest.raises(NotFinite):
        made.measure("after", toy_prompts(2))
    with pytest.raises(NotFinite, match="written"):
        made.save_model(tmp_path / "model")
    with pytest.raises(NotFinite, match="ema"):
        made.save()
    assert same(before, weights(policy)) and not (tmp_path / "model").exists()
    assert list((tmp_path / "checkpoints").glob("*")) == []


def test_a_sampler_that_meets_nan_says_so_before_anything_is_scored(tmp_path):
    def never(prompts, outputs):
        raise AssertionError("scored")

    policy = toy_policy()
    made = trainer(policy, tmp_path, toy_prompts(2), reward=never)
    policy.model.predict = lambda network, x, time, conditioning: x * math.nan
    with pytest.raises(NotFinite, match="latents"):
        made.run_round()


def test_what_is_finite():
    nan, inf, one = (torch.tensor([1.0, value]) for value in (math.nan, math.inf, 1.0))
    assert (
        is_finite([]) and is_finite([one, torch.tensor([1, 2]), torch.tensor([True])]) and is_finite([one.bfloat16()])
    )
    assert not is_finite([one, inf]) and not is_finite([nan, one]) and not is_finite([nan.bfloat16()])
    refuse_tensors({"a": one}, "x")
    with pytest.raises(NotFinite, match="x.*2.*'b'"):
        refuse_tensors({"a": one, "b": inf, "c": nan}, "x")
    assert refuse_nan(-inf, "x").tolist() == [-1, -math.inf] and refuse_nonfinite(one, "x") is one
    for check, value in ((refuse_nan, nan), (refuse_nonfinite, nan), (refuse_nonfinite, -inf)):
        with pytest.raises(NotFinite, match="^x .*finite"):
            check(value, "x")
