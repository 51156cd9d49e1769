"""The tables of docs/settings.md: settings, options of commands, blocks and rewards with their defaults."""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from docs.site.markdown import code, grid, sentence
from mmgrpo.cli.settings_help import descriptions
from mmgrpo.config.conflicts import conflicts_of
from mmgrpo.config.needs import needs_of
from mmgrpo.config.plugins import load_object
from mmgrpo.config.registry import Block, all_blocks
from mmgrpo.config.settings import config_class
from mmgrpo.family import all_families
from mmgrpo.rewards import RewardEntry, entries
from mmgrpo.scoring.manifest import Manifest

MANY = 4
"""Descriptions of one setting that are shown; of more, the most common one."""


# ---- settings


def settings() -> str:
    """Every setting with its defaults and what it is."""
    defaults, descriptions = collect_settings()
    everywhere, rows = len(all_families()), []
    for name, values in defaults.items():
        if len(values) == 1 and len(*values.values()) == everywhere:
            texts = [f"`{value}`" for value in values]
        else:
            texts = [f"`{value}` ({those(members)})" for value, members in values.items()]
        rows.append((f"`{name}`", "; ".join(texts), commonest(descriptions[name])))
    return grid(("setting", "default", "description"), rows)


def collect_settings() -> tuple[dict[str, dict[str, list[str]]], dict[str, Counter[str]]]:
    """Every setting to its defaults as text with the families that have each, and to its descriptions."""
    defaults: dict[str, dict[str, list[str]]] = {}
    about: dict[str, Counter[str]] = {}

    def walk(section: Any, prefix: str, family: str) -> None:
        texts, declared = descriptions(type(section)), needs_of(type(section))
        for field in dataclasses.fields(section):
            value, setting = getattr(section, field.name), prefix + field.name
            if dataclasses.is_dataclass(value):
                walk(value, f"{setting}.", family)
            else:
                defaults.setdefault(setting, {}).setdefault(repr(value), []).append(family)
                needed = f"Needs {'; and '.join(map(str, declared[field.name]))}." if field.name in declared else ""
                excluded = " ".join(map(str, conflicts_of(type(section)).get(field.name, ())))
                text = " ".join(filter(None, (texts.get(field.name, ""), needed, excluded)))
                about.setdefault(setting, Counter())[text] += 1

    for name, family in all_families().items():
        walk(config_class(family.sections)(), "", name)
    return defaults, about


def those(names: Sequence[str]) -> str:
    """Families in words: all of a modality by its name."""
    texts = []
    for modality in dict.fromkeys(family.modality for family in all_families().values()):
        members = [name for name, family in all_families().items() if family.modality == modality]
        has = [name for name in members if name in names]
        missing = [name for name in members if name not in names]
        if has and len(missing) < len(has):
            texts.append(modality + f" except {' and '.join(missing)}" * bool(missing))
        else:
            texts += has
    return ", ".join(texts)


def commonest(about: Counter[str]) -> str:
    """The descriptions of a setting, of many the most common one."""
    ordered = [text for text, _ in about.most_common()]
    return " Or: ".join(ordered if len(ordered) <= MANY else ordered[:1])


def commands() -> str:
    """The options of commands that read no recipe, and the arguments of ``mmgrpo.train``."""
    from mmgrpo.api import train
    from mmgrpo.cli import evaluate_rewards, export, migrate, score, serve_rewards, train_reward, verify_reward
    from mmgrpo.cli.check_data import Args as CheckData
    from mmgrpo.cli.evaluate import Evaluate
    from mmgrpo.cli.sample import Sample

    options = {
        "sample": Sample(),
        "evaluate": Evaluate(),
        "check-data": CheckData("..."),
        "score": score.Args([]),
        "serve-rewards": serve_rewards.Args(),
        "evaluate-rewards": evaluate_rewards.Args(),
        "train-reward": train_reward.Args(),
        "verify-reward": verify_reward.Args(),
        "migrate": migrate.Args("..."),
        "export": export.Args("..."),
    }
    rows = [
        (f"`{name}`", code(f"{option}={value!r}" for option, value in vars(given).items()))
        for name, given in options.items()
    ]
    arguments = [
        parameter
        for parameter in inspect.signature(train).parameters.values()
        if parameter.kind != parameter.VAR_KEYWORD
    ]
    return grid(
        ("command", "options"), [*rows, ("`mmgrpo.train` in Python", f"`{', '.join(format_parameters(arguments))}`")]
    )


# ---- blocks


def blocks(kind: str) -> str:
    """The blocks of a kind, with their parameters and what they compute."""
    table = all_blocks()[kind]
    rows = [(f"`{signature(name, table[name])}`", does(table[name])) for name in sorted(table) if name.isidentifier()]
    return grid((kind, "computes"), rows)


def signature(name: str, block: Block) -> str:
    """The block with all of its parameters, those that have no default as ``...``."""
    parameters = block.parameters.values()
    given = [
        f"{parameter.name}={'...' if parameter.default is parameter.empty else repr(parameter.default)}"
        for parameter in parameters
    ]
    return f"{name}({', '.join(given)})" if given else name


def does(block: Block) -> str:
    """What the function of a block says first."""
    return sentence(inspect.getdoc(block.fn) or "")


def format_parameters(parameters: Iterable[inspect.Parameter]) -> Iterator[str]:
    """Parameters as they are written: those that have a default with it."""
    for parameter in parameters:
        yield parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default!r}"


# ---- rewards


def rewards() -> str:
    """Every reward with its parameters, what it measures, and what it adds to reports."""
    return grid(
        ("reward", "measures", "adds"),
        [
            (f"`{format_reward(name, entry)}`", summary_of(entry), adds(entry))
            for name, entry in sorted(entries().items())
        ],
    )


def function(entry: RewardEntry) -> Callable[..., Any]:
    """The function of a reward."""
    return load_object(entry.function, "rewards", own=False)


def format_reward(name: str, entry: RewardEntry) -> str:
    """The reward with its parameters; all have a weight, of one by default."""
    texts = [*format_parameters([*inspect.signature(function(entry)).parameters.values()][2:])]
    return f"{name}({', '.join(texts)})" if texts else name


def summary_of(entry: RewardEntry) -> str:
    """What the function of a reward says first."""
    return sentence(inspect.getdoc(function(entry)) or "")


def adds(entry: RewardEntry) -> str:
    """What a reward adds to reports."""
    return ", ".join(what for what, path in (("error rates", entry.rates), ("notes", entry.annotate)) if path)


def properties() -> str:
    """Every reward with what its manifest states."""
    rows = [
        (f"`{name}`", *facts(manifest))
        for name, entry in sorted(entries().items())
        if (manifest := entry.read_manifest()) is not None
    ]
    return grid(("reward", "scores", "value", "reads", "needs", "source"), rows)


def facts(manifest: Manifest) -> Iterator[str]:
    """The cells of a manifest."""
    packages = ", ".join(manifest.packages) + f" [{manifest.extra}]" * bool(manifest.extra)
    weights = [" ".join([name, *files]) for name, files in manifest.weights.items()]
    reads = [", ".join(manifest.reads), "complete groups" * manifest.group]
    source = [manifest.source, f"version {manifest.version}" * (manifest.version > 1)]
    for cell in (
        manifest.scores,
        [manifest.range, manifest.scale],
        [*reads, "not deterministic" * (not manifest.deterministic)],
        [packages, *weights, manifest.licence],
        source,
    ):
        yield "; ".join(filter(None, map(str, cell)))


TABLES: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "options of commands": commands,
    **{f"blocks of {kind}": partial(blocks, kind) for kind in all_blocks()},
    "rewards": rewards,
    "properties of rewards": properties,
}
