"""The bounds of a group that is written, what does not fit, and its drawing to the pixel."""

from __future__ import annotations

import torch

from mmgrpo.report.run_record import NONE, GroupRecord, tree_of
from mmgrpo.types import Prompt
from tests.trees import plain
from tests.unit.report.test_groups import pictures, rolled, write


def test_a_gap_between_decisions_has_no_node_and_a_sample_without_decisions_no_advantage(tmp_path):
    node, mask = torch.tensor([[4, 9, 6], [4, 9, 5]]), torch.tensor([[True, False, True], [True, False, True]])
    table, nodes = tree_of(node, mask, [1.0, 0.0])
    assert table == [[0, -1, 1], [0, -1, 2]] and nodes == [{"value": 0.5}, {"value": 1.0}, {"value": 0.0}]
    numbers = plain([2, 2])
    numbers.decision_mask[1] = False
    first, second = write(tmp_path, rolled(pictures(2), numbers, [1.0, 0.0]))["members"]
    assert first["advantage"] == 1.125 and (second["advantage"], second["advantages"]) == (0.0, [])


def test_a_group_can_be_read_by_everybody_and_has_the_letters_of_its_prompt(tmp_path):
    write(tmp_path, rolled(pictures(1), plain([1]), [1.0], prompt=Prompt("où\ud83d", id="a")))
    place = tmp_path / "groups" / "step-000000"
    assert place.stat().st_mode & 0o777 == 0o755 and "où?".encode() in (place / "group.json").read_bytes()
    assert not NONE.due(0)


def test_a_group_that_is_a_link_is_left_alone(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "group.json").write_text("{}")
    (tmp_path / "run" / "groups").mkdir(parents=True)
    (tmp_path / "run" / "groups" / "step-000003").symlink_to(tmp_path / "other")
    GroupRecord(tmp_path / "run", 1).truncate(0)
    assert (tmp_path / "other" / "group.json").exists()
