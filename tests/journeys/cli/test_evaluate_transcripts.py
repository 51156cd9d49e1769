"""Corpus scores of a model that hears, compared with another model's on the same clips."""

from __future__ import annotations

import json

import pytest

from tests.journeys.cli.running import call


@pytest.fixture(scope="module")
def result(whisper_folder, tmp_path_factory) -> dict:
    """Two embedded clips, heard by a tiny Whisper and again by itself."""
    output = tmp_path_factory.mktemp("evaluation") / "e.json"
    options = ["--model.family", "whisper", "--model.path", whisper_folder, "--sampling.max-tokens", 4]
    options += ["--file", "embedded:speech/natural.jsonl", "--limit", 2, "--against", whisper_folder]
    call("evaluate", *options, "--rewards", "neg_wer", "one_minus_wer", "--worst", 1, "--output", output)
    return json.loads(output.read_text())


def test_errors_are_counted_by_kind_and_compared_with_the_other_models(result, whisper_folder):
    corpus = result["corpus"]
    errors = corpus["substituted"] + corpus["deleted"] + corpus["inserted"]
    assert corpus["wer"]["mean"] == pytest.approx(errors / corpus["words"]) and corpus["words"] > 22
    # the same model hears the same
    for rate in ("wer", "cer"):
        assert corpus["difference"][rate]["difference"]["mean"] == 0
    assert result["against"]["name"] == whisper_folder and result["difference"]["neg_wer"]["mean"] == 0
    assert len(corpus["worst"]) == 1 and result["prompts"] == 2
    assert "blind" not in result  # there is nothing to see


def test_the_result_says_what_was_measured_and_how(result, whisper_folder):
    said = [result[key] for key in ("run", "weights", "model", "file", "samples", "seed", "max_tokens")]
    assert said == ["", "base", whisper_folder, "embedded:speech/natural.jsonl", 1, 1234, 4]
    assert result["evaluation_temperature"] == 0 and "majority_at" in result
    assert [row.keys() for row in result["values"]] == [{"id", "key", "neg_wer", "one_minus_wer"}] * 2
