"""What ``sample`` and ``evaluate`` write of a model whose words are known: it says the number that is its weight."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
import yaml
from accelerate import Accelerator
from PIL import Image as Pil

from mmgrpo.cli.evaluate import Evaluate
from mmgrpo.cli.sample import Sample
from mmgrpo.cli.source import Source, read_source
from mmgrpo.config.ranges import COUNT
from mmgrpo.config.settings import Sections
from mmgrpo.runtime.checkpoint import save_checkpoint
from mmgrpo.runtime.saved_model import write_model
from pipelines.speech.options import SpeechEval
from pipelines.vlm.options import QwenVlOptions, VlmData, VlmEval, VlmSampling
from tests.journeys.cli.own_family import HALVES, HEARS, LOOKS, NOTHING, counting
from tests.journeys.cli.running import call, read_lines, write_rows

SEVERAL = ("--samples", 2, "--sampling.evaluation-temperature", 1)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working directory, with a file of four questions about a picture and one of two answers without."""
    monkeypatch.chdir(tmp_path)
    Pil.new("RGB", (32, 32)).save("a.png")
    tasks = {"ü": ("3", "low"), "b": ("4", "high"), "c": ("5", "high"), "d": ("4", "high")}
    rows = [{"id": i, "text": "?", "image": "a.png", "answer": a, "task": t} for i, (a, t) in tasks.items()]
    write_rows(tmp_path / "asked.jsonl", rows)
    said = [{"id": "one", "text": "say", "answer": "3", "meta": {"voice": "x"}}]
    said += [{"id": "two", "text": "say", "answer": "4 cats", "meta": {"voice": "y"}}]
    write_rows(tmp_path / "said.jsonl", said)
    return tmp_path


def evaluated(family: str, *options: object, path: str = "evaluation.json") -> dict[str, Any]:
    call("evaluate", "--model.family", family, "--model.device", "cpu", *options)
    return json.loads(Path(path).read_text())


def run_of(folder: Path, family: str, number: int, **sections: Any) -> str:
    """A run of a model that began with the number."""
    model = {"family": family, "path": str(number), "device": "cpu"}
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": model, **sections}))
    return str(folder)


def saved(folder: str, number: int) -> None:
    """Save a number as the model of a run."""

    def save(path: Path) -> None:
        path.mkdir()
        (path / "number").write_text(str(number))

    write_model(Path(folder) / "model", save, "id", 1)


# ---- evaluate


def test_a_model_is_measured_blind_and_against_another(folder, capsys):
    """It says 3 and 4, right in one of two samples of three questions of four; the other says 5 and 6."""
    result = evaluated(LOOKS, "--model.path", 3, "--file", "asked.jsonl", "--against", 5, *SEVERAL)
    keys = ("run", "weights", "model", "file", "prompts", "samples", "seed", "evaluation_temperature")
    assert [result[key] for key in keys] == ["", "base", "3", "asked.jsonl", 4, 2, 1234, 1]
    assert (result["rewards"]["exact"]["mean"], result["rewards"]["exact"]["failed"]) == (0.375, 0)
    assert {task: one["exact"]["mean"] for task, one in result["tasks"].items()} == {
        "low": 0.5,
        "high": pytest.approx(1 / 3),
    }
    assert result["pass_at"] == result["best_of"] == {"exact": {"1": 0.375, "2": 0.75}}
    assert result["majority_at"] == {"exact": {"2": 0.25}} and result["agreement"] == 0.5
    blind, against = result["blind"], result["against"]
    assert (blind["name"], blind["rewards"]["exact"]["mean"], blind["agreement"]) == ("blind", 0.0, 1.0)
    assert blind["difference"]["exact"]["mean"] == 0.375
    assert (against["name"], against["rewards"]["exact"]["mean"], against["agreement"]) == ("5", 0.125, 0.5)
    assert result["difference"]["exact"]["mean"] == 0.25 and "corpus" not in result
    values = [{name: row[name] for name in ("id", "exact")} for row in result["values"]]
    assert values == [
        {"id": "ü", "exact": [1.0, 0.0]},
        {"id": "b", "exact": [0.0, 1.0]},
        {"id": "c", "exact": [0.0, 0.0]},
        {"id": "d", "exact": [0.0, 1.0]},
    ]
    assert '"id": "ü"' in Path("evaluation.json").read_text(encoding="utf-8")
    printed = capsys.readouterr().out
    assert "exact against blind (0.000): +0.375" in printed and "exact against 5 (0.125): +0.250" in printed
    assert printed.startswith("4 prompts x 2 samples, evaluation temperature 1") and "all together" not in printed
    assert printed.endswith("\nwritten: evaluation.json\n") and "on 4 prompts: " in printed


def test_a_value_that_is_no_number_is_null_and_a_reward_without_any_is_an_error(folder):
    options = ["--model.path", 3, "--file", "asked.jsonl", "--limit", 2, *SEVERAL, "--no-blind", "--success", 2]
    result = evaluated(
        LOOKS, *options, "--rewards", HALVES, "exact(tags=False)", "--output", "out.json", path="out.json"
    )
    assert [row["halves"] for row in result["values"]] == [[1.5, None]] * 2
    assert [row["exact"] for row in result["values"]] == [[1.0, 0.0], [0.0, 1.0]]
    assert result["rewards"]["halves"]["failed"] == 2 and list(result["best_of"]) == ["exact"]
    assert result["pass_at"] == {"exact": {"1": 0.0, "2": 0.0}} and "blind" not in result
    assert "against" not in result and "difference" not in result and not Path("evaluation.json").exists()
    with pytest.raises(ValueError, match="'nothing'.*NaN.*4"):
        evaluated(LOOKS, *options, "--rewards", HALVES, NOTHING)


def test_of_transcripts_the_rates_of_the_corpus_are_reported_too(folder, capsys):
    """It says 3: right, and one wrong and one missing word. The other says 7, and has no word right."""
    options = ["--model.path", 3, "--file", "said.jsonl", "--worst", 1]
    result = evaluated(HEARS, *options, "--groups", "voice", "--against", 7)
    corpus = result["corpus"]
    assert corpus["wer"]["mean"] == pytest.approx(2 / 3) and corpus["words"] == 3 and "blind" not in result
    assert {voice: one["wer"]["mean"] for voice, one in corpus["groups"]["voice"].items()} == {"x": 0.0, "y": 1.0}
    assert [row["id"] for row in corpus["worst"]] == ["two"]
    assert corpus["difference"]["wer"]["difference"]["mean"] == pytest.approx(-1 / 3)
    printed = capsys.readouterr().out
    assert "of 3 words: 1 substituted, 1 deleted, 0 inserted" in printed and "wer against the other: -0.333" in printed
    alone = evaluated(HEARS, *options, "--json")
    shown = capsys.readouterr()
    assert json.loads(shown.out) == alone and "of 3 words" in shown.err
    assert alone["corpus"]["groups"] == {} and "difference" not in alone["corpus"]


def test_a_translation_is_compared_as_one_unless_the_run_or_the_user_says_how(folder):
    options = ["--file", "said.jsonl", "--model.task", "translate"]
    translated = evaluated(HEARS, "--model.path", 3, *options)
    assert list(translated["rewards"]) == ["sentence_bleu", "sentence_chrf"] and "bleu" in translated["corpus"]
    assert list(evaluated(HEARS, "--model.path", 3, *options[:2])["rewards"]) == ["one_minus_wer"]
    asked = evaluated(HEARS, "--model.path", 3, *options, "--rewards", "exact(tags=False)")
    assert list(asked["rewards"]) == ["exact"]
    run = run_of(folder / "run", HEARS, 3, rewards=["one_minus_wer"])
    saved(run, 3)
    of_run = evaluated(HEARS, "--run", run, *options, path="run/evaluation-said.json")
    assert list(of_run["rewards"]) == ["one_minus_wer"]


def test_a_run_is_measured_on_its_prompts_as_it_was_and_its_result_lies_in_its_folder(folder):
    sections = {"data": {"heldout": "asked.jsonl"}, "eval": {"prompts": 3, "seed": 7, "samples": 2}}
    run = run_of(folder / "run", LOOKS, 3, **sections, sampling={"evaluation_temperature": 0.5})
    saved(run, 5)
    result = evaluated(LOOKS, "--run", run, "--against", "untrained", path="run/evaluation.json")
    keys = ("run", "weights", "model", "file", "prompts", "samples", "seed")
    assert [result[key] for key in keys] == [run, "model", "3", "asked.jsonl", 3, 2, 7]
    # it says 5 and 6, and said 3 and 4
    assert [row["exact"] for row in result["values"]] == [[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
    assert result["against"]["rewards"]["exact"]["mean"] == pytest.approx(1 / 3)
    assert not Path("evaluation.json").exists()
    other = run_of(folder / "other", LOOKS, 9)
    saved(other, 5)
    weights = ["--weights", "untrained", "--limit", 0]
    path = "run/evaluation-asked-untrained.json"
    result = evaluated(LOOKS, "--run", run, "--against", other, *weights, path=path)
    assert (result["weights"], result["prompts"], result["rewards"]["exact"]["mean"]) == ("untrained", 4, 0.375)
    # the final weights of the other, whichever of the run are asked for
    assert (result["against"]["name"], result["against"]["rewards"]["exact"]["mean"]) == (other, 0.125)


def test_prompts_of_the_command_line_are_no_file(folder):
    options = ["--model.path", 3, "--prompts", "two?", "three?", "--answers", "2", "3"]
    result = evaluated(LOOKS, *options)
    assert (result["file"], result["prompts"], result["rewards"]["exact"]["mean"]) == ("", 2, 0.5)
    assert [row["id"] for row in result["values"]] == ["prompt-0", "prompt-1"] and "blind" not in result


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ([], "evaluation.json"),
        (["--samples", 1, "--seed", 3], "evaluation.json"),
        (["--limit", 1], "evaluation-asked-1.json"),
        (["--limit", 0], "evaluation-asked.json"),
        (["--file", "said.jsonl"], "evaluation-said-3.json"),
        (["--data.heldout", "said.jsonl"], "evaluation-said-3.json"),
        (["--prompts", "two?", "--answers", "2"], "evaluation-prompts.json"),
        (["--weights", "untrained"], "evaluation-untrained.json"),
    ],
)
def test_the_evaluation_of_a_run_is_not_replaced_by_one_of_other_prompts_or_weights(folder, options, name):
    run = run_of(folder / "run", LOOKS, 3, data={"heldout": "asked.jsonl"}, eval={"prompts": 3})
    saved(run, 5)
    before = folder / "run" / "evaluation.json"
    before.write_text("{}")
    evaluated(LOOKS, "--run", run, *options, "--rewards", "exact(tags=False)", path=f"run/{name}")
    assert (before.read_text() == "{}") == (name != before.name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--file", "asked.jsonl", "--task", "exact"], "--task: got 'exact'"),
        (["--file", "asked.jsonl", "--answers", "3"], "--answers.*'3'"),
        (["--prompts", "two?", "--limit", 1], "--limit: got 1"),
        (["--prompts", "two?", "--file", "asked.jsonl"], "--file.*'asked.jsonl'"),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "sample"])
def test_options_that_prompts_of_another_place_do_not_read_are_refused(folder, command, options, words):
    with pytest.raises(ValueError, match=words):
        call(command, "--model.family", LOOKS, "--model.path", 3, *options)


def test_only_the_first_process_writes(folder, capsys, monkeypatch):
    monkeypatch.setattr(Accelerator, "is_main_process", False)
    call("evaluate", "--model.family", LOOKS, "--model.device", "cpu", "--model.path", 3, "--file", "asked.jsonl")
    assert not Path("evaluation.json").exists() and capsys.readouterr().out == ""


def test_a_picture_that_cannot_be_read_is_named_and_left_out(folder, capsys):
    rows = [*read_lines(folder / "asked.jsonl"), {"id": "gone", "text": "?", "image": "gone.png", "answer": "3"}]
    write_rows(folder / "asked.jsonl", rows)
    options = ["--model.path", 3, "--file", "asked.jsonl", "--data.skip-limit", 0.5]
    assert evaluated(LOOKS, *options)["prompts"] == 4
    assert capsys.readouterr().out.startswith("skipped: gone (")


# ---- sample


def sampled(*options: object, folder: str = "drawn") -> dict[str, Any]:
    call("sample", *options)
    return json.loads((Path(folder) / "samples.json").read_text(encoding="utf-8"))


def test_samples_are_listed_with_what_they_were_drawn_from(folder, capsys):
    model = ["--model.family", LOOKS, "--model.device", "cpu", "--model.path", 3]
    options = ["--file", "asked.jsonl", "--limit", 2, "--seed", 5, "--rewards", HALVES, "exact(tags=False)"]
    listed = sampled(*model, *options, *SEVERAL)
    about = {"run": "", "model": "3", "evaluation_temperature": 1, "max_tokens": VlmSampling().max_tokens, "samples": 2}
    assert {key: value for key, value in listed.items() if key != "drawn"} == about
    noise = [{"seed": 5, "slot": slot, "sample": sample, "weights": "base"} for slot in (0, 1) for sample in (0, 1)]
    values = [(1.5, 1.0), (None, 0.0), (1.5, 0.0), (None, 1.0)]
    assert listed["drawn"] == [
        {"prompt": "?", "id": name, **one, "rewards": {"halves": half, "exact": right}, "text": text}
        for name, one, (half, right), text in zip("üübb", noise, values, "3434", strict=True)
    ]
    assert '"ü"' in (folder / "drawn" / "samples.json").read_text(encoding="utf-8")
    assert [row["completion"] for row in read_lines(folder / "drawn" / "after.jsonl")] == ["3", "4", "3", "4"]
    page = Path("drawn") / "completions.html"
    *printed, last = capsys.readouterr().out.splitlines()
    assert last == f"4 samples in drawn: see {page}" and page.is_file()
    assert printed[0] == "? -> 3  [halves 1.5, exact 1]" and len(printed) == 4
    assert not (folder / "drawn" / "before.jsonl").exists()
    again = sampled(*model, "--prompts", "hm?", "--output", "there", "--json", folder="there")
    place = {"folder": "there", "page": str(Path("there") / "completions.html")}
    assert json.loads(capsys.readouterr().out) == {**again, **place}
    (one,) = again["drawn"]
    assert (one["prompt"], one["rewards"], one["seed"]) == ("hm?", {}, 1234)


def test_samples_of_a_run_are_those_of_its_weights_and_before_those_of_its_first(folder):
    run = run_of(folder / "run", LOOKS, 3, data={"heldout": "asked.jsonl"})
    saved(run, 8)
    for options, weights in (([], ["model"]), (["--before"], ["untrained", "model"])):
        listed = sampled("--run", run, *options, "--limit", 1, folder="run/drawn")
        assert listed["run"] == run and [row["weights"] for row in listed["drawn"]] == weights
    said = [read_lines(folder / "run" / "drawn" / f"{name}.jsonl")[0]["completion"] for name in ("before", "after")]
    assert said == ["3", "8"]
    assert [row["weights"] for row in sampled("--run", run, "--weights", "untrained", folder="run/drawn")["drawn"]] == [
        "untrained"
    ] * 4


def test_the_rewards_of_a_run_annotate_samples_that_they_do_not_score(folder):
    run = run_of(folder / "run", HEARS, 3, data={"heldout": "said.jsonl"}, rewards=["one_minus_wer", "gone:reward"])
    saved(run, 4)
    listed = sampled("--run", run, folder="run/drawn")
    assert [row["rewards"] for row in listed["drawn"]] == [{}, {}]
    rows = read_lines(folder / "run" / "drawn" / "after.jsonl")
    assert [row["aligned"] for row in rows] == [
        [["replace", "3", "4"]],
        [["equal", "4", "4"], ["delete", "cats", ""]],
    ]


def test_sixteen_prompts_are_sampled_unless_a_limit_says_otherwise(folder):
    write_rows(folder / "many.jsonl", [{"text": "?"} for _ in range(18)])
    model = ["--model.family", LOOKS, "--model.device", "cpu", "--model.path", 3, "--file", "many.jsonl"]
    for options, count in (([], 16), (["--limit", 0], 18), (["--limit", 17], 17)):
        assert len(sampled(*model, *options)["drawn"]) == count


# ---- weights


def test_of_a_run_the_model_a_checkpoint_or_the_first_weights_are_loaded(folder):
    """The average of a checkpoint applies where there is one, and of it the part that the run keeps."""
    run = run_of(folder / "run", LOOKS, 2, data={"heldout": "asked.jsonl"})
    checkpoints = folder / "run" / "checkpoints"
    for step, tensors in ((1, {"weights": 6.0}), (2, {"weights": 8.0, "ema": 10.0})):
        numbers = {name: {"number": torch.tensor(value)} for name, value in tensors.items()}
        save_checkpoint(checkpoints, step, numbers, {})
    saved(run, 9)

    def said(weights: str, *options: object) -> str:
        call("sample", "--run", run, "--weights", weights, "--limit", 1, *options)
        return read_lines(folder / "run" / "drawn" / "after.jsonl")[0]["completion"]

    assert [said(weights) for weights in ("model", "1", "2", "latest", "untrained")] == ["9", "6", "10", "10", "2"]
    config = yaml.safe_load((folder / "run" / "config.yaml").read_text())
    (folder / "run" / "config.yaml").write_text(yaml.safe_dump({**config, "optim": {"interpolation": 0.5}}))
    assert [said(weights) for weights in ("model", "1", "2")] == ["9", "4", "6"]  # half of the way from 2


def test_weights_that_are_not_there_or_not_as_they_were_saved_are_refused(folder):
    run = run_of(folder / "run", LOOKS, 2, data={"heldout": "asked.jsonl"})
    with pytest.raises(FileNotFoundError, match="incomplete.*--weights"):
        call("sample", "--run", run)
    with pytest.raises(FileNotFoundError, match="checkpoint.*--weights"):
        call("sample", "--run", run, "--weights", "latest")
    saved(run, 9)
    (folder / "run" / "model" / "number").write_text("8")
    with pytest.raises(ValueError, match="number"):
        call("sample", "--run", run)
    with pytest.raises(ValueError, match="--weights '7'.*--run"):
        call("sample", "--model.family", LOOKS, "--model.path", 3, "--prompts", "a", "--weights", 7)


# ---- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--file.*--prompts.*--run"),
        (["--file", "asked.jsonl", "--samples", 2], "--samples 2.*temperature 0.*2"),
        (["--file", "asked.jsonl", "--against", "untrained"], "--run"),
    ],
)
def test_what_evaluate_needs_is_said_before_anything_is_drawn(options, message, folder):
    with pytest.raises(ValueError, match=message):
        evaluated(LOOKS, "--model.path", 3, *options)


def test_a_run_is_not_taken_for_one_of_another_family(folder):
    run = run_of(folder / "run", LOOKS, 3)
    with pytest.raises(ValueError, match="--model.family.*:FEW.*:LOOKING"):
        read_source(Evaluate, ["--run", run, "--model.family", "tests.journeys.cli.test_own_family:FEW"], "")


@dataclass
class FewEval(VlmEval):
    """Evaluates on few prompts by default."""

    prompts: int = 5


FEW = counting(Sections(QwenVlOptions, VlmSampling, VlmData, FewEval, ("exact(tags=False)",)))


def test_the_settings_of_a_run_are_the_defaults_of_a_command(folder):
    evaluation = {"batch_size": 5, "samples": 2, "seed": 7}
    run = run_of(folder / "run", LOOKS, 2, data={"heldout": "asked.jsonl"}, eval=evaluation, threads=3)

    def settings(*options: str) -> list[Any]:
        args, *_ = read_source(Sample, options, "")
        return [getattr(args, name) for name in ("run", "file", "limit", "samples", "seed", "batch_size", "threads")]

    assert settings("--run", run) == [run, "asked.jsonl", 16, 2, 7, 5, 3]
    (folder / "run" / "config.yaml").unlink()
    (folder / "run").rmdir()
    run = run_of(folder / "run", LOOKS, 2, data={"heldout": "asked.jsonl"}, eval={**evaluation, "prompts": 3})
    assert settings("--run", run) == [run, "asked.jsonl", 3, 2, 7, 5, 0]
    assert settings("--run", run, "--limit", "1", "--seed", "2")[2:5] == [1, 2, 2]
    # without a run, those of the family and of the command
    assert settings("--model.family", HEARS) == ["", "", 16, 1, 1234, SpeechEval().batch_size, 0]
    assert settings("--model.family", "tests.journeys.cli.test_own_family:FEW")[2] == 16


@dataclass
class Warm(Source):
    """A command with an option of its own whose name another had once."""

    max_tokens: Annotated[int, COUNT] = 1
    """How much."""


def test_an_old_name_is_free_for_a_command_that_gives_it_a_meaning():
    args, *_ = read_source(Warm, ["--max-tokens", "2"], "")
    assert args.max_tokens == 2
    with pytest.raises(ValueError, match="'--steps'.*--sampling.evaluation-steps"):
        read_source(Warm, ["--steps", "2"], "")


def test_a_run_whose_model_is_no_section_was_trained_from_python(folder):
    (folder / "config.yaml").write_text("model: mine\n")
    with pytest.raises(ValueError, match="Python.*policy"):
        read_source(Evaluate, ["--run", "."], "")


def test_a_family_of_ones_own_is_that_of_its_runs(folder):
    run = run_of(folder / "run", LOOKS, 3, data={"heldout": "asked.jsonl"})
    with pytest.raises(ValueError, match=":LOOKING"):
        evaluated(HEARS, "--model.path", 3, "--file", "said.jsonl", "--against", run)
