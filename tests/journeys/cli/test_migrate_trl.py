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
from mmgrpo.cli.migrate.rules import apply
from mmgrpo.cli.migrate.sources import Source
from mmgrpo.cli.migrate.tables import table
from mmgrpo.cli.migrate.tokens import batch
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
    made = apply(draft(max_completion_length=LIMIT, **theirs), TABLE.rules["loss"])
    parameters = {"two_sided_clip(ceiling=1.4)": "two_sided_clip(low=0.2, high=0.2, ceiling=1.4)"}
    assert equal(made["objective"][0], parameters.get(text, text))
    assert equal(made["aggregation"][0], weights)


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
