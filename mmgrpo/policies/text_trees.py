"""Trees of texts: samples of a prompt that share their beginnings, so siblings are compared (TreeRPO).

    root -> children continuations of at most tokens each -> children of every one that has not ended -> ...

A leaf is a sample. Tokens that several samples share have one number in ``node`` and are trained once, at the first of
them; the keys are ``prompt`` and ``tree``, the first token sequence below the root. A text that ends early is a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mmgrpo.config.ranges import COUNT, within
from mmgrpo.config.registry import bind, block, table_of
from mmgrpo.policies.generation import Drawing, Generated
from mmgrpo.policies.token_model import Query, Sequences
from mmgrpo.policies.token_passes import TokenPasses
from mmgrpo.policies.walks import Completion, Walked
from mmgrpo.types import OWN, Request

TREES = table_of("tree")
"""Functions that return a ``TextTree``."""

NUMBERS = 1 << 20
"""Random streams that the nodes of a tree have, from the number of its prompt times this on."""


@dataclass(frozen=True)
class TextTree:
    """The shape of a tree."""

    children: int
    depth: int
    tokens: int

    @property
    def leaves(self) -> int:
        """Samples of a prompt, where no text ends before the last level."""
        return self.children**self.depth


@block(TREES)
def text_tree(
    *, children: Annotated[int, within("[2, 64]")], depth: Annotated[int, COUNT], tokens: Annotated[int, COUNT]
) -> TextTree:
    """Every open text is continued ``children`` times by at most ``tokens`` tokens, ``depth`` times, so a prompt
    has children^depth samples; the last continuation is as long as sampling.max_tokens leaves room for (TreeRPO,
    arXiv:2506.05183, whose three numbers were not found)."""
    return TextTree(children, depth, tokens)


@dataclass
class _Path:
    """A text so far: its tokens, their numbers among all nodes and what was recorded of them."""

    prompt: int
    root: int
    ids: list[int] = field(default_factory=list)
    node: list[int] = field(default_factory=list)
    numbers: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Leaves:
    """The samples of all trees, those of a prompt one after the other."""

    prompt: Int[Tensor, "B"]
    tree: Int[Tensor, "B"]
    """Number of the branch of the root that a sample is on."""
    ids: Int[Tensor, "B T"]
    real: Bool[Tensor, "B T"]
    node: Int[Tensor, "B T"]
    owner: Bool[Tensor, "B T"]
    """True at the first sample that has the token."""
    numbers: dict[str, Tensor]

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """All but the numbers."""
        return self.prompt, self.tree, self.ids, self.real, self.node, self.owner


def grow(
    tree: TextTree,
    request: Request,
    draw: Callable[[Sequence[Query], int], Generated],
    ends: frozenset[int],
    most: int,
    pad_id: int,
) -> Leaves:
    """Grow a tree for each prompt; ``draw`` continues queries by at most a number of tokens."""
    slots = list(request.slots)
    open_: list[_Path] = [_Path(place, -1) for place in range(len(slots))]
    leaves: list[_Path] = []
    members, nodes = [0] * len(slots), 0
    for level in range(tree.depth):
        last = level + 1 == tree.depth
        limit = most - level * tree.tokens if last else tree.tokens
        queries = []
        for path in open_:
            slot = slots[path.prompt] * NUMBERS + members[path.prompt]
            members[path.prompt] += 1
            queries.append(Query(request.prompts[path.prompt], slot, tree.children, forced=tuple(path.ids)))
        drawn = draw(queries, limit)
        tables = {"log_probs": drawn.log_probs.tolist(), "entropy": drawn.entropy.tolist()}
        grown: list[_Path] = []
        for row, (ids, real) in enumerate(zip(drawn.ids.tolist(), drawn.real.tolist(), strict=True)):
            parent, child = open_[row // tree.children], row % tree.children
            length = sum(real)
            grown.append(
                _Path(
                    parent.prompt,
                    parent.root if level else child,
                    parent.ids + ids[:length],
                    parent.node + [nodes + t for t in range(length)],
                    {name: parent.numbers.get(name, []) + table[row][:length] for name, table in tables.items()},
                )
            )
            nodes += length
        ended = [last or path.ids[-1] in ends for path in grown]
        leaves += [path for path, over in zip(grown, ended, strict=True) if over]
        open_ = [path for path, over in zip(grown, ended, strict=True) if not over]
        if not open_:
            break
    leaves.sort(key=lambda path: (path.prompt, path.node))
    width = max(len(path.ids) for path in leaves)

    def table(rows: Sequence[Sequence[Any]], filler: Any, dtype: torch.dtype) -> Tensor:
        return torch.tensor([[*row, *([filler] * (width - len(row)))] for row in rows], dtype=dtype)

    node = table([path.node for path in leaves], -1, torch.long)
    seen: set[int] = set()
    owner = torch.zeros_like(node, dtype=torch.bool)
    for row, path in enumerate(leaves):
        owner[row, : len(path.node)] = torch.tensor([number not in seen for number in path.node])
        seen.update(path.node)
    # Entries without a decision have numbers of their own.
    padding = nodes + torch.arange(node.numel()).view(node.shape)
    return Leaves(
        torch.tensor([path.prompt for path in leaves]),
        torch.tensor([slots[path.prompt] * tree.children + path.root for path in leaves]),
        table([path.ids for path in leaves], pad_id, torch.long),
        node >= 0,
        torch.where(node >= 0, node, padding),
        owner,
        {name: table([path.numbers[name] for path in leaves], 0.0, torch.float32) for name in ("log_probs", "entropy")},
    )


class Tree(Completion):
    """The leaves of a tree of each prompt."""

    setting = "sampling.tree"
    certain = False
    keys = frozenset({"tree"})

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.shape: TextTree = bind(value, TREES, "sampling.tree")({})

    def check_sizes(self, group_size: int, max_tokens: int) -> None:
        """ValueError for groups that are not its leaves, and for fewer tokens than its levels have."""
        tree, before = self.shape, (self.shape.depth - 1) * self.shape.tokens
        self.check_leaves(group_size, tree.leaves)
        if max_tokens <= before:
            raise ValueError(
                f"sampling.max_tokens: got {max_tokens}, expected more than the {before} tokens of the levels before "
                "the last of sampling.tree; raise it, or lower its tokens"
            )

    def draw(self, policy: TokenPasses, request: Request, queries: Sequence[Query], drawing: Drawing) -> Walked:
        """The leaves, of which each token is recorded once."""
        tree = self.shape
        self.check_sizes(request.group_size, drawing.max_tokens)

        def go_on(some: Sequence[Query], limit: int) -> Generated:
            return policy.generate(some, replace(drawing, max_tokens=limit))[1]

        ends, device = frozenset(policy.ends.tolist()), policy.device
        leaves = grow(tree, request, go_on, ends, drawing.max_tokens, policy.model.pad_id)
        context, features = policy.encode(request.prompts)
        prompt, tree_key, ids, real, node, owner = (tensor.to(device) for tensor in leaves.tables)
        sequences = Sequences(context, features, prompt, ids, real, request.seed, drawing.temperature)
        numbers = {name: value.to(device) for name, value in leaves.numbers.items()}
        origin = torch.full((len(ids),), OWN, device=device)
        return Walked(sequences, numbers, origin, keys={"tree": tree_key}, node=node, owner=owner)
