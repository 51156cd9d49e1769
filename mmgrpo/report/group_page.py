"""A training group as mark-up: its members by reward, the highest first, with the advantage as colour, and its tree."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from mmgrpo.report.audio_player import MIME, sound
from mmgrpo.report.branch_tree import branching, colour
from mmgrpo.report.figures import NONE, is_number, number
from mmgrpo.report.groups import Group, Member, group_steps, place_of, read_group
from mmgrpo.report.media import MediaFolder, Medium, contained, picture
from mmgrpo.report.render import render
from mmgrpo.report.untrusted import printable


def group_page(folder: Path, group: Group, interactive: bool = False) -> str:
    """Mark-up of a group, its media embedded. ``interactive``: nodes of the tree can be chosen, by a script."""
    media = MediaFolder(folder / "groups" / place_of(group.step)) if contained(folder, "groups") else None
    if media is None or contained(folder, f"groups/{media.path.name}") is None:
        raise ValueError(f"{printable(folder)}: groups lies outside of the run folder, and is not read")
    tree = branching(group, media)
    return render(
        "group.html",
        {
            "group": group,
            "media": [_medium(media, name, "medium of the prompt") for name in group.prompt["media"]],
            "cards": [_card(media, group, member) for member in group.ranked],
            "scale": [{"text": number(sign * group.largest, "+.3g"), "colour": c} for sign, c in _scale()],
            "tree": tree,
            "interactive": interactive,
        },
    )


def newest_group(folder: Path) -> str:
    """Mark-up of the newest group of a run folder; empty where it has none."""
    steps = group_steps(folder)
    return group_page(folder, read_group(folder, steps[-1])) if steps else ""


@dataclass(frozen=True)
class Card:
    """A member as a page shows it."""

    member: Member
    media: list[Medium]
    text: str | None
    size: str
    previews: list[tuple[str, Medium]]
    reward: str
    advantage: str
    colour: str
    rewards: list[tuple[str, str]]


def _card(media: MediaFolder, group: Group, member: Member) -> Card:
    output, title = member.output, f"sample {member.number + 1}"
    kind = output["kind"]
    size = f"{number(output['seconds'], '.1f')} s" if is_number(output.get("seconds")) else ""
    if kind == "text":
        size = f"{output.get('tokens')} tokens" if is_number(output.get("tokens")) else ""
    return Card(
        member=member,
        media=[_medium(media, output["file"], title)] if output.get("file") else [],
        text=output["text"] if kind == "text" else None if output.get("file") else f"({kind}, not kept)",
        size=size,
        previews=[(name, _medium(media, file, f"{title}, {name}")) for name, file in member.previews.items() if file],
        reward=number(member.reward) if isfinite(member.reward) else NONE,
        advantage=number(member.advantage, "+.3f") if isfinite(member.advantage) else NONE,
        colour=colour(member.advantage, group.largest),
        rewards=[
            (name, number(value) if isfinite(value) else "abstains" if name in member.abstained else NONE)
            for name, value in member.rewards.items()
        ],
    )


def _scale() -> list[tuple[float, str]]:
    return [(sign, colour(sign, 1.0)) for sign in (-1.0, -0.5, 0.0, 0.5, 1.0)]


def _medium(media: MediaFolder, name: str, text: str) -> Medium:
    return sound(media, name, text) if Path(name).suffix.lower() in MIME else picture(media, name, text)
