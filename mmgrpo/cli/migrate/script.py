"""The command of a shell script that starts a training, split into words without a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

PROGRAM = re.compile(r"(.*/)?[\w.\-]+\.py$|verl\.trainer\.\w+$|swift\.cli\.\w+$|trl\.scripts\.\w+$")
PAIRS = (("swift", "rlhf"), ("trl", "grpo"), ("megatron", "rlhf"))
"""Programs of two words."""

MAX_LINES = 500
"""Lines of one command."""


@dataclass
class Command:
    """One command."""

    program: str
    launcher: tuple[str, ...]
    """The words before the program."""
    words: tuple[str, ...]
    """The words after it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the script assigns to literals."""

    @property
    def processes(self) -> int:
        """Processes that it starts, by torchrun, accelerate or swift; 0 where it does not say."""
        per_node = self._number("nproc_per_node", "NPROC_PER_NODE")
        nodes = self._number("nnodes", "NNODES") or 1
        return per_node * nodes if per_node else self._number("num_processes")

    def _number(self, option: str, variable: str = "") -> int:
        words = [word.replace("-", "_") for word in self.launcher]
        for number, word in enumerate(words):
            name, equals, value = word.lstrip("_").partition("=")
            value = value if equals else "".join(words[number + 1 : number + 2])
            if name == option and re.fullmatch(r"\d{1,6}", value):
                return int(value)
        value = self.environment.get(variable, "")
        return int(value) if re.fullmatch(r"\d{1,6}", value) else 0


def command_of(text: str, name: str) -> Command:
    """The only command of a script that starts a training; ValueError where there is none, or several."""
    variables: dict[str, str] = {}
    found = []
    for line, words in commands(text, name):
        words = [substitute(word, variables) for word in words]
        while words and words[0] in ("export", "set", "env"):
            words = words[1:]
        while words and (match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", words[0], re.DOTALL)):
            variables[match[1]] = match[2]
            words = words[1:]
        start = next(
            (i for i, word in enumerate(words) if PROGRAM.fullmatch(word) or tuple(words[i : i + 2]) in PAIRS), None
        )
        if start is not None and not {"pip", "pip3", "cp", "git", "cat", "bash", "sh"} & set(words[:start]):
            end = start + (2 if tuple(words[start : start + 2]) in PAIRS else 1)
            found.append(
                (line, Command(" ".join(words[start:end]), tuple(words[:start]), tuple(words[end:]), variables))
            )
    if not found:
        raise ValueError(
            f"{name}: has no command that starts a training; expected swift rlhf, trl grpo or a .py script"
        )
    if len(found) > 1:
        places = ", ".join(str(line) for line, _ in found)
        raise ValueError(f"{name}: has {len(found)} commands that start something (lines {places}); leave one of them")
    return found[0][1]


def commands(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """The commands of a script, each with its line, as words without comments."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        first, command = number, ""
        while True:
            line = lines[number]
            number += 1
            joined = line.rstrip().endswith("\\") and not line.lstrip().startswith("#")
            command += line.rstrip()[:-1] + " " if joined else line + "\n"
            words = [] if joined else words_of(command)
            if words is not None and not joined:
                break
            if number == len(lines) or number - first > MAX_LINES:
                words = words_of(command)
                if words is None:
                    raise ValueError(f"{name}, line {first + 1}: a quote is opened and not closed")
                break
        part: list[str] = []
        for word in [*words, ";"]:
            if word and not word.strip(";&|"):
                if part:
                    yield first + 1, part
                part = []
            else:
                part.append(word)


def words_of(command: str) -> list[str] | None:
    """The words of a command; None where a quote is open at its end."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return None


def substitute(word: str, variables: Mapping[str, str]) -> str:
    """A word in which variables that the script assigned to a text are that text; nothing else is expanded."""

    def value(match: re.Match[str]) -> str:
        return variables.get(match[1] or match[2], match[0])[:10_000]

    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, word)
