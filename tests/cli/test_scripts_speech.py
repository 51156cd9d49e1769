"""The script of models that hear and write, on the embedded clips and a tiny Whisper of the real architecture."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import soundfile
from corpus import error_rates
from run import also_files, read_prompts
from speech import Data, SpeechConfig

from mmgrpo.runtime.config import Eval
from mmgrpo.types import Prompt, Text
from pipelines.speech import qwen_audio, whisper
from tests import ROOT
from tests.cli.test_scripts import refused, run, summary

RECIPE = ROOT / "scripts" / "recipes" / "speech" / "whisper_adapt.yaml"
SMALL = ["--steps", "2", "--data.prompts_per_step", "2", "--data.group-size", "2", "--sampling.max-tokens", "6"]
SMALL += ["--eval.prompts", "4", "--threads", "1", "--trackers"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return whisper.tiny(tmp_path_factory.mktemp("whisper"))


@pytest.mark.slow
def test_the_recipe_trains_on_the_embedded_clips_and_leaves_a_whole_run_folder(model, tmp_path):
    made = run("train_speech.py", "--config", str(RECIPE), "--model.path", model, "--output-dir", str(tmp_path), *SMALL)
    assert made.returncode == 0, made.stderr[-2000:]
    folder = tmp_path / "whisper_adapt"
    found = summary(folder)
    assert (found["modality"], found["family"], found["steps"]) == ("speech", "whisper", 2)
    assert found["eval"]["after"]["one_minus_wer"]["n"] == 4
    assert found["extra"]["natural"]["after"]["one_minus_wer"]["n"] == 4
    assert found["rates"] == ["wer", "cer"] and found["wer"].keys() == found["cer"].keys() == {
        "heldout",
        "natural",
        "telephone",
    }
    kept = json.loads((folder / "evaluations" / "after-natural.json").read_text())
    words = kept["counts"]["wer"]["units"]
    # The first natural clip: "and mister john dashwood had then leisure to consider how much there might be prudently
    # in his power to do for them", 22 words.
    assert words[0] == 22 and found["wer"]["natural"]["units"] == sum(words)
    assert found["wer"]["natural"]["after"]["mean"] == pytest.approx(sum(kept["counts"]["wer"]["errors"]) / sum(words))
    assert "wer of natural" in made.stdout and "reward on natural" in made.stdout
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(line["ratio/first_minus_one"] < 1e-4 for line in lines)
    measured = run("evaluate.py", "--run", str(folder), "--against", "untrained", "--output", str(tmp_path / "e.json"))
    assert measured.returncode == 0, measured.stderr[-2000:]
    corpus = json.loads((tmp_path / "e.json").read_text())["corpus"]
    for rate in ("wer", "cer"):
        assert corpus[rate] == found[rate]["heldout"]["after"]
        assert corpus["difference"][rate]["difference"] == found[rate]["heldout"]["difference"]
    kinds = corpus["substituted"] + corpus["deleted"] + corpus["inserted"]
    assert kinds == found["wer"]["heldout"]["errors"]["after"] and corpus["words"] == found["wer"]["heldout"]["units"]
    assert "all together" in measured.stdout and "worst clips" in measured.stdout
    assert (folder / "report.html").is_file() and (folder / "model" / "adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_sound_files_are_transcribed_and_played_on_a_page(model, tmp_path):
    files = sorted((ROOT / "assets" / "speech" / "clips").glob("heldout-00*.opus"))[:2]
    given = ["--model.family", "whisper", "--model.path", model, "--max-tokens", "4", "--output", str(tmp_path)]
    made = run("sample.py", *given, "--prompts", *map(str, files))
    assert made.returncode == 0, made.stderr[-2000:]
    html = (tmp_path / "completions.html").read_text()
    assert html.count('src="data:audio/ogg;base64,') == 2 and "heldout-000.opus" in html and "errors in" not in html
    again = run("sample.py", *given, "--file", "assets/speech/natural.jsonl", "--limit", "1", "--rewards", "neg_wer")
    assert again.returncode == 0, again.stderr[-2000:]
    assert " in 22 words" in (tmp_path / "completions.html").read_text()
    told = refused("sample.py", *given, "--prompts", str(tmp_path / "none.wav"))
    assert "1 of 1 clips cannot be heard" in told and "there is no such file" in told


@pytest.mark.slow
def test_an_audio_language_model_is_measured_and_sampled(tmp_path):
    path = qwen_audio.tiny(tmp_path / "tiny")
    clip = ROOT / "assets" / "speech" / "clips" / "heldout-000.opus"
    rows = [
        {"audio": str(clip), "text": "Translate.", "answer": a, "id": str(i)} for i, a in enumerate(("un", ["a", "b"]))
    ]
    (tmp_path / "clips.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = ["--model.family", "qwen_audio", "--model.path", path, "--max-tokens", "4", "--samples", "2"]
    given += ["--temperature", "1", "--file", str(tmp_path / "clips.jsonl")]
    made = run("evaluate.py", *given, "--output", str(tmp_path / "e.json"))
    assert made.returncode == 0, made.stderr[-2000:]
    found = json.loads((tmp_path / "e.json").read_text())
    assert (
        found["corpus"].keys() == {"clips", "bleu", "chrf", "groups", "worst"}
        and found["rewards"]["sentence_bleu"]["n"] == 2
    )
    made = run("sample.py", *given, "--output", str(tmp_path / "said"))
    assert made.returncode == 0, made.stderr[-2000:]
    html = (tmp_path / "said" / "completions.html").read_text()
    assert html.count("<audio") == 4 and "Translate." in html


@pytest.mark.slow
def test_clips_that_cannot_be_heard_are_listed_and_too_many_stop_the_run(model, tmp_path):
    hum = np.sin(np.arange(16_000) * 0.05) / 2
    rows = []
    for number in range(4):
        soundfile.write(tmp_path / f"{number}.wav", hum * (number < 3), 16_000)  # the last one is silent
        rows.append(json.dumps({"audio": f"{number}.wav", "text": "", "answer": "hum", "id": str(number)}))
    (tmp_path / "clips.jsonl").write_text("\n".join(rows))
    given = ["--config", str(RECIPE), "--model.path", model, "--output-dir", str(tmp_path), *SMALL]
    given += ["--data.train", str(tmp_path / "clips.jsonl"), "--data.heldout=", "--eval.extra"]
    told = refused("train_speech.py", *given)
    assert "1 of 4 clips cannot be heard, more than data.skip_limit=0.05" in told and "silent" in told
    made = run("train_speech.py", *given, "--data.skip-limit", "0.5")
    assert made.returncode == 0, made.stderr[-2000:]
    (skipped,) = (tmp_path / "whisper_adapt" / "skipped.jsonl").read_text().splitlines()
    assert json.loads(skipped)["id"] == "3"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["a/natural.jsonl", "b/natural.txt"], "'a/natural.jsonl' and 'b/natural.txt' would both be told as 'natural'"),
        (["x/heldout.jsonl"], "'x/heldout.jsonl' would be told as 'heldout', as data.heldout is; rename the file"),
        ([""], "'' names no file"),
    ],
)
def test_further_files_need_names_of_their_own(extra, message):
    with pytest.raises(ValueError, match=f"^eval.extra: {message}"):
        also_files(extra)


def test_further_files_are_named_by_their_stems():
    assert also_files(["a/one.two.jsonl", "hf:me/data@test"]) == {
        "one.two": "a/one.two.jsonl",
        "data-test": "hf:me/data@test",
    }


def test_a_clip_of_a_further_file_that_is_trained_on_is_an_error():
    files = {
        "train": [Prompt("a", "1"), Prompt("b", "2")],
        "heldout": [Prompt("c", "3")],
        "x.jsonl": [Prompt("b", "4")],
    }
    config = SpeechConfig(data=Data(train="train", heldout="heldout"), eval=Eval(extra=["x.jsonl"]))
    with pytest.raises(ValueError, match=r"^x.jsonl: prompt '4' \('b'\) is also in train"):
        read_prompts(config, files.__getitem__)
    config.data.extra_train = ["x.jsonl", "y.jsonl"]
    with pytest.raises(ValueError, match=r"^x.jsonl: prompt '4' \('b'\) is also in train"):
        read_prompts(config, files.__getitem__)
    files |= {"x.jsonl": [Prompt("d", "4")], "y.jsonl": [Prompt("e", "5")]}
    with pytest.raises(ValueError, match=r"^x.jsonl: prompt '4' \('d'\) is also in x.jsonl"):
        read_prompts(config, files.__getitem__)
    config.eval.skip = True
    assert read_prompts(config, files.__getitem__) == ([*files["train"], *files["x.jsonl"], *files["y.jsonl"]], [], {})
    config.data.extra_train = []
    assert read_prompts(config, files.__getitem__) == (files["train"], [], {})
    files["x.jsonl"] = [Prompt("d", "4"), Prompt("e", "5")]
    config.eval = Eval(extra=["x.jsonl"], prompts=1)
    assert read_prompts(config, files.__getitem__) == (files["train"], files["heldout"], {"x": files["x.jsonl"][:1]})


def test_error_rates_are_counted_as_the_reward_normalizes():
    prompts = [Prompt("", answer="It's a colour, Tom."), Prompt("", answer="old words")]
    outputs = [Text("it is a color"), Text("")]
    wer, cer = error_rates(["sentence_chrf", "one_minus_wer", "neg_wer(normal='raw')"])
    # it is a color tom: one deletion of 5 words; "tom" and its space of 17 characters; two of two, nine of nine.
    assert (wer.name, wer.errors(prompts, outputs), wer.units(prompts, outputs)) == ("wer", [1, 2], [5, 2])
    assert (cer.name, cer.errors(prompts, outputs), cer.units(prompts, outputs)) == ("cer", [4, 9], [17, 9])
    raw, _ = error_rates(["neg_wer(normal='raw')"])
    # It's -> it, a -> is, colour, -> a, Tom. -> color
    assert (raw.errors(prompts[:1], outputs[:1]), raw.units(prompts[:1], outputs[:1])) == ([4], [4])
    assert error_rates(["sentence_bleu", "my.module:reward"]) == []


def test_the_arithmetic_is_told(monkeypatch, capsys):
    import train_speech

    monkeypatch.setattr(sys, "argv", ["train_speech.py", "--config", str(RECIPE), "--dry-run"])
    train_speech.main()
    assert "6 clips x 8 transcripts = 48 of at most 32 tokens" in capsys.readouterr().out
