"""Conversions of the settings of DanceGRPO, whose models denoise."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from mmgrpo.cli.migrate.draft import Draft
from mmgrpo.cli.migrate.flows import VIDEO, clipped, matching
from mmgrpo.cli.migrate.sources import Source
from mmgrpo.config.names import plural


def family_of_dance_grpo(source: Source) -> str:
    """Our family for the script, else for the model; flux without either."""
    if "train_grpo_sd.py" in source.program:
        raise ValueError(
            f"{source.name}: train_grpo_sd.py has its settings in fastvideo/config_sd/dgx.py, which is not read; "
            "our recipe visual/dance_grpo_sd14 is its counterpart"
        )
    script = re.search(r"train_grpo_(\w+?)(_lora)?\.py", source.program)
    model = str(source.values.get("pretrained_model_name_or_path", ""))
    return matching(script[1] if script else "") or matching(model) or "flux"


def dance_loss(draft: Draft) -> None:
    """Objective and advantages: each reward standardized in its group, with 1e-8."""
    blocks = clipped(draft, ("clip_range",), ("clip_range",))
    if not draft["use_group"]:
        blocks["baseline"] = ("batch_mean", ("use_group",))
        blocks["scale"] = ("batch_std(ddof=1, eps=1e-8)", ("use_group",))
    else:
        blocks["scale"] = ("group_std(ddof=1, eps=1e-8)", ("use_group",))
    if best := best_of(draft):
        blocks["select"] = ([f"best_worst(best={best // 2}, worst={best // 2})"], ("bestofn",))
    draft.algorithm("dance_grpo", blocks)


def best_of(draft: Draft) -> int:
    """Samples of a group that are trained, where these are not all."""
    if draft.family != "hunyuan_video" and not draft.given("bestofn"):
        return 0
    best = draft.count("bestofn", 2)
    return best if best != draft["num_generations"] else 0


def dance_sampling(draft: Draft) -> None:
    """Kernel, plan, grid and guidance."""
    for key in ("sampling_steps", "eta", "h", "w", "t", "num_generations"):
        if draft[key] is None:
            raise ValueError(f"{draft.source.name}: {key}: is missing, and has no default there")
    draft.set("sampling.steps", draft.count("sampling_steps"), "sampling_steps")
    draft.set("sampling.kernel", f"dance(eta={draft.number('eta')})", "eta")
    draft.set("sampling.grid", f"shifted_linspace(shift={float(draft.number('shift'))})", "shift")
    same = "use_same_noise" if draft.given("use_same_noise") else "init_same_noise"
    fraction = draft.fraction("timestep_fraction")
    plan = f"random_subset(fraction={fraction}, shared_noise={draft[same]})"
    draft.set("sampling.plan", plan, "timestep_fraction", same)
    draft.set("model.height", draft.count("h"), "h")
    draft.set("model.width", draft.count("w"), "w")
    if draft.family in VIDEO:
        draft.set("model.frames", draft.count("t"), "t")
        if draft[key := "fps"] is not None:
            draft.set("model.fps", float(draft.number(key)), key)
    else:
        draft.leave("t", "an image has no frames")
    fixed = {"qwen_image": 1.0, "qwen_image_edit": 1.0, "flux": 3.5, "hunyuan_video": 6.018}
    guidance = draft["cfg_infer"]
    if draft.family == "skyreels_i2v":
        draft.set("model.true_cfg_scale", 1.0 if guidance is None else float(guidance), "cfg_infer")
    elif draft.family in fixed:
        draft.set("model.guidance", fixed[draft.family], note="fixed in its script")
    else:
        draft.set("model.guidance", 5.0 if guidance is None else float(guidance), "cfg_infer")


def dance_batch(draft: Draft) -> None:
    """Prompts of an iteration, which is one rollout, and its updates; what is counted in iterations there."""
    size, group = draft.count("train_batch_size"), draft.count("num_generations", 2)
    processes = draft.processes()
    parallel = draft.count("sp_size")
    prompts = max(1, size * processes // parallel)
    trained = size * (best_of(draft) or group)
    updates = max(1, trained // draft.count("gradient_accumulation_steps"))
    note = f"{plural(processes, 'process', 'processes')}, a batch of {plural(size, 'prompt')} each"
    draft.set("data.prompts_per_step", prompts, "train_batch_size", "sp_size", note=note)
    draft.set("data.group_size", group, "num_generations")
    of = ("gradient_accumulation_steps", "num_generations", "train_batch_size")
    if updates > prompts:
        draft.warn(
            f"{updates} updates of {plural(prompts, 'prompt')}: theirs take a part of each group, ours whole groups, "
            "so that optim.updates is lowered"
        )
        updates = prompts
    draft.set("optim.updates", updates, *of, note="theirs take a part of each group, ours whole groups")
    draft.set("optim.micro_batch_size", draft.count("train_sp_batch_size"), "train_sp_batch_size", note="memory only")
    note = f"iterations x {plural(updates, 'optimizer step')}"
    if draft["max_train_steps"] is None:
        draft.ask("steps", "max_train_steps is not given", "max_train_steps")
    else:
        draft.set("steps", draft.count("max_train_steps") * updates, "max_train_steps", note=note)
    draft.set("save_every", draft.count("checkpointing_steps") * updates, "checkpointing_steps", note=note)
    if draft["use_ema"]:
        draft.set("optim.ema", draft.fraction("ema_decay"), "use_ema", "ema_decay")
        draft.set("optim.ema_every", updates, "use_ema", note="once an iteration")


def dance_model(draft: Draft) -> None:
    """LoRA, which one of its scripts always has, and precision."""
    used = draft["use_lora"] or "_lora" in draft.source.program
    draft.set("model.lora_rank", draft.count("lora_rank") if used else 0, "lora_rank", "use_lora")
    if used:
        draft.set("model.lora_alpha", float(draft.number("lora_alpha")), "lora_alpha")


def dance_data(draft: Draft) -> None:
    """Prompts, and the rewards that its switches name."""
    if draft.given("data_json_path"):
        draft.leave("data_json_path", "a list of captions with encoded prompts: see data.train")
    draft.ask(
        "data.train",
        "a .txt file of prompts, one a line (its assets/prompts.txt), is read as it is; videos2caption.json and its "
        "encoded prompts are not, since prompts are encoded at the start",
    )
    video = draft.family in VIDEO
    found = []
    for key, text in (("use_hpsv2", "hpsv2"), ("use_hpsv3", "hpsv3"), ("use_pickscore", "pickscore(scale='cosine')")):
        if draft[key]:
            found.append((f'frames(reward="{text}")' if video else text, key))
    if draft["use_videoalign"]:
        for key, dimension in (("vq_coef", "VQ"), ("mq_coef", "MQ")):
            if weight := draft.number(key, -1e6):
                found.append((f"videoalign(weight={weight:g}, dimension='{dimension}')", key))
    of = ("use_hpsv2", "use_hpsv3", "use_pickscore", "use_videoalign", "vq_coef", "mq_coef")
    draft.rewards([text for text, _ in found], *filter(draft.given, of))


DANCE_GRPO: Mapping[str, Callable[[Draft], None]] = {
    "model": dance_model,
    "data": dance_data,
    "sampling": dance_sampling,
    "batch": dance_batch,
    "loss": dance_loss,
}
