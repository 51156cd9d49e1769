"""Trees of turns: what leaves share, that it is scored as drawn, and that worlds are led to where a leaf begins."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
import torch

from mmgrpo.advantages.estimate import estimate
from mmgrpo.policies.token_model import Query
from mmgrpo.policies.tools import Episode
from mmgrpo.policies.turn_trees import Branching, TurnTree, TurnVines, number_tokens
from mmgrpo.types import Prompt, Request, Rollout
from tests.building import algorithm_blocks, recipe, rescored
from tests.trees import decisions
from tests.unit.advantages.test_credit import credit, near
from tests.unit.policies.test_token_policy import kept
from tests.unit.policies.test_tools import PEEK, PROMPTS, policy_of, texts

pytest.importorskip("transformers")

SHAPE = "turn_tree(trees=2, expand=2, rounds=1, keep=3)"


def drawn(policy: Any, slots=(0, 1, 2), size: int = 6, records=frozenset({"turn", "state"})) -> Rollout:
    return policy.rollout(Request([PROMPTS[slot] for slot in slots], list(slots), size, seed=3, records=records))


@pytest.fixture(scope="module")
def made() -> tuple[Any, Rollout]:
    policy = policy_of(tree=SHAPE, max_tokens=60)
    return policy, drawn(policy)


def test_leaves_share_their_first_turns_and_each_token_is_trained_once(made):
    _, rolled = made
    rows, decided = kept(rolled), rolled.decisions
    node, mask, turn = decided.node, decided.decision_mask, decided.fields["turn"]
    assert decided.rows == 18 and decided.keys["prompt"].tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert decided.keys["tree"].tolist() == [number for number in range(6) for _ in range(3)]
    assert int(decided.loss_mask.sum()) == len(node[mask].unique()) < int(mask.sum())
    shared = 0
    for number in node[mask].unique():
        at, places = ((node == number) & mask).nonzero(as_tuple=True)
        first = int(places[0])
        assert len(places.unique()) == 1 and len(decided.keys["tree"][at].unique()) == 1
        assert bool(decided.loss_mask[at[0], first])
        for row in at.tolist()[1:]:
            shared += 1
            assert torch.equal(rows.ids[row, : first + 1], rows.ids[at[0], : first + 1])
            assert torch.equal(node[row, : first + 1], node[at[0], : first + 1])
            assert turn[row, first] == turn[at[0], first]
    assert shared > 10
    for tree in range(6):  # whole turns are shared: where two leaves part, a turn of both begins
        leaves = (decided.keys["tree"] == tree).nonzero()[:, 0].tolist()
        for one, other in pairwise(leaves):
            same = int(((node[one] == node[other]) & rows.real[one] & rows.real[other]).sum())
            assert turn[one, same] >= 0 and (same == 0 or turn[one, same - 1] != turn[one, same])


def test_shared_turns_are_scored_as_they_were_drawn(made):
    policy, rolled = made
    mask = rolled.decisions.loss_mask
    torch.testing.assert_close(rescored(policy, rolled)[mask], rolled.decisions.log_probs[mask], rtol=0, atol=1e-5)
    for row, output in enumerate(texts(rolled)):
        assert output.tokens == int(rolled.decisions.decision_mask[row].sum())


def test_a_tree_does_not_depend_on_the_other_prompts(made):
    policy, rolled = made
    alone = drawn(policy, (1,))
    assert [one.transcript for one in texts(alone)] == [one.transcript for one in texts(rolled)[6:12]]


def test_without_a_branch_it_is_a_conversation():
    plain, tree = policy_of(), policy_of(tree="turn_tree(trees=4, expand=1, rounds=0, keep=1)")
    one, other = drawn(plain, size=4), drawn(tree, size=4)
    assert torch.equal(kept(one).ids, kept(other).ids)
    for name in ("log_probs", "loss_mask", "decision_mask"):
        assert torch.equal(getattr(one.decisions, name), getattr(other.decisions, name))
    rewards = torch.tensor([[float(text.transcript.count("a"))] for text in texts(one)])
    given = rewards, rewards > -1, torch.ones(1)
    grpo = estimate(*given, one.decisions, recipe()).advantages
    blocks = algorithm_blocks("tree_grpo")["advantages"]  # within a tree of one leaf nothing is compared
    torch.testing.assert_close(estimate(*given, other.decisions, blocks).advantages, grpo)
    gradients = []
    for policy, rolled in ((plain, one), (tree, other)):
        policy.network.zero_grad()
        for part in rolled.steps.split(rolled.decisions.loss_mask, 5):
            scores = policy.score(rolled, cast(Any, part), frozenset({"log_probs"}))["log_probs"]
            (scores * grpo[part.rows, part.positions]).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.network.parameters() if p.grad is not None]))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


class Counter:
    """A world that counts its calls."""

    def reset(self, prompt: Prompt, seed: int) -> None:
        self.count = 0

    def peek(self) -> str:
        """Look."""
        self.count += 1
        return " ".join(["eight"] * self.count)

    def turn_reward(self) -> float:
        return float(self.count)

    def reward(self) -> float:
        return float(self.count)


def test_a_world_is_led_to_where_a_leaf_begins():
    """Every call is answered by its number in its completion, also behind turns that another leaf made."""
    rolled = drawn(policy_of((PEEK, "<|im_end|>"), (Counter,), tree=SHAPE, max_tokens=80))
    more = 0
    for output in texts(rolled):
        answers = [call.result.split().count("eight") for call in output.calls if call.name == "peek"]
        assert answers == [*range(1, len(answers) + 1)] and output.tool_reward == len(answers)
        more += len(answers) > 1
    assert more > 3
    earned = rolled.decisions.fields["step_rewards"].sum(1)
    assert earned.max() > 2


class Fickle:
    """A world whose answers depend on more than it may."""

    def reset(self, prompt: Prompt, seed: int) -> None:
        import secrets

        self.word = secrets.token_hex(8)

    def peek(self) -> str:
        """Look."""
        return self.word


def test_a_world_that_answers_otherwise_is_refused():
    with pytest.raises(RuntimeError, match=r"sampling.tree: 'peek' answered .*prompt '\d'.*expected"):
        drawn(policy_of((PEEK, "<|im_end|>"), (Fickle,), tree=SHAPE, max_tokens=80))


def grown(tree: TurnTree, turns: int = 3, seed: int = 7) -> list[tuple[Episode, int]]:
    """A tree whose chains have this many turns of two tokens, and whose further leaves end one turn later."""

    def chain(member: int) -> Episode:
        one = Episode(Query(PROMPTS[0], 5, tree.trees), member)
        for turn in range(turns):
            one.begun.append((2 * turn, 0))
            one.ids += [10 * member + turn] * 2
            one.ends.append(2 * turn + 1)
        return one

    def fork(one: Episode, turn: int, member: int) -> Episode:
        made = Episode(one.query, member, one.ids[: 2 * turn], begun=one.begun[:turn], ends=one.ends[:turn])
        made.parent, made.shared_turns, made.shared_tokens = one, turn, 2 * turn
        return made

    def go_on(some, number) -> None:
        for one in some:
            one.begun.append((len(one.ids), 0))
            one.ids += [100 * (number + 1) + one.member]
            one.ends.append(len(one.ids) - 1)

    return tree.grow([chain(member) for member in range(tree.trees)], seed, fork, go_on, lambda one: None)


def test_the_shape_of_trees_is_that_of_the_code():
    """Two trees, two further leaves each: three of three are kept. All states before a turn may be gone on from."""
    leaves = grown(TurnTree(2, 2, 1, 3))
    assert [number for _, number in leaves] == [10, 10, 10, 11, 11, 11]
    starts = {one.shared_turns for one, _ in grown(TurnTree(1, 64, 1, 65)) if one.parent}
    assert starts == {0, 1, 2}  # the root too, and never the answer
    members = [one.member for one, _ in grown(TurnTree(2, 3, 2, 7))]
    assert sorted(members) == [*range(14)]
    assert len(grown(TurnTree(2, 3, 1, 2))) == 4
    kept = {one.member for number in range(8) for one, _ in grown(TurnTree(1, 3, 1, 1), seed=number)}
    assert len(kept) > 1  # any of its leaves
    later = [one for one, _ in grown(TurnTree(1, 8, 2, 17)) if one.parent and one.parent.parent]
    assert all(one.shared_turns > (one.parent or one).shared_turns for one in later)


def test_tokens_of_a_tree_have_one_number_each():
    (one, _), *rest = grown(TurnTree(1, 1, 1, 2))
    fork = rest[0][0]
    shared = fork.shared_tokens
    node, owner = number_tokens([one, fork], 7)
    assert node[0, :6].tolist() == [0, 1, 2, 3, 4, 5] and node[1, :shared].tolist() == [*range(shared)]
    assert node[1, shared] == 6 and len(node.unique()) == 14 - shared
    assert owner[0].tolist() == [True] * 6 + [False]
    assert owner[1].tolist() == [False] * shared + [True] + [False] * (6 - shared)


def test_advantages_are_those_within_the_prompt_and_within_the_tree():
    """Leaves 1, 0 | 1, 1: among all .5, -1.5, .5, .5, and .7071, -.7071, 0, 0 within trees."""
    made = decisions([[0, 1], [0, 2], [3, 4], [3, 5]], keys={"prompt": [0] * 4, "tree": [0, 0, 1, 1]})
    rewards = torch.tensor([[1.0], [0.0], [1.0], [1.0]])
    blocks = algorithm_blocks("tree_grpo", scale="group_std(eps=0)", credit="leaf_sum")["advantages"]
    found = estimate(rewards, rewards > -1, torch.ones(1), made, blocks).advantages
    assert found.numpy() == near([[-1, 1.20711], [-1, -2.20711], [1, 0.5], [1, 0.5]], 1e-5)


def test_a_shared_turn_has_what_all_its_leaves_would_give_it():
    made = decisions([[0, 1], [0, 2], [0, 3], [4, 5]])
    assert credit("leaf_sum", [1.0, 0.0, -3.0, 2.0], made).tolist() == [[-2, 1], [-2, 0], [-2, -3], [2, 2]]
    keep = torch.tensor([True, True, False, True])
    assert credit("leaf_sum", [1.0, 0.0, -3.0, 2.0], made, keep=keep).tolist() == [[1, 1], [1, 0], [1, 0], [2, 2]]


@pytest.mark.parametrize(
    ("shape", "size", "match"),
    [
        (SHAPE, 8, "data.group_size: got 8, expected the 6 "),
        ("turn_tree(keep=4)", 8, "sampling.tree: got keep 4, expected at most the 3 "),
    ],
)
def test_a_tree_has_the_size_of_its_groups(shape, size, match):
    (part,) = policy_of(tree=shape).walk.additions
    with pytest.raises(ValueError, match=match):
        part.check_sizes(size, 60)


def test_a_tree_of_turns_needs_tools():
    with pytest.raises(ValueError, match=r"sampling.tree.*turn_tree.*sampling.tools"):
        policy_of(tools=(), tree=SHAPE)


VINES = "turn_vines(trees=2, states=2, count=3)"


def test_vines_go_on_from_states_of_a_chain_and_share_what_came_before():
    """Of each chain two states, each gone on from three times, by other streams: samples of one prompt."""
    policy = policy_of(tree=VINES, max_tokens=60)
    rolled = drawn(policy, size=14)
    decided, rows = rolled.decisions, kept(rolled)
    node, mask, turn = decided.node, decided.decision_mask, decided.fields["turn"]
    vine, since = decided.fields["vine"].long().tolist(), decided.fields["vine_turn"]
    assert decided.rows == 42 and decided.keys["tree"].tolist() == [number for number in range(6) for _ in range(7)]
    assert vine[:14] == [0, 1, 1, 1, 2, 2, 2, 0, 3, 3, 3, 4, 4, 4] and vine[14:17] == [0, 5, 5]
    assert int(decided.loss_mask.sum()) == len(node[mask].unique())
    differing, later = 0, 0
    for row, number in enumerate(vine):
        chain, own = row // 7 * 7, since[row][mask[row]].tolist()
        if not number:
            assert set(own) == {-1.0}
            continue
        begins = own.index(0.0)  # among the row's own tokens
        places = mask[row].nonzero()[:, 0]
        at = int(places[begins])
        assert torch.equal(node[row, :at], node[chain, :at]) and int(node[row, at]) != int(node[chain, at])
        assert own[begins:] == sorted(own[begins:]) and set(own[:begins]) <= {-1.0}
        assert (turn[row, places[begins:]] - turn[row, at]).tolist() == own[begins:]
        fellow = next(other for other in range(len(vine)) if vine[other] == number)
        assert int(since[fellow].eq(0).int().argmax()) == at  # they part at the same state
        differing += not torch.equal(rows.ids[row], rows.ids[fellow])
        later += at > 0
    assert differing > 10 and later > 10
    torch.testing.assert_close(
        rescored(policy, rolled)[decided.loss_mask], decided.log_probs[decided.loss_mask], rtol=0, atol=1e-5
    )


def test_a_world_is_led_to_the_state_of_a_vine():
    rolled = drawn(policy_of((PEEK, "<|im_end|>"), (Counter,), tree=VINES, max_tokens=80), size=14)
    for output in texts(rolled):
        answers = [call.result.split().count("eight") for call in output.calls if call.name == "peek"]
        assert answers == [*range(1, len(answers) + 1)]


def test_the_gradient_of_vines_is_that_of_their_advantages():
    """Of one step, each token that several share once: -A of its set, standardized over all, times grad log p."""
    policy = policy_of((PEEK, "<|im_end|>"), (Counter,), tree=VINES, max_tokens=60)
    rolled = drawn(policy, size=14)
    blocks = algorithm_blocks("polychromic_ppo", credit="vine_gae(by='answer_class', size=2, sets=9, window=1)")
    made = rolled.decisions
    fields = {"value": torch.zeros_like(made.log_probs), "token_rewards": torch.zeros_like(made.log_probs)}
    made = replace(made, fields={**made.fields, **fields})
    rewards = torch.tensor([[float(one.tool_reward or 0) / 9, float(len(one.calls) % 2)] for one in texts(rolled)])
    result = estimate(
        rewards, rewards > -1, torch.tensor([1.0, 0.0]), made, blocks["advantages"], ["r", "answer_class"]
    )
    mask, since, vine = made.decision_mask, made.fields["vine_turn"], made.fields["vine"]
    compared = 0
    for number in vine.unique()[1:]:
        rows = (vine == number).nonzero()[:, 0]
        first = [float(result.advantages[row][(since[row] == 0) & mask[row]][0]) for row in rows.tolist()]
        classes, values = rewards[rows, 1].tolist(), made.fields["step_rewards"][rows]
        returns = [float(rewards[row, 0]) + float(values[n][since[row] >= 0].sum()) for n, row in enumerate(rows)]
        f = [(returns[a] + returns[b]) / 2 * len({classes[a], classes[b]}) / 2 for a, b in ((0, 1), (0, 2), (1, 2))]
        gained = [(f[0] + f[1]) / 2, (f[0] + f[2]) / 2, (f[1] + f[2]) / 2]
        for one, other in ((0, 1), (0, 2)):  # all are moved and scaled alike
            if abs(gained[one] - gained[other]) > 1e-6:
                compared += 1
                assert (first[one] - first[other]) * (gained[one] - gained[other]) > 0
    assert compared > 5
    policy.network.zero_grad()
    for part in rolled.steps.split(made.loss_mask, 99):
        scores = policy.score(rolled, cast(Any, part), frozenset({"log_probs"}))["log_probs"]
        (-scores * result.advantages[part.rows, part.positions]).sum().backward()
    assert any(bool(one.grad.any()) for one in policy.network.parameters() if one.grad is not None)


def test_groups_are_as_large_as_chains_and_vines_together():
    assert (TurnVines(2, 2, 3).leaves, TurnVines(1, 2, 8).leaves) == (14, 17)
    with pytest.raises(ValueError, match="group_size.*got 13.*14"):
        Branching(VINES).check_sizes(13, 60)
