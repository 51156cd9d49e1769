"""Parameters of rewards that cannot be are refused by name, before anything is scored."""

from __future__ import annotations

import pytest

from mmgrpo.rewards import from_trl, scorer, scorers
from mmgrpo.types import Image, Prompt, Text
from reward_models.rules import single
from reward_models.rules.boxes import giou, iou
from reward_models.rules.lengths import cosine_length, repetition
from reward_models.rules.tables import read_table


def test_lengths_and_n_grams_are_of_one_or_more():
    with pytest.raises(ValueError, match="cosine_length.*max_tokens"):
        cosine_length([], [], max_tokens=0)
    with pytest.raises(ValueError, match="repetition.*n"):
        repetition([], [], n=0)
    prompts = [Prompt("a")] * 3
    assert repetition(prompts, [Text("a a a"), Text("A b a"), Text("")], n=1) == pytest.approx([-2 / 3, -1 / 3, 0])
    assert cosine_length([], [], max_tokens=1) == []


def test_there_is_a_reward_for_every_task_and_for_nothing_else():
    assert single.exact.__name__ == "exact" and single.exact.__doc__
    with pytest.raises(AttributeError, match="exactly"):
        single.exactly  # noqa: B018


def test_what_a_reward_names_is_a_function():
    with pytest.raises(ValueError, match="rewards.*torch:pi.*float"):
        scorer("torch:pi(process=False)")
    with pytest.raises(ValueError, match="rewards.*exact.*weight"):
        scorer("exact(weight='much')")
    with pytest.raises(ValueError, match="rewards.*exact"):
        scorers(["exact", "exact(weight=0)"])
    with pytest.raises(ValueError, match="rewards"):
        scorers([])


def test_a_reward_of_trl_sees_texts_and_columns_and_gives_none_for_nothing():
    seen = {}

    def reward(prompts, completions, **columns):
        seen.update(columns, prompts=prompts, completions=completions)
        return [None, 2]

    made = from_trl(reward, "mine")
    prompts = [Prompt("p", "0", answer=1, meta={"size": 3}), Prompt("q", "1", task="count")]
    values = made.fn(prompts, [Text("a"), Text("b")])
    assert made.name == "mine" and values == [None, 2.0]
    given = {
        "prompts": ["p", "q"], "completions": ["a", "b"], "answer": [1, None], "task": ["", "count"], "size": [3, None],
        "completion_ids": [[], []],
    }  # fmt: skip
    assert {name: seen[name] for name in given} == given
    assert seen.keys() - given.keys() == {"trainer_state", "log_extra", "log_metric"}
    import torch

    with pytest.raises(TypeError, match=r"\['Image', 'Text'\].*Text.*TRL"):
        made.fn(prompts, [Text("a"), Image(torch.zeros(3, 1, 1))])


def test_a_box_without_area_overlaps_with_nothing():
    line, box = (0.0, 0.0, 4.0, 0.0), (0.0, 0.0, 4.0, 4.0)
    assert iou(line, box) == iou(box, line) == iou(line, line) == 0.0
    assert giou(line, box) == giou(box, line) == giou(line, line) == -1.0
    assert iou(box, box) == giou(box, box) == 1.0
    # apart by 4: the hull is 12 x 4, the union 32
    assert giou(box, (8.0, 0.0, 12.0, 4.0)) == pytest.approx(-16 / 48)


def test_cells_outside_of_a_table_and_a_second_table_are_not_read():
    table = read_table("<td>x</td><table><tr><td>a</td></tr></table><tr><td>b</td></tr>")
    assert table is not None and table.tag == "table" and len(table.children) == 1
    assert [cell.text for row in table.children for cell in row.children] == ["a"]
