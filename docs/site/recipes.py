"""The tables of docs/recipes.md, from the recipes themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import yaml

from mmgrpo.cli.lists import first_sentence
from mmgrpo.config.plugins import recipes

HEAD = (
    "| recipe | content | paper | family, model | preset | trained rewards |\n| --- | --- | --- | --- | --- | --- |\n"
)


def table(modality: str) -> str:
    """The recipes of a modality, one a row."""
    return HEAD + "".join(row(name, path) for name, path in recipes().items() if name.startswith(f"{modality}/"))


def row(name: str, path: Path) -> str:
    """A recipe: what its comment begins with, the first paper that it names, and what it trains."""
    text = path.read_text(encoding="utf-8")
    settings = yaml.safe_load(text)
    head = re.match(r"(?:#[^\n]*\n)*", text)
    papers = re.findall(r"arXiv:(\d+\.\d+)|((?:ICLR|CVPR) \d{4})", head[0] if head else "")
    paper = next((f"[{number}](https://arxiv.org/abs/{number})" if number else venue for number, venue in papers), "")
    model = settings["model"]
    trained = [reward.split("(")[0] for reward in settings["rewards"] if not re.search(r"\bweight=0[,)]", reward)]
    cells = (
        f"`{name}`",
        first_sentence(path),
        paper,
        f"`{model['family']}`" + (f", {model['path']}" if "path" in model else ""),
        f"`{settings['algorithm']['preset']}`",
        ", ".join(f"`{reward}`" for reward in trained),
    )
    return "| " + " | ".join(cells) + " |\n"


TABLES: Mapping[str, Callable[[], str]] = {
    f"recipes of {modality}": partial(table, modality)
    for modality in dict.fromkeys(name.partition("/")[0] for name in recipes())
}
