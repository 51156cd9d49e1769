"""Rows of zero-shot speech synthesis: a text, a clip of the voice to speak it in, and the clip's transcript.

    {"text": "...", "audio": "voice.wav", "reference_text": "..."}     JSONL, read as any other
    id|reference_text|voice.wav|text[|recording]                       .lst, seed-tts-eval's meta.lst
    id|text|text as it is spoken                                       metadata.csv of LJSpeech, clips in wavs/

In LJSpeech's rows, and in data sets of recordings and transcripts (``with_texts``), the clip is the recording of the
text itself: the voice to speak in is that of the next row.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mmgrpo.config.plugins import locate
from mmgrpo.config.settings import Config
from mmgrpo.data.columns import columns_for
from mmgrpo.data.messages import prompt_of
from mmgrpo.data.prompts import Attempt, distinct, whole
from mmgrpo.data.values import text_of
from mmgrpo.types import Prompt
from pipelines.hub import load_prompts
from pipelines.speech.spoken import with_texts

META = ".lst"
LISTS = (META, "metadata.csv")
"""How the names of files with ``|`` between columns end: those of seed-tts-eval, and of LJSpeech."""

Row = tuple[str, list[str]]
"""The place of a line (``file:line``), and its columns."""


def read_texts(config: Config, path: str) -> list[Prompt]:
    """The prompts of one of ``LISTS``, or of any other file. ValueError for ``data.columns`` of a list, whose columns
    have no names."""
    file, columns = locate(path), columns_for(path, config.data.columns)
    if not file.endswith(LISTS) or has_header(Path(file)):
        return with_texts(load_prompts(file, config.data.media_root, columns))
    if columns:
        raise ValueError(f"data.columns: '{path}' is a list whose columns have no names; leave data.columns empty")
    return read_voices(file, config.data.media_root)


def has_header(file: Path) -> bool:
    """Whether a list begins with names of columns, as ``metadata.csv`` of the hub's folders of recordings does."""
    if not file.is_file():
        return False
    with open(file, "rb") as lines:
        return b"file_name" in lines.readline(1 << 16).replace(b'"', b"").strip().split(b",")


def read_voices(path: str, media_root: str = "") -> list[Prompt]:
    """The prompts of one of ``LISTS``; a line that cannot be read is an error."""
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{path}: no such file (working directory: {Path.cwd()})")
    rows = list(_columns(file))
    if not rows:
        raise ValueError(f"{path}: has no rows; expected {FORMATS[file.suffix == META]}")
    root = Path(media_root or file.parent)
    return whole(_attempts(rows, root) if file.suffix == META else _next_to_each_other(rows, root))


FORMATS = {True: "id|reference_text|clip|text", False: "id|text|text as it is spoken"}
"""The columns of a line of seed-tts-eval, and of LJSpeech."""


def _columns(file: Path) -> Iterator[Row]:
    meta = file.suffix == META
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        place = f"{file}:{number}"
        try:
            columns = [column.strip() for column in text_of(line).split("|")]
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
        allowed = (4, 5) if meta else (2, 3)
        if len(columns) not in allowed or not all(columns[: allowed[0]]):
            raise ValueError(
                f"{place}: got {len(columns)} columns ({'|'.join(columns)[:80]}), expected {FORMATS[meta]}; correct it"
            )
        yield place, columns


def _attempts(rows: list[Row], root: Path) -> Iterator[Attempt]:
    def prompt(place: str, columns: list[str]) -> Prompt:
        number, said, clip, text, *recording = columns
        row = {"id": number, "text": text, "audio": clip, "reference_text": said}
        return prompt_of(row | ({"recording": recording[0]} if recording else {}), place, number, root)

    return distinct((place, lambda p=place, c=columns: prompt(p, c)) for place, columns in rows)


def _next_to_each_other(rows: list[Row], root: Path) -> Iterator[Attempt]:
    def prompt(place: str, columns: list[str], voice: list[str]) -> Prompt:
        row = {"id": columns[0], "text": columns[-1], "audio": f"wavs/{voice[0]}.wav", "reference_text": voice[-1]}
        return prompt_of(row, place, columns[0], root)

    voices = [columns for _, columns in rows[1:] + rows[:1]]
    return distinct(
        (place, lambda p=place, c=columns, v=voice: prompt(p, c, v))
        for (place, columns), voice in zip(rows, voices, strict=True)
    )
