"""Tables that are made from data when the site is built: a page has the mark ``<!-- table: NAME -->`` where one stands.

The pages are read on GitHub too, where a mark shows nothing; the text around it names the command that lists the same.
``python -m docs.site.tables settings`` prints one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping

from docs.site import checkpoints, families, migration, papers, presets, recipes, settings, validated

TABLES: Mapping[str, Callable[[], str]] = {
    name: table
    for module in (presets, recipes, papers, migration, settings, checkpoints, families, validated)
    for name, table in module.TABLES.items()
}
"""Names of tables to what makes them."""

MARK = re.compile(r"^<!-- table: (.+) -->$", re.MULTILINE)


def fill_tables(markdown: str) -> str:
    """A page with its tables in the place of their marks; ValueError for a mark that names none."""

    def make_table(mark: re.Match[str]) -> str:
        if mark[1] not in TABLES:
            raise ValueError(f"unknown table '{mark[1]}'; there are: {', '.join(TABLES)}")
        return TABLES[mark[1]]().rstrip()

    return MARK.sub(make_table, markdown)


if __name__ == "__main__":
    for line in sys.argv[1:]:
        print(fill_tables(f"<!-- table: {line} -->"))
