"""The example of each page of docs/migration, as people write it: migrated as it stands there, then trained."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from PIL import Image

from mmgrpo.cli.migrate.tables import PROJECTS
from pipelines.visual import flux, sd3_tiny
from pipelines.vlm import qwen_vl_tiny
from tests.journeys.cli.running import call
from tests.pages import BLOCK, DOCS
from tests.tiny import causal_lm as causal_lm_tiny

TOKENS = ["--model.dtype", "float32", "--sampling.max-tokens", 5, "--optim.micro-batch-size", 8]
SMALL = ["--model.dtype", "float32", "--model.height", 16, "--model.width", 16, "--model.max-sequence-length", 48]
SMALL += ["--sampling.steps", 4, "--sampling.evaluation-steps", 2, "--eval.prompts", 1, "--optim.micro-batch-size", 16]

MODELS: dict[str, tuple[Callable[[Path], object], list[object]]] = {
    "trl": (causal_lm_tiny.tiny, TOKENS),
    "ms_swift": (qwen_vl_tiny.tiny, [*TOKENS, "--model.max-pixels", 1024, "--model.min-pixels", 64]),
    "easyr1": (qwen_vl_tiny.tiny, [*TOKENS, "--model.max-pixels", 1024]),
    "verl": (qwen_vl_tiny.tiny, [*TOKENS, "--model.max-pixels", 1024]),
    "flow_grpo": (sd3_tiny.tiny, SMALL),
    "dance_grpo": (flux.tiny, [*SMALL, "--rewards", "jpeg_compressibility"]),
}
"""How the tiny model of each example is made, and what makes its run small; weights of hpsv2 are not at hand."""

EXPECTED = {
    "trl": {
        "data": {"prompts_per_step": 2, "group_size": 4, "train": "train.jsonl"},
        "algorithm": {"preset": "grpo", "terms": ["kl_unbiased(coef=0.001)"]},
        "model": {"family": "causal_lm", "lora_rank": 16, "lora_targets": ["q_proj", "v_proj"], "dtype": "bfloat16"},
        "sampling": {"max_tokens": 256},
        "rewards": ["train_grpo:reward_len", "format(weight=0.5, style='think')"],
        "steps": 100,
        "name": "Qwen2.5-1.5B-Instruct-lengths",
    },
    "ms_swift": {
        "data": {
            **{"prompts_per_step": 2, "group_size": 4, "train": "train.jsonl"},
            "system": "Think first, then answer.",
        },
        "model": {"family": "qwen_vl", "lora_rank": 8, "max_pixels": 1003520, "dtype": "bfloat16"},
        "optim": {"warmup": 10, "lr": 1e-5},
        "rewards": ["format(style='think_answer_end')", "repetition(weight=0.5, n=3)"],
        "output_dir": "runs",
    },
    "easyr1": {
        "data": {
            **{"prompts_per_step": 4, "group_size": 4, "columns": "question=prompt"},
            "template": "{text} You FIRST think, then give the final answer in \\boxed{}.",
        },
        "model": {"path": "Qwen/Qwen2.5-VL-3B-Instruct", "freeze_vision": True},
        "optim": {"updates": 2, "weight_decay": 0.01},
        "algorithm": {"terms": ["kl_k3(coef=0.01)"]},
        "rewards": ["math(weight=0.9, tags=False)", "format(weight=0.1, style='boxed')"],
        "steps": 120,
    },
    "verl": {
        "data": {"prompts_per_step": 4, "group_size": 5, "too_long": "filter"},
        "optim": {"updates": 2, "lr": 1e-6},
        "algorithm": {"terms": ["kl_k3(coef=0.01)"]},
        "steps": 20,
    },
    "flow_grpo": {
        "data": {"prompts_per_step": 4, "group_size": 8, "train": "dataset/demo/train.txt"},
        "optim": {"updates": 2, "ema": 0.9},
        "algorithm": {"preset": "flow_grpo"},
        "rewards": ["jpeg_compressibility"],
    },
    "dance_grpo": {
        "data": {"prompts_per_step": 2, "group_size": 4},
        "optim": {"updates": 2},
        "sampling": {"kernel": "dance(eta=0.3)"},
        "rewards": ["hpsv2"],
        "steps": 600,
    },
}
"""Settings of each recipe, computed by hand from the example."""


def example(project: str, folder: Path) -> list[list[str]]:
    """Write the files of a page's example and its data; returns its command lines."""
    text = DOCS[f"migration/{project}.md"].split("## Example\n")[1]
    text = text.split("\n## ")[0]
    for _, title, content in BLOCK.findall(text):
        file = folder / re.findall(r'title="(.+)"', title)[0]
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    rows = [{"prompt": f"a b {number}", "question": "1 + 1", "answer": "2", "task": "math"} for number in range(8)]
    if project != "easyr1":
        rows = [{key: value for key, value in row.items() if key != "question"} for row in rows]
    else:
        rows = [{key: value for key, value in row.items() if key != "prompt"} for row in rows]
    if project in ("ms_swift", "easyr1", "verl"):  # whose sizes of images have no effect without one
        Image.new("RGB", (56, 56), "red").save(folder / "dot.png")
        rows = [{**row, "images": ["dot.png"]} for row in rows]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "dataset" / "demo").mkdir(parents=True)
    for file in ("prompts.txt", "dataset/demo/train.txt"):
        (folder / file).write_text("a red square\nblue\na green circle\nred\n")
    (folder / "dataset" / "demo" / "test.txt").write_text("green\n")
    return [shlex.split(line) for line in re.findall(r"^    mmgrpo (.+)$", text, re.MULTILINE)]


def agrees(recipe: object, expected: object) -> bool:
    """Whether a recipe has what is expected of it, and perhaps more."""
    if isinstance(expected, dict) and isinstance(recipe, dict):
        return all(key in recipe and agrees(recipe[key], value) for key, value in expected.items())
    return recipe == expected


@pytest.mark.parametrize("project", PROJECTS)
def test_the_example_of_a_page_becomes_the_recipe_that_it_says(
    project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    migrate, _ = example(project, tmp_path)
    call(*migrate)
    recipe = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    assert agrees(recipe, EXPECTED[project]), recipe
    assert "undecided" not in recipe


@pytest.mark.slow
@pytest.mark.parametrize("project", PROJECTS)
def test_the_example_of_a_page_trains(project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: None):
    monkeypatch.chdir(tmp_path)
    migrate, train = example(project, tmp_path)
    call(*migrate)
    make, options = MODELS[project]
    model = make(tmp_path / "tiny")
    small = ["--model.path", model, "--output-dir", tmp_path / "runs", "--name", "run", "--threads", 1, "--trackers"]
    heldout = [] if project == "flow_grpo" else ["--data.heldout", ""]
    call(*train, *small, *heldout, *options, "--steps", 2)
    lines = (tmp_path / "runs" / "run" / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(line)["step"] for line in lines if "loss" in json.loads(line)} == {1, 2}
