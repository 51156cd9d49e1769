"""The rule ``spoken``: what is spoken alike is equal, and two different numbers, signs or units never are."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

import pytest

from mmgrpo.types import Prompt, Text
from reward_models.rules import speech, spoken_forms, transcripts

pytest.importorskip("rapidfuzz")
pytest.importorskip("whisper_normalizer")

APOSTROPHES = "'\u2018\u2019\u201b\u0060\u00b4\u02b9\u02bb\u02bc\uff07\u2032"
EQUAL = [
    *[("en", f"I don{mark}t know what it{mark}s", "I don't know what it is") for mark in APOSTROPHES],
    ("en", "we’re here", "we're here"),
    ("en", "point five", "0.5"),
    ("en", "point five", ".5"),
    ("en", "three point one four", "3.14"),
    ("en", "one point ten point one", "1.10.1"),
    ("en", "fifty kilograms", "50kg"),
    ("en", "one thousand, two hundred and thirty-four", "1,234"),
    ("en", "two and a half million", "2,500,000"),
    ("en", "five per cent", "5%"),
    ("en", "$3.50", "three dollars and fifty cents"),
    ("en", "one hundred and first", "101st"),
    ("en", "it's been", "it has been"),
    ("zh", "百分之五十", "50%"),
    ("zh", "百分之负五", "-5%"),
    ("zh", "百分之百", "100％"),
    ("zh", "三点一四", "3.14"),
    ("zh", "三分之一", "1/3"),
    ("zh", "负五", "-5"),
    ("zh", "大约负五度", "大约-5度"),
    ("zh", "一亿五千万", "150,000,000"),
    ("zh", "三点五万", "3.5万"),
    ("zh", "三万零五", "30005"),
    ("zh", "二〇二四年", "2024年"),
    ("zh", "零五年", "05年"),
    ("de", "Es sind –5 %", "es sind -5%"),
    ("de", "L’eau", "l'eau"),
    ("de", "€5", "5 €"),
]
DIFFERENT = [
    ("en", "one percent", "one dollar"),
    ("en", "one percent", "one"),
    ("en", "the first dog", "the first cat"),
    ("en", "the nineties ended", "the nineties began"),
    ("en", "a = b", "a b"),
    ("en", "three point one", "three point one percent"),
    ("en", "version 1.10.1", "version one.10 one"),
    ("en", "one euro", "one"),
    ("en", "one euro", "one pound"),
    ("en", "one pound", "one cent"),
    ("en", "one cent", "1"),
    ("en", "five pounds of rice", "£5 of rice"),
    ("en", "Mario's castle", "Mario is castle"),
    ("en", "the boy's dog", "the boy is dog"),
    ("en", "twelve", "one two"),
    ("en", "1 2", "12"),
    ("en", "twenty, five", "twenty-five"),
    ("en", "one hundred; two", "102"),
    ("en", "10²", "102"),
    ("en", "10^2", "10 2"),
    ("en", "5 mW", "5 MW"),
    ("en", "5 Mb", "5 MB"),
    ("en", "5M", "5m"),
    ("en", "5′", "5″"),
    ("en", "-$5", "$5"),
    ("en", "- 5", "5"),
    ("en", "1/3", "1 3"),
    ("en", "3/5", "three fives"),
    ("en", "10:30", "1030"),
    ("en", "(five) dogs", "dogs"),
    ("en", "five six hundred", "56 hundred"),
    ("zh", "百分之五", "50%"),
    ("zh", "一百五", "105"),  # 150, or in Japanese 105
    ("zh", "一百五", "150"),
    ("zh", "三万五", "30005"),
    ("zh", "三五个", "三十五个"),
    ("zh", "二十三十", "五十"),
    ("zh", "50%", "50"),
    ("zh", "3.14", "314"),
    ("zh", "-5", "5"),
    ("zh", "10:30", "1030"),
    ("ja", "二百五", "二百五十"),
    ("de", "3,14", "314"),
    ("de", "-5", "5"),
    ("de", "5 %", "5"),
    ("de", "5 €", "5 $"),
    ("de", "10:30", "1030"),
    ("hi", "की", "क"),
    ("th", "ไม่ใช่", "ไมใช"),
]


def wer(language: str, reference: str, hypothesis: str) -> float:
    prompts, outputs = [Prompt("", "7", reference, "", {"language": language})], [Text(hypothesis)]
    return -speech.neg_wer(prompts, outputs, normal="spoken")[0]


@pytest.mark.parametrize(("language", "one", "other"), EQUAL)
def test_what_is_spoken_alike_is_equal_both_ways_round(language, one, other):
    assert wer(language, one, other) == wer(language, other, one) == 0


@pytest.mark.parametrize(("language", "one", "other"), DIFFERENT)
def test_what_differs_in_a_number_sign_or_unit_is_not(language, one, other):
    assert min(wer(language, one, other), wer(language, other, one)) > 0


@pytest.mark.parametrize(
    ("language", "reference", "rule"),
    [
        ("", "Hello", "spoken_english"),
        ("en", "三", "spoken_chinese"),
        ("", "三点一四", "spoken_chinese"),
        ("", "三つの点", "spoken_characters"),
        ("ja", "三点", "spoken_characters"),
        ("yue", "", "spoken_chinese"),
        ("th", "", "spoken_characters"),
        ("de", "", "spoken_basic"),
        ("", "नमस्ते", "spoken_basic"),
    ],
)
def test_the_form_is_that_of_the_language_else_of_the_letters(language, reference, rule):
    assert transcripts.spoken_rule_of(language, reference) == rule


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("二十五岁", "25 岁"),
        ("十", "10"),
        ("一百零五", "105"),
        ("一万两千三百四十五", "12345"),
        ("一亿二千万", "120000000"),
        ("一万亿", "1000000000000"),
        ("3万5千", "35000"),
        ("两个", "2 个"),
        ("万一", "万 1"),  # "just in case": no number begins with a power
        ("二十五六岁", "20 5 6 岁"),
        ("一百五", "100 5"),
        ("三又二分之一", "3 又 1/2"),
        ("下午三点十分", "下 午 3 点 10 分"),
        ("百分之百分之", "百 分 之 百 分 之"),
    ],
)
def test_chinese_numerals_are_digits(text, digits):
    assert spoken_forms.chinese(text) == digits


# --- thousands of numbers ---------------------------------------------------------------------------------------------

ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
ORDINALS = ["third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth"]
CHINESE = "零一二三四五六七八九"


def english(number: int) -> str:
    """A number below 10^9 in words."""
    for scale, name in ((10**6, " million"), (1000, " thousand"), (100, " hundred")):
        if number >= scale:
            rest = number % scale
            joint = " and " if rest < 100 else ", " if scale > 100 else " "
            return (
                f"{english(number // scale)}{name}{joint}{english(rest)}" if rest else english(number // scale) + name
            )
    if number < 20:
        return ONES[number]
    return TENS[number // 10 - 2] + (f"-{ONES[number % 10]}" if number % 10 else "")


def chinese(number: int) -> str:
    """A number below 10^9 in Chinese."""
    text, gap = "", False
    for scale, name in ((10**8, "亿"), (10**4, "万"), (1000, "千"), (100, "百"), (10, "十"), (1, "")):
        part, number = divmod(number, scale)
        if part:
            text += ("零" if text and (gap or (scale == 10**4 and part < 1000)) else "") + chinese_part(part) + name
        gap = bool(text) and not part and scale != 10**4
    return text or "零"


def chinese_part(number: int) -> str:
    return CHINESE[number] if number < 10 else chinese(number)


def forms_of(language: str, whole: int, decimals: str, below: int) -> Iterator[str]:
    """A whole number, one with decimals, or a fraction whose denominator is above 0, as it is written and spoken."""
    if below:
        yield f"{whole}/{below}"
        if language == "en":
            yield f"{english(whole)} {ORDINALS[below - 3]}{'s' if whole > 1 else ''}"
        if language == "zh":
            yield f"{chinese(below)}分之{chinese(whole)}"
        return
    point = "," if language == "de" else "."
    yield f"{whole}{point}{decimals}" if decimals else str(whole)
    if language == "en":
        digits = " ".join(ONES[int(digit)] for digit in decimals)
        yield english(whole) + (f" point {digits}" if decimals else "")
        yield (english(whole) + (f" point {digits}" if decimals else "")).replace("-", " ").replace(",", "")
        yield f"{whole:,}.{decimals}" if decimals else f"{whole:,}"
        if whole > 99 and not decimals:
            yield " ".join(ONES[int(digit)] for digit in str(whole))
    if language == "zh":
        yield chinese(whole) + ("点" + "".join(CHINESE[int(digit)] for digit in decimals) if decimals else "")
        if whole > 99 and not decimals:
            yield "".join(CHINESE[int(digit)] for digit in str(whole))


UNITS = {
    "en": (
        *(
            ("{}",),
            ("{}%", "{} percent", "{} per cent"),
            ("${}", "{} dollars"),
            ("€{}", "{} euros"),
            ("{} cents", "{}¢"),
        ),
        *(("£{}", "{} pounds sterling"), ("{} pounds", "{} lbs"), ("{} kg", "{} kilograms"), ("{} MB",), ("{} Mb",)),
        *(("{} mm", "{} millimetres"), ("{}°C", "{} degrees celsius"), ("{}°F",), ("{}°", "{} degrees"), ("{} mW",)),
        *(("{} MW",), ("{} mph", "{} miles per hour"), ("{} km/h",), ("{} ‰",), ("{}′",), ("{}″",)),
    ),
    "zh": (("{}",), ("{}%", "{}％"), ("{}‰",), ("${}",), ("€{}",), ("{}kg",), ("{}元",), ("{}度",), ("{}°C", "{}℃")),
    "de": (
        ("{}",),
        ("{} %", "{}%"),
        ("{} €", "€{}"),
        ("{} $",),
        ("{} kg",),
        ("{} °C",),
        ("{} °F",),
        ("{} ‰",),
        ("{} mW",),
    ),
}
SIGNS = {"en": {"": [""], "-": ["-", "−", "minus "], "+": ["+", "plus "]}}
SIGNS |= {"zh": {"": [""], "-": ["-", "−", "负"]}, "de": {"": [""], "-": ["-", "–", "−"], "+": ["+"]}}


@pytest.mark.parametrize(("language", "rule"), [("en", "english"), ("zh", "chinese"), ("de", "basic")])
def test_two_quantities_are_never_equal_and_the_forms_of_one_are(language, rule):
    """All pairs of hundreds of quantities in thousands of forms: each normalized text is that of one quantity alone."""
    draw, normalize = random.Random(7), transcripts.normalizer(f"spoken_{rule}")
    meanings, texts = defaultdict(set), defaultdict(set)
    for _ in range(500):
        whole = draw.choice([draw.randrange(20), draw.randrange(130), draw.randrange(10000), draw.randrange(10**8)])
        kind, decimals, below = draw.randrange(4), "", 0
        if kind == 0:
            whole, decimals = whole % 1000, str(draw.randrange(10, 1000))
        elif kind == 1:
            below = draw.randrange(3, 13)
            whole = draw.randrange(1, below)
        unit, sign = draw.choice(UNITS[language]), draw.choice(list(SIGNS[language]))
        quantity = (whole, decimals, below, unit, sign)
        for form in forms_of(language, *quantity[:3]):
            for template in unit:
                if template[0] in "$€£" and not form[0].isdecimal():
                    continue
                text = draw.choice(SIGNS[language][sign]) + template.format(form)
                meanings[normalize(text)].add(quantity)
                texts[quantity].add(normalize(text))
    assert len(meanings) > 400
    assert not [(text, quantities) for text, quantities in meanings.items() if len(quantities) > 1]
    assert not [one for one in texts.items() if len(one[1]) > 1]
