"""A row that is not what its benchmark promises is an error that names the file, the row and the key."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from reward_models.evaluation.evaluate import score
from reward_models.evaluation.protocols import read_benchmark
from reward_models.evaluation.readers import rows
from reward_models.evaluation.readers.answers import rewardbench2
from reward_models.evaluation.readers.rows import Row, read_rows
from tests.libraries.reward_models.evaluation.benchmarks import (
    LEVEL,
    pictures,
    write_csv,
    write_json,
    write_jsonl,
    write_parquet,
)

CIRCLE = "a red circle"
GOOD = {"prompt": "a", "left": "grey/10.png", "right": "grey/20.png", "vote_type": "leftvote"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": 3}, "row 2.*prompt.*3"),
        ({"prompt": " "}, "row 2.*prompt.*' '"),
        ({"vote_type": "left"}, "row 2.*vote_type.*'left'"),
        ({"vote_type": ["x"]}, r"row 2.*vote_type.*\['x'\]"),
        ({"left": None}, "row 2.*left"),
        (
            {"left": "https://example.com/a.png"},
            "row 2.*left.*https://example.com/a.png",
        ),
        *(
            ({key: value}, f"row 2: {key}: got ")
            for key, values in {
                "about": (3.5, "a.png", {"a": 1}),
                "meta": (3.5, [1], "x"),
                "task": (3.5, ["x"]),
                "category": (["x"], {"a": 1}),
                "user": ([1], True),
                "left": (3.5, [], "a\0.png", {"text": 3}),
            }.items()
            for value in values
        ),
        ({"prompt": "\ud800"}, "row 2.*prompt"),
        ({"meta": {"a": ["x\udfff"]}}, "row 2.*'meta'.*'a'"),
        ({"\ud800": 1}, "row 2.*surrogate"),
    ],
)
def test_a_wrong_value_names_its_place(tmp_path, change, message):
    file = write_jsonl(tmp_path / "votes.jsonl", [GOOD, GOOD | change])
    with pytest.raises(ValueError, match=rf"votes\.jsonl: {message}"):
        read_benchmark(f"votes:{file}")


@pytest.mark.parametrize(
    ("spec", "row", "message"),
    [
        ("hpdv2", {"prompt": "a", "image_path": ["x"], "rank": [1]}, "image_path"),
        ("hpdv2", {"prompt": "a", "image_path": ["x", "y"], "rank": [1]}, r"rank.*\[1\].*2"),
        ("hpdv2", {"prompt": "a", "image_path": ["x", "y"], "rank": [1, True]}, "rank.*True"),
        ("hpdv3", {"prompt": "a", "path1": "x"}, "path2.*path1"),
        ("pickapic", {"caption": "a", "label_0": 1, "label_1": 1}, "label_0.*label_1.*1.0"),
        ("vlrewardbench", {"id": "x-1"}, "id.*'x-1'"),
        ("mmrewardbench", {"ID": "x", "Meta": "safety"}, "Meta.*safety"),
        ("rewardbench2", {"subset": "Ties", "id": "3", "chosen": ["a"], "rejected": ["b"]}, "id.*'3'"),
        ("hpdv2", {"prompt": "a", "image_path": ["x", "y"], "rank": [1, 10**400]}, "rank.*1000"),
        ("mjbench", {"caption": "a", "image0": "x", "image1": "y", "label": 0, "info": [3]}, "info"),
        ("scenes", {"prompt": 3, "left": {}, "right": {}, "label": "left", "category": "a"}, "prompt.*3"),
        *(
            ("scenes", {"prompt": CIRCLE, "left": left, "right": {}, "label": "left", "category": "a"}, "got an image")
            for left in (
                {}, {"scene": 3, "seed": 1}, {"scene": CIRCLE, "seed": 3.5}, {"scene": CIRCLE, "seed": -1},
                {"scene": CIRCLE, "seed": 1, "damage": ["noise", 0.1, 3]},
                {"scene": CIRCLE, "seed": 1, "damage": ["noise", "x"]},
            )
        ),
        ("rewardbench2", {"subset": "Math", "chosen": [], "rejected": ["b"]}, r"chosen.*\[\]"),
    ],
)  # fmt: skip
def test_each_format_checks_its_rows(tmp_path, spec, row, message):
    with pytest.raises(ValueError, match=f"rows.json.*row 1.*{message}"):
        read_benchmark(f"{spec}:{write_json(tmp_path / 'rows.json', [row])}")


def test_a_picture_that_is_missing_or_damaged_names_its_row(tmp_path):
    pictures(tmp_path)
    for name, content in (("gone", None), ("torn", b"\x89PNG\r\n")):
        if content is not None:
            (tmp_path / f"{name}.png").write_bytes(content)
        file = write_jsonl(tmp_path / "votes.jsonl", [GOOD, GOOD | {"right": f"{name}.png"}])
        benchmark = read_benchmark(f"votes:{file}")
        with pytest.raises(ValueError, match=r"votes\.jsonl.*row 2.*right"):
            score([LEVEL], benchmark.comparisons)


def test_every_kind_of_file_gives_the_same_rows(tmp_path):
    rows = [{"prompt": "é", "n": "1"}, {"prompt": "b\nc", "n": "2"}]
    writers = {"a.json": write_json, "a.jsonl": write_jsonl, "a.csv": write_csv, "a.parquet": write_parquet}
    for name, write in writers.items():
        read = list(read_rows(str(write(tmp_path / name, rows))))
        assert [dict(row.values) for row in read] == rows
        assert [row.place for row in read] == [f"{tmp_path / name}: row {n}" for n in (1, 2)]
    assert [row.number("n") for row in read_rows(str(tmp_path))] == [1.0, 2.0] * 4  # all files of the folder


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", json.dumps(GOOD).encode() + b"\n{", "a.jsonl.*row 2.*JSON"),
        ("a.json", b"{}", "a.json"),
        ("a.json", b"[1]", "a.json.*row 1.*1"),
        ("a.json", b"[\xff]", "a.json.*byte 1.*UTF-8"),
        ("a.parquet", b"PAR1", "a.parquet.*Parquet"),
        ("a.txt", b"", "a.txt"),
        ("a.jsonl", b"", "--data.*a.jsonl"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_benchmark(f"votes:{tmp_path / name}")


def test_what_is_no_benchmark_is_refused(tmp_path):
    with pytest.raises(ValueError, match="hpdv1"):
        read_benchmark("hpdv1:x.json")
    with pytest.raises(ValueError, match="x.json.*FORMAT:PATH"):
        read_benchmark("x.json")
    with pytest.raises(ValueError, match="votes.*dimension"):
        read_benchmark("votes(dimension='VQ'):x.jsonl")
    with pytest.raises(ValueError, match="votes.*'row'"):
        read_benchmark("votes(row=1):x.jsonl")
    with pytest.raises(FileNotFoundError, match="file or folder"):
        read_benchmark(f"votes:{tmp_path / 'gone' / 'x.jsonl'}")
    with pytest.raises(FileNotFoundError, match="contains"):
        read_benchmark(f"votes:{tmp_path}")
    with pytest.raises(FileNotFoundError, match="nobody/nothing"):
        read_benchmark("votes(split='test'):nobody/nothing")


def test_a_limit_reads_no_further(tmp_path):
    file = tmp_path / "votes.jsonl"
    file.write_text(json.dumps(GOOD) + "\n{broken\n")
    assert len(read_benchmark(f"votes:{file}", limit=1).comparisons) == 1


def test_a_data_set_of_the_hub_is_read_undecoded(tmp_path, monkeypatch):
    """Its pictures stay bytes until they are scored."""
    import datasets

    table = datasets.Dataset.from_list([{"caption": "a", "image0": _bytes(30), "image1": _bytes(20), "label": 0}])
    table = table.cast_column("image0", datasets.Image()).cast_column("image1", datasets.Image())
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **kw: asked.append((names, kw)) or table)
    benchmark = read_benchmark("mjbench(config='alignment', split='train'):MJ-Bench/MJ-Bench")
    assert asked == [(("MJ-Bench/MJ-Bench", "alignment"), {"split": "train"})]
    assert score([LEVEL], benchmark.comparisons)["level"] == [[30.0, 20.0]]


def _bytes(grey):
    from tests.libraries.reward_models.evaluation.benchmarks import embedded

    return embedded(grey)


def test_only_ties_are_named_by_their_ids():
    values = {"id": "ref:7", "prompt": "a", "chosen": ["b"], "rejected": ["c"]}
    tasks = [
        rewardbench2(Row({**values, "subset": subset}, "f: row 3", Path())).prompt.task for subset in ("Ties", "Math")
    ]
    assert tasks == ["ref:7", "f: row 3"]


class Table:
    """A data set of the hub with a picture and a text in each row."""

    def __init__(self, kept: tuple[str, ...] = ()) -> None:
        self.kept = kept
        self.features = {"picture": Image(), "prompt": "text"}

    def cast_column(self, name: str, feature: Image) -> Table:
        assert not feature.decode
        return Table((*self.kept, name))

    def __iter__(self):
        return iter([{"prompt": "a", "kept": self.kept}, {"prompt": "b", "kept": self.kept}])


class Image:
    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


def test_a_data_set_of_the_hub_is_read_with_its_pictures_as_files(monkeypatch):
    asked = []

    def load_dataset(name: str, config: str | None, split: str) -> Table:
        asked.append((name, config, split))
        if name == "gone/away":
            raise OSError("no\nnetwork")
        return Table()

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    found = list(rows._of_hub("owner/name", "", ""))
    assert [(row.place, row.text("prompt"), row.values["kept"]) for row in found] == [
        ("owner/name: row 1", "a", ("picture",)),
        ("owner/name: row 2", "b", ("picture",)),
    ]
    list(rows._of_hub("owner/name", "small", "train"))
    assert asked == [("owner/name", None, "test"), ("owner/name", "small", "train")]
    with pytest.raises(FileNotFoundError, match="gone/away.*.OSError"):
        list(rows._of_hub("gone/away", "", ""))


def test_a_folder_is_read_file_by_file_and_other_files_are_none_of_it(tmp_path):
    (tmp_path / "b.jsonl").write_text('{"n": 2}\n')
    (tmp_path / "a.csv").write_text('n,text\n1,"two\r\nlines"\n', newline="")
    (tmp_path / "README.md").write_text("what it is")
    found = list(read_rows(str(tmp_path)))
    assert [str(row.values["n"]) for row in found] == ["1", "2"] and found[0].text("text") == "two\nlines"


def test_a_key_that_a_row_lacks_is_named_with_those_that_it_has():
    with pytest.raises(ValueError, match="f.*row 3.*'b'"):
        Row({"a": 1}, "f: row 3", Path()).text("b")
