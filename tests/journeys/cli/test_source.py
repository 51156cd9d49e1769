"""Which weights a command loads, and what it samples from them: on a run of two steps of a model of few numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmgrpo.cli.evaluate import Evaluate
from mmgrpo.cli.source import checkpoint_of, load_weights, read_source, start
from mmgrpo.runtime.checkpoint import load_checkpoint
from tests.journeys.cli import quick
from tests.journeys.cli.running import call

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def brief_run(words_folder, tmp_path_factory) -> Path:
    """Two steps with a checkpoint after each, half of the change of an average of the weights."""
    output = tmp_path_factory.mktemp("brief")
    options = ["--steps", 2, "--save-every", 1, "--optim.interpolation", 0.5, "--eval.prompts", 2, "--optim.ema", 0.9]
    call("train", *quick.visual(words_folder, output, *options, "--data.prompts-per-step", 1, "--keep", 3))
    return output / "run"


def loaded(run: Path, weights: str, *options: str) -> dict[str, torch.Tensor]:
    args, config, family = read_source(Evaluate, ["--run", str(run), "--weights", weights, *options], "")
    policy = load_weights(args, config, family, "cpu")
    trained = {n: w.detach() for n, w in policy.network.named_parameters() if w.requires_grad}
    return trained or {n: w.detach() for n, w in policy.network.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def test_the_model_the_latest_checkpoint_and_that_of_the_last_step_are_the_weights_that_were_evaluated(brief_run):
    model, latest, last = (loaded(brief_run, weights) for weights in ("model", "latest", "2"))
    assert same(latest, last) and not same(latest, loaded(brief_run, "1"))
    untrained = loaded(brief_run, "untrained")
    assert not same(latest, untrained) and untrained.keys() == latest.keys()
    # half of the way from the first weights to their average
    average = load_checkpoint(brief_run / "checkpoints" / "step-000002").tensors["ema"]
    for name, value in latest.items():
        stored = average[name] if name in average else average[f"network.{name}"]
        torch.testing.assert_close(value, (untrained[name] + stored) / 2, rtol=0, atol=1e-6)
    assert any(not torch.equal(value, untrained[name]) for name, value in model.items() if name in untrained)


def test_a_command_takes_the_threads_and_the_device_that_it_is_told():
    before = torch.get_num_threads()
    try:
        args, *_ = read_source(Evaluate, ["--threads", "2", "--model.device", "cpu"], "")
        assert start(args).device.type == "cpu" and torch.get_num_threads() == 2
        args.threads = 0
        assert start(args).device.type == "cpu" and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_run_is_measured_against_its_first_weights_on_the_same_prompts(brief_run, tmp_path, capsys):
    output = tmp_path / "evaluation.json"
    call("evaluate", "--run", brief_run, "--against", "untrained", "--output", output, "--no-blind")
    result = json.loads(output.read_text())
    expected = json.loads((brief_run / "summary.json").read_text())["eval"]
    name = "jpeg_compressibility"
    assert result["rewards"][name]["mean"] == pytest.approx(expected["after"][name]["mean"], abs=1e-9)
    assert result["against"]["rewards"][name]["mean"] == pytest.approx(expected["before"][name]["mean"], abs=1e-9)
    assert result["difference"][name]["mean"] == pytest.approx(expected["difference"][name]["mean"], abs=1e-9)
    keys = ("run", "weights", "prompts", "samples", "seed", "evaluation_steps")
    assert [result[key] for key in keys] == [str(brief_run), "model", 2, 1, 1234, 2]
    assert len(result["values"]) == 2 and result["against"]["name"] == "untrained"
    assert f"written: {output}" in capsys.readouterr().out


def test_what_a_family_adds_to_the_summary_is_in_it(words_folder, tmp_path, monkeypatch):
    from mmgrpo.family import family

    record = replace(family("sd3"), summary=lambda config, trainer: {"seen": trainer.step})
    monkeypatch.setattr("mmgrpo.api.family", lambda name: record)
    call("train", *quick.visual(words_folder, tmp_path, "--steps", 1, "--eval.skip", "--data.prompts-per-step", 1))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["seen"], summary["steps"], summary["modality"], summary["family"]) == (1, 1, "visual", "sd3")
    assert not (tmp_path / "run" / "skipped.jsonl").exists()  # no prompt was left out
    assert (summary["preset"], summary["seed"], summary["skipped_steps"]) == ("grpo", 0, 0)


@pytest.mark.parametrize("weights", ["best", "-1", "1234567890"])
def test_a_checkpoint_is_named_by_a_step_of_at_most_nine_digits(weights):
    assert checkpoint_of(Path("run"), "123456789", None) == Path("run/step-123456789")
    assert checkpoint_of(Path("run"), "7", None) == Path("run/step-000007")
    with pytest.raises(ValueError, match=f"'{weights}'"):
        checkpoint_of(Path("run"), weights, None)
