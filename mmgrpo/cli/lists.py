"""Lists of recipes, families, presets and rewards, in groups."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmgrpo.config.advice import usage_errors
from mmgrpo.config.names import nearest
from mmgrpo.terminal import PROSE, definitions, paragraph, sections

if TYPE_CHECKING:
    from mmgrpo.config.presets import Preset
    from mmgrpo.rewards import RewardEntry

OUTPUTS = {
    "text": ("tokens",),
    "image": ("gaussian", "matching", "joint"),
    "video": ("gaussian", "matching"),
    "speech": ("tokens", "gaussian", "matching"),
}
"""Kinds of outputs to the decisions of the policies that generate them."""


MODALITIES = {
    "visual": "Image and video generation",
    "vlm": "Vision-language models",
    "text": "Language models",
    "speech": "Speech and audio",
}
"""Names of modalities to the headings of lists, in their order; others, of packages of users, are their own and come
last."""

SEVERAL, OTHERS = "Several kinds of outputs", "Without a manifest"
KINDS = (
    *("Text, compared with a reference answer", "Text, without a reference answer"),
    *("Image", "Video", "Audio", SEVERAL, OTHERS),
)
"""Headings of the rewards, in their order."""


def show(
    read: Callable[[], Iterable[tuple[str, str, str]]],
    arguments: Sequence[str],
    what: str,
    scored: Callable[[str], Sequence[str]] = lambda name: (),
) -> None:
    """Print headings, and names with their descriptions below them; with an argument, only names that contain it, or
    whose kinds of outputs (``scored``) it is. ``--help`` does not read them."""
    if any(argument in ("-h", "--help") for argument in arguments):
        more = ", OR text, image, video, audio: WHAT THEY SCORE" if what == "rewards" else ""
        about = f"Lists the {what} in groups. 'mmgrpo explain NAME' shows one."
        print("\n".join([f"usage: mmgrpo {what} [PART OF A NAME{more}]", "", *paragraph(about)]))
        return
    rows = list(read())
    matching = [
        row
        for row in rows
        if all(part in row[1] or part.lower() in map(str.lower, scored(row[1])) for part in arguments)
    ]
    if not matching:
        names = [name for _, name, _ in rows]
        raise ValueError(f"mmgrpo {what}: no name contains '{arguments[0]}'.{nearest(arguments[0], names)}")
    parts: dict[str, list[tuple[str, str]]] = {}
    for title, name, about in matching:
        parts.setdefault(title, []).append((name, about))
    first = {title: place for place, title in enumerate(MODALITIES.values())}
    print(
        "\n".join(
            sections({title: parts[title] for title in sorted(parts, key=lambda title: first.get(title, len(first)))})
        )
    )


def heading(modality: str) -> str:
    """The heading of a modality."""
    return MODALITIES.get(modality, modality)


def recipes(arguments: Sequence[str]) -> None:
    """``<modality>/<name>``, the first sentence of each recipe, its model, its rewards, and its memory where the file
    states it."""

    def read() -> Iterable[tuple[str, str, str]]:
        from mmgrpo.config.plugins import recipes as files

        for name, path in files().items():
            yield heading(name.partition("/")[0]), name, f"{first_sentence(path)} [{needs(path)}]"

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

    def read() -> Iterable[tuple[str, str, str]]:
        from mmgrpo.family import all_families

        return ((heading(family.modality), name, family.about) for name, family in all_families().items())

    show(read, arguments, "families")


def preset_options() -> argparse.ArgumentParser:
    """The options of ``mmgrpo presets``."""
    from mmgrpo.config.presets import KINDS

    parser = argparse.ArgumentParser(
        prog="mmgrpo presets",
        description="Lists the presets, one line each: those that people start with, then the others by kind. "
        "'mmgrpo explain NAME' shows one, 'mmgrpo explain A B' how two differ.",
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts of a name that it must contain")
    kinds = list(dict.fromkeys([*OUTPUTS, *KINDS]))
    parser.add_argument(
        "--kind",
        choices=kinds,
        metavar="KIND",
        help=f"presets for policies that generate {', '.join(OUTPUTS)}, or a part of the list: "
        f"{', '.join(kind for kind in KINDS if kind not in OUTPUTS)}",
    )
    parser.add_argument(
        "--paper", metavar="ID", help="presets of a paper: its arXiv number, or its id in 'mmgrpo papers'"
    )
    return parser


def presets(arguments: Sequence[str]) -> None:
    """Presets under the titles of their kinds, the policies that they apply to, and their descriptions."""
    from mmgrpo.config.presets import CATALOGUE
    from mmgrpo.config.presets import KINDS as PRESET_KINDS

    with usage_errors():
        given = preset_options().parse_args(arguments)
    of_that = CATALOGUE.keys() if given.paper is None else of_paper(given.paper)
    chosen = {
        name: preset
        for name, preset in CATALOGUE.items()
        if all(part in name for part in given.parts)
        and (given.kind is None or fits(preset, given.kind))
        and name in of_that
    }
    if not chosen:
        hint = (
            nearest(given.parts[0], CATALOGUE) if given.parts else " 'mmgrpo papers' lists papers with their presets."
        )
        words = [
            *map(repr, given.parts),
            *(f"--{key} {value}" for key in ("kind", "paper") if (value := getattr(given, key))),
        ]
        raise ValueError(f"mmgrpo presets: none fits {' '.join(words)}.{hint}")
    rows = {name: f"[{preset.policies}] {preset.about}" for name, preset in chosen.items()}
    parts = {
        title: [(name, about) for name, about in rows.items() if chosen[name].kind == kind]
        for kind, title in PRESET_KINDS.items()
    }
    print("\n".join(sections(parts)))


def fits(preset: Preset, kind: str) -> bool:
    """Whether a preset is for policies that generate this kind of outputs, or is listed under this kind."""
    return preset.policies in ("any", *OUTPUTS[kind]) if kind in OUTPUTS else preset.kind == kind


def of_paper(paper: str) -> set[str]:
    """Presets whose source or notes name the arXiv number, and those that the paper's record names."""
    from mmgrpo.catalogue.papers import papers
    from mmgrpo.config.presets import CATALOGUE

    number = paper.lower().removeprefix("arxiv:")
    names = {name for name, preset in CATALOGUE.items() if number in arxiv_numbers(f"{preset.source} {preset.notes}")}
    records = [record for record in papers().values() if paper == record.id or number == record.arxiv]
    return names.union(*(record.uses.get("preset", ()) for record in records))


def arxiv_numbers(text: str) -> list[str]:
    """The arXiv numbers in a text."""
    return re.findall(r"\b\d{4}\.\d{4,5}\b", text)


def rewards(arguments: Sequence[str]) -> None:
    """Rewards: what they score, their range, what they measure, and whether they can be computed here now. An argument
    is a part of the name, or a kind of outputs that they score; the name of one shows its whole manifest."""

    def entries() -> Mapping[str, RewardEntry]:
        from mmgrpo.rewards import entries as table

        return table()

    if len(arguments) == 1 and arguments[0].isidentifier() and arguments[0] in entries():
        print(card(arguments[0]))
        return
    rows = lambda: ((kind(name), name, line(name)) for name in entries())  # noqa: E731
    show(lambda: sorted(rows(), key=lambda row: KINDS.index(row[0])), arguments, "rewards", scored_kinds)


def kind(name: str) -> str:
    """The heading under which a reward stands: the kind of outputs that it scores, of texts also whether it compares
    them with an answer of the row."""
    from mmgrpo.rewards import entries

    manifest = entries()[name].read_manifest()
    if manifest is None:
        return OTHERS
    if manifest.scores == ("Text",):
        return KINDS[0] if "answer" in manifest.reads else KINDS[1]
    return manifest.scores[0] if len(manifest.scores) == 1 else SEVERAL


def scored_kinds(name: str) -> Sequence[str]:
    """The kinds of outputs that a reward scores, as far as its manifest says so."""
    from mmgrpo.rewards import entries

    manifest = entries()[name].read_manifest()
    return manifest.scores if manifest is not None else ()


def line(name: str) -> str:
    """Range and first sentence of a reward, the kinds of outputs where it scores several, and what is missing here."""
    from mmgrpo.rewards import entries
    from mmgrpo.scoring.manifest import obstacle

    entry = entries()[name]
    manifest = entry.read_manifest()
    if manifest is None:
        return entry.function
    missing, several = obstacle(manifest), f"{', '.join(manifest.scores)}, " * (len(manifest.scores) > 1)
    facts = f"{several}{manifest.range}: {about(entry)}"
    return facts + (f" [not here: {missing}]" if missing else "")


def card(name: str) -> str:
    """Everything that the manifest of a reward says, one fact a line."""
    return "\n".join([name, *definitions([*facts(name).items()], "  ", PROSE)])


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
            "gradient": "with respect to the pixels (sampling.policy=gradients)" if entry.gradient else "",
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
