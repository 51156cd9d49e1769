"""The scripts as a user meets them: in processes of their own."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from mmgrpo.data.prompts import load_prompts
from mmgrpo.runtime.randomness import stream
from mmgrpo.toy import scenes
from pipelines.visual import sd3
from tests import ROOT

RECIPES = {path.stem: path for path in sorted((ROOT / "scripts" / "recipes" / "visual").glob("*.yaml"))}
PROMPTS_A_ROUND = {"flow_grpo": 2, "flow_grpo_fast": 2, "dance_grpo": 4, "mix_grpo": 4, "demo": 2}
"""As many as the recipe's updates need; one elsewhere."""


def command(script: str, *arguments: object) -> list[str]:
    return [sys.executable, str(ROOT / "scripts" / script), *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "MMGRPO_DEBUG"}
    return {**kept, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}


def run(
    script: str, *arguments: object, ok: bool = True, limit: int = 0, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end; ``limit`` is the largest file in bytes that it may write."""

    def small_files() -> None:
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run(
        command(script, *arguments),
        capture_output=True,
        text=True,
        env=environment(**more),
        preexec_fn=small_files,
    )
    assert not ok or done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """A whole Stable Diffusion 3 folder, tiny."""
    return sd3.tiny(tmp_path_factory.mktemp("sd3"))


@pytest.fixture(scope="session")
def words(tmp_path_factory) -> Path:
    """A model without VAE that reads the scenes' words, tiny."""
    return sd3.tiny_words(tmp_path_factory.mktemp("words"), scenes.vocabulary())


@pytest.fixture(scope="session")
def recipe_run(model, tmp_path_factory):
    """Two optimizer steps of a recipe on the tiny model, once a session; the run folder."""
    runs: dict[str, Path] = {}
    output = tmp_path_factory.mktemp("runs")

    def made(name: str) -> Path:
        if name not in runs:
            reward = "ocr" if name == "branch_grpo_mix" else "jpeg_compressibility"
            # With a visible step and no average, so that the LoRA that is saved draws something else.
            visible = ["--optim.lr", 0.1, "--optim.ema", 0] if name == "flow_grpo" else []
            run(
                "train_visual.py",
                *("--config", RECIPES[name], "--output-dir", output, "--model.path", model),
                *("--model.height", 16, "--model.width", 16, "--model.dtype", "float32"),
                *("--model.max-sequence-length", 16, "--data.prompts_per_step", PROMPTS_A_ROUND.get(name, 1)),
                *("--sampling.evaluation-steps", 2, "--sampling.forward_batch_size", 256),
                *("--optim.micro_batch_size", 64, "--steps", 2, "--threads", 1),
                *("--eval.prompts", 2, "--samples-shown", 2, "--rewards", reward, *visible),
            )
            runs[name] = output / name
        return runs[name]

    return made


def small(words: Path, folder: Path, *more: object) -> list[object]:
    """Arguments of a quick run of the model without VAE: 12 steps, a checkpoint every 4."""
    return [
        *("--output-dir", folder, "--model.path", words, "--model.height", 16, "--model.width", 16),
        *("--steps", 12, "--save-every", 4, "--threads", 1, "--trackers", "--rewards", "jpeg_compressibility"),
        *(
            "--data.prompts_per_step",
            2,
            "--data.group-size",
            4,
            "--sampling.steps",
            4,
            "--sampling.evaluation-steps",
            2,
        ),
        *("--eval.prompts", 3, "--optim.ema", 0.5, "--optim.lr", 0.01, *more),
    ]


@pytest.fixture(scope="session")
def whole(words, tmp_path_factory) -> Path:
    """The run of ``small``, uninterrupted."""
    output = tmp_path_factory.mktemp("whole")
    run("train_visual.py", *small(words, output))
    return output / "run"


def told(folder: Path) -> list[dict]:
    """The metrics, without times and memory."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in r.items() if not k.startswith("time/") and k not in ("seconds", "memory")} for r in rows]


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


# ---- recipes and what a run leaves behind


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_and_leaves_a_whole_run_folder(name, recipe_run):
    folder = recipe_run(name)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    recipe = yaml.safe_load(RECIPES[name].read_text())
    assert config["algorithm"]["preset"] == recipe["algorithm"]["preset"]
    assert config["data"]["group_size"] == recipe["data"]["group_size"]
    assert config["sampling"]["plan"] == recipe["sampling"]["plan"]
    assert {"objective", "baseline", "credit"} <= config["algorithm"].keys()  # the preset, written out

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    rewards = [reward.split("(")[0] for reward in config["rewards"]]
    wanted = {f"reward/{reward}/{kind}" for reward in rewards for kind in ("mean", "std")}
    wanted |= {"group/zero_std_fraction", "ratio/first_minus_one", "clip/low", "clip/high", "kl", "grad_norm", "lr"}
    wanted |= {"step", "seconds", "time/rollout", "time/reward", "time/update", "memory"}
    for line in lines:
        assert wanted <= line.keys()
        assert all(isinstance(line[key], int | float) and math.isfinite(line[key]) for key in wanted)
        assert line["ratio/first_minus_one"] < 1e-5
    assert lines[0]["decisions"] > 0 and lines[0]["memory"] > 0

    for title in ("before", "after"):
        assert Image.open(folder / "samples" / f"{title}.png").width > 100
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000002"]
    saved = "pytorch_lora_weights.safetensors" if config["model"]["lora_rank"] else "transformer"
    assert (folder / "model" / saved).exists()

    found = summary(folder)
    assert found["modality"] == "visual" and found["family"] == "sd3" and found["steps"] == 2 and found["seed"] == 0
    assert found["preset"] == recipe["algorithm"]["preset"] and found["seconds"] > 0
    assert found["eval"].keys() == {"before", "after", "difference"}
    for section in found["eval"].values():
        assert section.keys() == set(rewards)
        for interval in section.values():
            assert interval.keys() == {"mean", "low", "high", "n"} and interval["n"] == 2
            assert interval["low"] <= interval["mean"] <= interval["high"]

    report = (folder / "report.html").read_text()
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:|#)""", report) and "@import" not in report
    assert report.count("data:image/png;base64,") >= 3 and name in report


# ---- drawing and measuring


@pytest.mark.slow
def test_the_saved_lora_in_diffusers_draws_what_the_sample_script_draws(recipe_run, model, tmp_path):
    from diffusers import StableDiffusion3Pipeline

    folder = recipe_run("flow_grpo")
    run("sample.py", "--run", folder, "--before", "--samples", 2, "--limit", 1, "--output", tmp_path)
    listed = json.loads((tmp_path / "samples.json").read_text())
    assert [p["weights"] for p in listed["pictures"]] == ["untrained"] * 2 + ["model"] * 2
    assert (tmp_path / "grid.png").is_file()
    text = listed["pictures"][0]["prompt"]
    assert text == load_prompts(ROOT / "assets" / "signs" / "heldout.jsonl")[0].text

    pipe = StableDiffusion3Pipeline.from_pretrained(model)
    pipe.set_progress_bar_config(disable=True)

    def theirs() -> np.ndarray:
        return pipe(
            [text, text],
            height=16,
            width=16,
            latents=torch.randn(2, *latent_shape(pipe), generator=stream(1234, "start", 0)),
            sigmas=[1.0, 0.5],
            num_inference_steps=2,
            guidance_scale=4.5,
            max_sequence_length=16,
            output_type="np",
        ).images

    before = theirs()
    pipe.load_lora_weights(folder / "model")
    after = theirs()
    for sample in range(2):
        for picture, name in ((before, f"000-{sample}-before.png"), (after, f"000-{sample}.png")):
            ours = np.asarray(Image.open(tmp_path / name), dtype=np.float64)
            assert np.abs(ours - 255 * picture[sample]).max() <= 0.51  # rounded to a level
    assert np.abs(after - before).max() > 5 / 255


def latent_shape(pipe) -> tuple[int, int, int]:
    return pipe.transformer.config.in_channels, 16 // pipe.vae_scale_factor, 16 // pipe.vae_scale_factor


@pytest.mark.slow
def test_evaluating_a_run_gives_the_numbers_of_its_summary(whole, tmp_path):
    output = tmp_path / "evaluation.json"
    done = run("evaluate.py", "--run", whole, "--against", "untrained", "--output", output)
    found, wanted = json.loads(output.read_text()), summary(whole)["eval"]
    name = "jpeg_compressibility"
    for ours, theirs in (
        (found["rewards"][name], wanted["after"][name]),
        (found["against"]["rewards"][name], wanted["before"][name]),
        (found["difference"][name], wanted["difference"][name]),
    ):
        assert {key: ours[key] for key in ("mean", "low", "high", "n")} == pytest.approx(theirs, abs=1e-9)
    assert found["difference"][name]["mean"] != 0
    assert f"{found['rewards'][name]['mean']:.3f}" in done.stdout and "paired" in done.stdout
    assert len(found["values"]) == found["prompts"] == 3 and found["best_of"] == {}  # kilobytes are no chances


@pytest.mark.slow
def test_evaluation_tells_tasks_and_the_best_of_several_samples(words, tmp_path):
    (tmp_path / "own.py").write_text(
        "def coin(prompts, outputs):\n    return [float(int(o.pixels.sum() * 1e4) % 2) for o in outputs]\n"
    )
    lines = [{"text": "a red circle", "task": "one"}, {"text": "two red circles", "task": "two"}]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    source = ["--model.path", words, "--model.height", 16, "--model.width", 16, "--steps", 1, "--samples", 8]
    output = tmp_path / "out.json"
    files = ["--file", tmp_path / "prompts.jsonl", "--output", output]
    path = {"PYTHONPATH": str(tmp_path)}
    done = run("evaluate.py", *source, *files, "--rewards", "own:coin", "--against", words, **path)
    found = json.loads(output.read_text())
    values = np.array([row["coin"] for row in found["values"]])
    assert values.shape == (2, 8) and found["rewards"]["coin"]["mean"] == pytest.approx(values.mean())
    assert [found["tasks"][task]["coin"]["mean"] for task in ("one", "two")] == pytest.approx(values.mean(1).tolist())
    chances = found["pass_at"]["coin"]
    assert list(chances) == ["1", "2", "4", "8"] and chances["1"] == pytest.approx(values.mean())
    assert chances["8"] == values.max(1).mean() and found["best_of"] == found["pass_at"]
    assert found["difference"]["coin"]["mean"] == 0  # the same model from the same noise
    assert "pass@k" in done.stdout and "two" in done.stdout


@pytest.mark.slow
def test_a_checkpoint_draws_what_the_model_saved_with_it_draws(whole, tmp_path):
    for weights in ("model", "12", "latest"):
        run("sample.py", "--run", whole, "--weights", weights, "--limit", 2, "--output", tmp_path / weights)
    for name in ("000-0.png", "001-0.png"):
        pictures = {(tmp_path / weights / name).read_bytes() for weights in ("model", "12", "latest")}
        assert len(pictures) == 1


# ---- what a user is told


def test_help_lists_every_field_with_its_doc():
    """A narrow terminal has one column; words are compared, for lines break where it ends."""
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", run("train_visual.py", "--help", COLUMNS="80").stdout).split())
    missing = []
    for path, sections in (
        (ROOT / "scripts" / "visual.py", SECTIONS),
        (ROOT / "mmgrpo" / "runtime" / "config.py", SECTIONS),
    ):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name in sections:
                for field, doc in zip(node.body, node.body[1:], strict=False):
                    if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr):
                        option = "--" + sections[node.name] + ast.unparse(field.target).replace("_", "-")
                        if (
                            not re.search(rf"{re.escape(option)}[ ,]", shown)
                            or " ".join(ast.literal_eval(doc.value).split()) not in shown
                        ):
                            missing.append(option)
    assert missing == []


SECTIONS = {
    **{"Model": "model.", "Data": "data.", "Sampling": "sampling.", "VisualConfig": ""},
    **{"Algorithm": "algorithm.", "Optim": "optim.", "Eval": "eval.", "Run": ""},
}
"""Configuration class to the prefix of its options."""


@pytest.mark.parametrize("script", ["sample.py", "evaluate.py"])
def test_help_of_the_other_scripts_says_how_to_call_them(script):
    shown = run(script, "--help").stdout
    assert f"python scripts/{script} --run runs/demo" in shown and "--model.path" in shown


def test_a_dry_run_prints_the_arithmetic_and_loads_nothing(tmp_path):
    arguments = ["--dry-run", "--output-dir", tmp_path, "--model.path", "there/is-no-model", "--steps", 10]
    done = run(
        "train_visual.py", *arguments, "--data.prompts_per_step", 3, "--data.group-size", 4, "--sampling.steps", 5
    )
    # 3 x 4 rows, 5 evaluations and 4 trained decisions each
    assert "3 prompts x 4 samples = 12 samples" in done.stdout
    assert "60 network evaluations to sample, 48 decisions trained" in done.stdout
    assert "10 optimizer steps = 10 rounds = 120 samples" in done.stdout
    assert list(tmp_path.iterdir()) == []


def refused(script: str, *arguments: object) -> str:
    """The last line of a refusal, which is not a traceback."""
    done = run(script, *arguments, ok=False)
    assert done.returncode == 2, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    return last


EARLY = {
    "unknown option": (["--stpes", 3], "no option '--stpes'. Did you mean '--steps'?"),
    "unknown key": (["--config", "a.yaml"], "a.yaml: unknown key 'optim.rl'. Did you mean 'optim.lr'?"),
    "missing recipe": (["--config", "none.yaml"], "there is no file none.yaml; recipes are in scripts/recipes/"),
    "unknown preset": (["--algorithm.preset", "flow_gpro"], "no preset 'flow_gpro'. Did you mean 'flow_grpo'?"),
    "groups of one": (["--data.group-size", 1], "data.group_size must be at least 2, got 1"),
    "a tree that does not fit": (
        ["--sampling.plan", "branch_tree(splits=[0,1])", "--data.group-size", 6],
        "makes groups of 4, got group_size=6; set group_size=4",
    ),
    "unknown plan": (["--sampling.plan", "branchtree"], "there is no 'branchtree'. Did you mean 'branch_tree'?"),
    "more updates than groups": (["--optim.updates", 9], "raise data.prompts_per_step or lower optim.updates"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", EARLY)
def test_a_mistake_in_the_settings_is_told_in_one_line(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("optim:\n  rl: 1e-3\n")
    arguments, message = EARLY[case]
    assert message in refused("train_visual.py", *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


LATE = {
    "unknown reward": (["--rewards", "scene_al"], "there is no 'scene_al'. Did you mean 'scene_all'?"),
    "unknown reward function": (["--rewards", "math:nothing"], "module 'math' has no function 'nothing'"),
    "missing model": (["--model.path", "nowhere"], "there is no model folder 'nowhere'"),
    "folder that is no model": (["--model.path", "."], "is no Stable Diffusion 3 model: it holds broken.jsonl"),
    "missing prompts": (["--data.train", "nowhere.jsonl"], "nowhere.jsonl: there is no such prompt file"),
    "broken prompts": (["--data.train", "broken.jsonl"], "broken.jsonl:2: not JSON"),
    "preset for tokens": (["--algorithm.preset", "gfpo"], "preset 'gfpo' is for tokens policies"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LATE)
def test_what_is_missing_is_told_in_one_line_and_an_earlier_run_stays(case, tmp_path, monkeypatch):
    """Even with --overwrite: a run that cannot start removes nothing."""
    monkeypatch.chdir(tmp_path)
    Path("broken.jsonl").write_text('{"text": "a red circle"}\n{"text": \n')
    earlier = tmp_path / "runs" / "run"
    earlier.mkdir(parents=True)
    (earlier / "config.yaml").write_text("name: run\n")
    (earlier / "summary.json").write_text("{}")
    arguments, message = LATE[case]
    assert message in refused("train_visual.py", "--overwrite", *arguments)
    assert sorted(path.name for path in earlier.iterdir()) == ["config.yaml", "summary.json"]


@pytest.mark.slow
def test_an_earlier_run_is_neither_overwritten_nor_continued_by_accident(whole, words):
    kept = (whole / "metrics.jsonl").read_bytes()
    last = refused("train_visual.py", *small(words, whole.parent))
    assert "already holds a run; continue it with --resume, start afresh with --overwrite" in last
    last = refused("train_visual.py", *small(words, whole.parent, "--resume", "--optim.beta1", 0.5))
    assert "written with other settings of optim; resume with the same ones" in last
    assert (whole / "metrics.jsonl").read_bytes() == kept


@pytest.mark.slow
def test_the_drawing_scripts_say_what_they_need(whole, tmp_path):
    assert "is no run folder" in refused("sample.py", "--run", tmp_path)
    assert "there is nothing to draw" in refused("sample.py")
    assert "holds: step-000008, step-000012" in refused("sample.py", "--run", whole, "--weights", 3)
    assert "there are no prompts to measure with" in refused("evaluate.py")
    assert "rewards: none is named" in refused("evaluate.py", "--file", "assets/scenes/heldout.jsonl")


@pytest.mark.slow
def test_a_reward_that_fails_is_named_and_the_traceback_can_be_had(words, tmp_path):
    (tmp_path / "own.py").write_text("def broken(prompts, outputs):\n    return [1 / 0 for _ in outputs]\n")
    arguments = small(words, tmp_path, "--rewards", "own:broken", "--eval.skip")
    done = run("train_visual.py", *arguments, ok=False, PYTHONPATH=str(tmp_path))
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert last.startswith("error: reward 'broken' failed on a batch of 8 outputs") and "ZeroDivisionError" in last
    more = {"PYTHONPATH": str(tmp_path), "MMGRPO_DEBUG": "1"}
    done = run("train_visual.py", *arguments, "--overwrite", ok=False, **more)
    assert done.returncode == 1 and "1 / 0" in done.stderr


def test_only_errors_that_this_project_raises_on_purpose_are_told_in_one_line(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from door import enter

    from mmgrpo.registry import parse

    with pytest.raises(SystemExit) as caught:
        enter(lambda: parse("not a name"))  # type: ignore[arg-type, return-value]
    assert caught.value.code == 2
    with pytest.raises(SystemExit):
        enter(lambda: Path("/nowhere").read_text())  # type: ignore[arg-type, return-value]
    for mistake in (lambda: int("x"), lambda: torch.zeros(2) + torch.zeros(3), lambda: torch.ones(2).view(3)):
        with pytest.raises((ValueError, RuntimeError)):
            enter(mistake)
    monkeypatch.setenv("MMGRPO_DEBUG", "1")
    with pytest.raises(ValueError, match="is not of the form"):
        enter(lambda: parse("not a name"))  # type: ignore[arg-type, return-value]


# ---- runs that are cut off


def killed_at(line: int, folder: Path, *arguments: object) -> None:
    """Start training and kill it, without a chance to tidy up, as soon as the metrics have so many lines."""
    process = subprocess.Popen(
        command("train_visual.py", *arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
    )
    path = folder / "metrics.jsonl"
    while process.poll() is None:
        if path.is_file() and path.read_bytes().count(b"\n") >= line:
            process.send_signal(signal.SIGKILL)
            process.wait()
        time.sleep(0.002)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_numbers_of_an_uninterrupted_one(whole, words, tmp_path):
    arguments = small(words, tmp_path)
    folder = tmp_path / "run"
    killed_at(1, folder, *arguments)  # before the first checkpoint, unless the process outran the kill
    killed_at(1, folder, *arguments, "--resume")  # while it starts: the line of before is still there
    killed_at(6, folder, *arguments, "--resume")
    assert (folder / "checkpoints" / "step-000004").is_dir() and not (folder / "summary.json").exists()
    run("train_visual.py", *arguments, "--resume")
    assert told(folder) == told(whole)
    assert summary(folder)["eval"] == summary(whole)["eval"]
    for name in ("weights", "optimizer", "ema"):
        file = f"checkpoints/step-000012/{name}.safetensors"
        assert (folder / file).read_bytes() == (whole / file).read_bytes()


@pytest.mark.slow
def test_a_run_that_cannot_write_its_checkpoint_says_so_and_resumes_from_the_last(whole, words, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    arguments = small(words, tmp_path, "--resume")
    arguments[arguments.index("--steps") + 1] = 14
    done = run("train_visual.py", *arguments, ok=False, limit=100_000)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["step-000008", "step-000012"]
    run("train_visual.py", *arguments)
    assert told(tmp_path / "run")[:12] == told(whole)
    assert [line["step"] for line in told(tmp_path / "run")] == list(range(1, 15))
