"""Limits of the rewards of speech, and the interval of a corpus score against sacrebleu on every resample."""

from __future__ import annotations

import numpy as np
import pytest

from mmgrpo.statistics import draws
from mmgrpo.types import Prompt, Text
from reward_models.rules import speech, translation

pytest.importorskip("rapidfuzz")
pytest.importorskip("whisper_normalizer")
pytest.importorskip("sacrebleu")


def value(reward: str, hypothesis: str, reference: str, meta: dict | None = None, **parameters) -> float:
    (single,) = getattr(speech, reward)([Prompt("", "7", reference, "", meta or {})], [Text(hypothesis)], **parameters)
    return single


@pytest.mark.parametrize(
    ("reward", "expected"),
    [("neg_wer", -1.5), ("one_minus_wer", -0.5), ("one_minus_cer", -0.5), ("transcript_length", -1.5)],
)
def test_the_cap_is_one_and_a_half(reward, expected):
    assert value(reward, "a b c", "") == expected


@pytest.mark.parametrize(
    ("reference", "hypothesis", "parameters", "hallucinated"),
    [
        # "a a a a" has two 3-grams, one of them again: a half
        ("a b", "a a a a", {"invented": 9}, True),
        ("a b", "a a a a", {"invented": 9, "repeated": 0.4}, True),
        ("a b", "a a a a", {"invented": 9, "repeated": 0.5}, False),
        # of four 3-grams of "a b c a b c" one is there again, so a half is a quarter more
        ("a b c a b c", "a a a a", {"invented": 9}, False),
        ("a b c a b c", "a a a a", {"invented": 9, "repeated": 0.2}, True),
        ("a b", "a b c a b c", {"invented": 9, "repeated": 0.2}, True),
        # at least three inserted words that are more than half of those that were spoken
        ("a b", "a b c d", {}, False),
        ("a b c d e f", "a b c d e f g h i", {}, False),
        ("a b c d e", "a b c d e f g h", {}, True),
        ("a b c d e", "a b c d e f g h", {"invented": 0.6}, False),
        # one word that is right, or two words of another text
        ("the dog sleeps", "the xylophone quickly", {}, False),
        ("the dog sleeps", "xxx yyy zzz", {}, True),
        ("the dog", "xxx yyy zzz", {}, False),
        ("the dog sleeps", "xxx yyy", {}, False),
        # "b b b" is common: 2 * 5 letters of 8 + 8
        ("ab ab ab", "cb cb cb", {"alike": 0.625}, False),
        ("ab ab ab", "cb cb cb", {"alike": 0.626}, True),
        ("", "a", {}, True),
        ("a b", "", {}, False),
    ],
)
def test_limits_of_hallucinations(reference, hypothesis, parameters, hallucinated):
    assert value("hallucination", hypothesis, reference, normal="raw", **parameters) == -float(hallucinated)


def test_every_keyword_is_a_text():
    for words in (["Oslo", 3], ["Oslo", "?!"]):
        with pytest.raises(ValueError, match="'7'.*meta.keywords"):
            value("keywords", "a", "b", {"keywords": words})


# --- translation -----------------------------------------------------------------------------------------------------

REFERENCES = [["the cat sat on the mat", "a cat sat"], ["where did you park the car"], ["It costs forty dollars now"]]
HYPOTHESES = ["the cat sat on a mat", "where did you park", "it costs forty dollars now"]


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_an_interval_is_of_the_corpus_scores_of_resamples(metric):
    from sacrebleu.metrics import BLEU, CHRF

    def score(places) -> float:
        streams = [[REFERENCES[place][0] for place in places], [[*REFERENCES[place], None][1] for place in places]]
        own = CHRF() if metric == "chrf" else BLEU(effective_order=False)
        return own.corpus_score([HYPOTHESES[place] for place in places], streams).score

    made = translation.corpus_interval(metric, REFERENCES, HYPOTHESES, resamples=50)
    scores = [score(places) for some in draws(3, 50, 0) for places in some]
    low, high = np.percentile(scores, [2.5, 97.5])
    assert made == pytest.approx({"mean": score(range(3)), "low": low, "high": high, "n": 3})
    assert low < made["mean"] < high
    assert translation.corpus_interval(metric, REFERENCES, HYPOTHESES) == translation.corpus_interval(
        metric, REFERENCES, HYPOTHESES, tokenize="13a", resamples=1000
    )


def test_a_corpus_is_split_into_words_as_it_is_asked():
    one = translation.corpus_interval("bleu", [["a, b c d"]], ["a , b c d"], resamples=1)
    assert one["mean"] == pytest.approx(100)
    raw = translation.corpus_interval("bleu", [["a, b c d"]], ["a , b c d"], tokenize="none", resamples=1)
    assert raw["mean"] < 90


@pytest.mark.parametrize(("references", "hypotheses"), [([], []), ([["a"]], []), ([["a"], []], ["a", "b"])])
def test_a_corpus_needs_a_reference_for_each_hypothesis(references, hypotheses):
    with pytest.raises(ValueError, match=f"{len(hypotheses)}.*{len(references)}"):
        translation.corpus_interval("bleu", references, hypotheses)


def test_words_count_in_chrf_if_they_are_asked_for():
    from sacrebleu.metrics import CHRF

    prompt, output = Prompt("", "1", "the cat sat"), Text("the bat sat")
    values = [translation.sentence_chrf([prompt], [output], word_order=order)[0] for order in (0, 2)]
    expected = [CHRF(word_order=order).sentence_score(output.text, ["the cat sat"]).score / 100 for order in (0, 2)]
    assert values == pytest.approx(expected) and values[0] - values[1] > 0.03
    assert translation.sentence_chrf([prompt], [output]) == values[:1]
