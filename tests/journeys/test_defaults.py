"""Defaults are those that the documentation states: one that changes unseen changes every run that relies on it."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import inspect
import pkgutil
import textwrap
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

import reward_models
from mmgrpo.advantages.baseline import BASELINES
from mmgrpo.advantages.combine import COMBINE
from mmgrpo.advantages.credit import CREDITS
from mmgrpo.advantages.scale import SCALES
from mmgrpo.advantages.select import AFTER, BEFORE
from mmgrpo.advantages.shape import SHAPES
from mmgrpo.advantages.transform import TRANSFORMS
from mmgrpo.advantages.weighting import KL_WEIGHTS, WEIGHTINGS
from mmgrpo.api import train
from mmgrpo.cli import evaluate_rewards, export, migrate, score, serve_rewards, train_reward, verify_reward
from mmgrpo.cli.check_data import Args as CheckData
from mmgrpo.cli.evaluate import Evaluate
from mmgrpo.cli.sample import Sample
from mmgrpo.config.conflicts import conflicts_of
from mmgrpo.config.needs import needs_of
from mmgrpo.config.plugins import load_object
from mmgrpo.config.registry import Block
from mmgrpo.config.settings import config_class
from mmgrpo.diffusion.kernels import KERNELS
from mmgrpo.diffusion.planners import PLANS
from mmgrpo.diffusion.schedules import GRIDS
from mmgrpo.family import families
from mmgrpo.objectives import AGGREGATIONS, MISMATCH, OBJECTIVES, OFF_POLICY_OBJECTIVES, TERMS
from mmgrpo.policies.flow_matching import ERRORS
from mmgrpo.prompts.samplers import SAMPLERS
from mmgrpo.prompts.trackers import TRACKERS
from mmgrpo.rewards import RewardEntry
from mmgrpo.runtime.networks import NETWORKS
from mmgrpo.scoring.manifest import Manifest
from reward_models import REWARDS
from tests import ROOT

TABLES = {
    "transform": TRANSFORMS,
    "weighting": WEIGHTINGS,
    "combine": COMBINE,
    "baseline": BASELINES,
    "scale": SCALES,
    "shape": SHAPES,
    "credit": CREDITS,
    "select": {**BEFORE, **AFTER},
    "sampler": SAMPLERS,
    "trackers": TRACKERS,
    "objective": OBJECTIVES,
    "off_policy": OFF_POLICY_OBJECTIVES,
    "terms": TERMS,
    "networks": NETWORKS,
    "mismatch": MISMATCH,
    "kl_weight": KL_WEIGHTS,
    "aggregation": AGGREGATIONS,
    "sampling.plan": PLANS,
    "sampling.kernel": KERNELS,
    "sampling.grid": GRIDS,
    "sampling.error": ERRORS,
}


def signature(name: str, block: Block) -> str:
    """The block with all of its parameters, those that have no default as ``...``."""
    parameters = list(inspect.signature(block.fn).parameters.values())[len(block.needs) :]
    empty = inspect.Parameter.empty
    texts = [f"{one.name}={'...' if one.default is empty else repr(one.default)}" for one in parameters]
    return f"{name}({', '.join(texts)})"


def settings() -> tuple[dict[str, dict[str, list[str]]], dict[str, Counter[str]]]:
    """Every setting to its defaults as text with the families that have each, and to its descriptions."""
    found: dict[str, dict[str, list[str]]] = {}
    about: dict[str, Counter[str]] = {}

    def walk(section: Any, prefix: str, name: str) -> None:
        texts, declared = descriptions(type(section)), needs_of(type(section))
        for field in dataclasses.fields(section):
            value, setting = getattr(section, field.name), prefix + field.name
            if dataclasses.is_dataclass(value):
                walk(value, f"{setting}.", name)
            else:
                found.setdefault(setting, {}).setdefault(repr(value), []).append(name)
                needed = f"Needs {'; and '.join(map(str, declared[field.name]))}." if field.name in declared else ""
                excluded = " ".join(map(str, conflicts_of(type(section)).get(field.name, ())))
                text = " ".join(one for one in (texts.get(field.name, ""), needed, excluded) if one)
                about.setdefault(setting, Counter())[text] += 1

    for name, one in families().items():
        walk(config_class(one.sections)(), "", name)
    return found, about


@cache
def descriptions(section: type) -> dict[str, str]:
    """The fields of a class of settings to the docstrings below them, those of its bases included."""
    described: dict[str, str] = {}
    for one in reversed(section.__mro__[:-1]):
        with contextlib.suppress(OSError):  # made at run time
            body = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0].body  # type: ignore[attr-defined]
            for field, text in pairwise(body):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    described[field.target.id] = " ".join(ast.literal_eval(text.value).split())  # type: ignore[union-attr]
    return described


def those(names: Sequence[str]) -> str:
    """Families in words: all of a modality by its name."""
    texts = []
    for modality in dict.fromkeys(one.modality for one in families().values()):
        members = [name for name, one in families().items() if one.modality == modality]
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
    return " Or: ".join(ordered if len(ordered) <= 4 else ordered[:1])


def cell(text: str) -> str:
    """A text in a cell of a table of Markdown."""
    return text.replace("|", r"\|").replace("<", r"\<")


def page() -> str:
    """``docs/settings.md``."""
    rows = []
    found, about = settings()
    for name, defaults in found.items():
        everywhere = sum(map(len, defaults.values())) == len(families())
        if everywhere and len(defaults) == 1:
            texts = [f"`{default}`" for default in defaults]
        else:
            texts = [f"`{default}` ({those(members)})" for default, members in defaults.items()]
        rows.append(f"| `{name}` | {'; '.join(texts)} | {cell(commonest(about[name]))} |")
    commands = [
        f"| `{name}` | {', '.join(f'`{option}={value!r}`' for option, value in vars(options).items())} |"
        for name, options in (
            *(("sample", Sample()), ("evaluate", Evaluate()), ("check-data", CheckData("..."))),
            *(("score", score.Args([])), ("serve-rewards", serve_rewards.Args())),
            *(("evaluate-rewards", evaluate_rewards.Args()), ("train-reward", train_reward.Args())),
            *(("verify-reward", verify_reward.Args()), ("migrate", migrate.Args("..."))),
            ("export", export.Args("...")),
        )
    ]
    blocks = []
    for line, table in TABLES.items():
        signatures = sorted(signature(name, block) for name, block in table.items())
        blocks.append(f"| `{line}` | {', '.join(f'`{one}`' for one in signatures if not one.endswith('()'))} |")
    rewards = [f"| `{reward(name, entry)}` | {adds(entry)} |" for name, entry in sorted(REWARDS.items())]
    parameters = [one for one in inspect.signature(train).parameters.values() if one.kind != one.VAR_KEYWORD]
    empty = inspect.Parameter.empty
    arguments = ", ".join(one.name if one.default is empty else f"{one.name}={one.default!r}" for one in parameters)
    commands.append(f"| `mmgrpo.train` in Python | `{arguments}` |")
    facts = [f"| `{name}` | {' | '.join(stated(entry.read_manifest()))} |" for name, entry in sorted(REWARDS.items())]
    return "\n".join(
        [HEAD, *rows, COMMANDS, *commands, BLOCKS_HEAD, *blocks, REWARD_HEAD, *rewards, FACTS_HEAD, *facts, ""]
    )


def reward(name: str, entry: RewardEntry) -> str:
    """The reward with its parameters; all have a weight, of one by default."""
    parameters = list(inspect.signature(load_object(entry.function, "rewards", own=False)).parameters.values())[2:]
    texts = [
        one.name if one.default is inspect.Parameter.empty else f"{one.name}={one.default!r}" for one in parameters
    ]
    return f"{name}({', '.join(texts)})" if texts else name


def adds(entry: RewardEntry) -> str:
    """What a reward adds to reports."""
    return ", ".join(what for what, path in (("error rates", entry.rates), ("notes", entry.annotate)) if path)


def stated(manifest: Manifest | None) -> list[str]:
    """The cells of a manifest."""
    assert manifest is not None
    value = [manifest.range, manifest.scale]
    reads = [
        ", ".join(manifest.reads),
        "complete groups" * manifest.group,
        "not deterministic" * (not manifest.deterministic),
    ]
    packages = ", ".join(manifest.packages) + f" [{manifest.extra}]" * bool(manifest.extra)
    weights = [" ".join([name, *files]) for name, files in manifest.weights.items()]
    cells = [manifest.scores, value, reads, [packages, *weights, manifest.licence], [manifest.source]]
    if manifest.version > 1:
        cells[-1] = [manifest.source, f"version {manifest.version}"]
    return ["; ".join(filter(None, map(str, cell))).replace("|", r"\|") for cell in cells]


HEAD = """# Settings and their defaults

Keys of a recipe, which are also options of `mmgrpo train` (`--optim.lr 1e-5`). Families in parentheses are those that
have the setting, or this default; *visual*, *vlm* and *speech* stand for all families of the modality. Where families
describe a setting in more than four ways, the most common one is given; `mmgrpo train --model.family NAME --help` has
that of each. *Needs* says with which other settings, or with which data, a setting has an effect. Without them a value
that you give is refused; one of a preset or a recipe whose effect your own settings take away is named in a warning.

| setting | default | description |
| --- | --- | --- |"""

COMMANDS = """
## Options of other commands

| command | options |
| --- | --- |"""

BLOCKS_HEAD = """
## Parameters of blocks

`...` marks a required parameter. Blocks that are not listed have no parameters; [algorithms](algorithms.md) describes
them.

| line | blocks |
| --- | --- |"""

REWARD_HEAD = """
## Parameters of rewards

Every reward also has a `weight`, by default 1. Some add corpus-level error rates to the results of a run, or
annotations to the samples of its report.

| reward | adds |
| --- | --- |"""


FACTS_HEAD = """
## Properties of rewards

What each reward scores, its range and scale, the fields of the prompt that it reads, its requirements (packages, in
brackets the extra that installs them; weights with their files, and their licence), and its source.

| reward | scores | value | reads | needs | source |
| --- | --- | --- | --- | --- | --- |"""


@pytest.mark.slow
def test_the_page_of_settings_holds_the_defaults_as_they_are():
    """``python -m tests.journeys.test_defaults`` writes the page."""
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == page()


def test_no_function_of_a_reward_unpickles_unasked():
    found = {}
    for one in pkgutil.walk_packages(reward_models.__path__, "reward_models."):
        for name, function in inspect.getmembers(importlib.import_module(one.name), callable):
            inner = inspect.unwrap(function)  # of a cache
            if inspect.isfunction(inner) and "allow_pickle" in (parameters := inspect.signature(inner).parameters):
                found[f"{function.__module__}.{name}"] = parameters["allow_pickle"].default
    assert len(found) >= 20 and set(found.values()) == {False, inspect.Parameter.empty}


if __name__ == "__main__":
    (ROOT / "docs" / "settings.md").write_text(page(), encoding="utf-8")
