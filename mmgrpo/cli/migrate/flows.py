"""Conversions of the settings of Flow-GRPO, whose models denoise."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from mmgrpo.cli.migrate.draft import Draft, text_of
from mmgrpo.cli.migrate.losses import Blocks
from mmgrpo.cli.migrate.sources import Source
from mmgrpo.cli.migrate.tokens import name, weighted
from mmgrpo.config.names import plural

FAMILIES = (
    (r"kontext", "flux_kontext"),
    (r"flux", "flux"),
    (r"wan.*i2v", "wan_i2v"),
    (r"wan", "wan"),
    (r"qwen.?image.*edit", "qwen_image_edit"),
    (r"qwen.?image", "qwen_image"),
    (r"sana", "sana"),
    (r"hunyuan", "hunyuan_video"),
    (r"skyreels", "skyreels_i2v"),
    (r"stable-diffusion-3|sd3|embedded:visual", "sd3"),
    (r"stable-diffusion-xl|sdxl", "sdxl"),
    (r"stable-diffusion", "stable_diffusion"),
)
"""Words in the name of a model or a script, and our families."""

WAN = ("wan", "wan_i2v")
"""Families whose noise Flow-GRPO draws at a level of its own (wan_pipeline_with_logprob.py)."""

VIDEO = ("wan", "wan_i2v", "hunyuan_video", "skyreels_i2v", "ltx_video", "ltx_i2v")


def matching(text: str) -> str:
    """The family whose words a name contains; empty if none."""
    return next((family for words, family in FAMILIES if re.search(words, text, re.IGNORECASE)), "")


def family_of_flow_grpo(source: Source) -> str:
    """Our family for ``config.pretrained.model``; sd3 without one."""
    model = str(source.values.get("pretrained.model", ""))
    family = matching(model) or ("" if model else "sd3")
    if not family:
        raise ValueError(f"{source.name}: pretrained.model: got {text_of(model)}; name our family of it with --family")
    return family


def clipped(draft: Draft, low: tuple[str, ...], high: tuple[str, ...]) -> Blocks:
    """The clipped ratio, and the limit of advantages."""
    first, second = draft.number(low[0]), draft.number(high[0])
    limit = "train.adv_clip_max" if low[0].startswith("train.") else "adv_clip_max"
    return {
        "objective": (f"ppo(low={first}, high={second})", tuple(dict.fromkeys((*low, *high)))),
        "shape": ([f"clamp(limit={draft.number(limit)})"], (limit,)),
    }


def flow_loss(draft: Draft) -> None:
    """Objective, advantages and KL of its training scripts."""
    low, high = (f"train.clip_range_{end}" for end in ("lt", "gt"))
    both = ("train.clip_range",)
    blocks = clipped(draft, (low,) if draft.given(low) else both, (high,) if draft.given(high) else both)
    of = ("sample.global_std", "per_prompt_stat_tracking")
    blocks["scale"] = (f"{'batch_std' if draft[of[0]] else 'group_std'}(ddof=0, eps=1e-4)", of)
    if not draft[of[1]]:
        blocks["baseline"] = ("batch_mean", of[1:])
        blocks["scale"] = ("batch_std(ddof=0, eps=1e-4)", of[1:])
    beta = draft.number("train.beta")
    blocks["terms"] = ([f"kl_gaussian_dt_free(coef={beta})"] if beta else [], ("train.beta",))
    if draft.number("sample.kl_reward"):
        draft.leave("sample.kl_reward", "the KL is a term of the loss here: algorithm.terms")
        draft.ask(
            "algorithm.terms", "sample.kl_reward puts the KL into the reward; ours is a term of the loss (train.beta)"
        )
    draft.algorithm("flow_grpo", blocks)


def flow_sampling(draft: Draft) -> None:
    """Kernel and plan: which steps draw noise."""
    steps = draft.count("sample.num_steps")
    draft.set("sampling.steps", steps, "sample.num_steps")
    level, kind = draft.number("sample.noise_level"), draft.word("sample.sde_type", ["sde", "cps"])
    of = ("sample.noise_level", "sample.sde_type")
    if draft.family in WAN:
        draft.set("sampling.kernel", "flow_sde_wan", *of, note="of train_wan2_1.py")
        for key in filter(draft.given, of):
            draft.leave(key, "train_wan2_1.py does not read it; the paper's level is sampling.kernel flow_sde(a=...)")
    else:
        draft.set("sampling.kernel", f"cps(a={level})" if kind == "cps" else f"flow_sde(a={level})", *of)
    shared = draft["sample.same_latent"]
    size = draft.count("sample.train_num_steps", 0)
    if draft.given("sample.sde_window_size"):
        size = draft.count("sample.sde_window_size", 0)
    of = ("sample.sde_window_size", "sample.sde_window_range", "sample.same_latent")
    if size:
        ends = draft["sample.sde_window_range"]
        if not isinstance(ends, list | tuple) or len(ends) != 2 or not all(type(end) is int for end in ends):
            raise ValueError(f"{draft.source.name}: {of[1]}: got {text_of(ends)}, expected two whole numbers")
        last = max(0, ends[1] - size)
        before = last / steps if int(last / steps * steps) == last else (last + 0.5) / steps
        plan = f"random_window(size={size}, before={before:g}, shared_noise={shared})"
        draft.set(
            "sampling.plan", plan, "sample.train_num_steps", *of, note="uniform over the first step of the window"
        )
        if ends[0]:
            draft.warn(f"the window begins at step {ends[0]} there at the earliest, at step 0 here", of[1])
    else:
        draft.set("sampling.plan", f"every_step(shared_noise={shared})", "sample.same_latent")
        fraction = draft.fraction("train.timestep_fraction")
        if int(steps * fraction) >= steps:
            draft.warn(
                "timestep_fraction 1 trains the last step too, which is always deterministic here",
                "train.timestep_fraction",
            )
        elif int(steps * fraction) < steps - 1:
            draft.warn(
                f"timestep_fraction {fraction} trains the first {int(steps * fraction)} steps; here all but the last "
                "are trained, or a random part of them (random_subset)", "train.timestep_fraction",
            )  # fmt: skip
    if draft.given("train.timestep_fraction"):
        draft.leave("train.timestep_fraction", "all stochastic steps are trained, and the last is never one")
    draft.set("sampling.evaluation_steps", draft.count("sample.eval_num_steps"), "sample.eval_num_steps")
    guidance = draft.number("sample.guidance_scale")
    evaluation, embedded = draft.number("sample.eval_guidance_scale"), draft.family in ("flux", "flux_kontext")
    policy = float(guidance) if draft["train.cfg"] or embedded else 1.0
    draft.set("model.guidance", policy, "sample.guidance_scale", "train.cfg")
    if policy != guidance:  # trained without guidance, sampled with it
        draft.set("sampling.rollout_guidance", float(guidance), "sample.guidance_scale", "train.cfg")
    if draft.given("sample.eval_guidance_scale") and embedded and evaluation != guidance:
        draft.warn(
            "guidance of evaluation differs there; here the guidance that is an input is the same",
            "sample.eval_guidance_scale",
        )
    elif evaluation != policy and not embedded and (policy != guidance or draft.given("sample.eval_guidance_scale")):
        draft.set("sampling.evaluation_guidance", float(evaluation), "sample.eval_guidance_scale")
    if draft.given("train.cfg"):
        draft.leave("train.cfg", "true: model.guidance; false: model.guidance 1 and sampling.rollout_guidance")
    if draft.given("sample.eval_guidance_scale") and evaluation == guidance == policy:
        draft.leave("sample.eval_guidance_scale", "evaluation has the guidance of the policy, model.guidance")


def flow_batch(draft: Draft) -> None:
    """Prompts of an epoch, which is one rollout, and its updates; what is counted in epochs there."""
    sizes = ["sample.train_batch_size", "sample.num_image_per_prompt", "sample.num_batches_per_epoch"]
    if draft.given("sample.mini_num_image_per_prompt"):
        sizes[0] = "sample.mini_num_image_per_prompt"
    rest = ["train.batch_size", "train.gradient_accumulation_steps"]
    unread = [key for key in (*sizes, *rest) if key in draft.source.unread]
    if unread:
        raise ValueError(
            f"{draft.source.name}: {unread[0]}: got {text_of(draft.source.unread[unread[0]])}, expected a number; "
            f"give it behind --, e.g. --config.{unread[0]}=4"
        )
    size, group, batches = (draft.count(key) for key in sizes)
    processes = draft.processes()
    samples = size * processes * batches
    if samples % group:
        raise ValueError(
            f"{draft.source.name}: {' x '.join(sizes[::2])} x processes make {size} x {batches} x {processes} = "
            f"{samples} samples per epoch, expected a multiple of {sizes[1]} {group}; "
            "give the number of GPUs with --processes"
        )
    updates = max(1, size * batches // (draft.count(rest[0]) * draft.count(rest[1])))
    draft.set(
        "data.prompts_per_step",
        samples // group,
        *sizes,
        note=f"{samples} samples of {plural(processes, 'process', 'processes')}",
    )
    draft.set("data.group_size", group, sizes[1])
    draft.set("optim.updates", min(updates, samples // group), *rest, sizes[2])
    draft.set("optim.epochs", draft.count("train.num_inner_epochs"), "train.num_inner_epochs")
    draft.set("optim.micro_batch_size", draft.count(rest[0]), rest[0], note="memory only")
    a_round = min(updates, samples // group) * draft.count("train.num_inner_epochs")
    note = f"epochs x {plural(a_round, 'optimizer step')}"
    for theirs, ours in (("save_freq", "save_every"), ("eval_freq", "eval.every"), ("num_epochs", "steps")):
        if draft[theirs] is not None:
            draft.set(ours, draft.count(theirs) * a_round, theirs, note=note)
    if not draft.given("num_epochs"):
        draft.ask("steps", "it trains until it is stopped (num_epochs 100000)")


def flow_model(draft: Draft) -> None:
    """Size, LoRA, precision and average of weights."""
    if draft.given("height", "width", "frames"):
        for key in ("height", "width", "frames"):
            if draft[key] is not None:
                draft.set(f"model.{key}", draft.count(key), key)
    else:
        draft.set("model.height", draft.count("resolution"), "resolution")
        draft.set("model.width", draft.count("resolution"), "resolution")
    used = draft["use_lora"]
    draft.set("model.lora_rank", 32 if used else 0, "use_lora", note="of train_sd3.py" if used else "")
    if used:
        draft.set("model.lora_alpha", 64.0, "use_lora", note="of train_sd3.py")
    if used and draft.family != "sd3":
        draft.warn(
            "rank and alpha of LoRA stand in its training script: 32 and 64 in train_sd3.py; look for those of yours"
        )
    draft.set("optim.ema", 0.9 if draft["train.ema"] else 0.0, "train.ema", note="0.9 every 8 steps in its scripts")
    if draft["train.ema"]:
        draft.set("optim.ema_every", 8, "train.ema")


def flow_data(draft: Draft) -> None:
    """Prompt files and rewards."""
    folder, kind = draft["dataset"], draft["prompt_fn"]
    suffix = "_metadata.jsonl" if kind == "geneval" else ".txt"
    if folder:
        for split, ours in (("train", "data.train"), ("test", "data.heldout")):
            draft.set(ours, f"{str(folder).rstrip('/')}/{split}{suffix}", "dataset", "prompt_fn")
    else:
        draft.ask("data.train", "no data set is named; name data.heldout too", "dataset")
    if kind == "geneval":
        draft.warn("metadata of GenEval: its rows have `prompt`; `tag`, `include` and other keys are read as `meta`")
    if kind not in ("general_ocr", "geneval"):
        draft.ask("data.train", f"prompt_fn {text_of(kind)} is code there: write its prompts into a file", "prompt_fn")
        draft.leave("prompt_fn", "prompts stand in a file")
    functions = draft["reward_fn"]
    if not isinstance(functions, dict):
        functions = {str(functions): 1.0} if functions else {}
    found = []
    for reward, weight in functions.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ValueError(
                f"{draft.source.name}: reward_fn: got weight {text_of(weight)} of {text_of(reward)}, expected a number"
            )
        if reward not in FLOW_REWARDS:
            draft.ask(
                "rewards",
                f"{text_of(reward)} (weight {weight:g}) has no counterpart, or needs parameters: 'mmgrpo rewards' "
                "lists ours",
            )
            continue
        text = FLOW_REWARDS[reward]
        if draft.family in VIDEO and reward != "video_ocr":
            text = f'frames(reward="{text.replace(chr(34), chr(39))}")'
        found.append(weighted(text, weight))
    draft.rewards(found, "reward_fn", left="no reward of it has a counterpart without parameters")


FLOW_REWARDS = {
    "ocr": "ocr",
    "video_ocr": 'frames(reward="ocr")',
    "pickscore": "pickscore(scale='over26')",
    "clipscore": "clip_score(scale='cosine')",
    "imagereward": "image_reward",
    "jpeg_compressibility": "jpeg_compressibility",
    "jpeg_incompressibility": "jpeg_incompressibility",
}
"""Rewards of its rewards.py that need no further parameter here."""

FLOW_GRPO: Mapping[str, Callable[[Draft], None]] = {
    "model": flow_model,
    "data": flow_data,
    "sampling": flow_sampling,
    "batch": flow_batch,
    "loss": flow_loss,
    "name": name,
}
