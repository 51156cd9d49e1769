"""Training of image generators from the command line: recipes, what a run leaves behind, and mistakes."""

from __future__ import annotations

import math
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from PIL import Image

from mmgrpo.cli.errors import enter
from mmgrpo.runtime.identity import Identity
from tests.journeys.cli import quick
from tests.journeys.cli.running import call, read_lines, summary


@pytest.mark.slow
@pytest.mark.parametrize("name", quick.names("visual"))
def test_a_recipe_trains_and_leaves_a_whole_run_folder(name, recipe_run):
    folder = recipe_run(name)
    config, recipe = yaml.safe_load((folder / "config.yaml").read_text()), quick.contents(f"visual/{name}")
    assert config["algorithm"]["preset"] == recipe["algorithm"]["preset"]
    if "plan" in config["sampling"]:
        assert config["sampling"]["plan"] == recipe["sampling"].get("plan", "every_step")
    assert {"objective", "baseline", "credit"} <= config["algorithm"].keys()  # the preset, written out

    lines = read_lines(folder / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    rewards = [reward.split("(")[0] for reward in config["rewards"]]
    columns = {f"reward/{reward}/{kind}" for reward in rewards for kind in ("mean", "std")}
    columns |= {"group/zero_std_fraction", "ratio/first_minus_one", "clip/low", "clip/high", "kl", "grad_norm", "lr"}
    columns |= {"step", "seconds", "time/rollout", "time/reward", "time/update", "memory"}
    if config["data"]["offline"]:  # nothing is sampled or scored
        columns = {"step", "loss", "grad_norm", "lr", "memory", "pairs/accuracy"}
    for line in lines:
        assert columns <= line.keys()
        assert all(isinstance(line[key], int | float) and math.isfinite(line[key]) for key in columns)
        assert line.get("ratio/first_minus_one", 0.0) < 1e-5
    assert lines[0]["decisions"] > 0 and lines[0]["memory"] > 0

    for title in ("before", "after"):
        assert Image.open(folder / "samples" / f"{title}.png").width > 100
        if quick.generates_video(config["model"]["family"]) and config["model"]["frames"] > 1:
            assert Image.open(folder / "samples" / f"{title}.webp").n_frames == config["model"]["frames"]  # type: ignore
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000002"]
    whole = {"stable_diffusion": "unet", "janus": "model.safetensors"}.get(config["model"]["family"], "transformer")
    saved = "pytorch_lora_weights.safetensors" if config["model"]["lora_rank"] else whole
    assert (folder / "model" / saved).exists()

    result = summary(folder)
    assert (result["modality"], result["family"]) == ("visual", recipe["model"]["family"])
    assert (result["steps"], result["seed"]) == (2, 0)
    assert result["preset"] == recipe["algorithm"]["preset"] and result["seconds"] > 0
    assert result["eval"].keys() == {"before", "after", "difference"}
    for section in result["eval"].values():
        assert section.keys() == set(rewards)
        for reward, interval in section.items():
            if reward == "nearest_distance":  # of a prompt's other samples, which evaluation does not draw
                continue
            assert interval.keys() == {"mean", "low", "high", "n"} and interval["n"] == 2
            assert interval["low"] <= interval["mean"] <= interval["high"]

    report = (folder / "report.html").read_text()
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:|#)""", report) and "@import" not in report
    assert report.count("data:image/") >= 3 and name in report


def test_a_dry_run_prints_the_arithmetic_and_loads_nothing(tmp_path, capsys):
    options = ["--output-dir", tmp_path, "--model.path", "there/is-no-model", "--steps", 10, *quick.SCENES]
    options += ["--rewards", "scene_all", "--data.prompts-per-step", 3, "--data.group-size", 4]
    with pytest.raises(ValueError, match="model.path.*'there/is-no-model'"):
        call("train", "--dry-run", *options, "--sampling.steps", 5)
    text = capsys.readouterr().out
    # 3 x 4 rows, 5 evaluations and 4 trained decisions each
    assert "3 prompts x 4 samples = 12 samples" in text
    assert "60 network evaluations to sample, 48 decisions trained" in text
    assert "10 optimizer steps = 10 rollouts = 120 samples" in text
    assert list(tmp_path.iterdir()) == []


def test_one_of_several_processes_prints_the_arithmetic(monkeypatch, capsys):
    for rank, lines in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", rank)
        call("train", "--dry-run")
        assert ("a rollout: 8 prompts" in (printed := capsys.readouterr().out)) == bool(printed) == lines


# ---- mistakes

EARLY = {
    "unknown option": (["--stpes", 3], "'--stpes'.*'--steps'"),
    "unknown key": (["--config", "a.yaml"], "a.yaml.*'optim.rl'.*'optim.lr'"),
    "missing file": (["--config", "none.yaml"], "none.yaml.*mmgrpo recipes"),
    "unknown preset": (["--algorithm.preset", "flow_gpro"], "'flow_gpro'.*'flow_grpo'"),
    "unknown policy": (
        ["--sampling.policy", "matchin"],
        "sampling.policy.*'matchin'.*matching",
    ),
    "groups of one": (["--data.group-size", 1], r"data.group_size 1.*group_mean"),
    "a tree that does not fit": (
        ["--sampling.plan", "branch_tree(splits=[0,1])", "--data.group-size", 6],
        "group_size=6.*4",
    ),
    "unknown plan": (["--sampling.plan", "branchtree"], "'branchtree'.*'branch_tree'"),
    "more updates than groups": (["--optim.updates", 9], "data.prompts_per_step.*optim.updates"),
}


@pytest.mark.parametrize("case", EARLY)
def test_a_mistake_in_the_settings_is_an_error_before_anything_is_written(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("optim:\n  rl: 1e-3\n")
    options, message = EARLY[case]
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        call("train", *options)
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


LATE = {
    "unknown reward": (["--rewards", "scene_al"], "'scene_al'.*'scene_all'"),
    "unknown reward function": (["--rewards", "math:nothing"], "'math:nothing'"),
    "missing model": (["--model.path", "nowhere"], "'nowhere'"),
    "folder that is no model": (
        ["--model.path", "."],
        r"'\.'.*broken.jsonl, runs.*model_index.json",
    ),
    "missing prompts": (["--data.train", "nowhere.jsonl"], "nowhere.jsonl"),
    "missing embedded prompts": (["--data.train", "embedded:visual/scene"], "'scenes'"),
    "broken prompts": (["--data.train", "broken.jsonl"], "broken.jsonl:2.*JSON"),
    "unknown schedule": (["--optim.decay", "cosin"], "'cosin'.*constant, linear, cosine"),
    "an average of nothing": (["--optim.ema", 2], r"--optim.ema.*2.0.*\[0, 1\)"),
    "nothing to train on": (["--rewards", "scene_all(weight=0)"], "rewards: .*weight"),
    "preset for tokens": (["--algorithm.preset", "gfpo"], "'gfpo'.*tokens"),
}


@pytest.mark.parametrize("case", LATE)
def test_what_is_missing_is_an_error_and_an_earlier_run_stays(case, tmp_path, monkeypatch):
    """Even with --overwrite: a run that cannot start removes nothing."""
    monkeypatch.chdir(tmp_path)
    Path("broken.jsonl").write_text('{"text": "a red circle"}\n{"text": \n')
    earlier = tmp_path / "runs" / "run"
    earlier.mkdir(parents=True)
    (earlier / "config.yaml").write_text("name: run\n")
    Identity("a", "b").write(earlier)
    (earlier / "summary.json").write_text("{}")
    (earlier / "metrics.jsonl").write_text('{"step": 1}\n{"st')  # as a kill leaves it
    options, message = LATE[case]
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        call("train", "--overwrite", "--name", "run", "--rewards", "scene_all", *quick.SCENES, *options)
    assert sorted(path.name for path in earlier.iterdir()) == [
        "config.yaml",
        "metrics.jsonl",
        "run.json",
        "summary.json",
    ]
    assert (earlier / "metrics.jsonl").read_text().endswith('{"st')


@pytest.mark.slow
def test_an_earlier_run_is_neither_overwritten_nor_continued_by_accident(visual_run, words_folder):
    before = (visual_run / "metrics.jsonl").read_bytes()
    with pytest.raises(FileExistsError, match="--resume.*--ov"):
        call("train", *quick.visual(words_folder, visual_run.parent))
    with pytest.raises(ValueError, match="optim.beta1"):
        call("train", *quick.visual(words_folder, visual_run.parent, "--resume", "--optim.beta1", 0.5))
    assert (visual_run / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_reward_that_fails_is_named_and_the_traceback_can_be_had(words_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("def broken(prompts, outputs):\n    return [1 / 0 for _ in outputs]\n")
    options = quick.visual(words_folder, tmp_path, "--rewards", "own:broken(process=False)", "--eval.skip")
    monkeypatch.delenv("MMGRPO_DEBUG", raising=False)
    with pytest.raises(SystemExit) as end:
        enter(lambda: call("train", *options))
    assert end.value.code == 2
    hint, message = capsys.readouterr().err.strip().splitlines()[-2:]
    assert message.startswith("error: reward 'broken' failed on a batch of 8 outputs")
    assert "ZeroDivisionError" in message and "MMGRPO_DEBUG=1 shows where" in hint
    monkeypatch.setenv("MMGRPO_DEBUG", "1")
    with pytest.raises(RuntimeError) as error:
        enter(lambda: call("train", *options, "--overwrite"))
    assert isinstance(error.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("options", "alarms", "status"), [([], 1, None), (["--strict"], 0, None), (["--strict"], 1, 3)]
)
def test_a_strict_run_that_has_raised_an_alarm_ends_with_a_status_of_its_own(
    options, alarms, status, tmp_path, monkeypatch, capsys
):
    summary = {"steps": 1, "seconds": 1.0, "skipped_steps": 0, "nonfinite_steps": 0, "eval": {}}
    summary["alarms"] = [{"kind": "idle", "cause": "uncalled_tools"}] * alarms
    monkeypatch.setattr("mmgrpo.api.run_config", lambda *_: SimpleNamespace(summary=summary, folder=tmp_path))
    with pytest.raises(SystemExit) if status else nullcontext() as raised:
        call("train", "--output-dir", tmp_path, *options)
    assert (raised.value.code if raised else None) == status
    assert ("uncalled_tools" in capsys.readouterr().err) == bool(status)
