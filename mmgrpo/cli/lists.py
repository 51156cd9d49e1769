"""Listings of recipes, families, presets and rewards, one line each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmgrpo.config.names import nearest

if TYPE_CHECKING:
    from mmgrpo.rewards import RewardEntry


def show(read: Callable[[], Iterable[tuple[str, str]]], arguments: Sequence[str], what: str) -> None:
    """Print names and descriptions; with an argument, only names that contain it. ``--help`` does not read them."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(f"usage: mmgrpo {what} [PART OF A NAME]\n\nLists the {what}, one line each.")
        return
    rows = list(read())
    matching = [row for row in rows if all(part in row[0] for part in arguments)]
    if not matching:
        raise ValueError(
            f"mmgrpo {what}: no name contains '{arguments[0]}'.{nearest(arguments[0], [n for n, _ in rows])}"
        )
    width = max(len(name) for name, _ in matching)
    for name, about in matching:
        print(f"{name:{width}}  {about}".rstrip())


def recipes(arguments: Sequence[str]) -> None:
    """``<modality>/<name>``, the first sentence of each recipe, its model, its rewards, and its memory where the file
    states it."""

    def read() -> Iterable[tuple[str, str]]:
        from mmgrpo.config.plugins import recipes as files

        return ((name, f"{first_sentence(path)} [{needs(path)}]") for name, path in files().items())

    show(read, arguments, "recipes")


def needs(path: Path) -> str:
    """The model of a recipe, the rewards that it trains on, and the memory that it states."""
    from mmgrpo.config.reading import load_yaml
    from mmgrpo.config.registry import parse

    recipe = load_yaml(path)
    model, rewards = recipe.get("model", {}), [parse(text, "rewards") for text in recipe.get("rewards", ())]
    trained = [name for name, parameters in rewards if parameters.get("weight", 1)]
    memory = re.search(r"\d+ Gi?B", path.read_text(encoding="utf-8"))
    facts = [str(model.get("path") or model.get("family", "")), ", ".join(trained), memory[0] if memory else ""]
    return "; ".join(filter(None, facts))


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
        from mmgrpo.config.presets import CATALOGUE

        return ((name, f"[{preset.policies}] {preset.about}") for name, preset in CATALOGUE.items())

    show(read, arguments, "presets")


def rewards(arguments: Sequence[str]) -> None:
    """Rewards: what they score, their range, what they measure, and whether they can be computed here now. The name of
    one shows its whole manifest."""

    def entries() -> Mapping[str, RewardEntry]:
        from mmgrpo.rewards import entries as table

        return table()

    if len(arguments) == 1 and arguments[0].isidentifier() and arguments[0] in entries():
        print(card(arguments[0]))
        return
    show(lambda: ((name, line(name)) for name in entries()), arguments, "rewards")


def line(name: str) -> str:
    """Kinds of outputs, range and first sentence of a reward, and what is missing here."""
    from mmgrpo.rewards import entries
    from mmgrpo.scoring.manifest import obstacle

    entry = entries()[name]
    manifest = entry.read_manifest()
    if manifest is None:
        return entry.function
    missing = obstacle(manifest)
    facts = f"{', '.join(manifest.scores)}, {manifest.range}: {about(entry)}"
    return facts + (f" [not here: {missing}]" if missing else "")


def card(name: str) -> str:
    """Everything that the manifest of a reward says, one fact a line."""
    known = facts(name)
    width = max(map(len, known))
    return "\n".join([name, *(f"  {fact:{width}}  {text}" for fact, text in known.items())])


def facts(name: str) -> dict[str, str]:
    """What the manifest of a reward says, by the name of the fact."""
    from mmgrpo.rewards import entries
    from mmgrpo.scoring.manifest import obstacle

    entry = entries()[name]
    manifest = entry.read_manifest()
    known = {"what": about(entry), "function": entry.function}
    if manifest is not None:
        known |= {
            "scores": ", ".join(manifest.scores),
            "range": manifest.range + (f" ({manifest.scale})" if manifest.scale else ""),
            "reads": ", ".join(manifest.reads),
            "compares": "the outputs of a prompt with each other" if manifest.group else "",
            "repeats": "" if manifest.deterministic else "equal inputs can have different values",
            "weights": ", ".join(manifest.weights),
            "licence": manifest.licence,
            "source": manifest.source,
            "version": str(manifest.version),
            "here": obstacle(manifest) or "can be computed",
        }
    return {fact: text for fact, text in known.items() if text}


def about(entry: RewardEntry) -> str:
    """The first sentence of the documentation of a reward's function."""
    from mmgrpo.config.plugins import load_object

    text = " ".join((inspect.getdoc(load_object(entry.function, "rewards", own=False)) or "").split())
    return text.replace("``", "").split(". ")[0].split("; ")[0].rstrip(".")
