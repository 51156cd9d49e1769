"""Models in folders and on the hub: where they are, of which architecture, read and saved as they were."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.training import Training

INDEX = ("model_index.json", "config.json", "transformer/config.json")
"""Files that say which architecture a folder holds; the first that is there counts."""


def locate(path: str | Path, example: str, *marks: str) -> str:
    """A folder that holds one of ``marks``, or a hub id where there is no such folder; ``example`` is one of those."""
    text = str(path)
    marks = marks or ("config.json",)
    if Path(path).is_dir():
        if any((Path(path) / mark).exists() for mark in marks):
            return text
        inside = ", ".join(sorted(entry.name for entry in Path(path).iterdir())) or "nothing"
        raise FileNotFoundError(f"'{text}' is no model folder: it holds {inside}; expected {' or '.join(marks)}")
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", text):
        return text
    raise FileNotFoundError(
        f"there is no model folder '{text}', and it is no hub id either; give an existing folder or "
        f"owner/name, e.g. {example}"
    )


def architecture(path: str) -> str:
    """What a checkpoint says it is: the pipeline's class (diffusers) or the model's type (transformers)."""
    for name in INDEX:
        file = Path(path) / name
        if not Path(path).is_dir():
            from huggingface_hub import hf_hub_download
            from huggingface_hub.errors import EntryNotFoundError

            try:
                file = Path(hf_hub_download(path, name))
            except EntryNotFoundError:
                continue
        if file.is_file():
            index = json.loads(file.read_text(encoding="utf-8"))
            return str(index.get("_class_name") or index.get("model_type") or index.get("family", ""))
    return ""


def read_network(kind: Any, source: str, training: Training, subfolder: str = "") -> Any:
    """A network of a class (or auto class) of transformers or diffusers; a file that lacks weights is an error."""
    path = str(training.network or source)
    try:
        network, report = kind.from_pretrained(
            path, dtype=training.stored, output_loading_info=True, subfolder=subfolder
        )
    except OSError as error:
        part = f"{subfolder}/ of " if subfolder else ""
        raise FileNotFoundError(
            f"no model could be read from {part}'{path}' (a folder, or a hub id that this machine can reach): {error}"
        ) from error
    if report["missing_keys"]:
        raise ValueError(f"'{path}': the model's file lacks weights, e.g. {sorted(report['missing_keys'])[:3]}")
    return network.eval().to(training.device)


def save_network(folder: Path, network: Any, parts: Sequence[Any]) -> None:
    """Adapters in peft's format where there are any, else an ordinary folder with tokenizer and processor."""
    from accelerate.utils import extract_model_from_parallel

    network = extract_model_from_parallel(network)
    network.save_pretrained(folder)
    for part in parts:
        part.save_pretrained(folder)
