"""Columns of other projects under our names: those that are known, and those that a run names (``data.columns``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from mmgrpo.config.names import nearest
from mmgrpo.config.plugins import EMBEDDED
from mmgrpo.data.limits import SUFFIXES
from mmgrpo.data.media import IN_MEMORY, Inside, only
from mmgrpo.data.values import quote, show_value
from mmgrpo.types import Audio

TEXT_KEYS = ("text", "prompt", "problem", "messages", "conversations")
ANSWER_KEYS = ("answer", "solution")
TRANSCRIPT_KEYS = ("normalized_text", "sentence", "transcription", "transcript")
OUR_KEYS = (
    *TEXT_KEYS,
    *ANSWER_KEYS,
    *(key for kind in IN_MEMORY for key in (kind, kind + "s")),
    *("id", "task", "system", "reference_value", "reference_rewards", "chosen", "rejected"),
)
"""What a column can be called here, besides ``meta.<name>``."""

ROLES = (TEXT_KEYS, ANSWER_KEYS, *((kind, kind + "s") for kind in IN_MEMORY))
"""Keys of which a row has one only."""

SPAN_KEYS = ("start", "end", "offset", "duration")
"""Keys of the part of a row's recording, in seconds."""

LIKELY = {
    "problem": ("query", "instruction", "input", "caption", "sentence", "user", "content", "prompt_text", "q"),
    "answer": (
        "label",
        "gold",
        "ground_truth",
        "target",
        "output",
        "response",
        "gt",
        "final_answer",
        "a",
        "answers",
        "correct_answer",
        "bbox",
        "bbox_2d",
        "gt_bbox",
        "box",
        "boxes",
    ),
}
"""Our columns, and names of others that often hold the same."""

SOURCES = {
    "numeric": r"openai/gsm8k",
    "math": r"hiyouga/geometry3k|(lighteval|HuggingFaceH4)/MATH(-500)?|DigitalLearningGmbH/MATH-lighteval"
    r"|math(_dapo(_reasoning)?)?|aime.*|numina_.*",
    "exact": r"searchR1_.*",
}
"""Tasks of ours to the ``data_source`` of rows that verl scores by the same comparison."""

WRAPPED = re.compile(r"\s*(?:<think>.*?</think>\s*)?<answer>((?:(?!</?answer>).)*)</answer>\s*", re.DOTALL)


def likely(ours: str, names: Iterable[str]) -> str:
    """``theirs=ours`` for the first of the names that often holds what is ``ours`` here (``LIKELY``); empty if none."""
    return next((f"{name}={ours}" for name in names if name.lower() in LIKELY[ours]), "")


@cache
def columns_of(text: str) -> Mapping[str, str]:
    """The columns of ``data.columns``, ``theirs=ours,...``, by our name; ValueError where it is not of this form."""
    columns: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        theirs, _, ours = (part.strip() for part in pair.partition("="))
        if not (theirs and ours):
            raise ValueError(f"data.columns: got {quote(pair)}, expected theirs=ours, e.g. question=problem")
        if ours not in OUR_KEYS and not re.fullmatch(r"meta\.\w+", ours):
            raise ValueError(
                f"data.columns: {quote(pair)}: a row has no key {quote(ours)} here.{nearest(ours, OUR_KEYS)} A "
                "parameter of its task is written meta.<name>"
            )
        role = next((role for role in ROLES if ours in role), (ours,))
        if taken := [columns[key] for key in role if key in columns]:
            raise ValueError(f"data.columns: {quote(taken[0])} and {quote(theirs)} are both '{ours}'; keep one of them")
        columns[ours] = theirs
    return columns


def columns_for(source: str, text: str) -> Mapping[str, str]:
    """The columns of ``data.columns`` for one source of a run; embedded files keep their own."""
    columns = columns_of(text)
    return {} if source.startswith(EMBEDDED) else columns


def with_columns(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The row with ``columns`` (our name to theirs; ``a.b`` is the key b of the object a) under our names.

    A column that is named replaces all others of the same role, which remain in ``meta``; a column that the row does
    not have is a ValueError that lists those that it has.
    """
    if not columns:
        return dict(row)
    chosen = {ours: _column(row, theirs) for ours, theirs in columns.items()}
    left = {key: value for key, value in row.items() if key not in columns.values()}
    meta = dict(left.pop("meta", None) or {})
    for ours, value in chosen.items():
        if ours.startswith("meta."):
            meta[ours.removeprefix("meta.")] = value
            continue
        for key in next((role for role in ROLES if ours in role), (ours,)):
            if key in left:
                meta[key] = left.pop(key)
        left[ours] = value
    return {**left, "meta": meta} if meta else left


def _column(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column, or of a key inside one; a null counts as absent."""
    value: Any = row
    for key in [name] if name in row else name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if value is None:
        present = [key for key, value in row.items() if value is not None]
        raise ValueError(
            f"data.columns: no column {quote(name)} in this row, or nothing in it.{nearest(name, present)[:400]}"
        )
    return value


def with_our_keys(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row with the names that other projects give to question, audio, transcript and answer replaced by ours.

    - folders of media with a file ``metadata``: the medium in ``file_name``, its kind by its suffix;
    - NeMo: the recording in ``audio_filepath``, the transcript in ``text``;
    - the part of a recording in ``start`` and ``end``, or as manifests have it in ``offset`` and ``duration``, in
    seconds
      (``duration`` alone is a part in a manifest of NeMo only; elsewhere it tells how long the file is);
    - speech data sets: the transcript in ``normalized_text``, ``sentence``, ``transcription`` or ``transcript``, or in
      ``text`` where the recording is in ``file_name``, or is an object of bytes or samples, as data sets of the hub
      store it;
    - verl: the answer in ``reward_model["ground_truth"]``, the task by ``data_source`` (``SOURCES``);
    - the system prompt in ``system_prompt``;
    - ``question`` where no other key has the text.
    """
    row = dict(row)
    listed = with_file_name(row)
    nemo = "audio_filepath" in row and "audio" not in row
    if nemo:
        row["audio"] = row.pop("audio_filepath")
    answered = any(row.get(key) is not None for key in ANSWER_KEYS)
    judged = row.get("reward_model")
    if isinstance(judged, Mapping) and judged.get("ground_truth") is not None and not answered:
        row["answer"], answered = judged["ground_truth"], True
    if isinstance(judged, Mapping) and "task" not in row:
        source = str(row.get("data_source"))
        if task := next((name for name, sources in SOURCES.items() if re.fullmatch(sources, source)), ""):
            row["task"] = task
    if row.get("audio") is not None and not answered:
        transcript = only({key: row[key] for key in TRANSCRIPT_KEYS if row.get(key) is not None}, TRANSCRIPT_KEYS)
        if transcript:
            row["answer"] = row.pop(transcript)
        elif isinstance(row.get("text"), str) and (nemo or listed or is_recording(row["audio"])):
            row["answer"] = row.pop("text")
    if isinstance(row.get("system_prompt"), str) and "system" not in row:
        row["system"] = row.pop("system_prompt")
    if "question" in row and not row.keys() & set(TEXT_KEYS):
        row["problem"] = row.pop("question")
    return with_span(row, nemo)


def with_file_name(row: dict[str, Any]) -> bool:
    """Name the file in ``file_name``, as folders of the hub's ``imagefolder`` and ``audiofolder`` list it, by its kind
    where the row has no other medium; whether it did."""
    name = row.get("file_name")
    if not isinstance(name, str) or any(row.get(key) is not None for kind in IN_MEMORY for key in (kind, kind + "s")):
        return False
    for kind, suffixes in SUFFIXES.items():
        if name.lower().endswith(suffixes):
            row[kind] = row.pop("file_name")
            return True
    return False


def with_span(row: dict[str, Any], manifest: bool) -> dict[str, Any]:
    """The row with the part of its one recording that it names as options of the recording."""
    sound = row.get("audio")
    if sound is None or isinstance(sound, list):
        return row
    names = {name: row[name] for name in SPAN_KEYS if row.get(name) is not None}
    if not names.keys() & {"start", "end", "offset"} and not (manifest and "duration" in names):
        return row
    for name, value in names.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ValueError(f"'{name}': got {show_value(value)}, expected a time in seconds of at least 0")
    pairs = {"start": ("start", "offset"), "end": ("end", "duration")}
    for theirs in pairs.values():
        only(names, theirs)
    start = names.get("start", names.get("offset", 0))
    end = names.get("end", start + names["duration"] if "duration" in names else None)
    options = {"start": start} | ({"end": end} if end is not None else {})
    row = {key: value for key, value in row.items() if key not in SPAN_KEYS}
    row["audio"] = {**(sound if isinstance(sound, Mapping) else {"path": sound}), **options}
    return row


def is_recording(value: Any) -> bool:
    """Whether a recording has the form of ``datasets.Audio``, which has its bytes or its samples inside."""
    return isinstance(value, Inside | Audio) or (isinstance(value, Mapping) and "bytes" in value)


def unwrap(answer: Any) -> Any:
    """A reference answer without the tags of a completion, which R1-V and VLM-R1 store with it."""
    match = WRAPPED.fullmatch(answer) if isinstance(answer, str) else None
    return match[1].strip() if match else answer
