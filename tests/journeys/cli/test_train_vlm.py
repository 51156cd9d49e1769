"""Training of models that look and answer, on real pictures and videos and a tiny model of the real architecture."""

from __future__ import annotations

import math
import re
import sqlite3
import sys

import pytest
import torch
import yaml
from PIL import Image as Pil

from pipelines.vlm import image_text, qwen_vl_tiny
from tests.journeys.cli import quick
from tests.journeys.cli.running import call, metrics, read_lines, summary, write_rows
from tests.journeys.cli.test_recipes import OF_TEXT, TASKS
from tests.tiny import maker

VIDEOS = {"video_r1": ("video", "image"), "time_r1": ("video",)}
"""Recipe to what its rows show, where that is not pictures alone."""


def train(model, media, output, *more: object) -> None:
    named = ["--model.family", "qwen_vl", "--name", "run", "--rewards", "task", "format(weight=0.5)"]
    call("train", *named, *quick.vlm(model, media, output, *more))


# ---- recipes


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_recipe_trains_and_leaves_a_whole_run_folder(name, qwen_folder, media, tmp_path):
    recipe = quick.contents(f"vlm/{name}")
    updates, group = recipe["optim"].get("updates", 1), min(4, recipe["data"]["group_size"])
    options = quick.questions(tmp_path, TASKS[name], VIDEOS.get(name, ("image",)))
    options += ["--data.prompts-per-step", updates, "--data.group-size", group, "--model.max-prompt-tokens", 200]
    call("train", "--recipe", f"vlm/{name}", *quick.vlm(qwen_folder, media, tmp_path, *options))

    folder = tmp_path / name
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert recipe["rewards"] == config["rewards"]
    assert config["algorithm"]["preset"] == recipe["algorithm"]["preset"]
    assert config["sampling"]["temperature"] == recipe["sampling"]["temperature"]
    lines = read_lines(folder / "metrics.jsonl")
    titles = [re.search(r"log_as=['\"](\w+)", reward) for reward in config["rewards"]]
    rewards = [
        title[1] if title else reward.split("(")[0] for title, reward in zip(titles, config["rewards"], strict=True)
    ]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert all(math.isfinite(line[f"reward/{reward}/mean"]) for reward in rewards)
        assert math.isfinite(line["loss"]) and line["ratio/first_minus_one"] < 1e-5
    assert lines[0]["decisions"] > 0
    # T-GRPO samples half as many completions more where the prompt shows a video.
    contrast = group // 2 if name == "video_r1" else 0
    assert lines[0]["rollout/rows"] in (updates * group, updates * (group + contrast))

    result = summary(folder)
    assert (result["modality"], result["family"], result["steps"]) == ("vlm", "qwen_vl", 2)
    assert result["eval"].keys() == {"before", "after", "difference"}
    assert result["blind"].keys() == set(rewards) and all(one["n"] == 2 for one in result["blind"].values())
    saved = "adapter_model.safetensors" if config["model"]["lora_rank"] else "model.safetensors"
    assert (folder / "model" / saved).is_file()
    for title in ("before", "after", "blind"):
        assert len(read_lines(folder / "samples" / f"{title}.jsonl")) == 2
    report = (folder / "report.html").read_text()
    assert report.count("data:image/jpeg;base64,") >= 2 and "blind, after" in report
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:|#)""", report)


@pytest.mark.slow
def test_a_model_of_words_trains_in_the_same_way(tmp_path):
    path = maker("causal_lm")(tmp_path / "model")
    rows = [{"text": "how many", "answer": "1"}, {"text": "how many red", "answer": "2"}]
    files = ["--data.train", write_rows(tmp_path / "train.jsonl", rows)]
    heldout = [{"text": "is a blue red", "answer": "no"}]
    files += ["--data.heldout", write_rows(tmp_path / "heldout.jsonl", heldout)]
    options = ["--model.lora-rank", 2, "--rewards", "exact(tags=False)", "--data.prompts-per-step", 1, "--steps", 2]
    options += ["--sampling.max-tokens", 4, "--trackers", "--output-dir", tmp_path, "--name", "run"]
    call("train", "--model.family", "causal_lm", "--model.path", path, *files, *options)
    result = summary(tmp_path / "run")
    assert result["family"] == "causal_lm" and "blind" not in result
    assert (tmp_path / "run" / "model" / "adapter_model.safetensors").is_file()
    assert "is a blue red" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox of queries needs Linux")
@pytest.mark.parametrize("name", OF_TEXT)
def test_a_recipe_of_a_language_model_trains(name, tmp_path):
    with sqlite3.connect(tmp_path / "singers.sqlite") as database:
        database.execute("CREATE TABLE singer (name TEXT, age INTEGER)")
    row = {"text": "how many", "database": str(tmp_path / "singers.sqlite"), **OF_TEXT[name]}
    files = [("--data.train", [row]), ("--data.heldout", [{**row, "text": "is a blue red"}])]
    words = [w for option, rows in files for w in (option, write_rows(tmp_path / f"{option[7:]}.jsonl", rows))]
    path = maker("causal_lm")(tmp_path / "model", "tools" if name in ("otc", "gigpo") else "")
    words += ["--model.path", path, "--sampling.max-tokens", 4, "--trackers"]
    words += ["--data.prompts-per-step", 1, "--steps", 2, "--eval.every", 0, "--output-dir", tmp_path]
    call("train", "--recipe", f"text/{name}", *words)
    for line in read_lines(tmp_path / name / "metrics.jsonl"):
        assert math.isfinite(line["loss"]) and line["ratio/first_minus_one"] < 1e-5


ZOOM = """
from mmgrpo.types import Image
from pipelines.vlm.media import read_image


class Zoom:
    def reset(self, prompt):
        self.pixels = read_image(prompt.media[0]).pixels

    def zoom(self, left: int, top: int) -> Image:
        '''Enlarge a part of the image.

        Args:
            left: Its left edge.
            top: Its upper edge.
        '''
        return Image(self.pixels[:, top : top + 12, left : left + 9])
"""


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["qwen3_vl", "gemma3"])
def test_a_model_that_zooms_into_its_images_trains_and_resumes(kind, media, tmp_path, monkeypatch):
    monkeypatch.setattr(qwen_vl_tiny, "TAGS", (*qwen_vl_tiny.TAGS, "<tool_call>", "</tool_call>"))
    folder = maker("image_text")(tmp_path / "model", kind, published=True)
    (tmp_path / "my_zoom.py").write_text(ZOOM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    choose = image_text.choose_way
    asked = '</think><tool_call>{"name": "zoom", "arguments": {"left": 3, "top": 2}}</tool_call>'

    def then_call(model, name, example):
        """A model that often writes "blue", which reads as a call."""
        choose(model, name, example)
        decode, logits = model.decode, model.logits
        bias = torch.zeros(model.network.get_output_embeddings().weight.shape[0])
        bias[[*model.end_ids]], bias[model.spell("blue")[0]] = 20.0, 22.0
        model.decode = lambda ids: decode(ids).replace("blue", asked)
        model.logits = lambda network, hidden: logits(network, hidden) + bias

    monkeypatch.setattr(image_text, "choose_way", then_call)
    options = [
        "--model.family",
        "image_text",
        "--model.path",
        folder,
        "--model.lora-rank",
        2,
        "--model.max-pixels",
        900,
    ]
    options += ["--data.media-root", media, "--output-dir", tmp_path, "--threads", 1, "--trackers", "--eval.every", 0]
    options += ["--samples-shown", 4, "--sampling.tools", "my_zoom:Zoom", "--sampling.max-tokens", 400]
    options += quick.questions(tmp_path, "exact", ("image",)) + ["--eval.prompts", 4, "--save-every", 1]
    options += ["--data.prompts-per-step", 2, "--data.group-size", 8, "--rewards", "task", "repetition(weight=0.5)"]
    options += ["--sampling.evaluation-temperature", 1, "--optim.lr", 0.001]
    call("train", *options, "--name", "whole", "--steps", 2)
    lines = metrics(tmp_path / "whole")
    for line in lines:
        assert line["rollout/tool_calls"] > 0.1 and line["rollout/failed_call_fraction"] < 0.2
        assert math.isfinite(line["loss"]) and line["ratio/first_minus_one"] < 1e-5
    files = [tmp_path / "whole" / "samples" / f"{title}.jsonl" for title in ("before", "after")]
    samples = [row for file in files for row in read_lines(file)]
    seen = [name for row in samples for name in row.get("returned", [])]
    sizes = {Pil.open(tmp_path / "whole" / "samples" / name).size for name in seen}
    assert seen and sizes == {(9, 12)}
    assert (tmp_path / "whole" / "report.html").read_text().count("data:image/jpeg;base64,") > len(samples)
    call("train", *options, "--name", "parted", "--steps", 1)
    call("train", *options, "--name", "parted", "--steps", 2, "--resume")
    assert metrics(tmp_path / "parted") == lines
    files = [tmp_path / name / "checkpoints" / "step-000002" / "weights.safetensors" for name in ("whole", "parted")]
    assert files[0].read_bytes() == files[1].read_bytes()


# ---- mistakes


def test_a_broken_video_stops_the_run_with_an_error_that_names_it(qwen_folder, tmp_path):
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    content = [{"type": "video", "video": "bad.mp4"}]
    rows = [{**quick.row(0, "exact", "video"), "messages": [{"role": "user", "content": content}]}]
    file = write_rows(tmp_path / "train.jsonl", rows)
    with pytest.raises(ValueError, match=r"1.*1.*bad\.mp4"):
        train(qwen_folder, tmp_path, tmp_path, "--data.train", file, "--data.heldout", "")
    assert not (tmp_path / "run").exists()


def test_a_few_unreadable_prompts_are_left_out_and_listed(qwen_folder, media, tmp_path):
    options = quick.questions(tmp_path, "exact", ("image",))
    rows = [quick.row(number, "exact", "image") for number in range(4)]
    rows[2]["messages"][0]["content"][0]["image"] = "lost.png"
    write_rows(tmp_path / "train.jsonl", rows)
    options += ["--data.skip-limit", 0.25, "--data.prompts-per-step", 1, "--data.group-size", 2]
    train(qwen_folder, media, tmp_path, *options, "--eval.skip", "--samples-shown", 16, "--steps", 1)
    [listed] = read_lines(tmp_path / "run" / "skipped.jsonl")
    assert listed["id"] == "image-2" and "lost.png" in listed["file"] and "no such file" in listed["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gemma3", "internvl", "llava_onevision", "qwen2_vl", "qwen3_vl"])
def test_any_model_of_pictures_and_text_trains_on_rows_of_easy_r1(kind, media, tmp_path):
    path = maker("image_text")(tmp_path / "model", kind)
    for name, numbers in {"train": range(4), "heldout": (4, 5)}.items():
        rows = [{"images": [f"{n}.png"], "problem": "<image> which is it ?", "answer": "red"} for n in numbers]
        write_rows(tmp_path / f"{name}.jsonl", rows)
    files = [option for name in ("train", "heldout") for option in (f"--data.{name}", tmp_path / f"{name}.jsonl")]
    options = ["--data.media-root", media, "--data.prompts-per-step", 2, "--data.group-size", 2, "--steps", 2]
    options += [
        "--rewards",
        "exact(tags=False)",
        "repetition",
        "--sampling.max-tokens",
        6,
        "--trackers",
        "--threads",
        1,
    ]
    options += ["--output-dir", tmp_path, "--name", "run"]
    call("train", "--model.family", "image_text", "--model.path", path, *files, *options)
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["ratio/first_minus_one"] < 1e-5 for line in lines)
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    assert "which is it ?" in (tmp_path / "run" / "report.html").read_text()


OWN_FAMILY = """
from dataclasses import replace
from pipelines.text.families import FAMILIES

MINE = replace(FAMILIES["causal_lm"], name="mine", about="a family of one's own", architectures=("mine",))


class Half:
    name = "half"
"""


@pytest.mark.slow
def test_the_recipe_of_mazes_trains_a_language_model(tmp_path):
    rows = [{"text": f"go {way}", "task": "maze", "answer": f"<|{way}|>"} for way in ("up", "down")]
    options = ["--data.train", write_rows(tmp_path / "train.jsonl", rows), "--data.heldout", "", "--steps", 2]
    options += ["--model.path", maker("causal_lm")(tmp_path / "model"), "--model.dtype", "float32", "--trackers"]
    call("train", "--recipe", "text/alphamaze", *options, "--output-dir", tmp_path, "--sampling.max-tokens", 4)
    lines = read_lines(tmp_path / "alphamaze" / "metrics.jsonl")
    assert [line["reward/maze_steps/mean"] for line in lines] == [0.0, 0.0]


@pytest.mark.slow
def test_a_family_of_ones_own_needs_no_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_family.py").write_text(OWN_FAMILY)
    rows = write_rows(tmp_path / "train.jsonl", [{"text": "how many", "answer": "1"}])
    options = ["--data.train", rows, "--data.heldout", "", "--rewards", "exact(tags=False)", "--steps", 2]
    options += ["--model.path", maker("causal_lm")(tmp_path / "model"), "--data.prompts-per-step", 1, "--trackers"]
    options += ["--name", "run"]
    call("train", "--model.family", "own_family:MINE", *options, "--sampling.max-tokens", 4)
    assert yaml.safe_load((tmp_path / "runs/run/config.yaml").read_text())["model"]["family"] == "own_family:MINE"
    call("sample", "--run", "runs/run", "--prompts", "how many")
    assert "how many" in (tmp_path / "runs/run/drawn/completions.html").read_text()
    with pytest.raises(ValueError, match="model.family.*'own_family:Half'"):
        call("train", "--model.family", "own_family:Half", *options)
