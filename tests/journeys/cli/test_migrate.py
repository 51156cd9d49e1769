"""mmgrpo migrate: recipes that train accepts, in which every setting of the input appears."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmgrpo.cli import train
from mmgrpo.cli.migrate.draft import LINES, Draft, equal
from mmgrpo.cli.migrate.recipe import CONVERSIONS, FAMILY, recipe_of
from mmgrpo.cli.migrate.sources import Source
from mmgrpo.cli.migrate.tables import PROJECTS, table
from mmgrpo.config.plugins import recipe
from mmgrpo.config.presets import CATALOGUE, PRESETS
from mmgrpo.config.reading import setting_names
from mmgrpo.config.settings import config_class
from mmgrpo.family import families
from tests.journeys.cli.running import call

TRL = {
    "model_name_or_path": "Qwen/Qwen2.5-VL-3B-Instruct",
    "dataset_name": "hiyouga/geometry3k",
    "learning_rate": 2e-6,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 4,
    "max_steps": 300,
    "beta": 0.04,
    "use_vllm": True,
    "reward_funcs": ["accuracy_reward", "think_format_reward"],
    "reward_weights": [1.0, 0.5],
}
SWIFT = """
MAX_PIXELS=1003520 NPROC_PER_NODE=8 \\
swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-VL-7B-Instruct --tuner_type full --dataset train.jsonl 'more.jsonl' \\
    --reward_funcs accuracy format --num_generations 8 --max_steps 100 --advantage_estimator rloo --beta 0   # a comment
"""
FLOW = """
import ml_collections, os
import importlib.util

def base():
    config = importlib.util.load_base().get_config()
    config.sample.num_steps = 10
    config.train.beta = 0.01
    return config

def ocr():
    gpu_number = 4
    config = base()
    config.pretrained.model = "stabilityai/stable-diffusion-3.5-medium"
    config.dataset = os.path.join(os.getcwd(), "dataset/ocr")
    config.prompt_fn = "general_ocr"
    config.sample.train_batch_size = 8
    config.sample.num_image_per_prompt = 16
    config.sample.num_batches_per_epoch = int(
        16/(gpu_number*config.sample.train_batch_size/config.sample.num_image_per_prompt))
    assert config.sample.num_batches_per_epoch % 2 == 0
    config.train.batch_size = config.sample.train_batch_size
    config.train.gradient_accumulation_steps = config.sample.num_batches_per_epoch // 2
    config.train.timestep_fraction = 0.99
    config.train.beta = 0.04
    config.train.ema = True
    config.save_dir = f"logs/{config.run_name}"
    config.reward_fn = {"ocr": 1.0, "pickscore": 0.5}
    return config

def fast():
    config = ocr()
    config.sample.sde_window_size = 3
    config.sample.sde_window_range = (0, config.sample.num_steps//2)
    config.sample.sde_type = "cps"
    config.sample.noise_level = 0.8
    config.train.beta = 0
    return config
"""
DANCE = """
export WANDB_MODE=online
git clone https://github.com/tgxs002/HPSv2.git
torchrun --nnodes=2 --nproc_per_node=8 --node_rank=0 \\
    fastvideo/train_grpo_flux.py --seed 42 --pretrained_model_name_or_path data/flux \\
    --data_json_path data/rl_embeddings/videos2caption.json --train_batch_size 1 --gradient_accumulation_steps 3 \\
    --max_train_steps 300 --learning_rate 1e-5 --mixed_precision bf16 --checkpointing_steps 40 \\
    --gradient_checkpointing --h 720 --w 720 --t 1 --sampling_steps 16 --eta 0.3 --lr_warmup_steps 0 \\
    --max_grad_norm 1.0 --weight_decay 0.0001 --use_hpsv2 --num_generations 12 \\
    --shift 3 --use_group --timestep_fraction 0.6 --init_same_noise --cfg 0.0
"""
EASY = {
    "data": {"train_files": "hiyouga/geometry3k@train", "prompt_key": "problem", "max_response_length": 2048}
    | {"max_prompt_length": 2048, "rollout_batch_size": 512},
    "algorithm": {"use_kl_loss": True, "kl_penalty": "low_var_kl", "kl_coef": 1.0e-2},
    "worker": {
        "actor": {"global_batch_size": 128, "micro_batch_size_per_device_for_update": 1}
        | {"model": {"model_path": "Qwen/Qwen2.5-VL-3B-Instruct"}, "optim": {"lr": 1e-6}},
        "rollout": {"n": 5, "val_override_config": {"temperature": 0.6, "top_p": 0.95}},
        "reward": {"reward_function": "./examples/reward_function/math.py:compute_score"},
    },
    "trainer": {"max_steps": 60, "val_freq": 5, "save_freq": 5, "logger": ["file"]},
}
VERL = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.model.path": "Qwen/Qwen2.5-VL-7B-Instruct",
    "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.rollout.n": 5,
    "actor_rollout_ref.rollout.name": "vllm",
    "trainer.total_training_steps": 10,
    "trainer.logger": ["console"],
}


def written(folder: Path, project: str) -> str:
    """The path of an example of a project's configuration."""
    texts = {
        "trl": ("config.yaml", yaml.safe_dump(TRL)),
        "ms_swift": ("train.sh", SWIFT),
        "easyr1": ("config.yaml", yaml.safe_dump(EASY)),
        "verl": ("verl.json", json.dumps(VERL)),
        "flow_grpo": ("grpo.py", FLOW),
        "dance_grpo": ("flux.sh", DANCE),
    }
    name, text = texts[project]
    (folder / name).write_text(text)
    return str(folder / name) + (":ocr" if project == "flow_grpo" else "")


def made(folder: Path, project: str, *flags: str, **options: Any) -> tuple[dict[str, Any], str, list[str]]:
    """The recipe of the example, its text and what is to be decided."""
    text, warnings = recipe_of(project, written(folder, project), flags, **options)
    return yaml.safe_load(text), text, warnings


OPEN: dict[str, dict[str, str]] = {
    "trl": {},
    "ms_swift": {},
    "easyr1": {},
    "verl": {"data.train": "rows.jsonl", "rewards": "task"},
    "flow_grpo": {"steps": "300"},
    "dance_grpo": {"data.train": "prompts.txt"},
}
"""What each example leaves open, and a decision."""


@pytest.mark.parametrize("project", PROJECTS)
def test_train_accepts_the_recipe_once_what_it_leaves_open_is_decided(
    project: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    call("migrate", project, written(tmp_path, project), "--output", tmp_path / "recipe.yaml")
    assert capsys.readouterr().out == f"written: {tmp_path / 'recipe.yaml'}\n"
    for key in OPEN[project]:
        others = [f"--{name}={value}" for name, value in OPEN[project].items() if name != key]
        with pytest.raises(ValueError, match=f"yet.*{key}"):
            call("train", "--config", tmp_path / "recipe.yaml", "--dry-run", *others)
    decisions = [word for name, value in OPEN[project].items() for word in (f"--{name}", value)]
    config = train.read(["--config", str(tmp_path / "recipe.yaml"), *decisions], "", "sd3")
    assert "the run:" in train.arithmetic(config)  # not --dry-run, which also looks for the model and the rows


def test_a_coefficient_is_no_reason_to_become_another_method():
    """A KL of 0.001 is that of the preset tree_grpo, which also compares the samples of a tree: no setting says so."""
    settings = ["--loss_type", "grpo", "--beta", "0.001", "--use_bias_correction_kl", "false"]
    algorithm = yaml.safe_load(recipe_of("trl", "", settings)[0])["algorithm"]
    assert algorithm["preset"] == "grpo" and algorithm["terms"] == ["kl_k3(coef=0.001)"]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_named_only_where_every_field_is_its_own(name: str):
    """A preset's lines become a recipe that means the preset in all fields, written or not."""
    base = "flow_grpo" if CATALOGUE[name].policies == "gaussian" else "grpo"
    draft = Draft(table("trl"), Source("a"), "causal_lm")
    draft.source.values["loss_type"] = "grpo"
    draft.algorithm(base, {line: (PRESETS[name][line], ("loss_type",)) for line in LINES})
    values = {key.partition(".")[2]: setting.value for key, setting in draft.settings.items()}
    made = PRESETS[values.pop("preset")] | values
    meant = PRESETS[base] | {line: PRESETS[name][line] for line in LINES}
    assert all(equal(made[key], meant[key]) for key in meant)


@pytest.mark.parametrize("project", PROJECTS)
def test_every_setting_of_the_input_appears_in_the_recipe(project: str, tmp_path: Path):
    keys = {
        "trl": [*TRL],
        "ms_swift": ["MAX_PIXELS", *re.findall(r"--(\w+)", SWIFT)],
        "easyr1": re.findall(r"'(\w+)': (?!{)", str(EASY)),
        "verl": [*VERL],
        "flow_grpo": re.findall(r"config\.([\w.]+) = ", FLOW.split("def fast")[0]),
        "dance_grpo": [key for key in re.findall(r"--(\w+)", DANCE)],
    }[project]
    _, text, _ = made(tmp_path, project)
    assert [key for key in keys if not re.search(rf"(?<!\w){re.escape(key)}(?!\w)", text)] == []
    assert len(keys) > 6


@pytest.mark.parametrize("project", ["trl", "ms_swift", "easyr1", "verl"])
def test_a_configuration_with_all_settings_at_their_defaults_is_read(project: str, tmp_path: Path):
    rows = table(project).rows
    values = {key: row.default for key, row in rows.items() if "*" not in key and key != "config"}
    values |= {"verl": {"algorithm.adv_estimator": "grpo"}, "ms_swift": {"num_generations": 2}}.get(project, {})
    values |= {"per_device_train_batch_size": 8} if project == "ms_swift" else {}
    (tmp_path / "all.json").write_text(json.dumps(values))
    text, _ = recipe_of(project, str(tmp_path / "all.json"))
    shown = set(re.findall(r"[\w.@]+", text))
    assert [key for key in values if key not in shown] == []


def test_an_unknown_setting_is_listed_with_the_nearest(tmp_path: Path):
    _, text, warnings = made(tmp_path, "trl", "--epsilon_hihg", "0.28")
    assert "#   epsilon_hihg 0.28\n#       unknown to TRL" in text and "Did you mean 'epsilon_high'?" in text
    assert any("'epsilon_hihg' is no setting of TRL" in warning for warning in warnings)


def test_what_has_no_counterpart_stands_with_its_reason(tmp_path: Path):
    _, text, _ = made(tmp_path, "trl")
    assert "#   use_vllm true\n#       rollouts are sampled by the trained network itself" in text


def test_flags_override_a_file(tmp_path: Path):
    config, text, _ = made(tmp_path, "trl", "--learning_rate", "3e-6", "--loss_type=dr_grpo", "--use-vllm", "false")
    assert config["optim"]["lr"] == 3e-6 and "use_vllm false" in text
    assert config["algorithm"]["aggregation"] == "constant_horizon(length=512)"


def test_easyr1_is_our_recipe_of_it(tmp_path: Path):
    config, _, _ = made(tmp_path, "easyr1")
    ours = yaml.safe_load(recipe("vlm/geometry3k").read_text())
    assert config["steps"] == ours["steps"] and config["save_every"] == ours["save_every"]
    assert config["algorithm"] | ours["algorithm"] == config["algorithm"]
    assert config["eval"]["every"] == ours["eval"]["every"]
    judged = [reward.replace("task(", "math(") for reward in ours["rewards"]]  # the task of all its rows
    assert [reward.replace("'", '"') for reward in config["rewards"]] == judged
    numbers = ("prompts_per_step", "group_size", "too_long")
    assert [config["data"][key] for key in numbers] == [ours["data"][key] for key in numbers]
    numbers = ("max_prompt_tokens", "min_pixels", "max_pixels", "freeze_vision", "dtype")
    assert [config["model"][key] for key in numbers] == [ours["model"][key] for key in numbers]
    numbers = ("updates", "micro_batch_size", "weight_decay")
    assert [config["optim"][key] for key in numbers] == [ours["optim"][key] for key in numbers]
    assert config["sampling"]["max_tokens"] == 2048 and config["sampling"]["evaluation_temperature"] == 0.6


def test_a_name_that_is_empty_is_asked_for(tmp_path: Path):
    """Their scripts leave ``MODEL_PATH=""`` and ``TRAIN_DATA=""`` to be filled in."""
    recipe, _, _ = made(tmp_path, "verl", "actor_rollout_ref.model.path=''", "data.train_files=''")
    assert recipe["model"]["path"].startswith("???") and recipe["data"]["train"].startswith("???")


def test_dance_grpo(tmp_path: Path):
    config, text, _ = made(tmp_path, "dance_grpo")
    ours = yaml.safe_load(recipe("visual/dance_grpo").read_text())
    assert config["model"]["family"] == "flux" and config["algorithm"] == ours["algorithm"]
    for key in ("kernel", "steps", "grid"):
        assert config["sampling"][key] == ours["sampling"][key]
    assert config["sampling"]["plan"] == "random_subset(fraction=0.6, shared_noise=True)"
    for key in ("height", "width", "dtype", "gradient_checkpointing"):
        assert config["model"][key] == ours["model"][key]
    assert (
        config["optim"]["lr"] == float(ours["optim"]["lr"]) and config["optim"]["updates"] == ours["optim"]["updates"]
    )
    assert (config["data"]["prompts_per_step"], config["data"]["group_size"]) == (16, 12)  # sixteen processes
    assert config["steps"] == ours["steps"] and config["rewards"] == ["hpsv2"]
    assert "Launched there by: torchrun --nnodes=2" in text


def test_the_family_can_be_named_and_settings_that_it_lacks_are_said(tmp_path: Path):
    config, text, _ = made(tmp_path, "ms_swift", name="causal_lm")
    assert config["model"]["family"] == "causal_lm" and "the family causal_lm has no model.max_pixels" in text


# ---- the tables and the page


def test_every_setting_of_ours_that_a_table_names_exists():
    known = {name for f in families().values() for name in setting_names(config_class(f.sections))}
    for project in PROJECTS:
        named = {key.strip() for row in table(project).rows.values() if row.to for key in row.to.split(",")}
        assert sorted(named - known) == [], project


def test_rows_say_how_they_are_converted_or_why_not():
    assert [*CONVERSIONS] == [*FAMILY] == [*PROJECTS]
    for project in PROJECTS:
        rows = table(project).rows.values()
        assert {row.by for row in rows} - {""} <= {*CONVERSIONS[project], *table(project).rules}, project
        assert {*table(project).rules} <= {row.by for row in rows}, project
        assert all(row.to or row.note for row in rows), project
        assert all("," not in row.to or row.by for row in rows), project
