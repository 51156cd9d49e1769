"""Results of checkpoints: nothing is shown as passed that was not run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mmgrpo.report.validation import CHECKS, HEAD, Outcome, Validation, file_of, read_results, table, within, write

PASSED = [Outcome(name, "passed", measured=0.5, tolerance=0.5) for name in CHECKS]
RESULT = Validation("a/b", "sd3", "CPU, AVX2", "float32", "abc", {"torch": "2"}, {"model.lora_rank": 8}, PASSED)


def test_a_result_is_read_as_it_was_written(tmp_path):
    file = write(tmp_path / "new", RESULT)
    assert file.name == "a--b.json" and read_results(file.parent) == {"a/b": RESULT}
    assert file_of(tmp_path, "pypi:one-1").name == "pypi--one-1.json"


def test_what_was_not_run_replaces_no_result_and_is_written_where_there_is_none(tmp_path):
    none = replace(RESULT, outcomes=[Outcome(name, "not run", "offline") for name in CHECKS])
    write(tmp_path, none)
    assert read_results(tmp_path)["a/b"].status == "not run"
    write(tmp_path, RESULT)
    write(tmp_path, none)
    assert read_results(tmp_path)["a/b"].status == "passed"


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        (["passed", "skipped"], "passed"),
        (["passed", "not run"], "not run"),
        (["failed", "not run", "passed"], "failed"),
        (["skipped"], "skipped"),
        ([], "not run"),
    ],
)
def test_a_checkpoint_has_passed_if_all_that_concerns_it_was_run_and_passed(statuses, status):
    assert replace(RESULT, outcomes=[Outcome("loads", one) for one in statuses]).status == status


def test_every_published_checkpoint_is_in_the_table_and_not_run_without_a_result():
    rows = table({"a/b": RESULT, "x": replace(RESULT, checkpoint="x")}, {"c/d": "wan", "a/b": "sd3"})
    assert [row[:3] for row in rows] == [("c/d", "wan", "not run"), ("a/b", "sd3", "passed"), ("x", "sd3", "passed")]
    assert set(rows[0][3 : 3 + len(CHECKS)]) == {"not run"} and rows[1][3] == "passed (0.5)"
    assert {len(row) for row in rows} == {len(HEAD)}


@pytest.mark.parametrize(
    ("change", "message"),
    [({"measured": 0.6}, "0.6.*0.5"), ({"status": "fine"}, "fine"), ({"check": "looks"}, "looks"), ({"x": 1}, "x")],
)
def test_a_file_that_says_more_than_was_shown_is_refused(change, message, tmp_path):
    file = write(tmp_path, RESULT)
    content = json.loads(file.read_text())
    content["outcomes"][0] |= change
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"a--b\.json.*{message}"):
        read_results(tmp_path)


def test_what_is_not_a_number_is_within_no_tolerance():
    assert within(1.0, 1.0) and within(None, None) and not within(float("nan"), 1.0) and not within(1.1, 1.0)
