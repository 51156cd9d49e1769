"""A run that trains nothing says so: while it runs, in its summary, in Python and on top of its report."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from mmgrpo.config.settings import Optim
from mmgrpo.report.html import write_report
from mmgrpo.report.idle import FEW, LONG, Idle, Watch, gap_warning, read_alarms, settings_alarms, write_alarms
from mmgrpo.report.run_folder import read_run
from mmgrpo.rounds.moving_average import Ema
from mmgrpo.runtime.averaging import InitialWeights
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.scoring import Scorer
from mmgrpo.update import LossRecipe
from tests.building import algorithm_blocks, first_number, near_one, trainer
from tests.toys import toy_policy, toy_prompts

GOOD = {
    **{"lr": 1e-4, "decisions": 8.0, "grad_norm": 1.0, "nonfinite": 0.0, "clip/low": 0.0, "clip/high": 0.0},
    **{"group/zero_std_fraction": 0.0, "group/advantage": 0.7, "ratio/first_minus_one": 0.0},
    **{"reward/r/mean": 0.5, "reward/r/std": 0.5},
}
CAUSES = {
    "learning_rate": {"lr": 0.0},
    "not_finite": {"nonfinite": 1.0, "grad_norm": None},
    "unscored": {"decisions": 0.0, "group/unscored_fraction": 1.0, "group/zero_std_fraction": 1.0},
    "truncated": {"decisions": 0.0, "rollout/truncated_fraction": 1.0},
    "no_spread": {"group/advantage": 0.0, "grad_norm": 0.0, "group/zero_std_fraction": 1.0},
    "selected_none": {"decisions": 0.0, "group/zero_std_fraction": 0.5},
    "clipped": {"grad_norm": 0.0, "clip/low": 0.5, "clip/high": 0.5},
    "no_gradient": {"grad_norm": 0.0},
}


def watched(rounds, rewards=("r",), clip_range=0.2, updates=1, start=0, least=0.0):
    """A watch that has seen these changes of a good round, one each."""
    watch = Watch(rewards, clip_range, updates, least=least)
    for number, change in enumerate(rounds, start=start):
        watch.see([{"step": 1 + number, **GOOD, "reward/r/mean": 0.1 * number, **change}])
    return watch


def causes(alarms) -> list[str]:
    return [alarm.cause for alarm in alarms]


@pytest.mark.parametrize(
    ("unanimous", "mean", "collapsed"),
    [(1.0, 1.0, True), (0.9, 0.95, True), (0.8, 0.95, False), (1.0, 0.25, False)],
    ids=["all", "nearly all", "some", "all differ"],
)
def test_votes_that_all_agree_are_an_alarm_as_long_as_they_do(unanimous, mean, collapsed):
    watch = Watch(["r", "w"], votes=["r"])
    rows = [{"reward/r/zero_std_fraction": unanimous, "reward/r/mean": mean + 1e-3 * n, "step": n} for n in range(FEW)]
    for number, row in enumerate(rows):
        assert causes(watch.alarms()) == []
        watch.see([{**GOOD, "reward/w/mean": number, **row}])
    assert causes(watch.alarms()) == ["collapsed_votes"] * collapsed
    assert [alarm.subject for alarm in watch.alarms()] == ["r"] * collapsed
    watch.see([{**GOOD, "step": 9, "reward/r/zero_std_fraction": 0.0}])
    assert causes(watch.alarms()) == []


@pytest.mark.parametrize("cause", CAUSES)
def test_rounds_that_train_nothing_are_an_alarm_that_names_cause_and_setting(cause):
    change = CAUSES[cause]
    assert watched([change] * (FEW - 1)).alarms() == []
    [alarm] = watched([change] * FEW).alarms()
    assert (alarm.cause, alarm.since, alarm.step) == (cause, 1, FEW)
    assert alarm.settings and alarm.settings in str(alarm)
    assert causes(watched([change]).alarms(ended=True)) == [cause], "a shorter run, at its end"


def test_a_gradient_of_a_kl_alone_does_not_train_on_rewards():
    change = {"group/advantage": 0.0, "grad_norm": 0.3, "group/zero_std_fraction": 1.0, "decisions": 8.0}
    assert causes(watched([change] * FEW).alarms()) == ["no_spread"]


def test_a_run_that_trains_has_none_and_one_that_stops_has_one_after_ten_rounds():
    idle = CAUSES["no_spread"]
    assert watched([{}] * 20).alarms(ended=True) == []
    assert watched([{}, *[idle] * (LONG - 1)]).alarms() == []
    [alarm] = watched([{}, *[idle] * LONG]).alarms()
    assert (alarm.since, alarm.step) == (2, 1 + LONG)
    assert watched([*[idle] * FEW, {}]).alarms() == [], "it has begun to train"


def test_half_of_all_rounds_is_an_alarm_at_the_end():
    rounds = [{}, CAUSES["no_spread"]] * 4
    assert watched(rounds).alarms() == [] and causes(watched(rounds).alarms(ended=True)) == ["no_spread"]
    assert watched([*rounds, {}]).alarms(ended=True) == []


@pytest.mark.parametrize(
    ("value", "cause"), [(0.0, "constant_reward"), (1.0, "constant_reward"), (None, "absent_reward")]
)
def test_a_reward_that_is_constant_over_everything_is_named_also_beside_others_that_teach(value, cause):
    change = {"reward/style/mean": value, "reward/style/std": 0.0 if value is not None else None}
    change |= {"reward/style/abstained_fraction": 1.0} if value is None else {}
    [alarm] = watched([change] * FEW, ("r", "style")).alarms()
    assert (alarm.cause, alarm.subject) == (cause, "style") and "'style'" in str(alarm)
    assert (
        watched([*[change] * FEW, {"reward/style/mean": 0.5, "reward/style/std": 0.5}], ("r", "style")).alarms() == []
    )
    moved = [{"reward/style/mean": m, "reward/style/std": 0.0} for m in (0.0, 1.0, 0.0)]
    assert watched(moved, ("style",)).alarms() == [], "equal within rounds only"


def test_a_clip_range_below_the_rounding_of_log_probs_is_an_alarm_where_a_round_has_further_updates():
    rounded = [{"ratio/first_minus_one": 3e-3}] * FEW
    assert causes(watched(rounded, clip_range=1e-4, updates=2).alarms()) == ["clip_range"]
    assert watched(rounded, clip_range=1e-4).alarms() == [], "the only update takes the ratio as one"
    assert watched(rounded, clip_range=0.2, updates=2).alarms() == []
    assert watched([{}, *rounded], clip_range=1e-4, updates=2).alarms() == []


def test_tools_that_no_completion_has_called_are_an_alarm():
    never, once = {"rollout/tool_calls": 0.0}, {"rollout/tool_calls": 0.01}
    assert causes(watched([never] * FEW).alarms()) == ["uncalled_tools"]
    assert watched([never] * (FEW - 1)).alarms() == [] == watched([{}] * FEW).alarms()
    assert causes(watched([never]).alarms(ended=True)) == ["uncalled_tools"]
    assert watched([once, *[never] * FEW]).alarms() == [], "they have been called before"
    assert watched([*[never] * FEW, once]).alarms() == []


def test_settings_with_which_nothing_can_be_trained_are_an_alarm_from_the_start():
    assert causes(settings_alarms(Optim(lr=0.0), 10)) == ["learning_rate"]
    [alarm] = settings_alarms(Optim(warmup=1000), 10)
    assert alarm.cause == "warmup" and "1.00%" in alarm.message
    assert settings_alarms(Optim(warmup=10), 10) == [] == settings_alarms(Optim(), 10)


@pytest.mark.parametrize(
    ("norms", "ended", "alarmed"),
    [
        ([0.9] * FEW, False, True),
        ([0.9] * (FEW - 1), False, False),
        ([0.9], True, True),
        ([0.0, *[0.9] * FEW], False, True),  # a round without a gradient says nothing of its size
        ([2.0, *[0.9] * LONG], True, False),  # as gradients fall towards the end
        ([None] * FEW, True, False),
    ],
)
def test_gradients_that_the_optimizer_takes_for_noise_are_an_alarm(norms, ended, alarmed):
    watch = watched([{"grad_norm": norm} for norm in norms], least=1.0)
    assert ("faint_gradient" in causes(watch.alarms(ended))) == alarmed


def test_the_faintest_gradient_has_entries_of_eps_and_the_largest_of_a_round_counts():
    """400 numbers of 1e-6 have the norm 1e-6 sqrt(400) = 2e-5."""
    loss = LossRecipe.of("ppo(low=0.2, high=0.2)", "per_sample")
    assert Watch.of([Scorer("r", nothing)], loss, Optim(eps=1e-6), 10, 400).least == pytest.approx(2e-5)
    for norms, alarmed in (((0.5, 0.9), True), ((0.5, 1.1), False), ((1.1, 0.5), False)):
        watch = Watch(["r"], least=1.0)
        for number in range(FEW):
            mean = {"reward/r/mean": 0.1 * number}
            watch.see([{**GOOD, **mean, "step": 2 * number + n, "grad_norm": norm} for n, norm in enumerate(norms)])
        assert ("faint_gradient" in causes(watch.alarms())) == alarmed


def test_a_sum_over_a_constant_far_above_the_decisions_is_an_alarm(tmp_path: Path):
    """2 decisions a sample over 1e9: a gradient of 1e-9 of the usual, below AdamW's eps."""
    for length, alarmed in ((2, False), (1e9, True)):
        loss = LossRecipe.of("ppo(low=0.2, high=0.2)", f"constant_horizon(length={length})")
        _, said = run_of(tmp_path / f"{length:.0f}", steps=4, loss=loss)
        assert any("algorithm.aggregation" in one for one in said) == alarmed


def test_the_warning_of_a_gap_is_relative_to_the_clip_range():
    tight, wide = (LossRecipe.of(f"ppo(low={x}, high={x})", "per_sample") for x in (1e-4, 0.2))
    assert gap_warning(1e-3, wide, Optim()) == "" == gap_warning(4e-5, tight, Optim())
    assert "optim.updates" in gap_warning(1e-3, tight, Optim(updates=2))
    assert "optim.updates" not in gap_warning(1e-3, tight, Optim()) != ""


def test_alarms_of_a_folder_are_read_back_and_what_is_none_is_left_out(tmp_path: Path):
    alarms = [Idle("no_spread", "rewards", 1, 3, "words"), Idle("constant_reward", "rewards", 1, 3, "words", "style")]
    write_alarms(tmp_path, alarms)
    assert read_alarms(tmp_path) == alarms
    rows = [*json.loads((tmp_path / "alarms.json").read_text()), 3, {"cause": 1}, {"cause": "a", "step": "b"}]
    (tmp_path / "alarms.json").write_text(json.dumps(rows))
    assert read_alarms(tmp_path) == alarms
    write_alarms(tmp_path, [])
    assert read_alarms(tmp_path) == [] and list(tmp_path.iterdir()) == []


def test_a_cause_that_settings_show_is_no_second_alarm_of_the_rounds():
    watch = watched([CAUSES["learning_rate"]] * FEW)
    watch.fixed += settings_alarms(Optim(lr=0.0), 10) + [Idle.unchanged_model(Path("model"), 3)] * 2
    assert causes(watch.alarms(ended=True)) == ["learning_rate", "unchanged_model"]
    # two rewards are two subjects
    equal = {f"reward/{name}/{what}": 0.0 for name in "ab" for what in ("mean", "std")}
    assert causes(watched([equal] * FEW, rewards="ab").alarms()) == ["constant_reward"] * 2


def run_of(tmp_path, reward=first_number, **settings):
    """A run of the toy policy, and what it warned of."""
    made = trainer(toy_policy(), tmp_path, toy_prompts(2), reward=reward, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made.fit()
    return made, [str(one.message) for one in caught]


def nothing(prompts, outputs):
    return [0.0 for _ in outputs]


def test_a_run_without_spread_warns_while_it_runs_and_leaves_an_alarm(tmp_path: Path):
    made, said = run_of(tmp_path, nothing, steps=4)
    assert causes(read_alarms(tmp_path)) == ["no_spread", "constant_reward"]
    assert sum("trains nothing" in one for one in said) == 1 and sum("'reward'" in one for one in said) == 1
    assert "ALARM no_spread" in made.record.postfix
    page = write_report(tmp_path).read_text()
    assert page.index("his run trains nothing") < page.index('<dl class="facts">')
    assert causes(read_run(tmp_path).alarms) == ["no_spread", "constant_reward"]


def test_two_rewards_that_abstain_from_each_others_prompts_train_and_one_that_always_abstains_is_named(tmp_path: Path):
    def only(number):
        def reward(prompts, outputs):
            pairs = zip(prompts, outputs, strict=True)
            return [float(o.pixels[0]) if p.id == number else None for p, o in pairs]

        return reward

    prompts = toy_prompts(2)
    names = [prompts[0].id, prompts[1].id, "none"]
    scorers = [Scorer(f"of_{name}", only(name)) for name in names]
    trainer(toy_policy(), tmp_path, prompts, scorers=scorers, steps=3).fit()
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert all(row["grad_norm"] > 0 and row["group/zero_std_fraction"] == 0 for row in rows)
    [alarm] = read_alarms(tmp_path)
    assert (alarm.cause, alarm.subject) == ("absent_reward", "of_none")


def test_a_resumed_run_knows_of_the_rounds_before(tmp_path: Path):
    first = trainer(toy_policy(), tmp_path, toy_prompts(2), reward=nothing, steps=4)
    first.run_round()
    first.run_round()
    first.save()
    again = trainer(toy_policy(), tmp_path, toy_prompts(2), reward=nothing, steps=4)
    again.resume()
    again.run_round()
    assert again.record.watch.rounds == 3 and causes(read_alarms(tmp_path)) == ["no_spread", "constant_reward"]


@pytest.mark.parametrize("settings", [{"lr": 0.0}, {"lr": 1e-30}])
def test_a_saved_model_that_equals_the_one_before_training_is_an_alarm(tmp_path: Path, settings):
    """1e-30 is lost in fp32, as 1e-6 is in bfloat16."""
    made, _ = run_of(tmp_path, steps=3, **settings)
    made.policy.save = lambda folder: folder.mkdir()
    with pytest.warns(UserWarning, match="model"):
        made.save_model(tmp_path / "model")
    assert "unchanged_model" in causes(read_alarms(tmp_path))
    assert "unchanged_model" in (tmp_path / "alarms.json").read_text()


def test_a_saved_model_that_has_moved_is_none(tmp_path: Path):
    made, said = run_of(tmp_path, near_one, steps=3)
    made.policy.save = lambda folder: folder.mkdir()
    made.save_model(tmp_path / "model")
    assert read_alarms(tmp_path) == [] and said == []


def test_adapters_whose_product_is_zero_have_not_moved():
    """Weight decay alone moves A, and B stays zero."""
    a, b = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.zeros(3, 2))
    initial = InitialWeights({"x.lora_A.weight": a, "x.lora_B.weight": b})
    assert initial.is_unchanged()
    a.data *= 0.5
    assert initial.is_unchanged()
    b.data[0, 0] = 1e-8
    assert not initial.is_unchanged()
    whole = nn.Parameter(torch.tensor([1.0, 2.0]))
    initial = InitialWeights({"w": whole})
    whole.data = torch.tensor([2.0, 1.0])
    assert not initial.is_unchanged(), "a permutation is a change"


@pytest.mark.parametrize(("steps", "expected"), [(4, 9 / 11 * 4), (8, 0.5 * 8), (15, 0.25 * 4 + 0.75 * 15)])
def test_the_last_steps_enter_an_average_that_is_updated_every_eight(steps, expected):
    """A weight that is s after step s. 15 steps: 3 / 12 of the average of step 8, and the rest of step 15."""
    weight = nn.Parameter(torch.zeros(1))
    ema = Ema([weight], 0.9, 8)
    for step in range(1, steps + 1):
        weight.data.fill_(step)
        ema.update(step)
    with ema.apply():
        found = weight.item()
    assert found == pytest.approx(expected) and abs(steps - found) <= abs(found - 0)
    if steps == 15:
        assert abs(found - 15) < abs(found - 8)
    shadow = [one.clone() for one in ema.shadow]
    with ema.apply():
        pass
    assert torch.equal(shadow[0], ema.shadow[0]) and float(weight) == steps, "what later updates start from is the same"


def test_a_run_that_is_shorter_than_the_interval_of_its_average_saves_trained_weights(tmp_path: Path):
    made, _ = run_of(tmp_path, near_one, steps=4, ema=0.9, ema_every=8)
    live = [parameter.detach().clone() for parameter in made.trained.values()]
    with made.callbacks.evaluated_weights():
        assert not made.initial.is_unchanged()
        saved = [parameter.detach().clone() for parameter in made.trained.values()]
    fresh = list(toy_policy().network.parameters())
    gone = sum(float((a - c).square().sum()) for a, c in zip(saved, fresh, strict=True))
    left = sum(float((a - b).square().sum()) for a, b in zip(saved, live, strict=True))
    assert 0 < left < gone


def test_a_constant_reward_with_dynamic_sampling_ends_with_an_alarm(tmp_path: Path):
    run_of(tmp_path, nothing, steps=3, **algorithm_blocks("dapo"))
    assert causes(read_alarms(tmp_path))[0] == "no_spread"
    assert all(row["group/draws"] == 11 and row["skipped"] == 1 for row in read_metrics(tmp_path / "metrics.jsonl"))


@pytest.mark.parametrize(
    ("metric", "value", "collapsed"),
    [
        ("judging/first_fraction", 1.0, True),
        ("judging/first_fraction", 0.05, True),
        ("judging/first_fraction", 0.8, False),
        ("judging/agreement", 0.5, True),
        ("judging/agreement", 0.6, False),
    ],
)
def test_a_judge_that_says_one_word_or_orders_as_chance_does_is_an_alarm(metric, value, collapsed):
    watch = Watch(["r"])
    for number in range(FEW):
        assert causes(watch.alarms()) == []
        watch.see([{**GOOD, "reward/r/mean": number, "step": number, metric: value}])
        watch.see([{**GOOD, "reward/r/mean": number, "step": number}])  # a round without verdicts
    assert causes(watch.alarms()) == ["collapsed_judge"] * collapsed
    watch.see([{**GOOD, "step": 9, metric: 0.7}])
    assert causes(watch.alarms()) == []
