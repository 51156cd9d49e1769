from __future__ import annotations

import json
import os

import pytest

from mmgrpo.data import files
from mmgrpo.data.files import data_files
from mmgrpo.data.prompts import load_prompts
from mmgrpo.prompts.drawing import PromptOrder
from mmgrpo.types import Prompt


def written(folder, *lines, name="prompts.jsonl"):
    path = folder / name
    path.write_text("\n".join(lines))
    return path


def test_every_field_of_an_object_finds_its_place_and_unknown_keys_go_to_meta(tmp_path):
    row = {"text": "a cat", "id": "cat", "answer": [1, 2], "task": "count", "source": "a.html", "meta": {"w": 3}}
    assert load_prompts(written(tmp_path, json.dumps(row))) == [
        Prompt("a cat", "cat", [1, 2], "count", {"source": "a.html", "w": 3})
    ]


def test_ids_default_to_file_and_line_counting_blank_lines(tmp_path):
    prompts = load_prompts(written(tmp_path, '{"prompt": "one"}', "", '{"text": "two"}', ""))
    assert [(p.text, p.id) for p in prompts] == [("one", "prompts.jsonl:1"), ("two", "prompts.jsonl:3")]


def test_a_number_is_a_good_id(tmp_path):
    assert load_prompts(written(tmp_path, '{"text": "one", "id": 7}'))[0].id == "7"


def test_a_text_file_holds_one_prompt_a_line(tmp_path):
    prompts = load_prompts(written(tmp_path, "a red cat ", "", "zwei Bären", name="p.txt"))
    assert [(p.text, p.id) for p in prompts] == [("a red cat", "p.txt:1"), ("zwei Bären", "p.txt:3")]


def test_a_line_separator_inside_a_json_string_does_not_end_the_line(tmp_path):
    assert load_prompts(written(tmp_path, '{"text": "a\u2028b"}'))[0].text == "a\u2028b"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"text": "b"', "JSON.*column 13"),
        ('["b"]', "JSON"),
        ('{"caption": "b"}', r"'text' \(keys"),
        ('{"text": "  "}', "'text'"),
        ('{"text": 3}', "'text'.*3"),
        ('{"text": "b", "prompt": "c"}', "'text'.*'prompt'"),
        ('{"text": "b", "meta": 3}', "'meta'.*3"),
        ('{"text": "b", "task": null}', "'task'.*null"),
        ('{"text": "b", "id": [1]}', "'id': got"),
        ('{"text": "b", "id": "first"}', "'first'.*prompts.jsonl:1"),
        ('{"text": "b", "w": 1, "meta": {"w": 2}}', r"\['w'\].*'meta'"),
    ],
)
def test_a_line_that_cannot_be_read_is_an_error_with_its_place(tmp_path, line, complaint):
    path = written(tmp_path, '{"text": "a", "id": "first"}', line)
    with pytest.raises(ValueError, match=rf"prompts\.jsonl:2.*{complaint}"):
        load_prompts(path)


def test_an_empty_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="has no prompts"):
        load_prompts(written(tmp_path, "", " "))


def test_a_file_that_is_not_there_or_not_of_a_known_kind_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such prompt file"):
        load_prompts(tmp_path / "none.jsonl")
    with pytest.raises(FileNotFoundError, match="none: no such prompt file"):
        load_prompts(tmp_path / "none")
    written(tmp_path, "a", name="train.jsonl")
    with pytest.raises(FileNotFoundError, match="trian.jsonl: .*'train.jsonl'"):
        load_prompts(tmp_path / "trian.jsonl")
    with pytest.raises(ValueError, match=r"'\.tsv'.*\.tar.*\.txt.*\.csv"):
        load_prompts(written(tmp_path, "a", name="a.tsv"))


def test_texts_beside_media_are_their_prompts_in_the_order_of_names(tmp_path):
    for name, text in {"b": "a fox", "a": "two \u00fc\n"}.items():
        (tmp_path / f"{name}.png").touch()
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    (tmp_path / "notes.md").touch()
    first, second = load_prompts(tmp_path)
    assert (first.text, first.id) == ("two ü", f"{tmp_path.name}:a.png")
    assert [one.source for one in second.media] == [str(tmp_path / "b.png")]


def test_media_without_texts_and_texts_without_media_are_errors(tmp_path):
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"metadata\.csv"):
        load_prompts(tmp_path)
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(ValueError, match=r"b\.wav.*'b\.txt'"):
        load_prompts(tmp_path)
    (tmp_path / "b.txt").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"b\.wav.*'b\.txt'.*UTF-8"):
        load_prompts(tmp_path)
    (tmp_path / "c.txt").write_text("three")
    with pytest.raises(ValueError, match=r"c\.txt"):
        load_prompts(tmp_path)


def test_a_file_in_another_encoding_is_an_error(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("Bären".encode("latin-1"))
    with pytest.raises(ValueError, match="not UTF-8"):
        load_prompts(path)


def test_each_epoch_holds_every_prompt_once_in_an_order_of_its_own():
    order = PromptOrder(20, seed=0)
    epochs = [order.take(20 * number, 20) for number in range(3)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != list(range(20))


def test_the_order_is_a_function_of_seed_and_place_only():
    whole = PromptOrder(7, seed=3).take(0, 60)
    assert all(PromptOrder(7, seed=3).take(start, 9) == whole[start : start + 9] for start in range(50))
    assert PromptOrder(7, seed=4).take(0, 60) != whole


def test_no_places_give_no_indices():
    assert PromptOrder(3, seed=0).take(4, 0) == []


def test_rounds_follow_each_other_in_the_order():
    order = PromptOrder(5, seed=1)
    assert [place for start in range(0, 12, 3) for place in order.take(start, 3)] == order.take(0, 12)


def test_an_order_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        PromptOrder(0, 0)
    for start, count in ((-1, 2), (2, -1)):
        with pytest.raises(ValueError, match="counted from zero"):
            PromptOrder(3, 0).take(start, count)
    assert PromptOrder(1, 0).take(0, 2) == [0, 0]


def test_files_of_numbers_are_ascending_and_of_a_bounded_count(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"\{0\.\.100000\}.*100,000 ascending"):
        data_files("a-{0..100000}.tar")
    monkeypatch.setattr(files, "MAX_SHARDS", 3)
    assert [str(one) for one in data_files("{08..10}-{1..1}.tar")] == ["08-1.tar", "09-1.tar", "10-1.tar"]
    with pytest.raises(ValueError, match="3 ascending"):
        data_files("{1..4}.tar")
    path = written(tmp_path, '{"text": "a"}', name="{1..2}.jsonl")
    assert data_files(path) == [path], "a file of this name is itself"


@pytest.mark.parametrize(
    ("inside", "hint"),
    [("state.json", "saved to disk.*hf:.*@train"), ("dataset_dict.json", "saved to disk"), ("a.png", "metadata.jsonl")],
)
def test_a_folder_stands_for_the_file_that_lists_it_or_is_an_error(tmp_path, inside, hint):
    (tmp_path / inside).touch()
    with pytest.raises(ValueError, match=hint):
        load_prompts(tmp_path)
    path = written(tmp_path, '{"text": "what", "file_name": "a.PNG"}', name="metadata.jsonl")
    [prompt] = load_prompts(tmp_path)
    assert data_files(tmp_path) == [path] and prompt.media[0].kind == "image"


def test_an_array_is_told_from_lines_by_its_bracket_and_has_a_bounded_size(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf\n [{"text": "a"}]')
    assert load_prompts(path)[0].text == "a"
    monkeypatch.setattr(files, "MAX_ARRAY", path.stat().st_size)
    assert load_prompts(path)[0].text == "a"
    monkeypatch.setattr(files, "MAX_ARRAY", path.stat().st_size - 1)
    with pytest.raises(ValueError, match="array.*20.*19.*JSON"):
        load_prompts(path)
    monkeypatch.undo()
    os.truncate(path, 2**31 + 1)
    with pytest.raises(ValueError, match="array.*2,147,483,649.*2,147,483,648"):
        load_prompts(path)


def test_an_array_begins_within_65536_bytes(tmp_path):
    path = tmp_path / "a.json"
    for spaces, kind in ((2**16 - 1, files.Array), (2**16, files.Lines)):
        path.write_text(" " * spaces + '[{"text": "a"}]')
        assert isinstance(files.lines_or_array(path), kind)


def test_a_mark_of_a_medium_in_a_line_of_text_is_text(tmp_path):
    (tmp_path / "a.txt").write_text("an <image> mark\n")
    assert load_prompts(tmp_path / "a.txt") == [Prompt("an <image> mark", "a.txt:1")]


def test_a_table_of_csv_is_read_by_its_header_with_empty_cells_absent(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('\ufefftext,answer,level\n"a, b",1,\n"c\nd",2,hard\n', encoding="utf-8")
    first, second = load_prompts(path)
    assert (first.text, first.answer, first.id, dict(first.meta)) == ("a, b", "1", "a.csv:2", {})
    assert (second.text, second.id, second.meta["level"]) == ("c\nd", "a.csv:4", "hard")
    for content, message in (("text\n", "no prompts"), ("text,a\nx\n", "line 2"), ("text\nx,y\n", "line 2")):
        path.write_text(content)
        with pytest.raises(ValueError, match=rf"a\.csv.*{message}"):
            load_prompts(path)
    path.write_bytes(b"text\n\xff\n")
    with pytest.raises(ValueError, match=r"a\.csv.*utf-8"):
        load_prompts(path)
