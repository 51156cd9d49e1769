"""The tab Group: which runs and steps there are, what is shown of them, and that nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

import gradio as gr
import pytest

from mmgrpo.cli.demo import group
from mmgrpo.cli.demo.group import CHOOSE, show, steps_of, with_groups_first
from mmgrpo.cli.demo.models import Opened
from tests.journeys.cli.demo.fakes import page as page_of
from tests.unit.report.test_group_runs import fresh, strange


def opened(tmp_path: Path, **changes) -> Opened:
    """A run without groups, and one with a group."""
    (tmp_path / "none").mkdir()
    full = strange(tmp_path / "full", changes.get("change", lambda record, member: None))
    return Opened({"none": tmp_path / "none", "full": full}, {}, tmp_path / "votes.jsonl")


def test_a_run_with_groups_is_offered_first_and_its_steps_newest_first(tmp_path):
    known = opened(tmp_path)
    older = tmp_path / "full" / "groups" / "step-000000"
    newer = older.with_name("step-000012")
    newer.mkdir()
    (newer / "group.json").write_text((older / "group.json").read_text())
    assert list(with_groups_first(known)) == ["full", "none"]
    assert steps_of(known, "full") == [12, 0]


@pytest.mark.parametrize("run", ["../full", "/", "full/", ""])
def test_a_run_that_was_not_opened_is_an_error_whatever_lies_there(tmp_path, run):
    known = opened(tmp_path)
    if run:
        with pytest.raises(gr.Error, match="no such run"):
            show(known, str(tmp_path / run), 0)
        with pytest.raises(gr.Error, match="no such run"):
            steps_of(known, run)
    else:
        assert steps_of(known, run) == []


@pytest.mark.parametrize("step", [7, "../0", None, -1])
def test_a_step_without_a_group_is_an_error(tmp_path, step):
    with pytest.raises(gr.Error, match="no group of step"):
        show(opened(tmp_path), "full", step)


def test_a_damaged_group_is_an_error_of_one_line(tmp_path):
    known = opened(tmp_path, change=lambda record, member: record.update(members=[]))
    with pytest.raises(gr.Error, match="got 0 members") as caught:
        show(known, "full", 0)
    assert "\n" not in caught.value.message


def test_the_script_sets_texts_only():
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|eval|Function|fetch|http", CHOOSE)


def test_the_newest_group_is_shown_first_and_another_when_it_is_chosen(tmp_path):
    known = opened(tmp_path)
    older = tmp_path / "full" / "groups" / "step-000000"
    newer = older.with_name("step-000012")
    newer.mkdir()
    (newer / "group.json").write_text((older / "group.json").read_text().replace('"step": 0', '"step": 12'))
    shown = page_of(group.tab, known)
    events = {target: one for one in shown["events"] for target in one.targets}
    for place in ((shown["group-run"]._id, "change"), (shown["group-refresh"]._id, "click")):
        assert [one.elem_id for one in events[place].inputs] == ["group-run"]
        steps, newest, content = events[place].fn("full")
        assert (steps.choices, steps.value, newest) == ([("12", 12), ("0", 0)], 12, 12)
        assert content == show(known, "full", 12) != show(known, "full", 0)
    select = events[shown["group-step"]._id, "input"].fn
    assert select(0, 12, "full", 0) == [0, show(known, "full", 0)]
    assert shown["group-page"].js_on_load == CHOOSE and not shown["group-page"].apply_default_css
    assert "samples with a positive one become more likely" in shown["texts"]


def test_nodes_of_a_tree_can_be_chosen(tmp_path):
    fresh(tmp_path, steps=1).fit()
    content = show(Opened({"tree": tmp_path}, {}, tmp_path / "votes.jsonl"), "tree", 0)
    assert content.count('role="button"') == content.count('class="node"') > 1
