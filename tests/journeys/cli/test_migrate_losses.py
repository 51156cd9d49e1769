"""Losses and advantages of TRL, ms-swift, EasyR1 and verl become lines of ours, on both sides of every condition."""

from __future__ import annotations

from typing import Any

import pytest

from tests.journeys.cli.migrating import cases, convert, same, values, warned

PPO = "ppo(low=0.2, high=0.2)"
BLOCKS = {"objective": PPO, "aggregation": "per_decision", "terms": []}
"""What TRL's defaults have otherwise than our preset grpo."""
TRY = "trainer.max_try_make_batch"


def lines(draft) -> dict[str, Any]:
    """The lines of the algorithm."""
    return {key.removeprefix("algorithm."): one.value for key, one in draft.settings.items()}


@cases(
    """
    settings | changes | words
    {}
    {loss_type: bnpo}
    {loss_type: grpo} | {aggregation: per_sample}
    {loss_type: luspo} | {aggregation: sample_sum}
    {loss_type: dr_grpo} | {aggregation: constant_horizon(length=512)}
    {epsilon: 0.1, epsilon_high: 0.3} | {objective: 'ppo(low=0.1, high=0.3)'}
    {epsilon: 0.1} | {objective: 'ppo(low=0.1, high=0.1)'}
    {delta: 4} | {objective: 'two_sided_clip(low=0.2, high=0.2, ceiling=4)'}
    {importance_sampling_level: sequence} | {objective: 'gspo(low=0.2, high=0.2)'}
    {importance_sampling_level: sequence, delta: 4} | {objective: 'gspo(low=0.2, high=0.2)'}
        | [delta of a ratio per sequence]
    {loss_type: grpo, epsilon: 0.0003, epsilon_high: 0.0004, importance_sampling_level: sequence} | {preset: gspo}
    {loss_type: cispo, epsilon_high: 5} | {preset: cispo}
    {loss_type: cispo, importance_sampling_level: sequence} | {objective: cispo_cap(cap=0.2)}
        | [cispo of a ratio per sequence has no counterpart]
    {loss_type: sapo, sapo_temperature_pos: 2}
        | {objective: 'sapo(tau_positive=2.0, tau_negative=1.05)', aggregation: per_sample}
    {loss_type: vespo, vespo_k_pos: 5, vespo_lambda_neg: 7}
        | {objective: 'vespo(power_positive=5.0, rate_positive=3.0, power_negative=3.0, rate_negative=7.0)'}
    # KL and entropy
    {beta: 0.04} | {terms: [kl_unbiased(coef=0.04)]}
    {beta: 0.1, use_bias_correction_kl: false} | {terms: [kl_k3(coef=0.1)]}
    {beta: 0.1, importance_sampling_level: sequence}
        | {objective: 'gspo(low=0.2, high=0.2)', terms: [kl_unbiased(coef=0.1)]}
        | [weighted by the ratio of the sequence]
    {beta: 0.1, use_bias_correction_kl: false, importance_sampling_level: sequence}
        | {objective: 'gspo(low=0.2, high=0.2)', terms: [kl_k3(coef=0.1)]}
    {entropy_coef: 0.01} | {terms: [entropy_bonus(coef=0.01)]}
    {entropy_coef: 0.01, loss_type: grpo} | {terms: [entropy_bonus(coef=0.01)], aggregation: per_sample}
        | [the entropy bonus is a mean over tokens there]
    # advantages
    {scale_rewards: batch} | {preset: lite_ppo}
    {scale_rewards: batch, beta: 1} | {scale: 'batch_std(ddof=1, eps=1e-4)', terms: [kl_unbiased(coef=1.0)]}
    {scale_rewards: 'false'} | {scale: none}
    {scale_rewards: none} | {scale: none}
    {scale_rewards: 'true'} | {scale: 'group_std(ddof=1, eps=1e-4)'}
    {multi_objective_aggregation: normalize_then_sum, scale_rewards: none}
        | {combine: 'gdpo(ddof=1, eps=0.0001)', scale: 'group_std(ddof=1, eps=1e-4)'}
    {top_entropy_quantile: 0.2} | {credit: top_entropy(fraction=0.2)}
    {top_entropy_quantile: 1} | {credit: broadcast}
    {off_policy_mask_threshold: 0.5} | {mismatch: off_policy_mask(delta=0.5)}
    """
)
def test_losses_of_trl(settings: dict[str, Any], changes: dict[str, Any], words: list[str]):
    draft = convert("trl", "loss", settings)
    everything = {"scale": "group_std(ddof=1, eps=1e-4)", "combine": "weighted_sum", "mismatch": "none"}
    expected = {"preset": "grpo", "credit": "broadcast", **everything, **BLOCKS, **changes}
    made = lines(draft)
    assert made == {key: expected[key] for key in made}
    assert all(key in made for key in changes)
    assert warned(draft, *words)


@cases(
    """
    settings | expected | words
    {}  # its KL is that of our preset
    {beta: 0.1} | {terms: [kl_k3(coef=0.1)]}
    {kl_in_reward: true} | {} | [is part of the reward there]
    {kl_in_reward: true, beta: 0} | {terms: []}
    {kl_in_reward: false, advantage_estimator: rloo} | {baseline: leave_one_out, scale: none}
    {advantage_estimator: rloo} | {baseline: leave_one_out, scale: none} | [is part of the reward there]
    {advantage_estimator: reinforce_plus_plus, beta: 0} | {scale: 'batch_std_centred(ddof=1, eps=1e-4)', terms: []}
    {advantage_estimator: reinforce_plus_plus, beta: 0, scale_rewards: group}
        | {scale: 'group_std(ddof=1, eps=1e-4)', terms: []}
    {scale_rewards: batch} | {scale: 'batch_std(ddof=1, eps=1e-4)'}
    {scale_rewards: gdpo} | {scale: 'group_std(ddof=1, eps=1e-8)', combine: 'gdpo(ddof=1, eps=1e-08)'}
    {loss_type: real} | {aggregation: per_decision} | [loss_type real has no counterpart]
    {loss_type: fipo} | {aggregation: per_decision} | [loss_type fipo has no counterpart]
    {importance_sampling_level: sequence_token} | {objective: 'gspo_token(low=0.2, high=0.2)'}
    {loss_type: sapo, tau_neg: 3, importance_sampling_level: sequence}
        | {objective: 'sapo(tau_positive=1.0, tau_negative=3.0)'} | [sapo of a ratio per sequence has no counterpart]
    {off_policy_sequence_mask_delta: 0.5} | {mismatch: off_policy_mask(delta=0.5)}
    {dynamic_sample: true, max_resample_times: 4} | {select: [drop_zero_spread], sampler: [dynamic_sampling(rounds=4)]}
    {max_resample_times: 4}
    """
)
def test_losses_of_ms_swift(settings: dict[str, Any], expected: dict[str, Any], words: list[str]):
    draft = convert("ms_swift", "loss", settings)
    made = lines(draft)
    assert {key: made.get(key) for key in expected} == expected
    assert {*made} - {*expected} <= {"preset", "objective", "aggregation", "scale", "combine", "credit", "terms"}
    assert warned(draft, *words)


@pytest.mark.parametrize(
    ("project", "terms", "scale"),
    [
        ("trl", ("beta", "use_bias_correction_kl", "entropy_coef"), ("scale_rewards",)),
        ("ms_swift", ("beta",), ("scale_rewards", "advantage_estimator")),
    ],
)
def test_a_line_names_the_settings_that_it_was_made_of(project: str, terms: tuple[str, ...], scale: tuple[str, ...]):
    settings = {"beta": 0.1, "scale_rewards": "none"} | ({"entropy_coef": 0.1} if project == "trl" else {})
    draft = convert(project, "loss", settings)
    assert draft.settings["algorithm.terms"].of == terms and draft.settings["algorithm.scale"].of == scale


@pytest.mark.parametrize(
    ("project", "settings", "key"),
    [
        ("trl", {"loss_type": "fipo"}, "loss_type"),
        ("ms_swift", {"loss_type": "luspo"}, "loss_type"),
        ("trl", {"importance_sampling_level": "sequence_token"}, "importance_sampling_level"),
        ("trl", {"scale_rewards": "gdpo"}, "scale_rewards"),
        ("trl", {"top_entropy_quantile": 2}, "top_entropy_quantile"),
        ("trl", {"multi_objective_aggregation": "sum"}, "multi_objective_aggregation"),
        ("ms_swift", {"advantage_estimator": "gae"}, "advantage_estimator"),
        ("easyr1", {"algorithm.adv_estimator": "gae"}, "algorithm.adv_estimator"),
        ("easyr1", {"worker.actor.loss_type": "ppo"}, "worker.actor.loss_type"),
        ("easyr1", {"worker.actor.loss_avg_mode": "mean"}, "worker.actor.loss_avg_mode"),
        ("verl", {"algorithm.adv_estimator": "best"}, "algorithm.adv_estimator"),
        ("easyr1", {"algorithm.online_filtering": True, TRY: -2}, TRY),
    ],
)
def test_choices_that_a_project_does_not_have_are_refused(project: str, settings: dict[str, Any], key: str):
    with pytest.raises(ValueError, match=rf"theirs\.yaml.*{key}.*(one: |one of|from 0 to 1$|from -1 )"):
        convert(project, "loss", settings)


# ---- EasyR1 and verl

STD = "group_std(ddof=1, eps=1e-6)"


@pytest.mark.parametrize(
    ("estimator", "baseline", "scale"),
    [
        ("grpo", "group_mean", STD),
        ("grpo_vectorized", "group_mean", STD),
        ("grpo_passk", "runner_up", STD),
        ("rloo", "leave_one_out", "none"),
        ("rloo_vectorized", "leave_one_out", "none"),
        ("remax", "greedy", "none"),
        ("reinforce_plus_plus", "none", "token_whiten"),
        ("reinforce_plus_plus_baseline", "group_mean", "token_whiten"),
        ("opo", "length_weighted", "none"),
        ("gpg", "group_mean", "valid_fraction"),
    ],
)
@pytest.mark.parametrize("project", ["easyr1", "verl"])
def test_estimators_of_advantages(project: str, estimator: str, baseline: str, scale: str):
    settings = {"algorithm.adv_estimator": estimator, "algorithm.disable_kl": True}
    draft = convert(project, "loss", settings)
    made = lines(draft)
    assert (made["baseline"], made["scale"]) == (baseline, scale)
    assert warned(draft, *["grpo_passk subtracts the second best reward"] * (estimator == "grpo_passk"))


def test_only_verl_can_leave_out_the_std():
    settings = {"algorithm.adv_estimator": "grpo", "algorithm.norm_adv_by_std_in_grpo": False}
    assert lines(convert("verl", "loss", settings))["scale"] == "none"
    keys = ("algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo")
    assert convert("verl", "loss", settings).settings["algorithm.scale"].of == keys


DUAL = "dual_clip(low=0.2, high={}, dual={})"
NOT = "has no counterpart"


@pytest.mark.parametrize(
    ("settings", "objective", "weights"),
    [
        ({}, DUAL.format(0.3, 3.0), "per_decision"),
        ({"clip_ratio_dual": 5}, DUAL.format(0.3, 5.0), "per_decision"),
        ({"clip_ratio_high": 0.4, "loss_avg_mode": "seq"}, DUAL.format(0.4, 3.0), "per_sample"),
        ({"loss_type": "gspo", "clip_ratio_low": 0.1}, "gspo(low=0.1, high=0.3)", "per_decision"),
        ({"loss_type": "gspo_token"}, "gspo_token(low=0.2, high=0.3)", "per_decision"),
        ({"loss_type": "cispo"}, "cispo_band(low=0.2, high=0.3)", "per_decision"),
        ({"loss_type": "sapo", "tau_negative": 2}, "sapo(tau_positive=1.0, tau_negative=2.0)", "per_decision"),
    ],
)
def test_objectives_of_easyr1(settings: dict[str, Any], objective: str, weights: str):
    draft = convert("easyr1", "loss", {f"worker.actor.{key}": value for key, value in settings.items()})
    made = lines(draft)
    assert (made["objective"], made["aggregation"]) == (objective, weights)
    of = draft.settings["algorithm.objective"].of
    assert ("worker.actor.clip_ratio_dual" in of) is objective.startswith("dual")
    assert ("worker.actor.tau_negative" in of) is objective.startswith("sapo")


@pytest.mark.parametrize(
    ("settings", "terms", "words"),
    [
        ({}, ["kl_k1(coef=0.001)"], ["use_kl_loss false"]),
        ({"use_kl_loss": True, "kl_coef": 0.1, "kl_penalty": "mse"}, ["kl_k2(coef=0.1)"], []),
        ({"use_kl_loss": True, "kl_penalty": "low_var_kl"}, ["kl_k3(coef=0.001)"], []),
        ({"use_kl_loss": True, "kl_penalty": "abs"}, ["kl_k3(coef=0.001)"], [f"algorithm.kl_penalty abs {NOT}"]),
        ({"use_kl_loss": True, "kl_penalty": "low_var_kl+"}, ["kl_k2(coef=0.001)"], ["low_var_kl+ has the gradient"]),
        ({"use_kl_loss": True, "kl_penalty": "abs+"}, ["kl_k3(coef=0.001)"], [f"abs+ {NOT}"]),
        ({"disable_kl": True}, [], []),
        ({"kl_coef": 0}, [], []),
        ({"kl_coef": 0, "use_kl_loss": True}, [], []),
    ],
)
def test_the_kl_of_easyr1(settings: dict[str, Any], terms: list[str], words: list[str]):
    draft = convert("easyr1", "loss", {f"algorithm.{key}": value for key, value in settings.items()})
    assert lines(draft)["terms"] == terms and warned(draft, *words)
    keys = ("disable_kl", "use_kl_loss", "kl_penalty", "kl_coef") if terms else ("disable_kl", "kl_coef")
    assert draft.settings["algorithm.terms"].of == tuple(f"algorithm.{key}" for key in keys)


@pytest.mark.parametrize(
    ("settings", "sampler", "words"),
    [
        ({}, None, []),
        ({"algorithm.filter_low": 0.1}, None, []),
        ({"algorithm.online_filtering": True}, "dynamic_sampling(rounds=20)", []),
        ({"algorithm.online_filtering": True, "trainer.max_try_make_batch": 1}, "dynamic_sampling(rounds=1)", []),
        ({"algorithm.online_filtering": True, "trainer.max_try_make_batch": 0}, "dynamic_sampling(rounds=1000)", []),
        ({"algorithm.online_filtering": True, "trainer.max_try_make_batch": -1}, "dynamic_sampling(rounds=1000)", []),
        (
            {"algorithm.online_filtering": True, "algorithm.filter_high": 0.9},
            "dynamic_sampling(rounds=20)",
            ["drops groups whose mean reward is outside"],
        ),
    ],
)
def test_the_filtering_of_easyr1(settings: dict[str, Any], sampler: str | None, words: list[str]):
    draft = convert("easyr1", "loss", {"algorithm.disable_kl": True} | settings)
    assert lines(draft).get("sampler") == (sampler and [sampler])
    assert lines(draft).get("select") == (sampler and ["drop_zero_spread"])
    assert warned(draft, *words) and [*draft.left] == (["algorithm.filter_high"] if words else [])


@cases(
    """
    settings | changes | words
    {}
    {clip_ratio_c: 5} | {objective: 'dual_clip(low=0.2, high=0.2, dual=5.0)'}
    # Each end has a default of its own, so clip_ratio counts where an end is null.
    {clip_ratio: 0.5}
    {clip_ratio: 0.5, clip_ratio_high: null} | {objective: 'dual_clip(low=0.2, high=0.5, dual=3.0)'}
    {policy_loss.loss_mode: clip_cov} | {} | [loss_mode clip_cov has no counterpart]
    {policy_loss.loss_mode: kl_cov} | {} | [loss_mode kl_cov has no counterpart]
    {policy_loss.loss_mode: bypass_mode} | {} | [loss_mode bypass_mode has no counterpart]
    {policy_loss.loss_mode: gspo} | {objective: 'gspo_token(low=0.2, high=0.2)', aggregation: per_sample}
    {policy_loss.loss_mode: sapo, tau_pos: 2}
        | {objective: 'sapo(tau_positive=2.0, tau_negative=1.05)', aggregation: per_sample}
    {policy_loss.loss_mode: gpg} | {objective: policy_gradient}
    {policy_loss.loss_mode: geo_mean} | {objective: gmpo(clip=0.2), aggregation: per_sample}
    {policy_loss.loss_mode: geo_mean, clip_ratio_high: 0.3, loss_agg_mode: seq-mean-token-sum}
        | {objective: gmpo(clip=0.3), aggregation: per_sample}
        | ['gmpo has one range of log-ratios, not 0.2 below and 0.3 above']
    {policy_loss.loss_mode: cispo} | {objective: 'cispo_band(low=0.2, high=0.2)'}
    {loss_agg_mode: seq-mean-token-mean} | {aggregation: per_sample}
    {loss_agg_mode: seq-mean-token-sum} | {aggregation: sample_sum}
    {loss_agg_mode: seq-mean-token-sum-norm} | {aggregation: constant_horizon(length=512)}
        | [is a sum over rows there and a mean here]
    {loss_agg_mode: seq-mean-token-sum-norm, loss_scale_factor: 99} | {aggregation: constant_horizon(length=99)}
        | [is a sum over rows there and a mean here]
    # the KL and the entropy
    {use_kl_loss: true} | {terms: [kl_k3(coef=0.001)]}
    {use_kl_loss: true, kl_loss_coef: 0}
    {kl_loss_coef: 0.1}
    {use_kl_loss: true, kl_loss_type: k1} | {terms: [kl_k1(coef=0.001)]}
    {entropy_coeff: 0.1} | {terms: [entropy_bonus(coef=0.1)]}
    {use_kl_loss: true, entropy_coeff: 0.1} | {terms: [kl_k3(coef=0.001), entropy_bonus(coef=0.1)]}
    """
)
def test_losses_of_verl(settings: dict[str, Any], changes: dict[str, Any], words: list[str]):
    given = {f"actor_rollout_ref.actor.{key}": value for key, value in settings.items()}
    draft = convert("verl", "loss", {"algorithm.adv_estimator": "grpo"} | given)
    expected = {
        **{"preset": "grpo", "baseline": "group_mean", "scale": STD, "terms": []},
        **{"objective": DUAL.format(0.2, 3.0), "aggregation": "per_decision", **changes},
    }
    assert lines(draft) == {key: value for key, value in expected.items() if key in lines(draft)}
    assert {*expected} - {*lines(draft)} <= {"aggregation"} and warned(draft, *words)
    of = [key.rpartition(".")[2] for key in draft.settings["algorithm.objective"].of]
    ends = ["loss_mode", "clip_ratio", "clip_ratio_low", "clip_ratio_high"]
    kind = settings.get("policy_loss.loss_mode", "vanilla")
    known = {"sapo": ["loss_mode", "tau_pos", "tau_neg"], "gpg": ["loss_mode"], "gspo": ends, "geo_mean": ends}
    assert of == {**known, "cispo": ends}.get(kind, [*ends, "clip_ratio_c"])
    terms = [key.rpartition(".")[2] for key in draft.settings["algorithm.terms"].of]
    kl = ["use_kl_loss", "kl_loss_coef", "kl_loss_type"]
    bonus = ["entropy_coeff"] if "entropy_coeff" in settings else []
    assert terms == (kl if any("kl" in term for term in lines(draft)["terms"]) else kl[:1]) + bonus


@pytest.mark.parametrize(
    ("settings", "mismatch", "left"),
    [
        ({"rollout_is": "token"}, "tis(cap=2.0)", ["rollout_is"]),
        ({"rollout_is": "token", "rollout_is_threshold": 3}, "tis(cap=3.0)", ["rollout_is", "rollout_is_threshold"]),
        ({"rollout_is": "sequence"}, "", ["rollout_is"]),
        ({"rollout_is": None}, "", []),
    ],
)
def test_the_correction_of_verl_is_for_an_engine_of_its_own(settings: dict[str, Any], mismatch: str, left: list[str]):
    given = {f"algorithm.rollout_correction.{key}": value for key, value in settings.items()}
    draft = convert("verl", "correction", given)
    assert "mismatch" not in lines(draft)
    assert [*draft.left] == [f"algorithm.rollout_correction.{key}" for key in left]
    assert all(mismatch in why for why in draft.left.values())


def test_the_kl_in_the_reward_of_verl_is_to_be_decided():
    draft = convert("verl", "loss", {"algorithm.adv_estimator": "grpo", "algorithm.use_kl_in_reward": True})
    assert warned(draft, "use_kl_in_reward") and [*draft.left] == ["algorithm.use_kl_in_reward"]
    assert same(lines(draft)["terms"], []) and values(draft)["algorithm.preset"] == "grpo"
