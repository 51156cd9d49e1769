"""Decisions of hand-made trees, for tests."""

from __future__ import annotations

import torch

from mmgrpo.types import OWN, Decisions


def decisions(node, *, keys=None, log_probs=None, decision_mask=None, origin=None, **fields) -> Decisions:
    """Decisions with the given node numbers [B, T]; the first row that passes a node owns it."""
    node = torch.as_tensor(node)
    decision_mask = torch.ones_like(node, dtype=torch.bool) if decision_mask is None else torch.as_tensor(decision_mask)
    seen: set[int] = set()
    loss_mask = torch.zeros_like(decision_mask)
    for row in range(node.shape[0]):
        for t in range(node.shape[1]):
            number = int(node[row, t])
            if decision_mask[row, t] and number not in seen:
                loss_mask[row, t] = True
                seen.add(number)
    return Decisions(
        log_probs=torch.zeros(node.shape) if log_probs is None else torch.as_tensor(log_probs, dtype=torch.float32),
        loss_mask=loss_mask,
        decision_mask=decision_mask,
        node=node,
        origin=torch.full((node.shape[0],), OWN) if origin is None else torch.as_tensor(origin),
        keys={name: torch.as_tensor(key) for name, key in (keys or {"prompt": [0] * node.shape[0]}).items()},
        fields={name: torch.as_tensor(value) for name, value in fields.items()},
    )


def plain(lengths, *, keys=None, **more) -> Decisions:
    """Rows of the given lengths that share nothing."""
    lengths = torch.as_tensor(lengths)
    width = int(lengths.max())
    node = torch.arange(len(lengths) * width).view(len(lengths), width)
    return decisions(node, keys=keys, decision_mask=torch.arange(width) < lengths[:, None], **more)


def binary_tree(steps: int, splits: tuple[int, ...], first_node: int = 0) -> torch.Tensor:
    """Node numbers [2**len(splits), steps] of a tree from one root that doubles at each split."""
    rows = 2 ** len(splits)
    node = torch.zeros(rows, steps, dtype=torch.long)
    count, width = first_node, 1
    for t in range(steps):
        width *= 2 if t in splits else 1
        node[:, t] = count + torch.arange(width).repeat_interleave(rows // width)
        count += width
    return node
