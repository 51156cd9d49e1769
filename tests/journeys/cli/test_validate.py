"""``mmgrpo validate`` on tiny checkpoints: what holds passes, what does not fails, and what is not there is not run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.cli.validate import checks
from mmgrpo.cli.validate.checks import Check, Measured, Skipped
from mmgrpo.family import families
from mmgrpo.report.validation import CHECKS
from pipelines.library import Transformers
from tests.journeys.cli.running import call
from tests.libraries.families.examples import EXAMPLES
from tests.tiny import maker, tiny_checkpoint


def options(name: str) -> list[object]:
    """Those that make a family's tiny model small, of the battery."""
    given = EXAMPLES[name].model
    return [word for key, value in given.items() for word in (f"--model.{key.replace('_', '-')}", value)]


def validated(name: str, folder: Path, *more: object) -> dict[str, Any]:
    """The statuses of the checks of a family's tiny checkpoint, and the result."""
    path = tiny_checkpoint(maker(name))
    call("validate", path, "--model.family", name, *options(name), *more, "--output", folder)
    [file] = folder.glob("*.json")
    result = json.loads(file.read_text())
    return {one["check"]: one["status"] for one in result["outcomes"]} | {"result": result}


ALL = dict.fromkeys(CHECKS, "passed") | {"memory": "skipped"}
"""On a CPU."""
SMALL = ("--sampling.max-tokens", 5, "--model.lora-rank", 2)


@pytest.mark.slow
def test_a_language_model_passes_all_checks_and_its_result_is_bound_to_versions(tmp_path):
    found = validated("causal_lm", tmp_path, *SMALL)
    result = found.pop("result")
    assert found == ALL
    assert result["versions"].keys() >= {"mmgrpo", "torch", "transformers"} and result["device"].startswith("CPU, ")
    assert result["dtype"] == "float32" and result["settings"]["model.lora_rank"] == 2
    assert str(tmp_path) not in json.dumps(result) and result["commit"]
    [exported] = (one for one in result["outcomes"] if one["check"] == "exports")
    assert exported["measured"] <= exported["tolerance"] == 1e-3


@pytest.mark.slow
def test_a_library_that_leaves_out_the_adapters_is_found_out(tmp_path, monkeypatch):
    load = Transformers.load

    def bare(self: Transformers, config: Any, path: str, adapters: str, device: str) -> Any:
        return load(self, config, path, "", device)

    monkeypatch.setattr(Transformers, "load", bare)
    with pytest.raises(SystemExit, match="1"):
        validated("causal_lm", tmp_path, *SMALL)
    [file] = tmp_path.glob("*.json")
    statuses = {one["check"]: one["status"] for one in json.loads(file.read_text())["outcomes"]}
    assert statuses == ALL | {"exports": "failed"}


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", ["sd3", "sdxl", "qwen_vl", "image_text", "audio_text"])
def test_a_family_passes_all_checks_and_draws_what_its_library_draws(name, tmp_path):
    found = validated(name, tmp_path)
    outcomes = {one["check"]: one for one in found.pop("result")["outcomes"]}
    assert found == ALL
    assert outcomes["sample"]["measured"] < 1e-5 and outcomes["exports"]["measured"] < 1e-5


def test_a_checkpoint_that_is_not_here_is_not_run_and_says_why(tmp_path, capsys):
    call("validate", "openai/whisper-large-v3", "--output", tmp_path)
    [file] = tmp_path.glob("*.json")
    result = json.loads(file.read_text())
    assert {one["status"] for one in result["outcomes"]} == {"not run"} and "HF_HUB_OFFLINE" in file.read_text()
    capsys.readouterr()
    call("validate", "--table", "--output", tmp_path)
    [row] = (line for line in capsys.readouterr().out.splitlines() if line.startswith("openai/whisper-large-v3"))
    assert "passed" not in row


@pytest.mark.parametrize(
    ("words", "message"),
    [(["flu"], "'flu'.*flux"), (["some/where/else"], "some/where/else"), (["duration"], "duration")],
)
def test_what_is_no_checkpoint_is_an_error_that_names_it(words, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        call("validate", *words, "--output", tmp_path)


def test_a_check_whose_needs_have_not_passed_is_not_run(monkeypatch):
    def fails(job: Any) -> Measured:
        raise OSError("no file\nmore")

    def skips(job: Any) -> Measured:
        raise Skipped("no card")

    table = {
        "loads": Check(lambda job: Measured(0.2, 0.1)),
        "ratio": Check(fails),
        "trains": Check(lambda job: Measured(0.1, 0.1), ("ratio",)),
        "memory": Check(skips),
        "saves": Check(lambda job: Measured(float("nan"), 0.1)),
        "sample": Check(lambda job: Measured(note="x"), ()),
    }
    monkeypatch.setattr(checks, "TABLE", table)
    job: Any = checks.Job(families()["sd3"], None, "cpu", Path())  # type: ignore[arg-type]
    found = {one.check: replace(one, seconds=0.0) for one in checks.outcomes(job)}
    assert [one.status for one in found.values()] == ["failed", "failed", "not run", "skipped", "failed", "passed"]
    assert found["ratio"].reason == "OSError: no file" and "'ratio'" in found["trains"].reason
    assert found["memory"].reason == "no card"
