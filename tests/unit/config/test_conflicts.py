"""Settings that do not go together: one table of all that are declared, and the runs in which real blocks meet them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest

from mmgrpo.cli.train import arithmetic, read
from mmgrpo.config.conflicts import (
    DECISIONS,
    FACTS,
    AtMost,
    Excludes,
    Where,
    conflicts,
    conflicts_of,
    declared_in,
    refuse_conflicts,
    where,
)
from mmgrpo.config.needs import UNSET, sections_of, values_of
from mmgrpo.config.registry import LEVELS, all_blocks
from mmgrpo.family import families
from mmgrpo.policies.categorical import CategoricalPolicy
from mmgrpo.prompts.added import ADDITIONS
from mmgrpo.requirements.blocks import refuse_beside
from mmgrpo.rounds.callback import Callback
from mmgrpo.types import RECORDS
from mmgrpo.update import LossRecipe
from pipelines import visual
from tests.building import recipe, trainer
from tests.journeys.test_settings_in_effect import another, changed, config_of
from tests.speaking import TableModel, table_prompts

CONFIGS = {name: config_of(name) for name in families()}


def pairs() -> dict[tuple[str, Excludes, Where], str]:
    """Every declared conflict with one other setting, and the first family that has both settings."""
    found: dict[tuple[str, Excludes, Where], str] = {}
    for family, config in CONFIGS.items():
        known = {*values_of(sections_of(config)), *FACTS}
        for section, settings in sections_of(config).items():
            for field, declared in conflicts_of(type(settings)).items():
                for one in (one for one in declared if isinstance(one, Excludes)):
                    for other in (other for other in one.others if other.setting in known):
                        found.setdefault((f"{section}.{field}", one, other), family)
    return found


PAIRS = [(family, *pair) for pair, family in pairs().items()]


def among(config: Any, traits: Any) -> list[Any]:
    """The conflicts of a configuration."""
    sections = sections_of(config)
    return conflicts(values_of(sections), declared_in({name: type(one) for name, one in sections.items()}), traits)


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
    elif there.setting in FACTS:
        value = "anything"
    else:
        value = another(config, there.setting, there.but or UNSET)
    return value, trait


@pytest.mark.parametrize(
    ("family", "name", "one", "other"), PAIRS, ids=[f"{name}-{other.setting}" for _, name, _, other in PAIRS]
)
def test_a_conflict_is_refused_in_both_directions_by_both_names(family, name, one, other):
    plain = CONFIGS[family]
    places = (replace(one.when, setting=name), other, *filter(None, [one.given]))
    given = {there.setting: meeting(plain, there) for there in places}
    assert len(given) == len(places) and None not in given.values()
    traits = {(setting, "block"): frozenset({trait}) for setting, (_, trait) in given.items() if trait}
    facts = {fact: given[fact][0] for fact in FACTS if fact in given}
    words = rf"(^|; ){re.escape(name)}: got .* with {re.escape(other.setting)}="
    for order in (given, dict(reversed(given.items()))):
        config = plain
        for setting, (value, _) in order.items():
            config = config if setting in FACTS else changed(config, setting, value)
        with pytest.raises(ValueError, match=words):
            refuse_conflicts(sections_of(config), traits, facts)
    assert not among(plain, traits)
    if not other.among(values_of(sections_of(plain)).get(other.setting), {}):  # else its default is the conflict
        alone = changed(plain, name, given[name][0])
        assert other.setting not in [left.other for left in among(alone, traits) if left.name == name]


def test_every_setting_and_trait_of_a_conflict_is_known():
    settings = {name for config in CONFIGS.values() for name in values_of(sections_of(config))} | {*FACTS}
    blocks = [block for table in all_blocks().values() for block in table.values()]
    inputs = {name for block in blocks for name in block.needs} | RECORDS.keys()
    parameters = {name for block in blocks for name in block.parameters} | {"by", "level", "method"}
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


def bounds() -> dict[tuple[str, AtMost], str]:
    """Every declared bound of a setting by another, and the first family that has both settings."""
    declared: dict[tuple[str, AtMost], str] = {}
    for family, config in CONFIGS.items():
        for section, settings in sections_of(config).items():
            for name, several in conflicts_of(type(settings)).items():
                for one in several:
                    if isinstance(one, AtMost):
                        declared.setdefault((f"{section}.{name}", one), family)
    return declared


BOUNDS = [(family, *pair) for pair, family in bounds().items()]


@pytest.mark.parametrize(("family", "name", "one"), BOUNDS, ids=[name for _, name, _ in BOUNDS])
def test_a_number_above_that_of_another_setting_is_refused_by_both_names(family, name, one):
    plain = CONFIGS[family]
    if one.given:
        plain = changed(plain, one.given.setting, meeting(plain, one.given)[0])
    both = changed(changed(plain, name, 12), one.setting, 12)
    assert not among(both, {})
    assert not among(changed(changed(plain, one.setting, 0), name, 12), {}), "0 is no bound"
    for config in (changed(both, name, 13), changed(both, one.setting, 11)):
        with pytest.raises(ValueError, match=rf"{re.escape(name)}: got 1\d, .*{re.escape(one.setting)}=1\d"):
            refuse_conflicts(sections_of(config))


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
        ("tokens", recipe(), {"aggregation": "by_category"}, "aggregation.*by_category.*data.offline=0"),
        ("tokens", recipe(baseline="greedy", combine="minimum"), {}, "baseline.*greedy.*combine=minimum"),
        ("tokens", recipe(baseline="greedy", combine="gdpo"), {}, "baseline.*greedy.*combine=gdpo"),
        ("tokens", recipe(baseline="greedy", weighting=["hypervolume"]), {}, "baseline.*greedy.*weighting=hypervolume"),
        (
            "tokens",
            recipe(baseline="greedy", transform=["clip(low=0, high=1)"]),
            {},
            "baseline.*greedy.*transform=clip",
        ),
        (
            "tokens",
            recipe(baseline="static_reference", combine="per_reward"),
            {},
            "static_reference.*per_reward",
        ),
        ("tokens", recipe(credit="step_return"), {}, "credit.*step_return.*baseline=group_mean.*set.*baseline=none"),
        ("tokens", recipe(credit="step_return", baseline="none"), {}, "credit.*step_return.*scale=group_std"),
        (
            "tokens",
            recipe(credit="step_return", baseline="none", scale="none", shape=["clamp(limit=5)"]),
            {},
            "credit.*step_return.*shape=clamp",
        ),
        (
            "tokens",
            recipe(credit="step_return", baseline="none", scale="none", combine="minimum"),
            {},
            "credit.*step_return.*combine=minimum",
        ),
    ],
)
def test_blocks_that_do_not_go_together_are_refused_for_any_policy(decisions, advantages, changes, words):
    with pytest.raises(ValueError, match=rf"algorithm\..*{words}"):
        refuse_beside(advantages, loss(**changes), {DECISIONS: decisions})


def test_blocks_that_go_together_are_taken():
    for changes in ({"hint": "forced"}, {"supervised": "nll(coef=0.1)"}):
        refuse_beside(recipe(baseline="greedy"), loss(**changes), {DECISIONS: "tokens"})
    refuse_beside(STEPS, loss(supervised="nll(coef=0.1)"), {DECISIONS: "tokens"})
    refuse_beside(recipe(), loss(added="answers", replay="replay"), {DECISIONS: "matching"})


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
        (
            ("--rollout.engine", "served", "--rollout.url", "http://a:1", *HELD),
            "rollout.max_staleness.*1.*sampling.policy=transitions.*diffusion_nft",
        ),
        ((*TEXTS, "--rollout.engine", "vllm", "--rollout.quantization", "fp8"), "rollout.quantization.*mismatch=none"),
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
        (
            ("--rollout.engine", "sampler", "--sampling.policy", "neighbors"),
            "rollout.engine.*sampling.policy=neighbors",
        ),
        (
            ("--rollout.engine", "sampler", "--algorithm.preset", "diffusion_nft", "--sampling.explore-steps", "2"),
            "rollout.engine.*sampling.explore_steps=2",
        ),
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


@pytest.mark.parametrize(
    ("used", "blocks", "names"),
    [
        ({"data.offline": 0.5}, {"weighting": ["least_first"]}, "data.offline.*0.5.*algorithm.weighting=least_first"),
        ({"sampling.completion_steps": 2}, {}, "sampling.completion_steps.*2.*algorithm.credit=broadcast"),
        ({"sampling.states": "judged()"}, {}, "sampling.states.*judged.*algorithm.credit=broadcast"),
        ({"sampling.tools": ["count"]}, {"credit": "step_gain"}, "sampling.tools.*count.*algorithm.credit=step_gain"),
        ({"rollout.max_staleness": 1, "data.offline": 1.0}, {}, "rollout.max_staleness.*1.*data.offline=1.0"),
    ],
)
def test_what_stands_for_settings_is_refused_as_they_are(used, blocks, names):
    with pytest.raises(ValueError, match=names):
        refuse_beside(recipe(**blocks), loss(), {DECISIONS: "tokens", **used})


class Given(Callback):
    """Stands for rounds of given answers."""

    used = MappingProxyType({"data.offline": 0.5})


def test_a_trainer_by_hand_asks_its_policy_and_its_callbacks(tmp_path):
    """Whatever made them: each says for which settings it stands."""
    made = partial(trainer, folder=tmp_path, prompts=table_prompts(2))
    policy = CategoricalPolicy(TableModel(2, 5))
    with pytest.raises(ValueError, match=r"data\.offline: got 0.5 with algorithm\.weighting=least_first"):
        made(policy, advantages=recipe(weighting=["least_first"]), callbacks=[Given()])
    policy.used = {"sampling.completion_steps": 2}  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"sampling\.completion_steps: got 2 with algorithm\.credit=broadcast"):
        made(policy)
