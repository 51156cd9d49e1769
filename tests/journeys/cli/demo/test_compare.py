"""Both sides of a pair draw from the same noise and are scored; what fails is said, and nothing stays locked."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from mmgrpo.cli.demo.compare import Side, compare, look_up, request, sample
from mmgrpo.cli.demo.models import AFTER, BEFORE
from mmgrpo.types import Prompt, Request, Text
from tests.journeys.cli.demo.fakes import NAN, Model, answering, drawn, painters, pair

OWN = "tests.journeys.cli.demo.test_compare:{}(process=False)"


def numbers(count: int = 0, sides: int = 2, rewards: tuple[str, ...] = ()):
    """A pair with as many held-out prompts, whose sides answer with their numbers."""
    prompts = [Prompt(f"q{n}", str(n)) for n in range(count)]
    one = pair("qwen_vl", rewards, prompts, weights="model" if sides == 2 else "")
    return answering(one, *[lambda n: Text(f"a{n}", tokens=n)] * sides)


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (4, [4]), (5, [4, 1])])
def test_groups_of_tokens_are_drawn_in_batches_of_both_sides(count: int, sizes: list[int]):
    opened, sides = numbers()
    steps = list(compare(opened, "a", Prompt("q"), count=count, temperature=0.5, seed=7))
    for side in sides:
        assert [asked[1:] for asked in side.asked] == [(slot, size, 7, 0.5) for slot, size in enumerate(sizes)]
        assert side.evaluation_temperature == 0.0
    assert [step.drawn for step in steps] == {
        1: [0, 1, 1, 2, 2],
        4: [0, 4, 4, 8, 8],
        5: [0, 4, 5, 5, 9, 10, 10],
    }[count]
    assert steps[0].doing == f"Base is sampling: 0 of {count}" and steps[-1].doing == "" and steps[-1].done
    assert steps[len(sizes)].doing == "the rewards of Base are being computed" and not steps[len(sizes)].scored
    assert [*steps[-1].sides] == [BEFORE, AFTER] and steps[0].sides == {}


def test_samples_of_images_have_slots_of_their_own_whatever_the_count():
    opened = painters()
    drawn(6, opened)
    drawn(3, opened)
    models: list[Any] = list(opened.loaded.values())
    asked = [[(r.seed, tuple(r.slots), r.group_size) for r in model.requests] for model in models]
    assert asked[0] == asked[1] == [(3, (0, 1, 2, 3), 1), (3, (4, 5), 1), (3, (0, 1, 2), 1)]


def test_batches_are_no_larger_than_those_of_an_evaluation():
    opened = painters()
    one = opened.pairs["a"]
    smaller = replace(one, config=replace(one.config, eval=replace(one.config.eval, batch_size=2)))
    opened.pairs = {"a": smaller}
    drawn(5, opened)
    models: list[Any] = list(opened.loaded.values())
    assert [tuple(request.slots) for request in models[0].requests] == [(0, 1), (2, 3), (4,)]


def test_nothing_is_locked_between_batches_nor_after_a_cancellation():
    opened = painters()
    batches = compare(opened, "a", Prompt("a wall"), seed=3, count=8)
    next(batches), next(batches)
    assert not opened.lock.locked()
    batches.close()  # type: ignore[attr-defined]
    assert not opened.lock.locked()
    assert drawn(2, opened).made.done


def test_a_pair_without_a_trained_model_has_its_base_and_the_weights_are_named():
    last = drawn(2, painters([BEFORE])).made
    assert list(last.sides) == [BEFORE] and last.done and last.trained == "" != drawn(1).made.trained == "b"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": 0}, "samples.*0"),
        ({"count": 17}, "17"),
        ({"seed": -1}, "seed.*-1"),
        ({"seed": 2**32}, "4,294,967,295"),
    ],
)
def test_numbers_out_of_range_and_unknown_models_are_refused_before_a_model_is_loaded(changes, words):
    opened, _ = answering(pair("qwen_vl"))
    with pytest.raises(ValueError, match=words):
        next(compare(opened, "a", Prompt("q"), **changes))
    for name in ("../../etc", "", None, "b"):
        with pytest.raises(ValueError, match="model.*a"):
            look_up(opened, name)


def test_a_model_has_its_own_temperature_again_after_a_question():
    opened, sides = numbers()
    base: Any = sides[0]
    base.feature_cache.entries["a prompt"] = None  # type: ignore[index]
    asked = Request([Prompt("q")], [0], 1, 0)
    with opened.lock:
        assert sample(base, asked, 0.7) == sample(Model(Text("a0")), asked, 0.7)  # type: ignore[arg-type]
    assert (base.asked[-1][4], base.evaluation_temperature, len(base.feature_cache.entries)) == (0.7, 0.0, 0)
    with pytest.raises(AssertionError):  # the lock is not held
        sample(base, asked, 0.7)
    assert base.evaluation_temperature == 0.0
    assert request(base, Prompt("q"), 4, 2, 5) == Request([Prompt("q")], [1], 2, 5)


# ---- rewards


def infinite(prompts, outputs):
    return [1.0, math.inf, NAN][: len(outputs)]


def abstains(prompts, outputs):
    return [1.0, None, None][: len(outputs)]


def breaks(prompts, outputs):
    raise RuntimeError("no\nluck")


def few(prompts, outputs):
    return [1.0]


def reads(prompts, outputs, rollout):
    return [1.0 for _ in outputs]


def test_a_reward_without_a_finite_value_has_none_and_one_that_fails_a_reason():
    names = ("infinite", "abstains", "breaks", "few", "reads", "gone")
    opened, _ = numbers(rewards=tuple(OWN.format(name) for name in names))
    *_, last = compare(opened, "a", Prompt("q"), count=3)
    side, gone = last.sides[AFTER], OWN.format("gone").partition("(")[0]
    for name in ("infinite", "abstains"):
        assert side.rewards[0][name] == 1 and all(math.isnan(row[name]) for row in side.rewards[1:])
    assert all(math.isnan(row[name]) for row in side.rewards for name in ("breaks", "few", "reads", gone))
    for name, words in (
        ("infinite", r"inf for 2 of 3.*mmgrpo rewards infinite"),
        ("breaks", r"^RuntimeError: no luck \(.*test_compare\.py:\d+, in breaks\)"),
        ("few", "got 1 values"),
        ("reads", "decisions of training"),
        (gone, "gone"),
    ):
        assert re.search(words, side.reasons[name]) and "\n" not in side.reasons[name]
    assert {*last.failures} == {"infinite", "breaks", "few", "reads", gone}, "what does not apply is no failure"
    assert last.weights == {**dict.fromkeys(names[:-1], 1.0), gone: 0.0}


def test_the_mean_of_a_reward_is_over_what_it_scored():
    made = Side([], [{"a": 1.0, "b": NAN, "c": NAN}, {"a": 2.0, "b": 4.0, "c": NAN}]).means()
    assert (made["a"], made["b"]) == (1.5, 4.0) and math.isnan(made["c"]) and Side([]).means() == {}


# ---- examples
