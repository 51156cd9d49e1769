"""The comparison of a policy that judges itself with one that only answers: its world, its table, and a run of it."""

from __future__ import annotations

import json

import pytest

from benchmarks import judging
from benchmarks.judging import ARMS, Args, answers, judgements, lists, page


def test_lists_of_the_splits_are_disjoint_and_their_answers_are_right():
    splits = [{*map(tuple, lists(name, 200))} for name in ("train", "tune", "heldout")]
    assert sum(map(len, splits)) == len(set().union(*splits)) == 600
    for row in answers("tune", 20):
        assert row["answer"] == max(row["text"].split()[1:])
    asked = judgements("heldout", 40)
    for row in asked:
        *listed, proposed = row["text"].removeprefix("largest ").removesuffix(" right").replace("answer ", "").split()
        assert proposed in listed and row["answer"] == ("yes" if proposed == max(listed) else "no")
    assert [row["answer"] for row in asked].count("yes") == 20


def test_a_line_of_the_page_has_both_figures_with_the_intervals_of_their_differences():
    one = {"arm": "verdicts", "seed": 0, "seconds": 3.0, "answers before": [0.0, 0.0], "answers after": [1.0, 1.0]}
    one |= {"judgements before": [1.0, 1.0], "judgements after": [0.5, 0.5]}
    last = page([one], "m", "c")[-1]
    assert last == (
        "| verdicts | 0 | 0.000 to 1.000 | +1.000 [+1.000, +1.000] | 1.000 to 0.500 | -0.500 [-0.500, -0.500] | 3 |"
    )


@pytest.mark.nightly
def test_every_run_trains_and_is_measured(tmp_path):
    judging.run(Args(seeds=1, steps=2, output=str(tmp_path)), "m", "c")
    runs = json.loads((tmp_path / "judging.json").read_text())["runs"]
    assert [one["arm"] for one in runs] == [*ARMS]
    assert all(len(one["judgements after"]) == len(one["answers after"]) == 400 for one in runs)
    assert (tmp_path / "judging.md").is_file()
