"""Algorithms by name: each preset is a choice of blocks with the constants of its source.

A preset is a dictionary over the fields of a recipe's ``algorithm`` section, never a class and never a script; fields
that it does not state are those of ``BASE``. Beside it stand the settings of ``sampling`` and ``data`` without which a
run would not be what the name says: the plan and kernel of a tree, groups of two. Other numbers of a run (learning
rate, steps) and rewards belong to recipes. This module imports no torch, so that ``--help`` is quick.

    PRESETS        name to blocks
    CATALOGUE      name to ``Preset``: description, kind of policies, blocks, settings
    TOKENS_ONLY    names for token policies only
    GAUSSIAN_ONLY  names for denoising policies only: they need Gaussian scores, or clip means over latent dimensions
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BASE", "CATALOGUE", "GAUSSIAN_ONLY", "PRESETS", "TOKENS_ONLY", "Preset"]

BASE: dict[str, Any] = {
    "transform": [],
    "weighting": [],
    "combine": "weighted_sum",
    "keys": ["prompt"],
    "baseline": "group_mean",
    "scale": "group_std(ddof=1, eps=1e-4)",
    "shape": [],
    "credit": "broadcast",
    "select": [],
    "sampler": [],
    "trackers": [],
    "objective": "ppo(low=0.2, high=0.2)",
    "off_policy": "importance",
    "replay": "none",
    "supervised": "none",
    "hint": "none",
    "added": "none",
    "mismatch": "none",
    "aggregation": "per_sample",
    "terms": [],
    "networks": [],
    "kl_weight": "none",
}
"""The defaults of a preset: GRPO (arXiv:2402.03300) with the sample std, without its KL."""


@dataclass(frozen=True)
class Preset:
    """A named choice of blocks."""

    about: str
    """A description in one sentence."""
    policies: str
    """``any``, ``tokens``, ``gaussian`` or ``matching``."""
    blocks: dict[str, Any]
    sampling: dict[str, Any] = field(default_factory=dict)
    """Settings of the section ``sampling`` with which a run is what the name says, each a value, or a mapping of the
    process of the model (tokens, flow, diffusion) to one. Families leave out those that they do not have."""
    data: dict[str, Any] = field(default_factory=dict)
    """Settings of the section ``data``, likewise."""


def made(about: str, policies: str, changes: dict[str, Any]) -> Preset:
    """A preset of ``BASE`` with changes of its lines, and with the settings ``sampling`` and ``data``."""
    blocks = {line: value for line, value in changes.items() if line not in ("sampling", "data")}
    assert blocks.keys() <= BASE.keys(), changes
    settings = {part: deepcopy(changes.get(part, {})) for part in ("sampling", "data")}
    return Preset(about, policies, deepcopy(BASE | blocks), **settings)


def for_any(about: str, **changes: Any) -> Preset:
    return made(about, "any", changes)


def for_tokens(about: str, **changes: Any) -> Preset:
    return made(about, "tokens", changes)


def for_matching(about: str, **changes: Any) -> Preset:
    """A preset of flow-matching errors, whose kind of decisions is its first setting."""
    return made(about, "matching", changes | {"sampling": {"policy": "matching"} | changes.get("sampling", {})})


def for_gaussian(about: str, **changes: Any) -> Preset:
    return made(about, "gaussian", changes)


DYNAMIC = {"select": ["drop_zero_spread"], "sampler": ["dynamic_sampling(rounds=10)"]}
"""DAPO (arXiv:2503.14476): groups without spread are dropped and replaced, at most 10 times."""

FLOW = {"scale": "batch_std(ddof=0, eps=1e-4)", "shape": ["clamp(limit=5)"], "select": ["drop_zero_spread"]}
"""Flow-GRPO (arXiv:2505.05470), advantages of its released configurations: prompt mean, batch std
(population, 1e-4 added), clip at 5, rows without advantage removed."""

OF_STEPS = {"baseline": "none", "scale": "none"}
"""Credits that normalize the rewards of single steps, for which ``sampling.completion_steps`` completes states."""

FLOW_SDE = {"plan": "every_step", "kernel": {"flow": "flow_sde(a=0.7)", "diffusion": "ddim(eta=1.0)"}}
"""Flow-GRPO (arXiv:2505.05470): noise in all steps but the last, a 0.7; DDIM, whose eta 1 is DDPM's noise, where the
model is one of diffusion."""

CPS = FLOW_SDE | {"kernel": {"flow": "cps(a=0.7)", "diffusion": "ddim(eta=1.0)"}}
"""Coefficient-preserving sampling (arXiv:2509.05952); the a of Flow-GRPO."""

DANCE_SDE = {"kernel": {"flow": "dance(eta=0.3)", "diffusion": "ddim(eta=1.0)"}}
"""DanceGRPO (arXiv:2505.07818, table 6): epsilon 0.3."""

WHOLE = {"completion_steps": 10_000}
"""States are completed by the whole remaining ODE, of however many steps."""

TREE = {"plan": "branch_tree(splits=[0, 3, 6, 9], factor=2, sibling_scale=4.0)", "steps": 20} | DANCE_SDE
"""BranchGRPO (arXiv:2509.06040, section 4.1): 16 leaves by four splits within 20 steps; its script is DanceGRPO's."""

DANCE = {"combine": "per_reward", "scale": "group_std(ddof=1, eps=1e-8)", "shape": ["clamp(limit=5)"]}
"""DanceGRPO (arXiv:2505.07818): each reward standardized in its group (1e-8 added), clip at 5."""


def preferred(about: str, objective: str, policies: str = "any", **changes: Any) -> Preset:
    """A preset of the objective ``preference(...)``: the order of the rewards, groups without a pair left out."""
    blocks = {"baseline": "none", "scale": "none", "select": ["drop_zero_spread"]} | changes
    return made(about, policies, blocks | {"objective": f"preference({objective})"})


CATALOGUE: dict[str, Preset] = {
    # beta 0.04 and the k3 estimator: DeepSeekMath, arXiv:2402.03300, section 4.2; clip 0.2 from PPO.
    "grpo": for_any(
        "Rewards standardized in the group, clipped ratio, KL to the reference.", terms=["kl_k3(coef=0.04)"]
    ),
    # arXiv:2503.20783: no std, token sums over a constant; 3000 is the generation budget of the paper's runs. Set it to
    # sampling.max_tokens, or to the trained steps of a denoising policy, whose gradients are else below AdamW's eps.
    "dr_grpo": for_any(
        "GRPO without its two biases: no division by the std, a constant (generation budget) in place of the length.",
        scale="none",
        aggregation="constant_horizon(length=3000)",
    ),
    # arXiv:2402.14740: leave-one-out baseline, plain REINFORCE on the whole sequence. Its KL is part of the
    # reward and is left out here.
    "rloo": for_any(
        "REINFORCE with the mean of the other samples as baseline.",
        baseline="leave_one_out",
        scale="none",
        objective="policy_gradient",
        aggregation="sample_sum",
    ),
    # arXiv:2510.06783: 32 samples vote, 16 of them are trained, no KL; with the reward votes. Group size 32.
    "ttrv": for_any(
        "Test-time training on votes: all samples of a group vote, the first 16 are trained.",
        select=["first(count=16)"],
        data={"group_size": 32},
    ),
    # arXiv:2506.02355 and its code: beta .25, KL .1, groups of 32, mean over tokens, std + 1e-6; groups all right or
    # all wrong are left out before the ranks are taken. Two epochs over a rollout (optim.epochs).
    "unlikeliness": for_any(
        "GRPO in which correct but unlikely samples earn more than likely ones.",
        transform=["unlikely(beta=0.25, mixed=True)"],
        scale="group_std(ddof=1, eps=1e-6)",
        select=["drop_zero_spread"],
        aggregation="per_decision",
        terms=["kl_k3(coef=0.1)"],
        data={"group_size": 32},
    ),
    # arXiv:2506.18254: clip .2 / .27, no KL; rewards answer_likelihood(weight=0.9) and format(weight=0.1).
    "rlpr": for_tokens(
        "The likelihood of the reference answer as reward, without a verifier; prompts with little spread are dropped.",
        select=["drop_low_std(share=0.5)"],
        objective="ppo(low=0.2, high=0.27)",
    ),
    # arXiv:2509.24203 and Trinity-RFT: one-sided range .2 / .2, no importance weight, mean over tokens.
    "rec_one_side": for_any(
        "REINFORCE, masked where the ratio leaves its range in the direction of the advantage; no weight.",
        scale="none",
        objective="rec(side='one', weight='none')",
        aggregation="per_decision",
    ),
    # Trinity-RFT: baseline tau log mean exp(r / tau) with tau 1 (its "logavgexp"; its default is the mean), mean over
    # tokens. Its factor 1 / (1 + tau) is one of the step.
    "opmd": for_any(
        "Mirror descent: REINFORCE with the soft maximum of the group's rewards as baseline.",
        baseline="group_log_mean_exp(tau=1.0)",
        scale="none",
        objective="policy_gradient",
        aggregation="per_decision",
    ),
    # arXiv:2506.20520 and Trinity-RFT: the mean shifted by -.1, mean over tokens.
    "asymre": for_any(
        "REINFORCE that learns more from good samples than from bad ones, for off-policy samples.",
        baseline="group_mean_shifted(delta=-0.1)",
        scale="none",
        objective="policy_gradient",
        aggregation="per_decision",
    ),
    # arXiv:2409.06957: |r|^2 over the batch; PPO's clip.
    "pf_ppo": for_any(
        "GRPO on the samples whose rewards are reliable: large ones of either sign.",
        shape=["policy_filter(rule='power', power=2)"],
    ),
    # arXiv:2501.11651: RLOO's baseline, entropy bonus, a KL to a moving average of the policy; the three coefficients
    # are not stated and ours. Temperature 1.2, and prompts solved at most .3 of the time: solved_rate(high=0.3) with
    # data.ledger. The reward runaway(n=..., times=...) is its penalty.
    "t1": for_tokens(
        "REINFORCE at high temperature with an entropy bonus, held near a moving average of itself.",
        baseline="leave_one_out",
        scale="none",
        objective="policy_gradient",
        terms=["kl_k3(coef=0.01)", "entropy_bonus(coef=0.001)"],
        networks=["average(name='reference', start=0.99)"],
    ),
    # arXiv:2403.03185: the root of chi-squared in place of a KL. The coefficient depends on the reward; .01 is ours.
    "chi_squared": for_any(
        "GRPO with a chi-squared penalty in place of the KL, which bounds how far a proxy reward can be exploited.",
        terms=["chi_squared(coef=0.01, mean=True)"],
    ),
    # arXiv:2509.24981: rho 1, mean-centred rewards, mean over tokens.
    "rover": for_tokens(
        "The log-ratio as Q-value of the uniformly random policy, fitted to the reward and the next state's mean.",
        scale="none",
        objective="rover(rho=1.0)",
        aggregation="per_decision",
    ),
    # arXiv:2510.15110 and its script: group mean, whitened over tokens, clip .2 / .28, dual clip 10, 4000 tokens.
    "dler": for_tokens(
        "Concise reasoning by truncation: samples beyond the limit have reward 0, advantages are batch-whitened.",
        transform=["truncation(longest=4000)"],
        scale="token_whiten",
        objective="dual_clip(low=0.2, high=0.28, dual=10)",
        aggregation="per_decision",
        **DYNAMIC,
    ),
    # arXiv:2510.03865: forward KL to a reference weighted by reward, and an entropy bonus. Coefficients are ours.
    "rapo": for_tokens(
        "Forward KL to a reference that is kept for good samples and flattened for bad ones, with an entropy bonus.",
        terms=["kl_forward_rewarded(coef=0.01)", "entropy_bonus(coef=0.001)"],
    ),
    # arXiv:2501.03262, REINFORCE++-baseline: group mean, then whitening over all tokens of the batch; clip 0.2.
    "reinforce_pp_baseline": for_any(
        "Group mean as baseline, advantages whitened over all decisions of the batch.",
        scale="token_whiten",
        aggregation="per_decision",
    ),
    # arXiv:2508.08221: group mean, batch std, token mean, no KL.
    "lite_ppo": for_any(
        "Group mean, batch std: the cheapest robust default.",
        scale="batch_std(ddof=1, eps=1e-4)",
        aggregation="per_decision",
    ),
    # arXiv:2503.14476, section 4.1: clip 0.2 / 0.28, token mean, no KL. Its overlong penalty is a reward; its
    # overlong filter is the selector drop_truncated, for policies that record truncation.
    "dapo": for_any(
        "Clip-higher, token mean, groups without spread replaced by fresh ones.",
        objective="ppo(low=0.2, high=0.28)",
        aggregation="per_decision",
        **DYNAMIC,
    ),
    # arXiv:2507.18071, section 5.1: 3e-4 and 4e-4 on the mean log-ratio; no KL.
    "gspo": for_any(
        "One ratio per sequence, the geometric mean over its decisions.", objective="gspo(low=3e-4, high=4e-4)"
    ),
    "gspo_token": for_any(
        "GSPO's ratio with a gradient per decision, for advantages that differ along a row.",
        objective="gspo_token(low=3e-4, high=4e-4)",
    ),
    # MiniMax-M1, arXiv:2506.13585: the ratio is a clipped, detached weight, token mean, no KL. The upper bound
    # is absolute, 5, as in ScaleRL (arXiv:2510.13786); other libraries write 1 + high for it (cispo_band).
    "cispo": for_any(
        "The ratio as a detached weight with an absolute cap: every decision keeps its gradient.",
        objective="cispo_cap(cap=5.0)",
        aggregation="per_decision",
    ),
    # arXiv:2510.13786: CISPO, mean over prompts, groups without spread dropped, advantages divided by their deviation
    # over the batch that is left; prompts with a pass rate of 0.9 are not drawn again. TRL's trainer of this name
    # divides by a moving second moment instead (not offered).
    "scale_rl": for_any(
        "CISPO with advantages divided by their batch std and equal weight for every prompt.",
        scale="batch_std_informative(ddof=1, eps=1e-4)",
        select=["drop_zero_spread"],
        sampler=["retire(at=0.9)"],
        objective="cispo_cap(cap=5.0)",
        aggregation="per_prompt",
    ),
    # arXiv:2511.20347: temperatures 1.0 and 1.05.
    "sapo": for_any(
        "A sigmoid of the ratio in place of the clip.", objective="sapo(tau_positive=1.0, tau_negative=1.05)"
    ),
    # arXiv:2508.03772 and its code: tokens shared by good and bad samples are not punished, entropy .7 and .1, no clip,
    # no KL; the paper's threshold is ln 2.
    "gtpo": for_tokens(
        "REINFORCE that does not penalize tokens which good and bad samples share, and drops samples of high entropy.",
        shape=["entropy_gate(limit=0.7, scale=0.1)"],
        credit="conflict(weight=2.0)",
        objective="policy_gradient",
    ),
    # arXiv:2509.16591 and its code: alpha and beta 1, pivot .8, clip .2, dual clip 10, mean over tokens. Without its
    # temperature that follows the entropy.
    "hapo_entropy": for_tokens(
        "Clip bounds and advantages that depend on token entropy, statistics over the tokens of a group.",
        baseline="length_weighted",
        scale="length_weighted_std(limit=5.0)",
        objective="ppo_by_entropy(low=0.2, high=0.2, dual=10.0)",
        aggregation="per_decision",
    ),
    # arXiv:2510.10649 and its code: .25, .35 and .05, group size 16, no KL. Groups without spread would be pushed down
    # by the penalty of tokens; dropping them is ours.
    "ucas": for_tokens(
        "GRPO that learns more from answers and tokens of which the policy was uncertain.",
        shape=["confidence(positive=0.25, negative=0.35)"],
        credit="logit_penalty(scale=0.05)",
        select=["drop_zero_spread"],
    ),
    # arXiv:2508.02260: alpha, gamma and slope were not found; all three are ours.
    "ppl_position": for_tokens(
        "GRPO in which samples of high perplexity count less, and late tokens more.",
        shape=["perplexity(alpha=0.01)"],
        credit="position_bonus(gamma=0.1, slope=1.0)",
    ),
    # arXiv:2506.14758: .4 and 2, on DAPO's clip. FunRL (arXiv:2508.05118) is of its kind;
    # its own form was not found.
    "entropy_advantage": for_tokens(
        "GRPO with an advantage bonus where the policy is uncertain.",
        credit="entropy_advantage(alpha=0.4, kappa=2.0)",
        objective="ppo(low=0.2, high=0.28)",
        aggregation="per_decision",
    ),
    # arXiv:2506.05183: (v - mean) / (mean (1 - mean)) among the children of a node, rewards in [0, 1]; PPO's clip.
    # With sampling.tree text_tree(...), whose children, depth and tokens were not found.
    "treerpo": for_tokens(
        "Continuations of the same prefix are compared with each other, at every branch of a tree of completions.",
        baseline="none",
        scale="none",
        credit="tree_siblings",
        aggregation="per_decision",
    ),
    # arXiv:2410.01679 and its code: 9 completions of a state (sampling.states), clip .2, KL 1e-4.
    "vineppo": for_tokens(
        "PPO with Monte Carlo values, from completions drawn at every step of a text.",
        **OF_STEPS,
        credit="step_gain",
        terms=["kl_k3(coef=1e-4)"],
        sampling={"states": "completed(count=9)"},
    ),
    # arXiv:2410.15115: clip .9 (of a note on it); alpha was not found, 1 is ours. With sampling.states
    # judged(by=...) and a process reward model. Its PPO has a value network where this has the group.
    "clip_delta": for_tokens(
        "Process rewards and the outcome reward, clipped and differenced, so that repeating a step gains nothing.",
        **OF_STEPS,
        credit="process_reward(alpha=1.0, clip=0.9)",
    ),
    # arXiv:2505.22338: +1 and -1 of spans, whitened, clip .2; with sampling.states judged(by='judge_last_step',
    # cut='sentence'), gamma 1. Its value network is the group here, and its KL, of beta, was not found.
    "text2grad": for_tokens(
        "A critique rewards single spans of a text.",
        **OF_STEPS,
        credit="process_reward(alpha=1.0, delta=False, outcome=0.0)",
    ),
    # arXiv:2505.10978 and its code: both parts of weight 1 and centred alone (mean_norm; mean_std_norm is scale
    # group_std(eps=1e-6) and mode='mean_std'), gamma .95 and KL .01 of its scripts, clip .2, groups of 8. With
    # sampling.tools; a penalty for calls that cannot be read is a reward of the user's.
    "gigpo": for_tokens(
        "Completions of a prompt are compared, and turns that were taken in the same state.",
        scale="none",
        credit="state_groups(weight=1.0, gamma=0.95)",
        terms=["kl_k3(coef=0.01)"],
    ),
    # arXiv:2510.14967: rewards standardized over all turns of the group. Of its code: gamma 1, KL .001, clip .2, groups
    # of 16, at most 10 turns. The code differs: at bff163b the return from a turn on minus the mean of the group at the
    # same token, divided by no std; separate=True is the default of the later debajoycs98/IGPO. The reward of the
    # answer (its F1 of words) is the user's. With sampling.tools.
    "igpo": for_tokens(
        "A turn is rewarded by what it adds to the probability of the reference answer.",
        **OF_STEPS,
        credit="information_gain(gamma=1.0)",
        terms=["kl_k3(coef=0.001)"],
    ),
    # arXiv:2307.13372: REINFORCE on what is still gained. With sampling.states judged(by='step_coverage'); the
    # comparison over the group is ours.
    "subpo": for_tokens(
        "Every step is rewarded with its marginal gain in a set function of the steps so far.",
        **OF_STEPS,
        credit="step_return(gamma=1.0, over='group')",
        objective="policy_gradient",
    ),
    # arXiv:2404.18922 and its code: .05 within .05, KL .01, clip .2. The guide is a run of the same model that DPO has
    # trained, the user's: algorithm.networks frozen(path=...), whose name is teacher. The group's mean stands for the
    # value network.
    "rto": for_tokens(
        "PPO with the token rewards implied by a DPO-trained network.",
        scale="none",
        objective="token_rewards(beta=0.05, bound=0.05, low=0.2, high=0.2)",
        terms=["kl_k3(coef=0.01)"],
    ),
    # On-policy distillation of tokens: the gradient of KL(policy||teacher) on the policy's own samples. The teacher is
    # the user's: algorithm.networks frozen(path=...), or one for each task. Rewards are only measured.
    "opd": for_tokens(
        "A teacher scores the policy's own samples token by token; rewards are only logged.",
        baseline="none",
        scale="none",
        objective="distillation",
    ),
    # arXiv:2605.21924, constants by a re-implementation that read the paper: images at a tenth of their sides, 20 % of
    # the tokens half of the weight, temperature 1. The teacher as for opd.
    "va_opd": for_tokens(
        "On-policy distillation with more weight where the teacher needs the image.",
        baseline="none",
        scale="none",
        objective="visual_distillation(top=0.2, share=0.5, tau=1.0)",
    ),
    # arXiv:2411.15124: KL .05 (8B; .07 for 70B), clip .2. The paper's reward is 10 for a right answer, and -10 for one
    # without an end (weights of a recipe); its value network is the group's mean here.
    "tulu_3_rlvr": for_tokens(
        "Verifiable rewards with a KL to the reference, the third stage of Tulu 3.",
        scale="none",
        terms=["kl_k1(coef=0.05)"],
    ),
    # arXiv:2405.20304 and its code: eta .01, beta .1 (DPO's) and, for IPO, .01 of its script as tau. With data.offline
    # 1 and the groups of the data in the column task.
    "gr_dpo": preferred(
        "DPO that upweights the data groups with the largest loss.",
        "beta=0.1",
        aggregation="by_category",
        trackers=["worst_group(eta=0.01)"],
    ),
    "gr_ipo": preferred(
        "IPO that upweights the data groups with the largest loss.",
        "link='square(tau=0.01)', beta=1.0",
        aggregation="by_category",
        trackers=["worst_group(eta=0.01)"],
    ),
    # Tulu 3's second stage: DPO of mean log-probs, beta 5 (from memory; the loss is its repository's default).
    "dpo_norm": preferred("DPO on length-normalized log-ratios.", "reduce='mean', beta=5.0", "tokens"),
    # arXiv:2506.00103 (Writing-Zero), with the reward judge_one: rewards of +1, -1 and 0 against one sample of the
    # group, taken as they are; prompts whose mean is beyond .6 either way are left out.
    "brpo": for_any(
        "Each sample is compared with one other of its group; the win or loss is the advantage.",
        baseline="none",
        scale="none",
        select=["drop_decided(most=0.6)"],
    ),
    # arXiv:2503.16081 v2: from the middle down to the least in 0.3 of the steps, then up; 0 to 0.02 in geometry (0.04
    # to 0.1 in counting). Its learning rate and clip are those of its base, R1-V.
    "grpo_d": for_any(
        "GRPO whose KL coefficient first falls, then rises: explore, then consolidate.",
        terms=["kl_k3(coef=dip(0, 0.02))"],
    ),
    # arXiv:2505.24864 (clip) and its follow-up 2507.12507 (KL weight 1e-4): DAPO with a KL whose reference is renewed
    # together with the optimizer when validation stalls. The stall rule is not printed: 3 evaluations are ours.
    "prorl": for_any(
        "DAPO with a KL to a reference that is reset, together with the optimizer, when evaluation stalls.",
        objective="ppo(low=0.2, high=0.4)",
        aggregation="per_decision",
        terms=["kl_k3(coef=1e-4)"],
        networks=["renewal(stall=3, optimizer=True)"],
        **DYNAMIC,
    ),
    # ProRL v2, a report of August 2025: REINFORCE++-baseline, clip 0.2 / 0.28, the k2 KL and a reference renewed every
    # 200 to 500 steps, the optimizer kept. Its KL weight is not given (1e-4 is that of ProRL); it clamps log-ratios to
    # 10, which none here reaches. Its length penalty is a reward of weight cycle(100, 500, ...).
    "prorl_v2": for_any(
        "Advantages whitened over the batch, and a KL to a reference that is reset every 300 steps.",
        scale="token_whiten",
        objective="ppo(low=0.2, high=0.28)",
        aggregation="per_decision",
        terms=["kl_k2(coef=1e-4)"],
        networks=["renewal(every=300)"],
        **DYNAMIC,
    ),
    # Truncated importance sampling between sampler and trainer with verl's cap 2; the band 0.5 to 2 of "masked".
    "grpo_tis": for_any(
        "GRPO with truncated importance sampling for a sampler that differs from the trainer.", mismatch="tis(cap=2.0)"
    ),
    "grpo_mis": for_any(
        "GRPO that masks decisions on which sampler and trainer disagree.", mismatch="mis(low=0.5, high=2.0)"
    ),
    "grpo_sequence_mask": for_any(
        "GRPO that masks sequences on which sampler and trainer disagree.",
        mismatch="sequence_mask(low=0.5, high=2.0)",
    ),
    # arXiv:2601.05242: every reward standardized in its group, summed, whitened over the batch (1e-4).
    "gdpo": for_any(
        "Several rewards, each standardized separately, then summed and whitened.", combine="gdpo(eps=1e-4)"
    ),
    # arXiv:2504.02546: no clip, no KL, no reference; alpha = samples / samples of informative groups. No
    # drop_zero_spread here: alpha compensates for the groups that stay in the mean. The paper's alpha; its code also
    # draws again below a share of informative groups (0.4), and verl counts samples of nonzero score instead of
    # groups.
    "gpg": for_any(
        "Plain policy gradient, scaled up to compensate for groups without spread.",
        scale="valid_fraction",
        objective="policy_gradient",
        aggregation="per_decision",
    ),
    # arXiv:2512.01374: no std, masked instead of clipped, truncated sampler weight. The thresholds are DAPO's
    # and verl's, not verified against the paper.
    "mini_rl": for_any(
        "REINFORCE with a detached ratio as weight, masked where it leaves its range.",
        scale="none",
        objective="mini_rl(low=0.2, high=0.28)",
        mismatch="tis(cap=2.0)",
    ),
    # arXiv:2507.20673: log-ratio clip 0.4, no KL.
    "gmpo": for_any("Geometric mean of one-sidedly clipped ratios.", objective="gmpo(clip=0.4)"),
    # DAPO's filter on plain GRPO.
    "grpo_filtered": for_any("GRPO on groups with spread only, the others replaced by fresh prompts.", **DYNAMIC),
    # arXiv:2510.04996: sample 16 or more, statistics from all, train 2 correct and 2 wrong; no std.
    "reinforce_ada": for_any(
        "Statistics over many samples, training on a balanced subset.",
        scale="none",
        select=["balanced(count=4)"],
        sampler=["staged(rule='balanced', rounds=4, count=4)"],
    ),
    # arXiv:2504.19599: implicit rewards regressed on centred rewards, beta 0.1.
    "gvpo": for_any(
        "Log-ratios regressed on centred rewards within the group; no clip.",
        scale="none",
        objective="regression_group(beta=0.1)",
    ),
    # arXiv:2404.16767: reward differences of pairs, eta 1.
    "rebel": for_any(
        "Log-ratio differences regressed on reward differences.", scale="none", objective="regression_pair"
    ),
    # DeepVideo-R1, arXiv:2506.07464.
    "reg_grpo": for_any("Standardized log-ratios regressed on advantages.", objective="regression_standardized"),
    # arXiv:2402.08714: beta 10; the clip is not stated in the paper, 1e-4 is Flow-GRPO's.
    "prdp": for_gaussian(
        "Reward differences regressed on log-ratios to the reference, each step held near its old value.",
        scale="none",
        objective="regression_proximal(beta=10.0, clip=1e-4)",
        sampling={"plan": "every_step", "kernel": {"diffusion": "ddim(eta=1.0)"}},
    ),
    # arXiv:2505.12366 and its code: log-likelihood score, tau 10, KL squared hinge 1e3 above 1e-4. Unanimous groups
    # have no loss, yet count in the mean over questions, and their tokens in that of the KL, which is over tokens.
    "disco": for_any(
        "Correct answers scored above incorrect ones, under a KL constraint.",
        scale="none",
        objective="disco(tau=10.0, score='log')",
        terms=["kl_hinge(coef=1e3, delta=1e-4, under='per_sample')"],
    ),
    # DRPO (decoupled reward): lambda 0.1, tau 10; 4000 is to be the longest allowed answer. Means as DisCO.
    "drpo": for_tokens(
        "DisCO in which short correct answers count more and long ones are never treated as incorrect.",
        scale="none",
        objective="drpo(tau=10.0, lam=0.1, length=4000)",
        terms=["kl_hinge(coef=1e3, delta=1e-4, under='per_sample')"],
    ),
    # arXiv:2509.18851: virtual sample of reward 1, clip 0.16 / 0.24, no KL.
    "ngrpo": for_any(
        "A virtual best sample in every group, which gives all-incorrect groups a gradient too.",
        baseline="virtual_max(maximum=1.0)",
        scale="virtual_max_std(maximum=1.0, ddof=1, eps=1e-6)",
        objective="ppo(low=0.16, high=0.24)",
    ),
    # Tree-GRPO, arXiv:2509.21240, and its script for KL 0.001: advantages among all leaves of the prompt plus those
    # within the leaf's tree, KL 0.001. For denoising policies, four trees that branch at one step, is ours.
    "tree_grpo": for_any(
        "Samples are compared within their prompt, and again within their tree.",
        keys=["prompt", "tree"],
        terms=["kl_k3(coef=0.001)"],
        sampling=FLOW_SDE | {"plan": "one_step_branch(first=0.5, roots=4)"},
    ),
    # Single-stream policy optimization, arXiv:2509.13232, with data.group_size 1: a tracked success rate as baseline,
    # advantages whitened over the batch, clip 0.2 / 0.28.
    "spo": for_any(
        "One sample per prompt, compared with a tracked estimate of the prompt's success rate.",
        baseline="tracker",
        scale="batch_whiten(ddof=1, eps=1e-8)",
        sampler=["uncertainty_weighted(floor=0.05)"],
        trackers=["beta(low=0.875, high=0.96, half=0.06)"],
        objective="ppo(low=0.2, high=0.28)",
        data={"group_size": 1},
    ),
    # Variance-aware sampling of MMR1, arXiv:2509.21268: half of every round. Its released recipe weighs by p (1 - p)
    # alone and measures p by samples that are not trained, every 4 steps; here p is that of training.
    "vas": for_any(
        "GRPO that draws half of each round from the prompts whose rewards vary most.",
        sampler=["variance_weighted(share=0.5)"],
    ),
    # Prompt curriculum learning, arXiv:2510.01135: nearest to a pass rate of 1/2 of four times as many candidates,
    # exact on-policy, no std, no KL. The average rewards are tracked, where the paper predicts them by a network.
    "pcl": for_any(
        "Prompts of intermediate difficulty, by a tracked average of their rewards.",
        scale="none",
        sampler=["nearest(target=0.5, candidates=4)"],
        trackers=["moving_average(momentum=0.9)"],
        objective="policy_gradient",
    ),
    # Self-evolving curriculum, arXiv:2505.14970: rate 0.5, temperature 1 (0.4 for mathematics, 0.2 for puzzles).
    "sec": for_any(
        "GRPO with a bandit over prompt categories that seeks large advantages.",
        sampler=["bandit(column='task', temperature=1.0)"],
        trackers=["arm_value(rate=0.5)"],
    ),
    # RCS, arXiv:2504.13592: after 60 steps only prompts with an imperfect sample; full is the sum of reward weights.
    "rcs": for_any(
        "GRPO that drops, after a first stage, the prompts that every sample solved.",
        sampler=["imperfect(after=60, full=1.0)"],
    ),
    # Knapsack RL, arXiv:2509.25849 and its 7B script: 2 to 128 samples, rates of the last 16, clip 0.2 / 0.28,
    # advantage clip 5, token mean over all rows, which gives a prompt with more samples more weight. Its cap of 2
    # on the importance of another sampler is algorithm.mismatch.
    "knapsack": for_any(
        "A fixed budget of samples, allocated to the prompts where they teach most.",
        shape=["clamp(limit=5)"],
        sampler=["knapsack(least=2, most=128)"],
        trackers=["window(count=16)"],
        objective="ppo(low=0.2, high=0.28)",
        aggregation="per_decision",
    ),
    # CodeV-R1, arXiv:2505.24183: DAPO whose draws are larger by the fraction of groups without spread.
    "adaptive_dapo": for_any(
        "DAPO that draws as many groups as it expects to need.",
        select=["drop_zero_spread"],
        sampler=["adaptive_sampling(rounds=10)"],
        trackers=["keep_rate"],
        objective="ppo(low=0.2, high=0.28)",
        aggregation="per_decision",
    ),
    # History-aware policy optimization, arXiv:2505.11225, and its code: weight 1, floor -0.7 for right answers.
    "hapo": for_tokens(
        "Correct answers are rewarded for being shorter than the shortest one so far.",
        transform=["history_length(weight=1.0, floor=-0.7)"],
        trackers=["shortest"],
    ),
    # RiskPO, arXiv:2510.00911, by its released script for DAPO-Math: bundles of 5 prompts, quantiles 0.2 and 0.8, rate
    # 0.1, weight 1.5, the gain without the summand q_low - q_high, over the std of the bundle's sums, groups of 10.
    # Its script for MATH has quantile 0.9, the summand, and divides by each prompt's std (not offered).
    "risk_po": for_any(
        "A risk measure of bundles of prompts: failures on hard prompts count more.",
        baseline="none",
        scale="none",
        shape=["risk(low=0.2, high=0.8, bundle=5, weight=1.5, natural=False, std=True)"],
        trackers=["quantiles(low=0.2, high=0.8, rate=0.1, bundle=5)"],
        data={"group_size": 10},
    ),
    # arXiv:2508.09726: sample many, select the 8 shortest; statistics from the selected.
    "gfpo": for_tokens("Sample more, learn from the shortest.", select=["gfpo(count=8, metric='length')"]),
    # arXiv:2506.02864: 1 / Beta density of the success rate instead of 1 / std. The moments (sample variance over
    # groups) and the lower bound 1 of both parameters are those of its code; its code sets an advantage of groups of
    # one to the reward.
    "bnpo": for_any(
        "Advantages divided by a fitted density of success rates, for rewards in [0, 1].", scale="beta_pdf"
    ),
    # arXiv:2509.18849: std where prompts are half solved, mean where they are easy or hard.
    "mapo": for_any(
        "Normalization that moves from the std to the mean with the success rate, for rewards of 0 and 1.",
        scale="mapo(eps=1e-6)",
    ),
    # arXiv:2505.23585: length-weighted baseline, exact on-policy, no std.
    "opo": for_any(
        "The variance-optimal baseline: the mean reward weighted by length.",
        baseline="length_weighted",
        scale="none",
        objective="policy_gradient",
    ),
    # arXiv:1712.01818, the sampled form of its eq. 4 to 6: reward minus the number of word errors, sums of log-probs.
    "mwer": for_any(
        "Sampled minimum word error rate training: no std, no clip, no length normalization.",
        scale="none",
        objective="policy_gradient",
        aggregation="sample_sum",
    ),
    # arXiv:1712.01818, eq. 6: with sampling.search beam, and the same reward.
    "mwer_n_best": for_any(
        "Minimum word error rate training over the N-best list of a beam search, probabilities renormalized.",
        scale="none",
        objective="n_best",
        aggregation="per_sample",
        sampling={"search": "beam"},
    ),
    # arXiv:2509.16990, its loss, with data.reference_in_group: all rewards of a group are compared, tokens of all its
    # rows have equal weight, the answer's importance weight is not clipped. Its best KL coefficient.
    "mp_grpo": for_tokens(
        "Mixed-policy GRPO: the data set's answer is one member of the group.",
        keys=["prompt(own=False)"],
        aggregation="per_decision",
        terms=["kl_k3(coef=0.02)"],
        data={"reference_in_group": True},
    ),
    # arXiv:2506.09340 and its released code: 8 rows a prompt of at most 16 kept, once 16 are there, the best ones,
    # compared among themselves; no KL.
    "repo": for_tokens(
        "GRPO with the best of a prompt's earlier samples as a second group.",
        replay="replay(count=8, least=16, per_prompt=16, strategy='highest')",
    ),
    # arXiv:2508.03100: 4 samples (data.group_size 4) and 4 earlier ones of the prompt, these compared with its last 20
    # rewards and divided by their own std; a buffer of 10,000 in tiers; weight and clip of the earlier ones were not
    # found and are those of all.
    "avatar": for_tokens(
        "GRPO with replayed samples, compared with the prompt's recent rewards; both ends of an answer count more.",
        baseline="replayed_by_window",
        credit="temporal",
        replay="replay(count=4, strategy='random', tiers=[0.25, 0.35, 0.4])",
        trackers=["window(count=20)"],
    ),
    # arXiv:2508.11408: mu falls from 0.9 to 0.05 in 200 steps, 64 expert rows and 256 own ones, no KL.
    "chord": for_any(
        "GRPO plus the likelihood of expert answers, whose share decays.",
        supervised="nll(coef=cosine(0.9, 0.05, 200), count=64)",
    ),
    # The same with mu 0.1 and tokens weighed by p (1 - p).
    "chord_phi": for_tokens(
        "GRPO plus the likelihood of expert answers, weighted by p (1 - p) of each token.",
        supervised="nll(coef=0.1, phi=True, count=64)",
    ),
    # arXiv:2509.24375: a budget from 800 tokens down to 160 in the prompt, rewarded by triangle_length; 0.1 times the
    # likelihood of texts (data.supervised). Its tiers are sampler mixture; the weights of both were not found.
    "rmt": for_tokens(
        "GRPO under a shrinking token budget stated in the prompt, plus the likelihood of texts.",
        hint="budget(tokens=power(800, 0.2))",
        supervised="nll(coef=0.1, complement=False)",
    ),
    # arXiv:2506.07527: GRPO without the std, clip 0.2 / 0.28, no KL; 64 demonstrations at once. There they are an
    # optimizer step of their own; here they join the next round's.
    "relift": for_tokens(
        "Dr. GRPO plus supervised learning on the prompts that it never solves.",
        scale="none",
        objective="ppo(low=0.2, high=0.28)",
        supervised="nll(coef=1.0, complement=False, source='failed', count=64)",
    ),
    # arXiv:2505.07686 with data.group_size 1: one thought, left at several places. The number of exits, its words and
    # the coefficients of its GRPO were not found.
    "s_grpo": for_tokens(
        "One chain of thought with several early exits; each further correct answer earns half as much.",
        transform=["serial"],
        added="exits(count=7)",
        data={"group_size": 1},
    ),
    # arXiv:2507.10628: no KL; shares of its code.
    "ghpo": for_tokens(
        "GRPO in which a group without success is sampled again with growing parts of the solution as a hint.",
        hint="staged",
    ),
    # arXiv:2509.16889: the split point was not found; a random number of steps is ours.
    "hc_grpo": for_tokens("GRPO on prompts that state the first steps of their solution.", hint="steps"),
    # arXiv:2509.18056: the answer outside of the statistics, at 1.2 times the best advantage; the ratio starts at 1. Of
    # its alternatives the shaping of rewards is transform soft_threshold, the smaller reward answers(scale=0.8).
    "tempsamp_r1": for_any(
        "GRPO in which the data set's answer, text, image or video, joins each group above its best sample.",
        shape=["anchor"],
        terms=["kl_k3(coef=0.04)"],
        added="answers",
    ),
    # arXiv:2506.03106 and its released code: every sample refined once with its verdict and the answer, the best in the
    # place of one of the group; no std; gamma 0.1 for it; own rows with a ratio without clip; constant horizon (L_max
    # 6144 there); entropy coefficient 0.001.
    "critique_grpo": for_tokens(
        "Dr. GRPO with the best of the refinements that the policy writes after a critique.",
        scale="none",
        objective="ppo(low=1.0, high=1e9)",
        off_policy="luffy(gamma=0.1)",
        aggregation="constant_horizon(length=6144)",
        terms=["entropy_bonus(coef=0.001)"],
        added="refined",
    ),
    # arXiv:2508.21104: no std, clip and KL of GRPO's base are left out since they were not found; M is that of
    # data.ledger (mmgrpo evaluate --weights untrained). For prompts never solved: added answers(when='failed').
    "pvpo": for_any(
        "The baseline is the initial policy's mean reward on the prompt, not that of the group.",
        baseline="measured",
        scale="none",
        trackers=["reference_mean"],
    ),
    # arXiv:2305.14718 and its code: clip 0.9 of the sequence ratio to the reference, rows of positive advantage, sums
    # over tokens. The value is measured by samples (data.ledger), where the paper trains a head on such samples.
    "a_lol": for_tokens(
        "Offline answers weighted by their advantage over the initial policy.",
        baseline="measured",
        scale="none",
        select=["better"],
        trackers=["reference_mean"],
        objective="a_lol(clip=0.9, ratio='sequence')",
        aggregation="sample_sum",
    ),
    # arXiv:2509.25808, option II: groups without a right answer take an earlier one into their statistics, in the place
    # of a wrong one; stages and samples were not found.
    "ar3po": for_tokens(
        "GRPO that samples in stages until one sample is correct, and else replays a stored correct answer.",
        sampler=["staged(rule='positive', rounds=4)"],
        replay="replay(count=1, strategy='random', above=0.0, statistics='with', coef=0.0, when='failed', "
        "replaces=True)",
    ),
    # arXiv:2507.14988: clip 0.2, beta 0.04 with the k3 estimator; the sample std plus 1e-8 and the least spread 1e-6
    # are its released code's (which uses the raw rewards of a flatter group as advantages; here it is dropped). The
    # code also skips a batch whose normalized rewards span less than 0.01: no group with spread is left in one, since
    # (max - min) / std >= 2 sqrt((n - 1) / n) in any other.
    "dmospeech2": for_any(
        "GRPO of a duration policy: standardized in the group, groups without spread dropped, KL to the reference.",
        scale="group_std(ddof=1, eps=1e-8)",
        select=["drop_zero_spread(least=1e-6)"],
        terms=["kl_k3(coef=0.04)"],
    ),
    # arXiv:2310.10505: the greedy (or noise-free) sample's reward as baseline.
    "remax": for_any(
        "REINFORCE with the greedy sample's reward as baseline.",
        baseline="greedy",
        scale="none",
        objective="policy_gradient",
        aggregation="sample_sum",
    ),
    # Noise-aware S-GRPO, arXiv:2508.05928, flip rate 0.1. Its loss sums tokens over a constant horizon: set
    # aggregation to constant_horizon(length=...) for that.
    "s_grpo_noise": for_any(
        "GRPO that downweights groups whose rewards may be flipped.", shape=["noise_weight(flip=0.1)"]
    ),
    # arXiv:2504.09696, eq. of the difficulty weight: 0.4 + 1.1 / (1 + exp(10 (x - 0.75))).
    "grpo_lead": for_any("GRPO in which the rarer outcome of a prompt counts more.", shape=["difficulty_weight"]),
    # arXiv:2505.02835: log-ratio bounded at log 1e3 before exp, advantages beyond three sigmas dropped.
    "stable_reinforce": for_any(
        "GRPO that is robust to outliers of the log-ratio and of the advantage.",
        shape=["drop_outliers(limit=3)"],
        objective="log_preclip(low=0.2, high=0.2, bound=1e3)",
    ),
    # arXiv:2506.01347: advantage +0.1 for correct answers, -1 for wrong ones. A sum of rewards above 0.5 is correct, so
    # that rewards of 0 and 1 serve as well as the paper's -1 and 1.
    "w_reinforce": for_any(
        "REINFORCE that learns mostly from incorrect samples, for rewards with two values.",
        baseline="constant(value=0.5)",
        scale="none",
        shape=["right_or_wrong(right=0.1, wrong=-1.0)"],
        objective="policy_gradient",
    ),
    # arXiv:2506.01939: DAPO on the 20 % of tokens with the highest entropy.
    "high_entropy": for_tokens(
        "DAPO on the fraction of tokens with the highest entropy.",
        credit="top_entropy(fraction=0.2)",
        objective="ppo(low=0.2, high=0.28)",
        aggregation="per_decision",
        **DYNAMIC,
    ),
    # arXiv:2507.06448, PAPO_G of 3B. Of the paper: gamma 0.02 and the term's formula (perception). Of its released
    # script, since the paper does not state them: KL 0.01 and clip 0.2 / 0.3. The code's own term is perception_k3.
    # For 7B the paper takes gamma 0.01, or 0.02 with double_entropy(eta1=0.05, eta2=0.05).
    "papo_g": for_tokens(
        "GRPO with a perception term, which rewards tokens that depend on the image.",
        objective="ppo(low=0.2, high=0.3)",
        terms=["kl_k3(coef=0.01)", "perception(gamma=0.02)"],
    ),
    # arXiv:2507.06448, PAPO_D of 3B and 7B: gamma 0.01, both entropies 0.03; the rest is DAPO without a KL.
    "papo_d": for_tokens(
        "DAPO with a perception term, which rewards tokens that depend on the image.",
        objective="ppo(low=0.2, high=0.28)",
        aggregation="per_decision",
        terms=["perception(gamma=0.01)", "double_entropy(eta1=0.03, eta2=0.03)"],
        **DYNAMIC,
    ),
    # arXiv:2505.24718: weights up to 1.4 (1.7 in its script), clip 0.2 / 0.28, mean over tokens, no KL.
    "tw_grpo": for_tokens(
        "GRPO that weights token positions by how much the group diverges there.",
        credit="divergence_weight(alpha=1.4)",
        objective="ppo(low=0.2, high=0.28)",
        aggregation="per_decision",
    ),
    # arXiv:2507.21848, as in its code: entropies over the batch, not over the group.
    "edge_grpo": for_tokens("Confident answers count more, whether correct or not.", shape=["entropy_ratio"]),
    # arXiv:2505.05470: KL 0.04 (0.01 for preference rewards). Clip 1e-4. Of its released code, where the paper has
    # others: the std of the batch in place of the group's, advantages clipped at 5, the KL without dt
    # (kl_gaussian_exact is the formula's). For Wan the code has another noise level than the paper: the kernel is
    # flow_sde_wan there. It leaves the last step untrained, as here, but draws noise in it, which stays in its samples.
    "flow_grpo": for_gaussian(
        "GRPO on the reverse SDE of a flow model, all steps but the last.",
        objective="ppo(low=1e-4, high=1e-4)",
        terms=["kl_gaussian_dt_free(coef=0.04)"],
        **FLOW,
        sampling=FLOW_SDE,
    ),
    # Flow-GRPO-Fast: a window of two or three stochastic steps, no KL.
    "flow_grpo_fast": for_gaussian(
        "Flow-GRPO on a short random window of steps.",
        objective="ppo(low=1e-4, high=1e-4)",
        **FLOW,
        sampling=FLOW_SDE | {"plan": "random_window(size=2, before=0.5)"},
    ),
    # Flow-GRPO's configuration for coefficient-preserving sampling (arXiv:2509.05952): clip 1e-5, which belongs to its
    # likelihood without variance and normalizer; cps(scaled=True) is the density, with a clip range of 1e-4.
    "flow_grpo_cps": for_gaussian(
        "Flow-GRPO with coefficient-preserving sampling.",
        objective="ppo(low=1e-5, high=1e-5)",
        terms=["kl_gaussian_dt_free(coef=0.04)"],
        **FLOW,
        sampling=CPS,
    ),
    # arXiv:2305.13301: clip 1e-4, no KL; of the code: population std + 1e-6, clip at 5 (running, here the group's).
    "ddpo": for_gaussian(
        "PPO on every step of DDIM, rewards standardized per prompt.",
        scale="group_std(ddof=0, eps=1e-6)",
        shape=["clamp(limit=5)"],
        objective="ppo(low=1e-4, high=1e-4)",
        sampling={"plan": "every_step", "kernel": {"diffusion": "ddim(eta=1.0)"}},
    ),
    # arXiv:2505.07818: clip 1e-4, no KL; paper and code sum advantages of rewards, and the code clips each reward's
    # loss by itself (equal unless clipped). The sample std plus 1e-8 and the advantage clip 5 are the code's.
    # Best-of-N for video is the selector best_worst(best=4, worst=4) of 24. The code rounds the network's time down to
    # int(1000 sigma) and draws the initial noise in bf16; here neither is rounded.
    "dance_grpo": for_gaussian(
        "One initial noise per prompt, a random fraction of the steps, each reward standardized separately.",
        objective="ppo(low=1e-4, high=1e-4)",
        **DANCE,
        sampling={"plan": "random_subset(fraction=0.6)"} | DANCE_SDE,
    ),
    # arXiv:2507.21802 and its code: clip 1e-4, advantage clip 5, no KL; rewards aggregated as advantages. The option
    # "kl" of its code is half the squared log-ratio to the rollout and no reference; it is not offered.
    "mix_grpo": for_gaussian(
        "SDE in a sliding window, ODE outside.",
        objective="ppo(low=1e-4, high=1e-4)",
        **DANCE,
        sampling=FLOW_SDE | {"plan": "sliding_window(size=4, interval=25, stride=1, schedule='progressive')"},
    ),
    # Granular-GRPO, arXiv:2510.01982: one noise injection per group; every completion interval is a reward of its
    # own, standardized separately and summed; advantage clip 5, no KL. The clip range is DanceGRPO's.
    "granular_grpo": for_gaussian(
        "One stochastic step per group, with rewards at several granularities.",
        objective="ppo(low=1e-4, high=1e-4)",
        **DANCE,
        sampling=FLOW_SDE | {"plan": "one_step_branch(first=0.5, draw='all', intervals=[1, 2, 3])"},
    ),
    # arXiv:2509.06040: path-weighted fusion with beta 1, depth-wise standardization, as in the paper (its code takes
    # plain means of leaves by default, and noise of a split that is not unit normal); clip 1e-3 of its script, which
    # also takes the mean over edges. A mean per row would weigh an edge by which of the rows that share it owns it.
    "branch_grpo": for_gaussian(
        "A tree of samples: rewards are fused upwards and normalized depth by depth.",
        baseline="none",
        scale="none",
        credit="tree_depth(beta=1.0)",
        objective="ppo(low=1e-3, high=1e-3)",
        aggregation="per_decision",
        sampling=TREE,
        data={"group_size": 16},
    ),
    # The same with width pruning: it leaves 130 of the 202 trained decisions of the paper's tree.
    "branch_grpo_pruned": for_gaussian(
        "BranchGRPO that trains only the better child after the last split.",
        baseline="none",
        scale="none",
        credit="tree_depth(beta=1.0)",
        select=["parent_top1(beta=1.0)"],
        objective="ppo(low=1e-3, high=1e-3)",
        aggregation="per_decision",
        sampling=TREE,
        data={"group_size": 16},
    ),
    # TreeGRPO for flow models, arXiv:2512.08153: softmax of the edges' log-probs, a clipped ratio and an advantage for
    # every edge, no KL. The clip range is Flow-GRPO's.
    "flow_tree_grpo": for_gaussian(
        "Advantages of the leaves, propagated up a tree by the likelihood of its edges.",
        credit="tree_softmax(beta=1.0)",
        objective="ppo(low=1e-4, high=1e-4)",
        aggregation="per_decision",
        sampling=FLOW_SDE | {"plan": "tree_window(children=3, depth=3, r=0.5)"},
        data={"group_size": 27},
    ),
    # arXiv:2508.04324: one-step branches, steps weighted by their noise, weights of mean 1; the rest is Flow-GRPO. No
    # code was released.
    "tempflow": for_gaussian(
        "Branches at one step, with decisions weighted by the noise of their step.",
        objective="ppo(low=1e-4, high=1e-4)",
        aggregation="noise_aware",
        terms=["kl_gaussian_dt_free(coef=0.04)"],
        **FLOW,
        sampling=FLOW_SDE | {"plan": "one_step_branch(first=0.5, draw='one', roots=4)"},
    ),
    # arXiv:2409.00588 and its code: discount 0.99 and clip 1e-3 to 1e-2 (rate 3) along the denoising steps, advantages
    # standardized over the batch (1e-8). Its value network is left out: the group is the baseline.
    "dppo": for_gaussian(
        "PPO whose clip range grows, and whose advantages are discounted less, along the denoising steps.",
        scale="batch_std_centred(ddof=1, eps=1e-8)",
        credit="denoising_discount(gamma=0.99)",
        objective="ppo_denoising(base=1e-3, clip=1e-2, rate=3.0)",
    ),
    # arXiv:2512.15347 (plan expand_prune): the survivors' mean and std. Clip range, advantage clip and eps are those of
    # Flow-GRPO, whose KL was not read there and is left out.
    "pro_grpo": for_gaussian(
        "Many samples are started; the subset of largest reward variance is completed and trained.",
        scale="group_std(ddof=0, eps=1e-4)",
        shape=["clamp(limit=5)"],
        objective="ppo(low=1e-4, high=1e-4)",
        sampling=FLOW_SDE | {"plan": "expand_prune(at=[5, 7], keep=[24, 12])"},
        data={"group_size": 48},
    ),
    # arXiv:2601.00423 and its code (plan one_step_branch(jump=...) or entropy_branch): clip 1e-4, advantage clip 5, no
    # KL; groups are those of one step.
    "e_grpo": for_gaussian(
        "Branches at one step, merged with the following ones until its entropy is large enough.",
        scale="group_std(ddof=1, eps=1e-8)",
        shape=["clamp(limit=5)"],
        objective="ppo(low=1e-4, high=1e-4)",
        sampling=FLOW_SDE | {"plan": "entropy_branch(first=0.5)"},
    ),
    # CM-GRPO in RAVEN, arXiv:2605.15190, for few-step models: kernel cps(a=1.0, scaled=True), or consistency of a
    # diffusion process; plan every_step(train=1) with plan_per=prompt. REINFORCE without ratio and clip; each reward
    # standardized in the group, their sum again, advantages clipped at 5, no KL. Eps and ddof of both were not found.
    "cm_grpo": for_gaussian(
        "REINFORCE on one random step of a few-step model, whose consistency step is Gaussian by itself.",
        combine="per_reward",
        scale="group_std(ddof=1, eps=1e-8)",
        shape=["group_standardize(ddof=1, eps=1e-8)", "clamp(limit=5)"],
        objective="policy_gradient",
        sampling={
            "plan": "every_step(train=1)",
            "plan_per": "prompt",
            "kernel": {"flow": "cps(a=1.0, scaled=True)", "diffusion": "consistency"},
        },
    ),
    # arXiv:2605.15980 (sampling.plan_per=prompt): one stochastic step per prompt, drawn from the first half, kernel
    # flow_sde_wan, clip 1e-3, advantage clip 5, batch std, no KL; weights over the mean of the step as in its code.
    "flash_grpo": for_gaussian(
        "One random step per prompt, with gradients rescaled to be comparable across steps.",
        objective="ppo(low=1e-3, high=1e-3)",
        aggregation="rectified",
        **FLOW,
        sampling={
            "plan": "one_step_branch(first=0.5, roots=4)",
            "plan_per": "prompt",
            "kernel": {"flow": "flow_sde_wan", "diffusion": "ddim(eta=1.0)"},
        },
        data={"group_size": 4},
    ),
    # arXiv:2601.20218: rewards of the whole remaining ODE (sampling.completion_steps as sampling.steps), gains
    # normalized per step; KL 0.04 (0.01 for preference rewards), T 10, G 24. Clip ranges and the std's eps are
    # Flow-GRPO's. Its noise per step is calibrated (step_rewards.calibrate); increment and tolerance were not found.
    "dense_grpo": for_gaussian(
        "Every step is rewarded with the gain of its completion, compared at the same step across samples.",
        credit="step_return(over='position', limit=5)",
        objective="ppo(low=1e-4, high=1e-4)",
        terms=["kl_gaussian_dt_free(coef=0.04)"],
        **OF_STEPS,
        sampling=FLOW_SDE | WHOLE,
    ),
    # arXiv:2603.28718: previews of 5 deterministic steps (sampling.completion_steps=5), gains normalized over all steps
    # and samples of the prompt, kernel flow_ddim_damped; clip and KL as Flow-GRPO, whose numbers stand here.
    "stepwise_flow_grpo": for_gaussian(
        "Every step is rewarded with the gain of its preview, compared across all steps and samples of the prompt.",
        credit="step_return(over='group')",
        objective="ppo(low=1e-4, high=1e-4)",
        terms=["kl_gaussian_dt_free(coef=0.04)"],
        **OF_STEPS,
        sampling={
            "plan": "every_step(skip=1)",
            "kernel": {"flow": "flow_ddim_damped(eta=0.7)", "diffusion": "ddim(eta=1.0)"},
            "completion_steps": 5,
        },
    ),
    # arXiv:2602.06422: rewards of the whole remaining ODE, eta 1, no KL; clip 1e-5 with cps(a=0.7), G 24.
    "tp_grpo": for_gaussian(
        "Gains of steps, and at turning points of the trend the gain of the rest of the trajectory.",
        credit="turning_points(eta=1.0)",
        objective="ppo(low=1e-5, high=1e-5)",
        **OF_STEPS,
        sampling=CPS | WHOLE,
    ),
    # What its released configurations switch on: the whole change at every step, and a bonus at turning points.
    "tp_grpo_released": for_gaussian(
        "The total change of the reward at every step, with a bonus at turning points.",
        credit="turning_points_released(eta=1.0)",
        objective="ppo(low=1e-5, high=1e-5)",
        **OF_STEPS,
        sampling=CPS | WHOLE,
    ),
    # After arXiv:2512.12387 (sampling.completion_steps=1): equation 13, gamma and k were not found; gamma 1 and k 1
    # leave them out. Clip range and KL were not found either; those of Flow-GRPO stand here.
    "vgpo": for_gaussian(
        "After VGPO: discounted values of steps, in early steps a mix of relative and absolute ones.",
        credit="process_value(gamma=1.0, k=1.0, early=5)",
        objective="ppo(low=1e-4, high=1e-4)",
        terms=["kl_gaussian_dt_free(coef=0.04)"],
        **OF_STEPS,
        sampling=FLOW_SDE | {"completion_steps": 1},
    ),
    # Euphonium's mixture without its drift, which needs a differentiable latent reward; weights are those of its code.
    "process_outcome": for_gaussian(
        "Process and outcome rewards, normalized separately and added.",
        scale="group_std(ddof=0, eps=1e-4)",
        credit="step_mixture(process=1.0, outcome=1.0)",
        objective="ppo(low=1e-4, high=1e-4)",
        sampling=FLOW_SDE | WHOLE,
    ),
    # arXiv:2512.21514: the first steps stay near the reference, without division by the variance. Which steps, and the
    # coefficient, were not found: the first third of 10, in which it sees two thirds of the diversity decided, and
    # Flow-GRPO's .04. Its other half is the reward cluster_rarity(weight=3, ...), whose embedding is the user's.
    "diverse_grpo": for_gaussian(
        "Flow-GRPO regularized towards the reference in its first steps only; made for the reward cluster_rarity.",
        objective="ppo(low=1e-4, high=1e-4)",
        terms=["early_shift(coef=0.04, first=3)"],
        **FLOW,
        sampling=FLOW_SDE,
    ),
    # arXiv:2603.12893 and its released code: pairs (data.group_size 2) from one noise (every_step(shared_noise=True)),
    # kernel edm_churn, 40 steps, clip .03, no KL, lr 3e-5. Its churn follows a density over the levels, and churns the
    # noise at the start, too; here it is constant, and the last step, which draws nothing, is not trained.
    "fdfo": for_gaussian(
        "The velocity of every step is pulled towards the better sample of a pair; the trajectory is one action.",
        scale="none",
        select=["drop_zero_spread"],
        objective="finite_difference(clip=0.03)",
        sampling={"plan": "every_step(shared_noise=True)", "kernel": {"flow": "edm_churn(gamma=0.0025)"}},
        data={"group_size": 2},
    ),
    # Advantage Weighted Matching, arXiv:2509.25050, by its released code: prompt mean, batch std, advantages clipped at
    # 5 and divided by 5, ratios within 0 and 2, so that a KL of weight 1 to a moving average (decay min(.3, .001 n))
    # holds the policy; KL .003 (OCR; .001 GenEval, 1e-4 PickScore), groups of 24, 6 draws of the generalized Huber
    # error. Rows without advantage stay in the batch, where the KL terms see them.
    "awm": for_matching(
        "Flow-matching errors in place of log-probabilities: no trajectories, no SDE.",
        scale="batch_std(ddof=0, eps=1e-4)",
        shape=["clamp(limit=5)", "sign_weights(positive=0.2, negative=0.2)"],
        objective="ppo(low=1.0, high=1.0)",
        terms=["kl_velocity(coef=0.003)", "kl_velocity_old(coef=1.0)"],
        networks=["average(slope=0.001, most=0.3)"],
        sampling={"error": "huber(power=0.25)", "draws_per": "sample"},
        data={"group_size": 24},
    ),
    # arXiv:2509.16117 and its code: beta 1, old policy of type 1, batch std (population, 1e-4 added), KL 1e-4. Its OCR
    # recipe has beta .1 and type 2 (visual/diffusion_nft_ocr), its multi-reward one beta .1 and type 1. Each sample has
    # noise of its own.
    "diffusion_nft": for_matching(
        "Good samples attract the velocity, and bad ones repel that of the old policy; no likelihood.",
        scale="batch_std(ddof=0, eps=1e-4)",
        shape=["clamp(limit=5)"],
        objective="diffusion_nft(beta=1.0, limit=5.0)",
        terms=["kl_velocity(coef=1e-4)"],
        networks=["average(slope=0.001, most=0.5, samples=True)"],
        sampling={"error": "self_normalized", "draws_per": "sample"},
    ),
    # arXiv:2512.24138, its variant on DiffusionNFT: rewards centred and not divided, a reference that is renewed after
    # 15 epochs (here optimizer steps). Its gate (kl_weight: uncertain_part) and diversity (shape: diversity) name the
    # user's rewards, so that they are not here; nor is a threshold of the KL, which depends on the task.
    "gardo": for_matching(
        "DiffusionNFT without the std and with a renewed reference; its gated KL and diversity name rewards.",
        scale="none",
        shape=["clamp(limit=5)"],
        objective="diffusion_nft(beta=1.0, limit=5.0)",
        terms=["kl_velocity(coef=1e-4)"],
        networks=["average(slope=0.001, most=0.5, samples=True)", "renewal(every=15)"],
        sampling={"error": "self_normalized", "draws_per": "sample"},
    ),
    # arXiv:2603.07700, its OCR configuration with sampling.boundaries, draws 2 of 4 steps, reference_guidance 4.5 and
    # least_level .3: learning rates 7.5e-5 (generator), 3e-4 and 3e-4, betas 0 and .999 for the first two. How often
    # the fake score is updated was not found: once.
    "tdm_r1": for_matching(
        "A few-step generator is guided by a teacher, a fake score and a surrogate of the reward.",
        scale="batch_std(ddof=0, eps=1e-4)",
        objective="tdm_r1(guidance=3.5, mix=0.3, last=4)",
        networks=[
            "learner(name='fake', objective='fake_score', terms=['kl_velocity(coef=0.02)'], lr=3e-4, beta1=0.0)",
            "learner(name='surrogate', objective='surrogate_preference(beta=10.0, clip=1e-3)', "
            "terms=['kl_velocity(coef=1e-3)'], aggregation='boundary_weighted', lr=3e-4)",
            "average(name='old', of='surrogate', start=0.001, slope=0.001, most=0.3)",
        ],
        sampling={"boundaries": True, "draws": 2, "least_level": 0.3, "error": "velocity"},
    ),
    # Released code of DGPO, its base preset: beta 100, clip .05, no KL, a fast average that draws after 200 steps. Its
    # presets per task: clip .01 and KL .02 (GenEval, OCR), beta 10 and KL .001 (PickScore). Advantages are divided by
    # the batch's population std + 1e-4, for GenEval by the group's (group_std(ddof=0, eps=1e-4)), and clipped at 5.
    "dgpo": for_matching(
        "DPO of a group's good samples against its bad ones, with shared noise draws.",
        scale="batch_std(ddof=0, eps=1e-4)",
        shape=["clamp(limit=5)"],
        objective="dgpo(beta=100.0, clip=0.05)",
        networks=["average(slope=0.001, most=0.3, samples=True, samples_after=200)"],
    ),
    # arXiv:2603.14128 by the code of Flow-Factory: beta 1, squared loss, an average of decay .25 + .005 n for the error
    # differences and a slower one that draws, KL of 1e-4 to .1 by reward, to a reference that may be guided.
    "crd": for_matching(
        "Differences of errors regressed on centred rewards within the group.",
        scale="batch_std(ddof=0, eps=1e-4)",
        shape=["clamp(limit=5)"],
        objective="crd(beta=1.0, limit=5.0)",
        terms=["kl_velocity_rewarded(low=1e-4, high=0.1)"],
        networks=[
            "average(start=0.25, slope=0.005, most=0.999)",
            "average(name='drawing', after=75, slope=0.0075, most=0.999, samples=True)",
        ],
        sampling={"error": "self_normalized"},
    ),
    # Flow Matching Policy Gradients: clip .05, log-ratio within 3, mean over draws before the exponential. Its tasks
    # are control; the advantages are GRPO's here.
    "fpo": for_matching(
        "One clipped ratio per sample, of its mean flow-matching error.",
        objective="fpo(clip=0.05, bound=3.0)",
        sampling={"error": "velocity", "draws_per": "sample"},
    ),
    # arXiv:2511.16955, for sampling.policy neighbors: the quasi-norm of p = .8. Its clip was not found; PPO's is taken.
    "neighbor_grpo": for_any(
        "GRPO whose advantages are divided by a quasi-norm of the group; made for sampling.policy: neighbors.",
        scale="power_norm(p=0.8)",
        sampling={"policy": "neighbors"},
    ),
    # arXiv:2311.12908, beta 2000, of which the preference takes half. For pairs of own samples Flow-Factory has
    # 100, i.e. beta=50.
    "diffusion_dpo": for_matching(
        "DPO between the best and the worst sample of a group, at every drawn noise level.",
        baseline="none",
        scale="none",
        objective="preference(link='logistic', pairs='best_worst', anchor='reference', reduce='step', beta=1000.0)",
    ),
    # arXiv:2601.02036: tau .05, beta 12 and gamma .5 (OCR); 6 and 1 (GenEval); groups of 6. Offline in the paper.
    "gdro": for_matching(
        "The group's ranking by matching error is fitted to its ranking by reward.",
        baseline="none",
        scale="none",
        objective="gdro(beta=12.0, tau=0.05, gamma=0.5)",
        sampling={"error": "velocity"},
    ),
    # arXiv:2410.05255: beta 2000, an earlier checkpoint (one of every 30 updates) as opponent and anchor. The winner is
    # the best sample of the group in place of an image of the data set.
    "seppo": for_matching(
        "DPO against an earlier checkpoint, from whose samples it learns where that one rates the winner higher.",
        baseline="none",
        scale="none",
        objective="seppo(beta=2000.0)",
        networks=["earlier(every=30, samples=True)"],
        sampling={"error": "velocity"},
    ),
    # DiffusionOPD, arXiv:2605.15055, its division by 2 std^2. One update per rollout. The teachers are the user's:
    # networks: ["frozen(path=..., task=...)", ...].
    "flow_opd": for_gaussian(
        "One teacher per task scores the student's own trajectories; rewards are only logged.",
        baseline="none",
        scale="none",
        objective="distillation_step",
        sampling=FLOW_SDE,
    ),
    # arXiv:2510.22319, the paper's formula: ratio centred per step, loss over dt; clip 2e-6 of its code.
    "grpo_guard": for_gaussian(
        "Flow-GRPO with an unbiased ratio.",
        objective="grpo_guard(clip=2e-6)",
        **FLOW,
        sampling=FLOW_SDE,
    ),
    # arXiv:2606.11025: mask where KL per step exceeds 1e-5 and grows.
    "flow_dppo": for_gaussian(
        "Flow-GRPO with a trust region on the means instead of a clip.",
        objective="flow_dppo(threshold=1e-5)",
        **FLOW,
        sampling=FLOW_SDE,
    ),
    # arXiv:2305.18290: beta 0.1; sums of log-probs over the answer. On samples it is online DPO.
    "dpo": preferred("The best sample of a group is preferred to the worst, relative to the reference.", "beta=0.1"),
    # arXiv:2506.21495: beta 0.1, a right and a wrong sample of a verifiable task; here the mean over all such pairs,
    # whose expectation it is. Several rounds from one set of samples are data.offline, or optim.updates above 1.
    "semi_online_dpo": preferred(
        "DPO of correct against incorrect samples.", "pairs='right_wrong(threshold=0.5)', beta=0.1"
    ),
    # arXiv:2310.12036: tau 0.1, sums as in the paper (TRL and the handbook divide by the length: reduce='mean').
    "ipo": preferred(
        "DPO with a square: a finite gap of log-ratios is the target.", "link='square(tau=0.1)', beta=1.0"
    ),
    # arXiv:2305.10425: the hinge of SLiC at width 1, on log-ratios to the reference as TRL has it; beta 0.1.
    "slic": preferred(
        "DPO with a hinge: pairs that are far apart have no gradient.", "link='hinge(width=1.0)', beta=0.1"
    ),
    # arXiv:2403.00409: a known rate of flipped preferences; 0.1 is ours.
    "robust_dpo": preferred(
        "DPO with a correction for flipped preference labels.", "link='robust(flips=0.1)', beta=0.1"
    ),
    # arXiv:2405.14734: mean log-probs without a reference, beta 2, margin gamma 1 (it searches 2 to 2.5, .3 to 1.6).
    "simpo": preferred(
        "DPO on mean log-probs, without a reference and with a margin.",
        "link='logistic(margin=1.0)', anchor='none', reduce='mean', beta=2.0",
    ),
    # arXiv:2402.00856, reward form: both temperatures 0.5 in the released scripts; the group is the list.
    "exo": preferred(
        "The policy's distribution over the group fitted to that of the rewards, by the reverse KL.",
        "link='listwise(temperature=0.5)', pairs='all', beta=0.5",
    ),
    # arXiv:2404.03715: cross-entropy against the difference of win rates, the policy that sampled as anchor; for a
    # reward that is a win rate (judge_pairs). eta 0.1 is ours: the paper's was not found.
    "dno": preferred(
        "Gaps of log-ratios to the sampling policy fitted to differences of win rates.",
        "link='soft', pairs='every', anchor='old', beta=0.1",
    ),
    # arXiv:2407.00617: eta 7.5e-3, tau a third of it, which are for sums over an answer's tokens.
    "inpo": preferred(
        "IPO against a mixture of the reference and the sampling policy.",
        "link='square(tau=0.0075)', anchor_weight=0.3333333333333333, beta=1.0",
    ),
    # arXiv:2405.16436: beta 0.05, eta 0.005 of its handbook recipe; its likelihood is a mean over the tokens of all
    # preferred answers, here of each answer's mean.
    "rpo": preferred("DPO plus the likelihood of the preferred sample.", "beta=0.05, likelihood=0.005"),
    # arXiv:2412.04628: samples above the group's mean against the others, as sets; beta and alpha not found, both ours.
    "mpo": preferred(
        "All samples above the group's mean preferred to all others, as sets.",
        "link='sets(alpha=1.0)', pairs='above_mean', beta=0.1",
    ),
    # arXiv:2504.04524 and its code: means over tokens, 2.5 on the gaps of pairs with the best level, KL to the policy
    # that sampled 0.001. Its loss for a minibatch without any pair is left out.
    "trpa": preferred(
        "Every better level preferred to every worse one, within a trust region.",
        "pairs='all', reduce='mean', beta=0.1, top=2.5",
        terms=["kl_old(coef=0.001)"],
    ),
    # arXiv:2310.00212: our reading of its first version, on all pairs; clip 0.2 is ours (see the link).
    "p3o": preferred(
        "Pairwise policy gradient, whose reward differences need no baseline.",
        "link='proximal(clip=0.2)', pairs='all', anchor='old', beta=1.0",
    ),
    # arXiv:2406.19185, in the form of the report on Command A: the sum over pairs divided by the group size minus one.
    # beta 0.1 is ours.
    "copg": preferred(
        "Differences of rewards minus KL regressed to zero over all pairs, off policy without ratios.",
        "link='regression', pairs='every', beta=0.1, average='samples'",
    ),
    # arXiv:2405.19320, offline form: alpha beta 0.01 on the preferred answers, with minus sign; constants ours. The
    # online form is bonus=0.01 on samples of the reference, which is xpo.
    "vpo": preferred("DPO that is pessimistic about what it has not seen.", "beta=0.1, bonus=-0.01, bonus_on='chosen'"),
    # arXiv:2405.21046 and TRL: one sample of the policy against one of the reference, the better preferred; beta 0.1,
    # alpha 1e-5, without a mean over the length. Every sample of a group is paired, where the paper draws one.
    "xpo": preferred(
        "DPO against samples of the reference, with an exploration bonus.",
        "pairs='other_origin', beta=0.1, bonus=1e-5",
        added="drawn(count=1, network='reference')",
        select=[],
    ),
    # arXiv:2404.09656, the soft form: after a round 0.6 of the policy enters the reference (renewal(every=512) is the
    # hard form, by optimizer steps); beta 0.1 is DPO's.
    "tr_dpo": preferred(
        "DPO against a reference that follows the policy.",
        "beta=0.1",
        networks=["average(name='reference', start=0.4)"],
    ),
    # arXiv:2506.14574: beta 0.1, alpha 0.5. The guide is a run of the same model that DPO has trained, the user's:
    # algorithm.networks frozen(path=...), whose name is teacher.
    "tgdpo": preferred(
        "DPO whose tokens are weighted by the rewards implied by a DPO-trained network.",
        "guide='teacher', guidance=0.5, beta=0.1",
        "tokens",
    ),
    # arXiv:2311.13231: every denoising step is a pair, ratios to the reference clipped to 1 +- 0.1, beta 0.1.
    "d3po": preferred(
        "DPO at every denoising step.",
        "reduce='step', beta=0.1, clip=0.1",
        "gaussian",
        sampling={"plan": "every_step", "kernel": {"diffusion": "ddim(eta=1.0)"}},
    ),
    # arXiv:2505.12723: REINFORCE++ plus 0.01 of a preference of right samples over wrong ones, with the variance
    # of the right (coefficient 1); beta not found, 0.1 is ours. On given answers: objective preference with this link.
    "gepo": for_any(
        "REINFORCE++ with a preference for correct samples, which are to be equally likely.",
        scale="token_whiten",
        aggregation="per_decision",
        terms=["preference(coef=0.01, link='means(variance=1.0)', pairs='right_wrong(threshold=0.0)')"],
    ),
}
"""Every preset, with the source of its constants in the comment above it."""

PRESETS: dict[str, dict[str, Any]] = {name: preset.blocks for name, preset in CATALOGUE.items()}
TOKENS_ONLY = frozenset(name for name, preset in CATALOGUE.items() if preset.policies == "tokens")
GAUSSIAN_ONLY = frozenset(name for name, preset in CATALOGUE.items() if preset.policies == "gaussian")
