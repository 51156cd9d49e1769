"""What evaluation reports of all transcripts or translations of a file together."""

from __future__ import annotations

import pytest

from mmgrpo.cli.corpus import alignment_text, compare, count, normal_of, scores, suitable
from mmgrpo.types import Prompt
from reward_models.rules.translation import corpus_bleu, corpus_chrf, corpus_interval

WER = ["one_minus_wer"]
CLIPS = [
    Prompt("", id="a", answer="The cat sat.", meta={"voice": "x", "take": 1}),
    Prompt("", id="b", answer="a dog", meta={"voice": "x", "take": 2}),
    Prompt("", id="c", answer="old words of mine", meta={"voice": "y", "take": 3}),
    Prompt("", id="d", answer="yes", meta={"voice": "y", "take": 4}),
    Prompt("", id="e", answer="no", meta={"voice": "y", "take": 5}),
    Prompt("", id="f", answer="up", meta={"voice": "y", "take": 6}),
]
SAID = ["the bat sat up", "a dog", "old words", "yes", "no", "up"]
"""One substituted and one inserted word of 3; right; two left out of 4; right three times: 4 errors in 12 words."""


def rows(texts):
    """Texts as samples: one of each prompt."""
    return [[text] for text in texts]


def counts(texts):
    return count(CLIPS, rows(texts), WER)


def whole(texts=SAID, rewards=WER, groups=(), worst=10):
    return scores(CLIPS, rows(texts), counts(texts), rewards, groups, worst)


def test_rates_are_of_all_words_and_errors_are_counted_by_kind():
    found = whole()
    assert found["wer"]["mean"] == pytest.approx(4 / 12) and found["wer"]["n"] == 6
    assert [found[kind] for kind in ("substituted", "deleted", "inserted", "words")] == [1, 2, 1, 12]
    # Letters: c for b and " up" of 11; " of mine" of 17; 5, 3, 2 and 2 are right: 4 + 8 errors in 40.
    assert found["cer"]["mean"] == pytest.approx(12 / 40)


def test_groups_are_those_of_meta_with_few_values_or_those_that_are_named():
    found = whole()
    # Six takes of six clips are no groups; x has 2 errors in 5 words, y 2 in 7.
    assert {name: list(parts) for name, parts in found["groups"].items()} == {"voice": ["x", "y"]}
    assert found["groups"]["voice"]["x"]["wer"]["mean"] == pytest.approx(2 / 5)
    assert found["groups"]["voice"]["y"]["wer"]["mean"] == pytest.approx(2 / 7)
    assert list(whole(groups=["take"])["groups"]["take"]) == list("123456")


def test_the_worst_clips_are_those_with_most_wrong_words():
    found = whole()
    assert [(row["id"], row["errors"]) for row in found["worst"]] == [("a", 2), ("c", 2)]
    assert [row["id"] for row in whole(worst=1)["worst"]] == ["a"]
    assert alignment_text(found["worst"][0]["aligned"]) == "the {bat for cat} sat [+up+]"
    assert alignment_text(found["worst"][1]["aligned"]) == "old words [-of-] [-mine-]"


def test_two_models_are_compared_clip_by_clip():
    found = compare(counts(SAID), counts(["the cat sat", *SAID[1:]]))
    assert found["wer"]["difference"]["mean"] == pytest.approx(-2 / 12) and found["wer"]["relative"] == -0.5
    assert found["wer"]["difference"]["high"] == 0 and found["cer"]["relative"] == pytest.approx(-4 / 12)


def test_translations_have_bleu_and_chrf_and_no_word_error_rate():
    rewards = ["sentence_bleu(tokenize='char')", "sentence_chrf"]
    assert count(CLIPS, rows(SAID), rewards) == []
    found = scores(CLIPS, rows(SAID), [], rewards, [], 10)
    assert found["bleu"]["mean"] == pytest.approx(corpus_bleu([p.answer for p in CLIPS], SAID, "char"))
    assert found["chrf"]["mean"] == pytest.approx(corpus_chrf([p.answer for p in CLIPS], SAID))
    assert "wer" not in found and found["worst"] == [] and "chrf" in found["groups"]["voice"]["y"]
    assert compare([], []) == {}
    by_word = scores(CLIPS, rows(SAID), [], ["sentence_bleu"], [], 10)
    assert by_word["bleu"]["mean"] == pytest.approx(corpus_bleu([p.answer for p in CLIPS], SAID, "13a"))
    # one such reward among others is enough
    assert scores(CLIPS, rows(SAID), [], ["exact", "sentence_chrf"], [], 10)["chrf"] == found["chrf"]


def test_the_interval_of_a_corpus_score_takes_several_references():
    perfect = corpus_interval("bleu", [["a b c d e", "x"], ["f g h i j"]], ["a b c d e", "f g h i j"])
    assert [perfect[key] for key in ("mean", "low", "high")] == pytest.approx([100, 100, 100]) and perfect["n"] == 2
    half = corpus_interval("chrf", [["a b c d e"], ["f g h i j"]], ["a b c d e", "z"])
    assert half["low"] < half["mean"] < half["high"]
    with pytest.raises(ValueError, match="1 hypotheses.*2"):
        corpus_interval("bleu", [["a"], ["b"]], ["a"])
    with pytest.raises(ValueError, match="one of each"):
        corpus_interval("bleu", [[]], ["a"])


HEARING = ["one_minus_wer", "exact_transcript"]


def test_rewards_suit_what_is_known_of_the_clips():
    assert suitable([Prompt("", answer="a")], False, HEARING) == HEARING
    translations = ["sentence_bleu", "sentence_chrf"]
    assert suitable([Prompt("", answer="a")], True, HEARING) == translations
    assert suitable([Prompt("", answer="a", task="translate")], False, HEARING) == translations
    assert suitable([Prompt("", answer=["a", "b"])], False, HEARING) == translations
    one_of_two = [Prompt("", answer="a"), Prompt("", answer="a", task="translate")]
    assert suitable(one_of_two, False, HEARING) == suitable(one_of_two[::-1], False, HEARING) == translations
    # Of a family that does not compare transcripts nothing is changed.
    assert suitable([Prompt("", answer=["a", "b"])], False, ["task"]) == ["task"]


def test_errors_of_several_samples_are_their_mean():
    # "the bat sat up" has two wrong words, "the cat sat" none; 1 and 0 letters of cat, and " up": 4 and 0.
    (one,) = count(CLIPS[:1], [["the bat sat up", "the cat sat"]], WER)
    assert one.errors == {"substituted": 0.5, "deleted": 0.0, "inserted": 0.5}
    assert (one.word_errors, one.words, one.letter_errors, one.letters) == (1.0, 3.0, 2.0, 11.0)


def test_other_rewards_report_nothing_of_a_corpus():
    assert count(CLIPS, rows(SAID), ["scene_all"]) == []
    assert scores(CLIPS, rows(SAID), [], ["scene_all"], [], 10) == {}
    assert scores(CLIPS, [], [], WER, [], 10) == {}  # nothing was written
    assert count(CLIPS, [], WER) == []


def test_references_without_words_have_no_rates():
    silent = [Prompt("", id="a", answer="", meta={"voice": "x"})] * 2
    nothing = count(silent, rows(["", "hm"]), WER)
    assert [one.words for one in nothing] == [0, 0] and compare(nothing, nothing) == {}
    found = scores(silent, rows(["", "hm"]), nothing, WER, [], 10)
    assert "wer" not in found and "words" not in found and found["clips"] == 2


def test_errors_of_all_clips_are_added():
    # one word of three is wrong, of two one more is said, and of one another
    found = whole(["the bat sat", "a dog dog", "old words of mine", "yes", "no no", "up"])
    assert [found[kind] for kind in ("substituted", "deleted", "inserted", "words")] == [1, 0, 2, 12]


def test_groups_have_several_values_and_three_clips_each_on_average():
    def groups(**values):
        clips = [Prompt("", id=str(n), answer="a", meta={k: v[n] for k, v in values.items()}) for n in range(6)]
        said = rows(["a"] * 6)
        return list(scores(clips, said, count(clips, said, WER), WER, [], 10)["groups"])

    assert groups(all="xxxxxx", two="xxxyyy", three="xxyyzz") == ["two"]
    assert groups(flag=[True, False] * 3, number=[1, 2] * 3, ratio=[0.5, 1.5] * 3) == ["flag", "number", "ratio"]
    assert groups(turns=[["a"], ["b"]] * 3, two="xyxyxy") == ["two"]


def test_a_normalization_is_that_of_the_first_reward_that_compares_transcripts():
    assert normal_of(["exact"]) == "" and normal_of(WER) == "language"
    assert normal_of(["exact", "neg_wer(normal='none')", "one_minus_wer"]) == "none"
