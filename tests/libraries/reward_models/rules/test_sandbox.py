"""Programs and queries of a model compute, and can do nothing else; their tests count as the rewards say."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace

import pytest

from mmgrpo.rewards import scorer
from mmgrpo.types import Prompt, Text
from reward_models import REWARDS
from reward_models.rules import groups, programs, queries, sandbox
from reward_models.rules.single import reward

pytestmark = pytest.mark.skipif(bool(sandbox.obstacle()), reason=sandbox.obstacle())


def outcome(code: str, seconds: int = 2, memory: int = 256, **test: object) -> dict:
    [one] = sandbox.outcomes({"kind": "python", "code": code, "tests": [test or {"input": ""}]}, seconds, memory)
    return one


# ---- what a program may not do


@pytest.mark.parametrize(
    "attempt",
    [
        "open('/etc/hostname')",
        "open('{folder}/new', 'w')",
        "os.listdir('/')",
        "os.remove('{folder}/kept')",
        "os.fork()",
        "os.execv('/bin/true', ['true'])",
        "os.posix_spawn('/bin/true', ['true'], dict())",
        "os.kill(os.getppid(), 9)",
        "os.pipe()",
        "os.setuid(0)",
        "time.sleep(60)",
        "resource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
        "print(os.environ['HOME'])",
    ],
)
def test_files_processes_signals_and_limits_are_refused(attempt, tmp_path):
    (tmp_path / "kept").write_text("kept")
    one = outcome(f"import os, time, resource\n{attempt.format(folder=tmp_path)}")
    assert one["status"] == "error" and one["what"].split(":")[0] in ("PermissionError", "KeyError", "ValueError")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("module", ["socket", "_socket", "subprocess", "threading", "numpy", "torch"])
def test_connections_threads_and_packages_are_not_there(module):
    assert (
        "ModuleNotFoundError" in outcome(f"import {module}")["what"] or "Error" in outcome(f"import {module}")["what"]
    )


@pytest.mark.parametrize("call", ["socket", "fork", "connect"])
def test_the_kernel_refuses_what_goes_past_python(call):
    """libc's own functions fail too, whoever calls them."""
    code = f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nprint(libc.{call}(2, 1, 0), ctypes.get_errno())"
    assert outcome(code)["value"] == "-1 1\n"


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("while True: pass", "time"),
        ("x = 'a' * 10**9", "memory"),
        ("print('a' * 10**7)", "size"),
        ("import signal, os\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass", "time"),
    ],
)
def test_time_memory_and_output_are_bounded(code, what):
    one = outcome(code, seconds=1)
    assert one["status"] == "limit" and what in one["what"]


def test_a_program_that_writes_its_own_outcome_gains_nothing():
    """It may say anything through the pipe, but not what the test expects, which it never sees."""
    forged = 'import os\nos.write({}, b\'{{"status": "unconfined"}}\')\nos._exit(0)'
    for number in range(3, 12):
        assert outcome(forged.format(number))["status"] in ("error", "limit")
    whole = "import sys, gc\nprint([one for one in gc.get_objects() if isinstance(one, dict) and 'expected' in one])"
    test = {"call": "f", "arguments": [], "expected": 7}
    assert programs.results(whole + "\ndef f(): return 8", Prompt("", answer=[test])) == ["wrong"]


@pytest.mark.parametrize("program", ["/bin/false", "/bin/true"])
def test_a_sandbox_that_ends_without_outcomes_is_a_failure_and_no_score(program, monkeypatch):
    monkeypatch.setattr(sandbox, "sys", SimpleNamespace(executable=program))
    with pytest.raises(RuntimeError, match="sandbox"):
        sandbox.outcomes({"kind": "python", "code": "", "tests": [{"input": ""}]})


def test_a_machine_without_a_sandbox_is_refused_before_the_run(monkeypatch):
    monkeypatch.setattr(sandbox.platform, "machine", lambda: "riscv64")
    sandbox.obstacle.cache_clear()
    with pytest.raises(ValueError, match="rewards: .*riscv64"):
        sandbox.check()
    monkeypatch.undo()
    sandbox.obstacle.cache_clear()
    assert {name for name, entry in REWARDS.items() if "sandbox" in entry.check} == {
        *("code", "code_share", "code_levels", "sql", "sql_partial")
    }


# ---- tests of programs

SQUARE = [{"call": "square", "arguments": [3], "expected": 9}, {"call": "square", "arguments": [-2], "expected": 4}]


@pytest.mark.parametrize(
    ("code", "share", "level"),
    [
        ("def square(x): return x * x", 1, 1),
        ("```python\ndef square(x):\n    return x * x\n```", 1, 1),
        ("def square(x): return x * abs(x)", 0.5, -0.3),
        ("def square(x): return 9 // (x > 0)", 0.5, -0.6),
        ("def square(x) return x", 0, -1),
        ("", 0, -1),
    ],
)
def test_a_program_is_worth_its_tests(code, share, level):
    prompt, text = Prompt("", answer=SQUARE), Text(code)
    assert reward("code_share")([prompt], [text], tags=False) == [share]
    assert reward("code")([prompt], [text], tags=False) == [float(share == 1)]
    assert programs.code_levels([prompt], [text], tags=False) == [level]


@pytest.mark.parametrize(
    ("test", "code", "result"),
    [
        ({"input": "3\n4", "output": "7"}, "print(int(input()) + int(input()), ' ')", "passed"),
        ({"input": "3", "output": "9"}, "print(3)", "wrong"),
        ({"input": "", "output": "1"}, "print(1)\nexit()", "passed"),
        ({"check": "assert f() == 1"}, "def f(): return 1", "passed"),
        ({"check": "assert f() == 1"}, "def f(): return 2", "wrong"),
        ({"check": "assert f() == 1"}, "import sys\nsys.exit(0)", "error"),
        ({"call": "f", "arguments": [], "expected": 1}, "def f(): return True", "wrong"),
        ({"call": "f", "arguments": [], "expected": [1, 2]}, "def f(): return (1, 2)", "passed"),
        ({"call": "f", "arguments": [], "expected": 0.3}, "def f(): return 0.1 + 0.2", "passed"),
        ({"call": "f", "arguments": [], "expected": {"a": 1}}, "def f(): return {'a': 1}", "passed"),
        ({"call": "f", "arguments": [], "expected": 1}, "class A:\n  __eq__ = lambda *a: True\nf = A", "wrong"),
    ],
)
def test_kinds_of_tests(test, code, result):
    assert programs.results(code, Prompt("", answer=[test])) == [result]


@pytest.mark.parametrize("answer", [[], "x", [{"call": "f"}], [{"input": 3, "output": "9"}], [{"check": 1}], None])
def test_what_is_no_test_names_the_row(answer):
    with pytest.raises(ValueError, match=r"'row-7'.*list of tests"):
        programs.tests_of(Prompt("", id="row-7", answer=answer))


def test_tests_that_few_pass_weigh_more_and_equal_ones_share_a_weight():
    # exp(-2) / 2, exp(-2) / 2, exp(-.4)
    assert groups.density_weights([1, 1, 0.2], 2, 0.1, 0) == pytest.approx([0.06767, 0.06767, 0.67032], abs=1e-5)
    alone, doubled = groups.density_weights([1, 0.2], 2, 0.1, 0), groups.density_weights([1, 1, 0.2], 2, 0.1, 0)
    assert alone[0] == pytest.approx(sum(doubled[:2])) and alone[1] == pytest.approx(doubled[2])
    flat = groups.density_weights([0.5] * 4, 0, 0.1, 0)
    assert flat == pytest.approx([0.25] * 4)  # no test is harder: the fraction passed
    assert groups.density_weights([0.5] * 4, 0, 0.1, 1) == pytest.approx([1 / (4 + 1)] * 4)


def test_the_weights_of_tests_are_those_of_the_group():
    """Of two members one passes both tests: rates 1 and 1/2, far apart, so exp(-2) and exp(-1)."""
    prompts = [Prompt("", id="a", answer=SQUARE)] * 2
    texts = [Text("def square(x): return x * x"), Text("def square(x): return 9")]
    values = groups.code_weighted(prompts, texts, alpha=2, sigma=0.1, delta=0, tags=False)
    assert values == pytest.approx([0.13534 + 0.36788, 0.13534], abs=1e-4)
    for given, problem in (("sigma=1", "delta"), ("sigma=0, delta=0", "sigma=0"), ("sigma=1, delta=-1", "delta=-1")):
        with pytest.raises(ValueError, match=f"code_weighted.*{problem}"):
            scorer(f"code_weighted(alpha=1, {given})")


# ---- queries

SCRIPT = "CREATE TABLE t (name, age); INSERT INTO t VALUES ('ann', 3), ('bob', 5), ('eve', 5);"


def row(gold: str, **more: object) -> Prompt:
    return Prompt("", id="row-7", answer=gold, meta={"script": SCRIPT, **more})


@pytest.mark.parametrize(
    ("gold", "query", "right"),
    [
        ("SELECT name FROM t", "select t.name from t order by age desc", 1),
        ("SELECT name FROM t ORDER BY age, name", "select name from t order by age desc, name", 0),
        ("SELECT age FROM t", "SELECT DISTINCT age FROM t", 0),
        ("SELECT count(*) FROM t", "```sql\nSELECT 3;\n```", 1),
        ("SELECT count(*) FROM t", "SELECT 3; SELECT 3", 0),
        ("SELECT count(*) FROM t", "DELETE FROM t RETURNING 3", 0),
        ("SELECT count(*) FROM t", "", 0),
    ],
)
def test_a_query_is_right_if_it_has_the_rows_of_the_gold_one(gold, query, right):
    assert reward("sql")([row(gold)], [Text(query)], tags=False) == [right]


@pytest.mark.parametrize(
    "query",
    [
        *("DROP TABLE t", "INSERT INTO t VALUES (1, 2)", "UPDATE t SET age = 0", "CREATE TABLE u (a)"),
        *("ATTACH '{folder}/new' AS u", "VACUUM INTO '{folder}/new'", "PRAGMA table_info(t)", "BEGIN"),
        *("SELECT load_extension('x')", "SELECT * FROM pragma_database_list"),
    ],
)
def test_a_query_only_reads_and_the_file_stays_as_it_was(query, tmp_path):
    with sqlite3.connect(tmp_path / "a.sqlite") as made:
        made.executescript(SCRIPT)
    made.close()
    before = (tmp_path / "a.sqlite").read_bytes()
    found = queries.run(query.format(folder=tmp_path), str(tmp_path / "a.sqlite"), "", (2, 256))
    assert found.rows is None and found.problem
    assert (tmp_path / "a.sqlite").read_bytes() == before and len(list(tmp_path.iterdir())) == 1
    assert queries.run("SELECT count(*) FROM t", str(tmp_path / "a.sqlite"), "", (2, 256)).rows == [[3]]


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT {} FROM c"


@pytest.mark.parametrize(
    ("query", "what"),
    [(ENDLESS.format("count(*)"), "time"), (ENDLESS.format("x"), "rows"), ("SELECT zeroblob(1000000000)", "memory")],
)
def test_time_rows_and_memory_of_a_query_are_bounded(query, what):
    found = queries.run(query, "", SCRIPT, (1, 256))
    assert found.rows is None and what in found.problem


def test_partial_credit_adds_what_is_right():
    """Columns {name} of {name, age}: 1/2. Pairs of words: SELECT-name, name-FROM and FROM-t, of those and four more."""
    prompt = row("SELECT name FROM t WHERE age = 3")
    queries_of = ("SELECT name FROM t WHERE age = 3;", "SELECT name FROM t", "SELECT x", "")
    values = reward("sql_partial")([prompt] * 4, [Text(query) for query in queries_of], tags=False)
    assert values == [3 + 1 + 1 + 1, 0 + 1 + 1 / 2 + 3 / 7, 0, 0]
    assert queries.jaccard(frozenset("ab"), frozenset("bc")) == 1 / 3  # neither holds the other


@pytest.mark.parametrize("change", [{"script": ""}, {"database": "x.sqlite"}, {"script": "", "database": "/no.sqlite"}])
def test_a_row_names_its_database(change):
    with pytest.raises(ValueError, match=r"'row-7'.*meta.database"):
        reward("sql")([row("SELECT 1", **change)], [Text("SELECT 1")], tags=False)


def test_a_gold_query_that_fails_names_the_row():
    with pytest.raises(ValueError, match=r"'row-7'.*no such column: x"):
        reward("sql")([row("SELECT x FROM t")], [Text("SELECT 1")], tags=False)
