"""Measuring a model: the numbers of its run, against others, task by task."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from mmgrpo.cli.evaluate import Contestant, Evaluate, opponent
from mmgrpo.cli.sample import Sample
from mmgrpo.cli.source import RENAMED, read_source
from mmgrpo.config.reading import load_yaml, option_names, write_yaml
from mmgrpo.config.settings import config_class
from mmgrpo.family import families, family
from tests.journeys.cli.running import call, run, script, summary, write_rows


@pytest.mark.slow
def test_evaluating_a_run_gives_the_numbers_of_its_summary(visual_run, tmp_path, capsys):
    output = tmp_path / "evaluation.json"
    call("evaluate", "--run", visual_run, "--against", "untrained", "--output", output)
    result, expected = json.loads(output.read_text()), summary(visual_run)["eval"]
    name = "jpeg_compressibility"
    for ours, theirs in (
        (result["rewards"][name], expected["after"][name]),
        (result["against"]["rewards"][name], expected["before"][name]),
        (result["difference"][name], expected["difference"][name]),
    ):
        assert {key: ours[key] for key in ("mean", "low", "high", "n")} == pytest.approx(theirs, abs=1e-9)
    assert result["difference"][name]["mean"] != 0
    printed = capsys.readouterr().out
    assert f"{result['rewards'][name]['mean']:.3f}" in printed and "paired" in printed
    assert len(result["values"]) == result["prompts"] == 3 and result["best_of"] == {}  # kilobytes are no chances


@pytest.mark.slow
def test_evaluating_a_run_of_a_model_that_looks_gives_the_numbers_of_its_summary_also_blind(
    vlm_run, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(vlm_run.parent)
    output = tmp_path / "out.json"
    call("evaluate", "--run", vlm_run, "--against", "untrained", "--output", output)
    result, expected = json.loads(output.read_text()), summary(vlm_run)
    for ours, theirs in (
        (result["rewards"], expected["eval"]["after"]),
        (result["against"]["rewards"], expected["eval"]["before"]),
        (result["difference"], expected["eval"]["difference"]),
        (result["blind"]["rewards"], expected["blind"]),
    ):
        interval = {key: ours["ones"][key] for key in ("mean", "low", "high", "n")}
        assert interval == pytest.approx(theirs["ones"], abs=1e-7)
    assert result["evaluation_temperature"] == 0 and result["max_tokens"] == 6 and result["tasks"].keys() == {"exact"}
    printed = capsys.readouterr().out
    assert "against blind" in printed and "against untrained" in printed


@pytest.mark.nightly
def test_evaluation_has_tasks_and_the_best_of_several_samples(words_folder, tmp_path):
    """In a process of its own, for the reward's file has the name of the script, next to which Python looks first."""
    (tmp_path / "evaluate.py").write_text(
        "def coin(prompts, outputs):\n    return [float(int(o.pixels.sum() * 1e4) % 2) for o in outputs]\n"
    )
    rows = [{"text": "a red circle", "task": "one"}, {"text": "two red circles", "task": "two"}]
    write_rows(tmp_path / "prompts.jsonl", rows)
    source = ["--model.path", words_folder, "--model.height", 16, "--model.width", 16]
    source += ["--sampling.evaluation-steps", 1, "--samples", 8, "--file", "prompts.jsonl"]
    options = [*source, "--rewards", "evaluate:coin", "--against", words_folder]
    printed = run(script("evaluate.py"), *options, cwd=tmp_path).stdout
    result = json.loads((tmp_path / "evaluation.json").read_text())
    values = np.array([row["coin"] for row in result["values"]])
    assert values.shape == (2, 8) and result["rewards"]["coin"]["mean"] == pytest.approx(values.mean())
    assert [result["tasks"][task]["coin"]["mean"] for task in ("one", "two")] == pytest.approx(values.mean(1).tolist())
    chances = result["pass_at"]["coin"]
    assert list(chances) == ["1", "2", "4", "8"] and chances["1"] == pytest.approx(values.mean())
    assert chances["8"] == values.max(1).mean() and result["best_of"] == result["pass_at"]
    assert result["difference"]["coin"]["mean"] == 0  # the same model from the same noise
    assert "pass@k" in printed and "two" in printed


def run_of(folder: Path, name: str, **model: object) -> str:
    """A folder that says of which family its run was."""
    write_yaml(folder / "config.yaml", config_class(family(name).sections)())
    config = load_yaml(folder / "config.yaml")
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "model": {"family": name, **model}}))
    return str(folder)


def test_another_run_may_be_of_another_family_that_draws_its_samples_alike(tmp_path):
    other = run_of(tmp_path / "b", "smolvlm", path="b/model", lora_rank=3)
    args, config, chosen = read_source(Evaluate, ["--model.family", "qwen_vl", "--against", other], "")
    contestant = opponent(Contestant(args, config, chosen))
    assert contestant is not None
    assert (contestant.family.name, contestant.args.run, contestant.args.weights) == ("smolvlm", other, "model")
    assert (contestant.config.model.path, contestant.config.model.lora_rank) == ("b/model", 3)
    assert contestant.config.sampling == config.sampling


@pytest.mark.parametrize("name", ["duration", "whisper"])
def test_a_folder_of_a_model_is_compared_as_it_is_also_where_there_are_no_adapters(name):
    args, config, chosen = read_source(Evaluate, ["--model.family", name, "--against", "a/model"], "")
    contestant = opponent(Contestant(args, config, chosen))
    assert contestant is not None and (contestant.args.run, contestant.config.model.path) == ("", "a/model")
    assert getattr(contestant.config.model, "lora_rank", 0) == 0


@pytest.mark.parametrize(("one", "other"), [("qwen_vl", "sd3"), ("whisper", "duration"), ("whisper", "qwen_vl")])
def test_a_run_whose_samples_are_drawn_in_another_way_cannot_be_compared(one, other, tmp_path):
    args, config, chosen = read_source(Evaluate, ["--model.family", one, "--against", run_of(tmp_path, other)], "")
    with pytest.raises(ValueError, match=f"{other}.*{one}"):
        opponent(Contestant(args, config, chosen))


def test_the_options_of_a_run_are_the_defaults_that_the_command_line_overrides(tmp_path):
    run = run_of(tmp_path, "whisper", seconds=9.0, path="a/b")
    options = ["--run", run, "--model.path", "c/d", "--samples", "2", "--sampling.evaluation-temperature", "0.7"]
    args, config, _ = read_source(Evaluate, options, "")
    assert (config.model.seconds, config.model.path, config.sampling.evaluation_temperature) == (9.0, "c/d", 0.7)
    assert (args.file, args.samples, args.seed, args.batch_size) == ("embedded:speech/heldout.jsonl", 2, 1234, 32)


# ---- mistakes


@pytest.mark.parametrize(
    ("against", "message"),
    [
        ("untraind", "'untrained'"),
        ("runs/dmo", "'runs/demo'"),
        ("elsewhere/demo", "elsewhere/demo.*runs/demo"),
        ("embedded:visual/scenes/bas", "embedded:visual/scenes/bas"),
        ("runs", "runs.*model_index.json"),
        ("runs/demo", "runs/demo/model"),
    ],
)
def test_the_other_model_is_looked_for_before_anything_is_measured(against, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipelines.pretrained.is_reachable", lambda repository, name: False)
    run_of(tmp_path / "runs" / "demo", "sd3")
    monkeypatch.setattr("mmgrpo.cli.evaluate.prompts_of", lambda *_: pytest.fail("read the prompts first"))
    with pytest.raises((ValueError, FileNotFoundError), match=f"^--against.*{message}"):
        call("evaluate", "--file", "embedded:visual/scenes/heldout.jsonl", "--against", against)


def test_a_run_that_is_not_there_is_answered_with_those_that_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_of(tmp_path / "runs" / "demo", "sd3")
    for typo in ("runs/dmo", "demo"):
        with pytest.raises(FileNotFoundError, match=f"'{typo}'.*'runs/demo'"):
            call("evaluate", "--run", typo)


def test_held_out_prompts_of_the_command_line_are_those_that_are_read(tmp_path):
    run = run_of(tmp_path, "qwen_vl")
    for options in (["--run", run], ["--model.family", "qwen_vl"]):
        assert read_source(Evaluate, [*options, "--data.heldout", "x.jsonl"], "")[0].file == "x.jsonl"
        with pytest.raises(ValueError, match="--file a.jsonl.*--data.heldout x.jsonl"):
            read_source(Evaluate, [*options, "--data.heldout", "x.jsonl", "--file", "a.jsonl"], "")


@pytest.mark.parametrize("command", ["sample", "evaluate"])
def test_a_run_without_held_out_prompts_is_named(command, tmp_path):
    run = run_of(tmp_path, "qwen_vl")
    config = load_yaml(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**config, "data": {"train": "a.jsonl", "heldout": ""}}))
    with pytest.raises(ValueError, match=f"{run}.*data.heldout.*--file"):
        call(command, "--run", run)


@pytest.mark.parametrize("kind", [Evaluate, Sample])
def test_sizes_are_named_as_the_settings_of_a_run(kind):
    args, *_ = read_source(kind, ["--eval.prompts", "3", "--eval.samples=2", "--eval.seed", "5"], "")
    assert (args.limit, args.samples, args.seed) == (3, 2, 5)


@pytest.mark.parametrize("command", ["sample", "evaluate"])
@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_option_under_its_old_name_is_refused_with_its_new_one(command, old, new):
    with pytest.raises(ValueError, match=f"'{old}'.*{new}"):
        call(command, f"{old}=1")
    known = {name for one in families().values() for name in option_names(config_class(one.sections))}
    assert new in known | {"--batch-size"}
