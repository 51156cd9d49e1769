"""What ``mmgrpo.train`` is given: prompts in every form, rewards of every kind, settings, and what it gives back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image as Pil

import mmgrpo
from mmgrpo.api import Result
from mmgrpo.config import plugins
from mmgrpo.rewards import from_trl
from mmgrpo.scoring.trl import GIVEN
from mmgrpo.toy import scenes
from mmgrpo.types import Policy
from pipelines import visual, vlm
from pipelines.visual import sd3
from tests.journeys.cli.running import call, metrics, write_rows
from tests.seeing import write_model
from tests.tiny import maker

SMALL: dict[str, Any] = {"steps": 2, "group_size": 4, "prompts_per_step": 2, "trackers": [], "threads": 1}
TEXTS = ["a red circle", "two blue squares", "a green circle"]


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> str:
    """A tiny model that draws scenes."""
    return str(sd3.tiny_words(tmp_path_factory.mktemp("words"), scenes.vocabulary()))


@pytest.fixture(scope="module")
def seeing(tmp_path_factory) -> str:
    """A tiny model that looks at pictures."""
    return write_model("qwen_vl", tmp_path_factory.mktemp("seeing"))


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def painter(words: str, **options: Any) -> Policy:
    options = {"preset": "flow_grpo_fast", **options}
    return visual.policy(words, **{"height": 16, "width": 16, "steps": 3, "evaluation_steps": 2, "seed": 3, **options})


def viewer(seeing: str, **options: Any) -> Policy:
    small = {"min_pixels": 64, "max_pixels": 1024, "max_tokens": 6, "dtype": "float32"}
    return vlm.policy(seeing, **small, **options)


def brightness(prompts, outputs):
    return [float(output.pixels.mean()) for output in outputs]


def paint(words: str, *, prompts: Any = TEXTS, **options: Any) -> Result:
    options = {"preset": "flow_grpo_fast", **SMALL, **options}
    return mmgrpo.train(painter(words, preset=options["preset"]), prompts, [brightness], **options)


def config_of(run: Result) -> dict[str, Any]:
    return yaml.safe_load((run.folder / "config.yaml").read_text())


# ---- prompts


def questions(folder: Path) -> list[dict[str, Any]]:
    """Rows about pictures, whose files lie in ``folder``."""
    for number in range(4):
        noise = np.random.default_rng(number).integers(0, 255, (24, 32, 3), dtype=np.uint8)
        Pil.fromarray(noise).save(folder / f"{number}.png")
    return [
        {"id": f"q{number}", "text": "which colour is it ?", "image": f"{number}.png", "answer": "red", "level": number}
        for number in range(4)
    ]


def letters(prompts, completions, answer, level, **columns):
    """TRL's kind of reward: how often the answer's letters occur; question 2 has no score. As TRL gives questions about
    pictures, prompts and completions are messages."""
    for (prompt,), (completion,) in zip(prompts, completions, strict=True):
        assert (prompt["role"], completion["role"]) == ("user", "assistant")
        assert [block["type"] for block in prompt["content"]] == ["image", "text"]
        assert prompt["content"][1]["text"] == "which colour is it ?"
    return [
        None if hard == 2 else sum(message["content"].count(letter) for letter in gold) / 10
        for (message,), gold, hard in zip(completions, answer, level, strict=True)
    ]


@pytest.mark.slow
def test_a_file_rows_with_pictures_and_a_data_set_are_the_same_prompts(seeing, tmp_path):
    from datasets import Dataset
    from datasets import Image as Column

    rows = questions(tmp_path)
    shown = [{**row, "image": Pil.open(tmp_path / row["image"])} for row in rows]
    file = write_rows(tmp_path / "train.jsonl", rows[:3])
    heldout = write_rows(tmp_path / "heldout.jsonl", rows[3:])
    sets = [
        Dataset.from_list([{**row, "image": str(tmp_path / row["image"])} for row in part]).cast_column(
            "image", Column()
        )
        for part in (rows[:3], rows[3:])
    ]
    forms = {"file": (str(file), heldout), "rows": (shown[:3], shown[3:]), "set": tuple(sets)}
    runs = {}
    for name, (prompts, others) in forms.items():
        rewards = [from_trl(letters)]
        runs[name] = mmgrpo.train(viewer(seeing), prompts, rewards, heldout=others, name=name, **SMALL)
    assert metrics(runs["file"].folder) == metrics(runs["rows"].folder) == metrics(runs["set"].folder)
    assert all(one.summary["eval"] == runs["file"].summary["eval"] for one in runs.values())
    assert config_of(runs["file"])["data"]["train"] == str(file) and config_of(runs["set"])["data"]["train"] == ""


def test_a_reward_of_trls_kind_is_given_columns_and_may_leave_a_sample_without_a_score(seeing, tmp_path):
    seen: list[dict[str, Any]] = []

    def recorded(prompts, completions, **columns):
        seen.append(columns)
        return letters(prompts, completions, **columns)

    rows = [{**row, "image": Pil.open(tmp_path / row["image"])} for row in questions(tmp_path)]
    run = mmgrpo.train(
        viewer(seeing),
        rows[2:],
        [from_trl(recorded, name="letters")],
        **{**SMALL, "steps": 1},
        evaluation={"skip": True},
    )
    (columns,) = seen
    assert columns.keys() - set(GIVEN) == {"id", "text", "answer", "task", "level"}
    assert sorted(columns["level"]) == [2] * 4 + [3] * 4
    (line,) = run.metrics
    assert (
        line["reward/letters/abstained"] == 4
        and "reward/letters/failed" not in line
        and line["reward/letters/mean"] is not None
    )


def test_further_files_are_trained_and_evaluated_as_by_a_command(words, tmp_path):
    (tmp_path / "more.txt").write_text("a blue circle\n")
    (tmp_path / "old.txt").write_text("two red circles\nthree red circles\n")
    seen: set[str] = set()

    def recorded(prompts, outputs):
        seen.update(prompt.text for prompt in prompts)
        return brightness(prompts, outputs)

    run = mmgrpo.train(
        painter(words),
        ["a red circle"],
        [recorded],
        preset="flow_grpo_fast",
        data={"extra_train": [str(tmp_path / "more.txt")]},
        evaluation={"extra": [str(tmp_path / "old.txt")], "prompts": 1},
        **SMALL,
    )
    assert seen == {"a red circle", "a blue circle", "two red circles"}
    assert run.summary["extra"]["old"]["after"]["recorded"]["n"] == 1


# ---- rewards and families


@pytest.mark.parametrize("named", [True, False])
def test_a_reward_that_has_a_device_is_given_the_runs(named, words, tmp_path):
    (tmp_path / "own.py").write_text(
        "DEVICES = []\n"
        "def bright(prompts, outputs, device='nowhere'):\n"
        "    DEVICES.append(device)\n"
        "    return [float(output.pixels.mean()) for output in outputs]\n"
    )
    function = plugins.load_object("own:bright", "the test")
    reward = "own:bright(weight=2.0, process=False)" if named else function
    run = mmgrpo.train(painter(words, device="cpu"), TEXTS, [reward], preset="flow_grpo_fast", **SMALL)
    assert set(function.__globals__["DEVICES"]) == {"cpu"} and "reward/bright/mean" in run.metrics[0]


@pytest.fixture
def greeting(tmp_path, monkeypatch) -> Iterator[str]:
    """A package of a user's, as pip installs it, that offers a family and a table of rewards."""
    library = tmp_path / "library"
    metadata = library / "greeting-1.0.dist-info"
    metadata.mkdir(parents=True)
    (library / "greeting.py").write_text(
        "from dataclasses import replace\n"
        "from pipelines.factory import make_policy\n"
        "from pipelines.text.families import FAMILIES as THEIRS\n"
        "FAMILIES = {'greeter': replace(THEIRS['causal_lm'], name='greeter', modality='greeting')}\n"
        "REWARDS = {'politeness': 'greeting:politeness'}\n"
        "def policy(path, **options):\n"
        "    return make_policy(FAMILIES, path, 'greeter', 0, options)\n"
        "def politeness(prompts, outputs, word='please'):\n"
        "    return [float(output.text.split().count(word)) for output in outputs]\n"
    )
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[mmgrpo.families]\ngreeting = greeting:FAMILIES\n[mmgrpo.rewards]\ngreeting = greeting:REWARDS\n"
    )
    monkeypatch.syspath_prepend(library)
    remembered = (plugins.entry_points_of, plugins.table, plugins.packages)
    for function in remembered:
        function.cache_clear()
    yield maker("causal_lm")(tmp_path / "model")
    for function in remembered:
        function.cache_clear()
    sys.modules.pop("greeting", None)


def test_the_family_and_the_rewards_of_an_installed_package_train_and_are_known_to_commands(greeting):
    import importlib

    policy = importlib.import_module("greeting").policy(greeting, max_tokens=4)
    run = mmgrpo.train(policy, ["a b", "c d"], ["politeness(word='a')"], heldout=["d a b c"], **SMALL)
    assert (run.summary["family"], run.summary["modality"]) == ("greeter", "greeting")
    assert config_of(run)["rewards"] == ["politeness(word='a')"]
    Path("more.txt").write_text("d a b c\n")
    call("evaluate", "--run", run.folder, "--file", "more.txt")
    again = json.loads((run.folder / "evaluation.json").read_text())["rewards"]["politeness"]["mean"]
    assert again == run.summary["eval"]["after"]["politeness"]["mean"]


# ---- settings


def test_overrides_of_a_preset_take_effect(words):
    plain = paint(words, name="plain", preset="flow_grpo")
    changed = paint(words, name="changed", preset="flow_grpo", algorithm={"scale": "none", "terms": []})
    assert config_of(plain)["algorithm"]["terms"] == ["kl_gaussian_dt_free(coef=0.04)"]
    assert [config_of(changed)["algorithm"][key] for key in ("preset", "scale", "terms")] == ["flow_grpo", "none", []]
    assert "term/kl_gaussian_dt_free" in plain.metrics[0] and "term/kl_gaussian_dt_free" not in changed.metrics[0]
    # The samples are the same ones; advantages that no std divides are smaller, and so is the gradient.
    assert plain.metrics[0]["reward/brightness/mean"] == changed.metrics[0]["reward/brightness/mean"]
    assert changed.metrics[0]["grad_norm"] < 0.5 * plain.metrics[0]["grad_norm"]


@pytest.mark.parametrize(
    ("option", "meant"), [("heigth", "'height'"), ("ranks", "lora_rank"), ("learning_rate", "mmgrpo.train.*optim")]
)
def test_an_option_that_no_policy_has_is_refused_with_what_may_be_meant(option, meant, words):
    with pytest.raises(ValueError, match=f"'sd3'.*'{option}'.*{meant}"):
        painter(words, **{option: 2})


# ---- the run


@pytest.mark.slow
def test_a_run_that_is_resumed_is_the_run_that_was_not_interrupted(words):
    options = {"heldout": ["a blue circle"], "optim": {"lr": 0.01, "ema": 0.5}, "save_every": 2}
    whole = paint(words, name="whole", output_dir="a", **{**options, "steps": 4})
    paint(words, name="whole", output_dir="b", **{**options, "steps": 2})
    resumed = paint(words, name="whole", output_dir="b", resume=True, **{**options, "steps": 4})
    assert metrics(resumed.folder) == metrics(whole.folder) and len(resumed.metrics) == 4
    assert resumed.summary["eval"] == whole.summary["eval"]
    expected = dict(whole.policy.network.named_parameters())
    assert all(torch.equal(p, expected[name]) for name, p in resumed.policy.network.named_parameters())
    with pytest.raises(ValueError, match="optim.ema"):
        paint(
            words,
            name="whole",
            output_dir="b",
            resume=True,
            **{**options, "steps": 4, "optim": {"lr": 0.02, "ema": 0.6}},
        )


def test_media_of_rows_in_memory_are_opened_before_the_run_starts(seeing, tmp_path, monkeypatch):
    rows = questions(tmp_path)
    (tmp_path / "2.png").write_bytes(b"no picture")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="prompts.*1.*4"):
        mmgrpo.train(viewer(seeing), rows, ["task"], steps=1)
    assert not (tmp_path / "runs").exists()
