"""The command of a shell script that starts a training, split into words without a shell."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from mmgrpo.cli.migrate.expressions import Unread, value

Variables: TypeAlias = "dict[str, str | tuple[str, ...]]"
"""Variables of a script by name: a text, or the items of an array."""

PROGRAM = re.compile(r"(.*/)?[\w.\-]+\.py$|verl\.trainer\.\w+$|swift\.cli\.\w+$|trl\.scripts\.\w+$")
PAIRS = (("swift", "rlhf"), ("trl", "grpo"), ("megatron", "rlhf"))
"""Programs of two words."""

LIKELY = re.compile(r"(swift|megatron) rlhf|trl grpo|verl\.trainer|swift\.cli|trl\.scripts|train|grpo")
"""Programs that train, where a script also starts others, such as one that prepares data."""

NOT_TRAINING = {"pip", "pip3", "cp", "git", "cat", "bash", "sh", "echo", "wget", "curl", "chmod", "ls", "rm", "sbatch"}
"""Commands whose words may be the name of a training script."""

MAX_LINES = 500
"""Lines of one command."""

WORDS = r"[\s'\"`\\;&|#]"
"""What ends a word, or quotes."""

COMMENT = re.compile(r"""((?<![^\s;&|(])#[^\n]*)|'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s;&|('"\\]+|.""", re.DOTALL)
"""A comment, as its group; or what is none: a quoted text, an escaped character, letters of a word, another one."""

PARENTHESES = {1: "(", 2: ")"}
"""Stand-ins of parentheses that are part of a word."""

MAX_BRANCHES = 50
"""Branches and loops within each other."""

MAX_WORDS = 5_000
"""Words of one command, once arrays are filled in."""

MAX_VALUE = 10_000
"""Characters of one word once variables are filled in."""


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
    branches: Mapping[str, int] = field(default_factory=dict)
    """Variables that a branch or a loop assigns, which holds there only, and the line."""

    @property
    def processes(self) -> int:
        """Processes that it starts, by torchrun, accelerate or swift; 0 where it does not say."""
        per_node = self._number("nproc_per_node", "NPROC_PER_NODE")
        nodes = self._number("nnodes", "NNODES") or 1
        return per_node * nodes if per_node else self._number("num_processes") or self._number("num_gpus")

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
    """The command of a script that starts a training; ValueError where there is none, or several that may be it.

    Variables, arrays and ``${NAME:-default}`` are filled in where the script sets them to a text. What is set inside of
    ``if``, ``case`` and loops holds there only, since nothing is executed; ``Command.branches`` names it.
    """
    scopes: list[Variables] = [{}]
    candidates: list[tuple[int, Command]] = []
    branches: dict[str, int] = {}
    for line, words in commands(text, name):
        words = follow(words, scopes)
        if len(scopes) > MAX_BRANCHES:
            raise ValueError(f"{name}, line {line}: got branches in more than {MAX_BRANCHES} levels")
        words = [piece for word in words for part in split_array(word) for piece in expand(part, scopes[-1])]
        if len(words) > MAX_WORDS:
            raise ValueError(
                f"{name}, line {line}: got {len(words):,} words in a command, expected at most {MAX_WORDS:,}"
            )
        while words and words[0] in ("export", "set", "env", "local", "declare", "readonly"):
            words = words[1:]
        assigned: list[str] = []
        while words and (match := re.fullmatch(r"([A-Za-z_]\w*)(\+?)=(.*)", words[0], re.DOTALL)):
            variable, added, value = match.groups()
            assigned.append(variable)
            if value.startswith("("):
                items, words = array(value, words[1:])
                before = scopes[-1].get(variable) if added else ()
                scopes[-1][variable] = (*(before if isinstance(before, tuple) else ()), *items)
            else:
                before = scopes[-1].get(variable, "") if added else ""
                scopes[-1][variable] = f"{before}{value}"[:MAX_VALUE] if isinstance(before, str) else value
                words = words[1:]
        if len(scopes) > 1 and not words:
            branches |= {variable: line for variable in assigned if variable not in branches}
        start = next(
            (i for i, word in enumerate(words) if PROGRAM.fullmatch(word) or tuple(words[i : i + 2]) in PAIRS), None
        )
        if start is not None and not NOT_TRAINING & set(words[:start]):
            end = start + (2 if tuple(words[start : start + 2]) in PAIRS else 1)
            texts = {key: value for key, value in scopes[-1].items() if isinstance(value, str)}
            rest = tuple(without_redirections(words[end:]))
            candidates.append((line, Command(" ".join(words[start:end]), tuple(words[:start]), rest, texts, branches)))
    if not candidates:
        raise ValueError(
            f"{name}: has no command that starts a training; expected swift rlhf, trl grpo or a .py script"
        )
    likely = [candidate for candidate in candidates if LIKELY.search(candidate[1].program)]
    if len(candidates) > 1 and len(likely) != 1:
        places = ", ".join(str(line) for line, _ in candidates)
        raise ValueError(
            f"{name}: has {len(candidates)} commands that start something (lines {places}); leave one of them"
        )
    return (likely if len(likely) == 1 else candidates)[0][1]


def follow(words: list[str], scopes: list[Variables]) -> list[str]:
    """The words of a command without those that open, continue or close a branch, which change ``scopes``."""
    while words:
        first = words[0]
        if first in ("if", "case", "for", "while", "until", "select"):
            scopes.append(dict(scopes[-1]))
            if first in ("for", "select", "case"):
                return []
        elif first in ("fi", "esac", "done"):
            if len(scopes) > 1:
                scopes.pop()
        elif first in ("else", "elif"):
            if len(scopes) > 1:
                scopes[-1] = dict(scopes[-2])
        elif len(scopes) > 1 and len(words) > 1 and re.fullmatch(r"\(?[^()$=]*\)", first):  # gpu) of a case
            scopes[-1] = dict(scopes[-2])
        elif first not in ("then", "do", "{", "}", "time", "exec", "nohup"):
            break
        words = words[1:]
    return words


def split_array(word: str) -> list[str]:
    """``NAME=(a`` as ``NAME=(`` and ``a``, so each item of an array is a word."""
    match = re.fullmatch(r"([A-Za-z_]\w*\+?=\()(.+)", word, re.DOTALL)
    return [match[1], match[2]] if match else [word]


def expand(word: str, variables: Variables) -> list[str]:
    """The words that a word becomes: a variable alone that holds several overrides or flags is as many."""
    several = substitute(word, variables)
    if re.fullmatch(r"\$\{?\w+\}?", word) and len(several) == 1 and re.search(r"\s", several[0].strip()):
        if re.match(r"\s*(--?[A-Za-z]|[+~]{0,2}[\w.@/]+=)", several[0]):
            return words_of(several[0].replace("\n", " ")) or several
    return several


def array(first: str, rest: list[str]) -> tuple[list[str], list[str]]:
    """The items of ``(a b c)``, whose first word is ``(a``, and the words behind it."""
    items: list[str] = []
    depth = 0
    for number, word in enumerate([first, *rest]):
        depth += word.count("(") - word.count(")")
        text = word[1:] if not number else word
        text = text[:-1] if depth <= 0 else text
        items += [text] if text else []
        if depth <= 0:
            return items, rest[number:]
    return items, []


def without_redirections(words: list[str]) -> Iterator[str]:
    """Words without ``> file``, ``2>/dev/null`` and the like."""
    skip = False
    for word in words:
        if re.fullmatch(r"\d?(>{1,2}|<)", word):
            skip = True
        elif skip:
            skip = False
        elif not re.match(r"\d?>|<", word):
            yield word


def commands(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """The commands of a script, each with its line, as words without comments. An array is one command."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        first, command = number, ""
        while True:
            line = lines[number]
            number += 1
            joined = line.rstrip().endswith("\\") and not line.lstrip().startswith("#")
            command += line.rstrip()[:-1] + " " if joined else line + "\n"
            inside = number < len(lines) and number - first <= MAX_LINES and ")" not in line
            if not joined and inside and re.search(r"^\s*[A-Za-z_]\w*\+?=\([^)]*$", command):
                continue  # of an array, whose words are split once it is closed
            words = [] if joined else words_of(command)
            if words is not None and not joined and not is_open(words):
                break
            if number == len(lines) or number - first > MAX_LINES:
                words = words_of(command)
                if words is None:
                    raise ValueError(f"{name}, line {first + 1}: a quote is opened and not closed")
                break
        here = [word for word in words if word.startswith("<<") and not word.startswith("<<<")]
        if here:  # a text up to a line of its own
            end = here[0].lstrip("<-") or next(iter(words[words.index(here[0]) + 1 :]), "")
            while number < len(lines) and lines[number].strip() != end:
                number += 1
            number += 1
        part: list[str] = []
        for word in [*words, ";"]:
            if word and not word.strip(";&|"):
                if part:
                    yield first + 1, part
                part = []
            else:
                part.append(word)


def is_open(words: Sequence[str]) -> bool:
    """Whether the words end inside of ``NAME=( ...``."""
    start = next((i for i, word in enumerate(words) if re.match(r"[A-Za-z_]\w*\+?=\(", word)), None)
    text = "" if start is None else "".join(words[start:])
    return text.count("(") > text.count(")")


def one_word(command: str) -> str:
    """A command in which each ``$(...)`` and ``$((...))`` is part of one word, and its parentheses are no others."""
    made, place = [], 0
    while (start := command.find("$(", place)) >= 0:
        depth, end = 0, start + 1
        while end < min(len(command), start + MAX_VALUE):
            depth += {"(": 1, ")": -1}.get(command[end], 0)
            end += 1
            if not depth:
                break
        if depth:
            break
        inside = command[start + 2 : end - 1]
        is_sum = inside.startswith("(") and inside.endswith(")")
        inside = "".join(inside.split()) if is_sum else re.sub(WORDS, "_", inside)
        made += [command[place:start], "$\x01", inside.replace("(", "\x01").replace(")", "\x02"), "\x02"]
        place = end
    return "".join([*made, command[place:]])


def words_of(command: str) -> list[str] | None:
    """The words of a command; None where a quote is open at its end.

    As in a shell a comment begins where a word would: the mark in ``NuminaMath-TIR#1000`` is part of the word, while
    ``shlex`` would drop it and all that follows.
    """
    text = COMMENT.sub(lambda match: "" if match[1] else match[0], one_word(command))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return [word.translate(PARENTHESES) for word in lexer]
    except ValueError:
        return None


def substitute(word: str, variables: Mapping[str, str | tuple[str, ...]]) -> list[str]:
    """A word in which variables that the script assigned to a text are that text, as words: ``${NAME[@]}`` is as many
    as the array has. ``${NAME:-default}`` is the default where the script assigns nothing, and sums and products of
    whole numbers are computed; nothing else is expanded."""
    if (match := re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", word)) and isinstance(several := variables.get(match[1]), tuple):
        return list(several)

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        known = variables.get(name, os.environ.get(name) if name in ("HOME", "USER", "PWD") else None)
        if isinstance(known, str) and (known or not match[3]):
            return known
        return match[4] if match[3] and match[4] is not None and not isinstance(known, tuple) else match[0]

    text = word
    for _ in range(5):  # a default may hold a variable
        changed = re.sub(r"\$(?:(\w+)|\{(\w+)(?:(:?[-=])([^{}]*))?\})", value, text)[:MAX_VALUE]
        if changed == text:
            break
        text = changed
    return [re.sub(r"\$\(\((.{1,200}?)\)\)(?!\))", lambda match: compute(match, variables), text)]


def compute(match: re.Match[str], variables: Mapping[str, str | tuple[str, ...]]) -> str:
    """``$((...))`` of whole numbers and variables, whose division is whole; as it is where it is anything else."""
    text = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\}?", lambda name: str(variables.get(name[1], name[0])), match[1])
    try:
        result = value(ast.parse(text.replace("/", "//"), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError, Unread):
        return match[0]
    return str(result) if type(result) is int else match[0]
