"""What JSON allows and Python's parser does not check, and what no later step of a run can take."""

from __future__ import annotations

import json

import pytest

from mmgrpo.cli.errors import is_user_error
from mmgrpo.data.media import LONGEST, MAX_FRAME_FILES
from mmgrpo.data.messages import MAX_ID
from mmgrpo.data.prompts import load_prompts
from mmgrpo.data.rows import as_prompts
from mmgrpo.data.values import MAX_DEPTH, MAX_LINE, quote, reason_of, show_value, text_of
from mmgrpo.types import Prompt


def read(folder, line):
    path = folder / "rows.jsonl"
    path.write_bytes(line if isinstance(line, bytes) else line.encode())
    return load_prompts(path)


def nested(levels):
    """A row whose answer has so many lists in each other, below the level of the row's own keys."""
    return '{"text": "a", "answer": ' + "[" * levels + "]" * levels + "}"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (nested(100_000), "32 levels"),
        (nested(MAX_DEPTH + 1), r"'answer\[0\].*'.*32"),
        (r'{"text": "a\ud800b"}', r"'text'.*U\+D800.*character 1"),
        (r'{"text": "a", "meta": {"\udfff": 1}}', r"'meta, a key'.*U\+DFFF"),
        ('{"text": "a", "answer": %s}' % ("9" * 5_000), "digits"),
        ('{"text": "a", "answer": [%s]}' % (10**308 + 1), r"'answer\[0\]'.*308"),
        ('{"text": "a", "answer": NaN}', "NaN.*JSON"),
        ('{"text": "a", "answer": -Infinity}', "JSON"),
        ('{"text": "a", "answer": 1e999}', "'answer'.*inf"),
        ('{"text": "a", "text": "b"}', '"text".*twice'),
        ('{"id": "1", "text": "a", "text": "b"}', '"text".*twice'),
        ('{"text": "a", "meta": {"x": 1, "y": 2, "x": 3}}', 'has the key "x" twice'),
        (b'{"text": "B\xe4r"}', "UTF-8.*byte 12.*UTF-8"),
        ('{"text": "a", "id": ""}', "'id'.*1.*256.*without"),
        (json.dumps({"text": "a", "id": "x" * (MAX_ID + 1)}), "'id'.*1.*256"),
        ('{"text": "a", "id": true}', "'id'.*true"),
        ('{"text": "a", "id": "x\\ny"}', "'id'.*control"),
        ('{"text": "a", "image": "a\\u0000.png"}', r"'image'.*path.*a\\u0000.png"),
        ('{"text": "a", "image": "ftp://host/a.png"}', "'image'.*ftp://host/a.png"),
        ('{"text": "a", "image": "HTTP://host/a.png"}', "'image'.*HTTP://host/a.png"),
        (json.dumps({"text": "a", "video": ["f.png"] * (MAX_FRAME_FILES + 1)}), "20,001 frame.*20,000"),
        (json.dumps({"text": "a", "video": {"path": "a.mp4", "end": LONGEST + 1}}), "'end'.*1000001"),
        ('{"text": "a", "image": {"path": "a.png", "min_pixels": 100000000}}', "'min_pixels'.*1.*67,108,864"),
        (json.dumps({"x" * 300: 1}), rf"'text' \(keys.*{'x' * 200}"),
    ],
)
def test_a_row_that_fails_only_later_is_refused_with_its_line_and_key(tmp_path, line, complaint):
    with pytest.raises(ValueError, match=rf"rows\.jsonl:1.*{complaint}") as error:
        read(tmp_path, line)
    assert is_user_error(error.value) and "\n" not in str(error.value)


def test_the_limits_themselves_are_within(tmp_path):
    row = {"text": "a", "answer": 10**308, "id": "x" * MAX_ID, "video": ["f.png"] * MAX_FRAME_FILES}
    assert read(tmp_path, json.dumps(row))[0].id == "x" * MAX_ID
    assert read(tmp_path, nested(MAX_DEPTH))[0].answer != []
    assert text_of(b"a" * MAX_LINE) == "a" * MAX_LINE
    with pytest.raises(ValueError, match="line.*16,777,217.*16,777,216"):
        text_of(b"a" * (MAX_LINE + 1))


def test_marks_and_ends_of_lines_of_other_systems_are_no_part_of_a_row(tmp_path):
    lines = b'\xef\xbb\xbf{"text": "one"}\r\n \t \r\n{"text": "two"}\r\n'
    assert [(p.text, p.id) for p in read(tmp_path, lines)] == [("one", "rows.jsonl:1"), ("two", "rows.jsonl:3")]


def test_a_line_of_other_white_space_is_no_prompt(tmp_path):
    (tmp_path / "a.txt").write_text("a cat\n\u3000\n")
    with pytest.raises(ValueError, match=r"a\.txt:2"):
        load_prompts(tmp_path / "a.txt")


def test_a_folder_is_no_file_of_prompts(tmp_path):
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(ValueError, match=r"a\.jsonl"):
        load_prompts(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("a red fox", "prompts.*around"),
        ({"text": "a red fox"}, "prompts.*dict"),
        (Prompt("a red fox"), "prompts"),
        (3, "prompts"),
        ([{"text": "a"}, 3], r"prompts\[1\]"),
        ([{"text": "a", "id": "x"}, Prompt("b", "x")], r"prompts\[1\].*'x'.*prompts\[0\]"),
        ([{"text": "a", 1: 2}], r"prompts\[0\].*key 1"),
        ([{"text": "a", "answer": float("nan")}], r"prompts\[0\].*'answer'.*nan"),
        (["a\ud800"], r"prompts\[0\].*'text'"),
        ([{"text": "a", "\ud800": 1}], r"prompts\[0\].*'a key'"),
        ([{"text": "a", "meta": {"\ud800": 1}}], r"prompts\[0\].*'meta, a key'"),
        ([Prompt("a", meta={"x": [float("inf")]})], r"prompts\[0\].*'meta\.x\[0\]'.*inf"),
        ([Prompt("a", id="x" * 300)], r"prompts\[0\].*'id'.*1.*256"),
    ],
)
def test_rows_in_memory_are_checked_like_those_of_files(rows, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        as_prompts(rows)
    assert is_user_error(error.value)


def test_a_prompt_of_wrong_types_is_named():
    prompt = Prompt("a")
    object.__setattr__(prompt, "id", 3)  # what nobody checks outside of tests
    with pytest.raises(ValueError, match=r"prompts\[0\].*'id'.*3"):
        as_prompts([prompt])


def test_prompts_without_an_id_are_numbered():
    prompts = as_prompts(["a", Prompt("b"), Prompt("c", "own"), {"text": "d"}])
    assert [prompt.id for prompt in prompts] == ["prompt-0", "prompt-1", "own", "prompt-3"]


def test_values_in_errors_are_short_and_whole_characters():
    assert show_value("x" * 200) == '"' + "x" * 118 + "…" and show_value("\ud800") == '"\\ud800"'
    circle = []
    circle.append(circle)
    assert show_value(circle) == "<list>" and show_value({"a": object()}) == '{"a": "<object>"}'
    assert show_value("ä" * 118) == f'"{"ä" * 118}"' and show_value({("a",): 1, "b": 2}) == '{"b": 2}'
    assert quote("x" * 60) == f"'{'x' * 60}'" and quote("x" * 61) == f"'{'x' * 59}…'"


def test_the_reason_of_a_library_is_one_line_of_300_characters():
    assert reason_of(OSError("no\n\n  such  file")) == "OSError: no such file"
    assert reason_of(KeyError("x" * 500)) == "KeyError: '" + "x" * 289


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 100_000])
def test_rows_of_python_that_are_nested_too_deeply_are_refused_by_their_place(levels):
    with pytest.raises(ValueError, match=r"^prompts\[1\].*32"):
        as_prompts([{"text": "a"}, {"text": "a", "answer": inside(levels)}])


def inside(levels: int) -> list:
    value: list = []
    for _ in range(levels - 1):
        value = [value]
    return value
