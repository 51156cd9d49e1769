"""Corpus BLEU is case sensitive and of four orders throughout, unlike that of a sentence."""

from __future__ import annotations

import pytest

pytest.importorskip("sacrebleu")

from mmgrpo.types import Prompt, Text
from reward_models.rules import translation

TEXT = "the cat sat on the mat"


def test_case_counts_unless_it_is_left_out():
    assert translation.corpus_bleu([TEXT], [TEXT]) == pytest.approx(100)
    # 5 of 6 words, 4 of 5 pairs, 3 of 4 triples, 2 of 3 quadruples
    expected = 100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25
    assert translation.corpus_bleu([TEXT], ["The" + TEXT[3:]]) == pytest.approx(expected)
    prompt, output = Prompt("", "a", answer=TEXT), Text("The" + TEXT[3:])
    [sensitive] = translation.sentence_bleu([prompt], [output])
    [lowered] = translation.sentence_bleu([prompt], [output], lowercase=True)
    assert sensitive == pytest.approx(expected / 100) and lowered == pytest.approx(1)


def test_a_corpus_of_one_word_has_no_quadruples():
    assert translation.corpus_bleu(["Paris"], ["Paris"]) == 0
    assert translation.sentence_bleu([Prompt("", "a", answer="Paris")], [Text("Paris")]) == [pytest.approx(1)]


def test_counts_are_summed_over_sentences():
    # 6 of 6 and 0 of 1: 6 of 7 words, and every longer n-gram is right
    assert translation.corpus_bleu([TEXT, "Paris"], [TEXT, "London"]) == pytest.approx(100 * (6 / 7) ** 0.25)
