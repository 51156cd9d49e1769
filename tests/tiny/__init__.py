"""Makers of tiny models by family, and their checkpoints, which are written once, and kept between runs and shared by
parallel workers.

A test that changes a checkpoint copies it first, or calls the maker itself.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from mmgrpo.family import families

FOLDER = Path(__file__).parents[2] / "build" / "tiny"
LIBRARIES = ("torch", "transformers", "diffusers", "tokenizers", "safetensors")


def maker(family: str | ModuleType) -> Callable[..., Any]:
    """The function that writes a random checkpoint of a family, of this name or module: the ``tiny`` of this package,
    or of the family's own module where it has one."""
    name = family.__name__.rpartition(".")[2] if isinstance(family, ModuleType) else family
    if (Path(__file__).parent / f"{name}.py").is_file():
        return importlib.import_module(f"tests.tiny.{name}").tiny
    return importlib.import_module(families()[name].module).tiny


def tiny_checkpoint(maker: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What ``maker(folder, *arguments, **options)`` returns, of a folder in ``build/tiny``, to be read only.

    Its name has a hash of the maker's source, of those of the modules of ``pipelines``, of the toy worlds and of this
    package that it imports, of the options and of the versions of the libraries. RuntimeError for a folder that a test
    has changed, which is removed, and where one would be made by a process of several that is not the first, in which
    transformers writes no weights.
    """
    facts = [maker.__qualname__, written([arguments, sorted(options.items())]), versions(), *sources(maker.__module__)]
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]
    folder = FOLDER / f"{maker.__module__.rpartition('.')[2]}-{key}"
    stamp = folder.with_suffix(".stamp")
    if not (folder.is_dir() and stamp.is_file()):
        if int(os.environ.get("RANK", "0")):
            raise RuntimeError(f"{folder}: make this checkpoint before the processes are started")
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER, prefix=".new-") as place:
            made = Path(place) / "model"
            maker(made, *arguments, **options)
            try:
                made.rename(folder)  # of two workers, the second finds the first one's
            except OSError:
                if not folder.is_dir():
                    raise
            (Path(place) / "stamp").write_text(state(folder))
            (Path(place) / "stamp").replace(stamp)
    elif stamp.read_text() != state(folder):
        stamp.unlink()
        shutil.rmtree(folder)
        raise RuntimeError(f"{folder}: a test has changed this checkpoint, which others read; copy it first")
    return str(folder) if maker.__annotations__.get("return") == "str" else folder


def state(folder: Path) -> str:
    """Names, sizes and times of all files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return "\n".join(f"{one.relative_to(folder)} {one.stat().st_size} {one.stat().st_mtime_ns}" for one in files)


def written(value: Any) -> str:
    """A text of options, the same in every process."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    return f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) or callable(value) else repr(value)


@functools.cache
def versions() -> str:
    return " ".join(importlib.metadata.version(name) for name in LIBRARIES if importlib.util.find_spec(name))


@functools.cache
def sources(module: str) -> tuple[str, ...]:
    """The sources of a module and of all modules of ``pipelines`` that it names, those that these name, and so on."""
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = "" if name in found else file_of(name)
        if file:
            found[name] = Path(file).read_text()
            waiting += re.findall(r"(?:from|import) ((?:pipelines|mmgrpo\.toy|tests\.tiny)[\w.]*)", found[name])
            for package, names in re.findall(
                r"from (pipelines(?:\.\w+)?|mmgrpo\.toy|tests\.tiny) import ([\w, ]+)", found[name]
            ):
                waiting += [f"{package}.{one}" for one in names.split(", ")]
    return tuple(found[name] for name in sorted(found))


def file_of(module: str) -> str:
    """The file of a module; empty for what is none."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return ""
    return spec.origin or "" if spec else ""
