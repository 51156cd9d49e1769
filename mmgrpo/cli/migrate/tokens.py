"""Conversions of TRL's settings, most of which ms-swift shares.

Those that are no arithmetic and no search are rules of the tables.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mmgrpo.cli.migrate.draft import Draft, text_of
from mmgrpo.cli.migrate.rules import counterpart
from mmgrpo.cli.migrate.sources import Source, plain
from mmgrpo.config.names import plural
from mmgrpo.config.ranges import PATH_COMPONENT
from mmgrpo.config.settings import TRACKERS

Conversions = Mapping[str, Callable[[Draft], None]]

MODEL_KEYS = ("model_name_or_path", "model", "worker.actor.model.model_path", "actor_rollout_ref.model.path")


def family_of(source: Source) -> str:
    """Our family for the model that a configuration names: causal_lm where its name has no word of a vision-language
    model; qwen_vl without one."""
    name = next((str(source.values[key]) for key in MODEL_KEYS if source.values.get(key)), "")
    if not name:
        return "qwen_vl"
    return next((family for words, family in FAMILIES if re.search(words, name, re.IGNORECASE)), "causal_lm")


FAMILIES = (
    (r"smolvlm|idefics3", "smolvlm"),
    (r"(qwen[\d._]*-?|[^a-z]|^)vl(?![a-z])|embedded:vlm", "qwen_vl"),
)
"""Words in the name of a model, and our families; "vl" is a word, which "vllm" has not."""


# ---- sizes


def batch(draft: Draft) -> None:
    """Prompts and samples per rollout, and how a rollout is cut into updates.

    A generation is of per_device_train_batch_size x processes x steps_per_generation completions, num_generations for
    each prompt; an optimizer step takes per_device_train_batch_size x processes x gradient_accumulation_steps of them.
    """
    size, group = draft.count("per_device_train_batch_size"), draft.count("num_generations")
    key = "gradient_accumulation_steps"
    accumulated = 1 if draft[key] is None else draft.count(key)
    processes = draft.processes()
    step = size * processes * accumulated
    of = ["per_device_train_batch_size", "gradient_accumulation_steps", "num_generations"]
    generated = step
    if draft["generation_batch_size"] is not None:
        generated, of = draft.count("generation_batch_size"), [*of, "generation_batch_size"]
    elif draft["steps_per_generation"] is not None:
        generated, of = size * processes * draft.count("steps_per_generation"), [*of, "steps_per_generation"]
    rollout = max(generated, step)  # a step over several generations takes all of them with the same weights
    if rollout % group or rollout % step:
        raise ValueError(
            f"{draft.source.name}: per_device_train_batch_size {size} x processes {processes} make {rollout} "
            f"completions per rollout and {step} per step; expected multiples of num_generations {group} and of each "
            "other. Give "
            "the number of their processes with --processes"
        )
    note = f"{rollout} completions of {plural(processes, 'process', 'processes')}"
    draft.set("data.prompts_per_step", rollout // group, *of, note=note)
    draft.set("data.group_size", group, "num_generations")
    draft.set("optim.updates", rollout // step, *of)
    draft.set("optim.epochs", draft.count("num_iterations"), "num_iterations")
    draft.set("optim.micro_batch_size", size, "per_device_train_batch_size", note="memory only")
    if rollout // step > rollout // group:
        draft.warn(
            f"{rollout // step} updates of {rollout // group} prompts: ours cut a rollout between groups, not within "
            "them, so optim.updates is lowered; group_size can be lowered instead"
        )
        draft.set("optim.updates", rollout // group, *of)


def steps(draft: Draft) -> None:
    """Optimizer steps, which both sides count alike."""
    key, epochs = "max_steps", "num_train_epochs"
    if (most := draft[key]) is not None and most > 0:
        draft.set("steps", draft.count(key), key)
        return
    if not draft.rows:
        draft.ask(
            "steps",
            f"the number of steps follows from {epochs} {draft[epochs]} and the number of prompts: give it with --rows",
            epochs, key,
        )  # fmt: skip
        draft.left[epochs] = "needs the number of training prompts: --rows"
        return
    plan = draft.settings
    a_round = plan["optim.updates"].value * plan["optim.epochs"].value
    rounds = draft.number(epochs) * draft.rows / plan["data.prompts_per_step"].value
    draft.set("steps", max(1, round(rounds * a_round)), epochs, key, note=f"{draft.rows} prompts")


def warmup(draft: Draft) -> None:
    """Steps of the warm-up, also where they are a fraction."""
    of = [key for key in ("warmup_steps", "warmup_ratio") if key in draft.table.rows]
    value = draft.number("warmup_steps")
    if "warmup_ratio" in of and not value:
        value = draft.number("warmup_ratio")
    if 0 < value < 1:
        warmup_share(draft, value, *of)
    else:
        draft.set("optim.warmup", round(value), *of)


def warmup_share(draft: Draft, share: float, *of: str) -> None:
    """A warm-up that is a fraction of the steps."""
    if "steps" in draft.settings:
        draft.set("optim.warmup", round(share * draft.settings["steps"].value), *of)
        return
    draft.ask("optim.warmup", f"the warm-up is {share} of the steps, whose number is not known", *of)
    draft.left.update({key: "a fraction of an unknown number of steps" for key in of if draft.is_given(key)})


# ---- model, data, reports


def as_list(value: Any) -> list[str]:
    """One text, several, or none, as a list."""
    return [value] if isinstance(value, str) else [str(item) for item in value or []]


def data(draft: Draft) -> None:
    """Training and evaluation prompts of TRL."""
    name, config = draft["dataset_name"], draft["dataset_config"]
    known = draft.word("eval_strategy", ["no", "steps", "epoch"])
    if not name:
        draft.ask("data.train", "no data set is named (docs/data.md)", "dataset_name")
    else:
        location = where(str(name), f":{config}" if config else "")
        train = location if "@" not in location else location.partition("@")[0] + f"@{draft['dataset_train_split']}"
        draft.set("data.train", train, "dataset_name", "dataset_config", "dataset_train_split")
    if name and known != "no" and str(name).endswith(FILES):
        ask = f"{name} has no splits, so held-out prompts are a file of their own: name it"
        draft.ask("data.heldout", ask, "dataset_test_split", "eval_strategy")
    elif name and known != "no":
        held = where(str(name), f":{config}" if config else "").partition("@")[0] + f"@{draft['dataset_test_split']}"
        draft.set("data.heldout", held, "dataset_test_split", "eval_strategy")
    else:
        draft.set("data.heldout", "", "eval_strategy")
    if known == "steps" and draft["eval_steps"] is not None:
        draft.set("eval.every", draft.count("eval_steps"), "eval_steps", "eval_strategy")
    key = "dataset_prompt_column"
    if draft.is_given(key) and draft[key] in TEXT_KEYS:
        draft.leave(key, "a column that is read here under this name")
    elif draft.is_given(key):
        draft.set("data.columns", f"{text_of(draft[key])}=prompt", key)


TEXT_KEYS = ("text", "prompt", "problem", "messages", "conversations")
"""Columns with the text of a prompt, those of ``mmgrpo.data.columns``; that module imports torch."""


FILES = (".jsonl", ".json", ".tar", ".txt", ".csv", ".parquet")
"""Endings of files of prompts, those of ``mmgrpo.data.prompts.READERS`` and parquet; that module imports torch."""


def where(name: str, config: str = "", split: str = "train") -> str:
    """A data set in our form: a file that is read as it is, else ``hf:<id>[:config]@<split>``."""
    return name if name.endswith(FILES) else f"hf:{name.removeprefix('hf::')}{config}@{split}"


def rewards(draft: Draft) -> None:
    """Rewards that have a counterpart here, with their weights."""
    swift = draft.table.project == "ms-swift"
    names = draft["reward_funcs"] or []
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{draft.source.name}: reward_funcs: got {text_of(names)}, expected a list of names")
    weights = draft["reward_weights"]
    weights = [1.0] * len(names) if weights is None else weights if isinstance(weights, list) else [weights]
    model = "reward_model" if swift else "reward_model_name_or_path"
    if draft[model]:
        draft.leave(model, "a reward model is a reward by name ('mmgrpo rewards'), or a function of your own")
        draft.ask("rewards", f"{model} {text_of(draft[model])}: name its counterpart", model)
    texts = []
    for number, name in enumerate(names):
        weight = weights[number] if number < len(weights) else 1.0
        if not isinstance(weight, int | float) or isinstance(weight, bool):
            raise ValueError(f"{draft.source.name}: reward_weights: got {text_of(weight)}, expected numbers")
        if known := counterpart(draft, name):
            texts.append(with_weight(known, weight))
        elif match := OWN.fullmatch(name):
            texts.append(with_weight(f"{match[1]}:{match[2]}", weight))
        else:
            theirs = draft.table.words.get("open_r1", {}).get(name, "")
            draft.ask(
                "rewards",
                f"{text_of(name, 250)}, weight {weight}: 'mmgrpo rewards' lists ours; one of your own is "
                "module:function (docs/extending.md)"
                + (f"; that of open-r1, where it is installed, is {theirs}" if theirs else ""),
            )
    draft.rewards(texts, "reward_funcs", "reward_weights", left="no reward of it has a counterpart")


def with_weight(reward: str, weight: int | float) -> str:
    """A reward with its weight, which is left out where it is 1."""
    if weight == 1:
        return reward
    name, _, parameters = reward.partition("(")
    return f"{name}(weight={weight:g}{', ' + parameters if parameters else ')'}"


def trackers(draft: Draft) -> None:
    """Experiment trackers: those that are asked for, of which the check of the recipe says how they are installed, or,
    of those that are only the project's default, the installed ones."""
    for key in ("report_to", "trainer.logger"):
        if key not in draft.table.rows:
            continue
        names = as_list(draft[key])
        ours = [name for name in names if name in TRACKERS and (draft.is_given(key) or importlib.util.find_spec(name))]
        for name in names if draft.is_given(key) else ():
            if name not in (*ours, "none", "console", "file"):
                draft.warn(f"{key} {text_of(name)} is unknown: 'trackers' takes {', '.join(TRACKERS)}")
        draft.set("trackers", ours, key)


def tools(draft: Draft) -> None:
    """Tools and environments, which have a name where they are functions or classes of a module."""
    theirs = draft.table.tools
    keys, turns, calls, more = theirs["of"], theirs["turns"], theirs.get("calls", ""), theirs.get("more", 0)
    given = [key for key in keys if draft[key] not in (None, False, "", [])]
    if not given:
        for key in (*keys, turns, *filter(None, [calls])):
            if draft.is_given(key):
                draft.leave(key, "without tools it has no effect")
        return
    names = [name for key in given for name in ([] if draft[key] is True else as_list(draft[key]))]
    usable = [name for name in names if ":" in name and OWN.fullmatch(name)]
    if usable:
        draft.set("sampling.tools", usable, *given, note="; ".join(draft.table.rows[key].note for key in given))
    for unknown in [name for name in names if name not in usable] or ([] if usable else given):
        draft.ask(
            "sampling.tools",
            f"{text_of(unknown, 250)}: name functions, or a class with reset(prompt, seed) and reward(), as "
            "module:function (docs/vlm.md)",
            *given,
        )
    if draft[turns] is not None:
        draft.set("sampling.turns", draft.count(turns) + more, turns)
    elif more:
        draft.warn("sampling.turns: theirs has no limit of the turns that call tools, ours is 4", turns)
    if calls:
        draft.set("sampling.calls_per_turn", draft.count(calls), calls)
    if "environment_factory" in given:
        draft.warn(
            "environment_factory: a reset without **kwargs is given (prompt, seed), no columns; one that returns text "
            "must declare it (-> str); get_reward is the reward tool_reward",
            *given,
        )


OWN = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?::|\.)([A-Za-z_]\w*)")
"""A function or class of a module, by its name."""


def name(draft: Draft) -> None:
    """The name of the run, which is one plain component of a path here."""
    for key in ("run_name", "trainer.experiment_name"):
        if key in draft.table.rows and (given := draft[key]):
            plain = re.sub(r"[/\\\x00-\x1f\x7f]+", "-", str(given)).lstrip("-.")
            draft.set("name", plain if plain in PATH_COMPONENT else "run", key)


def prompt(draft: Draft) -> None:
    """What is said around the question of a row: a system prompt, a template, arguments of the chat template."""
    rows = draft.table.rows
    key = next((name for name in ("system", "system_prompt") if name in rows), "")
    if key and (text := draft[key]):
        content = neighbour(draft, str(text)) if str(text).endswith((".txt", ".md")) else None
        if content is not None:
            draft.set("data.system", content.strip(), key, note=f"the text of {text_of(text)}")
        elif str(text).endswith((".txt", ".md")):
            draft.ask("data.system", f"no such file: {text_of(text)}; write its text", key)
            draft.left[key] = "a file that is not here"
        else:
            draft.set("data.system", str(text), key)
    key = "data.format_prompt"
    if key in rows and (name := draft[key]):
        content = neighbour(draft, str(name))
        template = re.sub(r"\{\{-?\s*content\s*(\|\s*trim\s*)?-?\}\}", "{text}", content or "").strip()
        if template.count("{text}") == 1 and not re.search(r"\{[{%#]", template):
            draft.set("data.template", template, key, note=f"the text of {text_of(name)}")
        else:
            why = "is not here" if content is None else "has more than {{ content }}"
            draft.ask("data.template", f"{text_of(name)} {why}: write its words around {{text}}", key)
            draft.left[key] = "a template that cannot be read"
    given: dict[str, Any] = {}
    of = []
    for name in ("chat_template_kwargs", "data.apply_chat_template_kwargs"):
        value = draft[name] if name in rows else None
        value = plain(value) if isinstance(value, str) else value
        if isinstance(value, dict) and value:
            given, of = {**given, **value}, [*of, name]
        elif value:
            draft.ask("model.template", f"{name} {text_of(value)}: write it as name: value", name)
    inner = [name for name in draft.source.values if name.startswith("data.apply_chat_template_kwargs.")]
    if "enable_thinking" in rows and draft["enable_thinking"] is not None:
        inner.append("enable_thinking")
    for name in inner:
        given[name.rpartition(".")[2]] = draft.source.values[name]
    simple = {key: value for key, value in given.items() if isinstance(value, bool | int | float | str)}
    if simple:
        draft.set("model.template", simple, *of, *inner)
    if other := given.keys() - simple.keys():
        draft.ask("model.template", f"{', '.join(sorted(other))}: expected numbers, texts, true or false")


def neighbour(draft: Draft, name: str) -> str | None:
    """The text of a file that a configuration names, from the working directory or a folder above the file."""
    source = Path(draft.source.name)
    for folder in (Path(), *source.parents):
        file = folder / name
        if file.is_file() and file.stat().st_size < 1 << 16:
            return file.read_text(encoding="utf-8", errors="replace")
    return None


def swift_data(draft: Draft) -> None:
    """Training and evaluation prompts of ms-swift, which names them ID[:subset]#rows."""
    for key, ours in (("dataset", "data.train"), ("val_dataset", "data.heldout")):
        names = as_list(draft[key])
        if any("#" in name for name in names):
            draft.warn(f"{key} takes only some of the rows (#): here all rows of a file are prompts", key)
        places = [where(name.partition("#")[0]) for name in names]
        if places:
            draft.set(ours, places[0], key)
        elif ours == "data.heldout":
            draft.set(ours, "", key, "split_dataset_ratio")
        else:
            draft.ask("data.train", "no data set is named (docs/data.md)", key)
        if places[1:]:
            draft.set("data.extra_train" if ours == "data.train" else "eval.extra", places[1:], key)
    if draft.number("split_dataset_ratio"):
        draft.warn(
            "held-out rows are a file of their own here: split the data, and set data.heldout", "split_dataset_ratio"
        )
        draft.left["split_dataset_ratio"] = "held-out rows are a file of their own"
    if draft["columns"] is not None:
        swift_columns(draft)


def swift_columns(draft: Draft) -> None:
    """``columns`` of ms-swift, an object of their names to its own."""
    value, columns = draft["columns"], draft.table.words["columns"]
    pairs = plain(value) if isinstance(value, str) else value
    if not isinstance(pairs, dict) or not all(isinstance(text, str) for pair in pairs.items() for text in pair):
        draft.ask("data.columns", f"columns {text_of(value)}: write it as theirs=ours,... (docs/data.md)", "columns")
        return
    ours = {theirs: columns.get(name, f"meta.{name}") for theirs, name in pairs.items()}
    draft.set("data.columns", ",".join(f"{theirs}={name}" for theirs, name in ours.items()), "columns")


TRL: Conversions = {
    "data": data,
    "rewards": rewards,
    "name": name,
    "batch": batch,
    "steps": steps,
    "warmup": warmup,
    "trackers": trackers,
    "tools": tools,
    "prompt": prompt,
}
MS_SWIFT: Conversions = {**TRL, "data": swift_data}
