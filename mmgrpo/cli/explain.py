"""Explain a preset, a paper, or anything that a recipe may name: formula, numbers, source, and how to run it:

    mmgrpo explain dapo
    mmgrpo explain kl_k3
    mmgrpo explain visual/flow_grpo
    mmgrpo explain grpo dapo
    mmgrpo explain baseline

A preset is shown block by block; a star marks what differs from the base of all presets. Of two presets only the lines
that differ are shown. A paper is shown as its record. A kind of blocks is listed, a sentence each.
A name of several kinds is explained as each of them. ``mmgrpo
papers``, ``presets``, ``rewards``, ``recipes`` and ``families`` list names.
"""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mmgrpo.catalogue.papers import Paper, papers
from mmgrpo.cli.errors import enter
from mmgrpo.cli.settings_help import sentence
from mmgrpo.config.advice import usage_errors
from mmgrpo.config.names import nearest
from mmgrpo.terminal import PROSE, columns_of, definitions, paragraph, width

MANY = 12
"""Papers of a preset that are named; of more, the command that lists them."""

OF_IMAGES, OF_TOKENS, OF_BOTH = "sd3", "causal_lm", "rewriter"
"""Families in whose words a preset is run: the default, and one of tokens."""

LINES = {"trackers": "tracker", "terms": "term", "networks": "network"}
"""Lines of a preset whose kind of block has another name."""


def options() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="mmgrpo explain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    named = "a preset, the id of a paper, a block or a kind of blocks, a reward, a task, a recipe or a family"
    parser.add_argument("name", help=named)
    parser.add_argument("other", nargs="?", default="", help="a second preset, with which the first is compared")
    return parser


def tables() -> dict[str, Mapping[str, Any]]:
    """What a recipe may name, by kind: names to blocks, entries, files or families. Kinds are those of records of
    papers too."""
    from mmgrpo.config import plugins
    from mmgrpo.config.presets import CATALOGUE
    from mmgrpo.config.registry import all_blocks
    from mmgrpo.family import all_families
    from mmgrpo.policies import denoising, flow_matching, neighbors, reward_gradients
    from mmgrpo.rewards import entries
    from reward_models.rules.tags import STYLES
    from reward_models.rules.tasks import TASKS

    return {
        "preset": CATALOGUE,
        **all_blocks(),
        "policy": {
            "transitions": denoising,
            "matching": flow_matching,
            "neighbors": neighbors,
            "gradients": reward_gradients,
        },
        "reward": entries(),
        "task": TASKS,
        "style": STYLES,
        "recipe": plugins.recipes(),
        "family": all_families(),
    }


def explain(name: str) -> str:
    """Everything of that name; ValueError with the nearest names where nothing has it."""
    from mmgrpo.config.plugins import present_name
    from mmgrpo.config.registry import all_blocks

    named, name = tables(), present_name(name, "mmgrpo explain")
    shown = [preset(name, named)] if name in named["preset"] else []
    shown += [record(papers()[name])] if name in papers() else []
    shown += [
        SHOWN.get(kind, block)(kind, name, named[kind][name])
        for kind in named
        if kind not in ("preset",) and name in named[kind]
    ]
    shown += [kind_of_blocks(name)] if name in all_blocks() else []
    if not shown:
        known = {other for table in named.values() for other in table} | papers().keys() | all_blocks().keys()
        raise ValueError(f"mmgrpo explain: unknown name '{name}'.{nearest(name, known)}")
    return "\n\n".join(shown)


# ---- presets


def preset(name: str, named: Mapping[str, Mapping[str, Any]]) -> str:
    """A preset: what it is, its source, how to run it, the papers that use it, and its blocks with their formulas."""
    from mmgrpo.config.presets import BASE

    chosen = named["preset"][name]
    users = [paper.id for paper in papers().values() if name in paper.uses.get("preset", ())]
    run = f"mmgrpo train --algorithm.preset {name}"
    if len(users) == 1 and "..." in (whole := command(papers()[users[0]])) and whole.startswith(f"{run} "):
        run = whole  # with what it cannot run without
    elif chosen.policies == "joint":
        run += f" --model.family {OF_BOTH} --model.writer ... --model.generator ..."
    elif chosen.policies == "tokens":
        run += f" --model.family {OF_TOKENS} --model.path ... --data.train ... --rewards ..."
    recipes = [recipe for recipe, path in named["recipe"].items() if trains(path, name)]
    facts = {
        "policies": chosen.policies,
        "source": chosen.source,
        "notes": chosen.notes,
        "papers": ", ".join(users) if len(users) <= MANY else f"{len(users)}: mmgrpo papers --search 'preset {name}'",
        "sets": "; ".join(settings_of(name)),
        "needs": "; ".join(lacking(name)),
        "run": run,
        "recipes": ", ".join(recipes),
    }
    parts = [f"preset {name}: {chosen.about}", *facts_of(facts), ""]
    for line, value in chosen.blocks.items():
        mark = "*" if value != BASE[line] else " "
        table = named.get(LINES.get(line) or line)
        several = value if isinstance(value, list) else [value]
        if table is None:
            parts.append(f"{mark} {line}: {', '.join(several)}")
        elif several and several != ["none"]:
            parts += [f"{mark} {line}: {with_defaults(text, table)}\n{description_of(text, table)}" for text in several]
        elif mark == "*":
            parts.append(f"{mark} {line}: none")
    return "\n".join(parts)


def difference(first: str, second: str) -> str:
    """The lines in which two presets differ, each with both values; ValueError for a name that is no preset."""
    from mmgrpo.config.presets import CATALOGUE

    for name in (first, second):
        if name not in CATALOGUE:
            raise ValueError(
                f"mmgrpo explain: two names are compared if both are presets, and '{name}' is none."
                f"{nearest(name, CATALOGUE, 'mmgrpo presets')}"
            )
    left, right = lines_of(first), lines_of(second)
    parts = [f"{name}: {CATALOGUE[name].about}" for name in (first, second)]
    width = max(len(first), len(second))
    for key in dict.fromkeys([*left, *right]):
        if (values := (left.get(key, "not set"), right.get(key, "not set")))[0] != values[1]:
            parts += ["", key, *(f"  {name:{width}}  {value}" for name, value in zip((first, second), values))]
    return "\n".join(parts if len(parts) > 2 else [*parts, "", "All lines are equal."])


def lines_of(name: str) -> dict[str, str]:
    """A preset line by line: the kind of policies, the blocks, and settings of sampling and data."""
    from mmgrpo.config.presets import CATALOGUE

    preset = CATALOGUE[name]
    blocks = {
        f"algorithm.{line}": ", ".join(value) or "none" if isinstance(value, list) else value
        for line, value in preset.blocks.items()
    }
    return {"policies": preset.policies, **blocks, **dict(text.split("=", 1) for text in settings_of(name))}


def settings_of(name: str) -> list[str]:
    """The settings of sampling and data by which a preset is what its name says, with those of each process."""
    from mmgrpo.config.presets import CATALOGUE

    sections = {"sampling": CATALOGUE[name].sampling, "data": CATALOGUE[name].data}
    texts = []
    for part, settings in sections.items():
        for key, value in settings.items():
            each = (
                ", ".join(f"{setting} ({process})" for process, setting in value.items())
                if isinstance(value, dict)
                else value
            )
            texts.append(f"{part}.{key}={each}")
    return texts


def lacking(name: str) -> list[str]:
    """What blocks of a preset need that neither it nor the family of the command gives, and the settings that do."""
    from mmgrpo.advantages.estimate import AdvantageRecipe
    from mmgrpo.api import traits_of_run
    from mmgrpo.config.presets import CATALOGUE
    from mmgrpo.config.reading import build, with_preset
    from mmgrpo.config.settings import config_class
    from mmgrpo.family import family
    from mmgrpo.requirements.blocks import REQUIREMENTS, requirements_of
    from mmgrpo.update import LossRecipe

    owner = family({"tokens": OF_TOKENS, "joint": OF_BOTH}.get(CATALOGUE[name].policies, OF_IMAGES))
    kind = config_class(owner.sections)
    config = build(kind, with_preset(kind, {"algorithm": {"preset": name}}, "explain"), "explain")
    recipe, loss = AdvantageRecipe.of(config.algorithm), LossRecipe.read(config.algorithm)
    has, _ = traits_of_run(config, owner, loss)
    unmet = dict.fromkeys(requirement for _, _, requirement in requirements_of(recipe, loss) if requirement not in has)
    return [f"{REQUIREMENTS[requirement].what} ({REQUIREMENTS[requirement].how})" for requirement in unmet]


def trains(path: Path, name: str) -> bool:
    """Whether a recipe names the preset."""
    return re.search(rf"^ +preset: {name}\s*(#.*)?$", text_of(path), re.MULTILINE) is not None


@cache
def text_of(path: Path) -> str:
    """The text of a recipe."""
    return path.read_text(encoding="utf-8")


def with_defaults(text: str, table: Mapping[str, Any]) -> str:
    """A block with all of its parameters, those that the text leaves out with their defaults."""
    from mmgrpo.config.registry import bind_scheduled

    bound = bind_scheduled(text, table, "explain")
    defaults = {
        name: parameter.default
        for name, parameter in bound.block.parameters.items()
        if parameter.default is not parameter.empty
    }
    given = defaults | dict(bound.parameters)
    name = text.partition("(")[0].strip()
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" if given else name


def description_of(text: str, table: Mapping[str, Any]) -> str:
    """What the function of a block says of itself."""
    return indent(inspect.getdoc(table[text.partition("(")[0].strip()].fn) or "")


# ---- papers


def record(paper: Paper) -> str:
    """The record of a paper."""
    facts = {
        "source": " ".join([paper.source] + [f"https://arxiv.org/abs/{paper.arxiv}"] * bool(paper.arxiv)),
        "status": paper.status,
        **{kind: ", ".join(names) for kind, names in paper.uses.items()},
        "how": paper.how,
        "settings": "; ".join(f"{key}: {value}" for key, value in paper.settings.items()),
        "run": command(paper),
        "differs": paper.differs,
        "missing": paper.missing,
        "tests": "\n".join(f"tests/{test}" for test in paper.tests),
    }
    return "\n".join([f"paper {paper.id}: {paper.title}", *facts_of(facts)])


def command(paper: Paper) -> str:
    """The command line that begins a run of the paper: its first recipe; or its first preset, with the first of each of
    its blocks of which the preset has none, and with its rewards and settings. ``...`` is the user's to fill in."""
    if "recipe" in paper.uses:
        return f"mmgrpo train --recipe {paper.uses['recipe'][0]}"
    from mmgrpo.config.presets import BASE, PRESETS

    lines = {LINES.get(line, line): line for line in BASE}
    preset = paper.uses["preset"][0] if "preset" in paper.uses else ""
    words = [f"--algorithm.preset {preset}"] if preset else []
    for kind, names in paper.uses.items():
        if kind in lines and (not preset or PRESETS[preset][lines[kind]] == BASE[lines[kind]] == []):
            row = tables()[kind].get(names[0].partition("(")[0])
            words.append(
                f"--algorithm.{lines[kind]} {shlex.quote(with_required(names[0], row.fn) if row else names[0])}"
            )
    rewards = [*map(reward_with_required, paper.uses.get("reward", ())), *(["task"] if "task" in paper.uses else [])]
    words += [f"--rewards {' '.join(map(shlex.quote, rewards))}"] if rewards else []
    words += [f"--{key} {value}" for key, value in paper.settings.items()]
    return " ".join(["mmgrpo train", *words]) if words else ""


def with_required(text: str, function: Callable[..., Any]) -> str:
    """A block or reward as a record writes it, with ``...`` for each parameter of its ``function`` that it does not
    state and that has no default."""
    from mmgrpo.config.registry import parse

    name, given = parse(text)
    more = [
        f"{key}=..."
        for key, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty and key not in given
    ]
    stated = text.partition("(")[2].removesuffix(")")
    return f"{name}({', '.join([*([stated] if stated else []), *more])})" if more else text


def reward_with_required(text: str) -> str:
    """``with_required`` of a reward, whose own parameters follow those that the run gives it."""
    from mmgrpo.config.plugins import load_object
    from mmgrpo.rewards import entries
    from mmgrpo.types import RECORDS

    function = load_object(entries()[text.partition("(")[0]].function, "rewards", own=False)
    settable = [
        parameter.replace(kind=parameter.KEYWORD_ONLY)
        for key, parameter in inspect.signature(function).parameters.items()
        if key not in {"prompts", "outputs", "rollout", *RECORDS} and parameter.kind is not parameter.VAR_KEYWORD
    ]

    def parameters() -> None: ...

    parameters.__signature__ = inspect.Signature(settable)  # type: ignore[attr-defined]
    return with_required(text, parameters)


# ---- blocks, rewards, recipes, families


def kind_of_blocks(kind: str) -> str:
    """The blocks of a kind, with the first sentence of each."""
    from mmgrpo.config.registry import all_blocks

    table = all_blocks()[kind]
    rows = [(name, sentence(inspect.getdoc(table[name].fn) or "").replace("``", "")) for name in sorted(table)]
    return "\n".join([f"{kind}: mmgrpo explain NAME shows one with its parameters", *definitions(rows, "  ", PROSE)])


def block(kind: str, name: str, row: Any) -> str:
    """A block, with its defaults and what its function says; a task or style, with what it says."""
    from mmgrpo.config.registry import Block

    if isinstance(row, Block):
        defaults = [
            f"{key}={parameter.default!r}" if parameter.default is not parameter.empty else f"{key}=..."
            for key, parameter in row.parameters.items()
        ]
        users = [
            paper.id
            for paper in papers().values()
            if name in [use.partition("(")[0] for use in paper.uses.get(kind, ())]
        ]
        facts = facts_of({"inputs": ", ".join(row.needs), "papers": ", ".join(users)})
        return "\n".join([f"{kind} {name}({', '.join(defaults)})", *facts, indent(inspect.getdoc(row.fn) or "")])
    return "\n".join([f"{kind} {name}", indent(inspect.getdoc(row) or "")]).rstrip()


def reward(kind: str, name: str, row: Any) -> str:
    """The card of a reward, and what its function says."""
    from mmgrpo.cli.lists import card
    from mmgrpo.config.plugins import load_object

    text = inspect.getdoc(load_object(row.function, "rewards", own=False)) or ""
    return f"{kind} {card(name)}\n{indent(text)}"


def recipe(kind: str, name: str, row: Path) -> str:
    """The comment of a recipe, what it trains, and its command."""
    from mmgrpo.cli.lists import needs

    head = re.match(r"(?:#[^\n]*\n)*", row.read_text(encoding="utf-8"))
    text = " ".join(line.lstrip("# ") for line in (head[0] if head else "").splitlines())
    facts = {"trains": needs(row), "run": f"mmgrpo train --recipe {name}", "file": str(row)}
    return "\n".join([f"{kind} {name}", *facts_of({"what": text, **facts})])


def family(kind: str, name: str, row: Any) -> str:
    """A model family."""
    return "\n".join([f"{kind} {name}", *facts_of({"modality": row.modality, "what": row.about})])


SHOWN: dict[str, Callable[[str, str, Any], str]] = {"reward": reward, "recipe": recipe, "family": family}
"""Kinds that are shown in a way of their own."""


# ---- text


def facts_of(facts: Mapping[str, str]) -> list[str]:
    """Facts one below the other, those that are empty left out; long ones go on in their column."""
    rows = [
        (name if not number else "", line)
        for name, text in facts.items()
        for number, line in enumerate(text.splitlines())
    ]
    return definitions(rows, "  ", PROSE)


def indent(text: str) -> str:
    """A docstring below the line that it explains, without the marks of code; paragraphs that the output is too narrow
    for are wrapped, except for lines that are indented themselves."""
    lines = list[str]()
    for part in re.split(r"\n[ ]*\n", text.replace("``", "")):
        rows, indent = part.splitlines(), "      "
        narrow = any(columns_of(indent + row) > width() for row in rows)
        whole = not narrow or any(row.startswith(" ") for row in rows)
        lines += [*([""] if lines else []), *([indent + row for row in rows] if whole else paragraph(part, indent))]
    return "\n".join(line.rstrip() for line in lines)


def main(arguments: list[str] | None = None) -> None:
    """Print what the name means."""
    with usage_errors():
        given = options().parse_args(arguments)
    print(difference(given.name, given.other) if given.other else explain(given.name))


if __name__ == "__main__":
    enter(main)
