"""The scripts of models that look and answer, on real pictures and videos and a tiny model of the real architecture."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import av
import numpy as np
import pytest
import torch
import train_vlm
import yaml
from accelerate.state import AcceleratorState
from answers_shown import boxes_of
from blind import blinded
from PIL import Image as Pil
from readable import readable, short_enough
from run import content
from vlm import VlmConfig, arithmetic

from mmgrpo.data.prompts import load_prompts
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.rewards import scorers
from mmgrpo.runtime.reading import option_names
from mmgrpo.types import Image, Media, Prompt, Request, Text, Turn, Video
from pipelines.vlm import causal_lm, qwen_vl
from pipelines.vlm.media import read_video
from tests import ROOT
from tests.building import load
from tests.cli.test_scripts import refused, run, summary, told

RECIPES = {path.stem: path for path in sorted((ROOT / "scripts" / "recipes" / "vlm").glob("*.yaml"))}
RECIPES.pop("demo")  # no paper's, and of a model that lies here: tests/cli/test_pretrain_vlm.py

ANSWERS = {
    "box_iou": [4, 4, 20, 20],
    "box_gui_g1": [4, 4, 20, 20],
    "detection_od_length": [{"bbox_2d": [4, 4, 20, 20], "label": "cup"}],
    "detection_visual_rft": [[4, 4, 20, 20]],
    "choice": "B",
    "temporal_time_r1": [0.5, 1.5],
    "count_fuzzy": 3,
    "math": "\\sqrt{2}",
    "exact": "red",
}
"""Task to a gold answer."""
TASKS = {
    "vlm_r1_rec": "box_iou",
    "vlm_r1_ovd": "detection_od_length",
    "visual_rft": "detection_visual_rft",
    "video_r1": "choice",
    "time_r1": "temporal_time_r1",
    "gui_g1": "box_gui_g1",
    "crowdvlm_r1": "count_fuzzy",
    "geometry3k": "math",
}
"""Recipe to the task that its rows name."""
VIDEOS = {"video_r1", "time_r1"}


def write_video(path: Path, shade: int) -> None:
    """Two seconds of four frames each, lighter and lighter."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=4)
        stream.width, stream.height, stream.pix_fmt = 32, 24, "yuv420p"
        for frame in range(8):
            pixels = np.full((24, 32, 3), 25 * frame + shade, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


@pytest.fixture(scope="session")
def media(tmp_path_factory) -> Path:
    """Six pictures and six videos, 32 x 24."""
    folder = tmp_path_factory.mktemp("media")
    for number in range(6):
        noise = np.random.default_rng(number).integers(0, 255, (24, 32, 3), dtype=np.uint8)
        Pil.fromarray(noise).save(folder / f"{number}.png")
        write_video(folder / f"{number}.mp4", number)
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> str:
    return qwen_vl.tiny(tmp_path_factory.mktemp("qwen") / "tiny")


def row(number: int, task: str, kind: str) -> dict:
    """A question about one picture or video."""
    file = f"{number}.mp4" if kind == "video" else f"{number}.png"
    blocks = [{"type": kind, kind: file}, {"type": "text", "text": "which box is red?"}]
    meta = {"coordinates": "resized", "size": [24, 32], "duration": 2.0}
    said = {"id": f"{kind}-{number}", "task": task, "answer": ANSWERS[task], "meta": meta}
    return {"messages": [{"role": "user", "content": blocks}], **said}


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def files(folder: Path, task: str, kinds: tuple[str, ...]) -> list[object]:
    """Options that name four training prompts and two held-out ones, of the kinds in turn."""
    made = {
        "train": [row(number, task, kinds[number % len(kinds)]) for number in range(4)],
        "heldout": [row(number, task, kinds[number % len(kinds)]) for number in (4, 5)],
    }
    for name, rows in made.items():
        write_rows(folder / f"{name}.jsonl", rows)
    return [option for name in made for option in (f"--data.{name}", folder / f"{name}.jsonl")]


def small(model: str, media: Path, folder: Path, *more: object) -> list[object]:
    """Arguments that make any recipe quick."""
    return [
        *("--model.path", model, "--model.dtype", "float32", "--model.min-pixels", 64, "--model.max-pixels", 1024),
        *("--model.frame-pixels", 256, "--model.max-frames", 4, "--model.fps", 2, "--data.media-root", media),
        *("--output-dir", folder, "--steps", 2, "--threads", 1, "--trackers", "--samples-shown", 2),
        *("--sampling.max-tokens", 6, "--eval.prompts", 2, "--eval.every", 0, *more),
    ]


def train(monkeypatch, *arguments: object) -> None:
    """Training in this process, which spares the imports."""
    monkeypatch.setattr(sys, "argv", ["train_vlm.py", *map(str, arguments)])
    AcceleratorState._reset_state(reset_partial_state=True)
    train_vlm.main()


# ---- recipes


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_and_leaves_a_whole_run_folder(name, model, media, tmp_path, monkeypatch):
    kinds = ("video", "image") if name == "video_r1" else ("video",) if name in VIDEOS else ("image",)
    recipe = yaml.safe_load(RECIPES[name].read_text())
    updates = recipe["optim"].get("updates", 1)
    group = min(4, recipe["data"]["group_size"])
    options = files(tmp_path, TASKS[name], kinds)
    options += ["--data.prompts_per_step", updates, "--data.group-size", group, "--model.max-prompt-tokens", 200]
    train(monkeypatch, "--config", RECIPES[name], *small(model, media, tmp_path, *options))

    folder = tmp_path / name
    config = yaml.safe_load((folder / "config.yaml").read_text())
    for section in ("algorithm", "rewards", "sampling"):
        kept = recipe.get(section, {})
        assert kept == config[section] if isinstance(kept, list) else True
    assert config["algorithm"]["preset"] == recipe["algorithm"]["preset"]
    assert config["sampling"]["temperature"] == recipe["sampling"]["temperature"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rewards = [reward.split("(")[0] for reward in config["rewards"]]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert all(math.isfinite(line[f"reward/{reward}/mean"]) for reward in rewards)
        assert math.isfinite(line["loss"]) and line["ratio/first_minus_one"] < 1e-5
    assert lines[0]["decisions"] > 0
    # T-GRPO samples half as many completions more where the prompt shows a video.
    contrast = group // 2 if name == "video_r1" else 0
    assert lines[0]["rollout/rows"] in (updates * group, updates * (group + contrast))

    found = summary(folder)
    assert found["modality"] == "vlm" and found["family"] == "qwen_vl" and found["steps"] == 2
    assert found["eval"].keys() == {"before", "after", "difference"}
    assert found["blind"].keys() == set(rewards) and all(one["n"] == 2 for one in found["blind"].values())
    saved = "adapter_model.safetensors" if config["model"]["lora_rank"] else "model.safetensors"
    assert (folder / "model" / saved).is_file()
    for title in ("before", "after", "blind"):
        assert len((folder / "samples" / f"{title}.jsonl").read_text().splitlines()) == 2
    report = (folder / "report.html").read_text()
    assert report.count("data:image/jpeg;base64,") >= 2 and "blind, after" in report
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:|#)""", report)


def test_every_recipe_names_rewards_tasks_and_a_model_of_the_hub():
    assert set(TASKS) == set(RECIPES)
    for name, path in RECIPES.items():
        config = read(VlmConfig, ["--config", str(path)])
        assert config.name == name and re.fullmatch(r"[\w.-]+/[\w.-]+", config.model.path)
        assert scorers(config.rewards) and "optimizer steps" in arithmetic(config)
        text = path.read_text()
        assert f'"task": "{TASKS[name]}"' in text and f"scripts/recipes/vlm/{name}.yaml" in text


def test_every_value_of_a_recipe_says_where_it_comes_from():
    """A comment on the line, or at the top of a recipe that has one source only."""
    for name, path in RECIPES.items():
        if name != "geometry3k":
            values = [line for line in path.read_text().splitlines() if re.match(r"\s+[a-z_]+: \S", line)]
            bare = [line for line in values if "#" not in line]
            free = r"\s+(family|path|train|heldout|media_root|preset):"
            assert [line for line in bare if not re.match(free, line)] == [], name


# ---- a run, measured and resumed


def arguments(model: str, media: Path, folder: Path, *more: object) -> list[object]:
    """A run of six steps on pictures and videos, with a checkpoint every two."""
    (folder / "own").mkdir(exist_ok=True)
    (folder / "own" / "own.py").write_text(OWN)
    options = files(folder, "exact", ("image", "video"))
    options += [
        "--data.prompts_per_step",
        2,
        "--data.group-size",
        4,
        "--optim.lr",
        0.01,
        "--save-every",
        2,
        "--steps",
        6,
    ]
    return small(model, media, folder, *options, "--rewards", "own:ones", "task(weight=0)", *more)


OWN = """
def ones(prompts, outputs):
    return [output.text.count("e") / max(1, len(output.text)) for output in outputs]
"""


@pytest.fixture(scope="session")
def whole(model, media, tmp_path_factory) -> Path:
    """The run of ``arguments``, uninterrupted, in a process of its own."""
    folder = tmp_path_factory.mktemp("whole")
    run("train_vlm.py", *arguments(model, media, folder), PYTHONPATH=str(folder / "own"))
    return folder / "run"


@pytest.mark.slow
def test_a_run_that_is_resumed_ends_with_the_numbers_of_an_uninterrupted_one(
    whole, model, media, tmp_path, monkeypatch
):
    options = arguments(model, media, tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "own")
    folder = tmp_path / "run"
    started = [*options]
    started[started.index("--steps", started.index("--save-every")) + 1] = 4
    train(monkeypatch, *started)
    assert [path.name for path in sorted((folder / "checkpoints").iterdir())] == ["step-000002", "step-000004"]
    train(monkeypatch, *options, "--resume")
    assert told(folder) == told(whole)
    assert summary(folder)["eval"] == summary(whole)["eval"] and summary(folder)["blind"] == summary(whole)["blind"]
    file = "checkpoints/step-000006/weights.safetensors"
    assert (folder / file).read_bytes() == (whole / file).read_bytes()


@pytest.mark.slow
def test_evaluating_a_run_gives_the_numbers_of_its_summary_also_blind(whole, tmp_path):
    output, path = tmp_path / "out.json", {"PYTHONPATH": str(whole.parent / "own")}
    done = run("evaluate.py", "--run", whole, "--against", "untrained", "--output", output, **path)
    found, wanted = json.loads(output.read_text()), summary(whole)
    for ours, theirs in (
        (found["rewards"], wanted["eval"]["after"]),
        (found["against"]["rewards"], wanted["eval"]["before"]),
        (found["difference"], wanted["eval"]["difference"]),
        (found["blind"]["rewards"], wanted["blind"]),
    ):
        one = {key: ours["ones"][key] for key in ("mean", "low", "high", "n")}
        assert one == pytest.approx(theirs["ones"], abs=1e-7)
    assert found["temperature"] == 0 and found["max_tokens"] == 6 and found["tasks"].keys() == {"exact"}
    assert "against blind" in done.stdout and "against untrained" in done.stdout


@pytest.mark.slow
def test_samples_of_a_run_are_drawn_before_and_after_side_by_side(whole, tmp_path):
    more = ["--samples", 2, "--temperature", 1, "--limit", 1, "--before", "--rewards", "exact", "--output", tmp_path]
    done = run("sample.py", "--run", whole, *more)
    assert "4 completions in" in done.stdout
    said = {title: (tmp_path / f"{title}.jsonl").read_text().splitlines() for title in ("before", "after")}
    assert [len(lines) for lines in said.values()] == [2, 2]
    assert json.loads(said["after"][1])["id"] == "image-4 (2)" and "exact" in json.loads(said["after"][0])["rewards"]
    page = (tmp_path / "completions.html").read_text()
    assert page.count("<article>") == 2 and page.count("before · ") == 2


# ---- what a user is told

EARLY = {
    "family": (["--model.family", "qwen_lv"], "model.family: there is no 'qwen_lv'. Did you mean 'qwen_vl'?"),
    "a family that draws": (["--model.family", "sd3"], "model.family: there is no 'sd3'"),
    "too long": (["--data.too-long", "cut"], "data.too_long: there is no 'cut'. Known: filter, refuse."),
    "truncated": (["--sampling.truncated", "msk"], "sampling.truncated: there is no 'msk'. Did you mean 'mask'?"),
    "groups of one": (["--data.group-size", 1], "data.group_size must be at least 2, got 1"),
    "updates": (["--optim.updates", 9], "a round of 8 groups cannot be cut into optim.updates=9 steps"),
    "preset": (["--algorithm.preset", "dap"], "there is no preset 'dap'. Did you mean 'dapo'?"),
}


@pytest.mark.parametrize("case", EARLY)
def test_a_mistake_in_the_settings_is_told_before_anything_is_loaded(case, monkeypatch, tmp_path):
    options, message = EARLY[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        train(monkeypatch, "--output-dir", tmp_path, *options)
    assert list(tmp_path.iterdir()) == []


LATE = {
    "model": (["--model.path", "nowhere"], "there is no model folder 'nowhere'"),
    "preset": (["--algorithm.preset", "flow_grpo"], "preset 'flow_grpo' is for gaussian policies"),
    "reward": (["--rewards", "formt"], "there is no 'formt'. Did you mean 'format'?"),
    "contrast": (["--sampling.contrast", "shuffled"], "there is no 'shuffled'. Did you mean 'shuffled_frames'?"),
    "prompts": (["--data.train", "no.jsonl"], "no.jsonl: there is no such prompt file"),
    "media": (["--data.media-root", "elsewhere"], "4 of 4 prompts show something that cannot be read"),
    "all too long": (
        ["--model.max-prompt-tokens", 5, "--data.too-long", "filter"],
        "no prompt has at most model.max_prompt_tokens=5 tokens",
    ),
}


@pytest.mark.parametrize("case", LATE)
def test_what_is_missing_is_told_and_an_earlier_run_stays(case, model, media, tmp_path, monkeypatch):
    """Even with --overwrite: a run that cannot start removes nothing."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("name: run\n")
    options, message = LATE[case]
    made = small(model, media, tmp_path, *files(tmp_path, "exact", ("image",)), "--overwrite", *options)
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(message)):
        train(monkeypatch, *made)
    assert (tmp_path / "run" / "config.yaml").read_text() == "name: run\n"


@pytest.mark.slow
def test_a_broken_video_stops_the_run_with_one_line_that_names_it(model, media, tmp_path):
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    rows = [
        {**row(0, "exact", "video"), "messages": [{"role": "user", "content": [{"type": "video", "video": "bad.mp4"}]}]}
    ]
    train_file = write_rows(tmp_path / "train.jsonl", rows)
    last = refused("train_vlm.py", *small(model, tmp_path, tmp_path, "--data.train", train_file, "--data.heldout", ""))
    assert "1 of 1 prompts show something that cannot be read" in last and "bad.mp4" in last
    assert not (tmp_path / "run").exists()


def test_a_few_unreadable_prompts_are_left_out_and_listed(model, media, tmp_path, monkeypatch):
    options = files(tmp_path, "exact", ("image",))
    rows = [row(number, "exact", "image") for number in range(4)]
    rows[2]["messages"][0]["content"][0]["image"] = "lost.png"
    write_rows(tmp_path / "train.jsonl", rows)
    options += [
        "--data.skip-limit",
        0.25,
        "--data.prompts_per_step",
        1,
        "--data.group-size",
        2,
        "--eval.skip",
        "--steps",
        1,
    ]
    train(monkeypatch, *small(model, media, tmp_path, *options))
    [listed] = [json.loads(line) for line in (tmp_path / "run" / "skipped.jsonl").read_text().splitlines()]
    assert listed["id"] == "image-2" and "lost.png" in listed["file"] and "no such file" in listed["reason"]


def test_help_names_every_option():
    shown = run("train_vlm.py", "--help", COLUMNS="200").stdout
    assert [name for name in option_names(VlmConfig) if name not in shown] == []
    other = run("evaluate.py", "--model.family", "qwen_vl", "--help").stdout
    assert "--temperature" in other and "--blind" in other and "--model.max-pixels" in other


def test_the_dry_run_prints_the_arithmetic(capsys, monkeypatch, tmp_path):
    options = ["--data.prompts_per_step", 3, "--data.group-size", 4, "--sampling.max-tokens", 5, "--optim.epochs", 2]
    train(monkeypatch, "--dry-run", "--steps", 8, "--output-dir", tmp_path, *options, "--model.path", "no/where")
    told = capsys.readouterr().out
    # 3 x 4 = 12 sequences, 12 x 5 tokens; every sequence twice; 2 steps a round, so 4 rounds.
    assert "3 prompts x 4 samples = 12 sequences of at most 5 tokens, 60 in all" in told
    assert "24 sequences forward and backward" in told and "8 optimizer steps = 4 rounds = 48 sequences" in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_many_samples_without_temperature_are_refused(whole):
    last = refused("evaluate.py", "--run", whole, "--samples", 4, "--rewards", "exact")
    assert "--samples 4 at temperature 0 are 4 times the same" in last


# ---- the parts


def asked(*media: Media, text: str = "which?", task: str = "") -> Prompt:
    return Prompt(text, id="q", task=task, turns=(Turn("user", (*media, text)),))


def test_blind_prompts_keep_their_form_and_lose_what_there_was_to_see(media):
    video = Media("video", str(media / "0.mp4"), {"fps": 2})
    picture, clip = blinded([asked(Media("image", str(media / "0.png")), video, text="a"), Prompt("b")])[0].media
    assert isinstance(picture.source, Image) and picture.source.pixels.shape == (3, 24, 32)
    assert isinstance(clip.source, Video) and clip.source.frames.shape == (8, 3, 24, 32) and clip.source.fps == 4
    assert picture.source.pixels.unique().tolist() == [0.5] == clip.source.frames.unique().tolist()
    assert clip.source.frames.untyped_storage().nbytes() == 4  # however long it is
    seen, unseen = read_video(video), read_video(clip)
    assert seen.seconds == unseen.seconds and seen.frames.shape == unseen.frames.shape
    assert blinded([Prompt("b")]) == [Prompt("b")]


def test_a_blind_prompt_has_the_tokens_of_the_one_that_sees(model, media):
    family = qwen_vl.load(model)
    prompts = [asked(Media("image", str(media / "0.png")), Media("video", str(media / "1.mp4")))]
    seen, unseen = family.encode(prompts), family.encode(blinded(prompts))
    assert torch.equal(seen.ids, unseen.ids) and torch.equal(seen.positions, unseen.positions)
    assert seen.seen == unseen.seen


def test_the_same_words_about_another_picture_are_another_question():
    a, b = asked(Media("image", "a.png")), asked(Media("image", "b.png"))
    assert content(a) != content(b) and content(a) == content(asked(Media("image", "a.png")))
    black, white = (asked(Media("image", Image(torch.full((3, 40, 40), level)))) for level in (0.0, 1.0))
    assert content(black) != content(white)


def test_too_many_unreadable_prompts_are_an_error_and_text_needs_no_library(media):
    good, bad = asked(Media("image", str(media / "0.png"))), asked(Media("image", str(media / "lost.png")))
    kept, skipped = readable([good, good, bad], "f.jsonl", 0.34)
    assert kept == [good, good] and len(skipped) == 1
    with pytest.raises(ValueError, match="f.jsonl: 1 of 3 prompts .* data.skip_limit=0.33 .*lost.png"):
        readable([good, good, bad], "f.jsonl", 0.33)
    assert readable([Prompt("a")], "f.jsonl", 0.0) == ([Prompt("a")], [])


def test_long_prompts_are_listed_with_their_length():
    prompts = [Prompt("a", id="a"), Prompt("a b c", id="b")]
    kept, [skipped] = short_enough(prompts, lambda prompt: len(prompt.text.split()), 2)
    assert [prompt.id for prompt in kept] == ["a"]
    assert (skipped.id, skipped.reason) == ("b", "3 tokens, more than max_prompt_tokens=2")


def test_boxes_are_shares_of_the_picture_whatever_pixels_the_model_speaks_of(media):
    meta = {"coordinates": "resized", "size": [24, 32]}
    prompt = Prompt(
        "", task="box_iou", answer=[8, 6, 16, 12], meta=meta, turns=asked(Media("image", str(media / "0.png"))).turns
    )
    # Said in a picture of 64 x 48 that shows one of 32 x 24.
    said = Text("<think>[1, 1, 2, 2]</think><answer>[0, 0, 32, 48]</answer>", seen=((48, 64),))
    assert boxes_of(prompt, said) == {"gold": [(0.25, 0.25, 0.5, 0.5)], "said": [(0, 0, 0.5, 1)]}
    assert boxes_of(prompt, Text("nothing"))["said"] == []
    assert boxes_of(asked(task="exact"), Text("[1, 1, 2, 2]")) == {}


def test_all_objects_of_a_detection_are_drawn(media):
    turns = asked(Media("image", str(media / "0.png"))).turns
    prompt = Prompt("", task="detection_ap", answer=[{"bbox_2d": [0, 0, 16, 24], "label": "cup"}], turns=turns)
    said = Text('<answer>```json\n[{"bbox_2d": [0, 0, 32, 24]}, {"bbox_2d": [16, 12, 32, 24]}]\n```</answer>')
    assert boxes_of(prompt, said) == {"gold": [(0, 0, 0.5, 1)], "said": [(0, 0, 1, 1), (0.5, 0.5, 1, 1)]}


@pytest.mark.slow
def test_a_text_model_trains_with_the_same_script(tmp_path, monkeypatch):
    path = causal_lm.tiny(tmp_path / "model")
    write_rows(tmp_path / "train.jsonl", [{"text": "how many", "answer": "1"}, {"text": "how many red", "answer": "2"}])
    write_rows(tmp_path / "heldout.jsonl", [{"text": "is a blue red", "answer": "no"}])
    options = [
        "--model.family",
        "causal_lm",
        "--model.lora-rank",
        2,
        "--model.path",
        path,
        "--rewards",
        "exact(tags=False)",
    ]
    options += ["--data.train", tmp_path / "train.jsonl", "--data.heldout", tmp_path / "heldout.jsonl"]
    options += [
        "--output-dir",
        tmp_path,
        "--data.prompts_per_step",
        1,
        "--steps",
        2,
        "--sampling.max-tokens",
        4,
        "--trackers",
    ]
    train(monkeypatch, *options)
    found = summary(tmp_path / "run")
    assert found["family"] == "causal_lm" and "blind" not in found
    assert (tmp_path / "run" / "model" / "adapter_model.safetensors").is_file()
    assert "is a blue red" in (tmp_path / "run" / "report.html").read_text()
    assert [prompt.text for prompt in load_prompts(tmp_path / "heldout.jsonl")] == ["is a blue red"]


def test_recomputing_activations_changes_neither_likelihoods_nor_gradients(model, media):
    """Under gradient there is no cache to share then; what is computed is the same."""
    prompts = [asked(Media("image", str(media / "0.png")), Media("video", str(media / "1.mp4")))]
    seen = []
    for checkpointing in (False, True):
        family = load(qwen_vl, model, gradient_checkpointing=checkpointing)
        policy = TokenPolicy(family, max_tokens=5)
        made = policy.rollout(Request(prompts, [0], 3, 1))
        [part] = made.steps.split(made.decisions.loss_mask, 9)
        scores = policy.score(made, part, frozenset({"log_probs"}))["log_probs"]
        scores.sum().backward()
        gradients = [p.grad for p in family.network.parameters() if p.grad is not None]
        seen.append((scores.detach(), torch.cat([gradient.flatten() for gradient in gradients])))
    (plain, wanted), (again, found) = seen
    assert wanted.abs().max() > 0.1 and torch.equal(torch.isfinite(found), torch.ones_like(found, dtype=torch.bool))
    torch.testing.assert_close(again, plain, atol=1e-5, rtol=0)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
