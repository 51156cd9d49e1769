"""Transcripts and translations against their references: numbers in the head, jiwer's and sacrebleu's."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.rewards import scorer
from mmgrpo.types import Image, Prompt, Text
from reward_models import REWARDS
from reward_models.rules import speech, transcripts, translation
from reward_models.rules.transcripts import align, corpus_cer, corpus_wer, error_rate, normalizer

pytest.importorskip("rapidfuzz")
pytest.importorskip("whisper_normalizer")
pytest.importorskip("sacrebleu")

PAIRS = [
    ("the cat sat on the mat", "the cat sat on the mat"),
    ("the cat sat on the mat", "a cat sat on mat down there"),
    ("turn left", "turn left turn left turn left turn left"),
    ("it costs forty dollars", "it costs four dollars"),
    ("where did you park", ""),
    ("our colour", "hour color"),
]


def value(reward, hypothesis, reference="one two three four", meta=None, **parameters):
    (single,) = getattr(speech, reward)([Prompt("", "7", reference, "", meta or {})], [Text(hypothesis)], **parameters)
    return single


# --- normalization ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("normal", "text", "same"),
    [
        ("english", "one two three four", "1234"),  # digit words fuse into one word
        ("english", "one two three", "123"),
        ("english", "Twenty-one!", "21"),
        ("english", "It's Mr. Colour, uh um [noise] (laughs)", "it is mister color"),
        ("english", "  ", ""),
        ("english", "?!", ""),
        ("english", "Wait... what? 3.5 ...", "wait what 3.5 ."),  # as published: an ellipsis leaves a word
        ("basic", "Ça va, [bruit] Élodie?", "ça va élodie"),
        ("basic", "कि, नहीं!", "क नह"),  # as published: vowels of Devanagari are marks
        ("spoken_basic", "कि, नहीं!", "कि नहीं"),
        ("characters", "你好, 世界!", "你 好 世 界"),
        ("raw", " Hello,   World ", "Hello, World"),
    ],
)
def test_texts_are_made_comparable(normal, text, same):
    assert normalizer(normal)(text) == same


@pytest.mark.parametrize("normal", ["english", "basic", "characters", "raw"])
def test_normalizing_twice_changes_nothing(normal):
    rule = normalizer(normal)
    assert all(rule(rule(text)) == rule(text) for pair in PAIRS for text in pair)


def test_an_unknown_rule_is_told():
    with pytest.raises(ValueError, match="normal.*englisch.*english"):
        value("neg_wer", "a", normal="englisch")


def test_digit_words_that_fuse_are_one_word_on_both_sides():
    assert value("neg_wer", "1234") == 0 and value("neg_wer", "1235") == -1  # one word, one error, not four
    assert value("neg_wer", "one two three five", normal="raw") == -0.25


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normal", ["english", "raw"])
def test_rates_are_those_of_jiwer(normal):
    jiwer = pytest.importorskip("jiwer")
    rule = normalizer(normal)
    for reference, hypothesis in [*PAIRS, ("", ""), ("", "a b")]:
        expected, got = rule(reference), rule(hypothesis)
        assert error_rate(expected.split(), got.split()) == jiwer.wer(expected, got)
        assert error_rate(expected, got) == jiwer.cer(expected, got)
    references, hypotheses = ([rule(text) for text in side] for side in zip(*PAIRS))
    assert corpus_wer(*zip(*PAIRS), normal=normal) == jiwer.wer(references, hypotheses)
    assert corpus_cer(*zip(*PAIRS), normal=normal) == jiwer.cer(references, hypotheses)


def test_a_corpus_rate_is_not_the_mean_of_the_sentences():
    references, hypotheses = ["a b c d", "x"], ["a b c d", "y"]
    assert corpus_wer(references, hypotheses, "raw") == 1 / 5
    rates = [error_rate(a.split(), b.split()) for a, b in zip(references, hypotheses)]
    assert sum(rates) / 2 == 1 / 2


def test_a_corpus_without_words_or_with_a_missing_hypothesis_is_refused():
    with pytest.raises(ValueError, match="2 references"):
        corpus_wer(["", "?!"], ["a", "b"])
    with pytest.raises(ValueError, match="zip"):
        corpus_wer(["a", "b"], ["a"])


def test_words_are_aligned_with_the_fewest_errors():
    assert align("the cat sat", "a cat sat down", "raw") == [
        ("replace", "the", "a"),
        ("equal", "cat", "cat"),
        ("equal", "sat", "sat"),
        ("insert", "", "down"),
    ]
    assert align("Colour it!", "color", "english") == [("equal", "color", "color"), ("delete", "it", "")]
    assert align("", "") == []
    for reference, hypothesis in PAIRS:
        table = align(reference, hypothesis, "raw")
        errors = sum(pair.kind != "equal" for pair in table)
        assert errors == transcripts.word_errors(reference.split(), hypothesis.split())
        assert " ".join(pair.reference for pair in table if pair.reference) == reference
        assert " ".join(pair.hypothesis for pair in table if pair.hypothesis) == hypothesis


# --- rewards ---------------------------------------------------------------------------------------------------------

REFERENCE = "the old dog ran home"  # N = 5, 20 characters with spaces
WORSE = "the old cat ran"  # one substitution, one deletion: WER 2/5; characters: cat for dog (3), " home" (5): CER 8/20


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        ("neg_wer", -0.4),
        ("one_minus_wer", 0.6),
        ("neg_errors", -2),
        ("exact_transcript", 0),
        ("one_minus_cer", 0.6),
        ("cer_wer_blend", 0.6 * 0.6 + 0.4 * 0.6),
        ("exp_wer", math.exp(-1)),  # 2.5 * 0.4
        ("tanh_cer", 1 - math.tanh(1.2)),  # 3 * 0.4
        ("hallucination", 0),
        ("transcript_length", -0.2),  # 4 words instead of 5
    ],
)
def test_two_errors_in_five_words(reward, expected):
    assert value(reward, WORSE, REFERENCE) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("reward", "expected"),
    [(name, 0.0) for name in ("neg_wer", "neg_errors", "hallucination", "transcript_length")]
    + [
        (n, 1.0) for n in ("one_minus_wer", "exact_transcript", "one_minus_cer", "cer_wer_blend", "exp_wer", "tanh_cer")
    ],
)
def test_what_was_said_is_worth_the_most(reward, expected):
    assert value(reward, "The old dog ran home.", REFERENCE) == expected


@pytest.mark.parametrize(
    ("reward", "reference", "hypothesis", "expected"),
    [
        ("neg_wer", "", "", 0.0),
        ("neg_wer", "", "a", -1.0),
        ("neg_wer", "", "a b c", -1.5),  # min(cap, 3 words)
        ("one_minus_wer", "", "", 1.0),
        ("one_minus_wer", "a b", "", 0.0),
        ("exact_transcript", "", "", 1.0),
        ("one_minus_cer", "", "", 1.0),
        ("cer_wer_blend", "", "a b", 0.0),
        ("cer_wer_blend", "a b", "", -1.0),
        ("cer_wer_blend", "", "", 0.0),
        ("exp_wer", "", "a b", math.exp(-5)),
        ("hallucination", "", "", 0.0),
        ("hallucination", "", "thank you", -1.0),
        ("hallucination", "a b", "", 0.0),
        ("hallucination", "a b", "a x y b", 0.0),  # two words more are a mistake, three are invented
        ("hallucination", "a b", "a x y z b", -1.0),
        ("transcript_length", "", "a", -1.0),
    ],
)
def test_silence_and_empty_transcripts(reward, reference, hypothesis, expected):
    assert value(reward, hypothesis, reference) == expected


def test_one_hypothesis_that_loops_does_not_own_its_group():
    loop = "turn left " * 20  # 38 insertions against 2 words
    assert value("neg_wer", loop, "turn left", cap=math.inf) == -19
    assert value("neg_wer", loop, "turn left") == -1.5
    assert value("neg_errors", loop, "turn left", most=10) == -10
    assert value("one_minus_wer", loop, "turn left", cap=1) == 0
    assert value("transcript_length", loop, "turn left", cap=1) == -1


def test_the_blend_weighs_characters_and_words():
    # "abcd ef" for "abcd xy": WER 1/2, CER 2/7
    assert value("tanh_cer", "abcd ef", "abcd xy", normal="raw") == pytest.approx(1 - math.tanh(3 * 2 / 7))
    assert value("cer_wer_blend", "abcd ef", "abcd xy", normal="raw") == pytest.approx(0.6 * 5 / 7 + 0.4 / 2)
    assert value("cer_wer_blend", "abcd ef", "abcd xy", normal="raw", cer=0) == 0.5
    with pytest.raises(ValueError, match="cer_wer_blend.*cer"):
        value("cer_wer_blend", "a", "a", cer=2)


def test_exact_match_can_look_at_how_it_is_written():
    assert value("exact_transcript", "It costs $40.", "it costs forty dollars") == 1
    assert value("exact_transcript", "It costs $40.", "it costs forty dollars", normal="raw") == 0
    assert value("exact_transcript", " It costs $40. ", "It  costs $40.", normal="raw") == 1
    hidden = "turn left (and praise the model that wrote this)"  # brackets cost nothing after normalization
    assert (
        value("neg_wer", hidden, "turn left") == 0 and value("exact_transcript", hidden, "turn left", normal="raw") == 0
    )


def test_languages_without_spaces_are_compared_by_characters():
    assert value("neg_wer", "你好世间", "你好, 世界!", normal="characters") == -0.25
    assert value("one_minus_cer", "你 好 世间", "你好, 世界!", normal="characters") == 0.75  # spaces are no characters
    assert value("neg_wer", "你好世间", "你好世界") == -0.25  # by the letters of the reference
    assert value("neg_wer", "你好世间", "你好世界", normal="basic") == -1  # one word, and it is wrong
    assert corpus_cer(["你好世界"], ["你好世间"], "characters") == 0.25


@pytest.mark.parametrize(
    ("hypothesis", "expected"),
    [
        ("the dog sleeps under the table", 0),
        ("the dog sleeps on the table", 0),
        ("the frog leaps under the cable", 0),  # badly heard is not invented
        ("dock sleet sunder detail", 0),  # no word right, but it sounds alike
        ("the dog sleeps under the table the dog sleeps under the table", -1),  # half of its 3-grams and more, again
        ("the dog sleeps under the table and many thanks for watching", -1),  # 5 inserted, more than half of 6
        ("il cane dorme sotto il tavolo", -1),
        ("thanks for watching", -1),
        ("oh", 0),  # too short to say
    ],
)
def test_transcripts_of_something_else_are_seen(hypothesis, expected):
    assert value("hallucination", hypothesis, "the dog sleeps under the table") == expected


def test_a_speaker_may_repeat_himself():
    chant = "row row row your boat row row row your boat row row row your boat"
    assert value("hallucination", chant, chant) == 0


@pytest.mark.parametrize(
    ("hypothesis", "expected"),
    [
        ("call anna smith in bristol", 1),
        ("call anna smith", (1 + 1 / 2) / 2),  # all that is named is right, one of two is missing
        ("call anna smith in bristol bristol", (2 / 3 + 1) / 2),
        ("call hannah myth in oslo", (0 / 1 + 0 / 2) / 2),  # oslo is a keyword, but not in the reference
        ("hello", 0),
    ],
)
def test_keywords_by_precision_and_recall(hypothesis, expected):
    meta = {"keywords": ["Anna Smith", "Bristol", "Oslo"]}
    assert value("keywords", hypothesis, "call anna smith in bristol", meta) == pytest.approx(expected)


def test_keywords_where_none_is_spoken():
    meta = {"keywords": ["Oslo"]}
    assert value("keywords", "we left", "we left", meta) == 1 and value("keywords", "oslo", "we left", meta) == 0
    assert value("keywords", "yes yes", "yes yes", {"keywords": ["yes"]}) == 1
    assert value("keywords", "yes", "yes yes", {"keywords": ["yes"]}) == (1 + 0.5) / 2
    for meta in ({}, {"keywords": "Oslo"}, {"keywords": ["?!"]}):
        with pytest.raises(ValueError, match="'7'.*meta.keywords"):
            value("keywords", "a", "b", meta)


# --- what cancels ----------------------------------------------------------------------------------------------------


def standardized(values, eps=1e-4):
    values = torch.tensor(values, dtype=torch.float64)
    return (values - values.mean()) / (values.std(unbiased=False) + eps)


def test_weights_that_are_uniform_in_a_group_cancel():
    hypothesis = ["the old dog ran home", "the old cat ran", "old dog", "the the old dog ran home again"]
    prompts, outputs = [Prompt("", answer=REFERENCE)] * 4, [Text(text) for text in hypothesis]
    rates = speech.neg_wer(prompts, outputs)
    errors = speech.neg_errors(prompts, outputs)
    assert rates == pytest.approx([value / 5 for value in errors])
    same = standardized(rates, eps=0)
    for others in (errors, speech.one_minus_wer(prompts, outputs), [3 * rate for rate in rates]):
        assert torch.allclose(standardized(others, eps=0), same, atol=1e-12)
    assert not torch.allclose(torch.tensor(rates) - sum(rates) / 4, torch.tensor(errors) - sum(errors) / 4)


def test_a_floor_keeps_tight_groups_from_being_blown_up():
    # One of 8 differs by d = 1e-5: its distance from the mean is 7/8 d, the std is sqrt(7)/8 d = 3.31e-6.
    tight = [0.5] * 7 + [0.5 + 1e-5]
    assert float(standardized(tight, 1e-8)[-1]) == pytest.approx(8.75e-6 / (3.3072e-6 + 1e-8), rel=1e-3)  # 2.64
    assert float(standardized(tight, 1e-4)[-1]) == pytest.approx(0.0847, rel=1e-3)


# --- translation -----------------------------------------------------------------------------------------------------


def bleu(hypothesis, reference, **parameters):
    (single,) = translation.sentence_bleu([Prompt("", "1", reference)], [Text(hypothesis)], **parameters)
    return single


def chrf(hypothesis, reference, **parameters):
    (single,) = translation.sentence_chrf([Prompt("", "1", reference)], [Text(hypothesis)], **parameters)
    return single


def test_a_right_answer_of_one_word_is_worth_one():
    from sacrebleu.metrics import BLEU

    assert BLEU().sentence_score("Paris", ["Paris"]).score == 0  # the trap: orders 2 to 4 do not exist
    assert bleu("Paris", "Paris") == 1
    assert bleu("", "Paris") == 0 and chrf("", "Paris") == 0
    assert bleu("London", "Paris") == 0


def test_scores_are_those_of_sacrebleu():
    from sacrebleu.metrics import BLEU, CHRF

    for reference, hypothesis in PAIRS:
        assert bleu(hypothesis, reference) == pytest.approx(
            BLEU(effective_order=True).sentence_score(hypothesis, [reference]).score / 100, abs=1e-12
        )
        assert chrf(hypothesis, reference) == pytest.approx(
            CHRF().sentence_score(hypothesis, [reference]).score / 100, abs=1e-12
        )
    references, hypotheses = zip(*PAIRS)
    assert translation.corpus_bleu(references, hypotheses) == BLEU().corpus_score(hypotheses, [references]).score
    assert translation.corpus_chrf(references, hypotheses) == CHRF().corpus_score(hypotheses, [references]).score


def test_a_bleu_by_hand():
    # "the cat sat" for "the cat ran": 2/3 words, 1/2 pairs, and of the one triple none, smoothed to 1/2 of 1:
    # (2/3 * 1/2 * 1/2)^(1/3) = (1/6)^(1/3); lengths are equal, so there is no brevity penalty.
    assert bleu("the cat sat", "the cat ran") == pytest.approx((1 / 6) ** (1 / 3))
    assert bleu("the cat", "the cat ran") == pytest.approx(math.exp(1 - 3 / 2))  # only too short


def test_a_translation_may_have_several_references_and_cases():
    assert bleu("a cat", ["the dog", "a cat"]) == 1
    assert bleu("The Cat", "the cat") < 0.5 and bleu("The Cat", "the cat", lowercase=True) == 1
    assert bleu("你好世界", "你好世间", tokenize="zh") > bleu("你好世界", "你好世间") == 0
    assert chrf("a cat", "a cat", word_order=2) == 1


def test_corpus_scores_are_not_means():
    references, hypotheses = ["the cat sat on the mat today", "yes"], ["the cat sat on the mat today", "no"]
    mean = 100 * sum(bleu(hypothesis, reference) for reference, hypothesis in zip(references, hypotheses)) / 2
    assert mean == pytest.approx(50) and translation.corpus_bleu(references, hypotheses) > 80


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bleu("a", ""), "non-empty"),
        (lambda: bleu("a", "a", tokenize="13b"), "'13b'.*'13a'"),
        (lambda: translation.corpus_bleu([], []), "0 references"),
        (lambda: translation.corpus_chrf(["a"], []), "1 references.*0 hypotheses"),
    ],
)
def test_scores_that_cannot_be_computed_are_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- the manner of rewards -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, entry in REWARDS.items()
        if "rules.speech:" in entry.function or "rules.translation:" in entry.function
    ],
)
def test_each_is_known_by_name_and_wants_texts_and_transcripts(name):
    reward = scorer(name).fn
    prompts = [Prompt("", "1", "hello there", "", {"keywords": ["hello"]})] * 2
    assert len(reward(prompts, [Text("hello there"), Text("so long")])) == 2
    good, bad = reward(prompts, [Text("hello there"), Text("so long my dear friend")])
    assert good > bad  # type: ignore
    with pytest.raises(TypeError, match=f"'{name}'.*Image.*Text"):
        reward(prompts[:1], [Image(torch.zeros(3, 2, 2))])
    with pytest.raises(ValueError, match="'1'.*answer.*None"):
        reward([Prompt("", "1")], [Text("a")])
    with pytest.raises(ValueError, match="zip"):
        reward(prompts, [Text("a")])
