"""Files as projects lay them out, each with one question about a picture, or one sound and its transcript.

The layouts are those of the projects' own data: field by field, with what surrounds the fields that are read.
"""

from __future__ import annotations

import base64
import csv
import json
import tarfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from PIL import Image as Pil

QUESTION, RATE = "What is it?", 16_000


def png(colour: str = "red") -> bytes:
    """A picture of 4 x 6 pixels."""
    file = BytesIO()
    Pil.new("RGB", (6, 4), colour).save(file, "PNG")
    return file.getvalue()


def wav(samples: int = 800) -> bytes:
    """A tone."""
    file = BytesIO()
    soundfile.write(file, np.sin(np.arange(samples) * 0.1) / 2, RATE, format="WAV")
    return file.getvalue()


def data_uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def lines(folder: Path, rows: Sequence[Any], name: str = "data.jsonl") -> Path:
    """JSON lines, beside a.png and a.wav."""
    beside(folder)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / name


def array(folder: Path, rows: Sequence[Any]) -> Path:
    """A .json file with one array."""
    beside(folder)
    (folder / "data.json").write_text(json.dumps(rows, indent=1))
    return folder / "data.json"


def beside(folder: Path) -> None:
    (folder / "a.png").write_bytes(png())
    (folder / "a.wav").write_bytes(wav())


def parquet(folder: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """A parquet file, with media as datasets and verl store them."""
    import pyarrow
    from pyarrow import parquet as files

    files.write_table(pyarrow.Table.from_pylist(list(rows)), folder / "data.parquet")
    return folder / "data.parquet"


def shard(folder: Path, members: dict[str, bytes], name: str = "data.tar") -> Path:
    """A tar file as WebDataset writes it."""
    with tarfile.open(folder / name, "w") as archive:
        for member, content in members.items():
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            archive.addfile(entry, BytesIO(content))
    return folder / name


def trl(folder: Path, gold: Any) -> Path:
    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    return lines(folder, [{"prompt": [{"role": "user", "content": content}], "image": "a.png", "solution": gold}])


def llava(folder: Path, gold: Any) -> Path:
    turns = [{"from": "human", "value": f"<image>\n{QUESTION}"}, {"from": "gpt", "value": gold}]
    return array(folder, [{"id": "000000033471", "image": "a.png", "conversations": turns}])


def easy_r1(folder: Path, gold: Any) -> Path:
    picture = {"bytes": png(), "path": None}
    return parquet(folder, [{"images": [picture], "problem": f"<image>{QUESTION}", "answer": gold}])


def ms_swift(folder: Path, gold: Any) -> Path:
    turns = [{"role": "user", "content": f"<image>{QUESTION}"}]
    return lines(folder, [{"messages": turns, "images": ["a.png"], "solution": gold}])


def r1_v(folder: Path, gold: Any) -> Path:
    return parquet(
        folder,
        [{"image": {"bytes": png(), "path": "a.png"}, "problem": QUESTION, "solution": f"<answer> {gold} </answer>"}],
    )


def vlm_r1(folder: Path, gold: Any) -> Path:
    reply = {"from": "gpt", "value": f"<think>It is clear.</think> <answer>{gold}</answer>"}
    turns = [{"from": "human", "value": f"<image>{QUESTION}"}, reply]
    return lines(folder, [{"id": 1, "image": "a.png", "conversations": turns}])


def openai(folder: Path, gold: Any) -> Path:
    picture = {"type": "image_url", "image_url": {"url": data_uri(png(), "image/png"), "detail": "low"}}
    asked = {"role": "user", "content": [picture, {"type": "text", "text": QUESTION}]}
    return lines(folder, [{"messages": [asked, {"role": "assistant", "content": gold}]}])


def verl(folder: Path, gold: Any) -> Path:
    return parquet(
        folder,
        [
            {
                "data_source": "hiyouga/geometry3k",
                "prompt": [{"role": "user", "content": f"<image>{QUESTION}"}],
                "images": [{"bytes": png(), "path": None}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": gold},
                "extra_info": {"split": "train", "index": 0, "answer": gold, "question": f"<image>{QUESTION}"},
            }
        ],
    )


def verl_lines(folder: Path, gold: Any) -> Path:
    row = {
        "data_source": "gsm8k",
        "prompt": [{"role": "user", "content": f"<image>{QUESTION}"}],
        "images": [{"image": "a.png"}],
        "reward_model": {"style": "rule", "ground_truth": gold},
        "extra_info": {"split": "train", "index": 0},
    }
    return lines(folder, [row])


def question_answer(folder: Path, gold: Any) -> Path:
    return lines(folder, [{"question": QUESTION, "image": "a.png", "answer": gold}])


def base64_column(folder: Path, gold: Any) -> Path:
    return lines(folder, [{"question": QUESTION, "image": base64.b64encode(png()).decode(), "answer": gold}])


def webdataset(folder: Path, gold: Any) -> Path:
    row = {"question": QUESTION, "answer": gold}
    return shard(folder, {"0001.jpg": png(), "0001.json": json.dumps(row).encode()})


def own_columns(folder: Path, gold: Any) -> Path:
    return lines(folder, [{"instruction": QUESTION, "photo": "a.png", "label": {"text": gold}}])


def spreadsheet(folder: Path, gold: Any) -> Path:
    beside(folder)
    path = folder / "data.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["question", "image", "answer"], [QUESTION, "a.png", gold]])
    return path


def nemo(folder: Path, gold: Any) -> Path:
    return lines(folder, [{"audio_filepath": "a.wav", "duration": 0.05, "text": gold}], "manifest.json")


def hub_audio(folder: Path, gold: Any, column: str = "text") -> Path:
    sound = {"bytes": wav(), "path": "a.wav"}
    return parquet(folder, [{"file": "a.wav", "audio": sound, column: gold, "speaker_id": 19}])


def media_folder(folder: Path, gold: Any) -> Path:
    beside(folder)
    lines(folder, [{"file_name": "a.png", "question": QUESTION, "answer": gold}], "metadata.jsonl")
    return folder


def sound_folder(folder: Path, gold: Any) -> Path:
    beside(folder)
    with (folder / "metadata.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["file_name", "text"], ["a.wav", gold]])
    return folder


def sounds_and_texts(folder: Path, gold: Any) -> Path:
    (folder / "a.wav").write_bytes(wav())
    (folder / "a.txt").write_text(f"{gold}\n", encoding="utf-8-sig")
    return folder


def hub_sentence(folder: Path, gold: Any) -> Path:
    return hub_audio(folder, gold, "sentence")


def hub_transcription(folder: Path, gold: Any) -> Path:
    return hub_audio(folder, gold, "transcription")


def hub_normalized(folder: Path, gold: Any) -> Path:
    return hub_audio(folder, gold, "normalized_text")


def openai_audio(folder: Path, gold: Any) -> Path:
    sound = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav()).decode(), "format": "wav"}}
    return lines(folder, [{"messages": [{"role": "user", "content": [sound]}, {"role": "assistant", "content": gold}]}])


def webdataset_audio(folder: Path, gold: Any) -> Path:
    return shard(folder, {"a/0001.wav": wav(), "a/0001.txt": str(gold).encode()})


LAYOUTS: dict[str, tuple[Callable[[Path, Any], Path], str]] = {
    "TRL": (trl, "image"),
    "LLaVA": (llava, "image"),
    "EasyR1": (easy_r1, "image"),
    "ms-swift": (ms_swift, "image"),
    "R1-V": (r1_v, "image"),
    "VLM-R1": (vlm_r1, "image"),
    "verl, parquet": (verl, "image"),
    "verl, JSON lines": (verl_lines, "image"),
    "OpenAI, images": (openai, "image"),
    "OpenAI, audio": (openai_audio, "audio"),
    "question and answer": (question_answer, "image"),
    "images in base64": (base64_column, "image"),
    "WebDataset, images": (webdataset, "image"),
    "WebDataset, audio": (webdataset_audio, "audio"),
    "NeMo": (nemo, "audio"),
    "LibriSpeech": (hub_audio, "audio"),
    "Common Voice": (hub_sentence, "audio"),
    "FLEURS": (hub_transcription, "audio"),
    "VoxPopuli": (hub_normalized, "audio"),
    "spreadsheet": (spreadsheet, "image"),
    "folder of images": (media_folder, "image"),
    "folder of recordings": (sound_folder, "audio"),
    "recordings and texts": (sounds_and_texts, "audio"),
    "columns of your own": (own_columns, "image"),
}
"""Row of the table in docs/data.md to the function that writes such a file with a reference answer, and the medium."""

COLUMNS = {"columns of your own": "instruction=problem,photo=image,label.text=answer"}
"""``data.columns`` of the layouts that need it."""
