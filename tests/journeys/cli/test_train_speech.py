"""Commands of models that hear and write, on the embedded clips and a tiny Whisper of the real architecture."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import soundfile

from mmgrpo.config.plugins import locate
from tests.journeys.cli import quick
from tests.journeys.cli.running import call, read_lines, summary, write_rows
from tests.tiny import maker

CLIPS = Path(locate("embedded:speech/clips"))


@pytest.fixture(scope="module")
def adapted(whisper_folder, tmp_path_factory) -> Path:
    """Two steps of the recipe on the embedded clips; the run folder, next to it what was printed."""
    output = tmp_path_factory.mktemp("speech")
    options = ["--recipe", "whisper_adapt", "--model.path", whisper_folder, "--output-dir", output]
    # No word of a random model is ever right, but some letters are.
    rewards = ["--rewards", "one_minus_wer", "sentence_chrf", "exact_transcript(weight=0)"]
    with redirect_stdout(StringIO()) as printed:
        call("train", *options, *quick.SPEECH, *rewards)
    (output / "printed.txt").write_text(printed.getvalue())
    return output / "whisper_adapt"


@pytest.mark.slow
def test_the_recipe_trains_on_the_embedded_clips_and_leaves_a_whole_run_folder(adapted):
    result = summary(adapted)
    assert (result["modality"], result["family"], result["steps"]) == ("speech", "whisper", 2)
    assert result["eval"]["after"]["one_minus_wer"]["n"] == 4
    assert result["extra"]["natural"]["after"]["one_minus_wer"]["n"] == 4
    assert result["rates"] == ["wer", "cer", "collisions"]
    assert result["rules"] == dict.fromkeys(("wer", "cer", "collisions"), "whisper 1 by language")
    assert result["wer"].keys() == result["cer"].keys() == {"heldout", "natural", "telephone", "actors", "sky"}
    written = json.loads((adapted / "evaluations" / "after-natural.json").read_text())
    assert written["rules"] == result["rules"]
    words = written["counts"]["wer"]["units"]
    # The first natural clip: "and mister john dashwood had then leisure to consider how much there might be prudently
    # in his power to do for them", 22 words.
    assert words[0] == 22 and result["wer"]["natural"]["units"] == sum(words)
    rate = sum(written["counts"]["wer"]["errors"]) / sum(words)
    assert result["wer"]["natural"]["after"]["mean"] == pytest.approx(rate)
    lines = read_lines(adapted / "metrics.jsonl")
    assert len(lines) == 2 and all(line["decisions"] > 0 for line in lines)
    assert all(line["ratio/first_minus_one"] < 1e-4 for line in lines)
    assert (adapted / "report.html").is_file() and (adapted / "model" / "adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_evaluation_of_a_run_has_the_error_rates_of_its_summary(adapted, tmp_path, capsys):
    call("evaluate", "--run", adapted, "--against", "untrained", "--output", tmp_path / "e.json")
    corpus, result = json.loads((tmp_path / "e.json").read_text())["corpus"], summary(adapted)
    for rate in ("wer", "cer"):
        assert corpus[rate] == result[rate]["heldout"]["after"]
        assert corpus["difference"][rate]["difference"] == result[rate]["heldout"]["difference"]
    kinds = corpus["substituted"] + corpus["deleted"] + corpus["inserted"]
    assert kinds == result["wer"]["heldout"]["errors"]["after"] and corpus["words"] == result["wer"]["heldout"]["units"]
    printed = capsys.readouterr().out
    assert "all together" in printed and "worst clips" in printed


@pytest.mark.slow
def test_a_run_ends_with_tables_of_every_file_and_rate(adapted):
    printed = (adapted.parent / "printed.txt").read_text()
    assert "reward on natural" in printed and "wer of natural" in printed and "cer of telephone" in printed
    assert f"report: {adapted / 'report.html'}" in printed
    assert f"demo:   mmgrpo demo {adapted}" in printed


@pytest.mark.slow
def test_sound_files_are_transcribed_and_played_on_a_page(whisper_folder, tmp_path):
    files = sorted(CLIPS.glob("heldout-00*.opus"))[:2]
    options = ["--model.family", "whisper", "--model.path", whisper_folder, "--sampling.max-tokens", 4]
    options += ["--output", tmp_path]
    call("sample", *options, "--prompts", *files)
    html = (tmp_path / "completions.html").read_text()
    assert html.count('src="data:audio/ogg;base64,') == 2 and "heldout-000.opus" in html and "errors in" not in html
    call("sample", *options, "--file", "embedded:speech/natural.jsonl", "--limit", 1, "--rewards", "neg_wer")
    assert " in 22 words" in (tmp_path / "completions.html").read_text()


@pytest.mark.slow
def test_an_audio_language_model_is_measured_and_sampled(tmp_path):
    path = maker("qwen_audio")(tmp_path / "tiny")
    clip = str(CLIPS / "heldout-000.opus")
    rows = [{"audio": clip, "text": "Translate.", "answer": a, "id": str(i)} for i, a in enumerate(("un", ["a", "b"]))]
    options = ["--model.family", "qwen_audio", "--model.path", path, "--sampling.max-tokens", 4, "--samples", 2]
    options += ["--sampling.evaluation-temperature", 1, "--file", write_rows(tmp_path / "clips.jsonl", rows)]
    call("evaluate", *options, "--output", tmp_path / "e.json")
    result = json.loads((tmp_path / "e.json").read_text())
    assert result["corpus"].keys() == {"clips", "bleu", "chrf", "groups", "worst"}
    assert result["rewards"]["sentence_bleu"]["n"] == 2
    call("sample", *options, "--output", tmp_path / "drawn")
    html = (tmp_path / "drawn" / "completions.html").read_text()
    assert html.count("<audio") == 4 and "Translate." in html


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rank"),
    [
        ("voxtral", 0),
        ("granite_speech", 2),
        ("qwen2_5_omni", 0),
        ("audioflamingo3", 0),
        ("glmasr", 2),
        ("qwen3_asr", 0),
    ],
)
def test_any_language_model_that_hears_trains_on_a_manifest_of_nemo(kind, rank, tmp_path):
    path = maker("audio_text")(tmp_path / "tiny", kind)
    hum = np.sin(np.arange(16_000) * 0.05) / 2
    for name, numbers in {"train": range(4), "heldout": (4, 5)}.items():
        for number in numbers:
            soundfile.write(tmp_path / f"{number}.wav", hum[: 4_000 + 2_000 * number], 16_000)
        rows = [{"audio_filepath": f"{n}.wav", "duration": 0.25 + n / 8, "text": f"hum {n}"} for n in numbers]
        write_rows(tmp_path / f"{name}.jsonl", rows)
    files = [option for name in ("train", "heldout") for option in (f"--data.{name}", tmp_path / f"{name}.jsonl")]
    options = ["--model.lora-rank", rank, "--rewards", "neg_wer", "repetition", "--sampling.max-tokens", 6]
    options += ["--data.prompts-per-step", 2, "--data.group-size", 2, "--steps", 2, "--trackers", "--threads", 1]
    options += ["--output-dir", tmp_path, "--name", "run"]
    call("train", "--model.family", "audio_text", "--model.path", path, *files, *options)
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["ratio/first_minus_one"] < 1e-5 for line in lines)
    saved = "adapter_model.safetensors" if rank else "model.safetensors"
    assert [file.name for file in sorted((tmp_path / "run" / "model").glob("*.safetensors"))] == [saved]
    assert "hum 4" in (tmp_path / "run" / "report.html").read_text()
    call("sample", "--run", tmp_path / "run", "--prompts", tmp_path / "0.wav", "--output", tmp_path / "drawn")
    assert (tmp_path / "drawn" / "completions.html").is_file()


@pytest.mark.slow
def test_clips_that_cannot_be_heard_are_listed_and_too_many_stop_the_run(whisper_folder, tmp_path):
    hum = np.sin(np.arange(16_000) * 0.05) / 2
    rows = []
    for number in range(4):
        soundfile.write(tmp_path / f"{number}.wav", hum * (number < 3), 16_000)  # the last one is silent
        rows.append({"audio": f"{number}.wav", "text": "", "answer": "hum", "id": str(number)})
    options = ["--recipe", "whisper_adapt", "--model.path", whisper_folder, "--output-dir", tmp_path, *quick.SPEECH]
    options += ["--data.train", write_rows(tmp_path / "clips.jsonl", rows), "--data.heldout=", "--eval.extra"]
    with pytest.raises(ValueError, match="1.*4.*data.skip_limit=0.05.*silent"):
        call("train", *options)
    call("train", *options, "--data.skip-limit", 0.5)
    (skipped,) = read_lines(tmp_path / "whisper_adapt" / "skipped.jsonl")
    assert skipped["id"] == "3"
