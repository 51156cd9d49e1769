"""Similarity of HTML tables as trees (TEDS, arXiv:1911.10683, equation 1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

from mmgrpo.types import Prompt, Text
from reward_models.rules import verifier
from reward_models.rules.parsing import gold_text, malformed, meta_choice

MAX_NODES = 1500
"""Largest table, in nodes, that is read; the time of a comparison grows at least with their square."""

CELLS = ("td", "th")
_TAGS = ("table", "thead", "tbody", "tfoot", "tr", *CELLS)


@dataclass
class Node:
    """An element of a table; only cells have text."""

    tag: str
    spans: tuple[str, str] = ("1", "1")
    text: str = ""
    children: list[Node] = field(default_factory=list)

    def count(self) -> int:
        """Nodes of the tree, this one included."""
        return 1 + sum(child.count() for child in self.children)


class _Reader(HTMLParser):
    """Builds the tree of the first table; of tags inside cells only the text is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[Node] = []
        self.table: Node | None = None
        self.nodes = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _TAGS or (tag == "table") != (self.table is None):
            return
        while self.open and _LEVEL[self.open[-1].tag] >= _LEVEL[tag]:
            self.open.pop()
        attributes = dict(attrs)
        node = Node(tag, (attributes.get("rowspan") or "1", attributes.get("colspan") or "1"))
        self.nodes += 1
        if self.table is None:
            self.table = node
        elif self.open:
            self.open[-1].children.append(node)
        else:
            return
        self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        if any(node.tag == tag for node in self.open):
            while self.open.pop().tag != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1].tag in CELLS:
            self.open[-1].text += data


_LEVEL = {"table": 0, "thead": 1, "tbody": 1, "tfoot": 1, "tr": 2, "td": 3, "th": 3}


def read_table(html: str) -> Node | None:
    """The tree of the first ``<table>``: sections, rows, and cells with their spans and text; None without one."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.table if reader.nodes <= MAX_NODES else None


def table_similarity(prediction: Node, gold: Node, structure_only: bool = False) -> float:
    """TEDS = 1 - tree edit distance / nodes of the larger tree.

    Insertions and deletions cost 1, as does a substitution that changes tag or span. A cell whose text alone changes
    costs the edit distance of the texts over the longer length, or nothing with ``structure_only``.
    """
    from apted import APTED, Config
    from rapidfuzz.distance import Levenshtein

    class Costs(Config):
        """Costs of substitutions."""

        def rename(self, node1: Node, node2: Node) -> float:
            if node1.tag != node2.tag or node1.spans != node2.spans:
                return 1.0
            if structure_only:
                return 0.0
            return Levenshtein.normalized_distance(*(" ".join(node.text.split()) for node in (node1, node2)))

    distance = APTED(prediction, gold, Costs()).compute_edit_distance()
    return 1 - distance / max(prediction.count(), gold.count())


@verifier(packages=("apted",), extra="rewards")
def teds(answer: str, prompt: Prompt, output: Text) -> float:
    """``table_similarity`` of HTML tables, without texts where ``meta.teds`` is "structure"; 0 without a table."""
    gold, prediction = read_table(gold_text(prompt)), read_table(answer)
    structure_only = meta_choice(prompt, "teds", ("full", "structure")) == "structure"
    if gold is None:
        malformed(prompt, f"HTML with a <table> of at most {MAX_NODES} elements")
    return 0.0 if prediction is None else table_similarity(prediction, gold, structure_only)
