"""From a name, a function or a table to a reward: what each row of a table is used for, and who computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mmgrpo import rewards
from mmgrpo.rewards import RewardEntry, from_trl, scorer, scorers
from mmgrpo.scoring import ErrorRate, Scorer
from mmgrpo.scoring.cache import Cached
from mmgrpo.scoring.manifest import Manifest
from mmgrpo.types import Image, Prompt, Text

MANIFEST = Manifest(("Text",))
HERE = __name__
CHECKED: list[dict[str, Any]] = []


def length(prompts, outputs, scale=1.0, device="nowhere"):
    return [scale * len(output.text) for output in outputs]


def rates_of(**parameters) -> list[ErrorRate]:
    return [ErrorRate(f"rate {sorted(parameters)}", length, length)]


def annotate_of(**parameters):
    return lambda prompts, outputs: [parameters for _ in outputs]


def check_of(**parameters) -> None:
    CHECKED.append(parameters)


def reading(prompts, outputs, rollout):
    return [0.0] * len(outputs)


TABLE = {
    "plain": RewardEntry(f"{HERE}:length"),
    "full": RewardEntry(
        f"{HERE}:length",
        rates=f"{HERE}:rates_of",
        annotate=f"{HERE}:annotate_of",
        check=f"{HERE}:check_of",
        manifest=f"{HERE}:MANIFEST",
    ),
    "far": RewardEntry(f"{HERE}:length", elsewhere=True),
    "reads": RewardEntry(f"{HERE}:reading"),
}


@pytest.fixture(autouse=True)
def table(monkeypatch) -> None:
    monkeypatch.setattr(rewards, "entries", lambda: TABLE)
    CHECKED.clear()


class Started:
    """A ``RewardProcess`` that is none."""

    reads_rollout = False
    needs: Sequence[str] = ()
    records: Sequence[str] = ()
    entry = None

    def __init__(self, *given: Any) -> None:
        self.given = given

    def __call__(self, prompts, outputs):
        return [9.0] * len(outputs)


def test_a_row_that_says_only_its_function_has_nothing_else():
    assert RewardEntry("a:b") == RewardEntry("a:b", "", "", "", False, "")
    assert (
        RewardEntry("a:b").read_manifest() is None and RewardEntry("a:b", manifest=MANIFEST).read_manifest() is MANIFEST
    )
    assert TABLE["full"].read_manifest() is MANIFEST
    with pytest.raises(ValueError, match="expected a Manifest"):
        RewardEntry("a:b", manifest=f"{HERE}:length").read_manifest()


def test_a_reward_of_a_table_is_computed_in_the_run_and_trusted():
    plain = scorer("plain(weight=0.5, scale=2)", "cuda:1")
    assert (plain.name, plain.weight, plain.trusted, plain.elsewhere, plain.reads_rollout) == (
        "plain",
        0.5,
        True,
        False,
        False,
    )
    assert plain.fn([Prompt("")], [Text("abc")]) == [6] and plain.fn.keywords == {"scale": 2, "device": "cuda:1"}
    assert (plain.rates, plain.annotate) == ((), None)
    assert scorer("far").elsewhere and scorer("far").trusted and scorer("reads").reads_rollout


def test_rates_annotations_and_checks_are_made_from_the_parameters():
    full = scorer("full(scale=3, device='cpu')")
    assert [rate.name for rate in full.rates] == ["rate ['scale']"] and CHECKED == [{"scale": 3}]
    assert full.annotate([], [Text("")]) == [{"scale": 3}]
    assert full.fn.keywords == {"scale": 3, "device": "cpu"}, "of the reward itself, not of the run"


def test_a_reward_with_a_time_has_a_process_and_one_of_ones_own_always(monkeypatch, tmp_path):
    monkeypatch.setattr(rewards, "RewardProcess", Started)
    timed = scorer("plain(timeout=5, scale=2)", "cuda:1")
    assert (
        timed.fn.given == ("plain", f"{HERE}:length", {"scale": 2}, "cuda:1", 5.0) and timed.elsewhere and timed.trusted
    )
    own = scorer(f"{HERE}:length")
    assert own.fn.given[-1] == 600.0 and own.name == "length" and own.elsewhere and own.trusted
    here = scorer(f"{HERE}:length(process=False)")
    assert not here.elsewhere and not here.trusted and here.fn([Prompt("")], [Text("ab")]) == [2]
    assert timed.needs == own.needs == here.needs == ()
    monkeypatch.setattr(Started, "reads_rollout", True)
    monkeypatch.setattr(Started, "needs", ["solution"])  # a list, as it comes of JSON
    read = scorer("plain(timeout=5)")
    assert read.reads_rollout and read.needs == ("solution",)


OWN = """
from mmgrpo.rewards import reward

def positive(gain):
    if gain <= 0:
        raise ValueError(f"gain: got {gain}")

@reward("Image", range=(-1, 1), reads=("answer",), group=True, check="own_rewards:positive")
def redness(prompts, outputs, *, gain=1.0):
    return [gain] * len(outputs)
"""


@pytest.mark.parametrize("process", [True, False])
@pytest.mark.slow
def test_what_a_function_of_ones_own_says_of_itself_holds(process, tmp_path, monkeypatch, copied):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_rewards.py").write_text(OWN)
    manifest = scorer(f"own_rewards:redness(gain=2.0, process={process})").manifest
    assert manifest == Manifest(("Image",), low=-1, high=1, reads=("answer",), group=True)
    with pytest.raises(ValueError, match="gain: got -1"):
        scorer(f"own_rewards:redness(gain=-1.0, process={process})")


def test_what_a_function_in_python_says_of_itself_holds():
    assert scorer(rewards.reward("Text", range=(0, 9))(lambda prompts, outputs: [1.0])).manifest.high == 9


def test_scores_are_kept_where_that_is_asked_for_and_possible():
    kept = scorer("full(cache=True)")
    assert isinstance(kept.fn, Cached) and kept.fn([Prompt("")], [Text("abc")]) == [3]
    with pytest.raises(ValueError, match="'reads'"):
        scorer("reads(cache=True)")


def test_a_function_is_a_reward_of_weight_one_that_nobody_vouches_for():
    class Counting:
        def __call__(self, prompts, outputs):
            return [1.0] * len(outputs)

    plain, counting = scorer(length, "cuda:1"), scorer(Counting())
    assert (plain.name, plain.weight, plain.trusted, plain.elsewhere) == ("length", 1.0, False, False)
    assert plain.fn.keywords == {"device": "cuda:1"} and counting.name == "Counting"
    assert scorer(length).fn.keywords == {"device": "cpu"} and scorers([length])[0].fn.keywords == {"device": "cpu"}
    assert scorer(reading).reads_rollout and not plain.reads_rollout
    assert scorer(plain) is plain


def test_rewards_have_names_of_their_own_and_there_is_one():
    assert [one.name for one in scorers([length, "plain", "plain(log_as='other')"])] == ["length", "plain", "other"]
    assert scorers([length], "cuda:1")[0].fn.keywords == {"device": "cuda:1"}
    with pytest.raises(ValueError, match="rewards.*'plain'"):
        scorers(["plain", length, "plain"])
    with pytest.raises(ValueError, match="rewards"):
        scorers([])
    with pytest.raises(ValueError, match="'plian'.*'plain'"):
        scorer("plian")


def test_a_reward_of_trls_form_is_named_after_its_function_or_as_told():
    def of_lengths(prompts, completions, answer, level=None, **columns):
        return [None if level[0] is None else float(len(text)) for text in completions]

    made = from_trl(of_lengths)
    assert isinstance(made, Scorer) and made.name == "of_lengths" and from_trl(of_lengths, "mine").name == "mine"
    assert made.fn([Prompt("", meta={"level": 3})], [Text("abc")]) == [3]
    [missing] = made.fn([Prompt("", meta={"level": None})], [Text("abc")])
    assert missing is None
    with pytest.raises(TypeError, match=r"\['Image'\].*TRL"):
        import torch

        made.fn([Prompt("")], [Image(torch.zeros(3, 1, 1))])


def test_values_of_the_table_may_be_names_of_functions_alone(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(rewards.plugins, "table", lambda group: {"a": "m:f", "b": TABLE["full"]})
    assert rewards.entries() == {"a": RewardEntry("m:f"), "b": TABLE["full"]}


def words(prompts, outputs, of: Sequence[str] = ("a",), scale: float | Unresolved = 1.0, least: int = 1):  # type: ignore
    """Of a signature with an annotation that cannot be resolved."""
    return [float(len(of))] * len(outputs)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("of='criteria', process=True", "of.*'criteria'.*list"),
        ("of='criteria', process=False", "of.*'criteria'.*list"),
        ("of=['a', 1], process=False", r"of.*\['a', 1\].*list"),
        ("least=1.5, process=False", "least.*1.5"),
        ("least=True, process=False", "least.*True"),
    ],
)
def test_a_parameter_has_the_type_of_its_annotation(given, named):
    with pytest.raises(ValueError, match=f"rewards.*words.*{named}"):
        scorer(f"{__name__}:words({given})")


def test_a_list_of_texts_and_a_value_of_an_unknown_type_are_taken():
    assert scorer(f"{__name__}:words(of=['a', 'b'], scale='x', process=False)").fn([], [Text("")]) == [2.0]
