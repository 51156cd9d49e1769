"""``data.columns``: columns of a file under our names, and what is said of those that are not there."""

from __future__ import annotations

import json
import re

import pytest
import torch

from mmgrpo.cli.evaluate import Evaluate
from mmgrpo.cli.source import config_of, prompts_of, read_source
from mmgrpo.cli.train import read as read_train
from mmgrpo.data.columns import (
    columns_for,
    columns_of,
    is_recording,
    with_columns,
    with_our_keys,
)
from mmgrpo.data.media import Inside
from mmgrpo.data.prompts import attempts
from mmgrpo.data.rows import as_prompts
from mmgrpo.family import family
from mmgrpo.types import Audio


def test_a_mapping_is_written_theirs_equals_ours():
    assert columns_of("question=problem, a.b = answer,") == {"problem": "question", "answer": "a.b"}
    assert columns_of("") == {}
    assert columns_for("embedded:speech/train.jsonl", "a=text") == {} and columns_for("x.jsonl", "a=text")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("question", "'question'.*theirs=ours.*question=problem"),
        ("=answer", "'=answer'.*theirs=ours"),
        ("a=anwser", "'a=anwser'.*'anwser'.*'answer'"),
        ("a=text,b=problem", "'a'.*'b'.*'problem'"),
        ("a=meta.", "'meta.'"),
    ],
)
def test_a_mapping_that_is_none_is_an_error(text, complaint):
    with pytest.raises(ValueError, match=f"^data.columns.*{complaint}"):
        columns_of(text)


def test_named_columns_replace_others_of_their_role_which_stay_in_meta():
    row = {
        "q": "Why?",
        "text": "a page",
        "sol": {"final": 4, "steps": []},
        "answer": "long",
        "box": [1],
        "meta": {"w": 1},
    }
    columns = columns_of("q=problem,sol.final=answer,box=meta.size")
    assert with_columns(row, columns) == {
        "problem": "Why?",
        "sol": {"final": 4, "steps": []},
        "answer": 4,
        "meta": {"w": 1, "text": "a page", "answer": "long", "size": [1]},
    }
    assert with_columns({"a.b": 1}, {"answer": "a.b"}) == {"answer": 1}
    both = with_columns({"w": 2, "q": "Why?"}, columns_of("w=meta.weight,q=problem"))
    assert both == {"problem": "Why?", "meta": {"weight": 2}}


def test_a_column_that_is_not_there_is_an_error_of_its_row_that_names_those_that_are(tmp_path):
    rows = [{"question": "Why?", "label": "b"}, {"question": "How?", "lable": "c"}, {"question": "Who?", "label": None}]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (_, good), *bad = attempts(tmp_path / "d.jsonl", columns=columns_of("label=answer"))
    assert (good.text, good.answer) == ("Why?", "b")
    assert [place.rpartition("/")[2] for place, _ in bad] == ["d.jsonl:2", "d.jsonl:3"]
    misspelt, null = (str(error) for _, error in bad)
    assert re.search(r"d\.jsonl:2: .*'label'.*'lable'\?.*lable, question", misspelt)
    assert re.search(r"d\.jsonl:3: .*'label'.* question", null) and "Did you mean" not in null
    with pytest.raises(ValueError, match=r"^rows\[1\].*data.columns.*'label'"):
        as_prompts(rows, "rows", columns_of("label=answer"))


def test_a_run_records_its_columns_and_every_command_reads_with_them(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"caption": "a red cat", "label": "cat", "text": "unused"}')
    options = ["--model.family", "causal_lm", "--model.path", "x", "--data.columns", "caption=text,label=answer"]
    config = read_train([*options, "--data.train", str(tmp_path / "d.jsonl")], "", "causal_lm")
    assert config.data.columns == "caption=text,label=answer"
    (prompt,) = family("causal_lm").read(config, config.data.train)[0]
    assert (prompt.text, prompt.answer, prompt.meta) == ("a red cat", "cat", {"text": "unused"})
    args, config, model_family = read_source(Evaluate, [*options, "--file", str(tmp_path / "d.jsonl")], "")
    assert prompts_of(args, config_of(args, config), model_family) == [prompt]


@pytest.mark.parametrize("name", ["sd3", "duration", "causal_lm"])
def test_families_of_every_modality_take_columns(tmp_path, name):
    (tmp_path / "d.jsonl").write_text('{"caption": "a red cat"}')
    config = read_train(["--model.family", name, "--data.columns", "caption=text"], "", name)
    ((prompt,), _) = family(name).read(config, str(tmp_path / "d.jsonl"))
    assert prompt.text == "a red cat"


def test_an_unknown_form_is_refused_before_anything_is_read(tmp_path):
    config = read_train(["--model.family", "causal_lm", "--data.columns", "caption"], "", "causal_lm")
    with pytest.raises(ValueError, match="^data.columns.*'caption'"):
        family("causal_lm").read(config, str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"reward_model": {"ground_truth": "a"}, "audio": "x.wav", "sentence": "b"}, "a"),
        ({"reward_model": {"ground_truth": "a"}, "solution": "b"}, None),
        ({"reward_model": {"style": "model"}}, None),
        ({"audio": {"bytes": b"", "path": None}, "text": "b"}, "b"),
        ({"audio": "x.wav", "text": "Who speaks?"}, None),
        ({"audio": {"bytes": b"", "path": None}, "text": "Who speaks?", "answer": "c"}, "c"),
        ({"audio": "x.wav", "answer": None, "sentence": "b"}, "b"),
        ({"text": "Who speaks?", "sentence": "b"}, None),
        ({"audio": {"bytes": b"", "path": None}, "text": ["b"]}, None),
        ({"audio_filepath": "y.wav", "audio": "x.wav", "text": "Who speaks?"}, None),
    ],
)
def test_the_answer_of_other_projects_is_taken_only_where_the_row_has_none(row, answer):
    assert with_our_keys(row).get("answer") == answer


@pytest.mark.parametrize(
    ("row", "ours"),
    [
        ({"audio_filepath": "a.wav", "text": "a word"}, {"audio": "a.wav", "answer": "a word"}),
        ({"audio": "a.wav", "transcript": "b", "x": 1}, {"audio": "a.wav", "answer": "b", "x": 1}),
        ({"reward_model": {"ground_truth": 4}, "text": "2 + 2"}, {"answer": 4, "text": "2 + 2"}),
        ({"audio": "a.wav", "sentence": None, "text": "b"}, {"audio": "a.wav", "sentence": None, "text": "b"}),
        ({"question": "Why?"}, {"problem": "Why?"}),
        ({"question": "Why?", "prompt": "How?"}, {"question": "Why?", "prompt": "How?"}),
        ({"audio": None, "sentence": "b"}, {"audio": None, "sentence": "b"}),
        ({"audio": "a.wav", "solution": "c", "sentence": "b"}, {"audio": "a.wav", "solution": "c", "sentence": "b"}),
    ],
)
def test_names_of_other_projects_become_ours_and_the_rest_stays(row, ours):
    left = {"reward_model": row["reward_model"]} if "reward_model" in row else {}
    assert with_our_keys(row) == {**ours, **left}


def test_two_transcripts_are_one_too_many():
    with pytest.raises(ValueError, match="'sentence'.*'transcript'"):
        with_our_keys({"audio": "a.wav", "sentence": "a", "transcript": "a"})


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (Inside("data.tar::a.wav"), True),
        (Audio(torch.zeros(1, 1), 8000), True),
        ({"bytes": None}, True),
        ({"path": "a.wav"}, False),
        ("bytes", False),
        (["bytes"], False),
    ],
)
def test_a_recording_has_its_sound_inside(value, wanted):
    assert is_recording(value) is wanted


def test_embedded_files_keep_their_own_columns_in_every_command():
    options = ["--model.family", "whisper", "--file", "embedded:speech/natural.jsonl", "--limit", "1"]
    args, config, model_family = read_source(Evaluate, [*options, "--data.columns", "caption=text"], "")
    (prompt,) = prompts_of(args, config_of(args, config), model_family)
    assert prompt.media and prompt.answer
