"""Settings that do not go together: one table of all that are declared, and the runs in which real blocks meet them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from mmgrpo.cli.train import arithmetic, read
from mmgrpo.config.conflicts import DECISIONS, Excludes, Where, conflicts, conflicts_of, refuse_conflicts, where
from mmgrpo.config.needs import UNSET, sections_of, values_of
from mmgrpo.config.registry import LEVELS, registered
from mmgrpo.family import families
from mmgrpo.prompts.added import ADDITIONS
from mmgrpo.requirements.blocks import refuse_beside
from mmgrpo.types import RECORDS
from mmgrpo.update import LossRecipe
from pipelines import visual
from tests.building import recipe
from tests.journeys.test_settings_in_effect import another, changed, config_of

CONFIGS = {name: config_of(name) for name in families()}


def pairs() -> dict[tuple[str, Excludes, Where], str]:
    """Every declared conflict with one other setting, and the first family that has both settings."""
    found: dict[tuple[str, Excludes, Where], str] = {}
    for family, config in CONFIGS.items():
        known = {*values_of(sections_of(config)), DECISIONS}
        for section, settings in sections_of(config).items():
            for field, declared in conflicts_of(type(settings)).items():
                for one in declared:
                    for other in (other for other in one.others if other.setting in known):
                        found.setdefault((f"{section}.{field}", one, other), family)
    return found


PAIRS = [(family, *pair) for pair, family in pairs().items()]


def meeting(config: Any, there: Where) -> tuple[Any, str]:
    """A value of a setting as a conflict asks, and a trait that it must have."""
    value, trait = values_of(sections_of(config)).get(there.setting, ""), ""
    if there.having or there.lacking:
        trait = "".join(there.having[:1]).replace("*", "x") or "another"
        value = ["block"] if isinstance(value, list) else "block"
    elif there.values:
        value = there.values[0]
    elif there.setting == DECISIONS:
        value = "matching"
    else:
        value = another(config, there.setting, there.but or UNSET)
    return value, trait


@pytest.mark.parametrize(
    ("family", "name", "one", "other"), PAIRS, ids=[f"{name}-{other.setting}" for _, name, _, other in PAIRS]
)
def test_a_conflict_is_refused_in_both_directions_by_both_names(family, name, one, other):
    plain, decisions = CONFIGS[family], ""
    given = {there.setting: meeting(plain, there) for there in (replace(one.when, setting=name), other)}
    assert len(given) == 2 and None not in given.values()
    traits = {(setting, "block"): frozenset({trait}) for setting, (_, trait) in given.items() if trait}
    decisions = given[DECISIONS][0] if DECISIONS in given else ""
    words = rf"(^|; ){re.escape(name)}: got .* with {re.escape(other.setting)}="
    for order in (given, dict(reversed(given.items()))):
        config = plain
        for setting, (value, _) in order.items():
            config = config if setting == DECISIONS else changed(config, setting, value)
        with pytest.raises(ValueError, match=words):
            refuse_conflicts(sections_of(config), traits, decisions)
    assert not conflicts(sections_of(plain), traits)
    if not other.among(values_of(sections_of(plain)).get(other.setting), {}):  # else its default is the conflict
        alone = changed(plain, name, given[name][0])
        assert other.setting not in [left.other for left in conflicts(sections_of(alone), traits) if left.name == name]


def test_every_setting_and_trait_of_a_conflict_is_known():
    settings = {name for config in CONFIGS.values() for name in values_of(sections_of(config))} | {DECISIONS}
    blocks = [block for table in registered().values() for block in table.values()]
    inputs = {name for block in blocks for name in block.needs} | RECORDS.keys()
    parameters = {name for block in blocks for name in block.parameters} | {"by", "level"}
    for _, name, one, other in PAIRS:
        assert {name, other.setting} <= settings
        for trait in (*one.when.having, *other.having, *filter(None, [other.lacking])):
            parameter, _, value = trait.partition("=")
            assert (parameter in parameters) if value else (trait in inputs or trait == "*@*"), trait
            assert parameter != "level" or value in LEVELS
    texts = {one.when.values for _, name, one, _ in PAIRS if name == "algorithm.added" and one.when.values}
    assert {value for values in texts for value in values} == ADDITIONS.keys() - {"none", "answers", "drawn"}


def test_a_block_of_ones_own_is_taken_by_what_it_reads_and_not_by_its_name():
    named, has = where("algorithm.added", "refined"), where("algorithm.credit", having="turn")
    assert named.among("my_rows:refined", {}) == [] and named.among("refined(count=2)", {}) == ["refined(count=2)"]
    assert has.among("my_credit:mine", {("algorithm.credit", "my_credit:mine"): frozenset({"turn"})})
    without = where("algorithm.credit", lacking="turn")
    assert without.among("mine", {}) == [] and without.among("mine", {("algorithm.credit", "mine"): frozenset()})
    assert has.among(None, {}) == [] and where("sampling.plan", having="at=*,*").among("plan(at=[1, 2])", {})


# ---- real blocks


def count(items: list[str]) -> int:
    """Count.

    Args:
        items: What is counted.
    """
    return len(items)


def loss(**changes: Any) -> LossRecipe:
    return LossRecipe.of("ppo(low=0.2, high=0.2)", changes.pop("aggregation", "per_sample"), **changes)


STEPS = recipe(credit="step_return", baseline="none", scale="none")


@pytest.mark.parametrize(
    ("decisions", "advantages", "changes", "words"),
    [
        ("tokens", recipe(weighting=["gradient(rate=1)"]), {"hint": "staged"}, "weighting.*gradient.*hint"),
        ("tokens", recipe(weighting=["gradient(rate=1)"]), {"supervised": "nll(coef=0.1)"}, "weighting.*supervised"),
        ("tokens", STEPS, {"replay": "replay(count=1)"}, "credit.*step_return.*replay"),
        ("tokens", STEPS, {"added": "answers"}, "credit.*step_return.*added"),
        ("tokens", recipe(baseline="greedy"), {"added": "answers"}, "baseline.*greedy.*added"),
        ("tokens", recipe(baseline="greedy"), {"hint": "staged"}, "baseline.*greedy.*hint"),
        ("tokens", recipe(baseline="greedy"), {"replay": "replay(count=2)"}, "replay.*baseline=greedy"),
        ("tokens", recipe(baseline="static_reference"), {"replay": "replay"}, "replay.*static_reference"),
        ("tokens", recipe(), {"hint": "staged", "terms": ["perception(gamma=0.01)"]}, "hint.*terms=perception"),
        ("matching", recipe(), {"replay": "replay(old='one')"}, "replay.*matching"),
        ("gaussian", recipe(), {"supervised": "nll(coef=0.1, phi=True)"}, "supervised.*gaussian"),
        ("gaussian", recipe(), {"added": "refined"}, "added.*refined.*gaussian"),
        ("gaussian", recipe(), {"added": "answers(old='one')"}, "added.*answers.*gaussian"),
        ("matching", recipe(), {"hint": "budget(tokens=8)"}, "hint.*matching"),
        ("tokens", recipe(), {"aggregation": "by_category"}, "aggregation.*by_category.*objective=ppo"),
    ],
)
def test_blocks_that_do_not_go_together_are_refused_for_any_policy(decisions, advantages, changes, words):
    with pytest.raises(ValueError, match=rf"algorithm\.{words}"):
        refuse_beside(advantages, loss(**changes), decisions)


def test_blocks_that_go_together_are_taken():
    for changes in ({"hint": "forced"}, {"supervised": "nll(coef=0.1)"}):
        refuse_beside(recipe(baseline="greedy"), loss(**changes), "tokens")
    refuse_beside(STEPS, loss(supervised="nll(coef=0.1)"), "tokens")
    refuse_beside(recipe(), loss(added="answers", replay="replay"), "matching")


TEXTS = ("--model.family", "causal_lm", "--model.path", "nowhere")
HELD = ("--rollout.max-staleness", "1")
SCHEDULE = "sampling.temperature=adaptive(0.5, by='entropy', target=1.0, rate=0.1, least=0.1)"
TREE = ("--sampling.tree", "text_tree(children=2, depth=3, tokens=2)", "--data.group-size", "8")
TOOLS = ("--sampling.tools", f"{__name__}:count")
OF_STEPS = ("--algorithm.baseline", "none", "--algorithm.scale", "none", "--algorithm.credit")
PAIRED = ("--algorithm.preset", "dpo", "--data.offline")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ((*TEXTS, *HELD, "--algorithm.hint", "staged(above=0.5)"), "rollout.max_staleness.*1.*algorithm.hint"),
        ((*TEXTS, *HELD, "--algorithm.networks", "average(samples=True)"), "rollout.max_staleness.*samples=True"),
        ((*TEXTS, *HELD, "--schedules", SCHEDULE), "rollout.max_staleness.*sampling.temperature=adaptive"),
        ((*TEXTS, *HELD, "--data.offline", "0.5", "--algorithm.preset", "dpo"), "rollout.max_staleness.*data.offline"),
        ((*TEXTS, *TREE, "--sampling.states", "judged()"), r"sampling.tree.*sampling.states=judged"),
        ((*TEXTS, *TREE, "--sampling.truncated", "mask"), "sampling.tree.*sampling.truncated=mask"),
        ((*TEXTS, *TREE, "--rollout.engine", "sampler"), "sampling.tree.*rollout.engine=sampler"),
        ((*TEXTS, "--sampling.search", "beam", "--rollout.engine", "vllm"), "rollout.engine.*sampling.search=beam"),
        (
            (*TEXTS, "--data.reference-in-group", "--algorithm.added", "refined"),
            "algorithm.added.*refined.*reference_in_group=true",
        ),
        ((*TEXTS, "--model.quantize", "4bit"), "model.quantize.*4bit.*model.lora_rank=0"),
        (
            (*TEXTS, *PAIRED, "1", "--algorithm.weighting", "least_first"),
            "data.offline.*algorithm.weighting=least_first",
        ),
        ((*TEXTS, *PAIRED, "0.5", "--algorithm.aggregation", "by_category"), "by_category.*data.offline=0.5"),
        ((*TEXTS, *TOOLS, "--sampling.states", "judged(by='x')"), "sampling.tools.*count.*sampling.states=judged"),
        ((*TEXTS, *TOOLS, "--algorithm.credit", "looking(threshold=0.5, gain=1.0)"), "sampling.tools.*credit=looking"),
        (("--rollout.engine", "sampler", "--sampling.policy", "matching"), "rollout.engine.*sampling.policy=matching"),
        (("--rollout.engine", "sampler", "--sampling.rollout-guidance", "2"), "rollout.engine.*rollout_guidance=2"),
        (
            ("--rollout.engine", "sampler", "--sampling.plan", "expand_prune(at=[2], keep=[4])"),
            "rollout.engine.*sampling.plan=expand_prune",
        ),
        (
            ("--rollout.engine", "sampler", "--sampling.plan", "one_step_branch(intervals=[1, 2])"),
            "rollout.engine.*sampling.plan=one_step_branch",
        ),
        (
            ("--sampling.completion-steps", "2", "--sampling.plan", "expand_prune(at=[2], keep=[4])"),
            "sampling.completion_steps.*2.*sampling.plan=expand_prune",
        ),
        (("--sampling.completion-steps", "4"), "sampling.completion_steps.*4.*algorithm.credit=broadcast"),
        ((*TEXTS, "--sampling.states", "judged()"), "sampling.states.*algorithm.credit=broadcast"),
        ((*TEXTS, *TOOLS, *OF_STEPS, "step_gain"), "sampling.tools.*algorithm.credit=step_gain.*turn_return"),
        ((*TEXTS, *TOOLS, *OF_STEPS, "step_return(over='group')"), "sampling.tools.*algorithm.credit=step_return"),
        (("--data.offline", "1", "--algorithm.preset", "dpo"), "data.offline.*decisions=gaussian"),
        (("--model.compile", "--distributed.shard", "full"), "model.compile.*distributed.shard=full"),
        (
            ("--optim.optimizer", "adamw_8bit", "--distributed.shard", "full"),
            "distributed.shard.*optim.optimizer=adamw_8bit",
        ),
    ],
)
def test_a_run_with_both_is_refused_before_anything_is_loaded(words: Sequence[str], names: str):
    with pytest.raises(ValueError, match=names):
        arithmetic(read(words, ""))


def test_a_policy_in_python_is_refused_options_that_do_not_go_together():
    make = partial(visual.policy, "embedded:visual/scenes/base", policy="matching")
    with pytest.raises(ValueError, match=r"sampling\.solver.*dpmpp_2m.*sampling\.explore_steps=2"):
        make(solver="dpmpp_2m", explore_steps=2)
