"""Every recipe: its settings, its arithmetic, and where its values come from."""

from __future__ import annotations

import re

import pytest

from mmgrpo.cli.train import arithmetic, missing_data, read
from mmgrpo.config.settings import Config
from mmgrpo.family import families
from mmgrpo.rewards import scorers
from tests.journeys.cli import quick

TASKS = {
    "vlm_r1_rec": "box_iou",
    "vlm_r1_ovd": "detection_od_length",
    "visual_rft": "detection_visual_rft",
    "video_r1": "choice",
    "time_r1": "temporal_time_r1",
    "gui_g1": "box_gui_g1",
    "crowdvlm_r1": "count_fuzzy",
    "geometry3k": "math",
    "vision_r1": "detection_ap50",
    "vla_r1": "trajectory",
    "time_master": "exact",
    "ton": "ton",
    "ton_counting": "numeric",
}
"""Recipe of a vision-language paper to the task that its rows name."""

OF_TEXT = {
    "toolrl": {"answer": [{"name": "weather", "parameters": {"city": "Oslo"}}]},
    "otc": {"task": "numeric", "answer": "1888208"},
    "gigpo": {},
    "reasoning_sql": {"task": "sql_partial", "answer": "SELECT count(*) FROM singer"},
}
"""Recipe of a language model to the columns of a row."""


def settings(*arguments: object) -> Config:
    """The configuration of ``mmgrpo train <arguments>``."""
    return read([str(argument) for argument in arguments], "")


@pytest.mark.slow
@pytest.mark.rows
@pytest.mark.parametrize("recipe", quick.RECIPES)
def test_a_recipe_is_read_and_its_run_has_an_arithmetic(recipe):
    config = settings("--recipe", recipe)
    modality, _, name = recipe.partition("/")
    assert config.name == (f"{modality}_demo" if recipe in ("vlm/demo", "text/demo") else name)
    assert quick.contents(recipe)["algorithm"]["preset"] == config.algorithm.preset
    assert families()[quick.contents(recipe)["model"]["family"]].modality == modality
    text = arithmetic(config)
    assert f"a rollout: {config.data.prompts_per_step} " in text
    if not config.data.offline:
        assert f"x {config.data.group_size} " in text and f"the run:   {config.steps:,} optimizer steps = " in text
    assert scorers(config.rewards)
    if modality != "visual":
        assert f"mmgrpo train --recipe {recipe}" in quick.RECIPES[recipe].read_text()


@pytest.mark.parametrize(
    ("recipe", "words"), [("vlm/demo", "'mmgrpo questions' writes it"), ("speech/grpo_asr", "grpo_asr.yaml")]
)
def test_data_of_a_recipe_that_are_not_there_yet_are_named_with_where_they_come_from(
    recipe, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    options = ["--recipe", recipe]
    config = settings(*options)
    text = missing_data(options, config)
    assert "data.train" in text and config.data.train in text and words in text
    assert not missing_data([], config)  # a file of the user's own, whose reader reports it
    path = tmp_path / config.data.train
    path.parent.mkdir(parents=True)
    path.touch()
    assert not missing_data(options, config)
    own = [*options, "--data.train", "mine.jsonl"]
    assert not missing_data(own, settings(*own))
    assert not missing_data(["--recipe", "visual/demo"], settings("--recipe", "visual/demo"))


@pytest.mark.slow
def test_a_recipe_of_a_vision_language_paper_names_its_task_and_a_model_of_the_hub():
    assert TASKS.keys() == set(quick.names("vlm")) - {"demo", "peek", "ttrv"}  # whose model is embedded
    assert OF_TEXT.keys() == set(quick.names("text")) - {"demo", "alphamaze"}
    for recipe, task in {**{f"vlm/{name}": task for name, task in TASKS.items()}, "text/alphamaze": "maze"}.items():
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", settings("--recipe", recipe).model.path)
        assert f'"task": "{task}"' in quick.RECIPES[recipe].read_text()


SPEECH_PAPERS = ("grpo_asr", "tongyi_asr", "ibm_sqa", "ibm_ast")


@pytest.mark.parametrize(
    "recipe",
    ["text/alphamaze"]
    + [f"vlm/{name}" for name in TASKS if name != "geometry3k"]
    + [f"speech/{name}" for name in SPEECH_PAPERS],
)
def test_every_value_of_a_papers_recipe_has_a_source(recipe):
    """A comment on the line; geometry3k has one source only, at its top."""
    values = [line for line in quick.RECIPES[recipe].read_text().splitlines() if VALUE[recipe.partition("/")[0]](line)]
    assert values and [line for line in values if "#" not in line] == []


FREE = r"\s*(name|family|path|train|heldout|media_root|preset):"
VALUE = {
    **dict.fromkeys(("vlm", "text"), lambda line: re.match(r"\s+[a-z_]+: \S", line) and not re.match(FREE, line)),
    "speech": lambda line: re.match(r"\s*([a-z_]+: \S|- )", line) and not re.match(FREE, line),
}
"""Modality to what is a line with a value that needs a source."""


# ---- arithmetic


def test_the_arithmetic_of_a_run_without_branches():
    """Flow-GRPO: 48 prompts x 24 samples = 1152; each of 10 steps evaluates two branches of guidance;
    8 or 9 steps are trained; 1200 optimizer steps at 2 a rollout are 600 rollouts."""
    config = settings("--recipe", "flow_grpo")
    text = arithmetic(config)
    rows = 48 * 24
    assert rows == 1152 and config.sampling.steps == 10 and config.model.guidance == 4.5
    assert "48 prompts x 24 samples = 1,152 samples, 10 denoising steps" in text
    sampled, trained = rows * 10 * 2, rows * 9
    assert f"{sampled:,} network evaluations to sample, {trained:,} decisions trained" in text
    assert f"with {2 * trained:,} evaluations forward and backward" in text
    assert "split into 2 updates x 1 epoch = 2 optimizer steps" in text
    assert "1,200 optimizer steps = 600 rollouts = 691,200 samples" in text
    assert f"{600 * sampled:,} evaluations to sample, {600 * 2 * trained:,} evaluations to train" in text


def test_the_arithmetic_of_a_tree():
    """2 prompts; 6 steps, splits at 0 and 2: states 1 1 2... a group evaluates 1 + 2 + 2 + 4 + 4 + 4 = 17 states and
    trains 2 + 2 + 4 + 4 + 4 = 16 decisions that lead from 1 + 2 + 2 + 4 + 4 = 13 states."""
    options = {
        "data.prompts-per-step": 2,
        "data.group-size": 4,
        "sampling.steps": 6,
        "sampling.plan": "branch_tree(splits=[0,2])",
        "optim.epochs": 3,
        "steps": 7,
    }
    text = arithmetic(settings(*(f"--{name}={value}" for name, value in options.items())))
    assert "2 prompts x 4 samples = 8 samples, 6 denoising steps" in text
    assert "34 network evaluations to sample, 32 decisions trained with 78 evaluations" in text
    assert "7 optimizer steps = 3 rollouts = 24 samples, 102 evaluations to sample, 234 evaluations to train" in text


def test_the_arithmetic_of_completions():
    options = ["--data.prompts-per-step", 3, "--data.group-size", 4, "--sampling.max-tokens", 5, "--optim.epochs", 2]
    text = arithmetic(settings("--model.family", "qwen_vl", "--model.path", "no/where", "--steps", 8, *options))
    # 3 x 4 = 12 completions, 12 x 5 tokens; every completion twice; 2 steps a rollout, so 4 rollouts.
    assert "3 prompts x 4 samples = 12 completions of at most 5 tokens, 60 in all" in text
    assert "24 completions forward and backward" in text
    assert "8 optimizer steps = 4 rollouts = 48 completions" in text


@pytest.mark.parametrize(
    ("recipe", "line"),
    [
        ("whisper_adapt", "12 prompts x 4 samples = 48 completions of at most 32 tokens"),
        ("demo_duration", "12 texts x 16 durations = 192 choices, each of 20 durations of up to 6.1 s"),
        ("dmospeech2", "64 texts x 16 durations = 1,024 choices, each of 301 durations of up to 32.0 s"),
    ],
)
def test_the_arithmetic_of_speech(recipe, line):
    assert line in arithmetic(settings("--recipe", recipe))
