"""The drawing of a tree: what has no decision, no advantage, no picture or no relative."""

from __future__ import annotations

from base64 import b64decode
from io import BytesIO

import pytest
import torch
from PIL import Image as Pil

from mmgrpo.report import branch_tree
from mmgrpo.report.branch_tree import Branching, branching
from mmgrpo.report.groups import read_group
from mmgrpo.report.media import MediaFolder
from tests.report.test_group_runs import strange
from tests.report.test_groups import pictures, rolled, tree_round, write
from tests.trees import decisions


def drawn(folder, node, mask=None, *, tree=None, advantages=None, **fields) -> Branching:
    rows = len(node)
    keys = {"prompt": [0] * rows, "tree": tree or [0] * rows}
    numbers = decisions(node, keys=keys, decision_mask=mask, **fields)
    given = None if advantages is None else torch.tensor(advantages)
    write(folder, rolled(pictures(rows), numbers, [float(i) for i in range(rows)], advantages=given))
    found = branching(read_group(folder, 0), MediaFolder(folder))
    assert found is not None
    return found


def test_steps_without_a_decision_before_an_edge_are_straight_lines(tmp_path):
    """Samples at 54 and 94, the tree in their middle; columns begin at 16, 112, 208 and 304."""
    node, mask = [[0, 1, 2, 3], [0, 1, 2, 4]], [[False, True, False, True]] * 2
    shared, first, second = drawn(tmp_path, node, mask).nodes
    assert (shared.idle, shared.x, shared.parent) == ("M16.0 74.0 H112.0", 208.0, -1)
    assert shared.path.startswith("M112.0 74.0 ") and (first.parent, second.parent) == (shared.id, shared.id)
    assert [one.idle for one in (first, second)] == ["M208.0 74.0 H304.0"] * 2
    assert first.path == "M304.0 74.0 C352.0 74.0 352.0 54.0 400.0 54.0"


def test_a_sample_without_decisions_is_a_straight_line_from_the_beginning(tmp_path):
    tree = drawn(tmp_path, [[0, 1], [0, 2], [5, 6]], [[True, True], [True, True], [False, False]])
    assert [leaf.idle for leaf in tree.leaves] == ["", "", "M16.0 134.0 H208.0"]
    assert [leaf.sample for leaf in tree.leaves] == [0, 1, 2] and len(tree.nodes) == 3
    assert tree.nodes[0].path.startswith("M16.0 94.0 "), "the middle of all three"


def test_every_tree_begins_in_the_middle_of_its_own_samples(tmp_path):
    tree = drawn(tmp_path, [[0], [0], [1], [1]], tree=[4, 4, 9, 9])
    assert [node.path.split(" C")[0] for node in tree.nodes] == ["M16.0 74.0", "M16.0 154.0"]


def test_without_any_advantage_all_edges_are_thin(tmp_path):
    tree = drawn(tmp_path, [[0, 1], [0, 2]], advantages=[[0.0, 0.0], [0.0, 0.0]])
    assert {(node.width, node.sign) for node in tree.nodes} == {(1.0, "zero")}


def test_a_decision_without_a_deviation_tells_none(tmp_path):
    first, _, last = drawn(tmp_path, [[0, 1], [0, 2]], advantages=[[0.0, -1.0], [0.0, 2.0]]).nodes
    assert first.about == "step 0 · value 0.500 · advantage 0.000 · 2 decisions below it · samples 1, 2"
    assert last.about == "step 1 · value 1.000 · advantage +2.000 · 0 decisions below it · sample 2"


def test_samples_of_one_tree_without_decisions_are_not_drawn(tmp_path):
    def change(record, member):
        record["members"] = [member | {"nodes": [-1, -1]}] * 2

    group = read_group(strange(tmp_path, change), 0)
    assert branching(group, MediaFolder(tmp_path)) is None


def test_a_picture_of_a_sample_has_at_most_as_many_pixels_as_one_of_a_page(tmp_path, monkeypatch):
    write(tmp_path, tree_round())
    folder = tmp_path / "groups" / "step-000000"
    Pil.new("RGB", (8, 4)).save(folder / "000.png")
    for most, there in ((32, True), (31, False)):
        monkeypatch.setattr(branch_tree, "MAX_PIXELS", most)
        tree = branching(read_group(tmp_path, 0), MediaFolder(folder))
        assert tree is not None and bool(tree.leaves[0].uri) == there


def test_one_shared_decision_is_a_tree(tmp_path):
    assert [node.samples for node in drawn(tmp_path, [[0], [0]]).nodes] == [[0, 1]]


def test_nodes_of_a_step_are_counted_from_the_top(tmp_path):
    tree = drawn(tmp_path, [[0], [1], [0], [0]])
    assert [(node.id, node.samples) for node in tree.nodes] == [(0, [1]), (1, [0, 2, 3])]


@pytest.mark.parametrize(("width", "height"), [(2, 1), (1, 2)])
def test_the_picture_of_a_sample_has_twice_the_pixels_that_it_is_shown_with(width, height, tmp_path):
    write(tmp_path, tree_round())
    folder = tmp_path / "groups" / "step-000000"
    Pil.new("RGB", (200 * width, 200 * height)).save(folder / "000.png")
    tree = branching(read_group(tmp_path, 0), MediaFolder(folder))
    with Pil.open(BytesIO(b64decode(tree.leaves[0].uri.partition(",")[2]))) as shown:
        assert shown.size == (branch_tree.THUMBNAIL * width, branch_tree.THUMBNAIL * height)
