"""Rewards that need no label: votes, certainty and likelihood in numbers, whatever the order of rows."""

from __future__ import annotations

import math
import random

import pytest
import torch

from mmgrpo.scoring import Scorer, begin_scoring
from mmgrpo.types import Decisions, Prompt, Text
from reward_models.rules import votes
from reward_models.rules.votes import (
    agreement,
    answer_class,
    answer_entropy,
    answer_is,
    answer_likelihood,
    certain,
    confident_majority,
    majority,
    roles,
)


def rows(*groups: str, contrasts: str = "") -> tuple[list[Prompt], list[Text]]:
    """A letter is an answer, a dot a completion without one; ``contrasts`` belong to the first prompt."""
    pairs = [(Prompt("q", str(n)), letter) for n, letters in enumerate(groups) for letter in letters]
    pairs += [(Prompt("q", "0", meta={"contrast": "paraphrase"}), letter) for letter in contrasts]
    texts = ["none" if letter == "." else f"so <answer>{letter}</answer>" for _, letter in pairs]
    return [prompt for prompt, _ in pairs], [Text(text) for text in texts]


@pytest.mark.parametrize(("divergent", "wanted"), [(False, [1.0, 0.0, 1.0, 0.0]), (True, [2 / 3, 1 / 3, 2 / 3, 0.0])])
def test_the_answers_of_several_roles_in_one_text(divergent, wanted):
    prompt = Prompt("2 + 2", answer="4", task="exact", meta={"divergent": divergent})
    said = [(4, 5, 4), (5, 5, 4), (5, 4, 4), ()]
    texts = [Text(" then ".join(f"role {n}: <answer>{one}</answer>" for n, one in enumerate(some))) for some in said]
    assert roles([prompt] * 4, texts) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("letters", "wanted"),
    [
        ("aabc", [-0.20980, -0.20980, -0.45980, -0.45980]),
        ("aaab", [0.141541] * 3 + [-0.358459]),
        ("aaaa", [1.0] * 4),
        ("aab.", [0.5 - 0.75 * 0.918296, 0.5 - 0.75 * 0.918296, 0.25 - 0.75 * 0.918296, -0.75 * 0.918296]),
        ("..", [0.0, 0.0]),
        ("a", [None]),
    ],
)
def test_votes_are_shares_less_normalized_entropy(letters, wanted):
    assert votes.votes(*rows(letters)) == pytest.approx(wanted, abs=1e-5)


def test_the_entropy_in_nats_differs_by_a_constant_of_the_prompt():
    nats, plain = (votes.votes(*rows("aabc"), entropy=e, normalized=False) for e in (1.0, 0.0))
    assert plain == [0.5, 0.5, 0.25, 0.25]
    assert [p - n for p, n in zip(plain, nats, strict=True)] == pytest.approx([1.03972] * 4, abs=1e-5)


@pytest.mark.parametrize(
    ("letters", "options", "wanted"),
    [
        ("aaab", {}, [1, 1, 1, 0]),
        ("aabb", {}, [0.5] * 4),
        ("aabb", {"ties": "exclude"}, [None] * 4),
        ("bbaa", {"ties": "first"}, [1, 1, 0, 0]),
        ("aabc", {"least": 0.51}, [None] * 4),
        ("aaaa", {"most": 0.99}, [None] * 4),
        ("...", {}, [None] * 3),
        ("a..", {}, [1, 0, 0]),
    ],
)
def test_the_majority_is_the_label(letters, options, wanted):
    assert majority(*rows(letters), **options) == wanted


def test_samples_of_a_paraphrase_label_those_of_the_question():
    prompts, outputs = rows("aabb", contrasts="bbba")
    assert majority(prompts, outputs, by="contrast") == [0, 0, 1, 1, None, None, None, None]
    assert majority(prompts, outputs)[:4] == [0.5] * 4  # and do not vote otherwise
    assert majority(*rows("aabb"), by="contrast") == [None] * 4


def test_confidence_weighs_votes():
    numbers = torch.tensor([[-0.1, -0.1], [-2.0, -9.0], [-2.0, -2.0]])
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    zeros = torch.zeros(3, dtype=torch.long)
    rollout = Decisions(numbers, mask, mask, zeros[:, None].expand(3, 2), zeros, {"prompt": zeros})
    # exp(-.1) = .905 for a, 2 exp(-2) = .271 for b, which has more votes
    assert confident_majority(*rows("abb"), rollout=rollout) == [1, 0, 0] and majority(*rows("abb")) == [0, 1, 1]


def test_what_blocks_read_of_votes():
    given = rows("aabc", "dddd")
    assert agreement(*given) == [0.5] * 4 + [1.0] * 4
    assert answer_entropy(*given) == pytest.approx([1.03972] * 4 + [0] * 4, abs=1e-5)
    assert answer_class(*rows("cab.")) == [2, 0, 1, -1]
    assert answer_is(*rows("aab"), value="A.") == [1, 1, 0]
    gold = [Prompt("q", "0", answer="none")] * 2
    assert answer_is(gold, [Text("x")] * 2, value="none", of="gold") == [1, 1]
    with pytest.raises(ValueError, match="of.*'thought'"):
        answer_is(gold, [Text("x")] * 2, value="none", of="thought")


@pytest.mark.parametrize("reward", [votes.votes, majority, agreement, answer_entropy, answer_class])
def test_votes_do_not_depend_on_the_order_of_rows_nor_on_other_prompts(reward):
    prompts, outputs = rows("abcab", "ddd.", "effe")
    whole = reward(prompts, outputs)
    order = random.Random(0).sample(range(len(prompts)), len(prompts))
    shuffled = reward([prompts[n] for n in order], [outputs[n] for n in order])
    assert shuffled == [whole[n] for n in order]
    parts = [reward(prompts[s], outputs[s]) for s in (slice(0, 5), slice(5, 9), slice(9, None))]
    assert [value for part in parts for value in part] == whole  # as two processes would score them


def test_votes_are_counted_once_for_all_rewards_that_ask(monkeypatch):
    counted = []
    inside = votes.normal
    monkeypatch.setattr(votes, "normal", lambda text: counted.append(text) or inside(text))
    scorers = [Scorer(f.__name__, f, trusted=trusted) for f, trusted in ((votes.votes, True), (agreement, False))]
    scores = begin_scoring(scorers, *rows("aab", "cc"))()
    assert len(counted) == 5 and scores.values[:, 1].tolist() == pytest.approx([2 / 3] * 3 + [1, 1])
    votes.votes(*rows("aab"))  # nothing is kept beyond a call
    assert len(counted) == 8


def test_certainty_and_likelihood_are_what_the_policy_recorded():
    given = rows("ab")
    assert certain(*given, certainty=torch.tensor([1.5, 0.5])) == [1.5, 0.5]
    made = answer_likelihood(*given, answer_probability=torch.tensor([0.7, 0.2]), answer_prior=torch.tensor([0.3, 0.3]))
    assert made == pytest.approx([0.4, 0.0])


@pytest.mark.parametrize("wrong", [{"by": "others"}, {"ties": "last"}, {"least": 0.9, "most": 0.1}])
def test_settings_without_a_label_are_refused_before_a_run(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}.*{next(iter(wrong.values()))}"):
        votes.check_majority(**wrong)


def test_all_different_answers_have_the_largest_entropy():
    assert answer_entropy(*rows("abcdefgh"))[0] == pytest.approx(math.log(8))
