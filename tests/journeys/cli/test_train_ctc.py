"""Commands of a CTC recognizer on a manifest of NeMo."""

from __future__ import annotations

import json

import numpy as np
import pytest
import soundfile

from tests.journeys.cli.running import call, read_lines, summary, write_rows
from tests.tiny import maker


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [("wav2vec2", ["--algorithm.preset", "mwer_n_best", "--sampling.search", "beam"]), ("parakeet_ctc", [])],
)
def test_a_recognizer_trains_on_a_manifest_of_nemo_and_transcribes(kind, options, tmp_path):
    model, rows = maker("ctc")(tmp_path / "model", kind), []
    for number in range(6):
        hum = np.sin(np.arange(8_000 + 1_000 * number) * 0.05 * 1.2**number) / 2
        soundfile.write(tmp_path / f"{number}.wav", hum, 16_000)
        rows.append({"audio_filepath": f"{number}.wav", "duration": len(hum) / 16_000, "text": "hum hum"})
    train, heldout = write_rows(tmp_path / "train.jsonl", rows[:4]), write_rows(tmp_path / "heldout.jsonl", rows[4:])
    call(
        *("train", "--model.family", "ctc", "--model.path", model, "--data.train", train, "--data.heldout", heldout),
        *("--data.prompts-per-step", 2, "--data.group-size", 4, "--steps", 2, "--trackers", "--threads", 1),
        *("--rewards", "neg_wer", "--output-dir", tmp_path, "--name", "run", *options),
    )
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["ratio/first_minus_one"] < 1e-4 for line in lines)
    result = summary(tmp_path / "run")
    assert result["family"] == "ctc" and result["wer"]["heldout"]["units"] == 4
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    call("evaluate", "--run", tmp_path / "run", "--output", tmp_path / "e.json")
    assert json.loads((tmp_path / "e.json").read_text())["corpus"]["words"] == 4
    call("sample", "--run", tmp_path / "run", "--prompts", tmp_path / "5.wav", "--output", tmp_path / "drawn")
    assert "5.wav" in (tmp_path / "drawn" / "completions.html").read_text()
