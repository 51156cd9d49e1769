"""Which of our settings follow from several of theirs: the ``rules`` of a table, read from above.

A rule does one thing where all of its ``when`` holds:

    set: OURS, to: VALUE        a setting; of several rules that set it or ask for it the first that holds counts
    line: LINE, to: VALUE       a line of the algorithm, likewise
    add: LINE, to: TEXT         one more block of a line that is a list
    ask: OURS, why: TEXT        a setting that the user has to write
    warn: TEXT                  something that the user has to decide
    leave: THEIRS, why: TEXT    a setting without a counterpart, where it is given
    refuse: TEXT                ValueError
    words: {THEIRS: [WORD]}     ValueError for any other word

Texts may hold ``{theirs}``, and ``{theirs|other}`` for the first that is not null. ``of`` names the settings that a
value was made of, by default those in its text.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mmgrpo.cli.migrate.draft import Draft, text_of

Blocks = dict[str, tuple[Any, tuple[str, ...]]]
"""Lines of the algorithm, each with the settings that it was made of."""

NAMED = re.compile(r"\{([^{}]+)\}")
"""Settings of theirs in a text."""

COMPARISON = re.compile(r"(<=|>=|<|>)\s*(-?[\d.]+)")
COMPARISONS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


def convert(draft: Draft, name: str, lines: Blocks | None = None) -> None:
    """Do what the rules of a conversion say, and write the algorithm where they, or ``lines``, have lines of it."""
    if blocks := apply(draft, draft.table.rules[name]) | (lines or {}):
        draft.algorithm(draft.table.preset, blocks)


def apply(draft: Draft, rules: Sequence[Mapping[str, Any]]) -> Blocks:
    """Do what some rules say; returns the lines of the algorithm."""
    blocks: Blocks = {}
    settled: set[str] = set()
    questions: set[str] = set()
    for rule in rules:
        if not holds(draft, rule.get("when", {})):
            continue
        of = tuple(rule["of"] if "of" in rule else settings_in(rule.get("to")))
        why = fill_in(draft, rule.get("why", ""))
        target = rule.get("set", rule.get("ask", ""))
        if "set" in rule and target not in settled | questions:
            settled.add(target)
            draft.set(target, value(draft, rule["to"]), *of, note=rule.get("note", ""))
        elif "line" in rule and rule["line"] not in blocks:
            blocks[rule["line"]] = (value(draft, rule["to"]), of)
        elif "add" in rule:
            before, theirs = blocks.get(rule["add"], ([], ()))
            blocks[rule["add"]] = ([*before, value(draft, rule["to"])], tuple(dict.fromkeys((*theirs, *of))))
        elif "ask" in rule and target not in settled:
            questions.add(target)
            draft.ask(target, why, *of)
        elif "warn" in rule:
            draft.warn(fill_in(draft, rule["warn"]), *of)
        elif "leave" in rule and draft.is_given(rule["leave"]):
            draft.leave(rule["leave"], why)
        elif "refuse" in rule:
            raise ValueError(f"{draft.source.name}: {fill_in(draft, rule['refuse'])}")
        for key, words in rule.get("words", {}).items():
            draft.word(key, words)
    return blocks


def holds(draft: Draft, conditions: Mapping[str, Any]) -> bool:
    """Whether all conditions hold. One is their setting (``a|b``: either of both) and

    a value, or several in a list; true or false for one that is so, or not empty or empty; ``given`` or ``absent``, for
    what stands in their configuration; ``set`` for any that is not null; a comparison as ``>= 1``; or ``{not: ...}`` of
    these. ``family`` is ours, ``program`` a part of the program's name, and ``same`` and ``differ`` compare two values.
    """
    return all(condition(draft, key, wanted) for key, wanted in conditions.items())


def condition(draft: Draft, key: str, wanted: Any) -> bool:
    """Whether one condition of ``holds`` does."""
    if isinstance(wanted, dict):
        return not condition(draft, key, wanted["not"])
    if key == "family":
        return draft.family in wanted
    if key == "program":
        return wanted in draft.source.program
    if key in ("same", "differ"):
        return (value(draft, wanted[0]) == value(draft, wanted[1])) is (key == "same")
    if wanted in ("given", "absent"):
        return draft.is_given(*key.split("|")) is (wanted == "given")
    theirs = draft[key]
    if isinstance(theirs, list) and len(theirs) == 1:
        theirs = theirs[0]
    if wanted is None or wanted == "set":
        return (theirs is None) is (wanted is None)
    if isinstance(wanted, bool):
        return bool(theirs) is wanted
    if isinstance(wanted, list):
        return any(choice is theirs if isinstance(choice, bool) else choice == theirs for choice in wanted)
    if isinstance(wanted, str) and (match := COMPARISON.fullmatch(wanted)):
        return theirs is not None and COMPARISONS[match[1]](draft.number(key), float(match[2]))
    return theirs == wanted


def settings_in(to: Any) -> list[str]:
    """The settings of theirs in a text, or in the texts of a list."""
    texts = [text for text in (to if isinstance(to, list) else [to]) if isinstance(text, str)]
    keys = [key for text in texts for several in NAMED.findall(text) for key in several.split("|")]
    return [*dict.fromkeys(keys)]


def value(draft: Draft, to: Any) -> Any:
    """A value of ours: what one setting of theirs is, a text with some of theirs, several in a list, or as it is."""
    if isinstance(to, list):
        made = [(text, value(draft, text)) for text in to]
        parts = [item.split(",") if isinstance(item, str) and NAMED.fullmatch(text) else item for text, item in made]
        return [item for part in parts for item in (map(str.strip, part) if isinstance(part, list) else [part])]
    if isinstance(to, str) and (match := NAMED.fullmatch(to)):
        return setting(draft, match[1])
    return NAMED.sub(lambda match: str(setting(draft, match[1])), to) if isinstance(to, str) else to


def setting(draft: Draft, keys: str) -> Any:
    """The first of some settings that is not null: a whole number where its default is one, any other number, or the
    value itself."""
    key = first(draft, keys)
    default, theirs = draft.table.rows[key].default, draft[key]
    if isinstance(default, bool | str | list | tuple) or isinstance(theirs, bool | list | str):
        return theirs
    return draft.count(key) if isinstance(default, int) else draft.number(key)


def counterpart(draft: Draft, reward: str) -> str:
    """Ours of a reward of theirs with its parameters; empty where there is none, or one of these is not known."""
    text = draft.table.rewards.get(reward, "")
    return "" if any(draft[first(draft, keys)] is None for keys in NAMED.findall(text)) else value(draft, text)


def first(draft: Draft, keys: str) -> str:
    """The first of ``a|b`` that is not null, else the last."""
    several = keys.split("|")
    return next((key for key in several if draft[key] is not None), several[-1])


def fill_in(draft: Draft, text: str) -> str:
    """A text for the user, with their values."""
    return NAMED.sub(lambda match: text_of(draft[first(draft, match[1])]), text)
