"""Transcripts with numbers, signs and units as spoken: "5 °C" and "five degrees Celsius", 百分之五十 and 50%.

The option ``normal='spoken'`` of the rewards of transcripts. Whisper's rule, the default, reads "one percent", "one
dollar" and "one" alike; this one reads more forms as equal, and never two different numbers, signs or units. Where a
form is ambiguous it keeps to one reading, at the cost of a right transcript in the other: "five pounds" is a weight,
and "£5" five pounds sterling. Three or more single digits in a row are one string of digits, as in a telephone number
("nine one one" and "911"); two are two numbers ("one two" is not "twelve").

Numbers in words are read in English and Chinese. In all other languages a number is compared as it is written, with its
sign, decimals and unit. Text in brackets counts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction

APOSTROPHES = "\u2018\u2019\u201b\u0060\u00b4\u02b9\u02bb\u02bc\u02c8\uff07"
HYPHENS = "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"
SPACES = "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u3000"
_FOLDS = str.maketrans(
    {
        **dict.fromkeys(APOSTROPHES, "'"),
        **dict.fromkeys(HYPHENS, "-"),
        **dict.fromkeys(SPACES, " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u200e\u200f\u00ad", ""),
        **dict.fromkeys("\u201c\u201d\u201e", '"'),
        "º": "°",
        "˚": "°",
    }
)
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉"
_POWERS = {"²": " squared ", "³": " cubed "}

_CASED = re.compile(r"(?<![^\W\d_])(?:m(W|V|A|J|N|Hz|Pa|Ω)|(?:M(g|s|m|l)|(?<=\d)M)|([KMGT])b)(?![^\W\d_])")
"""Symbols of units that are others in lower case: mW and MW, Mb and MB, 5M and 5m."""
_BITS = {"K": "kilobits", "M": "megabits", "G": "gigabits", "T": "terabits"}


def _prefixed_unit(match: re.Match[str]) -> str:
    milli, mega, bits = match.groups()
    return f" {_BITS[bits] if bits else f'milli{milli}' if milli else f'mega{mega or str()}'} "


def plain(text: str) -> str:
    """A text in lower case and compatibility forms (NFKC), with one kind of apostrophe, hyphen and digit; what these
    forms would merge into a number stands apart: 2½, 10², 10₂, 5″.

    >>> plain("I don’t know: 2½, 10², ５％")
    "i don't know: 2 1/2 , 10 squared , 5%"
    """
    text = re.sub(r"(?<=[^\W\d_])\u2032(?=[^\W\d_])", "'", text)
    text = re.sub(r"\u2033|\u2032\u2032", " \ue002 ", text).replace("\u2032", " \ue001 ")
    if text.count("'") == 1:
        text = re.sub(r"(?<=\d)'(?!\w)", " \ue001 ", text)
    if text.count('"') == 1:
        text = re.sub(r'(?<=\d)"(?!\w)', " \ue002 ", text)
    text = re.sub(
        r"(?<![\d.,])\d{1,3}(?:[\u00a0\u202f\u2009]\d{3})+(?!\d)", lambda match: re.sub(r"\s", "", match[0]), text
    )
    text = text.translate(_FOLDS)
    text = re.sub(
        f"(?<=[0-9A-Za-zΩμ)])[{_RAISED}]+",
        lambda match: _POWERS.get(match[0]) or f" to the {unicodedata.normalize('NFKC', match[0])} ",
        text,
    )
    text = re.sub(f"(?<=\\d)[{_LOWERED}]+", lambda match: f" base {unicodedata.normalize('NFKC', match[0])} ", text)
    text = "".join(
        f" {form} " if unicodedata.decomposition(letter).startswith("<fraction>") else form
        for letter, form in ((letter, unicodedata.normalize("NFKC", letter)) for letter in text)
    )
    text = unicodedata.normalize("NFKC", text).translate(_FOLDS).replace("\u2044", "/")
    text = "".join(str(unicodedata.decimal(letter, letter)) for letter in text)
    text = text.replace("\ue001", "′").replace("\ue002", "″")
    return _CASED.sub(_prefixed_unit, text).lower()


def symbols(letter: str) -> bool:
    """Whether a sign is a word of its own: of currency, of mathematics, of a unit."""
    return letter in "%‰‱°′″^" or unicodedata.category(letter) in ("Sc", "Sm")


# --- languages of which numbers are compared as they are written ------------------------------------------------------

_CURRENCY = "$€£¥¢₹₩₽₺₴₫₪"
_SIGN = r"(?:(?<![\w)])|(?<=[\u3040-\u30ff\u3400-\u9fff]))[-+]\s?"
"""A sign, and no hyphen: not behind a letter or digit, except of a script without spaces."""
_WRITTEN = re.compile(rf"(?:{_SIGN})?\d+(?:[.,:/]\d+)*")


def basic(text: str) -> str:
    """Words, with marks and accents, and numbers as they are written, sign and unit included.

    >>> basic("Es sind –5 % bzw. €3,14."), basic("कि 10:30")
    ('es sind -5 % bzw 3,14 €', 'कि 10:30')
    """
    return " ".join(token for token, _ in _tokens(plain(text)))


def characters(text: str) -> str:
    """``basic`` with every character a word, and every number one.

    >>> characters("ไม่ใช่ 3.5%")
    'ไ ม ่ ใ ช ่ 3.5 %'
    """
    return " ".join(token if number else " ".join(token) for token, number in _tokens(plain(text)))


def _tokens(text: str) -> Iterator[tuple[str, bool]]:
    """Words, signs and numbers of a text, and for each whether it is a number."""
    text = re.sub(rf"({_SIGN})([{_CURRENCY}])\s?(?=\d)", r"\2\1", text)
    text = re.sub(rf"([{_CURRENCY}])\s?((?:[-+]\s?)?\d+(?:[.,:/]\d+)*)", r"\2 \1", text)
    end = 0
    for match in _WRITTEN.finditer(text):
        yield from ((word, False) for word in _words(text[end : match.start()]))
        yield match[0].replace(" ", ""), True
        end = match.end()
    yield from ((word, False) for word in _words(text[end:]))


def _words(text: str) -> list[str]:
    kept = (
        f" {letter} " if symbols(letter) else letter if unicodedata.category(letter)[0] in "LMN" else " "
        for letter in text
    )
    return "".join(kept).split()


# --- Chinese ----------------------------------------------------------------------------------------------------------

_DIGITS = {**{digit: value for value, digit in enumerate("零一二三四五六七八九")}, "〇": 0, "两": 2, "兩": 2}
_SMALL = {"十": 10, "百": 100, "千": 1000}
_LARGE = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_ASCII = re.compile(r"\d+(?:\.\d+)?")
_IN_DIGITS = re.compile(r"\d+(?:[.,:/]\d+)*")
_FOLLOWS_CLOCK = "分刻钟鐘时時十百千"


def chinese(text: str) -> str:
    """``characters`` with Chinese numerals as digits: 二十五 and 25, 负五 and -5, 三点一四 and 3.14, 三分之一 and 1/3,
    百分之五十 and 50%. 一百五 is no number: it may be 150 and 105.

    >>> chinese("二十五岁，一百零五万，二〇二四年")
    '25 岁 1050000 2024 年'
    """
    text = re.sub(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", lambda match: match[0].replace(",", ""), plain(text))
    digits = "".join(_DIGITS)
    return characters(numerals(re.sub(f"(?<=[{digits}])-(?=[{digits}])", " ", text)))


def numerals(text: str) -> str:
    """A text with each Chinese numeral in digits between spaces.

    >>> numerals("负三万五千"), numerals("3.5万"), numerals("千分之二"), numerals("三五个")
    (' -35000 ', ' 35000 ', ' 2‰ ', ' 3  5 个')
    """
    parts, place = [], 0
    while place < len(text):
        form, end = _numeral(text, place)
        parts.append(f" {form} " if form else text[place])
        place = end if form else place + 1
    return "".join(parts)


def _numeral(text: str, start: int) -> tuple[str, int]:
    """The numeral that begins at a place, in digits, and its end; an empty text where there is none."""
    place, sign, unit = start, "", ""
    if text[place] in "负負":
        sign, place = "-", place + 1
    for words, symbol in (("百分之", "%"), ("千分之", "‰")):
        if text.startswith(words, place):
            unit, place = symbol, place + len(words)
    if unit and not sign and text[place : place + 1] in ("负", "負"):
        sign, place = "-", place + 1
    if unit and text.startswith("百", place) and not text.startswith("百分", place):
        return f"{sign}100{unit}", place + 1
    form, end = _read_unsigned(text, place) if place < len(text) else ("", start)
    return (f"{sign}{form}{unit}", end) if form else ("", start)


def _read_unsigned(text: str, start: int) -> tuple[str, int]:
    """The whole number, decimal or fraction at a place, and its end."""
    written = _IN_DIGITS.match(text, start)
    if written and text[written.end() : written.end() + 1] not in (*_SMALL, *_LARGE):
        return written[0], written.end()
    if not (text[start] in _DIGITS or text[start] == "十" or written):
        return "", start
    form, end = _decimal(text, start)
    if form and text.startswith("分之", end) and form.isdecimal() and end + 2 < len(text):
        top, after = _decimal(text, end + 2)
        if top.isdecimal():
            return f"{top}/{form}", after
    return form, end


def _decimal(text: str, start: int) -> tuple[str, int]:
    run = re.compile(f"[{''.join(_DIGITS)}]*").match(text, start)
    length = len(run[0]) if run else 0
    if length > 1 and text[start + length : start + length + 1] not in (*_SMALL, *_LARGE):
        if length == 2 and _DIGITS[text[start]]:  # 三五个: three or five
            return str(_DIGITS[text[start]]), start + 1
        form, end = "".join(str(_DIGITS[digit]) for digit in text[start : start + length]), start + length
    elif length > 1 and text[start + length : start + length + 1] in (*_SMALL, *_LARGE) and _DIGITS[text[start]]:
        return str(_DIGITS[text[start]]), start + 1  # 三五百
    else:
        value, end = _whole(text, start)
        if value is None:
            return "", start
        form = _in_digits(value)
    fraction = re.compile(f"点([{''.join(_DIGITS)}]+)(?![{_FOLLOWS_CLOCK}])").match(text, end)
    if fraction and not text[start].isdecimal() and "." not in form and len(fraction[1]) < LONGEST:
        form, end = f"{form}.{''.join(str(_DIGITS[digit]) for digit in fraction[1])}", fraction.end()
        if scale := _LARGE.get(text[end : end + 1]):
            form, end = _in_digits(Fraction(form) * scale), end + 1
    return form, end


def _whole(text: str, start: int) -> tuple[Fraction | None, int]:
    """A numeral of powers of ten (3万5千, 一百零五), and its end; None where it is not well formed or only digits."""
    total, limit, place = Fraction(0), 0, start
    while True:
        zero = bool(limit) and text[place : place + 1] in ("零", "〇") and place < len(text)
        part, end, powers = _section(text, place + zero)
        if part is None:
            break
        scale = _LARGE.get(text[end : end + 1], 0)
        if scale and (not limit or scale < limit):
            total, limit, place = total + part * scale, scale, end + 1
            if (further := _LARGE.get(text[place : place + 1], 0)) > limit:  # 万亿
                total, limit, place = total * further, further, place + 1
        elif scale or (limit and not (zero or powers)):  # 三万五
            break
        else:
            return total + part, end
    return (total, place) if limit else (None, start)


def _section(text: str, start: int) -> tuple[Fraction | None, int, bool]:
    """A numeral below 10^4 or a number in digits, its end, and whether it has a power of ten."""
    number = _ASCII.match(text, start)
    if number and len(number[0]) < LONGEST and text[number.end() : number.end() + 1] not in _SMALL:
        return Fraction(number[0]), number.end(), False
    value, last, place = 0, 10**4, start
    while True:
        powers = last < 10**4
        zero = powers and text[place : place + 1] in ("零", "〇") and place < len(text)
        letter = text[place + zero : place + zero + 1]
        if letter == "十" and last > 10 and (zero or not powers):
            digit, end = 1, place + zero
        elif letter and (_DIGITS.get(letter) or letter.isdecimal()):
            digit, end = _DIGITS.get(letter, int(letter) if letter.isdecimal() else 0), place + zero + 1
        elif letter in ("零", "〇") and not powers:
            return Fraction(0), place + 1, False
        else:
            break
        power = _SMALL.get(text[end : end + 1], 0)
        if power and power < last:
            value, last, place = value + digit * power, power, end + 1
            continue
        further = text[end : end + 1] in _DIGITS and end < len(text)
        if power or further or (powers and last > 10 and not zero):  # 二十五六, 一百五
            break
        return Fraction(value + digit), end, powers
    return (Fraction(value), place, True) if last < 10**4 else (None, start, False)


def _in_digits(value: Fraction) -> str:
    """A number in digits: whole, or with all of its decimals."""
    if value.denominator == 1:
        return str(value.numerator)
    places = next(places for places in range(1, 400) if 10**places % value.denominator == 0)
    digits = f"{value.numerator * 10**places // value.denominator:0{places + 1}d}"
    return f"{digits[:-places]}.{digits[-places:]}"


FORMS: Mapping[str, Callable[[str], str]] = {"basic": basic, "characters": characters, "chinese": chinese}
"""Forms that need no table; that of English is ``english``."""


# --- English ----------------------------------------------------------------------------------------------------------

ONES = {
    name: value
    for value, name in enumerate(
        ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
        start=1,
    )
}
TEENS = {
    **{"ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16},
    **{"seventeen": 17, "eighteen": 18, "nineteen": 19},
}
TENS = {
    **{"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90},
}
SCALES = {
    "thousand": 10**3,
    **{f"{name}illion": 10 ** (3 * n) for n, name in enumerate(("m", "b", "tr", "quadr", "quint"), start=2)},
}
DIGIT_WORDS = {"zero": 0, "oh": 0, "o": 0, **ONES}


def _ordinal(name: str) -> str:
    irregular = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}
    return irregular.get(name) or (
        "twelfth" if name == "twelve" else f"{name[:-1]}ieth" if name[-1] == "y" else f"{name}th"
    )


ORDINALS = {_ordinal(name): value for name, value in {**ONES, **TEENS, **TENS, "hundred": 100, **SCALES}.items()}
DENOMINATORS = {"half": 2, "quarter": 4, **{name: value for name, value in ORDINALS.items() if value > 2}}
PARTS = {**DENOMINATORS, "halves": 2, **{f"{name}s": value for name, value in DENOMINATORS.items() if name != "half"}}
DECADES = {f"{name[:-1]}ies": value for name, value in TENS.items()}

UNITS = {
    **{"mm": "millimeters", "cm": "centimeters", "km": "kilometers", "kg": "kilograms", "mg": "milligrams"},
    **{"ml": "milliliters", "kb": "kilobytes", "mb": "megabytes", "gb": "gigabytes", "tb": "terabytes"},
    **{"hz": "hertz", "khz": "kilohertz", "mhz": "megahertz", "ghz": "gigahertz", "kw": "kilowatts"},
    **{"kwh": "kilowatt hours", "km/h": "kilometers per hour", "kmh": "kilometers per hour"},
    **{"kph": "kilometers per hour", "mph": "miles per hour", "lb": "pounds", "lbs": "pounds", "oz": "ounces"},
    **{"ft": "feet", "foot": "feet", "ms": "milliseconds", "°": "degrees", "°c": "degrees celsius"},
    **{"°f": "degrees fahrenheit", "′": "′", "″": "″"},
}
"""Symbols of units behind a number to their words; those of one letter mean too many things."""
_PREFIXES = ("", "milli", "centi", "kilo", "mega", "giga", "tera")
_PREFIXED = ("meter", "liter", "gram", "watt", "byte", "bit", "second")
_PLAIN = ("mile", "pound", "ounce", "degree", "dollar", "euro", "cent", "rupee", "minute", "hour")
SINGULARS = {name: f"{name}s" for name in (*_PLAIN, *(f"{prefix}{unit}" for prefix in _PREFIXES for unit in _PREFIXED))}
"""Names of units behind a number, which are written alike for one and for several."""
del SINGULARS["second"]  # "a twenty second clip", the 2nd
CURRENCIES = {"$": "dollars", "€": "euros", "£": "pounds sterling", "¥": "yen", "₹": "rupees", "₩": "won", "¢": "cents"}
CENTS = re.compile(r"(\d+)\.(\d\d)")
MEASURES = frozenset(
    word
    for words in (*UNITS.values(), *SINGULARS.values(), *CURRENCIES.values(), "minus plus percent permille am pm")
    for word in words.split()
) - {"per"}
"""Words of signs and units of a text that was normalized."""

LONGEST = 100
"""Digits and marks of a number that is read; a longer one is compared as it is written."""
_COMMA, _BREAK = ",", "."
"""Where punctuation separates words, so "twenty, five" is not 25."""
_MONEY = re.compile(
    r"([$€£¥₹₩])\s?(\d+(?:\.\d+|(?:/\d+)*))(?![\d./]*\d)((?:\s|-)(?:hundred|thousand|[mb]illion|trillion)\b)?"
)
_HOURS = "|".join((*ONES, "ten", "eleven", "twelve", "oclock", "fifteen", *list(TENS)[:4]))
Replacement = str | Callable[[re.Match[str]], str]


def _money(match: re.Match[str]) -> str:
    sign, number, scale = match.groups()
    return f" {number}{scale or ''} {CURRENCIES[sign]} "


_ALIKE: Sequence[tuple[re.Pattern[str], Replacement]] = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<![\w.,/])\d{1,3}(?:,\d{3})+(?!\d|,\d)", lambda match: match[0].replace(",", "")),
        (r"(?<![\w.,/])(\d{1,3})((?: 000)+)(?!\d| \d|[.,]\d)", lambda match: match[0].replace(" ", "")),
        (r"(?<![\w.])\.(?=\d)", "0."),
        (r"(?<!\w)\((\d{3})\)\s?(?:(\d{3})-)?(\d{4})(?![\w-])", r" \1\2\3 "),
        (r"(?<![\w.-])(\d{3})-(\d{3})-(\d{4})(?![\w-]|\.\d)", r" \1\2\3 "),
        (r"(?<![\w.-])(\d{3})-(\d{4})(?![\w-]|\.\d)", r" \1\2 "),
        (r"(?<![\w)])-\s?(?=[$€£¥₹₩]?\s?\d)", " minus "),
        (r"(?<=\d) - (?=\d)", " minus "),
        (rf"(?<![\w)])-(?=(?:zero|point|{'|'.join((*ONES, *TEENS, *TENS))})\b)", " minus "),
        (r"\+", " plus "),
        (r"([$€£¥₹₩])\s+(?=\d)", r"\1"),
        (r"([$€£¥₹₩])\s?minus\s+", r" minus \1"),
        (_MONEY.pattern, _money),
        (r"[$€£¥₹₩¢]", lambda match: f" {CURRENCIES[match[0]]} "),
        (r"\bo\s?\.\s?k\b\.?|\bo k\b|\bok\b", "okay"),
        (r"\balright\b", "all right"),
        (r"\bet cetera\b|\betc\b\.?", "etcetera"),
        (r"\bvs\b\.?", "versus"),
        (r"\be-mail", "email"),
        (r"\bwi-fi\b", "wifi"),
        (r"\ba (?=(?:hundred|thousand|million|billion|trillion)\b)", "one "),
        (r"\bo'\s?clock\b|\bo clock\b", "oclock"),
        (rf"(\d|\b(?:{_HOURS}))\s*([ap])\s?\.?\s?m\b\.?", r"\1 \2m"),
        (r"(?<![\d.:])(\d{1,2})[:.]00(?=\s*[ap]m\b)", r"\1"),
        (r"(?<![\d.:])(\d{1,2}):00(?![:\d])", r"\1 oclock"),
        (r"(?<=\d):(?=\d)", " "),
        (r"\b(?:[a-z]\.){2,}(?:[a-z]\b)?", lambda match: match[0].replace(".", "") + " "),
        (r"(\w)@(\w)", r"\1 at \2"),
        (r"(\w)\.(com|org|net|edu|gov)\b", r"\1 dot \2"),
        (r"&", " and "),
        (r"#\s?(?=\d)|\bno\.\s?(?=\d)", "number "),
        (r"%|\bper cent\b", " percent "),
        (r"‰", " permille "),
        (r"(?<=\d)'s\b", "s"),
        (r"(?<![\w/.])(\d+)(?:\s+|-)(1/2|1/4|3/4)(?![\d/])", lambda match: match[1] + _QUARTERS[match[2]]),
        (r"(\d\s?[a-z°]+)/(?!h\b)([a-z]+)", r"\1 per \2"),
        (r"\b(it|he|she|that|this|what|who|where|there|here|how|when|why)'s\b(?! (?:been|gone|got)\b)", r"\1 is"),
    )
]
"""What is spoken alike, in order: patterns of lower-case text and what they become."""
_QUARTERS = {"1/2": ".5", "1/4": ".25", "3/4": ".75"}
_ENGLISH = re.compile(
    r"km/h|°[cf]?\b|°|\d+(?:/\d+)+(?!\d|\.\d)|\d+(?:\.\d+)*(?:(?:st|nd|rd|th|s)\b)?|[^\W\d_]+|(?<=\d)[/*^](?=\d)|[.,;:!?\u2014]"
)


def english(spellings: Mapping[str, str]) -> Callable[[str], str]:
    """The English form, with a table of spellings (colour: color).

    >>> english({})("Call 555-1234 at 10:00 AM, it's -1°C")
    'call 5551234 at 10 am it is minus 1 degrees celsius'
    """
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer, remove_symbols_and_diacritics

    contractions = [
        (re.compile(pattern), replacement)
        for pattern, replacement in EnglishTextNormalizer({}).replacers.items()
        if pattern != r"'s\b"
    ]

    def normalize(text: str) -> str:
        text = re.sub(r"(?<!\s)\s+'", "'", plain(text)) if " '" in text else plain(text)
        for pattern, replacement in (*_ALIKE, *contractions):
            text = pattern.sub(replacement, text)
        text = "".join(
            f" {letter} " if unicodedata.category(letter) in ("Sc", "Sm") else letter
            for letter in text.replace("'", "")
        )
        words = _split(text, remove_symbols_and_diacritics)
        return " ".join(spellings.get(word, word) for word in _join_units(list(_numbers(words))))

    return normalize


def _split(text: str, clean: Callable[[str], str]) -> list[str]:
    """Words, numbers and breaks of a text."""
    words: list[str] = []
    for part in text.split():
        if len(part) == 1 and symbols(part) and part != "°":
            words.append(part)
            continue
        letters = "".join(
            letter if letter in ".,;:!?/*^°′″\u2014" or letter.isdecimal() else clean(letter) or ""
            for letter in unicodedata.normalize("NFKD", part)
        )
        for match in _ENGLISH.finditer(letters):
            words.append(_BREAK if match[0] in ".;:!?\u2014" else match[0])
        words += [letter for letter in letters if letter in "′″"]
    return words


def _join_units(words: Sequence[str]) -> list[str]:
    """Words behind numbers as units, without hesitations; signs before numbers; dollars and cents without "and"."""
    result: list[str] = []
    for place, word in enumerate(words):
        counted = bool(result) and result[-1][0].isdecimal()
        following = words[place + 1] if place + 1 < len(words) else ""
        if word == "negative" and following[:1].isdecimal():
            result.append("minus")
        elif counted and word in UNITS:
            result += UNITS[word].split()
        elif counted and word in ("dollar", "dollars", "euro", "euros") and (amount := CENTS.fullmatch(result[-1])):
            result.pop()
            parts = zip(amount.groups(), (SINGULARS.get(word, word), "cents"), strict=True)
            result += [part for number, unit in parts if int(number) for part in (str(int(number)), unit)]
            result += [] if amount[0].strip("0.") else ["0", SINGULARS.get(word, word)]
        elif counted and word in SINGULARS:
            result.append(SINGULARS[word])
        elif word == "and" and result[-1:] and result[-1] in ("dollars", "euros") and following[:1].isdecimal():
            after = words[place + 2] if place + 2 < len(words) else ""
            result += [] if after in ("cent", "cents") else [word]
        elif word not in ("hmm", "mm", "mhm", "mmm", "uh", "um"):
            result.append(word)
    return result


def _numbers(words: Sequence[str]) -> Iterator[str]:
    """The words with numbers in digits, without breaks."""
    place = 0
    while place < len(words):
        forms, end = _run(words, place) or _number(words, place) or ([words[place]], place + 1)
        yield from (form for form in forms if form not in (_COMMA, _BREAK))
        place = end


def _at(words: Sequence[str], place: int) -> str:
    return words[place] if place < len(words) else ""


def _single(words: Sequence[str], place: int) -> tuple[str, int] | None:
    """One digit of a string of digits, or "double five", and its end."""
    word, following = _at(words, place), _at(words, place + 1)
    if word in ("double", "triple") and following in DIGIT_WORDS:
        return str(DIGIT_WORDS[following]) * (2 if word == "double" else 3), place + 2
    if word in DIGIT_WORDS or (len(word) == 1 and word.isdecimal()):
        larger = following in ("hundred", "point") or following in SCALES or following in PARTS
        return None if larger else (str(DIGIT_WORDS.get(word, word)), place + 1)
    return None


def _run(words: Sequence[str], start: int) -> tuple[list[str], int] | None:
    """A string of three or more single digits, also in groups that commas separate, and its end."""
    digits, place = "", start
    while True:
        group, end = "", place
        while single := _single(words, end):
            group, end = group + single[0], single[1]
        if len(group) < 3:
            break
        digits, place = digits + group, end
        if _at(words, place) != _COMMA:
            break
        place += 1
    return ([digits], place) if digits else None


def _below_hundred(words: Sequence[str], place: int) -> tuple[int, int] | None:
    word, following = _at(words, place), _at(words, place + 1)
    if word in TENS:
        return (TENS[word] + ONES[following], place + 2) if following in ONES else (TENS[word], place + 1)
    value = {**ONES, **TEENS}.get(word)
    return None if value is None else (value, place + 1)


def _below_thousand(words: Sequence[str], place: int) -> tuple[int, int] | None:
    part = _below_hundred(words, place)
    word = _at(words, place)
    if part is None and word.isdecimal() and len(word) < LONGEST and _at(words, place + 1) in ("hundred", *SCALES):
        part = int(word), place + 1
    if part is None or _at(words, part[1]) != "hundred":
        return part
    value, end = 100 * part[0], part[1] + 1
    rest = _below_hundred(words, end + (_at(words, end) == "and"))
    if rest and _at(words, rest[1]) != "hundred":
        return value + rest[0], rest[1]
    return value, end


def _cardinal(words: Sequence[str], start: int) -> tuple[int, int] | None:
    """A number in words, or in digits before a word of scale, and its end."""
    total, limit, place = 0, 0, start
    while True:
        comma = bool(limit) and _at(words, place) == _COMMA
        also = bool(limit) and _at(words, place) == "and"
        part = _below_thousand(words, place + (comma or also))
        if part is None:
            break
        scale = SCALES.get(_at(words, part[1]), 0)
        if scale and (not limit or scale < limit):
            total, limit, place = total + part[0] * scale, scale, part[1] + 1
        elif scale or (limit and part[0] >= limit) or (comma and part[0] < 100):
            break
        else:
            return total + part[0], part[1]
    return (total, place) if limit else None


def _number(words: Sequence[str], start: int) -> tuple[list[str], int] | None:
    word = _at(words, start)
    if word in ORDINALS:
        return [_ordinal_form(ORDINALS[word])], start + 1
    if word in DECADES:
        return [f"{DECADES[word]}s"], start + 1
    if word == "point":
        before = words[start - 1] if start else ""
        decimals = None if before in _DETERMINERS else _decimals(words, start)
        return None if decimals is None else _scale(words, f"0{decimals[0]}", decimals[1])
    if word == "zero":
        value, end = 0, start + 1
    elif cardinal := _year(words, start) or _cardinal(words, start):
        value, end = cardinal
    elif word.isdecimal() and (word == "0" or word[0] != "0") and len(word) < LONGEST:
        value, end = int(word), start + 1
    elif re.fullmatch(r"\d+\.\d+", word) and len(word) < LONGEST:
        return _scale(words, word, start + 1)
    elif word in ("oh", "o") and start and _spoken_hour(words[start - 1]) and _at(words, start + 1) in ONES:
        return [f"0{ONES[words[start + 1]]}"], start + 2
    else:
        return None
    if decimals := _decimals(words, end):
        return _scale(words, f"{value}{decimals[0]}", decimals[1])
    return _ordinal_or_part(words, start, value, end)


_DETERMINERS = ("a", "at", "each", "every", "no", "one", "some", "that", "the", "this", "what", "which")


def _spoken_hour(word: str) -> bool:
    return word in ONES or word in TEENS or word in TENS or word.isdecimal()


def _ordinal_or_part(words: Sequence[str], start: int, value: int, end: int) -> tuple[list[str], int]:
    """What follows a number: an ordinal that completes it, a half, parts of which it is the number, decades."""
    following, last = _at(words, end), _at(words, end - 1)
    written = words[start].isdecimal() and end == start + 1
    ordinal = ORDINALS.get(following, 0)
    if following == "and" and _at(words, end + 1) in ("a", "one", "three") and last not in SCALES:
        part = " ".join(words[end + 1 : end + 3])
        if quarter := {
            "a half": ".5",
            "one half": ".5",
            "a quarter": ".25",
            "one quarter": ".25",
            "three quarters": ".75",
        }.get(part):
            return _scale(words, f"{value}{quarter}", end + 3)
    after = _at(words, end + 1)
    if following == "and" and (last == "hundred" or last in SCALES) and 0 < ORDINALS.get(after, 0) < 100:
        return [_ordinal_form(value + ORDINALS[after])], end + 2
    if ordinal and not written:
        completes = (last in TENS and ordinal < 10) or ((last == "hundred" or last in SCALES) and ordinal < 100)
        if completes:
            return [_ordinal_form(value + ordinal)], end + 1
        if ordinal >= 100 and value > 1:
            return [_ordinal_form(value * ordinal)], end + 1
    if following in DECADES and not written:
        if 16 <= value <= 20:
            return [f"{100 * value + DECADES[following]}s"], end + 1
    if following == "hundreds" and not written:
        return [f"{100 * value}s"], end + 1
    plural = following in PARTS and following not in DENOMINATORS
    if following in PARTS and plural == (value > 1) and value:
        return [f"{value}/{PARTS[following]}"], end + 1
    return [words[start] if written else str(value)], end


def _year(words: Sequence[str], start: int) -> tuple[int, int] | None:
    """A year in two halves: nineteen ninety nine, twenty oh five."""
    word, following = _at(words, start), _at(words, start + 1)
    first = TEENS.get(word, 0) if word != "twenty" else 20
    if not 16 <= first <= 20:
        return None
    if following in ("oh", "o") and _at(words, start + 2) in ONES:
        return 100 * first + ONES[words[start + 2]], start + 3
    second = _below_hundred(words, start + 1)
    if second is None or second[0] < 10 or _at(words, second[1]) in ("hundred", "point", *SCALES):
        return None
    return 100 * first + second[0], second[1]


def _decimals(words: Sequence[str], start: int) -> tuple[str, int] | None:
    """ ".14" of "point one four", ".10.1" of "point ten point one", and its end."""
    form, place = "", start
    while _at(words, place) == "point":
        digits, end = "", place + 1
        while (word := _at(words, end)) in DIGIT_WORDS and (not digits or _at(words, end + 1) != "hundred"):
            digits, end = digits + str(DIGIT_WORDS[word]), end + 1
        if not digits and (part := _below_hundred(words, end)):
            digits, end = str(part[0]), part[1]
        if not digits and re.fullmatch(r"\d+", word := _at(words, end)):
            digits, end = word, end + 1
        if not digits:
            break
        form, place = f"{form}.{digits}", end
    return (form, place) if form else None


def _scale(words: Sequence[str], number: str, end: int) -> tuple[list[str], int]:
    """A number with decimals times the word of scale behind it."""
    if number.count(".") == 1 and len(number) < LONGEST and (scale := SCALES.get(_at(words, end), 0)):
        return [_in_digits(Fraction(number) * scale)], end + 1
    return [number], end


def _ordinal_form(value: int) -> str:
    last = 0 if value // 10 % 10 == 1 else value % 10
    return f"{value}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"


def measures(normalized: str) -> list[str]:
    """Numbers, signs and units of a text that was normalized, in order.

    >>> measures("it is minus 5 degrees celsius"), measures("50 % €")
    (['minus', '5', 'degrees', 'celsius'], ['50', '%', '€'])
    """
    return [
        word
        for word in normalized.split()
        if word in MEASURES or word.lstrip("+-")[:1].isdecimal() or (len(word) == 1 and symbols(word))
    ]
