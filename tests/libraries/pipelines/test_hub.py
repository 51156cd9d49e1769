"""Media inside data sets are content of strangers: what their rows may name, and where they are written."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pipelines import hub
from pipelines.hub import _as_files, load_prompts
from tests.faults import bad_media

PNG = bad_media.picture("png")


@pytest.mark.parametrize(
    ("path", "suffix"),
    [
        ("a.png", ".png"),
        ("folder/a.JPEG", ".JPEG"),
        ("../../a.png/../b", ""),
        ("a." + "x" * 5_000, ""),
        ("a.p\0ng", ""),
        ("a./../../x", ""),
        (None, ""),
    ],
)
def test_a_picture_is_written_into_the_folder_whatever_its_path(tmp_path, path, suffix):
    store = tmp_path / "media"
    file = _as_files({"bytes": PNG, "path": path}, "image", store)
    (written,) = tmp_path.rglob("*.*") if suffix else store.iterdir()
    assert (
        str(written) == file["path"] and file["bytes"] is None and written.parent == store and written.suffix == suffix
    )
    assert written.read_bytes() == PNG


@pytest.mark.parametrize("value", [{"bytes": "text", "path": "a.png"}, {"bytes": PNG, "path": 3}])
def test_bytes_that_are_none_are_refused(tmp_path, value):
    with pytest.raises(ValueError, match="image.*bytes.*(str|bytes)"):
        _as_files(value, "image", tmp_path)


def test_what_is_no_medium_stays_and_what_no_prompt_reads_is_not_written(tmp_path):
    absent = {"bytes": None, "path": "a.png"}
    assert _as_files(absent, "image", tmp_path) == absent
    assert _as_files("a.png", "image", tmp_path) == "a.png" and _as_files(3, "size", tmp_path) == 3
    assert _as_files({"bytes": b"abc", "path": None}, "cover", tmp_path) == "3 bytes"
    assert _as_files({"bytes": b"abc", "path": "a.png"}, "cover", tmp_path) == "a.png"
    assert not list(tmp_path.iterdir())
    inner = {"turns": [{"image": {"bytes": PNG, "path": "a.png"}}], "images": [{"bytes": PNG, "path": "b.png"}] * 2}
    made = _as_files(inner, "row", tmp_path)
    [file] = tmp_path.iterdir()
    assert made == {
        "turns": [{"image": {"path": str(file), "bytes": None}}],
        "images": [{"path": str(file), "bytes": None}] * 2,
    }
    assert file.stem == hashlib.sha256(PNG).hexdigest()[:24]


def test_a_missing_table_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.parquet"):
        load_prompts(tmp_path / "none.parquet")


def test_a_table_in_a_file_is_read_with_the_media_beside_it(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = {"text": ["a", "b"], "image": ["x.png", None], "answer": ["1", None]}
    datasets.Dataset.from_dict(rows).to_parquet(str(tmp_path / "some.parquet"))
    first, second = load_prompts(tmp_path / "some.parquet")
    assert (first.text, first.answer, first.media[0].source) == ("a", "1", str(tmp_path / "x.png"))
    assert (second.text, second.answer, second.media) == ("b", None, ())
    assert [one.id for one in (first, second)] == ["some.parquet:0", "some.parquet:1"]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("hf:a/b@train", ("a/b", None, "train")),
        ("hf:a/b:c@train[:10]", ("a/b", "c", "train[:10]")),
        ("hf:/x/y@a@b", ("/x/y", None, "a@b")),
    ],
)
def test_a_source_names_a_set_a_configuration_and_a_split(source, found, monkeypatch):
    asked = []
    monkeypatch.setattr(hub, "_table", lambda *given: asked.append(given) or FakeTable())
    [made] = hub.files_of(source)
    assert asked == [(source, *found)] and (made.name, made.root, made.store) == (source, Path(), None)
    [made] = hub.files_of(source, "media")
    assert made.store == Path("media") and len(made) == 1


class FakeTable:
    """A data set of one row."""

    def with_format(self, name: str) -> FakeTable:
        assert name == "arrow"
        return self

    def __len__(self) -> int:
        return 1


def test_errors_of_datasets_name_the_source(monkeypatch):
    import datasets

    class Wrapped(Exception):
        pass

    def load(*given, split):
        assert given == ("a/b", "c") and split == "train"
        raise Wrapped("outer") from KeyError("inner")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(ValueError, match="hf:a/b:c@train"):
        hub.files_of("hf:a/b:c@train")


def test_a_saved_table_is_its_own_split_or_any_where_it_has_none(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = {"text": ["one", "two"]}
    datasets.Dataset.from_dict(rows, split="train").save_to_disk(tmp_path / "named")
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "plain")
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows)}).save_to_disk(tmp_path / "several")
    for source in ("named@train", "plain@train", "plain@test", "several@train"):
        assert [one.text for one in load_prompts(f"hf:{tmp_path}/{source}")] == ["one", "two"]
    for source in ("named@test", "several@test"):
        with pytest.raises(ValueError, match=f"{source}.*'test'"):
            load_prompts(f"hf:{tmp_path}/{source}")
