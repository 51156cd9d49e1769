"""One's own model and data from the command line: nothing of the embedded example stands in for what is missing."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import yaml

import mmgrpo
from mmgrpo.cli.train import main, read
from mmgrpo.config.plugins import recipes
from mmgrpo.config.reading import write_yaml
from mmgrpo.config.settings import LAUNCH
from mmgrpo.runtime.folder import with_name
from mmgrpo.toy import scenes
from pipelines import visual
from pipelines.visual import sd3
from tests import ROOT
from tests.journeys.cli.running import call, write_rows

OWN = ["--data.train", "own.txt"]
LORA = ["--model.lora-rank", "4", "--model.lora-path"]


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.txt").write_text("a red circle\na blue square\n")


@pytest.mark.parametrize(
    ("options", "heldout"),
    [
        ([], "embedded:visual/scenes/heldout.jsonl"),
        (OWN, ""),
        ([*OWN, "--data.heldout", "more.txt"], "more.txt"),
        (["--recipe", "visual/demo"], "embedded:visual/scenes/heldout.jsonl"),
        (["--recipe", "visual/demo", *OWN], ""),
        (["--recipe", "visual/demo", "--data.train", "embedded:visual/scenes/train.jsonl"], None),
        (["--config", "own.yaml"], ""),
        (["--config", "both.yaml", *OWN], "mine.txt"),
        (["--model.family", "whisper", "--data.train", "own.jsonl"], ""),
    ],
)
def test_held_out_prompts_are_those_that_belong_to_the_training_prompts(options, heldout):
    Path("own.yaml").write_text("data: {train: own.txt}\n")
    Path("both.yaml").write_text("data: {train: theirs.txt, heldout: mine.txt}\n")
    expected = "embedded:visual/scenes/heldout.jsonl" if heldout is None else heldout
    assert read(options, "").data.heldout == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.path", "folder"], "data.train.*model.path=folder"),
        (["--model.family", "causal_lm", "--model.path", "a/b"], "data.train.*model.path=a/b"),
        (["--model.family", "flux"], "data.train.*model.path=black-forest-labs/FLUX.1-dev"),
        (OWN, "rewards.*data.train=own.txt.*jpeg_"),
        (["--model.path", "folder", *OWN], "rewards.*model.path=folder"),
        (["--model.family", "wan", *OWN], "rewards.*frames"),
        (["--config", "own.yaml"], "rewards.*data.train=own.txt"),
    ],
)
def test_own_models_and_data_name_their_prompts_and_rewards(options, message):
    Path("own.yaml").write_text("data: {train: own.txt}\n")
    with pytest.raises(ValueError, match=message):
        main([*options, "--dry-run"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data.train", "none.txt"], "none.txt"),
        ([*OWN, "--data.heldout", "none.jsonl"], "none.jsonl"),
        ([*OWN, "--eval.extra", "none.jsonl"], "none.jsonl"),
        (["--data.train", "rows.jsonl", "--data.columns", "question=text"], "question"),
        (["--data.train", "rows.jsonl", "--data.heldout", "rows.jsonl"], "rows.jsonl"),
        ([*OWN, "--model.path", "empty"], "model.path.*'empty'"),
        ([*OWN, "--model.path", "a/b"], "model.path.*'a/b'"),
        ([*OWN, "--model.path", "not there"], "model.path.*'not there'"),
        ([*OWN, "--model.path", "other"], "Qwen2Model|qwen2"),
        ([*OWN, "--name", "taken"], "taken"),
        ([*OWN, "--data.group-size", "1"], r"data\.group_size 1"),
        ([*OWN, "--rewards", "jpeg_compressibility(weight=0)"], "rewards: .* 0"),
        ([*OWN, *LORA, "none.safetensors"], r"model\.lora_path.*'none\.safetensors'"),
        ([*OWN, *LORA, "empty"], r"model\.lora_path.*'empty'"),
    ],
)
def test_a_dry_run_finds_what_is_missing_before_anything_is_loaded(options, message, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    write_rows(Path("rows.jsonl"), [{"text": "a"}])
    for folder, name, content in (("empty", "notes.txt", ""), ("other", "config.json", '{"model_type": "qwen2"}')):
        Path(folder).mkdir()
        (Path(folder) / name).write_text(content)
    Path("runs/taken").mkdir(parents=True)
    Path("runs/taken/notes.txt").touch()
    with pytest.raises(ValueError, match=message):
        main([*options, *([] if "--rewards" in options else ["--rewards", "jpeg_compressibility"]), "--dry-run"])
    assert capsys.readouterr().out.startswith("a rollout: ")


def test_a_dry_run_waits_neither_for_the_hub_nor_for_a_server_of_rewards(monkeypatch):
    pauses: list[float] = []
    with socket.socket() as closed:  # bound, and listening to nobody
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", nobody + "/{repo_id}/{filename}")
        monkeypatch.setattr("time.sleep", pauses.append)
        served = f'served(reward="aim", url="{nobody}")'
        with pytest.raises(ValueError, match=f"model.path: 'a/b'.*rewards: 'aim': {nobody}.* 600 s"):
            main([*OWN, "--model.path", "a/b", "--rewards", served, "--dry-run"])
    assert not pauses


def test_adapters_on_the_hub_are_not_fetched_by_a_dry_run():
    main([*OWN, "--rewards", "jpeg_compressibility", *LORA, "owner/name", "--dry-run"])


def test_a_dry_run_counts_prompts_and_names_keys_that_nothing_reads(capsys):
    write_rows(Path("rows.jsonl"), [{"text": "a", "difficulty": 3}, {"text": "b"}])
    main(["--data.train", "rows.jsonl", "--rewards", "jpeg_compressibility", "--dry-run"])
    text = capsys.readouterr().out
    assert "data.train 2" in text and "'difficulty' (1 of 2 rows)" in text and "evaluated: not at all" in text


def test_a_dry_run_says_when_evaluations_would_end_the_run(capsys):
    options = ["--recipe", "visual/demo", "--steps", "50", "--eval.patience", "3", "--dry-run"]
    main([*options, "--eval.every", "10"])
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("stopped:")]
    assert "3 evaluations" in line and "every 10 steps" in line and line.endswith("scene_all")
    for more, message in [
        (["--eval.every", "0"], r"eval\.patience.*eval\.every"),
        (["--eval.every", "10", "--data.heldout="], r"eval\.patience.*data\.heldout"),
        (["--eval.every", "10", "--eval.patience-reward", "scene_al"], r"eval\.patience_reward.*'scene_all'"),
    ]:
        with pytest.raises(ValueError, match=message):
            main([*options, *more])


def test_a_dry_run_names_prompts_that_are_there_twice(capsys):
    rows = [{"text": text} for text in "abab"]
    write_rows(Path("rows.jsonl"), rows)
    main(["--data.train", "rows.jsonl", "--rewards", "jpeg_compressibility", "--dry-run"])
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("repeated:")]
    assert "data.train" in line and "2 rows" in line and "rows.jsonl:1 and rows.jsonl:3" in line


# ---- how a run starts is no part of it


@pytest.mark.parametrize("name", LAUNCH)
def test_how_a_run_starts_is_in_no_recipe_and_no_stored_configuration(name):
    assert not [recipe for recipe, path in recipes().items() if name in yaml.safe_load(path.read_text())]
    config = read(["--resume", "--overwrite", "--dry-run", "--resume-from", "step-4"], "")
    write_yaml(Path("config.yaml"), config)
    assert name not in yaml.safe_load(Path("config.yaml").read_text())


@pytest.mark.parametrize("line", ["overwrite: true", "resume: true", "dry_run: true", "resume_from: step-4"])
def test_a_file_that_says_how_a_run_starts_is_refused_and_one_that_says_it_does_not_is_read(line):
    name, _, value = line.partition(": ")
    Path("a.yaml").write_text(line)
    with pytest.raises(ValueError, match=f"{name}.*--{name.replace('_', '-')}"):
        read(["--config", "a.yaml"], "")
    Path("a.yaml").write_text(f"{name}: {'false' if value == 'true' else repr('')}")
    assert read(["--config", "a.yaml"], "") == read([], "")


def test_make_demo_starts_anew():
    lines = [line for line in (ROOT / "Makefile").read_text().splitlines() if "train --recipe" in line]
    assert len(lines) == 5 and all("--overwrite" in line for line in lines)


# ---- names


def test_a_run_without_a_name_is_called_by_preset_and_time_and_never_takes_the_place_of_another(monkeypatch):
    config = read(["--algorithm.preset", "mix_grpo"], "")
    first = with_name(config)
    assert first.name.startswith("mix_grpo-20") and with_name(first) == first
    for name in (first.name, f"{first.name}-2"):
        (Path("runs") / name).mkdir(parents=True)

    class Then:
        @staticmethod
        def now():
            from datetime import datetime

            return datetime.strptime(first.name.removeprefix("mix_grpo-"), "%Y%m%d-%H%M%S")

    monkeypatch.setattr("mmgrpo.runtime.folder.datetime", Then)
    assert with_name(config).name == f"{first.name}-3"
    with pytest.raises(ValueError, match="--resume.*--name"):
        with_name(read(["--resume"], ""))


@pytest.mark.slow
def test_two_programs_in_one_folder_are_two_runs_and_a_name_twice_is_refused_in_python(tmp_path):
    words = str(sd3.tiny_words(tmp_path / "words", scenes.vocabulary()))
    policy = visual.policy(words, height=16, width=16, steps=3, evaluation_steps=2)
    small = {"steps": 1, "group_size": 2, "prompts_per_step": 2, "threads": 1}
    texts = ["a red circle", "two blue squares"]
    runs = [mmgrpo.train(policy, texts, ["jpeg_compressibility"], **small) for _ in range(2)]
    assert runs[0].folder != runs[1].folder and all(run.folder.name.startswith("grpo-") for run in runs)
    assert list((runs[0].folder / "tensorboard").rglob("events.out.tfevents*"))
    with pytest.raises(FileExistsError, match="resume=True.*overwrite=True.*name=") as error:
        mmgrpo.train(policy, texts, ["jpeg_compressibility"], name=runs[0].folder.name, **small)
    assert "--" not in str(error.value)
    assert json.loads((runs[0].folder / "summary.json").read_text())["steps"] == 1


@pytest.mark.slow
def test_a_run_of_ones_own_prompts_is_not_evaluated_on_others(tmp_path, capsys):
    words = str(sd3.tiny_words(tmp_path / "words", scenes.vocabulary()))
    small = ["--model.path", words, "--model.height", 16, "--model.width", 16, "--sampling.steps", 3, "--steps", 1]
    call("train", *small, *OWN, "--rewards", "jpeg_compressibility", "--data.prompts-per-step", 2, "--trackers")
    assert "evaluated: not at all" in capsys.readouterr().out
    (folder,) = Path("runs").glob("[!.]*")
    assert json.loads((folder / "summary.json").read_text()).get("eval") in (None, {})
    with pytest.raises((ValueError, FileNotFoundError), match="--file"):
        call("evaluate", "--run", folder)
