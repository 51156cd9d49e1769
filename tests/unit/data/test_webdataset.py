"""Shards of WebDataset: rows by key, media read in place, and what a tar file of strangers may not be."""

from __future__ import annotations

import io
import json
import tarfile

import pytest

from mmgrpo.data.images import decode_image
from mmgrpo.data.limits import Unreadable
from mmgrpo.data.prompts import load_prompts
from mmgrpo.data.webdataset import key_of
from tests.unit.data.layouts import png, shard, wav


def test_members_with_one_key_are_one_row(tmp_path):
    row = {"problem": "Which?", "answer": "b", "image": "0001.jpg", "meta": {"w": 1}}
    members = {
        "0001.0.jpg": png(),
        "0001.1.jpg": png("blue"),
        "0001.json": json.dumps(row).encode(),
        "0001.mask.png": png(),
        "0002.image.png": png("blue"),
        "0002.txt": "Où?\n".encode(),
        "0002.cls": b"3",
        "a/0001.wav": wav(),
        "a/0001.text": b"a word",
    }
    path = shard(tmp_path, members)
    one, two, three = load_prompts(path)
    assert [p.id for p in (one, two, three)] == ["data.tar:0001", "data.tar:0002", "data.tar:a/0001"]
    assert [medium.source for medium in one.media] == [f"{path}::0001.0.jpg", f"{path}::0001.1.jpg"]
    assert one.answer == "b" and one.meta == {"w": 1, "mask.png": f"{path}::0001.mask.png"}
    assert (two.text, two.answer) == ("Où?", "3")
    assert decode_image(two.media[0].source).pixels[:, 0, 0].tolist() == [0, 0, 1]
    assert (three.text, three.answer, three.media[0].source) == ("", "a word", f"{path}::a/0001.wav")
    assert key_of("a.b/0001.seg.png") == ("a.b/0001", "seg.png")


def test_nothing_is_extracted(tmp_path):
    (tmp_path / "in").mkdir()
    load_prompts(shard(tmp_path / "in", {"../x.txt": b"a", "/y.txt": b"b"}))
    assert [file.name for file in tmp_path.rglob("*")] == ["in", "data.tar"]


def test_hidden_members_are_none_and_what_lies_beside_an_object_comes_before_it(tmp_path):
    row = json.dumps({"text": "of the object", "answer": "b", "images": ["x.png"], "meta": {"seg": 1}}).encode()
    hidden = {"._0001.jpg": b"", "__MACOSX/0001.jpg": b"", "a/._0001.jpg": b""}
    first = {"0001.txt": b"of the text", "0001.json": row, "0001.cls": b"3", "0001.jpg": png(), "0001.seg": b""}
    path = shard(tmp_path, {**hidden, **first, **{f"0002{name[4:]}": first[name] for name in reversed(first)}})
    for prompt, answer in zip(load_prompts(path), ("b", "3"), strict=True):
        assert (prompt.text, prompt.answer, len(prompt.media)) == ("of the text", answer, 1)
        assert prompt.meta == {"seg": 1}


def test_several_shards_are_one_set(tmp_path):
    for number in range(9, 12):
        shard(tmp_path, {"0001.txt": str(number).encode()}, f"train-{number:03d}.tar")
    prompts = load_prompts(tmp_path / "train-{009..011}.tar")
    assert [(prompt.text, prompt.id) for prompt in prompts] == [
        (str(n), f"train-{n:03d}.tar:0001") for n in (9, 10, 11)
    ]
    with pytest.raises(FileNotFoundError, match="train-012.tar"):
        load_prompts(tmp_path / "train-{009..012}.tar")
    with pytest.raises(ValueError, match=r"\{011\.\.009\}.*100,000 ascending"):
        load_prompts(tmp_path / "train-{011..009}.tar")


def test_folders_are_passed_over_and_an_empty_text_is_empty(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, kind in (("folder", tarfile.DIRTYPE), ("folder/1.txt", tarfile.REGTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type = kind
            archive.addfile(entry)
        picture = tarfile.TarInfo("folder/1.png")
        picture.size = len(png())
        archive.addfile(picture, io.BytesIO(png()))
    [prompt] = load_prompts(tmp_path / "a.tar")
    assert (prompt.id, prompt.text, len(prompt.media)) == ("a.tar:folder/1", "", 1)


def linked(kind):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        entry = tarfile.TarInfo("0001.jpg")
        entry.type, entry.linkname = kind, "/etc/passwd"
        archive.addfile(entry)
    return file.getvalue()


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.GNUTYPE_SPARSE]
)
def test_links_devices_and_sparse_files_are_refused(tmp_path, kind):
    (tmp_path / "a.tar").write_bytes(linked(kind))
    with pytest.raises(ValueError, match='a.tar.*"0001.jpg"'):
        load_prompts(tmp_path / "a.tar")


def test_a_damaged_archive_is_an_error_and_not_a_shorter_one(tmp_path):
    path = shard(tmp_path, {"0001.txt": b"a", "0002.txt": b"b", "0003.txt": b"c"})
    whole = path.read_bytes()
    assert len(load_prompts(path)) == 3
    for content, complaint in {
        whole[:1024] + b"x" * 512 + whole[1536:]: r"byte 1,\d+",
        whole + whole: r"byte 3,\d+",
        whole[:1100]: "tar file|inside|after",
        b"": "tar file",
        b"\x1f\x8b" + whole: "tar file",
        b"\0" * 10_240: "no files",
    }.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"^{path}.*({complaint})"):
            load_prompts(path)


def test_errors_name_shard_key_and_member(tmp_path):
    path = shard(tmp_path, {"0001.jpg": b"", "0001.txt": b"a", "0002.json": b"{", "0003.jpg": b"no picture"})
    with pytest.raises(ValueError, match=f"^{path}:0002.*'0002.json'.*JSON"):
        load_prompts(path)
    path = shard(tmp_path, {"0001.jpg": b"", "0001.txt": b"a", "0003.jpg": b"no picture", "0003.txt": b"a"})
    empty, bad = load_prompts(path)
    with pytest.raises(Unreadable, match="data.tar::0001.jpg.*0.*1"):
        decode_image(empty.media[0].source)
    with pytest.raises(Unreadable, match="data.tar::0003.jpg"):
        decode_image(bad.media[0].source)
    path = shard(tmp_path, {"0001.csv": b"a"})
    with pytest.raises(ValueError, match=f"^{path}:0001.*'text'"):
        load_prompts(path)


def test_a_member_twice_is_an_error(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("0001.txt"))
    with pytest.raises(ValueError, match="a.tar.*'0001.txt'"):
        load_prompts(tmp_path / "a.tar")
