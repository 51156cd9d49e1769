"""Trees of texts: what samples share, that it is scored as what was drawn, and that siblings are compared."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
import torch

from mmgrpo.advantages.estimate import estimate
from mmgrpo.policies.generation import Generated
from mmgrpo.policies.text_trees import NUMBERS, TextTree, Tree, grow
from mmgrpo.types import Prompt, Request
from tests.building import algorithm_blocks, rescored, trainer
from tests.unit.policies.test_token_policy import PROMPTS, kept, token_policy

pytest.importorskip("transformers")

SHAPE = "text_tree(children=2, depth=3, tokens=2)"


def grown(policy, slots=(0, 1, 2), prompts=PROMPTS):
    return policy.rollout(Request(list(prompts), list(slots), 8, 3))


def letters(prompts, outputs):
    return [float(one.text.count("a") % 2) for one in outputs]


@pytest.fixture(scope="module")
def made():
    policy = token_policy(max_tokens=8, tree=SHAPE, temperature=1.3)
    return policy, grown(policy)


def test_samples_share_their_beginnings_and_each_token_is_trained_once(made):
    policy, rollout = made
    decisions, ids = rollout.decisions, kept(rollout).ids
    node, mask = decisions.node, decisions.decision_mask
    assert int(decisions.loss_mask.sum()) == len(node[mask].unique()) < int(mask.sum())
    assert len(node.unique()) == len(node[mask].unique()) + int((~mask).sum())
    for number in node[mask].unique():
        rows, places = ((node == number) & mask).nonzero(as_tuple=True)
        assert len(places.unique()) == 1 and len(ids[rows, places].unique()) == 1
        assert bool(decisions.loss_mask[rows[0], places[0]])  # the first of them
        assert len(decisions.keys["tree"][rows].unique()) == 1  # all are below one branch of the root
        place = int(places[0])
        for row in rows.tolist():  # what samples share is a beginning
            assert torch.equal(node[row, :place], node[rows[0], :place])
    ends = torch.isin(ids, policy.ends) & mask
    for row in range(decisions.rows):
        length = int(mask[row].sum())
        assert not ends[row, : length - 1].any()
        assert bool(decisions.fields["truncated"][row]) == (not ends[row, length - 1])
        assert length == 8 or bool(ends[row, length - 1])
    counts = decisions.keys["prompt"].bincount()
    assert counts.max() <= 8 and counts.min() >= 2 and len(counts) == 3


SCRIPT = {
    ("p", ()): [(1, 2), (3, 4)],
    ("p", (1, 2)): [(5, 9), (6, 7)],
    ("p", (3, 4)): [(9,), (8, 8)],
    ("p", (1, 2, 6, 7)): [(1, 9), (2, 2, 2)],
    ("p", (3, 4, 8, 8)): [(3, 3, 3), (4, 9)],
    ("q", ()): [(9,), (1, 9)],
}
"""Continuations of two prompts; 9 is the end."""


def test_a_tree_of_given_continuations_is_the_worked_one():
    """Levels of two tokens, and three of the seven left for the last; log-probs are -token and entropies token / 10."""
    asked, limits = [], []

    def draw(queries, limit):
        rows = [row for query in queries for row in SCRIPT[query.prompt.text, query.forced]]
        asked.append([(query.slot - query.slot % NUMBERS, query.slot % NUMBERS, query.count) for query in queries])
        limits.append(limit)
        ids = torch.tensor([[*row, *[0] * (3 - len(row))] for row in rows])
        real = ids > 0
        return Generated(ids, real, -ids.float(), ids / 10, torch.zeros(ids.shape))

    found = grow(
        TextTree(2, 3, 2), Request([Prompt("p"), Prompt("q")], [3, 5], 8, 0), draw, frozenset({9}), most=7, pad_id=0
    )
    wanted = [
        ([1, 2, 5, 9], [0, 1, 7, 8], 0),
        ([1, 2, 6, 7, 1, 9], [0, 1, 9, 10, 14, 15], 2),
        ([1, 2, 6, 7, 2, 2, 2], [0, 1, 9, 10, 16, 17, 18], 4),
        ([3, 4, 9], [2, 3, 11], 0),
        ([3, 4, 8, 8, 3, 3, 3], [2, 3, 12, 13, 19, 20, 21], 2),
        ([3, 4, 8, 8, 4, 9], [2, 3, 12, 13, 22, 23], 4),
        ([9], [4], 0),
        ([1, 9], [5, 6], 0),
    ]
    assert found.prompt.tolist() == [0] * 6 + [1] * 2 and found.tree.tolist() == [6, 6, 6, 7, 7, 7, 10, 11]
    for row, (ids, node, shared) in enumerate(wanted):
        own = found.real[row]
        assert (found.ids[row][own].tolist(), found.node[row][own].tolist()) == (ids, node)
        assert found.owner[row].tolist() == [False] * shared + [True] * (len(ids) - shared) + [False] * (7 - len(ids))
        assert found.numbers["log_probs"][row][own].tolist() == [-one for one in ids]
        assert found.numbers["entropy"][row][own].tolist() == pytest.approx([one / 10 for one in ids])
    assert limits == [2, 2, 3]
    n = NUMBERS
    assert asked == [[(3 * n, 0, 2), (5 * n, 0, 2)], [(3 * n, 1, 2), (3 * n, 2, 2)], [(3 * n, 3, 2), (3 * n, 4, 2)]]


def test_shared_tokens_are_scored_as_they_were_drawn(made):
    policy, rollout = made
    mask = rollout.decisions.loss_mask
    torch.testing.assert_close(rescored(policy, rollout)[mask], rollout.decisions.log_probs[mask], rtol=0, atol=1e-5)


def test_a_tree_does_not_depend_on_the_others(made):
    policy, rollout = made
    alone = grown(policy, [1], PROMPTS[1:2])
    rows = rollout.decisions.keys["prompt"] == 1
    assert [one.text for one in alone.outputs] == [o.text for o, own in zip(rollout.outputs, rows, strict=True) if own]


def test_siblings_are_compared_as_in_a_naive_recursion(made):
    """v of a node is the mean of its leaves; A = (v - m) / (m (1 - m)), m the mean of its siblings."""
    _, rollout = made
    decisions = rollout.decisions
    rewards = torch.tensor(letters([], rollout.outputs), dtype=torch.float64)
    recipe = algorithm_blocks("treerpo")["advantages"]
    one = torch.ones(1, dtype=torch.float64)
    got = estimate(rewards[:, None], torch.ones(len(rewards), 1).bool(), one, decisions, recipe, ["letters"]).advantages
    node, mask = decisions.node.tolist(), decisions.decision_mask

    def below(rows, place):
        children: dict[int, list[int]] = {}
        for row in rows:
            if mask[row, place : place + 1].any():
                children.setdefault(node[row][place], []).append(row)
        return list(children.values())

    def visit(rows, place, advantage):
        several = below(rows, place)
        values = [float(rewards[some].mean()) for some in several]
        mean = sum(values) / max(1, len(values))
        for some, value in zip(several, values, strict=True):
            own = (
                advantage if len(several) < 2 else 0.0 if value == mean else (value - mean) / (mean * (1 - mean) + 1e-6)
            )
            assert got[some, place].tolist() == pytest.approx([own] * len(some), rel=1e-4)
            visit(some, place + 1, own)

    for slot in range(3):
        visit((decisions.keys["prompt"] == slot).nonzero()[:, 0].tolist(), 0, 0.0)
    assert len(set(rewards.tolist())) == 2 and got.abs().max() > 0


@pytest.mark.parametrize("preset", ["treerpo", "tree_grpo"])
def test_a_preset_trains_on_trees_of_texts(preset, tmp_path):
    policy = token_policy(max_tokens=8, tree=SHAPE, temperature=1.5, keep_reference=True)
    run = trainer(policy, tmp_path, PROMPTS, reward=letters, group_size=8, steps=2, lr=1e-3, **algorithm_blocks(preset))
    run.fit()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and all(line["grad_norm"] > 0 and line["ratio/first_minus_one"] < 1e-5 for line in lines)


@pytest.mark.parametrize("preset", ["branch_grpo", "flow_tree_grpo"])
def test_blocks_that_compare_positions_are_refused(preset, tmp_path):
    policy = token_policy(max_tokens=8, tree=SHAPE)
    with pytest.raises(ValueError, match="tree_siblings"):
        trainer(policy, tmp_path, PROMPTS, reward=letters, group_size=8, steps=2, **algorithm_blocks(preset))


@pytest.mark.parametrize(
    ("size", "most", "words"),
    [(4, 8, "data.group_size: got 4.*8"), (8, 4, "sampling.max_tokens: got 4.*4"), (8, 5, "")],
)
def test_a_tree_has_its_own_size_of_groups_and_room_for_its_levels(size, most, words):
    tree = Tree("text_tree(children=2, depth=3, tokens=2)")
    with pytest.raises(ValueError, match=words) if words else nullcontext():
        tree.check_sizes(size, most)
