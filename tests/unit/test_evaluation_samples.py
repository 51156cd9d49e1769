"""What an evaluation asks of a policy, and which number becomes which."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from mmgrpo import evaluation
from mmgrpo.evaluation import Evaluation, draw_samples, members
from mmgrpo.runtime.finite import NotFinite
from mmgrpo.scoring import ErrorRate, Scorer
from mmgrpo.types import Image, Output, Prompt, Request, Rollout, Text

PROMPTS = [Prompt(f"p{number}", id=str(number)) for number in range(3)]


class Answers:
    """A policy that answers ``<id>.<number of the sample>``, and notes what it was asked."""

    kind, settings = "tokens", None
    provides = fields = keys = frozenset({"prompt"})

    def __init__(self, output: Any = Text) -> None:
        self.network, self.asked, self.output = nn.Linear(1, 1), [], output

    def rollout(self, request: Request) -> Rollout:
        raise AssertionError("nothing is trained here")

    score = keep_reference = save = rollout

    def sample(self, request: Request) -> Sequence[Output]:
        self.asked.append(request)
        return [self.output(f"{one.id}.{k}") for one in request.prompts for k in range(request.group_size)]


def number(prompts, outputs):
    """10 id + sample; the first sample of prompt 1 cannot be scored."""
    return [math.nan if o.text == "1.0" else 10 * int(o.text[0]) + int(o.text[2]) for o in outputs]


def counting(name: str, errors: float, units: float) -> ErrorRate:
    return ErrorRate(
        name, lambda prompts, outputs: [errors * int(o.text[2]) for o in outputs], lambda p, o: [units] * len(o)
    )


SCORERS = [
    Scorer("number", number, rates=[counting("wer", 4.0, 2.0)]),
    Scorer("one", lambda p, o: [1.0] * len(o), rates=[counting("wer", 9.0, 9.0), counting("cer", 6.0, 5.0)]),
]


class Place(Accelerator):
    """One of several processes, which does not speak with the others."""

    num_processes = process_index = 0
    is_main_process, device = False, torch.device("cpu")

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.process_index, self.num_processes, self.is_main_process = rank, world, rank == 0


ALONE = Place()


def evaluated(policy, **changes):
    settings = {"samples": 2, "seed": 5, "batch_size": 2, "shown": 2, "accelerator": ALONE, "title": "t", **changes}
    made = draw_samples(policy, SCORERS, PROMPTS, **settings)
    return made.means([one.name for one in SCORERS]), made.shown


def test_values_and_counts_are_means_over_the_samples_of_each_prompt():
    result, _ = evaluated(Answers())
    assert result.values == {"number": [0.5, 11.0, 20.5], "one": [1.0, 1.0, 1.0]}
    # the samples 0 and 1 have no and 4 errors; of two rates of one name that of the first reward applies
    assert {name: asdict(one) for name, one in result.counts.items()} == {
        "wer": {"errors": [2.0] * 3, "units": [2.0] * 3},
        "cer": {"errors": [3.0] * 3, "units": [5.0] * 3},
    }


@pytest.mark.parametrize(("shown", "ids"), [(0, ""), (1, "0"), (2, "01"), (3, "012"), (16, "012")])
@pytest.mark.parametrize("batch_size", [2, 4, 100])
def test_the_first_sample_of_the_first_prompts_is_shown(shown, ids, batch_size):
    _, some = evaluated(Answers(), shown=shown, batch_size=batch_size)
    assert [one.id for one in some.prompts] == list(ids)
    assert [one.text for one in some.outputs] == [f"{one}.0" for one in ids]
    expected = {"0": 0.0, "1": math.nan, "2": 20.0}
    assert [one["number"] for one in some.values] == pytest.approx([expected[one] for one in ids], nan_ok=True)
    assert all(one["one"] == 1 for one in some.values)


def test_a_policy_is_asked_for_the_samples_of_every_prompt_with_the_seed():
    policy = Answers()
    evaluated(policy, samples=3, batch_size=7)
    assert [([p.id for p in one.prompts], list(one.slots)) for one in policy.asked] == [
        (["0", "1"], [0, 1]),
        (["2"], [2]),
    ]
    assert {(one.group_size, one.seed) for one in policy.asked} == {(3, 5)}


def test_a_network_with_a_number_that_is_none_is_not_evaluated():
    policy = Answers()
    with torch.no_grad():
        policy.network.bias.fill_(math.nan)
    with pytest.raises(NotFinite, match="network"):
        evaluated(policy)
    assert policy.asked == []


@pytest.mark.parametrize(("rank", "slots"), [(0, [0, 1]), (1, [2, 2])])
def test_prompts_are_divided_among_processes_and_the_last_fills_what_is_missing(rank, slots, monkeypatch):
    monkeypatch.setattr(evaluation, "gather_rows", lambda rows, accelerator: rows)
    monkeypatch.setattr(evaluation, "gather_texts", lambda texts, accelerator: list(texts))
    policy = Answers()
    evaluated(policy, batch_size=100, accelerator=Place(rank, 2))
    assert [one.slots for one in policy.asked] == [slots]


def test_texts_are_kept_by_prompt_and_other_outputs_have_none():
    settings: dict[str, Any] = {"samples": 2, "seed": 0, "batch_size": 4, "shown": 0, "accelerator": ALONE}
    made = draw_samples(Answers(), SCORERS[:1], PROMPTS, title="t", **settings)
    assert made.texts == [["0.0", "0.1"], ["1.0", "1.1"], ["2.0", "2.1"]]
    assert made.values[..., 0].nan_to_num(-1).tolist() == [[0, 1], [-1, 11], [20, 21]]
    plain = [Scorer("none", lambda prompts, outputs: [0.0] * len(outputs))]
    pictures = Answers(lambda text: Image(torch.zeros(3, 1, 1)))
    made = draw_samples(pictures, plain, PROMPTS, title="t", **settings)
    assert made.texts == [] and made.counts == {}


def test_annotations_are_of_the_shown_and_the_first_reward_of_a_name_has_its_way():
    def notes(word, **more):
        return lambda prompts, outputs: [{"note": f"{word} {o.text}", **more} for o in outputs]

    scorers = [
        Scorer("none", number),
        Scorer("a", number, annotate=notes("first")),
        Scorer("b", number, annotate=notes("second", length=3)),
    ]
    some = draw_samples(
        Answers(), scorers, PROMPTS, samples=1, seed=0, batch_size=9, shown=1, accelerator=ALONE, title="t"
    ).shown
    assert some.annotations == [{"note": "first 0.0", "length": 3}]
    assert evaluation.annotate(scorers, [], []) == []


def test_prompts_are_divided_by_the_values_of_a_column():
    prompts = [
        Prompt("a", meta={"kind": "x", "level": 1}),
        Prompt("b", meta={"kind": "y"}),
        Prompt("c", meta={"kind": "x"}),
    ]
    assert members(prompts) == {"kind": {"x": [0, 2], "y": [1]}, "level": {"1": [0]}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "before.json"),
        ("[]", "before.json"),
        ('{"values": {}, "counts": {"wer": {"errors": []}}}', "before.json"),
        ("{}", r"before.json.*\('values'\)"),
        ('{"values": {}, "run": "b"}', "before.json.*'b'.*'a'"),
        ('{"values": {}}', "before.json.*'a'"),
    ],
)
def test_an_evaluation_that_cannot_be_read_again_is_named(content, message, tmp_path):
    (tmp_path / "before.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        Evaluation.load(tmp_path / "before.json", 3, "a")


def test_an_evaluation_of_a_run_without_an_id_is_read_again(tmp_path):
    (tmp_path / "before.json").write_text('{"values": {"a": [1.0]}}')
    assert Evaluation.load(tmp_path / "before.json", 3, "").values == {"a": [1.0]}


def test_intervals_are_of_the_mean_over_prompts():
    found = Evaluation({"a": [1.0, 1.0, math.nan], "b": [math.nan]}).intervals()
    assert found["a"]["mean"] == found["a"]["low"] == found["a"]["high"] == 1.0 and found["a"]["n"] == 2
    assert found["b"]["mean"] is None
