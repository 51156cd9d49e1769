"""Queries of SQL, run on SQLite in a sandbox that can only read (``sandbox``; Linux).

    {"text": "How many singers?", "task": "sql", "answer": "SELECT count(*) FROM singer",
     "database": "/data/spider/concert_singer.sqlite"}
    {"text": "...", "task": "sql", "answer": "SELECT ...", "script": "CREATE TABLE t (a); INSERT INTO t VALUES (1);"}

``database`` is a file of SQLite, which is opened read-only and must not change during the run; ``script`` makes one in
memory. One statement that only reads is run; writing, attaching, pragmas and extensions are refused. Results are equal
if they hold the same rows, each as often, whatever the names of columns; the order counts where the gold query has an
ORDER BY of its own. ``seconds`` of CPU time (2) and ``memory`` in MiB (256) bound a query, and a result has at most
``MOST`` rows.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from mmgrpo.types import Prompt, Text
from reward_models.rules import sandbox, verifier
from reward_models.rules.parsing import gold_text, malformed, meta_number
from reward_models.rules.programs import program_in

MOST = 100_000
"""Rows of a result; a query with more has failed."""

WEIGHTS = {"execution": 3.0, "syntax": 1.0, "schema": 1.0, "words": 1.0}
"""Reasoning-SQL (arXiv:2503.23157), read from a third party's code. Its judge has weight 2, its format 1."""

_TOKEN = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|[\w.]+|[^\w\s]")


class Result(NamedTuple):
    """What came of a query: its rows, or None where it failed, the (table, column) pairs that it reads, and why."""

    rows: list[list[Any]] | None
    items: frozenset[tuple[str, str]]
    problem: str


@verifier(
    reads=("answer", "meta.database", "meta.script"), deterministic=False, check="reward_models.rules.sandbox:check"
)
def sql(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the query has the result of the gold query."""
    gold, result = both(answer, prompt)
    return float(equal(result.rows, gold.rows, is_ordered(gold_text(prompt))))


@verifier(
    range=(0, 6),
    reads=("answer", "meta.database", "meta.script"),
    deterministic=False,
    source="Reasoning-SQL, arXiv:2503.23157",
    check="reward_models.rules.sandbox:check",
)
def sql_partial(answer: str, prompt: Prompt, output: Text) -> float:
    """3 for the result of the gold query + 1 for running at all + the Jaccard index of the columns that both read +
    that of their pairs of neighbouring words: at most 6 (``WEIGHTS``); 0 for an empty answer.

    A wrong result that runs, half of the columns, .4 of the pairs: 0 + 1 + .5 + .4 = 1.9. Which columns a query reads
    says SQLite, before it runs. A right query has at least 4, a wrong one at most 3. Reasoning-SQL's reward without its
    judge is ``[sql_partial, format]``.
    """
    gold, result = both(answer, prompt)
    query = program_in(answer)
    if not query.strip():
        return 0.0
    parts = {
        "execution": float(equal(result.rows, gold.rows, is_ordered(gold_text(prompt)))),
        "syntax": float(result.rows is not None),
        "schema": jaccard(result.items, gold.items),
        "words": jaccard(pairs(query), pairs(gold_text(prompt))),
    }
    return sum(WEIGHTS[name] * value for name, value in parts.items())


def both(answer: str, prompt: Prompt) -> tuple[Result, Result]:
    """The results of the gold query and of that of an answer; an error that names the row if the gold one fails."""
    path, script = prompt.meta.get("database", ""), prompt.meta.get("script", "")
    if not isinstance(path, str) or not isinstance(script, str) or bool(path) == bool(script):
        malformed(prompt, "either meta.database, a file, or meta.script, statements of SQL", "meta.database")
    if path and not Path(path).is_file():
        malformed(prompt, "a file of SQLite that exists", "meta.database")
    limits = int(meta_number(prompt, "seconds", 2)), int(meta_number(prompt, "memory", 256))
    if min(limits) < 1:
        malformed(prompt, "a whole number, at least 1", "meta.seconds" if limits[0] < 1 else "meta.memory")
    gold = _run_once(gold_text(prompt), str(Path(path).resolve()) if path else "", script, limits)
    if gold.rows is None:
        malformed(prompt, f"a query that runs, and this one does not ({gold.problem})")
    query = program_in(answer).strip()
    if not query:
        return gold, Result(None, frozenset(), "empty")
    return gold, run(query, str(Path(path).resolve()) if path else "", script, limits)


def run(query: str, database: str, script: str, limits: tuple[int, int]) -> Result:
    """Run one query in the sandbox."""
    job = {"kind": "sqlite", "query": query, "database": database, "script": script, "rows": MOST}
    [outcome] = sandbox.outcomes(job, *limits)
    items = frozenset((table, column) for table, column in outcome.get("items", ()))
    return Result(outcome["rows"] if outcome["status"] == "done" else None, items, outcome.get("what", ""))


@lru_cache(maxsize=1024)
def _run_once(query: str, database: str, script: str, limits: tuple[int, int]) -> Result:
    return run(query, database, script, limits)


def is_ordered(query: str) -> bool:
    """Whether a query has an ORDER BY outside of parentheses and quotation marks."""
    plain = re.sub(r"'(?:[^']|'')*'|\"[^\"]*\"", "''", query)
    while (inner := re.sub(r"\([^()]*\)", " ", plain)) != plain:
        plain = inner
    return re.search(r"\border\s+by\b", plain, re.IGNORECASE) is not None


def equal(rows: list[list[Any]] | None, gold: list[list[Any]] | None, in_order: bool) -> bool:
    """Whether two results are the same; numbers to 9 digits, so no order of additions matters (ours)."""
    if rows is None or gold is None or len(rows) != len(gold):
        return False
    mine, theirs = ([tuple(map(_value, row)) for row in several] for several in (rows, gold))
    return mine == theirs if in_order else Counter(mine) == Counter(theirs)


def _value(value: Any) -> Any:
    if isinstance(value, float) and math.isfinite(value):
        value = float(f"{value:.9g}")
    return value


def jaccard(first: frozenset[Any], other: frozenset[Any]) -> float:
    """Common / all; 1 if both are empty."""
    return len(first & other) / len(first | other) if first | other else 1.0


def pairs(query: str) -> frozenset[tuple[str, str]]:
    """Neighbouring words and signs of a query, names in small letters."""
    tokens = [token if token[0] == "'" else token.lower() for token in _TOKEN.findall(query.strip().rstrip(";"))]
    return frozenset(pairwise(tokens))
