"""What is said of a word that no setting has: the setting that was meant, as the place where it was written spells it.

--optim.group-size 4          --data.group-size          mmgrpo train
optim={"group_size": 4}       group_size=...             mmgrpo.train
lora=8                        lora_rank                  vlm.policy
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stderr
from difflib import SequenceMatcher
from io import StringIO
from itertools import dropwhile, takewhile

LIKELY = 0.7
"""Similarity of two names from which the one is taken for the other misspelt."""

OF_OTHERS = {
    "learning_rate": "optim.lr",
    "num_generations": "data.group_size",
    "max_steps": "steps",
    "reward_funcs": "rewards",
    "dataset": "data.train",
    "dataset_name": "data.train",
    "model": "model.path",
    "model_name_or_path": "model.path",
    "max_completion_length": "sampling.max_tokens",
    "max_new_tokens": "sampling.max_tokens",
    "max_grad_norm": "optim.max_grad_norm",
    "eval_steps": "eval.every",
    "save_steps": "save_every",
    "report_to": "trackers",
    "lora": "model.lora_rank",
    "lora_r": "model.lora_rank",
    # Of our commands, which have the same under two names.
    "eval.prompts": "limit",
    "limit": "eval.prompts",
}
"""Names that TRL, transformers, peft and our other commands have for settings, where ours is not close to them."""

PYTHON = {
    "algorithm.preset": "preset",
    "data.train": "prompts",
    "data.heldout": "heldout",
    "data.prompts_per_step": "prompts_per_step",
    "data.group_size": "group_size",
}
"""Settings within sections to the arguments of ``mmgrpo.train`` that they are."""


def meant(name: str, settings: Collection[str]) -> str:
    """The setting among ``settings`` (``optim.lr``) that an unknown one most likely means; empty where none is likely.

    Another project's name stands for ours, then one whose last part is the same in another section, then a misspelt
    one of the same section, or of any where ``name`` is of none.
    """
    section, _, last = name.rpartition(".")
    for other in (OF_OTHERS.get(name), OF_OTHERS.get(last)):
        if other in settings:
            return str(other)
    parts = {setting: setting.rpartition(".") for setting in settings}
    if same := [setting for setting, (_, _, leaf) in parts.items() if leaf == last]:
        return max(same, key=lambda setting: _similarity(name, setting))
    likeness = {
        setting: _similarity(last, leaf) for setting, (place, _, leaf) in parts.items() if section in ("", place)
    } or {setting: _similarity(name, setting) for setting in settings}
    best = max(likeness, key=lambda setting: (likeness[setting], -setting.count(".")), default="")
    return best if best and likeness[best] >= LIKELY else ""


def _similarity(one: str, other: str) -> float:
    """Between 0 and 1, which is of the same letters in any order."""
    return 1.0 if sorted(one) == sorted(other) else SequenceMatcher(None, one, other).ratio()


def argument(setting: str) -> str:
    """A setting as a program in Python gives it: ``optim={'lr': ...}``, ``resume=True``, ``group_size=...``."""
    section, _, field = setting.rpartition(".")
    if section in ("model", "sampling"):
        return f"{field}=... of the policy"
    if section and setting not in PYTHON:
        return f"{'evaluation' if section == 'eval' else section}={{'{field}': ...}}"
    name = PYTHON.get(setting, setting)
    return f"{name}=True" if name in ("resume", "overwrite") else f"{name}=..."


def in_python(text: str, settings: Collection[str]) -> str:
    """The advice of an error in the words of Python: ``resume=True`` where the command line has ``--resume``. Options
    that are none of the ``settings`` belong to a command, and stay."""

    def respell(option: re.Match[str]) -> str:
        name = option[1].replace("-", "_")
        return argument(name) if name in settings else option[0]

    return re.sub(r"(?<![\w-])--([a-z][a-z0-9-]*(?:\.[a-z0-9-]+)?)", respell, text)


def as_option(setting: str) -> str:
    """A setting as the command line gives it: ``--data.group-size``."""
    return f"--{setting}".replace("_", "-")


def hint(name: str, settings: Collection[str], spelled: Callable[[str], str]) -> str:
    """The sentence that names what an unknown setting means, in the words of ``spelled``; empty where none is."""
    return f" Did you mean '{spelled(setting)}'?" if (setting := meant(name, settings)) else ""


@contextmanager
def usage_errors() -> Iterator[None]:
    """A ``with`` block in which a parser reads a command line: what it prints of a wrong one, in a box or below its
    usage, is a ValueError of one line, as all other errors of a command are."""
    printed = StringIO()
    try:
        with redirect_stderr(printed):
            yield
    except SystemExit as end:
        if not end.code:
            raise
        raise ValueError(f"the command line: {first_words(printed.getvalue())}; --help lists all options") from None


def first_words(printed: str) -> str:
    """What a box of tyro, with sides or without, has below its title, or what argparse prints behind "error:"."""
    if "error: " in printed:
        return printed.rpartition("error: ")[2].strip()
    title, *lines = [line.strip("│╭╮╰╯─ ") for line in printed.splitlines() if line.strip()]
    body = dropwhile(is_rule, lines)
    words = " ".join(" ".join(takewhile(lambda line: not is_rule(line), body)).split()) or title
    return (words[:1].lower() + words[1:]).rstrip(".")


def is_rule(line: str) -> bool:
    """Whether nothing but a rule stands in a line, which lost its sides."""
    return set(line) <= {"-"}
