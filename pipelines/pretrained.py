"""Models in folders and on the hub: location, architecture, loading and saving."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.training import Training

INDEX = ("model_index.json", "config.json", "transformer/config.json")
"""Files that declare the architecture of a folder; the first that exists counts."""


def locate(path: str | Path, example: str, *marks: str) -> str:
    """The folder, which must contain one of ``marks``, or the hub id; ``example`` is a hub id for the error."""
    text = str(path)
    marks = marks or ("config.json",)
    if Path(path).is_dir():
        if any((Path(path) / mark).exists() for mark in marks):
            return text
        content = ", ".join(sorted(entry.name for entry in Path(path).iterdir())) or "nothing"
        raise FileNotFoundError(
            f"'{text}' is no model folder: got {content}, expected {' or '.join(marks)}; name a model folder or a hub "
            f"id, e.g. {example}"
        )
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", text):
        return text
    raise FileNotFoundError(
        f"there is no model folder '{text}', and it is no hub id either; give an existing folder or "
        f"owner/name, e.g. {example}"
    )


def architecture(path: str) -> str:
    """The architecture that a checkpoint declares: a pipeline's class (diffusers) or a model type (transformers)."""
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
    """A network of a class (or auto class) of transformers or diffusers; missing weights are an error, which the
    libraries replace by random ones with a warning."""
    path = str(training.network or source)
    try:
        network, report = kind.from_pretrained(
            path, dtype=training.storage_dtype, output_loading_info=True, subfolder=subfolder
        )
    except OSError as error:
        part = f"{subfolder}/ of " if subfolder else ""
        raise FileNotFoundError(
            f"no model could be read from {part}'{path}', expected a model folder, or a hub id that can be reached: "
            f"{error}"
        ) from error
    if report["missing_keys"]:
        raise ValueError(
            f"'{path}': the checkpoint lacks {len(report['missing_keys'])} weights, e.g. "
            f"{sorted(report['missing_keys'])[:3]}; download or save it again"
        )
    return network.eval().to(training.device)


def save_network(folder: Path, network: Any, parts: Sequence[Any]) -> None:
    """Adapters in peft's format where there are any, otherwise an ordinary model folder; and ``parts`` (tokenizer,
    processor)."""
    from accelerate.utils import extract_model_from_parallel

    network = extract_model_from_parallel(network)
    network.save_pretrained(folder)
    for part in parts:
        part.save_pretrained(folder)
