"""The letters of a text, by which transcripts are compared where no language is named."""

from __future__ import annotations

import re
import unicodedata

SCRIPTS = ("CJK", "HIRAGANA", "KATAKANA", "IDEOGRAPHIC", "THAI", "LAO", "MYANMAR")
"""Beginnings of the Unicode names of letters that are written without spaces between words."""

LATIN = ("LATIN", "FULLWIDTH LATIN", "MODIFIER", "FEMININE", "MASCULINE", "COMBINING")


def script_rule(text: str) -> str:
    """The rule of the letters of a text: of most of its words, where a character of an unspaced script is a word."""
    unspaced = spaced = latin = 0
    for word in re.findall(r"[^\W\d_]+", text):
        names = [unicodedata.name(letter, "") for letter in word if letter.isalpha()]  # ½ is none
        if not names:
            continue
        if alone := sum(name.startswith(SCRIPTS) for name in names):
            unspaced += alone
        elif all(name.startswith(LATIN) for name in names):
            latin += 1
        else:
            spaced += 1
    if unspaced > latin + spaced:
        return "characters"
    return "basic" if spaced > latin + unspaced else "english"
