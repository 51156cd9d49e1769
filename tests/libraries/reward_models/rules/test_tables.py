"""Tables as trees."""

from __future__ import annotations

import pytest

from mmgrpo.types import Prompt, Text
from reward_models.rules.tables import MAX_NODES, read_table, table_similarity
from reward_models.rules.tasks import TASKS

TABLE = "<table><tr><td>a</td><td>b</td></tr><tr><td>c</td><td>dd</td></tr></table>"  # 1 + 2 + 4 elements


def teds(answer: str, gold: str = TABLE, **meta) -> float:
    return TASKS["teds"](answer, Prompt("copy it", "7", answer=gold, meta=meta), Text(answer))


@pytest.mark.parametrize(
    ("answer", "expected", "structure"),
    [
        (TABLE, 1, 1),
        (TABLE.replace("dd", "dx"), 1 - 0.5 / 7, 1),  # one of two letters of one of seven elements
        (TABLE.replace(">b<", "><"), 1 - 1 / 7, 1),
        (TABLE.replace("<td>dd</td>", ""), 1 - 1 / 7, 1 - 1 / 7),
        (TABLE.replace("</table>", "<tr><td>e</td></tr></table>"), 1 - 2 / 9, 1 - 2 / 9),
        (TABLE.replace("<td>a", '<td colspan="2">a'), 1 - 1 / 7, 1 - 1 / 7),
        (TABLE.replace("<td>a</td>", "<th>a</th>"), 1 - 1 / 7, 1 - 1 / 7),
        ("<table></table>", 1 - 6 / 7, 1 - 6 / 7),
    ],
)
def test_similarity_is_one_minus_the_edits_over_the_larger_tree(answer, expected, structure):
    assert teds(answer) == pytest.approx(expected)
    assert teds(answer, teds="structure") == pytest.approx(structure)
    assert teds(TABLE, answer) == pytest.approx(expected)


@pytest.mark.parametrize("span", ["rowspan", "colspan"])
def test_a_span_is_one_unless_it_is_more(span):
    assert teds(TABLE.replace("<td>a", f'<td {span}="2">a')) == pytest.approx(1 - 1 / 7)
    for one in (f'{span}="1"', f'{span}=""', span):
        assert teds(TABLE.replace("<td>a", f"<td {one}>a")) == 1


def test_a_table_has_at_most_1500_elements():
    table = read_table("<table>" + "<tr>" * 1499)
    assert table is not None and len(table.children) == 1499
    assert read_table("<table>" + "<tr>" * 1500) is None


def test_what_stands_behind_the_table_is_not_in_it():
    table = read_table("<table><tr><td>a</td></tr></table><tr><td>b</td></tr>")
    assert table is not None and table.count() == 3


def outline(node):
    """Tags and texts of a tree."""
    return (node.tag, node.text, [outline(child) for child in node.children])


@pytest.mark.parametrize("section", ["thead", "tbody", "tfoot"])
@pytest.mark.parametrize(("first", "second"), [("td", "td"), ("td", "th"), ("th", "td"), ("th", "th")])
def test_what_is_not_closed_ends_where_the_next_begins(section, first, second):
    html = f"<table>x<{section}>y<tr>z<{first}>a</i>b</tfoo><{second}>c & d"
    row = ("tr", "", [(first, "ab", []), (second, "c & d", [])])
    assert outline(read_table(html)) == ("table", "", [(section, "", [row])])
    assert outline(read_table(html + f"<tr><{section}>")) == (
        "table", "", [(section, "", [row, ("tr", "", [])]), (section, "", [])],
    )  # fmt: skip


def test_a_closing_tag_of_nothing_is_ignored():
    for stray in ("</thead>", "</th>", "</b>"):
        assert teds(TABLE.replace("<td>b", f"{stray}<td>b")) == 1
    both = (read_table(table) for table in (TABLE, TABLE.replace("dd", "xx")))
    assert table_similarity(*both) == pytest.approx(1 - 1 / 7)


def test_only_the_table_counts():
    dressed = (
        f"<html><body>Here: {TABLE.replace('<td>a</td>', '<td> <b>a</b> </td>')} done <table></table></body></html>"
    )
    assert teds(dressed) == 1


def test_closing_tags_may_be_missing():
    assert teds("<table><tr><td>a<td>b<tr><td>c<td>dd") == 1


def test_sections_are_elements():
    table = read_table("<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>b</td></tr></tbody></table>")
    assert table is not None
    assert [child.tag for child in table.children] == ["thead", "tbody"]
    assert table.count() == 7
    assert table_similarity(table, table) == 1


@pytest.mark.parametrize(
    "answer", ["", "no table", "<tr><td>a</td></tr>", "<table>" + "<tr><td>a" * MAX_NODES, "<" * 9999]
)
def test_what_is_no_table_or_too_large_is_worth_nothing(answer):
    assert teds(answer) == 0


def test_a_gold_answer_without_a_table_is_an_error():
    with pytest.raises(ValueError, match="'7'.*HTML.*<table>"):
        teds(TABLE, "no table")
    with pytest.raises(ValueError, match=r"meta\.teds.*structur"):
        teds(TABLE, teds="structur")
