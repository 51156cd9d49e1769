"""The settings of other projects as they stand in YAML, JSON, flags, shell scripts and Python files.

Nothing is executed: of a shell script one command is split into words, of a Python file assignments of literals are
read. A file has at most ``MAX_BYTES``, and at most ``MAX_SETTINGS`` settings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmgrpo.cli.migrate.script import command_of
from mmgrpo.config.ranges import short_repr
from mmgrpo.config.reading import load_yaml

MAX_BYTES = 1 << 20
MAX_SETTINGS = 2_000
MAX_DEPTH = 16
MAX_TEXT = 10_000
"""Characters of one value."""


OTHER = re.compile(r"(?:^|[./_])(?:\w*sft|dpo|distill|preprocess|sample|inference|main_generation)(?:[._]|$)")
"""Names of programs of these projects that fine-tune by another method, prepare data or sample."""


@dataclass
class Source:
    """What a configuration says."""

    name: str
    """The file, or "the command line"."""
    values: dict[str, Any] = field(default_factory=dict)
    """Setting to value; settings of sections are joined by dots."""
    unread: dict[str, str] = field(default_factory=dict)
    """Setting to the text that is no plain value: an expression, a variable of the shell."""
    processes: int = 0
    """Processes that a launcher in it starts; 0: it does not say."""
    program: str = ""
    """The program that a shell script starts."""
    launcher: list[str] = field(default_factory=list)
    """The words before the program."""
    branches: dict[str, int] = field(default_factory=dict)
    """Variables that a branch or a loop of a shell script changes, which is not followed, and the line."""

    def put(self, key: str, value: Any) -> None:
        """Add a setting, which overrides an earlier one; ValueError for what is too large."""
        if len(key) > 200:
            raise ValueError(f"{self.name}: got a setting whose name has {len(key)} characters, expected at most 200")
        if len(self.values) >= MAX_SETTINGS:
            raise ValueError(f"{self.name}: has more than {MAX_SETTINGS} settings; this is no configuration")
        if isinstance(value, str) and len(value) > MAX_TEXT:
            raise ValueError(f"{self.name}: {key}: got {len(value)} characters, expected at most {MAX_TEXT}")
        self.unread.pop(key, None)
        self.values.pop(key, None)
        texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
        if any(re.search(r"\$[A-Za-z_{(]|`", text) for text in texts):
            self.unread[key] = " ".join(texts)
        else:
            self.values[key] = value

    def remove(self, key: str) -> None:
        """Take a setting or a section away; one that was not given is none there (``null``)."""
        inside = [name for name in (*self.values, *self.unread) if name == key or name.startswith(f"{key}.")]
        for name in inside:
            self.values.pop(name, None)
            self.unread.pop(name, None)
        if not inside:
            self.put(key, None)


def read(path: str, nested: bool, functions: Callable[[Source, str, str], None] | None) -> Source:
    """Read a file by its suffix: .yaml, .yml, .json, .sh, .py.

    With ``nested`` sections are joined by dots; without, only their first level is settings. ``functions`` reads the
    text of a Python file (and the name after a colon, ``grpo.py:general_ocr_sd3``); without it Python is refused.
    """
    name, _, chosen = path.partition(".py:")
    file = Path(name + ".py" if chosen else path)
    suffix = file.suffix.lower()
    source = Source(str(file))
    if suffix not in (".yaml", ".yml", ".json", ".sh", ".py") or (suffix == ".py" and functions is None):
        kinds = ".yaml, .json, .sh or .py" if functions else ".yaml, .json or .sh"
        raise ValueError(f"{file}: got a '{suffix}' file, expected {kinds}; flags stand behind --")
    text = text_of(file)
    if suffix in (".yaml", ".yml"):
        flatten(source, load_yaml(file), nested)
    elif suffix == ".json":
        flatten(source, json_of(text, file), nested)
    elif suffix == ".sh":
        from_script(source, text)
    elif functions is not None:
        functions(source, text, chosen)
    return source


def text_of(file: Path) -> str:
    """The text of a file that is regular, small enough and UTF-8."""
    if not file.is_file():
        problem = "is no regular file" if file.exists() else "no such file"
        raise FileNotFoundError(f"{file}: {problem}; 'mmgrpo migrate --help' shows what can be read")
    if (size := file.stat().st_size) > MAX_BYTES:
        raise ValueError(f"{file}: has {size:,} bytes, expected at most {MAX_BYTES:,}; this is no configuration")
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start + 1})") from error


def json_of(text: str, file: Path) -> dict[str, Any]:
    """The object of a JSON file; ValueError with the line for what is none, and for a key that occurs twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in pairs:
            if key in made:
                raise Twice(key[:100])
            made[key] = value
        return made

    try:
        section = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}, line {error.lineno}: not JSON: {error.msg} at column {error.colno}") from error
    except Twice as error:
        raise ValueError(f"{file}: the key '{error}' occurs twice; remove one of them") from error
    except (RecursionError, ValueError) as error:  # too deep; a number of thousands of digits
        raise ValueError(f"{file}: not JSON that can be read: {error}") from error
    if not isinstance(section, dict):
        raise ValueError(f"{file}: got a {type(section).__name__}, expected an object of settings")
    return section


class Twice(Exception):
    """A key that an object has twice."""


def flatten(source: Source, section: Mapping[Any, Any], nested: bool, prefix: str = "", depth: int = 0) -> None:
    """Put the settings of a section; those of inner sections with ``nested`` as ``section.key``."""
    if depth > MAX_DEPTH:
        raise ValueError(f"{source.name}: {prefix[:100]}: sections in more than {MAX_DEPTH} levels")
    for key, value in section.items():
        if not isinstance(key, str):
            raise ValueError(f"{source.name}: {prefix}{short_repr(key)}: got a key that is no text; quote it")
        if nested and isinstance(value, Mapping) and value:
            flatten(source, value, nested, f"{prefix}{key}.", depth + 1)
        else:
            is_number = isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d{1,3}", value)
            source.put(prefix + key, float(str(value)) if is_number else value)  # YAML 1.1 reads 1e-6 as text


# ---- words


def from_script(source: Source, text: str) -> None:
    """Put the settings of the one command of a shell script that starts a training."""
    command = command_of(text, source.name)
    if OTHER.search(command.program) and "grpo" not in command.program:
        raise ValueError(
            f"{source.name}: starts {command.program}, which is no group-relative training; give the script or "
            "configuration of one"
        )
    source.processes, source.program, source.launcher = command.processes, command.program, list(command.launcher)
    source.branches = dict(command.branches)
    for name, value in command.environment.items():
        if name in ("MAX_PIXELS", "MIN_PIXELS", "FPS", "FPS_MAX_FRAMES", "VIDEO_MAX_PIXELS"):
            source.put(name, plain(value))
    from_words(source, command.words)


def from_words(source: Source, words: Sequence[str]) -> None:
    """Put ``--key value``, ``--key=value``, ``--key v1 v2``, ``--switch`` and ``section.key=value``."""
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if re.fullmatch(r"--?[A-Za-z_][\w.\-]*(=.*)?", word, re.DOTALL):
            key, equals, value = word.lstrip("-").partition("=")
            values = [value] if equals else list(_values(queue))
            source.put(
                key.replace("-", "_").removeprefix("config.") if word.startswith("--") else key,
                True if not values else plain(values[0]) if len(values) == 1 else [plain(item) for item in values],
            )
        elif match := re.fullmatch(r"~([A-Za-z_][\w.@/]*)(=.*)?", word, re.DOTALL):  # hydra: without this setting
            source.remove(match[1])
        elif match := re.fullmatch(r"\+{0,2}([A-Za-z_][\w.@/]*)=(.*)", word, re.DOTALL):
            source.put(match[1], plain(unquote(match[2])))
        elif word in ("$@", "$*"):  # what the script itself is called with
            continue
        elif word.startswith("$"):
            source.unread[word[:100]] = "what the shell puts there"
        else:
            raise ValueError(f"{source.name}: got {short_repr(word)}, expected --key value or section.key=value")


def _values(queue: list[str]) -> Iterator[str]:
    """Take the words that follow a flag: a negative number is one of them, ``section.key=value`` and ``$@`` are not."""
    end = r"-[^\d.].*|\+{1,2}\w.*|[A-Za-z_]\w*(\.\w+)+=.*|\$[@*]"
    while queue and not re.fullmatch(end, queue[0], re.DOTALL):
        yield queue.pop(0)


def unquote(text: str) -> str:
    """A text without the quotes that hydra's overrides may have around a value."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def plain(text: str) -> Any:
    """The value that a word means: true, false, null, None, a number, JSON or YAML brackets, else the text itself, of
    which ``none`` is a choice of several settings."""
    words = {"true": True, "false": False, "null": None, "none": None}
    if text.lower() in words and text != "none":
        return words[text.lower()]
    if re.fullmatch(r"[+-]?\d{1,18}", text):
        return int(text)
    if re.fullmatch(NUMBER, text):
        return float(text)
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):  # OmegaConf's [a,b] has no quotes
            inner = text[1:-1] if text[:1] == "[" and text.endswith("]") else ""
            if inner and not set(inner) & set("[]{}"):
                return [plain(item.strip().strip("'\"")) for item in inner.split(",")]
            inner = text[1:-1].strip() if text[:1] == "{" and text.endswith("}") else ""
            if inner and not set(inner) & set("[]{}"):
                pairs = [item.partition(":") for item in inner.split(",")]
                if all(colon and key.strip() for key, colon, _ in pairs):
                    return {key.strip().strip("'\""): plain(word.strip().strip("'\"")) for key, _, word in pairs}
    return text


NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?"
"""A number in decimal; YAML 1.1 reads 1e-6, which has no dot, as text."""
