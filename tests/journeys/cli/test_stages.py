"""``mmgrpo train --stages``: what a stage has of the run, what starts from what, and how a killed run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from mmgrpo.cli.stages import stages_of, started_from
from mmgrpo.cli.train import file_section, main, read, read_stage
from mmgrpo.config.plugins import recipes
from mmgrpo.config.reading import load_yaml
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.trainer import Trainer
from tests.tiny.causal_lm import tiny


def configured(*arguments: str) -> list[Any]:
    return [read_stage(one, "", "sd3") for one in stages_of(arguments, file_section(arguments))]


def test_a_stage_has_the_settings_of_the_run_but_for_its_algorithm():
    run = (
        "--recipe=visual/flow_grpo",
        "--sampling.kernel",
        "dance(eta=0.3)",
        "--optim.lr",
        "2e-4",
        "--sampling.steps",
        "7",
    )
    first, last = configured(*run, "--stages", "sft,flow_grpo", "--sft.optim.lr=1e-5", "--sft.steps", "9")
    assert last == read(run, "")
    assert (first.optim.lr, first.steps, first.model, first.rewards) == (1e-5, 9, last.model, last.rewards)
    assert (first.algorithm.preset, first.algorithm.objective, first.data.offline) == ("sft", "likelihood", 1.0)
    sampling = first.sampling
    assert (sampling.policy, sampling.error, sampling.times, sampling.steps) == (
        "matching",
        "velocity",
        "logit_normal",
        1000,
    )
    assert (
        last.sampling.kernel == "dance(eta=0.3)" != sampling.kernel
        and sampling.evaluation_steps == last.sampling.evaluation_steps
    )


def test_a_recipe_says_what_differs_in_a_stage(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: {family: causal_lm}\noptim: {lr: 1e-6}\nalgorithm: {preset: dapo}\ndata: {train: rl.jsonl}\n"
        "stages:\n  cold: {algorithm: {preset: sft}, steps: 5, data: {train: cold.jsonl}}\n"
    )
    cold, last = configured("--config", str(file), "--stages", "cold", "dapo", "--cold.optim.lr", "1e-5")
    assert (cold.data.train, cold.steps, cold.optim.lr, cold.algorithm.preset) == ("cold.jsonl", 5, 1e-5, "sft")
    assert (last.data.train, last.optim.lr, last.algorithm.preset) == ("rl.jsonl", 1e-6, "dapo")
    assert read(["--config", str(file)], "") == last  # without --stages


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--stages", "sfd,grpo"], "--stages.*'sfd'.*'sft'"),
        (["--stages", "sft"], "--stages.*'sft'.*two"),
        (["--stages", "grpo,grpo"], "--stages.*grpo,grpo"),
        (["--stages", "sft,grpo", "--sft.name", "x"], r"stages\.sft\.name"),
        (["--stages", "sft,grpo", "--sft.epochs=-1"], r"stages\.sft\.epochs.*-1"),
        (["--stages", "sft,grpo", "--sft.sampling.kernel", "dance(eta=0.3)"], r"sampling\.kernel"),
        (["--stages", "sft,grpo", "--sft.optim.lrr", "1"], r"optim\.lrr.*optim\.lr"),
    ],
)
def test_what_is_no_stage_is_refused_by_name(arguments, words):
    with pytest.raises((ValueError, SystemExit), match=words):
        configured(*arguments)


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Train a tiny language model in both stages; the folder of the run."""
    monkeypatch.chdir(tmp_path)
    tiny("lm")
    rows = [{"prompt": f"how many {word}", "answer": word, "task": "exact"} for word in ("red", "blue", "yes", "no")]
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("heldout.jsonl").write_text(
        "".join(json.dumps({**row, "prompt": row["prompt"] + " a"}) + "\n" for row in rows)
    )

    def run(name: str, *more: str) -> Path:
        sizes = [
            "--data.prompts-per-step=4",
            "--data.group-size=8",
            "--sampling.max-tokens=3",
            "--save-every=1",
            "--trackers",
        ]
        files = ["--data.train=train.jsonl", "--data.heldout=heldout.jsonl", "--rewards=ended"]
        model = ["--model.family=causal_lm", "--model.path=lm", f"--name={name}", "--steps=2", "--sft.optim.lr=3e-3"]
        main([*model, *files, *sizes, "--stages=sft,grpo", "--sft.epochs=3", *more])
        return Path("runs") / name

    return run


def interrupted_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """An interruption in the place of a round, counted over both stages."""
    run_round, rounds = Trainer.run_round, [0]

    def counted(self: Trainer, *given: Any) -> None:
        rounds[0] += 1
        if rounds[0] == number:
            raise KeyboardInterrupt
        run_round(self, *given)

    monkeypatch.setattr(Trainer, "run_round", counted)


def numbers(folder: Path) -> list[dict[str, Any]]:
    """The metrics of both stages without times."""
    rows = [row for one in (folder / "stages/sft", folder) for row in read_metrics(one / "metrics.jsonl")]
    return [
        {k: v for k, v in row.items() if not k.startswith("time/") and k not in ("seconds", "memory", "run")}
        for row in rows
    ]


@pytest.mark.slow
def test_a_run_killed_in_either_stage_resumes_as_one_that_was_not(train, monkeypatch, capsys):
    whole = train("whole")
    printed = capsys.readouterr().out
    assert printed.count("stage 1 of 2: sft") == printed.count("stage 2 of 2: grpo") == 2  # its costs, and its training
    rows = numbers(whole)
    assert [row["step"] for row in rows] == [1, 2, 3, 1, 2]
    assert abs(rows[3]["kl"]) < 1e-6  # the reference is the model of the first stage
    summary = json.loads((whole / "summary.json").read_text())
    first = json.loads((whole / "stages/sft/summary.json").read_text())
    assert summary["stages"]["sft"]["eval"] == first["eval"]
    assert summary["eval"]["before"] == first["eval"]["after"]
    assert "before sft" in (whole / "report.html").read_text()
    for name, number in {"first": 3, "second": 5}.items():
        with monkeypatch.context() as patch:
            interrupted_at(patch, number)
            with pytest.raises(KeyboardInterrupt):
                train(name)
        assert (Path("runs") / name / "stages/sft/summary.json").is_file() == (number > 3)
        train(name, "--resume")
        assert numbers(Path("runs") / name) == rows
        models = [load_file(folder / "model/model.safetensors") for folder in (whole, Path("runs") / name)]
        assert_close(*models, rtol=0, atol=0)
    with pytest.raises(FileExistsError, match=r"sft.*--resume"):
        train("whole")
    (whole / "notes.txt").write_text("mine")
    train("whole", "--overwrite", "--seed=1")
    assert numbers(whole) != rows and (whole / "notes.txt").is_file()
    assert [path.name for path in sorted((whole / "stages").iterdir())] == ["sft"]
    assert not [path for path in Path("runs").iterdir() if "replaced" in path.name]


@pytest.mark.parametrize("name", [name for name, path in recipes().items() if "stages" in load_yaml(path)])
def test_the_first_stage_of_a_recipe_learns_answers_and_its_last_is_the_recipe(name):
    preset = load_yaml(recipes()[name])["algorithm"]["preset"]
    first, last = configured("--recipe", name, "--stages", f"sft,{preset}")
    assert first.algorithm.objective == "likelihood" and first.data.train != last.data.train
    assert first.data.heldout == last.data.heldout and last == read(["--recipe", name], "")
    started = started_from(last, replace(first, name="sft", output_dir="runs/x/stages"))
    assert (started.model.path, started.model.lora_path) == (first.model.path, "runs/x/stages/sft/model")
