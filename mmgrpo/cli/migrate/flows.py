"""Conversions of the settings of Flow-GRPO and DanceGRPO, whose models denoise."""

from __future__ import annotations

import re

from mmgrpo.cli.migrate.draft import Draft, text_of
from mmgrpo.cli.migrate.rules import convert
from mmgrpo.cli.migrate.sources import Source
from mmgrpo.cli.migrate.tokens import Conversions, name, with_weight
from mmgrpo.config.names import plural

FAMILIES = (
    (r"kontext", "flux_kontext"),
    (r"flux", "flux"),
    (r"wan.*i2v", "wan_i2v"),
    (r"wan", "wan"),
    (r"qwen.?image.*edit", "qwen_image_edit"),
    (r"qwen.?image", "qwen_image"),
    (r"sana.?video", "sana_video"),
    (r"sana", "sana"),
    (r"hunyuan.?video.?1\W?5", "hunyuan_video15"),
    (r"hunyuan", "hunyuan_video"),
    (r"skyreels", "skyreels_i2v"),
    (r"stable-diffusion-3|sd3|embedded:visual", "sd3"),
    (r"stable-diffusion-xl|sdxl", "sdxl"),
    (r"stable-diffusion", "stable_diffusion"),
)
"""Words in the name of a model or a script, and our families."""

VIDEO = ("wan", "wan_i2v", "hunyuan_video", "skyreels_i2v", "ltx_video", "ltx_i2v", "sana_video", "hunyuan_video15")


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


def flow_plan(draft: Draft) -> None:
    """Which steps draw noise: all, or a window, which is drawn among those of its range."""
    steps, shared = draft.count("sample.num_steps"), draft["sample.same_latent"]
    size = draft.count("sample.train_num_steps", 0)
    if draft.is_given("sample.sde_window_size"):
        size = draft.count("sample.sde_window_size", 0)
    of = ("sample.sde_window_size", "sample.sde_window_range", "sample.same_latent")
    if size:
        ends = draft[of[1]]
        if not isinstance(ends, list | tuple) or len(ends) != 2 or not all(type(end) is int for end in ends):
            raise ValueError(f"{draft.source.name}: {of[1]}: got {text_of(ends)}, expected two whole numbers")
        last = max(0, ends[1] - size)
        before = last / steps if int(last / steps * steps) == last else (last + 0.5) / steps
        plan = f"random_window(size={size}, before={before:g}, shared_noise={shared})"
        note = "uniform over the first step of the window"
        draft.set("sampling.plan", plan, "sample.train_num_steps", *of, note=note)
        if ends[0]:
            draft.warn(f"the window begins at step {ends[0]} there at the earliest, at step 0 here", of[1])
    else:
        draft.set("sampling.plan", f"every_step(shared_noise={shared})", "sample.same_latent")
        key = "train.timestep_fraction"
        trained = int(steps * draft.number(key))
        if trained >= steps:
            draft.warn("timestep_fraction 1 trains the last step too, which is always deterministic here", key)
        elif trained < steps - 1:
            draft.warn(
                f"timestep_fraction {draft.number(key)} trains the first {trained} steps; here all but the last are "
                "trained, or a random part of them (random_subset)", key,
            )  # fmt: skip
    if draft.is_given("train.timestep_fraction"):
        draft.leave("train.timestep_fraction", "all stochastic steps are trained, and the last is never one")


def flow_batch(draft: Draft) -> None:
    """Prompts of an epoch, which is one rollout, and its updates; what is counted in epochs there."""
    sizes = ["sample.train_batch_size", "sample.num_image_per_prompt", "sample.num_batches_per_epoch"]
    if draft.is_given("sample.mini_num_image_per_prompt"):
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
    if not draft.is_given("num_epochs"):
        draft.ask("steps", "it trains until it is stopped (num_epochs 100000)")


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
    rewards = []
    for reward, weight in functions.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ValueError(
                f"{draft.source.name}: reward_fn: got weight {text_of(weight)} of {text_of(reward)}, expected a number"
            )
        if reward not in draft.table.rewards:
            draft.ask(
                "rewards",
                f"{text_of(reward)} (weight {weight:g}) has no counterpart, or needs parameters: 'mmgrpo rewards' "
                "lists ours",
            )
            continue
        text = draft.table.rewards[reward]
        if draft.family in VIDEO and reward != "video_ocr":
            text = f'frames(reward="{text.replace(chr(34), chr(39))}")'
        rewards.append(with_weight(text, weight))
    draft.rewards(rewards, "reward_fn", left="no reward of it has a counterpart without parameters")


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
    """Objective and advantages, and the samples that are trained."""
    best = best_of(draft) // 2
    convert(draft, "loss", {"select": ([f"best_worst(best={best}, worst={best})"], ("bestofn",))} if best else {})


def best_of(draft: Draft) -> int:
    """Samples of a group that are trained, where these are not all."""
    if draft.family != "hunyuan_video" and not draft.is_given("bestofn"):
        return 0
    best = draft.count("bestofn")
    return best if best != draft["num_generations"] else 0


def dance_batch(draft: Draft) -> None:
    """Prompts of an iteration, which is one rollout, and its updates; what is counted in iterations there."""
    size, group = draft.count("train_batch_size"), draft.count("num_generations")
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
        draft.set("optim.ema", draft.number("ema_decay"), "use_ema", "ema_decay")
        draft.set("optim.ema_every", updates, "use_ema", note="once an iteration")


def dance_data(draft: Draft) -> None:
    """Prompts, and the rewards that its switches name."""
    if draft.is_given("data_json_path"):
        draft.leave("data_json_path", "a list of captions with encoded prompts: see data.train")
    draft.ask(
        "data.train",
        "a .txt file of prompts, one a line (its assets/prompts.txt), is read as it is; videos2caption.json and its "
        "encoded prompts are not, since prompts are encoded at the start",
    )
    video = draft.family in VIDEO
    rewards = []
    for key, text in draft.table.rewards.items():
        if draft[key]:
            rewards.append((f'frames(reward="{text}")' if video else text, key))
    if draft["use_videoalign"]:
        for key, dimension in (("vq_coef", "VQ"), ("mq_coef", "MQ")):
            if weight := draft.number(key):
                rewards.append((f"videoalign(weight={weight:g}, dimension='{dimension}')", key))
    of = (*draft.table.rewards, "use_videoalign", "vq_coef", "mq_coef")
    draft.rewards([text for text, _ in rewards], *filter(draft.is_given, of))


FLOW_GRPO: Conversions = {"data": flow_data, "plan": flow_plan, "batch": flow_batch, "name": name}
DANCE_GRPO: Conversions = {"data": dance_data, "batch": dance_batch, "loss": dance_loss}
