"""The tables of objectives, terms, aggregations and mismatch corrections.

A recipe names them: ``objective: "ppo(low=0.2, high=0.28)"``. To add one, write one pure function and one
row here; the common tests then cover it. ``needs`` are the names of its inputs, ``level`` is what it
must see together: single decisions, whole rows, or whole groups.

>>> import torch
>>> from mmgrpo.config.registry import bind
>>> ppo = bind("ppo(high=0.28)", OBJECTIVES, "objective")
>>> one = torch.ones(1)
>>> loss = ppo({"log_probs": one, "old_log_probs": 0 * one, "advantages": one})
>>> round(loss.values.item(), 2), loss.high.item()
(-1.28, True)
"""

from __future__ import annotations

from mmgrpo.config.registry import Block
from mmgrpo.objectives import (
    aggregation,
    discriminative,
    divergences,
    expectation,
    gaussian,
    mismatch,
    perception,
    preference,
    reading,
    regression,
    sequence,
    surrogates,
)
from mmgrpo.objectives.base import Loss

__all__ = ["OFF_POLICY_OBJECTIVES", "MISMATCH", "OBJECTIVES", "TERMS", "AGGREGATIONS", "Loss"]

_RATIO = ("log_probs", "old_log_probs", "advantages")
_ROW = (*_RATIO, "decision_mask")
_GROUP = (*_RATIO, "loss_mask", "decision_mask", "key")
_REFERENCE = ("log_probs", "reference_log_probs")
_CHANGED = ("log_probs", "changed_log_probs")
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
    "grpo_guard": Block(gaussian.grpo_guard, (*_RATIO, "shift", "std", "dt")),
    "flow_dppo": Block(gaussian.flow_dppo, (*_RATIO, "shift", "std")),
    "diffusion_kto": Block(gaussian.diffusion_kto, (*_REFERENCE, "advantages", "reference_shift", "std")),
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
        ("log_probs", "old_log_probs", "reference_log_probs", "advantages", "loss_mask", "decision_mask", "key"),
        "group",
    ),
    "disco": Block(discriminative.disco, _GROUP, "group"),
    "disco_basic": Block(discriminative.disco_basic, _GROUP, "group"),
    "drpo": Block(discriminative.drpo, _GROUP, "group"),
    "codpo": Block(
        preference.codpo,
        ("log_probs", "reference_log_probs", "advantages", "loss_mask", "decision_mask", "key"),
        "group",
    ),
    "n_best": Block(expectation.n_best, ("log_probs", "advantages", "loss_mask", "decision_mask", "key"), "group"),
}
"""Functions that return a ``Loss`` to minimize."""

OFF_POLICY_OBJECTIVES = {
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
    "kl_transition": Block(divergences.kl_transition, ("reference_kl",)),
    "entropy_bonus": Block(divergences.entropy_bonus, ("entropy",)),
    "diffro": Block(reading.diffro, ("read_log_probs", "advantages")),
    "perception": Block(perception.perception, _CHANGED),
    "perception_k3": Block(perception.perception_k3, _CHANGED),
    "double_entropy": Block(perception.double_entropy, _CHANGED),
    "kl_hinge": Block(divergences.kl_hinge, ("log_probs", "old_log_probs", "loss_mask"), "group"),
}
"""Functions that return a penalty per decision, which is added to the loss."""

AGGREGATIONS = {
    "per_decision": Block(aggregation.per_decision, ("loss_mask",), "group"),
    "per_sample": Block(aggregation.per_sample, ("loss_mask",), "group"),
    "sample_sum": Block(aggregation.sample_sum, ("loss_mask",), "group"),
    "constant_horizon": Block(aggregation.constant_horizon, ("loss_mask",), "group"),
    "per_prompt": Block(aggregation.per_prompt, ("loss_mask", "key"), "group"),
    "noise_aware": Block(aggregation.noise_aware, ("loss_mask", "std"), "group"),
}
"""Functions that return the weight of each decision of the whole optimizer step."""

MISMATCH = {
    "none": Block(mismatch.none, ("old_log_probs",)),
    "tis": Block(mismatch.tis, _ENGINES),
    "mis": Block(mismatch.mis, _ENGINES),
    "sequence_mask": Block(mismatch.sequence_mask, (*_ENGINES, "decision_mask"), "row"),
    "off_policy_mask": Block(
        mismatch.off_policy_mask, ("log_probs", "sampler_log_probs", "advantages", "decision_mask"), "row"
    ),
}
"""Functions that return a detached factor of each decision's loss."""
