"""Migration from TRL, against the installed TRL: its fields and defaults, its losses, its arithmetic of batches."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Any

import pytest
from trl import GRPOConfig, ModelConfig
from trl.scripts.grpo import GRPOScriptArguments

from mmgrpo.cli.migrate.draft import Draft, equal
from mmgrpo.cli.migrate.losses import advantages, kl, loss, mismatch, objective
from mmgrpo.cli.migrate.sources import Source
from mmgrpo.cli.migrate.tables import table
from mmgrpo.cli.migrate.tokens import batch, precision, steps, warmup
from mmgrpo.config.presets import PRESETS
from tests.unit.objectives.test_trl_losses import LIMIT, PAIRS

TABLE = table("trl")
NOT_FIELDS = {"config", "env", "accelerate_config", "datasets", "max_prompt_length", "warmup_ratio"}
NOT_FIELDS |= {"tools", "environment_factory"}
"""Keys of a file of ``trl grpo --config`` that are no fields of its dataclasses, parameters of its trainer, and fields
of older releases."""

OPEN_R1 = {
    *("system_prompt", "dataset_prompt_column", "chat_template", "overwrite_output_dir", "benchmarks", "callbacks"),
    *("hub_model_revision", "overwrite_hub_revision", "push_to_hub_revision"),
    *("wandb_log_unique_prompts", "wandb_entity", "wandb_project", "wandb_run_group"),
}
"""Fields that open-r1 adds, or takes from older releases."""


def fields() -> dict[str, dataclasses.Field[Any]]:
    """What ``trl grpo`` takes, by name."""
    kinds = (ModelConfig, GRPOScriptArguments, GRPOConfig)
    return {field.name: field for kind in kinds for field in dataclasses.fields(kind)}


def default_of(field: dataclasses.Field[Any]) -> Any:
    value = field.default
    if value is dataclasses.MISSING:
        value = None if field.default_factory is dataclasses.MISSING else field.default_factory()
    return value.value if isinstance(value, enum.Enum) else value


def draft(**settings: Any) -> Draft:
    return Draft(TABLE, Source("config.yaml", settings, processes=settings.pop("processes", 1)), "causal_lm")


def test_every_field_of_trl_is_in_the_table_and_nothing_else_is():
    assert {*TABLE.rows} - NOT_FIELDS - OPEN_R1 == {*fields()} - OPEN_R1
    assert len(fields()) > 200


def test_the_defaults_of_the_table_are_those_of_trl():
    theirs = {name: default_of(field) for name, field in fields().items()}
    ours = {name: TABLE.rows[name].default for name in theirs}
    assert {name: (ours[name], value) for name, value in theirs.items() if ours[name] != value} == {}


def test_the_version_that_the_table_names_is_the_installed_one():
    import trl

    assert f"TRL {trl.__version__} " in TABLE.source


@pytest.mark.parametrize("name", PAIRS)
def test_losses_become_those_that_are_shown_to_be_equal(name: str):
    settings, (text, weights), _ = PAIRS[name]
    theirs = {"epsilon" if key == "epsilon_low" else key: value for key, value in settings.items()}
    made = objective(draft(max_completion_length=LIMIT, **theirs))
    parameters = {"two_sided_clip(ceiling=1.4)": "two_sided_clip(low=0.2, high=0.2, ceiling=1.4)"}
    assert equal(made["objective"][0], parameters.get(text, text))
    assert equal(made["aggregation"][0], weights)


def test_vespo_has_the_constants_that_are_ours_by_default():
    made = objective(draft(loss_type="vespo"))["objective"][0]
    assert equal(made, "vespo(power_positive=2.0, rate_positive=3.0, power_negative=3.0, rate_negative=2.0)")


@pytest.mark.parametrize("kind", ["cispo", "sapo", "vespo"])
def test_a_ratio_per_sequence_that_has_no_counterpart_is_said(kind: str):
    one = draft(loss_type=kind, importance_sampling_level="sequence")
    objective(one)
    assert any(f"loss_type {kind} of a ratio per sequence has no counterpart" in text for text in one.warnings)


@pytest.mark.parametrize(
    ("settings", "terms"),
    [
        ({}, []),
        ({"beta": 0.04}, ["kl_unbiased(coef=0.04)"]),
        ({"beta": 0.04, "use_bias_correction_kl": False}, ["kl_k3(coef=0.04)"]),
        ({"entropy_coef": 0.01}, ["entropy_bonus(coef=0.01)"]),
    ],
)
def test_the_kl_is_the_estimator_that_trl_computes(settings: dict[str, Any], terms: list[str]):
    assert kl(draft(**settings))["terms"][0] == terms


@pytest.mark.parametrize(
    ("settings", "scale", "combine"),
    [
        ({}, "group_std(ddof=1, eps=1e-4)", "weighted_sum"),
        ({"scale_rewards": "batch"}, "batch_std(ddof=1, eps=1e-4)", "weighted_sum"),
        ({"scale_rewards": "none"}, "none", "weighted_sum"),
        ({"scale_rewards": True}, "group_std(ddof=1, eps=1e-4)", "weighted_sum"),
        ({"scale_rewards": False}, "none", "weighted_sum"),
        (
            {"multi_objective_aggregation": "normalize_then_sum"},
            "group_std(ddof=1, eps=1e-4)",
            "gdpo(eps=1e-4, ddof=1)",
        ),
    ],
)  # the scales are compared with TRL's advantages in tests/unit/objectives/test_trl_losses.py
def test_advantages_are_scaled_as_trl_does(settings: dict[str, Any], scale: str, combine: str):
    made = advantages(draft(**settings))
    assert equal(made["scale"][0], scale) and equal(made["combine"][0], combine)


def test_masks_and_quantiles_keep_their_numbers():
    one = draft(off_policy_mask_threshold=0.5, top_entropy_quantile=0.2)
    assert mismatch(one)["mismatch"][0] == "off_policy_mask(delta=0.5)"
    assert advantages(one)["credit"][0] == "top_entropy(fraction=0.2)"


def test_settings_that_are_a_preset_become_its_name():
    one = draft(loss_type="grpo", importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4)
    loss(one)
    assert one.settings["algorithm.preset"].value == "gspo"
    assert [key for key in one.settings if key.startswith("algorithm.")] == ["algorithm.preset"]
    two = draft(loss_type="grpo", beta=0.04)
    loss(two)
    assert {key: setting.value for key, setting in two.settings.items()} == {
        "algorithm.preset": "grpo",
        "algorithm.objective": "ppo(low=0.2, high=0.2)",
        "algorithm.terms": ["kl_unbiased(coef=0.04)"],
    } | {"algorithm.aggregation": PRESETS["grpo"]["aggregation"]}


@pytest.mark.parametrize(
    "settings",
    [
        {"per_device_train_batch_size": 8, "num_generations": 8},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 6, "num_generations": 8},
        {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "steps_per_generation": 8},
        {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "generation_batch_size": 64},
    ],
)
def test_sizes_are_those_that_trl_computes(settings: dict[str, Any], tmp_path: Path):
    theirs = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **settings)
    one = draft(**settings, num_iterations=3)
    batch(one)
    ours = {key: setting.value for key, setting in one.settings.items()}
    assert theirs.generation_batch_size is not None and theirs.num_generations is not None
    assert ours["data.prompts_per_step"] * ours["data.group_size"] == theirs.generation_batch_size
    assert ours["data.group_size"] == theirs.num_generations
    assert theirs.steps_per_generation is not None
    assert ours["optim.updates"] == theirs.steps_per_generation // theirs.gradient_accumulation_steps
    assert ours["optim.epochs"] == 3


def test_processes_multiply_a_batch_and_a_partial_group_is_refused():
    one = draft(per_device_train_batch_size=2, num_generations=8, processes=4)
    batch(one)
    assert one.settings["data.prompts_per_step"].value == 1
    with pytest.raises(
        ValueError, match=r"config\.yaml.*per_device_train_batch_size 2.*num_generations 8.*--processes"
    ):
        batch(draft(per_device_train_batch_size=2, num_generations=8))


def test_a_group_is_never_cut_between_updates():
    one = draft(per_device_train_batch_size=8, num_generations=16, steps_per_generation=8)
    batch(one)  # 64 completions of 4 prompts in 8 steps
    assert one.settings["optim.updates"].value == 4
    assert any("8 updates of 4 prompts" in text for text in one.warnings)


def test_epochs_become_steps_where_the_number_of_prompts_is_known():
    settings = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "num_generations": 8}
    one = draft(num_train_epochs=2.0, warmup_steps=0.1, num_iterations=2, **settings)
    one.rows = 100  # 4 prompts a rollout, so that an epoch has 25
    for convert in (batch, steps, warmup):
        convert(one)
    assert (one.settings["steps"].value, one.settings["optim.warmup"].value) == (100, 10)
    two = draft(num_train_epochs=2.0, warmup_steps=0.1, **settings)
    for convert in (batch, steps, warmup):
        convert(two)
    assert "steps" not in two.settings and "optim.warmup" not in two.settings
    assert any("--rows" in text for text in two.warnings) and any("optim.warmup" in text for text in two.warnings)


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ({}, "bfloat16"),
        ({"fp16": True}, "float16"),
        ({"bf16": False}, "float32"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16", "bf16": True}, "bfloat16"),
    ],
)
def test_the_precision_is_that_of_autocast(settings: dict[str, Any], dtype: str):
    one = draft(**settings)
    precision(one)
    assert one.settings["model.dtype"].value == dtype
