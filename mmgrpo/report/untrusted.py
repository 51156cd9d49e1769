"""Texts and JSON of a run folder, which is untrusted input: size, nesting and number of keys are bounded.

A file beyond a bound, and one that is not what its name says, is a ValueError of one line that names it.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mmgrpo.report.figures import is_number
from mmgrpo.report.media import resolve_within

MIB = 1024 * 1024
MAX_CONFIG, MAX_JSON, MAX_METRICS = MIB // 4, 32 * MIB, 512 * MIB
"""Largest config.yaml, JSON file and metrics.jsonl in bytes."""
MAX_DEPTH = 32
"""Levels of lists and objects in JSON. Python's own limit depends on the operation, so a value that can be parsed
may be too deep to be written."""
MAX_KEYS = 10_000
"""Keys of one JSON object: a page has a row for each."""


def read_text(folder: Path, name: str, limit: int) -> str:
    """The text of ``<folder>/<name>`` in UTF-8; empty if it is not a file, or lies outside ``folder``."""
    path, place = resolve_within(folder, name), printable(folder / name)
    if path is None or not path.is_file():
        return ""
    if (size := path.stat().st_size) > limit:
        raise ValueError(f"{place}: got {size:,} bytes, expected at most {limit:,}; remove or shorten it")
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{place}: byte {error.start} is not UTF-8; repair or remove the file") from error


def parse_json(text: str, place: str | Path) -> Any:
    """The value of a JSON text, of bounded depth and width."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # also integers of more than 4,300 digits, and deep nesting
        reason = getattr(error, "msg", error)
        raise ValueError(f"{printable(place)}: not JSON ({reason}); repair or remove it") from error
    level = [value]
    for _ in range(MAX_DEPTH):
        objects = [item for item in level if isinstance(item, dict)]
        if (widest := max(map(len, objects), default=0)) > MAX_KEYS:
            raise ValueError(f"{printable(place)}: got an object of {widest:,} keys, expected at most {MAX_KEYS:,}")
        level = [child for item in level if isinstance(item, list) for child in item]
        level += [child for item in objects for child in item.values()]
        if not level:
            return value
    raise ValueError(f"{printable(place)}: got more than {MAX_DEPTH} nested levels; no file of a run has as many")


class PlainLoader(yaml.SafeLoader):
    """YAML without merge keys (``<<``), which can make a file of a kilobyte fill the memory; no run writes them."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise ValueError("it contains a merge key (<<), which a run does not write")


def parse_yaml(text: str, place: Path) -> Any:
    """The value of a YAML text. Aliases can still refer to one list many times: write no part of it out whole."""
    try:
        return PlainLoader(text).get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = getattr(error, "problem", None) or printable(str(error).partition("\n")[0])
        raise ValueError(f"{printable(place)}: not YAML ({reason}); repair or remove it") from error


def mapping(value: Any, place: str | Path) -> Mapping[str, Any]:
    """The value, if it is a mapping; else a ValueError that names ``place``."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{printable(place)}: got {brief(value)}, expected a mapping")
    return value


def brief(value: Any) -> str:
    """The beginning of a value for error messages, whatever its size."""
    if isinstance(value, int) and not is_number(value):  # Python refuses to write integers of many digits
        return "a very large integer"
    return repr((value[:80] if isinstance(value, str) else reprlib.repr(value))[:80])


def printable(place: str | Path) -> str:
    """A name for error messages, with a question mark for each character that a terminal would act on."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(place)[:4096])
