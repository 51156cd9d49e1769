"""A recipe in the making: their values in the types of their defaults, what is said of them, and what is written."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from mmgrpo.cli.migrate.draft import Draft, coerce, equal, yaml_of
from mmgrpo.cli.migrate.recipe import (
    account,
    convert,
    direct,
    drop_defaults,
    recipe_of,
)
from mmgrpo.cli.migrate.sources import Source
from mmgrpo.cli.migrate.tables import Row, table
from mmgrpo.family import family


def draft(**settings: Any) -> Draft:
    return Draft(table("trl"), Source("a.yaml", settings), "causal_lm")


# ---- their values


@pytest.mark.parametrize(
    ("value", "default", "made"),
    [
        ("12", 5, 12),
        ("12", 5.0, 12.0),
        ("true", False, True),
        ("12", "x", "12"),
        ("12", None, "12"),
        ("12", ["a"], ["12"]),
        (3, 1.0, 3.0),
        (2**53 - 1, 1.0, float(2**53 - 1)),
        (2**53, 1.0, 2**53),  # a float would not hold the next
        (-(2**53), 1.0, -(2**53)),
        (3, 1, 3),
        (2.5, 5, 2.5),
        (False, "no", "no"),
        (False, "none", "no"),
        (False, "steps", "no"),
        (False, "left", False),
        (True, "no", True),
        (0, False, False),
        (1, False, True),
        (1.0, True, True),
        (0, 5, 0),
        (("a",), [], ("a",)),
        ([1], "x", [1]),
        (None, 5, None),
        ({"a": 1}, None, {"a": 1}),
    ],
)
def test_a_value_has_the_type_of_the_default(value: Any, default: Any, made: Any):
    assert repr(coerce(value, Row("k", default=default), "")) == repr(made)


@pytest.mark.parametrize(
    ("value", "default", "words"),
    [
        (2, False, "2.*true or false"),
        ("maybe", False, "maybe"),
        (True, 1.0, "true"),
        (True, 1, "true"),
        ("x", 1, "x,.*number"),
        ([1], 1, r"\[1\].*number"),
        (3, [], "3.*list"),
        ({}, "x", "got {}, expected text"),
    ],
)
def test_a_value_of_another_type_is_refused_unless_it_is_one_of_some_words(value: Any, default: Any, words: str):
    with pytest.raises(ValueError, match=f"a.yaml.*k.*{words}"):
        coerce(value, Row("k", default=default), "a.yaml: k")
    coerce(value, Row("k", default=default, values={"x": "y"}), "a.yaml: k")


def test_numbers_have_bounds_that_belong_to_them():
    for value in (0, 1, 0.5):
        assert draft(warmup_ratio=value).number("warmup_ratio") == value
    for value in (-0.1, 1.1, None):
        with pytest.raises(ValueError, match="a.yaml.*warmup_ratio.*0.*1"):
            draft(warmup_ratio=value).number("warmup_ratio")
    assert draft(delta=0).number("delta") == 0 and draft(delta=1e12).number("delta") == 1e12
    for value in (-1, 1.1e12):
        with pytest.raises(ValueError, match=r"0.*1e\+12"):
            draft(delta=value).number("delta")
    with pytest.raises(ValueError, match="delta.*true"):
        draft(delta=True).number("delta")


def test_counts_are_whole_and_words_are_known():
    assert repr(draft(delta=2.0).count("delta")) == "2" and draft(delta=1).count("delta") == 1
    with pytest.raises(ValueError, match="2.5"):
        draft(delta=2.5).count("delta")
    with pytest.raises(ValueError, match="0.*1"):
        draft(delta=0).count("delta")
    assert draft(loss_type="a").word("loss_type", iter("ab")) == "a"
    with pytest.raises(ValueError, match="a.yaml.*loss_type.*c"):
        draft(loss_type="c").word("loss_type", iter("ab"))


def test_a_setting_says_what_it_was_made_of_and_whether_that_was_given():
    one = draft(beta=1)
    one.set("a", 1, "beta", "seed", note="why")
    one.set("b", 2, "seed")
    assert [(s.value, s.of, s.note, s.given) for s in one.settings.values()] == [
        (1, ("beta", "seed"), "why", True),
        (2, ("seed",), "", False),
    ]
    one.leave("delta", "none")
    one.warn("a\nb", "epsilon")
    one.warn("a b", "top_p")
    assert one.warnings == ["a b"] and one.left == {"delta": "none"}
    assert one.mentioned == {"beta", "seed", "delta", "epsilon", "top_p"}
    assert (one["seed"], one["beta"], one.is_given("seed", "beta"), one.is_given("seed")) == (42, 1.0, True, False)


FLOW: dict[str, Any] = {
    "scale": ("batch_std(ddof=0, eps=1e-4)", ()),
    "shape": (["clamp(limit=5)"], ()),
    "select": (["drop_zero_spread"], ()),
    "objective": ("ppo(low=1e-4, high=1e-4)", ()),
}
"""The preset flow_grpo_fast."""


@pytest.mark.parametrize(
    ("settings", "blocks", "written"),
    [
        # lines that are the preset's, in another spelling
        ({}, {"terms": (["kl_k3(coef=4e-2)"], ("beta",))}, {"preset": ("grpo", ("beta",))}),
        # another preset is these lines exactly
        ({}, {"terms": ([], ("beta",)), "objective": ("gmpo(clip=0.4)", ("beta", "delta"))},
         {"preset": ("gmpo", ("beta", "delta"))}),
        # one for policies that denoise is no choice for one of tokens
        ({}, {"terms": ([], ("beta",)), **FLOW}, {"preset": ("grpo", ()), **FLOW, "terms": ([], ("beta",))}),
        # what is given is written even where it is the preset's own
        ({"delta": 1}, {"aggregation": ("per_sample", ("delta",)), "credit": ("broadcast", ("seed",)),
                        "scale": ("none", ())},
         {"preset": ("grpo", ()), "scale": ("none", ()), "aggregation": ("per_sample", ("delta",))}),
    ],
)  # fmt: skip
def test_an_algorithm_is_a_preset_and_what_differs_from_it(settings: dict[str, Any], blocks: Any, written: Any):
    one = draft(**settings)
    one.algorithm("grpo", blocks)
    made = {key.removeprefix("algorithm."): (s.value, s.of) for key, s in one.settings.items()}
    assert made == written and [*made] == [*written]
    assert one.mentioned == {key for _, of in blocks.values() for key in of}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("ppo(low=0.2, high=0.2)", "ppo(high=2e-1,low=0.2)", True),
        ("ppo(low=0.2)", "ppo(low=0.3)", False),
        (["a"], "a", True),
        (["a", "b"], ["b", "a"], False),
        ([], ["a"], False),
    ],
)
def test_equal_lines_can_be_spelled_in_several_ways(one: Any, other: Any, same: bool):
    assert equal(one, other) is same and equal(other, one) is same


@pytest.mark.parametrize("value", ["ü: #", "a\x85b", "a " * 100, ["ü", 1.5, None, True], {"a": [1]}, "no"])
def test_a_value_of_ours_is_one_line_of_yaml(value: Any):
    text = yaml_of(value)
    assert yaml.safe_load(text) == value and len(text.splitlines()) == 1
    assert ("ü" in text) is ("ü" in str(value))


# ---- the recipe


def test_a_setting_that_is_taken_as_it_is():
    one = draft(temperature=0.5, seed=None, lr_scheduler_type="Cosine", use_cpu="maybe")
    for key in ("temperature", "seed", "lr_scheduler_type", "use_cpu", "output_dir", "gradient_checkpointing"):
        direct(one, one.table.rows[key])
    assert {key: s.value for key, s in one.settings.items()} == {
        **{"sampling.temperature": 0.5, "optim.decay": "cosine", "model.gradient_checkpointing": True},
    }
    assert one.left == {
        "seed": "not set there; seed keeps our default",
        "use_cpu": "no such choice here; known: true, false",
    }
    assert one.warnings == ["model.device: use_cpu maybe: no such choice here; known: true, false"]
    swift = Draft(table("ms_swift"), Source("a", {}), "qwen_vl")
    direct(swift, swift.table.rows["truncation_strategy"])  # its default has no counterpart
    assert swift.settings == {} and swift.left == {} and swift.warnings == []


def test_unread_unknown_and_needless_settings_are_left():
    one = draft(tokne=1, vllm_mode="x", config="b.yaml", beta=1)
    one.source.unread["seed"] = "${SEED}"
    ran = []
    convert(one, dict.fromkeys((row.by for row in one.table.rows.values()), ran.append))  # rules too: none runs
    assert "nothing is executed" in one.left["seed"] and one.left["tokne"].startswith("unknown to TRL as it was read")
    assert one.left["vllm_mode"].startswith("rollouts are sampled by the trained network")
    assert one.left["config"].endswith(one.table.rows["config"].note)
    assert {*one.open} == {"seed", "tokne", "config"}  # a run would differ; vllm_mode changes nothing of it
    assert [re.sub(" is .*", "", text) for text in one.warnings] == [
        *("'tokne'", "config b.yaml"),
        *("model.path: no model", "data.train: no data set", "rewards: no reward"),
    ]
    assert len(ran) == len({row.by for row in one.table.rows.values() if row.by}) > 10  # each conversion once
    assert one.settings["optim.lr"].value == 1e-6 and "algorithm.terms" not in one.settings


def test_settings_that_the_family_lacks_and_defaults_that_are_ours_are_not_written():
    one = draft(max_steps=5, beta=1)
    one.set("model.max_pixels", 5, "max_steps", "top_p")  # causal_lm sees no pictures
    one.set("seed", 0, "seed")  # ours too
    one.set("steps", 300, "beta")
    one.set("sampling.temperature", 1.0, "temperature")  # ours too
    one.set("sampling.top_p", 0.5, "top_p")
    one.set("algorithm.preset", "grpo")
    one.set("algorithm.baseline", "group_mean")
    section = drop_defaults(one, family("causal_lm"))
    assert section == {
        "model": {"family": "causal_lm"},
        "steps": 300,
        "sampling": {"top_p": 0.5},
        "algorithm": {"preset": "grpo", "baseline": "group_mean"},
    }
    assert [*one.settings] == ["steps", "sampling.top_p", "algorithm.preset", "algorithm.baseline"]
    assert one.left == {"max_steps": "the family causal_lm has no model.max_pixels"}


def test_every_setting_of_the_source_is_accounted_for():
    one = draft(beta=1, seed=2, delta=3, epsilon=4)
    one.set("steps", 5, "beta")
    one.leave("seed", "why")
    one.mentioned.add("delta")
    account(one)
    assert one.left == {key: "has no effect with the other settings" for key in ("delta", "epsilon")} | {"seed": "why"}
    two = draft(delta=3, epsilon=4)
    two.warn("decide", "delta")
    account(two)
    assert two.left["delta"] == "see what is to be decided" and two.left["epsilon"].startswith("has no effect")


def test_what_the_command_line_says_comes_before_what_the_source_does(tmp_path):
    path = tmp_path / "a.sh"
    path.write_text("torchrun --nproc_per_node=4 train.py --per_device_train_batch_size 8 --num_train_epochs 1\n")
    cases: list[tuple[dict[str, Any], int]] = [({}, 4), ({"processes": 2}, 2)]
    for options, prompts in cases:
        assert yaml.safe_load(recipe_of("trl", str(path), **options)[0])["data"]["prompts_per_step"] == prompts
    assert yaml.safe_load(recipe_of("trl", str(path), rows=40)[0])["steps"] == 10
    assert yaml.safe_load(recipe_of("trl", str(path))[0])["steps"].startswith("??? ")
    assert (
        yaml.safe_load(recipe_of("trl", str(path), ["--model_name_or_path", "x"])[0])["model"]["family"] == "causal_lm"
    )
    named, _ = recipe_of("trl", str(path), ["--model_name_or_path", "x"], "qwen_vl")
    assert yaml.safe_load(named)["model"]["family"] == "qwen_vl"


def test_only_nested_projects_have_sections(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("worker: {rollout: {n: 3}}\n")
    for project in ("easyr1", "verl"):
        flags = [] if project == "easyr1" else ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=3"]
        text, _ = recipe_of(project, str(path), flags)
        assert ("unknown to verl" in text) is (project == "verl") and "worker.rollout.n 3" in text
    assert "#   worker {" in recipe_of("trl", str(path))[0]
