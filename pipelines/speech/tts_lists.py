"""Lists of utterances in the format of seed-tts-eval (BytedanceSpeech/seed-tts-eval), ``meta.lst``.

A line is ``name|text of the voice|its recording|text to be spoken``, in some lists followed by the recording of that
text by the same voice, which stays in ``meta``. Paths are relative to the folder of the list.
"""

from __future__ import annotations

from pathlib import Path

from mmgrpo.data.messages import prompt_of
from mmgrpo.data.prompts import distinct, whole
from mmgrpo.data.values import text_of
from mmgrpo.types import Prompt

FORM = "name|text of the voice|its recording|text to be spoken"


def read_list(path: str | Path, media_root: str | Path = "") -> list[Prompt]:
    """The prompts of a list: the text to be spoken, the recording as medium, ``meta.voice_text``.

    A line of another form, a name that occurs twice, and a list without lines are errors that name file and line.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such list (working directory: {Path.cwd()})")
    lines = [(n, line) for n, line in enumerate(path.read_bytes().splitlines(), start=1) if line.strip()]
    if not lines:
        raise ValueError(f"{path}: has no lines; expected {FORM}")

    def reader(number: int, line: bytes) -> Prompt:
        return _prompt(line, f"{path}:{number}", media_root or path.parent)

    return whole(distinct((f"{path}:{n}", lambda n=n, line=line: reader(n, line)) for n, line in lines))


def _prompt(line: bytes, place: str, root: str | Path) -> Prompt:
    fields = [field.strip() for field in text_of(line).split("|")]
    if len(fields) not in (4, 5) or not all(fields[:4]):
        raise ValueError(f"{place}: got {len(fields)} fields, expected {FORM}, and in some lists a fifth, a recording")
    name, voice_text, voice, text = fields[:4]
    more = {"recording": fields[4]} if fields[4:] else {}
    return prompt_of({"id": name, "text": text, "audio": voice, "voice_text": voice_text, **more}, place, name, root)
