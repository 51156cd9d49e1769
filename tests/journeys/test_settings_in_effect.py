"""Every setting of every family has an effect, or says with which others it has one and is refused without them.

The table is the dataclasses: of a setting that declares needs (``mmgrpo.config.needs``) a value without effect is
refused by its name, and stays where the need is met; one that declares none is read by code that does not check it.
"""

from __future__ import annotations

import ast
import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.cli.train import read
from mmgrpo.config.needs import (
    FACTS,
    IMAGES,
    MEDIA,
    UNSET,
    VIDEOS,
    Condition,
    Needs,
    moot,
    needs_of,
    refuse_moot,
    sections_of,
    values_of,
)
from mmgrpo.config.ranges import Choice, declarations
from mmgrpo.config.reading import usual
from mmgrpo.config.settings import LAUNCH, config_class
from mmgrpo.data.splits import Splits
from mmgrpo.family import families
from mmgrpo.inputs import facts
from mmgrpo.objectives import MISMATCH
from mmgrpo.types import Media, Prompt, Turn
from mmgrpo.update import BATCH_NAMES
from tests import ROOT


def config_of(name: str) -> Any:
    """The default configuration of a family, with a model."""
    config = config_class(families()[name].sections)()
    return dataclasses.replace(config, model=dataclasses.replace(config.model, family=name))


def fields_of(config: Any) -> Iterator[tuple[str, str, type]]:
    """Section, name and class of every setting."""
    for section, settings in sections_of(config).items():
        for field in dataclasses.fields(settings):
            if not dataclasses.is_dataclass(getattr(settings, field.name)):
                yield section, field.name, type(settings)


def changed(config: Any, setting: str, value: Any) -> Any:
    """The configuration with another value of a setting."""
    section, _, name = setting.rpartition(".")
    if not section:
        return dataclasses.replace(config, **{name: value})
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **{name: value})})


def another(config: Any, setting: str, but: Sequence[Any] = ()) -> Any:
    """A value of a setting that is not its present one, nor one of ``but``; None where there is no other."""
    section, _, name = setting.rpartition(".")
    settings = getattr(config, section) if section else config
    kind, declared = declarations(type(settings))[name]
    value = getattr(settings, name)
    words: list[Any] = [*declared.words] if isinstance(declared, Choice) else ["one", "two"]
    if kind is bool:
        words = [True, False]
    elif kind in (int, float):
        words = [one for one in (kind(2), kind(3), kind(1), kind(0), kind(4)) if declared is None or one in declared]
        words += [0.5] if kind is float else []
    elif isinstance(value, list):
        return ["one"] if value != ["one"] else []
    return next((one for one in words if one != value and one not in but), None)


def meeting(config: Any, condition: Condition) -> Any:
    """A value that meets the condition, in this configuration."""
    value = values_of(sections_of(config))[condition.setting]
    if condition.values:
        one = condition.values[0]
        one = one.replace("*", "x") if isinstance(one, str) else one
        return [one] if isinstance(value, list) else one
    return value if condition.is_met(value) else another(config, condition.setting, condition.but or UNSET)


def failing(config: Any, condition: Condition) -> Any:
    """A value that does not meet the condition."""
    value = values_of(sections_of(config))[condition.setting]
    if not condition.is_met(value):
        return value
    if condition.values:
        return another(config, condition.setting, condition.values)
    return condition.but[0] if condition.but else {str: "", list: [], bool: False}.get(type(value), 0)


def without(config: Any, need: Needs, itself: str) -> tuple[Any, dict[str, bool]]:
    """The configuration where no condition of a need is met, and the facts."""
    known = {}
    for one in need.conditions:
        if one.setting in FACTS:
            known[one.setting] = False
        elif one.setting in values_of(sections_of(config)) and one.setting != itself:
            config = changed(config, one.setting, failing(config, one))
    return config, known


@pytest.mark.parametrize("name", families())
def test_a_setting_whose_need_is_not_met_is_refused_by_name_and_stands_where_it_is(name):
    plain = config_of(name)
    for section, field, kind in fields_of(plain):
        declared = needs_of(kind).get(field, ())
        for need in declared:
            setting = f"{section}.{field}" if section else field
            value = another(plain, setting, UNSET)
            if value is None:  # it can only be turned off, which asks for nothing
                continue
            given = changed(plain, setting, value)
            check_need(plain, given, setting, need, [other for other in declared if other != need])


def check_need(plain: Any, given: Any, setting: str, need: Needs, others: Sequence[Needs]) -> None:
    """A configuration with a value of a setting is refused where this need alone is not met, and not where it is."""
    there, known = values_of(sections_of(plain)), dict.fromkeys(FACTS, True)
    wanted = [one for other in others for one in other.conditions[:1] if one.setting not in FACTS]
    for one in wanted:
        if one.setting in there:
            given = changed(given, one.setting, meeting(given, one))
    unmet, absent = without(given, need, setting)
    with pytest.raises(ValueError, match=rf"(^|; ){setting}: got "):
        refuse_moot(unmet, plain, (), known | absent)
    if all(one.setting in there for one in wanted):
        for one in need.conditions:
            if one.setting in FACTS or one.setting in there:
                met = unmet if one.setting in FACTS else changed(unmet, one.setting, meeting(unmet, one))
                left = moot(sections_of(met), known if one.setting in FACTS else known | absent)
                assert setting not in [other.name for other in left], one.setting


@pytest.mark.parametrize("name", families())
def test_nothing_that_a_user_did_not_give_is_refused(name):
    config = config_of(name)
    assert moot(sections_of(config), dict.fromkeys(FACTS, False)) == []


def test_every_need_is_of_a_setting_that_some_family_has_or_of_a_known_fact():
    settings, asked = set(FACTS), set()
    for name in families():
        config = config_of(name)
        settings |= values_of(sections_of(config)).keys()
        for one in sections_of(config).values():
            asked |= {
                cond.setting for all_ in needs_of(type(one)).values() for need in all_ for cond in need.conditions
            }
    assert asked <= settings and {cause for causes in FACTS.values() for cause in causes} <= settings | {
        "algorithm.preset"
    }


def test_a_correction_without_another_sampler_is_one_that_compares_with_what_was_drawn_alone():
    present = {name for name, one in MISMATCH.items() if not BATCH_NAMES.issuperset(one.needs)}
    [need] = needs_of(type(config_of("sd3").algorithm))["mismatch"]
    assert {value for one in need.conditions if one.setting == "algorithm.mismatch" for value in one.values} == present


# ---- settings without a need


@cache
def words_read() -> frozenset[str]:
    """Names of attributes and texts in the code of the product, but for functions that check settings."""
    found = set()

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef) and node.name.lstrip("_").startswith(("check", "refuse")):
            return
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)  # of getattr
        for child in ast.iter_child_nodes(node):
            walk(child)

    for room in ("mmgrpo", "pipelines"):
        for file in Path(ROOT / room).rglob("*.py"):
            if file.name not in ("options.py", "settings.py", "needs.py"):
                walk(ast.parse(file.read_text(encoding="utf-8")))
    return frozenset(found)


@pytest.mark.slow
def test_every_setting_without_a_need_is_read_by_more_than_checks():
    unread = {
        f"{section}.{field}"
        for name in families()
        for section, field, kind in fields_of(config_of(name))
        if field not in needs_of(kind) and field not in words_read() and field not in LAUNCH
    }
    assert unread == set() and "no_setting_of_this_name" not in words_read()


# ---- who gave it


def refused(*arguments: str) -> str:
    with pytest.raises(ValueError) as caught:
        read(arguments, "")
    return str(caught.value)


def named(*arguments: str) -> list[str]:
    """What warnings say of a configuration that is accepted."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        read(arguments, "")
    return [str(one.message) for one in said]


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ("--model.lora-alpha 16", "model.lora_alpha.*16.*model.lora_rank"),
        ("--model.lora-targets to_q", "model.lora_targets.*to_q.*model.lora_rank"),
        ("--sampling.policy matching --sampling.kernel dance(eta=0.3)", "sampling.kernel.*dance.*matching"),
        ("--sampling.policy neighbors --sampling.plan sliding_window", "sampling.plan.*sliding_window.*neighbors"),
        ("--sampling.error velocity", "sampling.error.*velocity.*transitions"),
        ("--sampling.draws 4", "sampling.draws.*4.*transitions"),
        ("--optim.ema-every 3", "optim.ema_every.*3.*optim.ema"),
        ("--rollout.max-gap 1", "rollout.max_gap.*1.0.*policy"),
        ("--algorithm.mismatch tis", "algorithm.mismatch.*tis.*rollout.engine=policy"),
        ("--optim.step natural --optim.lr 3", "optim.lr.*3.0.*natural"),
        ("--model.negative-prompt x", "model.negative_prompt.*'x'.*model.guidance=1"),
        ("--model.family causal_lm --model.path a --sampling.turns 2", "sampling.turns.*2.*sampling.tools"),
        ("--model.family whisper --model.head-dtype float32", "model.head_dtype.*float32"),
    ],
)
def test_a_value_of_the_command_line_without_effect_is_refused(options, setting):
    import re

    assert re.search(setting, refused(*options.split()))


def test_a_value_of_a_file_is_refused_where_the_file_alone_takes_its_effect(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("model: {lora_alpha: 16}\n")
    assert "model.lora_alpha" in refused("--config", str(path))
    path.write_text("model: {lora_rank: 8, lora_alpha: 16}\n")
    assert named("--config", str(path)) == []
    [text] = named("--config", str(path), "--model.lora_rank", "0")
    assert text.startswith("model.lora_alpha: 16")
    assert "model.lora_alpha" in refused("--config", str(path), "--model.lora_rank", "0", "--model.lora-alpha", "8")


def test_a_value_of_a_preset_without_effect_is_named():
    [text] = named("--algorithm.preset", "grpo_tis")
    assert text.startswith("algorithm.mismatch: 'tis(cap=2.0)'")
    assert "algorithm.mismatch" in refused("--algorithm.preset", "grpo_tis", "--algorithm.mismatch", "tis(cap=3.0)")


def test_a_run_of_an_earlier_version_with_such_a_value_can_be_resumed(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("model: {lora_alpha: 16}\nsampling: {policy: matching, kernel: dance(eta=0.3)}\n")
    texts = named("--config", str(path), "--resume")
    assert [text.partition(":")[0] for text in texts] == ["model.lora_alpha", "sampling.kernel"]


@pytest.mark.slow
def test_no_recipe_has_a_value_without_effect():
    from mmgrpo.config.plugins import recipes

    assert {name: texts for name in recipes() if (texts := [t for t in named("--recipe", name)])} == {}


# ---- what rows decide


def rows(*kinds: str) -> Splits:
    parts = tuple(Media(kind, "a") for kind in kinds)
    return Splits([Prompt("what?", id="1", turns=(Turn("user", (*parts, "what?")),))])


def test_the_media_of_prompts_decide_on_the_settings_of_media():
    config = changed(config_of("qwen_vl"), "model.fps", 2.0)
    plain = usual(type(config), "grpo")
    assert {kind: facts(config, rows(kind))[VIDEOS] for kind in ("image", "video")} == {"image": False, "video": True}
    assert facts(config, rows())[MEDIA] is False and facts(config, rows("image"))[IMAGES] is True
    with pytest.raises(ValueError, match=r"model\.fps: got 2\.0.*videos"):
        refuse_moot(config, plain, (), facts(config, rows("image")))
    refuse_moot(config, plain, (), facts(config, rows("image", "video")))
    refuse_moot(config, plain)  # before the rows are read


def test_a_policy_in_python_is_refused_options_without_effect(tmp_path, monkeypatch):
    from pipelines import visual

    with pytest.raises(ValueError, match=r"model\.lora_alpha: got 3"):
        visual.policy("embedded:visual/scenes/base", lora_alpha=3.0)
    with pytest.raises(ValueError, match=r"sampling\.anchors: got 3.*transitions"):
        visual.policy("embedded:visual/scenes/base", anchors=3)
