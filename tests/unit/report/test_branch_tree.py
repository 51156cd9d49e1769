"""The drawing of a tree: what has no decision, no advantage, no picture or no relative."""

from __future__ import annotations

import torch

from mmgrpo.report.group_page import Branching, branching
from mmgrpo.report.groups import read_group
from mmgrpo.report.media import MediaFolder
from tests.trees import decisions
from tests.unit.report.test_group_runs import strange
from tests.unit.report.test_groups import pictures, rolled, write


def drawn(folder, node, mask=None, *, tree=None, advantages=None, **fields) -> Branching:
    rows = len(node)
    keys = {"prompt": [0] * rows, "tree": tree or [0] * rows}
    numbers = decisions(node, keys=keys, decision_mask=mask, **fields)
    given = None if advantages is None else torch.tensor(advantages)
    write(folder, rolled(pictures(rows), numbers, [float(i) for i in range(rows)], advantages=given))
    found = branching(read_group(folder, 0), MediaFolder(folder))
    assert found is not None
    return found


def test_a_decision_without_a_deviation_tells_none(tmp_path):
    first, _, last = drawn(tmp_path, [[0, 1], [0, 2]], advantages=[[0.0, -1.0], [0.0, 2.0]]).nodes
    assert first.about == "step 0 · value 0.500 · advantage 0.000 · 2 decisions below it · samples 1, 2"
    assert last.about == "step 1 · value 1.000 · advantage +2.000 · 0 decisions below it · sample 2"


def test_samples_of_one_tree_without_decisions_are_not_drawn(tmp_path):
    def change(record, member):
        record["members"] = [member | {"nodes": [-1, -1]}] * 2

    group = read_group(strange(tmp_path, change), 0)
    assert branching(group, MediaFolder(tmp_path)) is None


def test_one_shared_decision_is_a_tree(tmp_path):
    assert [node.samples for node in drawn(tmp_path, [[0], [0]]).nodes] == [[0, 1]]


def test_nodes_of_a_step_are_counted_from_the_top(tmp_path):
    tree = drawn(tmp_path, [[0], [1], [0], [0]])
    assert [(node.id, node.samples) for node in tree.nodes] == [(0, [1]), (1, [0, 2, 3])]
