"""Numbers that change during a run, by their values."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.cli.train import read as read_command
from mmgrpo.config.registry import bind, bind_scheduled
from mmgrpo.config.schedules import Now, Schedule, at, of_settings, read
from mmgrpo.diffusion.planners import PLANS
from mmgrpo.objectives import OBJECTIVES, TERMS
from mmgrpo.prompts.samplers import SAMPLERS
from mmgrpo.scoring.load import common_parameters
from mmgrpo.update import LossRecipe
from tests.building import recipe


def schedule(text: str) -> Schedule:
    found = read(text, "the test")
    assert found is not None
    return found


VALUES = [
    ("linear(1, 3, 4)", [(0, 1), (1, 1.5), (4, 3), (9, 3)]),
    ("linear(0.6, 0.1, 400, after=300)", [(299, 0.6), (500, 0.35), (700, 0.1), (999, 0.1)]),
    ("linear(0, 1, after=500)", [(500, 0), (750, 0.5), (1000, 1)]),
    ("linear(0, 1)", [(0, 0), (500, 0.5), (1000, 1)]),  # over the whole run
    # CHORD, arXiv:2508.11408
    ("cosine(0.9, 0.05, 200)", [(0, 0.9), (50, 0.77552), (100, 0.475), (150, 0.17448), (200, 0.05), (999, 0.05)]),
    ("cosine(1, 0, 100, warmup=10)", [(0, 0), (5, 0.5), (10, 1), (60, 0.5), (110, 0)]),
    # Datarus, arXiv:2508.13382
    ("cosine(1, 0, 100)", [(0, 1), (25, 0.85355), (50, 0.5), (100, 0), (150, 0)]),
    # GRPO-D, arXiv:2503.16081: geometry and counting
    ("dip(0, 0.02, steps=100)", [(0, 0.01), (15, 0.005), (30, 0), (65, 0.01), (100, 0.02)]),
    ("dip(0.04, 0.1, 0.3, 100)", [(0, 0.07), (15, 0.055), (30, 0.04), (65, 0.07), (100, 0.1)]),
    ("power(800, 0.2, 100)", [(0, 800), (50, 357.77088), (100, 160), (200, 160)]),
    ("stages(4096, (100, 8192), (200, 16384))", [(99, 4096), (100, 8192), (199, 8192), (200, 16384)]),
    ("cycle(100, 500, 0.1)", [(99, 0.1), (100, 0), (599, 0), (600, 0.1)]),  # ProRL v2
]


@pytest.mark.parametrize(("text", "values"), VALUES)
def test_a_schedule_has_the_values_of_its_paper_and_stays_within_its_levels(text, values):
    one = schedule(text)
    assert [one.at(Now(step, 1000)) for step, _ in values] == pytest.approx([value for _, value in values], abs=1e-5)
    reached = [one.at(Now(step, 1000)) for step in range(1001)]
    assert min(one.levels) <= min(reached) + 1e-9 and max(one.levels) >= max(reached) - 1e-9


@pytest.mark.parametrize(
    ("text", "measured", "values"),
    [
        # 2, 1, 0.9 and 5 times the target: errors .2 (cut), 0, -.1, .2
        ("adaptive(0.1, 0.01)", [0.02, 0.01, 0.009, 0.05], [0.1, 0.102, 0.102, 0.10098, 0.1029996]),
        ("adaptive(0.1, 0.01, most=0.101)", [0.05, 0.05], [0.1, 0.101, 0.101]),
        ("shortfall(0.9, 0.8, 'r')", [0.3, 0.7, 0.9], [0.9, 0.5, 0.1, 0]),
        ("guidance(100, 'r')", [0.2, 0.4, 0.6], [100, 100, 100, 50]),
        ("guidance(100, 'r')", [0.2, 0.4, 0.15], [100, 100, 100, 200]),
        ("guidance(3072, 'r')", [0.4, 0.6, 0.4], [3072, 3072, 3072, 3072]),  # 3840, more than the most
        ("guidance(100, 'r')", [0.2, 0.4, 0.0], [100, 100, 100, 100]),
        # GARDO: the first number, up, up, down, in between; at its bounds; beyond the window of two
        ("recent(0.1)", [0.3, 0.4, 0.5, 0.2, 0.3], [0.1, 0.1, 0.11, 0.121, 0.1089, 0.1089]),
        ("recent(0.19, 'r')", [0.3, 0.4, 0.5], [0.19, 0.19, 0.2, 0.2]),
        ("recent(0.1, 'r', window=2)", [0.9, 0.1, 0.2, 0.3], [0.1, 0.1, 0.09, 0.09, 0.099]),
    ],
)
def test_a_rule_follows_what_was_measured(text, measured, values):
    one = schedule(text)
    memory, found = one.next((), float("nan")), []
    for number in [*measured, float("nan")]:
        found.append(one.at(Now(0, 1, {text: memory})))
        memory = one.next(memory, number)
    assert found == pytest.approx(values)
    assert one.at(Now(0, 1, {text: memory})) == found[-1]  # a number that is not finite changes nothing


def test_a_block_takes_a_schedule_for_any_number_and_is_itself_without_one():
    term = bind_scheduled("kl_k3(coef=cosine(0.04, 0, 500))", TERMS, "terms")
    assert term.at(Now(250, 1000)).parameters == {"coef": pytest.approx(0.02)}
    assert list(term.schedules) == ["kl_k3.coef"]
    mixed = bind_scheduled("mixture(weights={'a': linear(0, 1, 10), 'b': 0.5})", SAMPLERS, "sampler")
    assert mixed.at(Now(5, 10)).parameters == {"weights": {"a": 0.5, "b": 0.5}} and mixed.at(Now(5, 10)) is not mixed
    assert list(mixed.schedules) == ["mixture.weights.a"]
    clip = bind_scheduled("ppo(low=0.2, high=stages(0.28, (200, 0.4)))", OBJECTIVES, "objective")
    assert [clip.at(Now(step, 9)).parameters["high"] for step in (0, 199, 200)] == [0.28, 0.28, 0.4]
    constant = (recipe(), LossRecipe.of("ppo", "per_sample", terms=["kl_k3(coef=0.1)"]))
    assert all(at(one, Now(3, 9)) is one for one in constant)


def test_a_number_of_a_recipe_follows_its_schedule_wherever_it_stands():
    made = recipe(
        keys=["prompt(weight=linear(1, 0, 10))"],
        shape=["clamp(limit=linear(5, 3, 10))"],
        select=["gfpo(count=stages(2, (5, 4)))"],
    )
    now = at(made, Now(5, 10))
    assert isinstance(now, AdvantageRecipe)
    assert (now.keys[0].weight, now.shape[0].parameters["limit"]) == (0.5, 4.0)
    assert now.before[0].parameters["count"] == 4 and isinstance(now.before[0].parameters["count"], int)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("kl_k3(coef=cosin(0.04, 0))", "cosine"),
        ("kl_k3(coef=cosine(0.04))", "end"),
        ("kl_k3(coef=linear(0.04, -1, 10))", "-1"),
        ("kl_k3(coef=linear(0.04, 'x', 10))", "'x'"),
        ("kl_k3(coef=stages(1, (10, 2), (10, 3)))", "10"),
        ("kl_k3(coef=stages(1, 2))", "2"),
        ("kl_k3(coef=adaptive(0.1, 0))", "target"),
        ("kl_k3(coef=linear(0, 1, 2.5))", "2.5"),
    ],
)
def test_a_wrong_schedule_is_refused_before_the_run(text, word):
    with pytest.raises(ValueError, match="algorithm.terms.*kl_k3|algorithm.terms: coef") as error:
        LossRecipe.of("ppo", "per_sample", terms=[text])
    assert word in str(error.value)


def test_a_block_that_is_bound_once_takes_no_schedule():
    with pytest.raises(ValueError, match="sampling.plan.*linear"):
        bind("sliding_window(size=linear(1, 4, 10))", PLANS, "sampling.plan")
    with pytest.raises(ValueError, match="algorithm.sampler.*linear"):
        bind("mixture(weights={'a': linear(1, 4, 10)})", SAMPLERS, "algorithm.sampler")


def test_the_weight_of_a_reward_may_follow_a_schedule_and_nothing_else_of_it():
    common = common_parameters("length", {"weight": schedule("cycle(100, 500, -0.5)")}, False, False)
    assert common.weight == -0.5 and common.schedule is not None
    with pytest.raises(ValueError, match="length.*limit"):
        common_parameters("length", {"limit": schedule("linear(1, 2)")}, False, False)


def test_a_setting_takes_a_schedule_in_the_place_of_its_number():
    base = ["--model.family", "causal_lm"]
    config = read_command(
        [*base, "--sampling.max-tokens", "stages(64, (100, 128))", "--data.group_size=linear(8, 4)"], ""
    )
    assert (config.sampling.max_tokens, config.data.group_size) == (128, 8)  # the largest
    assert {name: one.at(Now(100, 100)) for name, one in of_settings(config).items()} == {
        "sampling.max_tokens": 128, "data.group_size": 4
    }  # fmt: skip
    for text, word in [
        ("optim.lr=linear(1, 2)", "optim.lr"),
        ("sampling.temperature=1", "'1'"),
        ("data.group_size=linear(8, 0)", "0"),
    ]:
        with pytest.raises(ValueError, match="schedules") as error:
            of_settings(read_command([*base, "--schedules", text], ""))
        assert word in str(error.value)
    other = SimpleNamespace(schedules=["sampling.max_tokens=linear(1, 2)"], sampling=read_command([], "").sampling)
    with pytest.raises(ValueError, match=r"sampling\.max_tokens"):
        of_settings(other)  # a denoising family draws no tokens
