"""Numbers as people and models write them: "−1,234.5 km", "$5 million", "2½", "\\frac{1}{2}", "**10**", "3rd", "10 %".

One reading for every verifier of answers: ``quantity`` reads the only number of a text with its sign, its words of
scale and its unit. What changes a number and is not read (an unclear sign, "x-5", "at least 5", "10 or 11", "5π")
makes the text unreadable; it is never another number. ``fold`` writes typographic variants of a text alike.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

LONGEST = 1000
"""Longest text, in characters, in which a number is looked for; a longer one is unreadable."""

DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d\u207b"
"""Characters that stand for a minus sign or a hyphen."""

_FOLDS = str.maketrans(
    {
        **dict.fromkeys(DASHES, "-"),
        **dict.fromkeys("\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u200e\u200f", ""),
        **dict.fromkeys("\u2018\u2019\u2032", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u2033", '"'),
        **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if code != 0xFF0D},  # full width
    }
)

_BOXED = re.compile(r"\\f?boxed\s*\{")
_WRAPPER = re.compile(
    r"\\(?:f?boxed|text(?:bf|it|rm|tt|sf|normal)?|math(?:rm|bf|it|sf|tt)|mbox|hbox|operatorname|emph|bm|boldsymbol"
    r"|underline)\s*\{"
)
_MARKS = re.compile(r"(?<![\w*])(\*{1,3}|_{1,3}|`{1,3})(?=\S)((?:(?!\1).)+?)(?<=\S)\1(?![\w*])", re.DOTALL)
_TAGS = re.compile(r"</?(?:b|i|u|em|strong|span|p|code)>", re.IGNORECASE)


def fold(text: str) -> str:
    """A text in one spelling: NFC, one kind of space, dash and quotation mark, no full width, no marks of emphasis.

    ``**10**``, ``*10*``, ``_10_``, `` `10` `` and ``<b>10</b>`` are 10.
    """
    plain = _TAGS.sub("", unicodedata.normalize("NFC", text).translate(_FOLDS))
    for _ in range(3):  # bold and italic, in code
        unmarked = _MARKS.sub(r"\2", plain)
        if unmarked == plain:
            break
        plain = unmarked
    return plain


def without_end(text: str) -> str:
    """A text without one mark of punctuation at its end; an exclamation mark behind a digit is a factorial."""
    text = text.rstrip()
    shorter = re.sub(r"(?:[.,;:?]|(?<!\d)!|(?<=\s)!)$", "", text).rstrip()
    return shorter or text


def in_digits(text: str) -> str:
    """The digits of a text that is a number in words, up to a hundred ("**Twenty-one**." is "21", "minus two" "-2");
    any other text as it stands."""
    if len(text) > LONGEST:
        return text
    plain = " ".join(without_end(re.sub(r"^\\text\{([^{}]*)\}$", r"\1", fold(text).strip(" $"))).casefold().split())
    sign, word = ("-", plain.split(" ", 1)[1]) if plain.startswith(("minus ", "negative ")) else ("", plain)
    return f"{sign}{_TO_A_HUNDRED[word]}" if word in _TO_A_HUNDRED else text


def with_digits(text: str) -> str:
    """A text with its only number, one in words up to a hundred, in digits ("the answer is twenty-one" is "the answer
    is 21", "two thousand" "2 thousand"), so ``quantity`` reads it; one with digits, with several numbers or with a
    "one", which may be a pronoun, as it stands."""
    if len(text) > LONGEST or any(character.isnumeric() for character in text):
        return text
    plain = fold(text)
    numbers = list(_IN_WORDS.finditer(plain))
    if len(numbers) != 1:
        return text
    before, word, behind = plain[: numbers[0].start()], numbers[0][0], plain[numbers[0].end() :]
    if re.search(r"\bone\b", f"{before} {behind}", re.IGNORECASE):
        return text
    return f"{before}{_TO_A_HUNDRED[word.casefold()]}{behind}"


def boxed_contents(text: str) -> list[str]:
    """The contents of the outermost ``\\boxed{...}`` of a text, in order; an open one is left out."""
    contents, place = [], 0
    while match := _BOXED.search(text, place):
        inside = _braces(text, match.end())
        if inside is None:
            break
        contents.append(inside)
        place = match.end() + len(inside)
    return contents


def _braces(text: str, start: int) -> str | None:
    """What stands from ``start`` to the brace that closes one opened before it."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0) if text[place - 1] != "\\" else 0
        if not depth:
            return text[start:place]
    return None


@dataclass(frozen=True)
class Quantity:
    """A number and the unit that was written with it."""

    value: Fraction
    kind: str = ""
    """What the unit measures (``length``, ``dollar``, ``percent``); empty without a unit that is known."""
    factor: Fraction = Fraction(1)
    """The unit in units of its kind."""
    decimals: bool = False
    """Whether it was written with a decimal point or an exponent, so it may be rounded."""

    def like(self, other: Quantity) -> Quantity | None:
        """The quantity in the unit of ``other``; a unit that only one of them names is left out. None where the units
        measure different things."""
        if not self.kind or not other.kind:
            return self
        if self.kind != other.kind:
            return None
        return replace(self, value=self.value * self.factor / other.factor, factor=other.factor)

    @property
    def written(self) -> str:
        """The number as a formula."""
        value = self.value
        sign, top = "-" if value < 0 else "", abs(value.numerator)
        if value.denominator == 1:
            text = f"{sign}{top}"
        elif self.decimals and (places := _places(value.denominator)) is not None:
            whole, rest = divmod(top * 10**places, value.denominator * 10**places)
            text = f"{sign}{whole}.{rest // value.denominator:0{places}d}"
        else:
            text = f"{sign}{top}/{value.denominator}"
        return text


def _places(denominator: int) -> int | None:
    """Decimal places of a fraction; None where they do not end."""
    places = 0
    while 10**places % denominator and places < 400:
        places += 1
    return places if not 10**places % denominator else None


_SCALES: Mapping[str, int] = {
    **{"hundred": 100, "thousand": 1000, "dozen": 12, "lakh": 10**5, "crore": 10**7},
    **dict.fromkeys(("million", "mn", "mln", "mio", "mil"), 10**6),
    **dict.fromkeys(("billion", "bn", "bln"), 10**9),
    **dict.fromkeys(("trillion", "tn", "trn"), 10**12),
}
_LETTER_SCALES = {"k": 1000, "K": 1000, "M": 10**6, "B": 10**9}
_MONEY_SCALES = {"m": 10**6, "b": 10**9, "t": 10**12, "T": 10**12, "mm": 10**6, "MM": 10**6}
"""After an amount of money only; elsewhere m is a metre."""
_CJK_SCALES = {
    **{"十": 10, "百": 100, "千": 1000, "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8, "兆": 10**12},
    **{"백": 100, "천": 1000, "만": 10**4, "억": 10**8},
}
_FOREIGN_SCALE = re.compile(
    r"mil(?:l|h|$)|milli[oa]|miliard|milion|bill?i|bilj|mrd|mrt|tausend|hundert|hunderd|duizend|mille$|cent(?:o|aine)|"
    r"tysi|тыс|млн|млрд|миллион|миллиард|juta|ribu|triệu|lakh|crore|googol|grand$|myriad|score$",
    re.IGNORECASE,
)
"""Beginnings of words of scale that are not read."""

_UNITS_TEXT = """
length: mm millimeter millimetre =1/1000; cm centimeter centimetre =1/100; dm decimeter decimetre =1/10;
 m meter metre =1; km kilometer kilometre =1000; inch inche =254/10000; ft foot feet =3048/10000; yd yard =9144/10000;
 mi mile =1609344/1000; nm nanometer nanometre =1/1000000000; um μm micrometer micrometre micron =1/1000000
area: mm2 =1/1000000; cm2 =1/10000; m2 sqm =1; km2 =1000000; ft2 sqft =9290304/100000000
volume: mm3 =1/1000000; ml mL milliliter millilitre cm3 =1/1000; cl cL =1/100; l L liter litre dm3 =1; m3 =1000
time: ms millisecond =1/1000; s sec second =1; min minute =60; h hr hour =3600; d day =86400; wk week =604800
year: month mo =1/12; yr year =1
mass: mg milligram =1/1000; g gram gramme =1; kg kilogram kilo kilogramme =1000;
 lb lbs =45359237/100000; oz ounce =28349523125/1000000000
speed: m/s mps =1; km/h kmh kph kmph =10/36; mph mi/h =44704/100000
percent: % percent pct =1
permille: ‰ permille permil =1
celsius: °C celsius centigrade =1
fahrenheit: °F fahrenheit =1
kelvin: kelvin =1
radian: rad radian =1
dollar: $ usd dollar buck =1; ¢ cent =1/100
euro: € eur euro =1
sterling: £ gbp =1
yen: ¥ jpy yen =1
yuan: cny rmb yuan =1
rupee: ₹ inr rs rupee =1
won: ₩ krw =1
ruble: ₽ rub ruble rouble =1
power: mW milliwatt =1/1000; W watt =1; kW kilowatt =1000; MW megawatt =1000000
energy: J joule =1; kJ kilojoule =1000; cal calorie =4184/1000; kcal =4184; Wh =3600; kWh =3600000
frequency: Hz hertz =1; kHz =1000; MHz =1000000; GHz =1000000000
pressure: Pa pascal =1; kPa =1000; MPa =1000000; bar =100000; atm =101325
voltage: mV =1/1000; V volt =1; kV =1000
current: mA =1/1000; A amp ampere =1
force: N newton =1; kN =1000
data: bit =1/8; byte =1; KB kB =1000; MB =1000000; GB =1000000000; TB =1000000000000
pixel: px pixel =1
plain: ° degree deg mol dB rpm fps px/s Ω ohm =1
"""


def _units() -> tuple[Mapping[str, tuple[str, Fraction]], Mapping[str, tuple[str, Fraction]]]:
    exact: dict[str, tuple[str, Fraction]] = {}
    words: dict[str, tuple[str, Fraction]] = {}
    for line in _UNITS_TEXT.replace("\n ", " ").strip().splitlines():
        kind, _, entries = line.partition(":")
        for entry in entries.split(";"):
            names, _, factor = entry.rpartition("=")
            for name in names.split():
                unit = ("" if kind == "plain" else kind, Fraction(factor))
                if len(name) > 2 and name.isalpha() and name.islower():
                    words |= {name: unit, name + "s": unit}
                else:
                    exact[name] = unit
    return exact, words


_EXACT_UNITS, _WORD_UNITS = _units()
"""Units by symbol, whose case counts, and by name."""

_NUMERAL = re.compile(
    r"(?:(?:\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d{2})+,\d{3}|\d{1,3}(?:[' ]\d{3})+|\d+)(?:\.\d*)?|\.\d+)"
    r"(?:[eE][-+]?\d{1,3}(?![\w.]))?"
)
_NAMES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SMALL = {name: n for n, name in enumerate(_NAMES)} | {name: 10 * n for n, name in enumerate(_TENS, start=2)}
_ONES = {name: n for name, n in _SMALL.items() if 0 < n < 10}
_TO_A_HUNDRED = {
    **_SMALL,
    **{f"{ten}{mark}{digit}": _SMALL[ten] + n for ten in _TENS for digit, n in _ONES.items() for mark in "- "},
    **dict.fromkeys(("hundred", "a hundred", "one hundred"), 100),
}
_IN_WORDS = re.compile(
    rf"(?<![\w-])(?:{'|'.join(sorted(_TO_A_HUNDRED.keys() - {'one', 'hundred'}, key=len, reverse=True))})(?![\w-])",
    re.IGNORECASE,
)
_NUMBER_WORD = re.compile(
    rf"\b(?:{'|'.join(name for name in _SMALL if name != 'one')}|hundreds?|thousands?|millions?|billions?|trillions?"
    r"|dozens?|half|halves|couple)\b",
    re.IGNORECASE,
)
_MONEY = r"(?:(?:US|CA|AU|NZ|HK|[ACSR])?\$|[€£¥₹₩₽¢]|(?:USD|EUR|GBP|JPY|CNY|RMB|INR|KRW)(?![A-Za-z])|Rs\.?(?![A-Za-z]))"
_MONEY_BEFORE = re.compile(rf"(?<![A-Za-z])(?P<money>{_MONEY})\s*(?P<inner>[-+]\s*)?$")
_SIGN_WORD = re.compile(r"(?<![\w-])(?P<word>minus|negative|plus|positive)\s+$", re.IGNORECASE)
_LEADS = frozenset(
    (
        *(
            "is",
            "are",
            "was",
            "were",
            "be",
            "equals",
            "equal",
            "to",
            "of",
            "by",
            "at",
            "as",
            "about",
            "around",
            "circa",
        ),
        *("approximately", "approx", "roughly", "exactly", "just", "only", "reached", "reaches", "has", "becomes"),
        *("gives", "yields", "gets", "get"),
    )
)
"""Words after which a sign that stands apart belongs to the number behind it."""
_REFUSED_BEFORE = re.compile(
    r"(?:\b(?:not|never|nor|neither|cannot|without|except|than|least|most|over|under|above|below|up to|beyond|between|"
    r"exceed(?:s|ing)?|nearly|almost|or|root(?: of)?|sqrt|log|ln|exp|sin|cos|tan|half(?: of)?|double|twice|triple|"
    r"thirds? of|quarters? of|squared?(?: of)?|cubed?(?: of)?|times|divided by|multiplied by|plus|minus|per|if|isn't|"
    r"until|since|wrong|incorrect|false|either|non|anti|mod|modulo|from|past)|n't|[-+*/×÷·^√%!<>≤≥≠±_|\\&@∞π=]*[*/×÷·^√%!<>≤≥≠±_|\\&@∞π])$",
    re.IGNORECASE,
)
_NEGATED = re.compile(r"\b(?:not|never|cannot|neither|nor)\b|n't\b", re.IGNORECASE)
_REFUSED_AFTER = re.compile(
    r"(?:or|and\s+(?:a|one|three)\b|(?:\w*ths?|half|halves|thirds?|quarters?)\b|squared|cubed|factorial|plus|minus|times\s+(?:\w\b|the\b)"
    r"|divided|multiplied|below|above|point|to\s+the\s+power|mod|modulo|at\s+(?:least|most)|minimum|maximum|choose|over|"
    r"to|through|is\s*(?:n't|not|wrong|incorrect|false)|(?:not|wrong|incorrect)\b)\b",
    re.IGNORECASE,
)
_CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_REFUSED_CJK = re.compile(
    r"(?:不|非|零下|マイナス|超|约?大于|小于|多于|少于|至少|最多|以上|[一二三四五六七八九十百千万亿億两])$"
)


@lru_cache(maxsize=8192)
def quantity(text: str) -> Quantity | None:
    """The only number of a text, with its unit; None where there is none, or several, or the unit is ambiguous."""
    if len(text) > LONGEST or not any(character.isnumeric() for character in text):
        return None
    plain = _plain(text)
    return None if plain is None else _only(plain)


def _plain(text: str) -> str | None:
    """The text without LaTeX, emphasis and typographic variants; None where a command of LaTeX is not known."""
    contents = boxed_contents(text)
    if contents:
        if len(contents) > 1:
            return None
        text = contents[0]
    if re.search(r"~~.*~~|\\(?:not|cancel|sout)\b", text):
        return None
    text = re.sub(r"10\s*([⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)", lambda m: "10^" + unicodedata.normalize("NFKC", m[1]), text)
    text = re.sub(r"([A-Za-zμ])([²³])", lambda m: m[1] + str("²³".index(m[2]) + 2), text)
    if re.search(r"[⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ√∛∞π∑∫]", text):
        return None
    text = "".join(_compatible(character) for character in fold(text))
    text = fold(text).replace("\u2044", "/")
    for _ in range(4):  # \boxed{\text{...}}
        match = _WRAPPER.search(text)
        if not match:
            break
        inside = _braces(text, match.end())
        if inside is None:
            return None
        text = f"{text[: match.start()]} {inside} {text[match.end() + len(inside) + 1 :]}"
    text = re.sub(r"(?<=\d)\s*(?:\\[,!;:]|\{,\}\s*|\{\s*\\,\s*\})\s*(?=\d{3})", ",", text)
    text = re.sub(r"\\[dtc]?frac\s*(?:\{\s*([-+]?[\d.]+)\s*\}|(\d))\s*(?:\{\s*([\d.]+)\s*\}|(\d))", _fraction, text)
    text = re.sub(r"\{\s*(\d+)\s*\}\s*/\s*\{\s*(\d+)\s*\}", r"\1/\2", text)
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|\\degree\b|\\textdegree\b|º|˚", "°", text)
    text = re.sub(r"\\(?:times|cdot)\b", "×", text)
    text = re.sub(r"\\(?:approx|simeq|sim)\b|≈|≃|∼|~", "≈", text)
    text = re.sub(r"\\(?:left|right|displaystyle|quad|qquad|[,;:!() \[\]])|\\\\$", " ", text)
    text = text.replace("\\%", "%").replace("\\#", "#")
    text = re.sub(r"\$\$(.*?)\$\$", r"\1", text, flags=re.DOTALL)
    text = re.sub(r"(?<!\\)\$([^$]*)(?<!\\)\$", r" \1 ", text)
    text = text.replace("\\$", "$")
    text = re.sub(r"[-=]>|→|⇒|⟹", ":", text)
    return None if "\\" in text else " ".join(text.split())


def _fraction(match: re.Match[str]) -> str:
    return f" {match[1] or match[2]}/{match[3] or match[4]} "


def _compatible(character: str) -> str:
    """A character in its plain form; ½ is " 1/2 ", so 2½ is not 21/2."""
    if character in "º˚":
        return "°"
    form = unicodedata.decomposition(character)
    plain = unicodedata.normalize("NFKC", character)
    return f" {plain} " if form.startswith("<fraction>") else plain


def _only(text: str) -> Quantity | None:
    start = re.search(rf"(?:(?<![\w.])|(?<=[{_CJK}])|(?<=[Rr]s)|(?<=USD)|(?<=EUR)|(?<=GBP))(?:\d|\.\d)", text)
    if start is None:
        start = re.search(r"(?<=Rs\.)\d|(?<=[Nn]o\.)\d", text)
    numeral = _NUMERAL.match(text, start.start()) if start else None
    if start is None or numeral is None or not numeral[0].isascii():
        return None
    before, rest = text[: numeral.start()], text[numeral.end() :]
    currency, sign, apart = "", "", False
    if money := _MONEY_BEFORE.search(before):
        currency, sign, before = money["money"], (money["inner"] or "").strip(), before[: money.start()]
    if match := re.search(r"([-+])(\s*)$", before):
        if sign:
            return None
        sign, apart, before = match[1], bool(match[2]), before[: match.start()]
    elif word := _SIGN_WORD.search(before):
        if sign:
            return None
        sign, apart, before = (
            "-" if word["word"].lower() in ("minus", "negative") else "+",
            True,
            before[: word.start()],
        )
    elif before[-1:] in ("负", "負"):
        sign, before = "-", before[:-1]
    if sign and not _is_sign(before, apart):
        return None
    if not _follows(before, bool(sign)):
        return None
    value, decimals, rest = _value(numeral[0], rest)
    if value is None:
        return None
    suffix = _suffix(value, rest, currency)
    if suffix is None:
        return None
    value, kind, factor, rest = suffix
    if not _ends(before, rest, value):
        return None
    return Quantity(-value if sign == "-" else value, kind, factor, decimals)


def _is_sign(before: str, apart: bool) -> bool:
    """Whether a sign after ``before`` belongs to the number behind it, and subtracts nothing from what precedes it."""
    stripped = before.rstrip()
    if not stripped or stripped[-1] in "=:([{,;≈\"'#" or (re.search(r"[.?!]$", stripped) and before != stripped):
        return True
    if before == stripped:
        return False  # x-5
    last = re.search(r"([^\W\d_]+)$", stripped)
    if last is None or len(last[1]) == 1 or _NUMBER_WORD.fullmatch(last[1]):
        return False  # x -5, ) -5, ten minus 5
    return not apart or last[1].lower() in _LEADS


def _follows(before: str, signed: bool) -> bool:
    """Whether a number may stand after ``before``: not inside of a word, behind an operator, or denied."""
    stripped = before.rstrip()
    if not stripped:
        return True
    if _REFUSED_CJK.search(stripped) or _REFUSED_BEFORE.search(stripped):
        return False
    if stripped[-1] == "." and before == stripped and not re.search(r"\b(?:no|nr)\.$", stripped, re.IGNORECASE):
        return False
    if before == stripped and re.search(r"[^\W\d_]$", stripped) and not re.search(rf"[{_CJK}]$", stripped):
        return bool(re.search(r"(?:Rs|USD|EUR|GBP)$", stripped)) and not signed
    if stripped[-1] in "-+" or re.search(r"\d$", stripped):
        return False
    clause = re.split(r"[.,;:=()\n]", stripped)[-1]
    return not _NEGATED.search(clause)


def _value(numeral: str, rest: str) -> tuple[Fraction | None, bool, str]:
    """The number of a numeral and of the fraction or power of ten behind it, and what follows."""
    digits = re.sub(r"[,' \u2009]", "", numeral)
    decimals = any(mark in digits for mark in ".eE")
    if decimals and digits.lower().partition("e")[2] and abs(int(digits.lower().partition("e")[2])) > 400:
        return None, False, rest
    value = Fraction(digits.rstrip(".") if digits.endswith(".") else digits)
    if digits.isdigit():
        if mixed := re.match(r"(?:\s+|\s*-\s*|\s+and\s+)(\d+)\s*/\s*(\d+)(?![\d./])", rest):
            top, bottom = int(mixed[1]), int(mixed[2])
            if not 0 < top < bottom:
                return None, False, rest
            return value + Fraction(top, bottom), False, rest[mixed.end() :]
        if over := re.match(r"\s*/\s*(\d+)(?!\d|[.,/]\d|\s*/)", rest):
            return (Fraction(int(value), int(over[1])) if int(over[1]) else None), False, rest[over.end() :]
    elif over := re.match(r"\s*/\s*(\d+(?:\.\d+)?)(?!\d|[.,/]\d|\s*/)", rest):
        return (value / Fraction(over[1]) if Fraction(over[1]) else None), True, rest[over.end() :]
    if power := re.match(r"\s*[x×*·]\s*10\s*(?:\^|\*\*)\s*[({]?\s*([-+]?\d{1,3})\s*[)}]?(?![\w.])", rest):
        return value * Fraction(10) ** int(power[1]), True, rest[power.end() :]
    return value, decimals, rest


def _suffix(value: Fraction, rest: str, currency: str) -> tuple[Fraction, str, Fraction, str] | None:
    """Ordinal, words of scale and unit behind a number; None where letters that are attached to it are not known."""
    kind, factor = _unit_of(currency) if currency else ("", Fraction(1))
    if ordinal := re.match(r"(?:st|nd|rd|th)\b(?!\w)", rest):
        if value.denominator != 1:
            return None
        return value, kind, factor, rest[ordinal.end() :]
    for _ in range(3):
        if not (scale := _scale_at(rest, bool(currency))):
            break
        value, rest = value * scale[0], rest[scale[1] :]
    if rest[:1] and re.match(rf"[{_CJK}]", rest):
        return value, kind, factor, rest
    unit = _unit_at(rest)
    if unit:
        if currency:
            return value, kind, factor, rest[unit[2] :]
        return value, unit[0], unit[1], rest[unit[2] :]
    word = re.match(r"(\s?)([^\W\d_]+)", rest)
    if word and len(word[2]) < (2 if word[1] else 4) and word[0] not in (" a", " I"):
        return None  # 5x, 3D, 5b, 5 x
    return value, kind, factor, rest


def _scale_at(rest: str, money: bool) -> tuple[int, int] | None:
    match = re.match(rf"[\s-]?\s*([A-Za-z]+|[{_CJK}])(?![A-Za-z]|['/]?\d)\.?", rest)
    if match is None:
        return None
    word = match[1]
    lower = word.lower()
    scale = (
        _CJK_SCALES.get(word) or _SCALES.get(lower) or _SCALES.get(lower.removesuffix("s") if len(lower) > 5 else lower)
    )
    if scale is None and not re.match(r"[\s-]?\s*[A-Za-z]+[\^/]", rest):
        scale = _LETTER_SCALES.get(word) or (_MONEY_SCALES.get(word) if money else None)
    if scale is None:
        return None
    return scale, match.end(1)


def _unit_at(rest: str) -> tuple[str, Fraction, int] | None:
    """Kind, factor and length of the unit at the beginning of a text."""
    if square := re.match(r"\s*(square|sq\.?|cubic|cu\.?)\s+([A-Za-z]+)\b", rest, re.IGNORECASE):
        base = _unit_of(square[2])
        power = 2 if square[1].lower().startswith("s") else 3
        return ("area" if power == 2 else "cubic", base[1] ** power, square.end()) if base[0] == "length" else None
    match = re.match(
        r"[\s-]?\s*(°\s?[CFK]?(?![A-Za-z])|[%‰$€£¥₹₩₽¢Ω]|[A-Za-zμ]+(?:\^?\{?-?\d\}?)?(?:/[A-Za-z]+(?:\^?\{?-?\d\}?)?)*)",
        rest,
    )
    if match is None:
        return None
    name = re.sub(r"[\^{}\s]", "", match[1])
    if (
        re.match(r"\s*[A-Za-z]", rest[match.end() :]) is None
        and name == "in"
        and not rest[match.end() :].strip(" .\")]}'")
    ):
        return "length", Fraction(254, 10000), match.end()
    kind, factor = _unit_of(name)
    if kind or name in _EXACT_UNITS or name.lower() in _WORD_UNITS:
        return kind, factor, match.end()
    parts = re.findall(r"[A-Za-zμ]+", name)
    if len(name) > len(parts[0] if parts else "") and parts and all(_is_unit(part) for part in parts):
        return "", Fraction(1), match.end()  # m/s2, km/l: a unit, but none that is compared
    return None


def _is_unit(name: str) -> bool:
    return name in _EXACT_UNITS or name.lower() in _WORD_UNITS or name in ("s", "h", "m", "g")


def _unit_of(name: str) -> tuple[str, Fraction]:
    if name.endswith("$"):
        name = "$"
    lower = name.lower().rstrip(".")
    known = _EXACT_UNITS.get(name) or _WORD_UNITS.get(lower)
    return known or (_EXACT_UNITS.get(lower) if len(lower) > 1 else None) or ("", Fraction(1))


def _ends(before: str, rest: str, value: Fraction) -> bool:
    """Whether nothing in the rest of the text is another number, or changes this one."""
    if rest[:1] == "!" or (re.match(r"\s*[-+*/×÷·^=<>≤≥≠±%_|&√π∞~]", rest) and not _is_joining_dash(rest)):
        return bool(re.match(r"\s*=\s*[A-Za-z]\s*$", rest))
    if rest[:1] and not re.match(rf"[\s.,;:?)\]}}\"'»!。，、；：？）」°{_CJK}-]|[^\W\d_]", rest):
        return False
    follows = rest.lstrip(" -")
    if _REFUSED_AFTER.match(follows) or re.match(r"[个個只]?\s*(?:以上|以下|多|或)", follows):
        return False
    first = re.match(r"([^\W\d_]+)", follows)
    if first and (_FOREIGN_SCALE.match(first[1]) or first[1] in ("G", "T")):
        return False
    elsewhere = f"{before} | {rest}"
    if re.search(rf"(?:(?<![\w.])|(?<=[{_CJK}.]))\.?\d", elsewhere):
        return False
    return all(_same_word(word[0], value) for word in _NUMBER_WORD.finditer(elsewhere))


def _is_joining_dash(rest: str) -> bool:
    """Whether a dash behind a number only joins a word to it, or ends the statement: "5-year", "5 - as shown"."""
    return re.match(r"\s?-\s?[^\W\d_]{2,}|\s*-\s*$", rest) is not None and not re.match(r"-\s*$", rest)


def _same_word(word: str, value: Fraction) -> bool:
    return _SMALL.get(word.lower()) == value
