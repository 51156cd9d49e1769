"""Listings of recipes, families, presets and rewards, one line each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mmgrpo.registry import nearest


def show(read: Callable[[], Iterable[tuple[str, str]]], arguments: Sequence[str], what: str) -> None:
    """Print names and descriptions; with an argument, only names that contain it. ``--help`` does not read them."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(f"usage: mmgrpo {what} [PART OF A NAME]\n\nLists the {what}, one line each.")
        return
    rows = list(read())
    matching = [row for row in rows if all(part in row[0] for part in arguments)]
    if not matching:
        raise ValueError(f"mmgrpo {what}: none contains '{arguments[0]}'.{nearest(arguments[0], [n for n, _ in rows])}")
    width = max(len(name) for name, _ in matching)
    for name, about in matching:
        print(f"{name:{width}}  {about}".rstrip())


def recipes(arguments: Sequence[str]) -> None:
    """``<modality>/<name>`` and the first sentence of each recipe."""

    def read() -> Iterable[tuple[str, str]]:
        from mmgrpo.runtime.plugins import recipes as files

        return ((name, first_sentence(path)) for name, path in files().items())

    show(read, arguments, "recipes")


def first_sentence(path: Path) -> str:
    """The beginning of the comment at the top of a recipe, up to the end of its first clause."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    text = " ".join(lines)
    for end in (". ", ": ", " ("):
        text = text.split(end)[0]
    return text.rstrip(".")


def families(arguments: Sequence[str]) -> None:
    """Model families and their descriptions."""

    def read() -> Iterable[tuple[str, str]]:
        from mmgrpo.family import families as table

        return ((name, f"{family.modality}: {family.about}") for name, family in table().items())

    show(read, arguments, "families")


def presets(arguments: Sequence[str]) -> None:
    """Presets, the policies that they apply to, and their descriptions."""

    def read() -> Iterable[tuple[str, str]]:
        from mmgrpo.presets import CATALOGUE

        return ((name, f"[{preset.policies}] {preset.about}") for name, preset in CATALOGUE.items())

    show(read, arguments, "presets")


def rewards(arguments: Sequence[str]) -> None:
    """Rewards and the functions that compute them."""

    def read() -> Iterable[tuple[str, str]]:
        from mmgrpo.rewards import entries

        return ((name, entry.function) for name, entry in entries().items())

    show(read, arguments, "rewards")
