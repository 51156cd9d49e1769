"""Rules of the tables: conditions, texts, and which of several counts."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from mmgrpo.cli.migrate.draft import Draft
from mmgrpo.cli.migrate.rules import apply, holds
from mmgrpo.cli.migrate.sources import Source
from mmgrpo.cli.migrate.tables import PROJECTS, table
from mmgrpo.config.presets import PRESETS
from mmgrpo.config.registry import parse


def draft(**settings: Any) -> Draft:
    return Draft(table("trl"), Source("a.yaml", settings, program="train_lora.py"), "causal_lm")


@pytest.mark.parametrize(
    ("settings", "when", "expected"),
    [
        ({}, "{}", True),
        ({"beta": 0.1}, "{beta: true}", True),
        ({"beta": 0}, "{beta: true}", False),
        ({}, "{beta: false, use_peft: false}", True),
        ({}, "{bf16: null}", True),
        ({}, "{bf16: [false]}", False),  # null is not false
        ({"bf16": False}, "{bf16: [false]}", True),
        ({"bf16": False}, "{bf16: set}", True),
        ({"delta": 0}, "{delta: set, epsilon_high: null}", True),
        ({"loss_type": "sapo"}, "{loss_type: [cispo, sapo]}", True),
        ({"loss_type": "sapo"}, "{loss_type: {not: [cispo, sapo]}}", False),
        ({"lora_target_modules": ["all-linear"]}, "{lora_target_modules: all-linear}", True),
        ({"lora_target_modules": ["all-linear", "q"]}, "{lora_target_modules: all-linear}", False),
        ({"beta": 0.0}, "{beta|delta: given}", True),
        ({}, "{beta|delta: given}", False),
        ({}, "{beta|delta: absent}", True),
        ({"save_steps": 1}, "{save_steps: '>= 1'}", True),
        ({"save_steps": 1}, "{save_steps: '< 1'}", False),
        ({}, "{max_prompt_length: '> 0'}", False),  # null is no number
        ({}, "{family: [causal_lm]}", True),
        ({}, "{family: {not: [causal_lm]}}", False),
        ({}, "{program: _lora}", True),
        ({"epsilon": 0.3}, "{same: ['{epsilon_high|epsilon}', 0.3]}", True),
        ({"epsilon": 0.3, "epsilon_high": 0.4}, "{differ: ['{epsilon_high|epsilon}', '{epsilon}']}", True),
    ],
)
def test_conditions(settings: dict[str, Any], when: str, expected: bool):
    assert holds(draft(**settings), yaml.safe_load(when)) is expected


def test_the_first_rule_that_holds_counts_and_texts_are_filled():
    one = draft(epsilon=0.3, lora_target_modules="q, v", save_steps=7)
    blocks = apply(
        one,
        yaml.safe_load("""
        - {line: objective, when: {beta: true}, to: no}
        - {line: objective, to: "ppo(low={epsilon}, high={epsilon_high|epsilon})"}
        - {line: objective, to: no}
        - {line: terms, to: [], of: [beta]}
        - {add: terms, to: "entropy_bonus(coef={entropy_coef})"}
        - {set: save_every, to: "{save_steps}", note: why}
        - {set: save_every, to: 0}
        - {ask: save_every, why: "settled above"}
        - {ask: keep, why: "{save_total_limit|save_steps}", of: [save_total_limit]}
        - {set: keep, to: 3}
        - {set: model.lora_targets, to: ["{lora_target_modules}"]}
        - {leave: epsilon, why: "{epsilon}"}
        - {leave: beta, why: "not given"}
        """),
    )
    assert blocks == {
        "objective": ("ppo(low=0.3, high=0.3)", ("epsilon", "epsilon_high")),
        "terms": (["entropy_bonus(coef=0.0)"], ("beta", "entropy_coef")),
    }
    assert {key: (s.value, s.of, s.note) for key, s in one.settings.items()} == {
        "save_every": (7, ("save_steps",), "why"),
        "model.lora_targets": (["q", "v"], ("lora_target_modules",), ""),
    }
    assert one.questions == {"keep": ["7"]} and one.left == {"epsilon": "0.3"}
    with pytest.raises(ValueError, match="a.yaml: epsilon 0.3"):
        apply(one, [{"refuse": "epsilon {epsilon}"}])


@pytest.mark.parametrize("project", PROJECTS)
def test_rules_name_settings_and_blocks_that_exist(project: str):
    """Every rule is applied without its conditions, so no name in it is unknown."""
    theirs = table(project)
    assert theirs.preset in PRESETS
    for rules in theirs.rules.values():
        for rule in rules:
            keys = [key for keys in rule.get("when", {}) for key in keys.split("|")]
            assert {*keys, *rule.get("of", ())} - {"family", "program", "same", "differ"} <= {*theirs.rows}, rule
            texts = rule["to"] if isinstance(rule.get("to"), list) else [rule.get("to")]
            for text in texts if "line" in rule or "add" in rule else ():
                assert parse(text.replace("{", "'").replace("}", "'"))[0], rule
