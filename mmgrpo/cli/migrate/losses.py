"""Losses and advantages of TRL and ms-swift as blocks of ours.

The losses are those that tests/unit/objectives/test_trl_losses.py compares with TRL's own code; the advantages too.
"""

from __future__ import annotations

from typing import Any

from mmgrpo.cli.migrate.draft import Draft, text_of

Blocks = dict[str, tuple[Any, tuple[str, ...]]]
"""Lines of the algorithm, each with the settings that it was made of."""

WEIGHTS = {
    "grpo": "per_sample",
    "sapo": "per_sample",
    "bnpo": "per_decision",
    "dapo": "per_decision",
    "cispo": "per_decision",
    "vespo": "per_decision",
    "luspo": "sample_sum",
}
"""Loss types to our aggregations; ``dr_grpo`` divides by rows times the longest completion."""


def loss(draft: Draft) -> None:
    """The objective, its weights, KL, entropy and advantages."""
    draft.algorithm("grpo", {**objective(draft), **kl(draft), **advantages(draft), **mismatch(draft), **dynamic(draft)})


def objective(draft: Draft) -> Blocks:
    """``objective`` and ``aggregation`` of a loss_type at an importance_sampling_level."""
    swift = draft.table.project == "ms-swift"
    kinds = ["grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo"] + (["fipo", "real"] if swift else ["luspo", "vespo"])
    kind = draft.word("loss_type", kinds)
    level = draft.word("importance_sampling_level", ["token", "sequence"] + ["sequence_token"] * swift)
    low = draft.number("epsilon")
    high = low if draft["epsilon_high"] is None else draft.number("epsilon_high")
    clip, of = ("epsilon", "epsilon_high"), ("loss_type", "importance_sampling_level")
    if kind in ("fipo", "real"):
        draft.ask("algorithm.objective", f"loss_type {kind} has no counterpart", "loss_type")
    if level != "token" and kind in ("cispo", "sapo", "vespo"):
        draft.ask("algorithm.objective", f"loss_type {kind} of a ratio per sequence has no counterpart", *of)
    temperatures = ("tau_pos", "tau_neg") if swift else ("sapo_temperature_pos", "sapo_temperature_neg")
    if kind == "cispo":
        text, of = f"cispo_cap(cap={high})", (*of, *clip)
    elif kind == "sapo":
        positive, negative = map(draft.number, temperatures)
        text, of = f"sapo(tau_positive={positive}, tau_negative={negative})", (*of, *temperatures)
    elif kind == "vespo":
        names = ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg")
        k_pos, rate_pos, k_neg, rate_neg = map(draft.number, names)
        text = (
            f"vespo(power_positive={k_pos}, rate_positive={rate_pos}, power_negative={k_neg}, rate_negative={rate_neg})"
        )
        of = (*of, *names)
    elif level != "token":
        text, of = f"{'gspo' if level == 'sequence' else 'gspo_token'}(low={low}, high={high})", (*of, *clip)
        if draft["delta"] is not None:
            draft.ask("algorithm.objective", "delta of a ratio per sequence has no counterpart", "delta")
    elif draft["delta"] is not None:
        text = f"two_sided_clip(low={low}, high={high}, ceiling={draft.number('delta')})"
        of = (*of, *clip, "delta")
    else:
        text, of = f"ppo(low={low}, high={high})", (*of, *clip)
    if kind == "dr_grpo":
        weights = f"constant_horizon(length={draft.count('max_completion_length')})"
        return {"objective": (text, of), "aggregation": (weights, ("loss_type", "max_completion_length"))}
    return {"objective": (text, of), "aggregation": (WEIGHTS.get(kind, "per_decision"), ("loss_type",))}


def kl(draft: Draft) -> Blocks:
    """``terms``: the KL to the reference, and an entropy bonus."""
    swift = draft.table.project == "ms-swift"
    beta = draft.number("beta")
    terms, of = [], ["beta"]
    if swift:
        in_reward = draft["advantage_estimator"] != "grpo" if draft["kl_in_reward"] is None else draft["kl_in_reward"]
        if beta and in_reward:
            draft.warn(
                f"the KL (beta {beta}) is part of the reward there; here it is a term of the loss, kl_k3",
                "kl_in_reward", "advantage_estimator",
            )  # fmt: skip
        unbiased = False
    else:
        unbiased = draft["use_bias_correction_kl"]
        of.append("use_bias_correction_kl")
        if beta and unbiased and draft["importance_sampling_level"] == "sequence":
            draft.warn("the KL is weighted by the ratio of the sequence there, by that of the token here (kl_unbiased)")
    if beta:
        terms.append(f"{'kl_unbiased' if unbiased else 'kl_k3'}(coef={beta})")
    if not swift and draft.number("entropy_coef"):
        terms.append(f"entropy_bonus(coef={draft.number('entropy_coef')})")
        of.append("entropy_coef")
        if draft["loss_type"] not in ("dapo", "bnpo", "cispo", "vespo"):
            draft.warn(
                "the entropy bonus is a mean over tokens there; here it has the weights of algorithm.aggregation"
            )
    return {"terms": (terms, tuple(of))}


def advantages(draft: Draft) -> Blocks:
    """``baseline``, ``scale``, ``combine`` and ``credit``."""
    swift = draft.table.project == "ms-swift"
    estimator = draft.word("advantage_estimator", ["grpo", "rloo", "reinforce_plus_plus"]) if swift else "grpo"
    scale = draft["scale_rewards"]
    if scale is None:
        scale = {"grpo": "group", "rloo": "none", "reinforce_plus_plus": "batch"}[estimator]
    scale = {True: "group", False: "none", "true": "group", "false": "none"}.get(scale, scale)
    scales = {"group": "group_std(ddof=1, eps=1e-4)", "batch": "batch_std(ddof=1, eps=1e-4)", "none": "none"}
    if swift:
        scales["gdpo"] = "group_std(ddof=1, eps=1e-8)"
    if scale not in scales:
        raise ValueError(
            f"{draft.source.name}: scale_rewards: got {text_of(scale)}, expected one of {', '.join(scales)}"
        )
    of = ("scale_rewards", *(("advantage_estimator",) if swift else ()))
    blocks: Blocks = {"scale": (scales[scale], of)}
    if estimator == "rloo":
        blocks["baseline"] = ("leave_one_out", ("advantage_estimator",))
    if estimator == "reinforce_plus_plus" and scale == "batch":
        blocks["scale"] = ("batch_std_centred(ddof=1, eps=1e-4)", of)  # of what remains after the group's mean
    gdpo, of = scale == "gdpo", ("scale_rewards",)
    if not swift:
        known = ["sum_then_normalize", "normalize_then_sum"]
        gdpo = draft.word("multi_objective_aggregation", known) == "normalize_then_sum"
        of = ("multi_objective_aggregation",)
        if gdpo:
            blocks["scale"] = ("group_std(ddof=1, eps=1e-4)", of)
    blocks["combine"] = (f"gdpo(ddof=1, eps={1e-8 if swift else 1e-4})" if gdpo else "weighted_sum", of)
    share = draft.fraction("top_entropy_quantile")
    credit = f"top_entropy(fraction={share})" if share < 1 else "broadcast"
    return {**blocks, "credit": (credit, ("top_entropy_quantile",))}


def mismatch(draft: Draft) -> Blocks:
    """``mismatch``: sequences that the policy has moved away from."""
    key = "off_policy_sequence_mask_delta" if draft.table.project == "ms-swift" else "off_policy_mask_threshold"
    return {"mismatch": ("none" if draft[key] is None else f"off_policy_mask(delta={draft.number(key)})", (key,))}


def dynamic(draft: Draft) -> Blocks:
    """``select`` and ``sampler`` of DAPO's dynamic sampling."""
    if draft.table.project != "ms-swift" or not draft["dynamic_sample"]:
        return {}
    of = ("dynamic_sample", "max_resample_times")
    rounds = f"dynamic_sampling(rounds={draft.count('max_resample_times')})"
    return {"select": (["drop_zero_spread"], of), "sampler": ([rounds], of)}
