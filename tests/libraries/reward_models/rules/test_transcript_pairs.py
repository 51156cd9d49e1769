"""Pairs of what was said and its transcript: those that are right are worth 1 both ways round, the others less.

The pairs are our own; the normalizers of the field stand beside them (whisper-normalizer, which jiwer's users take).
"""

from __future__ import annotations

import unicodedata

import pytest

from mmgrpo.types import Prompt, Text
from reward_models.rules import speech, transcripts
from reward_models.rules.corpus import annotate, rates

pytest.importorskip("rapidfuzz")
pytest.importorskip("whisper_normalizer")


def value(reward: str, reference: str, hypothesis: str, language: str = "", **parameters) -> float:
    meta = {"language": language} if language else {}
    (single,) = getattr(speech, reward)([Prompt("", "7", reference, "", meta)], [Text(hypothesis)], **parameters)
    return single


RIGHT = [
    ("one two three", "1 2 3"),
    ("call nine one one", "call 9 1 1"),
    ("call nine one one", "Call 911."),
    ("five five five one two three four", "555-1234"),
    ("five five five one two three four", "5 5 5, 1 2 3 4"),
    ("five five five one two three four", "(555) 1234"),
    ("ten a m", "10:00 AM"),
    ("ten a.m.", "10 AM"),
    ("ten am", "10am"),
    ("at five p m", "at 5 PM"),
    ("at five p.m.", "at 5:00 p.m."),
    ("ten thirty p m", "10:30 PM"),
    ("ten oh five", "10:05"),
    ("ten o'clock", "10:00"),
    ("ten o'clock", "10 o'clock"),
    ("one a m", "1 AM"),
    ("minus one", "-1"),
    ("minus five degrees", "−5 degrees"),
    ("negative one", "-1"),
    ("minus three point five", "-3.5"),
    ("plus five", "+5"),
    ("twenty millimeters", "20mm"),
    ("twenty millimeters", "20 mm"),
    ("twenty millimetres", "20 millimeters"),
    ("one millimeter", "1mm"),
    ("five feet", "5 ft"),
    ("sixty miles per hour", "60 mph"),
    ("sixty kilometers per hour", "60 km/h"),
    ("twenty degrees celsius", "20°C"),
    ("twenty degrees", "20°"),
    ("three kilograms", "3kg"),
    ("one point five liters", "1.5 liters"),
    ("ok", "okay"),
    ("okay", "OK."),
    ("okay", "O.K."),
    ("okay", "o k"),
    ("two and a half", "2 1/2"),
    ("two and a half", "2½"),
    ("one half", "1/2"),
    ("one half", "½"),
    ("three quarters", "3/4"),
    ("number one", "#1"),
    ("number one", "No. 1"),
    ("A.I. is here", "AI is here"),
    ("info at example dot com", "info@example.com"),
    ("rock and roll", "rock & roll"),
    ("fifty percent", "50 %"),
    ("fifty percent", "50%"),
    ("five dollars", "$5"),
    ("five dollars", "$ 5"),
    ("five dollars and fifty cents", "$5.50"),
    ("fifty cents", "$0.50"),
    ("double o seven", "007"),
    ("zero zero seven", "007"),
    ("oh one two", "0 1 2"),
    ("twenty twenty five", "2025"),
    ("nineteen ninety nine", "1999"),
    ("a hundred", "100"),
    ("one thousand", "1,000"),
    ("one thousand", "1 000"),
    ("one and a half million", "1.5 million"),
    ("one million two hundred thousand", "1,200,000"),
    ("two thousand and nineteen", "2019"),
    ("the first", "the 1st"),
    ("July fourth", "July 4th"),
    ("the nineteen nineties", "the 1990s"),
    ("all right", "alright"),
    ("et cetera", "etc."),
    ("cats versus dogs", "cats vs. dogs"),
    ("email me", "e-mail me"),
    ("Mr. Colour", "mister color"),
    ("it's fine", "it is fine"),
    ("nine eleven", "9/11"),
    ("ten thirty", "10:30"),
    ("twelve point five percent", "12.5%"),
    ("-5 dollars", "minus five dollars"),
    ("one two three four five", "12345"),
    ("four five six", "4-5-6"),
    ("five euros", "€5"),
    ("three pounds", "3 lbs"),
    ("2 million", "two million"),
    ("café", "cafe"),
    ("hello, world!", "hello world"),
    ("two-thirds", "2/3"),
    ("he is six foot two", "he is 6 foot 2"),
    ("3 3 4", "334"),
    ("the USA", "the U.S.A."),
]
"""English, said and transcribed rightly."""

WRONG = [
    ("one two three", "one two four"),
    ("one two three", "1 2 4"),
    ("one two three", "1 2"),
    ("call nine one one", "call 9 1 2"),
    ("ten a m", "10:00 PM"),
    ("ten a m", "11 AM"),
    ("minus one", "1"),
    ("-1", "1"),
    ("minus one", "-2"),
    ("twenty millimeters", "20 cm"),
    ("twenty millimeters", "20"),
    ("twenty millimeters", "2 mm"),
    ("one half", "12"),
    ("twelve", "1/2"),
    ("ten o'clock", "ten"),
    ("okay", "no"),
    ("two and a half", "2"),
    ("five dollars", "5"),
    ("five dollars", "$6"),
    ("number one", "one"),
    ("fifty percent", "50"),
    ("fifty percent", "fifteen percent"),
    ("007", "7"),
    ("nineteen ninety nine", "1998"),
    ("twenty twenty five", "2020"),
    ("a hundred", "a thousand"),
    ("I am a man", "I am man"),
    ("I saw a cat", "I saw cat"),
    ("the u s a", "the uk"),
    ("cats versus dogs", "cats and dogs"),
    ("ten thirty", "10:31"),
    ("sixty miles per hour", "60 km/h"),
    ("twenty degrees celsius", "20°F"),
    ("twenty degrees celsius", "-20°C"),
    ("five feet", "5 inches"),
    ("info at example dot com", "info at example dot org"),
    ("two thousand", "200"),
    ("one million", "1000"),
    ("3.5", "35"),
    ("point five", "5"),
    ("fifteen", "50"),
    ("one hundred twenty", "10020"),
    ("plus five", "-5"),
    ("4th", "4"),
    ("twelve point five percent", "12%"),
    ("ten fifteen", "10 50"),
]
"""English, transcribed wrongly."""

OTHER_RIGHT = [
    ("", "今天天气很好", "今天天气很好。"),
    ("zh", "我有二十五本书", "我有25本书"),
    ("zh", "二〇二四年", "2024年"),
    ("zh", "三万五千人", "35000人"),
    ("zh", "一百零五", "105"),
    ("zh", "电话是一三八零零", "电话是13800"),
    ("zh", "我用iPhone", "我用 ｉＰｈｏｎｅ"),
    ("Chinese", "你好，世界！", "你好世界"),
    ("ja", "今日は良い天気です", "今日は、良い天気です。"),
    ("ja", "がっこう", unicodedata.normalize("NFD", "がっこう")),
    ("ja", "カタカナ", "ｶﾀｶﾅ"),
    ("th", "สวัสดีครับ", "สวัสดี ครับ"),
    ("", "नमस्ते दुनिया", "नमस्ते, दुनिया!"),
    ("hi", "हिन्दी में बोलो", "हिन्दी में बोलो।"),
    ("ko", "안녕하세요 여러분", unicodedata.normalize("NFD", "안녕하세요 여러분")),
    ("ru", "Привет, как дела?", "привет как дела"),
    ("de", "Das ist um zehn Uhr.", "das ist um zehn uhr"),
    ("de", "schön", unicodedata.normalize("NFD", "schön")),
    ("fr", "C'est très différent", "c'est très différent"),
    ("es", "¿Qué tal?", "qué tal"),
    ("ar", "مرحبا بالعالم", "مرحبا بالعالم!"),
]
"""Language of the row, reference and a right transcript."""
OTHER_WRONG = [
    ("", "今天天气很好", "今天天气不好"),
    ("zh", "我有二十五本书", "我有26本书"),
    ("zh", "一百零五", "150"),
    ("zh", "三万五千人", "3500人"),
    ("ja", "がっこう", "かっこう"),
    ("ja", "カード", "カド"),
    ("th", "ไม่ใช่", "ไมใช"),
    ("hi", "हिन्दी की किताब", "हनद क कतब"),
    ("", "की", "क"),
    ("", "नमस्ते दुनिया", "नमस्ते दुनय"),
    ("ko", "안녕하세요 여러분", "안녕하세요 여러"),
    ("ru", "Привет", "Приват"),
    ("ru", "всё", "все"),
    ("de", "schön", "schon"),
    ("de", "Das ist um zehn Uhr", "das ist zehn uhr"),
    ("fr", "a été", "a ete"),
    ("es", "el año", "el ano"),
    ("ar", "مرحبا", "مرحب"),
]
"""Language of the row, reference and a wrong transcript: marks of vowels and accents count."""

REWARDS = ("one_minus_wer", "exact_transcript", "one_minus_cer", "cer_wer_blend", "exp_wer", "tanh_cer")


@pytest.mark.parametrize(("spoken", "written"), RIGHT)
def test_a_right_transcript_is_worth_one_both_ways_round(spoken, written):
    for reward in REWARDS:
        assert value(reward, spoken, written) == value(reward, written, spoken) == 1, reward
    assert value("neg_errors", spoken, written) == value("hallucination", spoken, written) == 0


@pytest.mark.parametrize(("spoken", "written"), WRONG)
def test_a_wrong_transcript_is_worth_less_both_ways_round(spoken, written):
    for reward in REWARDS:
        assert max(value(reward, spoken, written), value(reward, written, spoken)) < 1, reward


@pytest.mark.parametrize(("language", "reference", "transcript"), OTHER_RIGHT)
def test_a_right_transcript_of_another_language_is_worth_one(language, reference, transcript):
    for reward in REWARDS:
        assert value(reward, reference, transcript, language) == 1, reward


@pytest.mark.parametrize(("language", "reference", "transcript"), OTHER_WRONG)
def test_a_wrong_transcript_of_another_language_is_worth_less(language, reference, transcript):
    for reward in REWARDS:
        assert value(reward, reference, transcript, language) < 1, reward


def test_there_are_pairs_enough_of_both_kinds():
    assert len(RIGHT) + len(OTHER_RIGHT) >= 90 and len(WRONG) + len(OTHER_WRONG) >= 50


def test_what_the_fields_own_rule_finds_equal_is_equal_here_and_more_is_told_right():
    from whisper_normalizer.basic import BasicTextNormalizer
    from whisper_normalizer.english import EnglishTextNormalizer

    ours, english, basic = transcripts.normalizer("english"), EnglishTextNormalizer(), BasicTextNormalizer()
    told = {
        name: [rule(a).split() == rule(b).split() for a, b in RIGHT]
        + [rule(a).split() != rule(b).split() for a, b in WRONG]
        for name, rule in (("ours", ours), ("english", english), ("basic", basic))
    }
    right = {name: sum(one) for name, one in told.items()}
    assert right["ours"] == len(RIGHT) + len(WRONG)
    # Theirs take 1/2 for 1 2, -1 for 1, 20 mm for 20, 007 for 7, O.K. for 0 k.
    assert right["english"] < right["ours"] - 30 and right["basic"] < right["ours"] - 50


# --- the rule of a row ------------------------------------------------------------------------------------------------


def test_one_wrong_of_six_chinese_characters_is_a_sixth():
    for language in ("", "zh", "zh-CN", "Chinese", "en"):  # of letters that are plainly not English
        assert value("one_minus_wer", "今天天气很好", "今天天气很坏", language) == pytest.approx(5 / 6)
        assert value("one_minus_cer", "今天天气很好", "今天天气很坏", language) == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    ("language", "reference", "rule"),
    [
        ("", "Hello there", "english"),
        ("", "", "english"),
        ("", "123", "english"),
        ("", "naïve café", "english"),
        ("en-GB", "Hello", "english"),
        ("English", "Hello", "english"),
        ("de", "Hallo", "basic"),
        ("pt_BR", "olá", "basic"),
        ("", "Привет", "basic"),
        ("", "我用 iPhone 打电话", "characters"),
        ("", "이것은 AI 입니다", "basic"),
        ("", "an essay on 道 by Laozi", "english"),
        ("yue", "hello", "characters"),
        ("Khmer", "", "characters"),
        ("en", "Привет", "basic"),
    ],
)
def test_the_rule_is_that_of_the_language_else_of_the_letters(language, reference, rule):
    assert transcripts.rule_of(language, reference) == rule
    meta = {"language": language} if language else {}
    assert transcripts.rule_for(Prompt("", "1", reference, "", meta), transcripts.BY_LANGUAGE, reference) == rule


@pytest.mark.parametrize(("reference", "fitting"), [("今天天气很好", "characters"), ("नमस्ते दुनिया", "basic")])
def test_the_english_rule_is_refused_for_other_letters_by_row(reference, fitting):
    with pytest.raises(ValueError, match=f"'7'.*normal='english.*normal='{fitting}"):
        value("one_minus_wer", reference, reference, normal="english")


def test_rates_and_notes_follow_the_rule_of_each_row():
    """One of six characters and none of two words: 1 error of 8."""
    prompts = [Prompt("", "0", "今天天气很好"), Prompt("", "1", "ten a.m.")]
    outputs = [Text("今天天气很坏"), Text("10 AM")]
    wer, cer = rates()
    assert (sum(wer.errors(prompts, outputs)), sum(wer.units(prompts, outputs))) == (1, 8)
    assert (sum(cer.errors(prompts, outputs)), sum(cer.units(prompts, outputs))) == (1, 11)
    first, second = annotate()(prompts, outputs)
    assert [kind for kind, *_ in first["aligned"]] == ["equal"] * 5 + ["replace"]
    assert second["aligned"] == [("equal", "10", "10"), ("equal", "am", "am")]
    corpus = [["今天天气很好", "ten a.m."], ["今天天气很坏", "10 AM"]]
    assert transcripts.corpus_wer(*corpus, transcripts.BY_LANGUAGE) == 1 / 8
    assert transcripts.corpus_cer(*corpus, transcripts.BY_LANGUAGE) == 1 / 11


def test_raw_text_is_compared_as_composed_characters():
    assert value("exact_transcript", "Café", unicodedata.normalize("NFD", "Café"), normal="raw") == 1
    assert value("exact_transcript", "Café", "Cafe", normal="raw") == 0


def test_traditional_characters_are_simplified_ones_where_that_is_asked_for(monkeypatch):
    pytest.importorskip("opencc")
    transcripts.normalizer.cache_clear()
    assert value("one_minus_wer", "這是漢語", "这是汉语", normal="chinese") == 1
    assert value("one_minus_wer", "這是漢語", "这是汉字", normal="chinese") == 0.75


def test_the_package_for_traditional_characters_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "opencc", None)
    transcripts.normalizer.cache_clear()
    with pytest.raises(ModuleNotFoundError, match="opencc"):
        value("one_minus_wer", "這", "这", normal="chinese")


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("二十五岁", "25岁"),
        ("十", "10"),
        ("十二", "12"),
        ("一百零五", "105"),
        ("一万两千三百四十五", "12345"),
        ("一亿二千万", "120000000"),
        ("3万5千", "35000"),
        ("二〇二四", "2024"),
        ("两个", "2个"),
        ("万一", "万1"),  # "just in case": no number begins with a power
        ("没有数字", "没有数字"),
    ],
)
def test_chinese_numerals_are_digits(text, digits):
    assert transcripts.numerals(text) == digits
