"""Tables in LaTeX, compared as trees and as images (Table2LaTeX-RL, arXiv:2509.17589).

The paper's two rewards are [structural similarity > 0.9] and [CW-SSIM of the rendered tables > 0.6]. No TeX is run:
what a model writes is parsed (``latex_tables``) and drawn by matplotlib (``latex_drawing``).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

from mmgrpo.types import Prompt, Text
from reward_models.rules import verifier
from reward_models.rules.cw_ssim import cw_ssim, resize_both
from reward_models.rules.latex_drawing import draw
from reward_models.rules.latex_tables import MAX_NODES, LatexTable, read_latex_table
from reward_models.rules.parsing import gold_text, malformed
from reward_models.rules.tables import Node, table_similarity

Spans: TypeAlias = tuple[tuple[tuple[str, str], ...], ...]
"""Rows and columns that each cell of each row spans."""

STRUCTURE, SIMILARITY = 0.9, 0.6
"""Similarities above which structure and image are rewarded."""

UNLIKE = 0.3
"""Structural similarity below which nothing is drawn: the image is worth 0."""


@verifier(packages=("apted",), extra="rewards")
def latex_structure(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the structure of the table (rows, cells, spans) is more than 0.9 similar by TEDS (Table2LaTeX-RL)."""
    gold, prediction = _gold(prompt), read_latex_table(answer)
    return float(prediction is not None and _structure(prediction, gold) > STRUCTURE)


@verifier(packages=("apted",), extra="rewards")
def latex_picture(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the drawn tables have a CW-SSIM above 0.6; 0 without drawing where the structures are less than 0.3 similar.

    The prediction is scaled to the size of the gold table (Table2LaTeX-RL).
    """
    gold, prediction = _gold(prompt), read_latex_table(answer)
    if prediction is None or _structure(prediction, gold) < UNLIKE:
        return 0.0
    reference, image = draw(gold), draw(prediction)
    if reference is None:
        malformed(prompt, "a table that can be drawn: it is too wide or too high")
    return 0.0 if image is None else float(cw_ssim(*resize_both(image, reference)) > SIMILARITY)


def _structure(prediction: LatexTable, gold: LatexTable) -> float:
    """TEDS of rows, cells and spans, which do not depend on the texts."""
    spans = [
        tuple(tuple(cell.spans for cell in row.children) for row in table.tree().children)
        for table in (prediction, gold)
    ]
    return _similarity(spans[0], spans[1])


@lru_cache(maxsize=4096)
def _similarity(prediction: Spans, gold: Spans) -> float:
    if prediction == gold:
        return 1.0
    trees = [
        Node("table", children=[Node("tr", children=[Node("td", s) for s in row]) for row in spans])
        for spans in (prediction, gold)
    ]
    return table_similarity(trees[0], trees[1], structure_only=True)


def _gold(prompt: Prompt) -> LatexTable:
    table = read_latex_table(gold_text(prompt))
    return table or malformed(prompt, f"LaTeX with a tabular environment of at most {MAX_NODES} rows and cells")
