"""The ledger: what a round leaves in it, whatever the order of its rows, and what comes back from a checkpoint."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from mmgrpo.config.registry import bind
from mmgrpo.prompts.ledger import FILE, Ledger, Measured, Rows, by_number, key_of, read_ledger, read_measurements
from mmgrpo.prompts.trackers import TRACKERS
from mmgrpo.types import Image, Media, Prompt, Turn

ALL = [
    "beta",
    "window(count=3)",
    "moving_average",
    "shortest",
    "history(visits=2)",
    "arm_value",
    "quantiles",
    "keep_rate",
    "reward_moments(rewards=2)",
    "last_score(reward=0)",
    "difficulty(kept=3)",
]


def ledger(size=4, trackers=ALL) -> Ledger:
    bound = [bind(text, TRACKERS, "test") for text in trackers]
    return Ledger(size, bound, [0, 1, 0, 1][:size], ["even", "odd"])


def rows(prompt, reward, *, group=None, own=None, length=None) -> Rows:
    index, values = torch.tensor(prompt), torch.tensor(reward, dtype=torch.float64)
    groups = torch.tensor(group or prompt)
    member = torch.tensor([int((groups[:place] == one).sum()) for place, one in enumerate(groups.tolist())])
    return Rows(
        index, groups, member, values,
        torch.tensor(length or [5] * len(index)), -values - 1.0, values.nan_to_num() + 0.5,
        torch.tensor(own or [True] * len(index)), values[:, None],
    )  # fmt: skip


ROUNDS = [
    rows([2, 2, 0, 0], [1.0, 0.0, 1.0, 1.0], length=[9, 5, 7, 8]),
    rows([2, 2, 1, 1], [0.0, 0.5, math.nan, 1.0], group=[7, 7, 3, 3]),
    rows([1, 1, 1, 1], [1.0, 0.25, 0.0, 0.0], group=[4, 4, 9, 9]),
]


def filled(order=None, rounds=ROUNDS, into=None) -> Ledger:
    made = into or ledger()
    for number, one in enumerate(rounds):
        place = torch.arange(len(one.reward)) if order is None else order(len(one.reward))
        made.update(Rows(**{name: value[place] for name, value in vars(one).items()}), number)
    return made


def same(a: Ledger, b: Ledger) -> bool:
    return a.tensors().keys() == b.tensors().keys() and all(
        torch.equal(value, b.tensors()[name]) for name, value in a.tensors().items()
    )


def test_a_ledger_counts_what_was_drawn():
    table = filled().columns["prompts"]
    assert table["visits"].tolist() == [1, 3, 2, 0] and table["draws"].tolist() == [2, 5, 4, 0]
    assert table["sum"].tolist() == [2, 2.25, 1.5, 0] and table["squares"].tolist() == [2, 2.0625, 1.25, 0]
    assert table["best"].tolist() == [1, 1, 1, 0] and table["last_round"].tolist() == [0, 2, 1, 0]
    assert table["last_mean"].tolist() == [1, 0, 0.25, 0] and table["last_variance"].tolist() == [0, 0, 0.0625, 0]
    assert table["shortest"].tolist() == [7, 5, 9, 0]
    assert table["window"][1].tolist() == [0.25, 0, 0], "groups of a prompt in their order"
    rate = filled().read("pass_rate")
    assert rate[:3].tolist() == [1, 0, 0.25] and bool(rate[3].isnan()), "never visited is no rate of 0"


def test_the_order_of_gathered_rows_changes_nothing():
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        assert same(filled(), filled(order=lambda count: torch.randperm(count, generator=generator)))


def test_a_round_without_scored_rows_of_its_own_changes_nothing():
    made = filled()
    made.update(rows([3, 3], [math.nan, math.nan]), 3)
    made.update(rows([3, 3], [1.0, 0.0], own=[False, False]), 3)
    assert same(made, filled())
    other = [*ROUNDS[:2], rows([1] * 5, [1.0, 0.25, 0.0, 0.0, 9.0], group=[4, 4, 9, 9, 9], own=[True] * 4 + [False])]
    assert same(filled(rounds=other), filled()), "given, replayed and changed rows do not move a rate"


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_what_was_saved_goes_on_as_if_it_had_not_been(after):
    half = filled(rounds=ROUNDS[:after])
    again = ledger()
    again.load({name: value.clone() for name, value in half.tensors().items()})
    for number in range(after, len(ROUNDS)):
        again.update(ROUNDS[number], number)
    assert same(again, filled())


@pytest.mark.parametrize(
    ("other", "message"),
    [(ledger(3), "3.*prompts"), (ledger(4, ["beta"]), "categories.value|history|moving"), (Ledger(4), "categories")],
)
def test_a_ledger_of_something_else_is_refused(other, message):
    with pytest.raises(ValueError, match=message):
        ledger().load(other.tensors())
    with pytest.raises(ValueError, match="algorithm.trackers"):
        ledger().load({})


def test_fields_are_those_of_each_row_s_prompt():
    fields = filled().fields(["pass_rate", "quantile_low"], torch.tensor([2, 0, -1]))
    assert fields["pass_rate"][:2].tolist() == [0.25, 1] and len(fields["quantile_low"].unique()) == 1


def test_the_identity_of_a_prompt_is_its_content():
    picture = Media("image", Image(torch.zeros(3, 2, 2)))
    one = Prompt("what?", "a", answer="x", turns=(Turn("user", (picture, "what?")),))
    other = replace(one, turns=(Turn("user", (Media("image", Image(torch.ones(3, 2, 2))), "what?")),))
    assert key_of(one) == key_of(replace(one, id="b", meta={"level": 3}))
    assert len({key_of(one), key_of(other), key_of(replace(one, answer="y"))}) == 3


def test_a_ledger_is_shown_the_hardest_first_and_read_by_another_run(tmp_path):
    prompts = [Prompt(f"prompt {number}", str(number)) for number in range(4)]
    filled().write(tmp_path, prompts, 3)
    head, lines = read_ledger(tmp_path / FILE)
    assert (head["step"], head["visited"], len(head["history"])) == (3, 3, 3)
    assert [(line["id"], line["mean"]) for line in lines] == [("2", 0.375), ("1", 0.45), ("0", 1.0)]
    found = by_number(prompts, read_measurements(tmp_path, {"r": 1.0}), "run")
    assert found[2] == Measured(0.375, pytest.approx(1.25 / 4 - 0.375**2), 1.0, 4) and 3 not in found
    made = ledger()
    made.start(found)
    assert made.columns["prompts"]["draws"].tolist() == [2, 5, 4, 0]
    assert made.columns["prompts"]["alpha"].tolist() == pytest.approx([8.5, 0.5 + 8 * 0.45, 3.5, 0.5])
    assert made.rounds == 0


def test_rates_that_were_evaluated_are_sums_of_the_rewards_of_the_run(tmp_path):
    prompts = [Prompt("a", "1"), Prompt("b", "2")]
    values = [{"id": "1", "key": key_of(prompts[0]), "r": [1.0, 0.0, None], "s": [1.0, 1.0, 1.0]}]
    (tmp_path / "evaluation.json").write_text(json.dumps({"values": values}))
    found = by_number(prompts, read_measurements(tmp_path / "evaluation.json", {"r": 1.0, "s": 0.5, "t": 0.0}), "e")
    assert found == {0: Measured(1.0, 0.25, 1.5, 2)}
    with pytest.raises(ValueError, match="data.ledger.*'u'"):
        read_measurements(tmp_path / "evaluation.json", {"u": 1.0})
    with pytest.raises(ValueError, match="data.ledger"):
        by_number([Prompt("c")], read_measurements(tmp_path / "evaluation.json", {"r": 1.0}), "e")
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ValueError, match="other.json"):
        read_measurements(tmp_path / "other.json", {})
