"""What is told of evaluations: sections of summary.json, and error rates of whole files."""

from __future__ import annotations

import json
import math

import pytest

from mmgrpo.evaluation import ErrorCounts, Evaluation, annotate, compare_rates, draw, sections, split_title, title_of
from mmgrpo.policies.categorical import CategoricalPolicy
from mmgrpo.scoring import Scorer
from mmgrpo.types import Prompt, Text
from tests.speaking import TableModel, table_prompts


def test_an_error_rate_divides_all_errors_by_all_units():
    before = ErrorCounts([2.0, 0.0, 1.0, math.nan], [4.0, 4.0, 2.0, 9.0])
    after = ErrorCounts([1.0, 0.0, 1.0, 0.0], [4.0, 4.0, 2.0, 9.0])
    found = compare_rates(before, after)
    # (2 + 0 + 1) / (4 + 4 + 2); the mean of 2/4, 0/4 and 1/2 would be 1/3. What was not scored counts on no side.
    assert found["before"]["mean"] == pytest.approx(0.3) and found["after"]["mean"] == pytest.approx(0.2)
    assert found["difference"]["mean"] == pytest.approx(-0.1) and found["relative"] == pytest.approx(-1 / 3)
    # The worst resample of the difference has the first prompt only: -1/4; the best has none of it.
    assert (found["difference"]["low"], found["difference"]["high"]) == (-0.25, 0.0)
    assert found["errors"] == {"before": 3, "after": 2} and (found["units"], found["difference"]["n"]) == (10, 3)


def test_a_rate_that_was_nought_has_no_relative_change_and_one_without_units_is_not_told():
    assert compare_rates(ErrorCounts([0.0], [3.0]), ErrorCounts([1.0], [3.0]))["relative"] is None
    silent = Evaluation({"reward": [1.0]}, {"wer": ErrorCounts([0.0], [0.0])})
    assert sections({"heldout": silent}, {"heldout": silent}).keys() == {"eval"}


def test_the_sections_of_a_summary_are_named_by_file_and_rate():
    def said(reward, errors):
        return Evaluation({"reward": [reward, reward]}, {"wer": ErrorCounts(errors, [2.0, 2.0])})

    before = {"heldout": said(0.0, [1.0, 2.0]), "natural": said(1.0, [0.0, 1.0])}
    after = {"heldout": said(0.5, [1.0, 0.0]), "natural": said(1.0, [1.0, 1.0])}
    found = sections(before, after)
    assert found["eval"]["difference"]["reward"]["mean"] == 0.5
    assert found["extra"]["natural"]["difference"]["reward"]["mean"] == 0
    assert found["rates"] == ["wer"]
    assert {name: one["difference"]["mean"] for name, one in found["wer"].items()} == {"heldout": -0.5, "natural": 0.25}
    assert Evaluation.read(json.loads(json.dumps(before["natural"].as_dict()))) == before["natural"]
    assert sections({}, {}) == {"eval": {}}


@pytest.mark.parametrize(
    ("title", "wanted"),
    [
        ("before", ("before", "heldout")),
        ("after-my-own", ("after", "my-own")),
        ("step-000010", ("step-000010", "heldout")),
        ("blind", ("blind", "heldout")),
    ],
)
def test_the_title_of_an_evaluation_says_when_and_of_which_prompts(title, wanted):
    assert split_title(title) == wanted and title_of(*wanted) == title


def test_annotations_that_fail_are_left_out_and_the_others_stay():
    def broken(prompts, outputs):
        raise OSError("no recognizer")

    def spelled(prompts, outputs):
        return [{"heard": output.text} for output in outputs]

    scorers = [Scorer("a", spelled, annotate=broken), Scorer("b", spelled, annotate=spelled)]
    with pytest.warns(UserWarning, match=r"'a'.*\(OSError: no recognizer\)"):
        assert annotate(scorers, [Prompt("p")], [Text("t", 1, False)]) == [{"heard": "t"}]


@pytest.mark.filterwarnings("error")
def test_a_reward_without_annotations_has_none_and_nothing_warns():
    assert annotate([Scorer("a", lambda p, o: [1.0])], [Prompt("p")], [Text("t", 1, False)]) == [{}]


def test_at_most_a_batch_of_samples_is_drawn_at_a_time(monkeypatch):
    policy, asked = CategoricalPolicy(TableModel(5, 3)), []
    sample = policy.sample

    def noted(request):
        asked.append((list(request.slots), request.group_size))
        return sample(request)

    monkeypatch.setattr(policy, "sample", noted)
    scorers = [Scorer("a", lambda prompts, outputs: [1.0] * len(outputs))]
    batches = list(draw(policy, scorers, table_prompts(5), [0, 1, 3, 4], 3, 0, 7, "t", quiet=True))
    assert asked == [([0, 1], 3), ([3, 4], 3)], "two prompts of three samples are at most seven"
    assert [prompt.id for batch in batches for prompt in batch.prompts] == [n for n in "0134" for _ in range(3)]
    asked.clear()
    list(draw(policy, scorers, table_prompts(5), [0, 1], 3, 0, 2, "t", quiet=True))
    assert asked == [([0], 3), ([1], 3)], "at least one prompt"
