"""R3 (arXiv:2402.03469): relevance, length and repetition, with numbers in the head."""

from __future__ import annotations

import numpy as np
import pytest

from mmgrpo.rewards import scorer
from mmgrpo.types import Prompt, Text
from reward_models.rules.relevance import distinct, of_reference, open_ended, regularized_relevance, tokens

HERE = "tests.libraries.reward_models.rules.test_relevance"


def letters(texts, device):
    """Vectors whose products are the number of letters a and b in common: not of unit norm."""
    return np.array([[text.count("a"), text.count("b")] for text in texts], dtype=float)


def flat(texts, device):
    return np.zeros(len(texts))


def short(texts, device):
    return np.zeros((1, 2))


def whole(texts, device):
    """Small whole numbers, whose product does not fit into one; ``cpu`` has three letters."""
    return np.full((len(texts), 1), 40 * len(device), np.int8)


def words(count: int) -> str:
    return " ".join(f"w{number}" for number in range(count))


def test_tokens_are_words_and_runs_of_punctuation():
    assert tokens("Don't stop... now!") == ["Don", "'", "t", "stop", "...", "now", "!"]


def test_an_open_ended_answer_is_length_times_distinct_times_relevance():
    """200 tokens without repetition at relevance 1.2: 2 * 1 * 1.2; one token three times over: a trigram of two."""
    assert open_ended(words(200), 1.2) == pytest.approx(2.4)
    assert distinct("x x x x") == 0.5 and open_ended("x x x x", 1.0) == pytest.approx(0.04 * 0.5)
    assert distinct("x x") == 1 and open_ended("", 5.0) == 0
    assert open_ended(words(10), -1.0) == pytest.approx(-0.1)


def test_a_reference_bounds_what_relevance_is_worth():
    """1.75 of 3.5 is worth 2.56; more than 3.5 and less than 0 are cut."""
    assert of_reference(words(5), 1.75) == pytest.approx(2.56)
    assert of_reference("x x x x", 1.75) == pytest.approx(1.28)
    assert of_reference(words(5), 99) == pytest.approx(5.12) and of_reference(words(500), -2) == 0
    assert of_reference("", 3.5) == 0


def test_the_prompt_decides_which_one_it_is():
    prompts = [Prompt("aab"), Prompt("ignored", answer="ab")]
    outputs = [Text("a b"), Text("a c")]
    values = scorer(f"regularized_relevance(embed='{HERE}:letters')").fn(prompts, outputs)
    assert values == pytest.approx([2 / 100 * (2 + 1), 5.12 / 3.5 * 1])


def test_products_are_of_floats_on_the_cpu():
    assert regularized_relevance([Prompt("a")], [Text("a")], f"{HERE}:whole") == pytest.approx([120 * 120 / 100])


def test_vectors_are_one_per_text():
    with pytest.raises(ValueError, match=r":short.*shape.*\[1, 2\]"):
        regularized_relevance([Prompt("a")], [Text("a")], f"{HERE}:short")
    with pytest.raises(ValueError, match=r":flat.*shape.*\[2\]"):
        regularized_relevance([Prompt("a")], [Text("a")], f"{HERE}:flat")
