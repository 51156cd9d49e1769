"""Conversions of the settings of verl and of EasyR1, which stands on it. Batches count prompts in both."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mmgrpo.cli.migrate.draft import Draft, text_of
from mmgrpo.cli.migrate.tokens import as_list, name, prompt, tools, trackers, warmup_share, where
from mmgrpo.config.names import plural


def batch(draft: Draft) -> None:
    """Prompts and samples of a rollout, and how it is cut into updates."""
    keys = draft.table.shared
    prompts, cut = draft.count(keys["prompts"]), draft.count(keys["minibatch"])
    if prompts % cut:
        raise ValueError(
            f"{draft.source.name}: {keys['minibatch']}: got {cut}, expected a divisor of {keys['prompts']} {prompts}"
        )
    draft.set("data.prompts_per_step", prompts, keys["prompts"])
    key = f"{keys['rollout']}.n"
    draft.set("data.group_size", max(2, draft.count(key)), key)
    if draft.count(key) < 2:
        draft.ask("data.group_size", "one sample per prompt has nothing to be compared with")
    draft.set("optim.updates", prompts // cut, keys["minibatch"], keys["prompts"])
    key = f"{keys['actor']}.ppo_epochs"
    draft.set("optim.epochs", draft.count(key), key)
    if draft[keys["micro"]] is not None:
        draft.set("optim.micro_batch_size", draft.count(keys["micro"]), keys["micro"], note="memory only")


def steps(draft: Draft) -> None:
    """Steps, evaluations and checkpoints, which are counted in rollouts there and in optimizer steps here."""
    keys = draft.table.shared
    a_round = draft.settings["optim.updates"].value * draft.settings["optim.epochs"].value
    note = f"rollouts x {plural(a_round, 'optimizer step')}"
    if draft[keys["steps"]] is not None:
        draft.set("steps", draft.count(keys["steps"]) * a_round, keys["steps"], note=note)
    elif draft.rows:
        rounds = draft.rows // draft.settings["data.prompts_per_step"].value * draft.count("trainer.total_epochs")
        draft.set("steps", max(1, rounds) * a_round, "trainer.total_epochs", note=f"{draft.rows} prompts; {note}")
    else:
        epochs = draft["trainer.total_epochs"]
        draft.ask(
            "steps",
            f"the number of steps follows from total_epochs {epochs} and the number of prompts: give it with --rows",
        )
        if draft.is_given("trainer.total_epochs"):
            draft.leave("trainer.total_epochs", "needs the number of training prompts: --rows")
    for theirs, ours in ((keys["save"], "save_every"), (keys["test"], "eval.every")):
        if draft.number(theirs) > 0:
            draft.set(ours, draft.count(theirs) * a_round, theirs, note=note)
        elif draft.is_given(theirs):
            draft.leave(theirs, f"-1 is never; {ours} keeps our default")
    if draft[keys["keep"]] is not None and draft.number(keys["keep"]) > 0:
        draft.set("keep", draft.count(keys["keep"]), keys["keep"])
    elif draft.is_given(keys["keep"]):
        draft.leave(keys["keep"], "all are kept there; keep has our default, 2")
    of = (f"{keys['actor']}.optim.lr_warmup_steps", keys["warmup_share"])
    if (draft[of[0]] or 0) > 0:
        draft.set("optim.warmup", draft.count(of[0]) * a_round, *of, note=note)
    elif share := draft.number(of[1]):
        warmup_share(draft, share, *of)
    else:
        draft.set("optim.warmup", 0, *of)


def optimizer(draft: Draft) -> None:
    """The two averages of AdamW."""
    key = f"{draft.table.shared['actor']}.optim.betas"
    betas = draft[key]
    if not isinstance(betas, list | tuple) or len(betas) != 2:
        raise ValueError(f"{draft.source.name}: {key}: got {text_of(betas)}, expected two numbers")
    for setting, value in zip(("optim.beta1", "optim.beta2"), betas, strict=True):
        draft.set(setting, value, key)


def data(draft: Draft) -> None:
    """Training and evaluation prompts, and the names of their columns."""
    for theirs, ours, word in (("data.train_files", "data.train", "train"), ("data.val_files", "data.heldout", "val")):
        places = [place(file) for file in as_list(draft[theirs]) if file]
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
    for key in [f"data.{column}" for column in ours if f"data.{column}" in draft.table.rows]:
        value, names = draft[key], ours[key.removeprefix("data.")]
        if value in names:
            draft.leave(key, "a column that is read here under this name") if draft.is_given(key) else None
        else:
            renamed[key] = f"{value}={names[0]}"
    if renamed:
        draft.set("data.columns", ",".join(renamed.values()), *renamed)


def place(name: str) -> str:
    """``hiyouga/geometry3k@train`` as ``hf:hiyouga/geometry3k@train``; a file as it is."""
    path, _, split = name.partition("@")
    return where(path, split=split or "train")


def rewards(draft: Draft) -> None:
    """The reward function, of which those of EasyR1's examples for mathematics are known."""
    key = draft.table.shared["reward"]
    function = draft[key]
    if draft.table.project == "EasyR1" and str(function).endswith("math.py:compute_score"):
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
    if draft.is_given(key):
        draft.leave(key, "a function of another form: (prompts, outputs) here")


def correction(draft: Draft) -> None:
    """Weights of the engine against the trainer, which matter where an engine samples."""
    kind, cap = (f"algorithm.rollout_correction.rollout_is{end}" for end in ("", "_threshold"))
    if draft[kind] == "token" and isinstance(limits := draft.source.values.get(cap), str):
        draft.ask("algorithm.mismatch", f"{cap} {text_of(limits)} has no counterpart", kind, cap)
    elif draft[kind] == "token":
        add = f"--algorithm.mismatch 'tis(cap={draft.number(cap)})'"
        for key in filter(draft.is_given, (kind, cap)):
            draft.leave(key, f"the trained network samples itself; with another --rollout.engine add {add}")
    elif draft[kind] is not None:
        why = (
            "its weights are of vLLM against the trainer; here they matter with a rollout.engine or sampling.dtype only"
        )
        draft.leave(kind, f"a weight per sequence has no counterpart; {why}")


CONVERSIONS: Mapping[str, Callable[[Draft], None]] = {
    "data": data,
    "rewards": rewards,
    "name": name,
    "batch": batch,
    "steps": steps,
    "optimizer": optimizer,
    "trackers": trackers,
    "tools": tools,
    "prompt": prompt,
    "correction": correction,
}
