"""Trees of turns: completions of a prompt that share their first turns, so a budget of turns gives more of them
(Tree-GRPO, arXiv:2509.21240).

    root -> turn, answers -> turn, answers -> answer        a chain; any of its states may be gone on from once more

A node is the state before a turn: the prompt, or what was read and written until a turn's calls were answered. Of each
prompt several chains are drawn, the trees; then in every round each tree goes on from some of its nodes, and at the end
a number of its leaves, drawn at random, are the samples. Tokens that several samples share have one number in ``node``
and are trained once; the keys are ``prompt`` and ``tree``. Where tools are classes, a further leaf has instances of its
own, in which the calls of the turns that it shares are made again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mmgrpo.config.ranges import COUNT, COUNT_OR_ZERO
from mmgrpo.config.registry import bind, block, parse
from mmgrpo.policies.text_trees import TREES, Tree
from mmgrpo.policies.walks import Addition, Part
from mmgrpo.randomness import stream

if TYPE_CHECKING:
    from mmgrpo.policies.tools import Episode

Fork: TypeAlias = "Callable[[Episode, int, int], Episode]"
"""From a completion, a number of its turns and that of a member to one that goes on from before the turn."""


@dataclass(frozen=True)
class TurnTree:
    """The shape of the trees of a prompt."""

    trees: int
    expand: int
    rounds: int
    keep: int

    @property
    def leaves(self) -> int:
        """Samples of a prompt."""
        return self.trees * self.keep

    @property
    def most(self) -> int:
        """Leaves of a tree."""
        return 1 + self.expand * self.rounds

    def grow(
        self,
        chains: Sequence[Episode],
        seed: int,
        fork: Fork,
        go_on: Callable[[Sequence[Episode], int], None],
        made: Callable[[Episode], None],
    ) -> list[tuple[Episode, int]]:
        """The leaves of all trees, each with the number of its tree, those of a prompt and of a tree one after the
        other. ``chains`` are the first of each tree; ``go_on`` continues further ones in the round of a number, and
        ``made`` is told of each."""
        trees = [[chain] for chain in chains]
        members: dict[int, int] = {}
        for chain in chains:
            members[chain.query.slot] = members.get(chain.query.slot, 0) + 1
        for number in range(self.rounds):
            forks: list[Episode] = []
            for place, tree in enumerate(trees):
                slot = tree[0].query.slot
                nodes = [(leaf, turn) for leaf in tree for turn in range(_first_own_turn(leaf), leaf.turn)]
                drawn = stream(seed, "turn tree", number, slot, place % self.trees)
                grown = []
                for chosen in torch.randint(len(nodes), (self.expand,), generator=drawn).tolist():
                    leaf, turn = nodes[chosen]
                    grown.append(fork(leaf, turn, members[slot]))
                    members[slot] += 1
                    made(grown[-1])
                forks += grown
                tree += grown
            go_on(forks, number)
        leaves = []
        for place, tree in enumerate(trees):
            drawn = stream(seed, "leaves", tree[0].query.slot, place % self.trees)
            chosen = torch.randperm(len(tree), generator=drawn)[: self.keep].sort().values
            leaves += [(tree[leaf], tree[0].query.slot * self.trees + place % self.trees) for leaf in chosen.tolist()]
        return leaves


@dataclass(frozen=True)
class TurnVines:
    """Chains that are gone on from several times at a few of their states."""

    trees: int
    states: int
    count: int

    @property
    def keep(self) -> int:
        """Samples of a tree."""
        return 1 + self.states * self.count

    @property
    def most(self) -> int:
        """Leaves of a tree."""
        return self.keep

    @property
    def leaves(self) -> int:
        """Samples of a prompt."""
        return self.trees * self.keep

    def grow(
        self,
        chains: Sequence[Episode],
        seed: int,
        fork: Fork,
        go_on: Callable[[Sequence[Episode], int], None],
        made: Callable[[Episode], None],
    ) -> list[tuple[Episode, int]]:
        """Each chain and then its vines, state by state, with the number of its tree."""
        members: dict[int, int] = {}
        for chain in chains:
            members[chain.query.slot] = members.get(chain.query.slot, 0) + 1
        trees: list[list[Episode]] = []
        for place, chain in enumerate(chains):
            slot = chain.query.slot
            drawn = stream(seed, "vines", slot, place % self.trees)
            turns = [*range(_first_own_turn(chain), chain.turn)]
            states = [turns[at] for at in torch.randint(len(turns), (self.states,), generator=drawn).tolist()]
            trees.append([chain])
            for turn in sorted(states):
                for _ in range(self.count):
                    trees[-1].append(fork(chain, turn, members[slot]))
                    members[slot] += 1
                    made(trees[-1][-1])
        go_on([vine for tree in trees for vine in tree[1:]], 0)
        numbers = [chain.query.slot * self.trees + place % self.trees for place, chain in enumerate(chains)]
        return [(leaf, number) for tree, number in zip(trees, numbers, strict=True) for leaf in tree]

    def fields(self, rows: Sequence[Episode], trees: Sequence[int], turn: Int[Tensor, "B T"]) -> dict[str, Tensor]:
        """``vine``, one number for all vines of a state and 0 for chains, and ``vine_turn``, the turns that a vine has
        taken since its state before each token, -1 before it and for chains. ``trees``: the number of each row's."""
        place = torch.arange(len(rows)) % self.keep
        number = 1 + torch.tensor(list(trees)) * self.states + (place - 1) // self.count
        vine = torch.where(place > 0, number, 0).to(turn.device)
        since = turn - torch.tensor([episode.shared_turns for episode in rows], device=turn.device)[:, None]
        since = torch.where(vine[:, None] > 0, since.clamp(min=-1), -1)
        return {"vine": vine.float(), "vine_turn": since.float()}


def _first_own_turn(episode: Episode) -> int:
    """The first turn whose state no earlier leaf has passed."""
    return episode.shared_turns + 1 if episode.parent else 0


@block(TREES)
def turn_tree(
    *,
    trees: Annotated[int, COUNT] = 2,
    expand: Annotated[int, COUNT] = 2,
    rounds: Annotated[int, COUNT_OR_ZERO] = 1,
    keep: Annotated[int, COUNT] = 3,
) -> TurnTree:
    """Completions with tools: of each prompt ``trees`` chains of turns, each of which in ``rounds`` rounds goes on from
    ``expand`` of its states, drawn with replacement; ``keep`` leaves of each are samples (Tree-GRPO, arXiv:2509.21240,
    and the numbers of its code)."""
    return TurnTree(trees, expand, rounds, keep)


@block(TREES)
def turn_vines(
    *,
    trees: Annotated[int, COUNT] = 1,
    states: Annotated[int, COUNT] = 2,
    count: Annotated[int, COUNT] = 8,
) -> TurnVines:
    """Completions with tools: of each prompt ``trees`` chains of turns, and from ``states`` of the states of each,
    drawn with replacement, ``count`` further completions, the vines; all are samples (Polychromic policy optimization,
    arXiv:2509.25424; 2 and 8 as its replications have them). The credit ``vine_gae`` compares sets of them."""
    return TurnVines(trees, states, count)


def tree_part(value: str) -> Part:
    """What ``sampling.tree`` asks for: a walk of texts, or what stands beside conversations."""
    return Branching(value) if parse(value, "sampling.tree")[0].startswith("turn_") else Tree(value)


class Branching(Addition):
    """Conversations in trees of turns."""

    setting = "sampling.tree"
    beside = "sampling.tools"
    keys = frozenset({"tree"})

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.shape: TurnTree | TurnVines = bind(value, TREES, "sampling.tree")({})
        self.fields = frozenset({"vine", "vine_turn"} if isinstance(self.shape, TurnVines) else ())

    def check_sizes(self, group_size: int, max_tokens: int) -> None:
        """ValueError for groups that are not its leaves, and for more leaves than a tree has."""
        tree = self.shape
        if tree.keep > tree.most:
            raise ValueError(
                f"sampling.tree: got keep {tree.keep}, expected at most the {tree.most} leaves of a tree; lower it, or "
                "raise expand"
            )
        self.check_leaves(group_size, tree.leaves)


def number_tokens(rows: Sequence[Episode], width: int) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """The number of each token, one for all rows that share it, and True at the first row that has it; entries without
    a token have numbers of their own."""
    numbers: dict[int, list[int]] = {}
    count = 0

    def of(episode: Episode) -> list[int]:
        nonlocal count
        if id(episode) not in numbers:
            before = of(episode.parent)[: episode.shared_tokens] if episode.parent else []
            length = len(episode.ids) - len(before)
            numbers[id(episode)] = before + [*range(count, count + length)]
            count += length
        return numbers[id(episode)]

    table = [of(episode) for episode in rows]
    node = torch.full((len(rows), width), -1)
    owner = torch.zeros_like(node, dtype=torch.bool)
    seen: set[int] = set()
    for row, nodes in enumerate(table):
        node[row, : len(nodes)] = torch.tensor(nodes)
        owner[row, : len(nodes)] = torch.tensor([node not in seen for node in nodes])
        seen.update(nodes)
    padding = count + torch.arange(node.numel()).view(node.shape)
    return torch.where(node >= 0, node, padding), owner
