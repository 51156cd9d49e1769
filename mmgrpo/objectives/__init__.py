"""The tables of objectives, terms, weights and mismatch corrections.

A recipe names them: ``objective: "ppo(low=0.2, high=0.28)"``. To add one, write one pure function and one
row here; the common tests then hold for it. ``needs`` are the names of its inputs, ``level`` what it
must see together: single decisions, whole rows, or whole groups.

>>> import torch
>>> from mmgrpo.blocks import bind
>>> ppo = bind("ppo(high=0.28)", OBJECTIVES, "objective")
>>> one = torch.ones(1)
>>> loss = ppo({"log_probs": one, "old_log_probs": 0 * one, "advantages": one})
>>> round(loss.values.item(), 2), loss.high.item()
(-1.28, True)
"""

from __future__ import annotations

from mmgrpo.blocks import Block
from mmgrpo.objectives import (
    discriminative,
    divergences,
    expectation,
    gaussian,
    mismatch,
    regression,
    sequence,
    surrogates,
    weights,
)
from mmgrpo.objectives.levels import Loss

__all__ = ["GIVEN_OBJECTIVES", "MISMATCH", "OBJECTIVES", "TERMS", "WEIGHTS", "Loss"]

_RATIO = ("log_probs", "old_log_probs", "advantages")
_ROW = (*_RATIO, "passed")
_GROUP = (*_RATIO, "mask", "passed", "key")
_REFERENCE = ("log_probs", "reference_log_probs")
_ENGINES = ("old_log_probs", "sampler_log_probs")

OBJECTIVES = {
    "ppo": Block(surrogates.ppo, _RATIO),
    "dual_clip": Block(surrogates.dual_clip, _RATIO),
    "two_sided_clip": Block(surrogates.two_sided_clip, _RATIO),
    "log_preclip": Block(surrogates.log_preclip, _RATIO),
    "cispo_band": Block(surrogates.cispo_band, _RATIO),
    "cispo_cap": Block(surrogates.cispo_cap, _RATIO),
    "sapo": Block(surrogates.sapo, _RATIO),
    "simple_policy": Block(surrogates.simple_policy, _RATIO),
    "policy_gradient": Block(surrogates.policy_gradient, ("log_probs", "advantages")),
    "mini_rl": Block(surrogates.mini_rl, _RATIO),
    "guard": Block(gaussian.guard, (*_RATIO, "shift", "std", "dt")),
    "flow_dppo": Block(gaussian.flow_dppo, (*_RATIO, "shift", "std")),
    "gspo": Block(sequence.gspo, _ROW, "row"),
    "gspo_token": Block(sequence.gspo_token, _ROW, "row"),
    "gmpo": Block(sequence.gmpo, _ROW, "row"),
    "sequence_sum": Block(sequence.sequence_sum, _ROW, "row"),
    "vespo": Block(sequence.vespo, _ROW, "row"),
    "regression_group": Block(regression.regression_group, _GROUP, "group"),
    "regression_pair": Block(regression.regression_pair, _GROUP, "group"),
    "regression_standardized": Block(regression.regression_standardized, _GROUP, "group"),
    "regression_proximal": Block(
        regression.regression_proximal,
        ("log_probs", "old_log_probs", "reference_log_probs", "advantages", "mask", "passed", "key"),
        "group",
    ),
    "disco": Block(discriminative.disco, _GROUP, "group"),
    "disco_basic": Block(discriminative.disco_basic, _GROUP, "group"),
    "drpo": Block(discriminative.drpo, _GROUP, "group"),
    "n_best": Block(expectation.n_best, ("log_probs", "advantages", "mask", "passed", "key"), "group"),
}
"""Functions to ``Loss``, to minimise."""

GIVEN_OBJECTIVES = {
    "importance": Block(surrogates.importance, _RATIO),
    "luffy": Block(surrogates.luffy, _RATIO),
}
"""The same for decisions that a data set supplied."""

TERMS = {
    "kl_k1": Block(divergences.kl_k1, _REFERENCE),
    "kl_k2": Block(divergences.kl_k2, _REFERENCE),
    "kl_k3": Block(divergences.kl_k3, _REFERENCE),
    "kl_unbiased": Block(divergences.kl_unbiased, ("log_probs", "old_log_probs", "reference_log_probs")),
    "kl_forward": Block(divergences.kl_forward, _REFERENCE),
    "kl_gaussian_exact": Block(divergences.kl_gaussian_exact, ("reference_shift", "std")),
    "kl_gaussian_dt_free": Block(divergences.kl_gaussian_dt_free, ("reference_shift", "level")),
    "kl_velocity": Block(divergences.kl_velocity, ("reference_velocity_gap",)),
    "entropy_bonus": Block(divergences.entropy_bonus, ("entropy",)),
    "kl_hinge": Block(divergences.kl_hinge, ("log_probs", "old_log_probs", "mask"), "group"),
}
"""Functions to a penalty per decision, added to the loss."""

WEIGHTS = {
    "per_decision": Block(weights.per_decision, ("mask",), "group"),
    "per_sample": Block(weights.per_sample, ("mask",), "group"),
    "sample_sum": Block(weights.sample_sum, ("mask",), "group"),
    "constant_horizon": Block(weights.constant_horizon, ("mask",), "group"),
    "per_prompt": Block(weights.per_prompt, ("mask", "key"), "group"),
    "noise_aware": Block(weights.noise_aware, ("mask", "std"), "group"),
}
"""Functions to the weight of each decision, over the whole optimizer step."""

MISMATCH = {
    "none": Block(mismatch.none, ("old_log_probs",)),
    "tis": Block(mismatch.tis, _ENGINES),
    "mis": Block(mismatch.mis, _ENGINES),
    "sequence_mask": Block(mismatch.sequence_mask, (*_ENGINES, "passed"), "row"),
    "off_policy_mask": Block(
        mismatch.off_policy_mask, ("log_probs", "sampler_log_probs", "advantages", "passed"), "row"
    ),
}
"""Functions to a detached factor of each decision's loss."""
