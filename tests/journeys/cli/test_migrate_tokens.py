"""Settings of TRL and ms-swift become ours: each conversion by itself, on both sides of every condition."""

from __future__ import annotations

from typing import Any

import pytest

from mmgrpo.cli.migrate.sources import Source
from mmgrpo.cli.migrate.tokens import family_of
from mmgrpo.config.names import plural
from tests.journeys.cli.migrating import ALL_LINEAR, ASSUMED, MEMORY, cases, convert, lora, same, values, warned

BOTH = ["trl", "ms_swift"]


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Qwen/Qwen2.5-VL-3B-Instruct", "qwen_vl"),
        ("embedded:vlm", "qwen_vl"),
        ("HuggingFaceTB/SmolVLM-256M", "smolvlm"),
        ("Idefics3", "smolvlm"),
        ("Qwen/Qwen2.5-3B", "causal_lm"),
        ("", "qwen_vl"),
    ],
)
@pytest.mark.parametrize(
    "key", ["model_name_or_path", "model", "worker.actor.model.model_path", "actor_rollout_ref.model.path"]
)
def test_the_family_follows_from_the_name_of_the_model(key: str, name: str, family: str):
    assert family_of(Source("a", {key: name})) == family_of(Source("a", {key: name, "seed": "vl"})) == family


# ---- sizes

SIZES = {"per_device_train_batch_size": 4, "num_generations": 8}


@pytest.mark.parametrize("project", BOTH)
@pytest.mark.parametrize(
    ("settings", "processes", "numbers", "words"),
    [
        # completions of a rollout; prompts; updates: 4 on each of 6 processes are 3 prompts of 8
        ({}, 6, (24, 3, 1), []),
        ({"gradient_accumulation_steps": 4}, 0, (16, 2, 1), [ASSUMED]),
        ({"generation_batch_size": 64, "gradient_accumulation_steps": 2}, 2, (64, 8, 4), []),
        ({"generation_batch_size": 8, "gradient_accumulation_steps": 2}, 2, (16, 2, 1), []),
        ({"steps_per_generation": 6, "gradient_accumulation_steps": 2}, 2, (48, 6, 3), []),
        ({"generation_batch_size": 16, "steps_per_generation": 6}, 2, (16, 2, 2), []),
        ({"generation_batch_size": 24, "per_device_train_batch_size": 8}, 1, (24, 3, 3), []),
        ({"generation_batch_size": 16}, 1, (16, 2, 2), ["4 updates of 2 prompts"]),
    ],
)
def test_batches(project: str, settings: dict[str, Any], processes: int, numbers: tuple[int, ...], words: list[str]):
    draft = convert(project, "batch", SIZES | {"num_iterations": 5} | settings, processes=processes)
    completions, prompts, updates = numbers
    size, on = settings.get("per_device_train_batch_size", 4), plural(processes or 1, "process", "processes")
    assert values(draft) == {
        "data.prompts_per_step": [prompts, f"{completions} completions of {on}"],
        "data.group_size": 8,
        "optim.updates": updates,
        "optim.epochs": 5,
        "optim.micro_batch_size": [size, MEMORY],
    }
    assert warned(draft, *words)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_generations": 3},  # 4 completions are no whole groups of 3
        {"num_generations": 2, "gradient_accumulation_steps": 2, "generation_batch_size": 12},  # 12 are no steps of 8
    ],
)
def test_a_rollout_is_of_whole_groups_and_steps(settings: dict[str, Any]):
    with pytest.raises(ValueError, match="per_device_train_batch_size 4.*1"):
        convert("trl", "batch", SIZES | settings)


ROUND = SIZES | {"gradient_accumulation_steps": 2}  # one prompt, one step


@pytest.mark.parametrize(
    ("settings", "rows", "steps", "note"),
    [
        ({"max_steps": 7}, 100, 7, ""),
        ({"max_steps": 1}, 0, 1, ""),
        ({"max_steps": 0, "num_train_epochs": 2}, 100, 200, "100 prompts"),
        ({}, 10, 30, "10 prompts"),  # 3 epochs
        ({"num_train_epochs": 0.25}, 10, 2, "10 prompts"),
        ({"num_train_epochs": 0.001}, 10, 1, "10 prompts"),
        ({"num_iterations": 2, "generation_batch_size": 32}, 8, 48, "8 prompts"),  # 4 prompts, 4 updates, 2 epochs
    ],
)
def test_steps(settings: dict[str, Any], rows: int, steps: int, note: str):
    draft = convert("trl", "batch steps", ROUND | settings, rows=rows)
    assert values(draft)["steps"] == ([steps, note] if note else steps) and warned(draft)


@pytest.mark.parametrize("settings", [{}, {"max_steps": -1, "num_train_epochs": 2.0}, {"max_steps": None}])
def test_steps_that_cannot_be_known(settings: dict[str, Any]):
    draft = convert("trl", "batch steps", ROUND | settings)
    epochs = settings.get("num_train_epochs", 3.0)
    assert warned(draft, f"num_train_epochs {epochs} and the number of prompts: give it with --rows")
    assert "steps" not in draft.settings and [*draft.left] == ["num_train_epochs"]


@pytest.mark.parametrize(
    ("project", "settings", "warmup"),
    [
        ("trl", {}, 0),
        ("trl", {"warmup_steps": 20}, 20),
        ("trl", {"warmup_steps": 1}, 1),
        ("trl", {"warmup_steps": 0.1}, 30),
        ("trl", {"warmup_ratio": 0.1}, 30),
        ("ms_swift", {"warmup_ratio": 0.05}, 15),
        ("ms_swift", {"warmup_ratio": 0.05, "warmup_steps": 4}, 4),
        ("ms_swift", {"warmup_ratio": 1}, 1),
    ],
)
def test_warm_ups(project: str, settings: dict[str, Any], warmup: int):
    draft = convert(project, "steps warmup", {"max_steps": 300} | settings)
    assert same(values(draft), {"steps": 300, "optim.warmup": warmup}) and warned(draft)
    assert draft.settings["optim.warmup"].of == ("warmup_steps", "warmup_ratio")


def test_a_warm_up_of_an_unknown_number_of_steps():
    draft = convert("ms_swift", "warmup", {"warmup_ratio": 0.05})
    assert warned(draft, "the warm-up is 0.05 of the steps") and [*draft.left] == ["warmup_ratio"]
    assert values(draft) == {} and values(convert("ms_swift", "warmup", {})) == {"optim.warmup": 0}
    with pytest.raises(ValueError, match="warmup_ratio.*2.0.*0.*1"):
        convert("ms_swift", "warmup", {"warmup_ratio": 2})


@pytest.mark.parametrize(
    ("settings", "expected", "words", "left"),
    [
        ({}, {"save_every": 500}, [], []),
        ({"save_steps": 1, "save_total_limit": 3}, {"save_every": 1, "keep": 3}, [], []),
        ({"save_steps": 0.5}, {}, ["save_steps is a fraction of the steps"], ["save_steps"]),
        ({"save_strategy": "epoch", "save_total_limit": None}, {}, [], ["save_strategy", "save_total_limit"]),
    ],
)
def test_checkpoints(settings: dict[str, Any], expected: dict[str, Any], words: list[str], left: list[str]):
    draft = convert("trl", "saving", settings)
    assert values(draft) == expected and warned(draft, *words) and [*draft.left] == left


# ---- the model


@pytest.mark.parametrize("project", BOTH)
@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ({}, "bfloat16"),
        ({"fp16": True}, "float16"),
        ({"fp16": True, "bf16": True}, "float16"),
        ({"bf16": False}, "float32"),
        ({"bf16": False, "dtype": "bfloat16"}, "float32"),
        ({"fp16": False, "dtype": "float16"}, "bfloat16"),
        ({"dtype": "torch.float16"}, "float16"),
        ({"dtype": "half"}, "float16"),
        ({"dtype": "bf16"}, "bfloat16"),
        ({"dtype": "auto"}, "bfloat16"),
        ({"dtype": "float16", "bf16": True}, "bfloat16"),
    ],
)
def test_the_precision(project: str, settings: dict[str, Any], dtype: str):
    key = "dtype" if project == "trl" else "torch_dtype"
    draft = convert(project, "precision", {key if name == "dtype" else name: one for name, one in settings.items()})
    assert values(draft) == {"model.dtype": dtype} and draft.settings["model.dtype"].of == ("bf16", "fp16", key)


@pytest.mark.parametrize(
    ("project", "settings", "rank", "alpha", "targets"),
    [
        ("trl", {"lora_r": 4, "lora_target_modules": ["q"]}, 0, None, None),
        ("trl", {"use_peft": True}, 16, 32.0, None),
        (
            "trl",
            {"use_peft": True, "lora_r": 4, "lora_alpha": 8, "lora_target_modules": ["q", "v"]},
            4,
            8.0,
            ["q", "v"],
        ),
        ("trl", {"use_peft": True, "lora_target_modules": "qv"}, 16, 32.0, ["qv"]),
        ("trl", {"use_peft": True, "lora_target_modules": ["all-linear"]}, 16, 32.0, ALL_LINEAR),
        ("ms_swift", {"tuner_type": "full"}, 0, None, None),
        ("ms_swift", {}, 8, 32.0, ALL_LINEAR),
        ("ms_swift", {"target_modules": ["all-router"]}, 8, 32.0, None),
    ],
)
def test_lora(project: str, settings: dict[str, Any], rank: int, alpha: float | None, targets: Any):
    draft = convert(project, "lora", settings)
    assert lora(draft) == (rank, alpha, targets) and draft.left == {}
    assert draft.settings["model.lora_rank"].of[-1] == ("use_peft" if project == "trl" else "tuner_type")


@pytest.mark.parametrize(
    ("project", "settings", "expected"),
    [
        ("trl", {}, ""),
        ("trl", {"load_in_4bit": True}, "4bit"),
        ("trl", {"load_in_8bit": True, "load_in_4bit": False}, "8bit"),
        ("trl", {"load_in_4bit": False}, "none"),
        ("ms_swift", {}, ""),
        ("ms_swift", {"quant_method": "bnb", "quant_bits": 4}, "4bit"),
        ("ms_swift", {"quant_method": "bnb", "quant_bits": "8"}, "8bit"),
        ("ms_swift", {"quant_bits": None}, "none"),
    ],
)
def test_a_base_of_bitsandbytes_is_quantized_here_too(project: str, settings: dict[str, Any], expected: str):
    draft = convert(project, "quantize", settings)
    assert values(draft) == ({"model.quantize": expected} if expected else {}) and not draft.questions


@pytest.mark.parametrize(
    "settings",
    [
        {"quant_method": "hqq", "quant_bits": 4},
        {"quant_method": "bnb", "quant_bits": 2},
        {"quant_method": "bnb"},
        {"quant_bits": 4},
    ],
)
def test_another_quantization_is_asked_for(settings: dict[str, Any]):
    draft = convert("ms_swift", "quantize", settings)
    assert [*draft.questions] == ["model.quantize"] and not draft.settings
    assert all(str(value) in draft.questions["model.quantize"][0] for value in settings.values())


def test_a_base_is_quantized_in_one_way():
    with pytest.raises(ValueError, match="load_in_8bit.*load_in_4bit"):
        convert("trl", "quantize", {"load_in_8bit": True, "load_in_4bit": True})


@cases(
    """
    project | settings | wanted | asked
    trl | {max_tool_calling_iterations: 3}
    trl | {tools: ['mine:search'], max_tool_calling_iterations: 3} | {tools: ['mine:search'], turns: 4}
    ms_swift | {max_turns: 3}
    ms_swift | {gym_env: shop, use_gym_env: true, max_turns: 3} | {turns: 3} | shop
    ms_swift | {multi_turn_scheduler: math_tip_trick} | {} | math_tip_trick
    verl | {actor_rollout_ref.rollout.multi_turn.max_assistant_turns: 3}
    verl
        | {actor_rollout_ref.rollout.multi_turn.enable: true,
            actor_rollout_ref.rollout.multi_turn.tool_config_path: tools.yaml,
            actor_rollout_ref.rollout.multi_turn.max_assistant_turns: 3}
        | {turns: 3, calls_per_turn: 1} | tools.yaml
    """
)
def test_tools_and_environments_of_others_are_tools(project, settings, wanted, asked):
    draft = convert(project, "tools", settings)
    got = {key: one.value for key, one in draft.settings.items()}
    assert got == {f"sampling.{key}": value for key, value in wanted.items()}
    assert asked in str(draft.questions.get("sampling.tools", "")) and bool(draft.questions) == bool(asked)
    assert (draft.left == {}) == bool(wanted or asked)
