"""The bounds of a group that is written, what does not fit, and its drawing to the pixel."""

from __future__ import annotations

import torch

from mmgrpo.report import group_page
from mmgrpo.report.group_page import branching
from mmgrpo.report.group_record import NONE, GroupFolder, GroupRecord, describe, displayed, tree_of
from mmgrpo.report.groups import read_group
from mmgrpo.report.media import MediaFolder
from mmgrpo.types import Media, Prompt, Text, Turn
from tests.trees import plain
from tests.unit.report.test_groups import pictures, rolled, tree_round, write


def test_texts_have_20_000_characters_and_groups_128_members(tmp_path):
    long = Prompt("x" * 20_001, id="a", answer="y" * 20_001)
    totals = [0.0, 1.0] * 64
    record = write(tmp_path, rolled([Text("z" * 20_000)] * 129, plain([1] * 129), [*totals, 1.0], prompt=long))
    assert record["left_out"] == ["1 of 129 members", *["1 characters of a text"] * 2] and len(record["members"]) == 128
    assert record["prompt"]["text"] == "x" * 20_000 and record["prompt"]["answer"] == "y" * 20_000
    assert record["members"][0]["output"]["text"] == "z" * 20_000
    assert write(tmp_path, rolled([Text("a")] * 128, plain([1] * 128), totals))["left_out"] == []


def test_members_have_32_768_numbers_together(tmp_path):
    record = write(tmp_path, rolled([Text("a"), Text("b")], plain([16_385, 1]), [0.0, 1.0]))
    assert record["left_out"] == ["the numbers of decisions after the first 16384 of a member"]
    assert len(record["members"][0]["advantages"]) == 16_384


def test_media_have_equal_shares_of_four_mebibytes(tmp_path):
    folder = GroupFolder(tmp_path, displayed)
    asked = Prompt("what?", turns=(Turn("user", (Media("image", pictures(1)[0]), "what?")),))
    previews = {"half": pictures(2), "full": pictures(2)}
    describe(0, rolled(pictures(2), plain([1, 1]), [0.0, 1.0], prompt=asked, previews=previews), folder)
    assert folder.share == 2**22 // (2 * (1 + 2) + 1) and GroupFolder(tmp_path, displayed).share == 2**22
    assert folder.write("a", (b"x" * folder.share, ".bin", "")) == "a.bin" and folder.left_out == []
    assert folder.write("b", (b"x" * (folder.share + 1), ".bin", "")) == ""


def test_a_preview_needs_no_family_and_an_error_of_one_is_told_in_300_characters(tmp_path):
    def fails(medium):
        raise ValueError("x" * 500)

    folder = GroupFolder(tmp_path, fails)
    assert folder.preview("000-1", pictures(1)[0]) == "000-1.png" and folder.left_out == []
    assert folder.small("prompt-0", Media("image", "a.png")) == "" and len(folder.left_out[0]) == 300


def test_a_note_is_written_once(tmp_path):
    folder = GroupFolder(tmp_path, displayed)
    for name in "ab":
        folder.write(name, (b"", ".jpg", "images are made smaller"))
    assert folder.left_out == ["images are made smaller"]


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


def test_a_tree_has_at_most_4000_nodes(tmp_path, monkeypatch):
    write(tmp_path, tree_round())
    group = read_group(tmp_path, 0)
    assert group_page.MAX_NODES == 4000
    for most, drawn in ((6, True), (5, False)):
        monkeypatch.setattr(group_page, "MAX_NODES", most)
        assert (branching(group, MediaFolder(tmp_path)) is not None) == drawn
