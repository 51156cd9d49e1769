"""Conversions of the settings of verl and of EasyR1, which stands on it. Batches count prompts in both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mmgrpo.cli.migrate.draft import Draft, text_of
from mmgrpo.cli.migrate.losses import Blocks
from mmgrpo.cli.migrate.tokens import adapters, listed, name, prompt, tools, trackers, warmup_share, where
from mmgrpo.config.names import plural


@dataclass(frozen=True)
class Names:
    """The names of one setting in one of the two projects."""

    actor: str
    rollout: str
    prompts: str
    """Prompts of a rollout."""
    minibatch: str
    """Prompts of an optimizer step."""
    micro: str
    steps: str
    save: str
    test: str
    keep: str
    columns: tuple[str, ...]


EASYR1_NAMES = Names(
    "worker.actor", "worker.rollout", "data.rollout_batch_size", "worker.actor.global_batch_size",
    "worker.actor.micro_batch_size_per_device_for_update", "trainer.max_steps", "trainer.save_freq", "trainer.val_freq",
    "trainer.save_limit", ("prompt_key", "answer_key", "image_key", "video_key"),
)  # fmt: skip
VERL_NAMES = Names(
    "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "data.train_batch_size",
    "actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "trainer.total_training_steps", "trainer.save_freq", "trainer.test_freq", "trainer.max_actor_ckpt_to_keep",
    ("prompt_key", "image_key", "video_key"),
)  # fmt: skip

KL = {"kl": "kl_k1", "k1": "kl_k1", "mse": "kl_k2", "k2": "kl_k2", "low_var_kl": "kl_k3", "k3": "kl_k3"}
"""Estimators of the KL; both projects also limit k3 to 10 and the log-ratio to 20."""


def names(draft: Draft) -> Names:
    return EASYR1_NAMES if draft.table.project == "EasyR1" else VERL_NAMES


def loss(draft: Draft) -> None:
    """The algorithm of either project."""
    easy = draft.table.project == "EasyR1"
    read = (objective_of_easyr1, kl_of_easyr1) if easy else (objective_of_verl, kl_of_verl)
    blocks = {**advantages(draft), **read[0](draft), **read[1](draft)}
    if easy and draft["algorithm.online_filtering"]:
        of = ("algorithm.online_filtering", "trainer.max_try_make_batch")
        rounds = draft.number("trainer.max_try_make_batch", -1)
        blocks["select"] = (["drop_zero_spread"], of)
        blocks["sampler"] = ([f"dynamic_sampling(rounds={int(rounds) if rounds > 0 else 1000})"], of)
        filters = tuple(f"algorithm.filter_{end}" for end in ("key", "low", "high"))
        if draft.given(*filters):
            draft.warn(
                "online filtering drops groups whose mean reward is outside (filter_low, filter_high); ours drops "
                "groups without spread, which for rewards of 0 and 1 is the same",
                *filters,
            )
            draft.left.update({key: "groups are dropped by their spread" for key in filters if draft.given(key)})
    draft.algorithm("grpo", blocks)


def advantages(draft: Draft) -> Blocks:
    """``baseline`` and ``scale`` of an adv_estimator."""
    key, of = "algorithm.adv_estimator", ("algorithm.adv_estimator",)
    estimator = draft[key]
    std = "group_std(ddof=1, eps=1e-6)"
    if draft.table.project == "verl" and not draft["algorithm.norm_adv_by_std_in_grpo"]:
        std, of = "none", (*of, "algorithm.norm_adv_by_std_in_grpo")
    table = {
        "grpo": ("group_mean", std),
        "grpo_vectorized": ("group_mean", std),
        "grpo_passk": ("runner_up", std),
        "rloo": ("leave_one_out", "none"),
        "rloo_vectorized": ("leave_one_out", "none"),
        "remax": ("greedy", "none"),
        "reinforce_plus_plus": ("none", "token_whiten"),
        "reinforce_plus_plus_baseline": ("group_mean", "token_whiten"),
        "opo": ("length_weighted", "none"),
        "gpg": ("group_mean", "valid_fraction"),
    }
    if estimator == "gae":
        raise ValueError(
            f"{draft.source.name}: {key}: got 'gae', which needs a value network; expected a group-relative one: "
            f"{', '.join(table)}"
        )
    if estimator not in table:
        raise ValueError(f"{draft.source.name}: {key}: got {text_of(estimator)}, expected one of {', '.join(table)}")
    if estimator == "grpo_passk":
        draft.warn("grpo_passk subtracts the second best reward, as ours does; verify that ties mean the same to you")
    return {"baseline": (table[estimator][0], of), "scale": (table[estimator][1], of)}


def objective_of_easyr1(draft: Draft) -> Blocks:
    """``objective`` and ``aggregation`` of loss_type and loss_avg_mode."""
    at = "worker.actor."
    kind = draft.word(f"{at}loss_type", ["default", "gspo", "gspo_token", "cispo", "sapo"])
    low, high = draft.number(f"{at}clip_ratio_low"), draft.number(f"{at}clip_ratio_high")
    of = (f"{at}loss_type", f"{at}clip_ratio_low", f"{at}clip_ratio_high")
    text = f"{kind}(low={low}, high={high})"
    if kind == "default":
        of = (*of, f"{at}clip_ratio_dual")
        text = f"dual_clip(low={low}, high={high}, dual={draft.number(of[-1])})"
    elif kind == "cispo":
        text = f"cispo_band(low={low}, high={high})"
    elif kind == "sapo":
        of = (f"{at}loss_type", f"{at}tau_positive", f"{at}tau_negative")
        text = f"sapo(tau_positive={draft.number(of[1])}, tau_negative={draft.number(of[2])})"
    mode = draft.word(f"{at}loss_avg_mode", ["token", "seq"])
    weights = {"token": "per_decision", "seq": "per_sample"}[mode]
    return {"objective": (text, of), "aggregation": (weights, (f"{at}loss_avg_mode",))}


def objective_of_verl(draft: Draft) -> Blocks:
    """``objective``, ``aggregation`` and ``mismatch`` of policy_loss.loss_mode and loss_agg_mode."""
    at = "actor_rollout_ref.actor."
    key, mode_key = f"{at}policy_loss.loss_mode", f"{at}loss_agg_mode"
    kind = draft.word(key, ["vanilla", "gspo", "sapo", "gpg", "geo_mean", "cispo", "clip_cov", "kl_cov", "bypass_mode"])
    both = draft.number(f"{at}clip_ratio")
    ends = [f"{at}clip_ratio_{end}" for end in ("low", "high")]
    low, high = (both if draft[end] is None else draft.number(end) for end in ends)
    of = (key, f"{at}clip_ratio", *ends)
    if kind in ("clip_cov", "kl_cov", "bypass_mode"):
        draft.ask("algorithm.objective", f"loss_mode {kind} has no counterpart", key)
    if kind == "geo_mean" and low != high:
        draft.warn(
            f"gmpo has one range of log-ratios, not {low} below and {high} above; the recipe has the upper", *ends
        )
    table = {
        "gspo": f"gspo_token(low={low}, high={high})",
        "sapo": f"sapo(tau_positive={draft.number(f'{at}tau_pos')}, tau_negative={draft.number(f'{at}tau_neg')})",
        "gpg": "policy_gradient",
        "geo_mean": f"gmpo(clip={high})",
        "cispo": f"cispo_band(low={low}, high={high})",
    }
    text = table.get(kind, f"dual_clip(low={low}, high={high}, dual={draft.number(f'{at}clip_ratio_c')})")
    of = (*of, f"{at}clip_ratio_c") if kind not in table else of
    of = (key, f"{at}tau_pos", f"{at}tau_neg") if kind == "sapo" else (key,) if kind == "gpg" else of
    modes = {"token-mean": "per_decision", "seq-mean-token-sum": "sample_sum", "seq-mean-token-mean": "per_sample"}
    mode = draft.word(mode_key, [*modes, "seq-mean-token-sum-norm"])
    used: tuple[str, ...] = (mode_key,)
    if mode in modes:
        weights = modes[mode] if kind not in ("gspo", "sapo", "geo_mean") else "per_sample"
    else:
        used = (mode_key, f"{at}loss_scale_factor", "data.max_response_length")
        factor = draft[used[1]]
        length = draft.count(used[2]) if factor is None else draft.count(used[1])
        weights = f"constant_horizon(length={length})"
        draft.warn(
            "seq-mean-token-sum-norm is a sum over rows there and a mean here: scale optim.lr, or leave it", mode_key
        )
    blocks: Blocks = {"objective": (text, of), "aggregation": (weights, used)}
    correction = draft["algorithm.rollout_correction.rollout_is"]
    if correction is not None:
        why = (
            "its weights are of vLLM against the trainer; here they matter with a rollout.engine or sampling.dtype only"
        )
        cap = ("algorithm.rollout_correction.rollout_is", "algorithm.rollout_correction.rollout_is_threshold")
        if correction == "token" and isinstance(limits := draft.source.values.get(cap[1]), str):
            draft.ask("algorithm.mismatch", f"{cap[1]} {text_of(limits)} has no counterpart", *cap)
        elif correction == "token":
            text = f"--algorithm.mismatch 'tis(cap={draft.number(cap[1])})'"
            for key in cap if cap[1] in draft.source.values else cap[:1]:
                draft.leave(key, f"the trained network samples itself; with another --rollout.engine add {text}")
        else:
            draft.leave(cap[0], f"a weight per sequence has no counterpart; {why}")
    return blocks


def kl_of_easyr1(draft: Draft) -> Blocks:
    """``terms``: the KL to the reference."""
    keys = tuple(f"algorithm.{word}" for word in ("disable_kl", "use_kl_loss", "kl_penalty", "kl_coef"))
    disabled, in_loss, kind, coef = (draft[key] for key in keys)
    if disabled or not (coef := draft.number("algorithm.kl_coef")):
        return {"terms": ([], ("algorithm.disable_kl", "algorithm.kl_coef"))}
    if not in_loss:
        draft.warn("the KL is part of the reward there (use_kl_loss false); here it is a term of the loss", keys[1])
    return {"terms": ([estimator(draft, str(kind), keys[2], coef)], keys)}


def kl_of_verl(draft: Draft) -> Blocks:
    """``terms``: the KL to the reference, and an entropy bonus."""
    at = "actor_rollout_ref.actor."
    keys = (f"{at}use_kl_loss", f"{at}kl_loss_coef", f"{at}kl_loss_type")
    terms, of = [], keys[:1]
    if draft["algorithm.use_kl_in_reward"]:
        draft.ask(
            "algorithm.terms", "the KL is part of the reward there (use_kl_in_reward); ours is a term of the loss"
        )
        draft.leave("algorithm.use_kl_in_reward", "the KL is a term of the loss here")
    if draft[keys[0]] and (coef := draft.number(keys[1])):
        terms.append(estimator(draft, str(draft[keys[2]]), keys[2], coef))
        of = keys
    if bonus := draft.number(f"{at}entropy_coeff"):
        terms.append(f"entropy_bonus(coef={bonus})")
        of = (*of, f"{at}entropy_coeff")
    return {"terms": (terms, of)}


def estimator(draft: Draft, kind: str, key: str, coef: int | float) -> str:
    """A KL estimator of ours."""
    if kind.rstrip("+") not in KL:
        draft.ask("algorithm.terms", f"{key} {text_of(kind)} has no counterpart, coefficient {coef}", key)
    elif kind.endswith("+"):
        draft.warn(f"{key} {kind} has the gradient of k2: kl_k2 is its counterpart", key)
        return f"kl_k2(coef={coef})"
    return f"{KL.get(kind.rstrip('+'), 'kl_k3')}(coef={coef})"


def batch(draft: Draft) -> None:
    """Prompts and samples of a rollout, and how it is cut into updates."""
    keys = names(draft)
    prompts, cut = draft.count(keys.prompts), draft.count(keys.minibatch)
    if prompts % cut:
        raise ValueError(
            f"{draft.source.name}: {keys.minibatch}: got {cut}, expected a divisor of {keys.prompts} {prompts}"
        )
    draft.set("data.prompts_per_step", prompts, keys.prompts)
    draft.set("data.group_size", max(2, draft.count(f"{keys.rollout}.n")), f"{keys.rollout}.n")
    if draft.count(f"{keys.rollout}.n") < 2:
        draft.ask("data.group_size", "one sample per prompt has nothing to be compared with")
    draft.set("optim.updates", prompts // cut, keys.minibatch, keys.prompts)
    draft.set("optim.epochs", draft.count(f"{keys.actor}.ppo_epochs"), f"{keys.actor}.ppo_epochs")
    if draft[keys.micro] is not None:
        draft.set("optim.micro_batch_size", draft.count(keys.micro), keys.micro, note="memory only")


def steps(draft: Draft) -> None:
    """Steps, evaluations and checkpoints, which are counted in rollouts there and in optimizer steps here."""
    keys = names(draft)
    a_round = draft.settings["optim.updates"].value * draft.settings["optim.epochs"].value
    note = f"rollouts x {plural(a_round, 'optimizer step')}"
    if draft[keys.steps] is not None:
        draft.set("steps", draft.count(keys.steps) * a_round, keys.steps, note=note)
    elif draft.rows:
        rounds = draft.rows // draft.settings["data.prompts_per_step"].value * draft.count("trainer.total_epochs")
        draft.set("steps", max(1, rounds) * a_round, "trainer.total_epochs", note=f"{draft.rows} prompts; {note}")
    else:
        epochs = draft["trainer.total_epochs"]
        draft.ask(
            "steps",
            f"the number of steps follows from total_epochs {epochs} and the number of prompts: give it with --rows",
        )
        if draft.given("trainer.total_epochs"):
            draft.leave("trainer.total_epochs", "needs the number of training prompts: --rows")
    for theirs, ours in ((keys.save, "save_every"), (keys.test, "eval.every")):
        if draft.number(theirs, -1) > 0:
            draft.set(ours, draft.count(theirs) * a_round, theirs, note=note)
        elif draft.given(theirs):
            draft.leave(theirs, f"-1 is never; {ours} keeps our default")
    limit = draft[keys.keep]
    if limit is not None and draft.number(keys.keep, -1) > 0:
        draft.set("keep", draft.count(keys.keep), keys.keep)
    elif draft.given(keys.keep):
        draft.leave(keys.keep, "all are kept there; keep has our default, 2")
    optim = f"{keys.actor}.optim."
    ratio = f"{optim}lr_warmup_{'ratio' if draft.table.project == 'EasyR1' else 'steps_ratio'}"
    warm = draft[f"{optim}lr_warmup_steps"]
    of = (f"{optim}lr_warmup_steps", ratio)
    if warm is not None and warm > 0:
        draft.set("optim.warmup", draft.count(of[0]) * a_round, *of, note=note)
    elif share := draft.fraction(ratio):
        warmup_share(draft, share, *of)
    else:
        draft.set("optim.warmup", 0, *of)


def optimizer(draft: Draft) -> None:
    """The two averages of AdamW."""
    key = f"{names(draft).actor}.optim.betas"
    betas = draft[key]
    if not isinstance(betas, list | tuple) or len(betas) != 2:
        raise ValueError(f"{draft.source.name}: {key}: got {text_of(betas)}, expected two numbers")
    for one, value in zip(("optim.beta1", "optim.beta2"), betas, strict=True):
        draft.set(one, value, key)


def data(draft: Draft) -> None:
    """Training and evaluation prompts, and the names of their columns."""
    for theirs, ours, word in (("data.train_files", "data.train", "train"), ("data.val_files", "data.heldout", "val")):
        places = [place(file) for file in listed(draft[theirs]) if file]
        if not places and word == "train":
            draft.ask("data.train", "no data set is named (docs/data.md)", theirs)
            continue
        draft.set(ours, places[0] if places else "", theirs)
        if places[1:]:
            draft.set("data.extra_train" if word == "train" else "eval.extra", places[1:], theirs)
    ours = {
        "prompt_key": ("prompt", "problem", "text", "messages"),
        "answer_key": ("answer", "solution"),
        "image_key": ("images", "image"),
        "video_key": ("videos", "video"),
    }
    renamed: dict[str, str] = {}
    for column in names(draft).columns:
        key, value = f"data.{column}", draft[f"data.{column}"]
        if value in ours[column]:
            draft.leave(key, "a column that is read here under this name") if draft.given(key) else None
        else:
            renamed[key] = f"{value}={ours[column][0]}"
    if renamed:
        draft.set("data.columns", ",".join(renamed.values()), *renamed)


def place(name: str) -> str:
    """``hiyouga/geometry3k@train`` as ``hf:hiyouga/geometry3k@train``; a file as it is."""
    path, _, split = name.partition("@")
    return where(path, split=split or "train")


def rewards(draft: Draft) -> None:
    """The reward function, of which those of EasyR1's examples for mathematics are known."""
    easy = draft.table.project == "EasyR1"
    key = "worker.reward.reward_function" if easy else "custom_reward_function.path"
    function = draft[key]
    if easy and str(function).endswith("math.py:compute_score"):
        kwargs = draft["worker.reward.reward_function_kwargs"]
        share = kwargs.get("format_weight", 0.1) if isinstance(kwargs, dict) else 0.1
        text = [f"math(weight={1 - share:g}, tags=False)", f"format(weight={share:g}, style='boxed')"]
        draft.set("rewards", text, key)
        return
    draft.ask(
        "rewards",
        f"{text_of(function) if function else 'no function is named'}: 'mmgrpo rewards' lists ours; one of your own is "
        "module:function of (prompts, outputs) (docs/extending.md)",
        key,
    )
    if draft.given(key):
        draft.leave(key, "a function of another form: (prompts, outputs) here")


def lora(draft: Draft) -> None:
    """LoRA, or all weights."""
    at = "worker.actor.model.lora." if draft.table.project == "EasyR1" else "actor_rollout_ref.model.lora_"
    targets = f"{at}target_modules" if draft.table.project == "EasyR1" else "actor_rollout_ref.model.target_modules"
    rank = draft.count(f"{at}rank", 0)
    draft.set("model.lora_rank", rank, f"{at}rank")
    if rank:
        draft.set("model.lora_alpha", float(draft.number(f"{at}alpha")), f"{at}alpha")
        chosen = draft[targets]
        chosen = chosen.split(",") if isinstance(chosen, str) else list(chosen or [])
        excluded = (
            f"{at}exclude_modules" if draft.table.project == "EasyR1" else "actor_rollout_ref.model.exclude_modules"
        )
        if draft.source.values.get(excluded):
            draft.ask("model.lora_targets", f"{excluded} {text_of(draft[excluded])}: name the layers that are adapted")
        adapters(draft, [str(one).strip() for one in chosen], targets)


CONVERSIONS: Mapping[str, Callable[[Draft], None]] = {
    "data": data,
    "rewards": rewards,
    "name": name,
    "lora": lora,
    "batch": batch,
    "steps": steps,
    "optimizer": optimizer,
    "trackers": trackers,
    "tools": tools,
    "loss": loss,
    "prompt": prompt,
}
