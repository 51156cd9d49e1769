"""Programs in Python with tests, run in a sandbox (``sandbox``; Linux).

    {"text": "Write square(x).", "task": "code",
     "answer": [{"call": "square", "arguments": [3], "expected": 9}, {"check": "assert square(-2) == 4"}]}
    {"text": "Read a number, print its square.", "task": "code", "answer": [{"input": "3", "output": "9"}]}

A test calls a function, or gives the program its standard input, and what comes back is compared outside of the
sandbox, where the program cannot reach it. ``check`` is a statement that runs after the program in its own process: a
program that means to can pass it without being right, e.g. by an object that equals everything; prefer the others.

The program is the last fenced block of the answer, or all of it. ``seconds`` of CPU time (2) and ``memory`` in MiB
(256) of a row hold for each of its tests.
"""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt, Text
from reward_models.rules import sandbox, verifier
from reward_models.rules.parsing import answer_in, malformed, meta_number, texts

LEVELS = {"syntax": -1.0, "error": -0.6, "limit": -0.6, "wrong": -0.3, "passed": 1.0}
"""The worst outcome of a program to its reward: CodeRL (arXiv:2207.01780), whose values B-Coder (arXiv:2310.03173)
takes; both from memory."""

_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)


@verifier(deterministic=False, check="reward_models.rules.sandbox:check")
def code(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the program passes all of its tests."""
    return float(all(result == "passed" for result in results(answer, prompt)))


@verifier(deterministic=False, check="reward_models.rules.sandbox:check")
def code_share(answer: str, prompt: Prompt, output: Text) -> float:
    """The fraction of its tests that the program passes."""
    outcomes = results(answer, prompt)
    return sum(outcome == "passed" for outcome in outcomes) / len(outcomes)


@reward(
    "Text",
    range=(-1, 1),
    reads=("answer",),
    deterministic=False,
    source="CodeRL, arXiv:2207.01780",
    check="reward_models.rules.sandbox:check",
)
def code_levels(prompts: Sequence[Prompt], outputs: Sequence[Output], tags: bool | str = True) -> list[float]:
    """-1 for a program that does not compile, -0.6 for one that fails with an error or a limit in any test, -0.3 for
    a wrong result in any, 1 if all tests pass (``LEVELS``)."""
    every = all_results(prompts, texts(outputs, "code_levels"), tags)
    return [min(LEVELS[outcome] for outcome in outcomes) for outcomes in every]


def program_in(answer: str) -> str:
    """The last fenced block of an answer, or all of it."""
    blocks = _FENCE.findall(answer)
    return blocks[-1] if blocks else answer


def all_results(prompts: Sequence[Prompt], rows: Sequence[Text], tags: bool | str) -> list[list[str]]:
    """The results of all rows, as many at a time as there are cores."""
    answers = [answer_in(text, prompt, tags) for prompt, text in zip(prompts, rows, strict=True)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(results, answers, prompts))


def results(answer: str, prompt: Prompt) -> list[str]:
    """One of ``LEVELS`` for each test. An empty answer is wrong in all of them."""
    tests = tests_of(prompt)
    program = program_in(answer)
    if not program.strip():
        return ["syntax"] * len(tests)
    token = secrets.token_hex(16)
    shown = [{key: value for key, value in test.items() if key not in ("expected", "output")} for test in tests]
    job = {"kind": "python", "code": program, "tests": [{**test, "token": token} for test in shown]}
    seconds, memory = int(meta_number(prompt, "seconds", 2)), int(meta_number(prompt, "memory", 256))
    if min(seconds, memory) < 1:
        malformed(prompt, "a whole number, at least 1", "meta.seconds" if seconds < 1 else "meta.memory")
    outcomes = sandbox.outcomes(job, seconds, memory)
    return [judge_test(outcome, test, token) for outcome, test in zip(outcomes, tests, strict=True)]


def judge_test(outcome: Mapping[str, Any], test: Mapping[str, Any], token: str) -> str:
    """The result of a test from what came back."""
    if outcome["status"] != "done":
        return outcome["status"]
    value = outcome.get("value")
    if "check" in test:
        right = value == token
    elif "call" in test:
        right = same(value, test["expected"])
    else:
        right = isinstance(value, str) and output_lines(value) == output_lines(test["output"])
    return "passed" if right else "wrong"


def output_lines(text: str) -> list[str]:
    """The lines of an output, without spaces at their ends and without empty lines at its own."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def same(value: Any, expected: Any) -> bool:
    """Whether two values of JSON are equal; numbers that are not whole up to a relative 1e-6 (ours)."""
    if isinstance(expected, list) and isinstance(value, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(expected, dict) and isinstance(value, dict):
        return value.keys() == expected.keys() and all(same(value[key], expected[key]) for key in expected)
    if isinstance(value, float) and isinstance(expected, int | float):
        return math.isclose(value, expected, rel_tol=1e-6, abs_tol=1e-9)
    return type(value) is type(expected) and value == expected


def tests_of(prompt: Prompt) -> list[dict[str, Any]]:
    """The tests of a row; an error that names it for what is none."""
    tests = prompt.answer
    if not isinstance(tests, list | tuple) or not tests or not all(map(_is_test, tests)):
        malformed(
            prompt,
            'a list of tests: {"call": name, "arguments": [...], "expected": ...}, {"input": text, "output": text} or '
            '{"check": statement}',
        )
    return [dict(test) for test in tests]


def _is_test(test: Any) -> bool:
    if not isinstance(test, Mapping):
        return False
    kinds = {"call": {"call", "arguments", "expected"}, "input": {"input", "output"}, "check": {"check"}}
    kind = next((kind for kind in kinds if isinstance(test.get(kind), str)), "")
    if not kind or test.keys() != kinds[kind]:
        return False
    return isinstance(test.get("output", ""), str) and isinstance(test.get("arguments", []), list | tuple)
