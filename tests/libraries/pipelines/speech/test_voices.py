"""Lists of texts and voices as published sets have them."""

from __future__ import annotations

import pytest

from mmgrpo.cli.train import read
from mmgrpo.family import families
from pipelines.speech.voices import read_voices


def test_a_list_of_seed_tts_eval_is_read(tmp_path):
    """id|transcript of the clip|clip|text, with or without the recording."""
    (tmp_path / "meta.lst").write_text(
        "c1-c2|We asked over twenty people.|prompt-wavs/c1.wav|I had no idea.\n\n"
        "c3-c4|Get the trust fund.|prompt-wavs/c3.wav|Seven, please.|wavs/c4.wav\n"
    )
    first, second = read_voices(str(tmp_path / "meta.lst"))
    assert (first.id, first.text, first.meta) == (
        "c1-c2", "I had no idea.", {"reference_text": "We asked over twenty people."}
    )  # fmt: skip
    assert [medium.source for medium in first.media] == [str(tmp_path / "prompt-wavs/c1.wav")]
    assert (second.id, second.text, second.meta["recording"]) == ("c3-c4", "Seven, please.", "wavs/c4.wav")
    (elsewhere, _) = read_voices(str(tmp_path / "meta.lst"), "/clips")
    assert elsewhere.media[0].source == "/clips/prompt-wavs/c1.wav"


def test_a_row_of_ljspeech_is_spoken_in_the_voice_of_the_next_one(tmp_path):
    (tmp_path / "metadata.csv").write_text("a|Dr. No|Doctor No\nb|Two.|Two.\nc|3|three\n")
    rows = read_voices(str(tmp_path / "metadata.csv"))
    assert [(row.id, row.text, row.meta["reference_text"]) for row in rows] == [
        ("a", "Doctor No", "Two."), ("b", "Two.", "three"), ("c", "three", "Doctor No")
    ]  # fmt: skip
    assert rows[2].media[0].source == str(tmp_path / "wavs/a.wav")


def test_a_row_of_ljspeech_may_lack_its_normalized_text(tmp_path):
    (tmp_path / "metadata.csv").write_text("a|One.\nb| Two. \n")
    assert [(row.id, row.text, row.meta["reference_text"]) for row in read_voices(str(tmp_path / "metadata.csv"))] == [
        ("a", "One.", "Two."), ("b", "Two.", "One.")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("meta.lst", b"a|b|c.wav|d|e|f\n", r"meta.lst:1.*6.*a\|b\|c.wav\|d\|e\|f"),
        ("metadata.csv", b"a|b|c|d\n", "metadata.csv:1.*4"),
        ("metadata.csv", b"a| |c\n", "metadata.csv:1.*3"),
        ("meta.lst", b"a|b|c\n", r"meta.lst:1.*3.*a\|b\|c"),
        ("meta.lst", b"a|b|c.wav|d\n\na||c.wav|d\n", "meta.lst:3.*4"),
        ("meta.lst", b"a|b|c.wav|d\na|b|c.wav|e\n", "meta.lst:2.*'a'.*meta.lst:1"),
        ("meta.lst", b"\n", "rows"),
        ("metadata.csv", b"a\n", r"metadata.csv:1.*1.*id\|text\|text"),
        ("metadata.csv", b"\xff|b\n", "metadata.csv:1.*UTF-8"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_voices(str(tmp_path / name))


@pytest.mark.parametrize("family", ["codec_speech", "flow_speech"])
def test_columns_of_a_list_have_no_names(tmp_path, family):
    (tmp_path / "meta.lst").write_text("a|b|c.wav|d\n")
    named = ["--model.family", family, "--model.path", "x", "--data.columns", "words=text"]
    with pytest.raises(ValueError, match="data.columns.*meta.lst"):
        families()[family].read(read(named, ""), str(tmp_path / "meta.lst"))


def test_a_missing_list_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.lst"):
        read_voices(str(tmp_path / "nowhere.lst"))
