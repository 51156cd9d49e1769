"""Training groups of runs that are interrupted and resumed, and those of strangers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image as Pil

from mmgrpo.report.group_page import group_page, widest_group, widest_group_page
from mmgrpo.report.groups import group_steps, read_group
from mmgrpo.report.html import write_report
from mmgrpo.report.run_record import GroupRecord
from tests.building import trainer
from tests.toys import toy_policy, toy_prompts
from tests.unit.runtime.trees import tree

BAD = "</style>\"'><script>alert(1)</script>{{x}}${x}"


def fresh(folder: Path, kept: int = 3, **changes):
    plan = "one_step_branch(first=0.5, intervals=[1, 2])"
    made = trainer(toy_policy(plan), folder, toy_prompts(3), **{"steps": 6, "save_every": 2, **changes})
    made.record.groups = GroupRecord(folder, kept, made.steps, made.optim.steps_per_round)
    return made


@pytest.mark.slow
def test_a_run_keeps_groups_with_what_it_trained_on(tmp_path):
    fresh(tmp_path).fit()
    assert group_steps(tmp_path) == [0, 2, 4]
    group = read_group(tmp_path, 4)
    assert group.size == len(group.members) == 4 and group.steps == 6
    assert [sum(one.trained) for one in group.members] == [1] * 4 and group.members[0].previews
    rewards = [one.reward for one in group.members]
    assert group.values == pytest.approx(rewards)  # every sample has a decision of its own
    mean = sum(rewards) / 4
    assert all((one.advantage > 0) == (one.reward > mean) for one in group.members)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 6


def test_groups_change_nothing_in_a_run(tmp_path):
    def numbers(folder, kept):
        fresh(folder, kept).fit()
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [(row["loss"], row["grad_norm"], row["reward/reward/mean"]) for row in rows]

    assert numbers(tmp_path / "with", 6) == numbers(tmp_path / "without", 0)
    assert not (tmp_path / "without" / "groups").exists()


def test_a_resumed_run_writes_the_same_bytes(tmp_path):
    fresh(tmp_path / "whole").fit()
    cut = fresh(tmp_path / "cut")
    while cut.step < 5:
        cut.run_round()
        if cut.step == 2:
            cut.save()
    later = tmp_path / "cut" / "groups" / "step-000004" / "group.json"
    later.write_text("of a run that went another way")
    stale = tmp_path / "cut" / "groups" / "step-000003"
    stale.mkdir()
    (stale / "group.json").write_text("{}")
    (tmp_path / "cut" / "groups" / ".writing-x").mkdir()
    again = fresh(tmp_path / "cut")
    assert again.resume() and again.step == 2
    assert group_steps(tmp_path / "cut") == [0]
    again.fit()
    assert tree(tmp_path / "cut" / "groups") == tree(tmp_path / "whole" / "groups")
    assert group_steps(tmp_path / "cut") == [0, 2, 4]


def test_an_error_while_a_group_is_written_ends_the_run_and_leaves_a_checkpoint(tmp_path, monkeypatch):
    made = fresh(tmp_path)

    def full(self, stem, output):
        if made.step == 4:
            raise OSError(28, "No space left on device")
        return {"kind": "image", "file": ""}

    monkeypatch.setattr("mmgrpo.report.run_record.GroupFolder.output", full)
    made.checkpoints.every = 1000
    with pytest.raises(OSError, match="No space left"):
        made.fit()
    assert made.checkpoints.saved == 4 and group_steps(tmp_path) == [0, 2]
    assert sorted(path.name for path in (tmp_path / "groups").iterdir()) == ["step-000000", "step-000002"]


def test_the_report_shows_a_group(tmp_path):
    fresh(tmp_path).fit()
    page = write_report(tmp_path).read_text()
    assert "A training group" in page and "optimizer step" in page
    assert page.count('<li class="member"') == 4 and "<svg" in page


RECORD = {
    "step": 0,
    "steps": 2,
    "size": 1,
    "equal_rewards": False,
    "prompt": {"id": "a", "task": "", "text": "a", "answer": None, "media": []},
    "members": [
        {
            "member": 0,
            "tree": 0,
            "flags": [],
            "output": {"kind": "image", "file": "000.png"},
            "previews": {},
            "reward": 1.0,
            "rewards": {},
            "advantage": 1.0,
            "advantages": [1.0, 1.0],
            "trained": [1, 1],
            "nodes": [0, 1],
        }
    ],
    "nodes": [{"value": 1.0}, {"value": 1.0}],
    "left_out": [],
}


def strange(folder: Path, change) -> Path:
    """A run folder whose group was changed."""
    record = json.loads(json.dumps(RECORD))
    change(record, record["members"][0])
    place = folder / "groups" / "step-000000"
    place.mkdir(parents=True)
    (place / "group.json").write_text(json.dumps(record))
    return folder


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda r, m: r.update(members=[]), "got 0 members"),
        (lambda r, m: r.update(members=[m] * 1025), "got 1,025 members"),
        (
            lambda r, m: r.update(members=[m | {"advantages": [0] * 65537, "trained": [0] * 65537, "nodes": []}]),
            "65,537",
        ),
        (lambda r, m: r.update(members={}), "members: got '{}', expected a list"),
        (lambda r, m: r.update(size=-1), "size: got '-1', expected a whole number"),
        (lambda r, m: r.update(steps=10**400), "a very large integer"),
        (lambda r, m: r.update(prompt={"id": 1}), "id, task and text"),
        (lambda r, m: m.update(nodes=[0, 2]), "got node 2 of 2"),
        (lambda r, m: m.update(nodes=[0, 10**9]), "expected integers from -1"),
        (lambda r, m: m.update(nodes=[0, -2]), "expected integers from -1"),
        (lambda r, m: m.update(nodes=[0, 0.5]), "expected integers from -1"),
        (lambda r, m: m.update(nodes=[0]), "nodes: got 1 values, expected 2"),
        (lambda r, m: m.update(trained=[]), "trained: got 0 values, expected 2"),
        (lambda r, m: m.update(output={"kind": "program", "file": "a"}), "got kind 'program'"),
        (lambda r, m: m.update(output={"kind": "image", "file": 1}), "name of a file"),
        (lambda r, m: m.update(output="x"), "expected a mapping"),
    ],
)
def test_a_group_that_no_run_writes_is_refused_in_one_line(tmp_path, change, told):
    with pytest.raises(ValueError, match="group.json") as caught:
        read_group(strange(tmp_path, change), 0)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_the_group_with_the_largest_spread_of_rewards_is_shown_the_newest_of_equals(tmp_path):
    def rewarded(*rewards):
        return lambda record, member: record.update(members=[{**member, "reward": one} for one in rewards])

    # Standard deviations 0.5, 1, 1 and 0; one that has no number does not count.
    for step, rewards in enumerate(((0, 1), (1, 3, None), (3, 1), (2, 2))):
        place = strange(tmp_path / str(step), rewarded(*rewards)) / "groups" / "step-000000"
        (tmp_path / "groups").mkdir(exist_ok=True)
        place.rename(tmp_path / "groups" / f"step-{step:06d}")
    group = widest_group(tmp_path)
    assert group is not None and (group.step, group.spread) == (2, 1.0)
    assert widest_group(tmp_path / "0") is None


@pytest.mark.parametrize(
    "name", ["../../secret.png", "/{}/secret.png", "..%2f..%2fsecret.png", "a\0.png", "link.png", "group.json"]
)
def test_no_file_outside_of_the_group_is_read(tmp_path, name):
    Pil.new("RGB", (4, 4)).save(tmp_path / "secret.png")
    name = name.format(tmp_path)

    def change(record, member):
        record["prompt"]["media"] = [name]
        member.update(output={"kind": "image", "file": name}, previews={"p": name}, tree=0)
        record["members"] = [member, member]

    folder = strange(tmp_path / "run", change)
    (folder / "groups" / "step-000000" / "link.png").symlink_to(tmp_path / "secret.png")
    page = group_page(folder, read_group(folder, 0))
    assert "data:" not in page and "<svg" in page


def test_groups_that_are_links_to_elsewhere_are_not_read(tmp_path):
    strange(tmp_path / "other", lambda record, member: None)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "groups").symlink_to(tmp_path / "other" / "groups")
    assert group_steps(tmp_path / "run") == []
    with pytest.raises(ValueError, match="step-000000"):
        read_group(tmp_path / "run", 0)
    assert widest_group_page(tmp_path / "run") == ""


def test_a_decision_has_a_number_up_to_the_most_decisions(tmp_path, monkeypatch):
    monkeypatch.setattr("mmgrpo.report.groups.MAX_DECISIONS", 2)

    def change(record, member):
        member.update(nodes=[2, 0])
        record["nodes"] = [{"value": 0.0}] * 3

    assert read_group(strange(tmp_path, change), 0).members[0].nodes == [2, 0]
