"""The tables of objectives, terms, aggregations and mismatch corrections.

A recipe names them: ``objective: "ppo(low=0.2, high=0.28)"``. To add one, write one pure function
under ``@block(OBJECTIVES)``; the common tests then cover it. Its positional parameters are its inputs, and ``level`` is
what it must see together: single decisions, all decisions of a sample, or all samples of a group.

>>> import torch
>>> from mmgrpo.config.registry import bind
>>> ppo = bind("ppo(high=0.28)", OBJECTIVES, "objective")
>>> one = torch.ones(1)
>>> loss = ppo({"log_probs": one, "old_log_probs": 0 * one, "advantages": one})
>>> round(loss.values.item(), 2), loss.high.item()
(-1.28, True)
"""

from __future__ import annotations

# Imported for their blocks.
from mmgrpo.objectives import (  # noqa: F401
    aggregation,
    divergences,
    few_steps,
    groups,
    matching,
    preference,
    reward_gradient,
    surrogates,
)
from mmgrpo.objectives.base import AGGREGATIONS, MISMATCH, OBJECTIVES, OFF_POLICY_OBJECTIVES, TERMS, Loss

__all__ = ["OFF_POLICY_OBJECTIVES", "MISMATCH", "OBJECTIVES", "TERMS", "AGGREGATIONS", "Loss"]
