"""The texts that reward models were trained with, read from where they are published: they are part of the weights.

A file of Python is read as text, and its constants are taken from the syntax tree: nothing in it is run.
"""

from __future__ import annotations

import ast
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmgrpo.runtime.pypi_weights import check_wheel, fetch_wheel

HPSV3 = "hpsv3==1.0.0"
HPSV3_SHA256 = "1a1b3ed1f538315ddf0e90c55b9f5c8ab3248d772cd713c11f7dfe35bf867ab3"
HPSV3_INSIDE = "hpsv3/dataset/data_collator_qwen.py"
HPSV3_NAMES = ("INSTRUCTION", "prompt_with_special_token")
CACHE = Path("~/.cache/mmgrpo/hpsv3-1.0.0.whl")


def hpsv3_instruction(source: str = "", cache: str | Path = CACHE) -> str:
    """HPSv3's instruction, with ``{text_prompt}`` for the prompt: from its wheel on the package index (MIT, 69 kB),
    which is downloaded once and compared with its hash, or from ``source``, a file of text or that of the wheel."""
    if source:
        return "".join(texts(Path(source).expanduser(), HPSV3_NAMES, "hpsv3"))
    wheel = Path(cache).expanduser()
    if not wheel.is_file():
        wheel.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=wheel.parent) as folder:
            how = f"Without network: name a copy of {HPSV3_INSIDE} (instruction=...)."
            fetch_wheel(HPSV3, HPSV3_SHA256, Path(folder), "The instruction of HPSv3", 1, how).replace(wheel)
    with zipfile.ZipFile(check_wheel(wheel, HPSV3, HPSV3_SHA256)) as archive:
        return "".join(constants(archive.read(HPSV3_INSIDE).decode(), HPSV3_NAMES, f"{wheel}: {HPSV3_INSIDE}"))


def texts(file: Path, names: Sequence[str], reward: str) -> list[str]:
    """The constants ``names`` of a Python file, or the whole of a file of text; ``{text_prompt}`` must be in it."""
    if not file.is_file():
        raise FileNotFoundError(f"{reward}: instruction: no such file: {file}")
    content = file.read_text("utf-8")
    instructions = constants(content, names, str(file)) if file.suffix == ".py" else [content]
    if "{text_prompt}" not in "".join(instructions):
        raise ValueError(f"{reward}: {file}: got no {{text_prompt}} in the instruction, expected the published one")
    return instructions


def constants(source: str, names: Sequence[str], file: str) -> list[str]:
    """The texts that a module assigns to ``names``, read without running it."""
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise ValueError(f"{file}: cannot be read as Python ({error}), expected the published file") from error
    values: dict[str, Any] = {
        node.targets[0].id: node.value.value
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Constant)
    }
    if missing := [name for name in names if not isinstance(values.get(name), str)]:
        raise ValueError(f"{file}: got no text {', '.join(missing)}, expected the published file")
    return [values[name] for name in names]
