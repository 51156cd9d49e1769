"""From a configuration of another project to the text of a recipe."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mmgrpo.cli.migrate import flows, rules, tokens, verl
from mmgrpo.cli.migrate.draft import Draft, say, text_of, yaml_of
from mmgrpo.cli.migrate.python_file import from_python
from mmgrpo.cli.migrate.sources import Source, from_words, read
from mmgrpo.cli.migrate.tables import PROJECTS, Row, Table, table
from mmgrpo.cli.migrate.trl_script import flags_of, from_trl_script
from mmgrpo.cli.train import arithmetic
from mmgrpo.config.names import nearest
from mmgrpo.config.reading import UNDECIDED, build, setting_names, undecided_settings, with_preset, without
from mmgrpo.config.settings import Missing, config_class
from mmgrpo.data.values import CONTROL
from mmgrpo.family import family

Conversion = Callable[[Draft], None]
CONVERSIONS: Mapping[str, Mapping[str, Conversion]] = {
    "trl": tokens.TRL,
    "ms_swift": tokens.MS_SWIFT,
    "easyr1": verl.CONVERSIONS,
    "verl": verl.CONVERSIONS,
    "flow_grpo": flows.FLOW_GRPO,
    "dance_grpo": flows.DANCE_GRPO,
}
"""Project to its conversions that compute or search, by the names that the rows of its table give; all others are rules
of the table."""

FAMILY: Mapping[str, Callable[[Source], str]] = {
    **dict.fromkeys(("trl", "ms_swift", "easyr1", "verl"), tokens.family_of),
    "flow_grpo": flows.family_of_flow_grpo,
    "dance_grpo": flows.family_of_dance_grpo,
}


OF_TOOLS = {"sampling.tools", "sampling.turns", "sampling.calls_per_turn"}
"""Settings that are checked by importing the tools, which are code of the user's: nothing of it is run here."""

WITHOUT_EFFECT = {"", "name", "output_dir", "trackers", "save_every", "keep", "optim.micro_batch_size"}
"""Settings of ours that do not change what is trained."""


def recipe_of(
    project: str, path: str, flags: Sequence[str] = (), name: str = "", *, processes: int = 0, rows: int = 0
) -> tuple[str, list[str]]:
    """The text of a recipe that ``mmgrpo train --config`` accepts, and what must be decided before it is run.

    ``name`` is our model family, by default guessed from the model. ValueError names the file and the setting.
    """
    project = {"ms-swift": "ms_swift", "swift": "ms_swift", "EasyR1": "easyr1"}.get(
        project, project.replace("-", "_").lower()
    )
    if project not in PROJECTS:
        raise ValueError(f"mmgrpo migrate: unknown project '{project}'.{nearest(project, PROJECTS)}")
    if not path and not flags:
        raise ValueError("mmgrpo migrate: got neither a file nor flags behind --; 'mmgrpo migrate --help' shows both")
    theirs = table(project)
    nested = project in ("easyr1", "verl")
    script_arguments: set[str] = set()
    given = dict(flags_of(flags))

    def trl_script(source: Source, text: str, chosen: str) -> None:
        script_arguments.update(from_trl_script(source, text, given))

    python = {"flow_grpo": from_python, "trl": trl_script}.get(project)
    source = read(path, nested, python) if path else Source("the command line")
    from_words(source, flags)
    for key in script_arguments:  # arguments of a script of theirs, which are in the values that it makes of them
        source.values.pop(key, None)
    path = with_its_file(source, path, nested, python)
    source.processes = processes or source.processes
    old = rename_settings(source, theirs)
    chosen = family(name or FAMILY[project](source))
    draft = Draft(theirs, source, chosen.name, rows)
    for key, new in old.items():
        draft.leave(key, f"an old name of {new}")
    convert(draft, CONVERSIONS[project])
    section = drop_defaults(draft, chosen)
    account(draft)
    if missing := check(section, chosen, source):
        draft.warn(f"on this machine: {missing}")
    text = "\n".join([*head(draft, path), *body(draft, section)]) + "\n"
    return text, draft.warnings


def with_its_file(source: Source, path: str, nested: bool, python: Callable[[Source, str, str], None] | None) -> str:
    """Put the settings of the file that ``config=FILE`` names, where it is found, below those of the source; returns
    what the settings come from."""
    name = source.values.get("config")
    if not isinstance(name, str):
        return path
    script = Path(path.partition(".py:")[0])
    folders = [Path(), *script.parents] if path else [Path()]
    base_file = next((folder / name for folder in folders if (folder / name.partition(".py:")[0]).is_file()), None)
    if base_file is None and ".py:" in name:
        file = name.partition(".py:")[0] + ".py"
        base_file = next((folder / name for folder in folders if (folder / file).is_file()), None)
    if base_file is None or Path(str(base_file).partition(".py:")[0]).suffix == ".sh":
        return path
    base = read(str(base_file), nested, python)
    del source.values["config"]
    source.values = {key: value for key, value in base.values.items() if key not in source.unread} | source.values
    source.unread = {key: text for key, text in base.unread.items() if key not in source.values} | source.unread
    source.processes = source.processes or base.processes
    return f"{path or 'flags'} with {base_file}"


def rename_settings(source: Source, theirs: Table) -> dict[str, str]:
    """Give settings their present names; returns old names to new ones."""
    new_names = {old: new for old, new in theirs.renamed.items() if old in source.values or old in source.unread}
    for old, new in new_names.items():
        for table_of in (source.values, source.unread):
            if old in table_of:
                value = table_of.pop(old)
                if new not in source.values and new not in source.unread:
                    table_of[new] = value
    return new_names


def convert(draft: Draft, conversions: Mapping[str, Conversion]) -> None:
    """Read every setting of the source, and all defaults of the table that have a counterpart."""
    for key in draft.source.unread:
        row = draft.table.find(key)
        why = "no plain value, and nothing is executed: write the value, into the file or behind --"
        if row is not None and {*row.to.replace(" ", "").split(",")} <= WITHOUT_EFFECT and not row.matters:
            draft.leave(key, row.note or why)
        else:
            draft.leave_open(key, why)
    if draft.source.branches:
        names = ", ".join(f"{name} (line {line})" for name, line in draft.source.branches.items())
        draft.warn(f"branches and loops of the script are not followed; they change {names}")
    for key in draft.source.values:
        row = draft.table.find(key)
        if row is None:
            hint = nearest(key, draft.table.names).split(" Known:")[0]
            draft.leave_open(key, f"unknown to {draft.table.project} as it was read for this table.{hint}")
            draft.warn(f"'{text_of(key)}' is no setting of {draft.table.project} that is known here.{hint}")
        elif key == "config":
            draft.leave_open(key, f"no such file here: {row.note}")
            draft.warn(f"config {text_of(draft.source.values[key])} is not found: {row.note}")
        elif not row.to and row.matters and differs(draft.source.values[key], row.default):
            draft.leave_open(key, row.note)
            draft.warn(f"{text_of(key)} {text_of(draft.source.values[key])}: {row.note}")
        elif not row.to:
            draft.leave(key, row.note)
    for row in draft.table.rows.values():
        if row.to and not row.by and "*" not in row.key:
            direct(draft, row)
    for name in dict.fromkeys(row.by for row in draft.table.rows.values() if row.by):
        if name in conversions:
            conversions[name](draft)
        else:
            rules.convert(draft, name)
    needed = {
        "model.path": "no model is named: the folder of a model, or its name on the hub",
        "data.train": "no data set is named (docs/data.md)",
        "rewards": "no reward is named; 'mmgrpo rewards' lists them",
    }
    for key, why in needed.items():
        if key not in draft.questions and (key not in draft.settings or draft.settings[key].value in ("", [])):
            draft.ask(key, why)


def differs(value: Any, default: Any) -> bool:
    """Whether a value says something else than the default, which is nothing where there is none."""
    empty = (None, "", False, [], {})
    if default in empty:
        return value not in empty
    return str(value).lower() != str(default).lower() and value != default


def direct(draft: Draft, row: Row) -> None:
    """A setting whose value is taken as it is, or by a table of words."""
    value = draft[row.key]
    if row.values:
        words = row.values
        if str(value).lower() not in words:
            if not draft.is_given(row.key):
                return
            draft.leave(row.key, f"no such choice here; known: {', '.join(words)}")
            draft.ask(row.to, f"{row.key} {text_of(value)}: {draft.left[row.key]}", row.key)
            return
        value = words[str(value).lower()]
    if value is None:
        if draft.is_given(row.key):
            draft.leave(row.key, f"not set there; {row.to} keeps our default")
        return
    draft.set(row.to, value, row.key)


def drop_defaults(draft: Draft, chosen: Any) -> dict[str, Any]:
    """The recipe as nested sections: without settings that the family does not have (which are listed), and without
    defaults of theirs that are ours too."""
    kind = config_class(chosen.sections)
    known = {*setting_names(kind)}
    defaults = asdict(kind())
    section: dict[str, Any] = {"model": {"family": chosen.name}}
    for key, setting in list(draft.settings.items()):
        if key not in known:
            del draft.settings[key]
            for theirs in setting.of:
                if draft.is_given(theirs):
                    draft.leave(theirs, f"the family {chosen.name} has no {key}")
            continue
        outer, _, inner = key.partition(".")
        ours = defaults[outer][inner] if inner else defaults[outer]
        if isinstance(ours, float) and type(setting.value) is int:
            setting = draft.settings[key] = replace(setting, value=float(setting.value))
        if not setting.given and setting.value == ours and outer != "algorithm":
            del draft.settings[key]
            continue
        if inner:
            section.setdefault(outer, {})[inner] = setting.value
        else:
            section[outer] = setting.value
    for key, texts in draft.questions.items():
        outer, _, inner = key.partition(".")
        if key not in known:
            continue
        several = [f"{UNDECIDED} {text}" for text in texts]
        place, name = (section.setdefault(outer, {}), inner) if inner else (section, outer)
        kept = place.get(name, [])
        is_list = isinstance(defaults[outer][inner] if inner else defaults[outer], list)
        place[name] = [*kept, *several] if is_list else "; ".join([several[0], *texts[1:]])
    if draft.open:
        section["undecided"] = {
            text_of(key, 200): f"{text_of(draft.source.unread.get(key, draft.source.values.get(key)), 300)}: {why}"
            for key, why in draft.open.items()
        }
    return section


def account(draft: Draft) -> None:
    """List every setting of the source that no line of the recipe names."""
    named = {key for setting in draft.settings.values() for key in setting.of} | draft.left.keys()
    for key in draft.source.values:
        if key not in named:
            decided = key in draft.mentioned and draft.warnings
            draft.leave(key, "see what is to be decided" if decided else "has no effect with the other settings")


def check(section: Mapping[str, Any], chosen: Any, source: Source) -> str:
    """Raise ValueError where the recipe would be refused; returns what is only not installed here."""
    try:
        known = without(section, undecided_settings(section).keys() | OF_TOOLS)
        kind = config_class(chosen.sections)
        arithmetic(build(kind, with_preset(kind, known, "the recipe"), "the recipe"))
    except Missing as error:
        return str(error)
    except ValueError as error:
        problem = str(error)
    else:
        return ""
    raise ValueError(f"{source.name}: the recipe made of it would be refused: {problem}")


# ---- text


def head(draft: Draft, path: str) -> list[str]:
    """The comment at the top: what it was made of, what to decide, what has no counterpart."""
    lines = [
        f"# {draft.table.project} as a recipe of mmgrpo; made by 'mmgrpo migrate' from {text_of(path or 'flags')}."
    ]
    if draft.warnings:
        lines += ["#", "# (!) To decide before it is run:"]
        for warning in draft.warnings:
            lines += comment(warning, "#   - ")
    left = {key: why for key, why in draft.left.items() if draft.is_given(key) or key in draft.source.unread}
    if left:
        lines += ["#", "# Not carried over:"]
        groups: dict[str, list[str]] = {}
        for key, why in left.items():
            value = draft.source.unread.get(key, draft.source.values.get(key))
            groups.setdefault(why, []).append(f"{text_of(key)} {text_of(value, 60)}")
        for why, keys in groups.items():
            for key in keys:
                lines += comment(key, "#   ")
            lines += comment(why, "#       ")
    if draft.source.launcher:
        lines += [
            "#",
            *comment(
                f"Launched there by: {' '.join(draft.source.launcher)}. "
                "Here: accelerate launch -m mmgrpo.cli.train --config ...",
                "# ",
            ),
        ]
    return lines


def comment(text: str, start: str) -> list[str]:
    """Lines of a comment; what continues is indented as much."""
    rest = "#" + " " * (len(start) - 1)
    return textwrap.wrap(
        CONTROL.sub(" ", text), 118, initial_indent=start, subsequent_indent=rest, break_on_hyphens=False
    ) or [start]


def body(draft: Draft, section: Mapping[str, Any]) -> list[str]:
    """The settings in our order, each with its origin behind it."""
    lines: list[str] = []
    order = ["name", "output_dir", "steps", "seed", "save_every", "keep", "trackers", "deterministic"]
    order += ["model", "data", "sampling", "algorithm", "rewards", "optim", "eval", "undecided"]
    assert section.keys() <= {*order}, section.keys()
    for outer in order:
        value = section.get(outer)
        if isinstance(value, Mapping):
            rest = "  # of theirs, without a counterpart: 'mmgrpo train' refuses each that is not deleted"
            lines.append(f"{outer}:{rest if outer == 'undecided' else ''}")
            lines += [entry(draft, f"{outer}.{inner}", f"  {yaml_of(str(inner))}", value[inner]) for inner in value]
        elif outer in section:
            lines.append(entry(draft, outer, outer, value))
    return lines


def entry(draft: Draft, key: str, name: str, value: Any) -> str:
    """One line of the recipe."""
    line = f"{name}: {yaml_of(value)}"
    setting = draft.settings.get(key)
    if setting is None:
        return line
    origin = say(setting.of, draft)
    notes = CONTROL.sub(" ", "; ".join(filter(None, [origin, setting.note])))
    return f"{line:<40}  # {notes}" if notes else line
