"""A training group as mark-up: its members by reward, the highest first, with the advantage as colour, and its tree.

The branches of a group as a drawing: denoising steps from left to right, the samples below each other.

An edge is a decision (one transition), and the node at its right end the state that it drew. The value of a node is the
mean reward of the samples below it. An edge is as wide as its advantage is large, and its colour is the sign.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from math import isfinite, nan
from pathlib import Path
from typing import NamedTuple

from mmgrpo.data.limits import open_image
from mmgrpo.report.audio_player import MIME, sound
from mmgrpo.report.figures import NONE, is_number, number
from mmgrpo.report.groups import Group, Member, group_steps, place_of, read_group
from mmgrpo.report.media import (
    FORMATS,
    IMAGE_SUFFIXES,
    MAX_IMAGE_BYTES,
    MAX_PAGE_BYTES,
    MAX_PIXELS,
    MediaFolder,
    Medium,
    image_uri,
    jpeg,
    read_medium,
    resolve_within,
    shown_image,
)
from mmgrpo.report.render import render
from mmgrpo.report.turns import Block, blocks, read_turns
from mmgrpo.report.untrusted import printable

POSITIVE, NEGATIVE = (107, 167, 224), (240, 150, 110)
"""Red, green and blue of the largest advantages; blue and orange differ for every kind of colour vision."""
MAX_NODES = 4000
"""Nodes of a tree that is drawn."""
ROW, COLUMN, WIDEST = 40.0, 96.0, 900.0
"""Pixels between samples, and between steps; fewer where there would be more than ``WIDEST`` in all."""
LEFT, TOP, RIGHT = 16.0, 34.0, 132.0
THUMBNAIL = 34
"""Sides of the images of samples in pixels."""
GROUPS = 40
"""Groups of which the one with the largest spread is chosen; of more kept ones every k-th is looked at."""
THICKEST = 6.0
"""Width in pixels of the edge of the largest advantage."""


class Key(NamedTuple):
    """A decision."""

    step: int
    node: int


@dataclass(frozen=True)
class Node:
    """A decision, its place, and the edge that leads to it."""

    id: int
    parent: int
    """Id of the node before it; -1 for the first."""
    step: int
    samples: Sequence[int]
    """Positions of the samples below it."""
    x: float
    y: float
    path: str
    """The edge as SVG path data: the steps without a decision before it, then the decision."""
    idle: str
    width: float
    sign: str
    """``positive``, ``negative`` or ``zero``."""
    trained: bool
    label: str
    """Its value, where the tree splits; else empty."""
    about: str
    """Explanation for the reader who chooses it."""


@dataclass(frozen=True)
class Leaf:
    """A sample at the right end of the drawing."""

    sample: int
    y: float
    idle: str
    uri: str
    """A small image; empty where the output is none."""
    label: str


@dataclass(frozen=True)
class Branching:
    """A drawing of ``width`` times ``height`` pixels."""

    width: float
    height: float
    nodes: Sequence[Node]
    leaves: Sequence[Leaf]
    ticks: Sequence[tuple[float, int]]
    """Position and number of each step."""


def colour(advantage: float, largest: float) -> str:
    """White at zero, blue where it is positive, orange where it is negative; full at ``largest``."""
    if not isfinite(advantage) or not largest > 0:
        return "rgb(255, 255, 255)"
    share = min(1.0, abs(advantage) / largest)
    full = POSITIVE if advantage > 0 else NEGATIVE
    return "rgb({}, {}, {})".format(*(round(255 + share * (channel - 255)) for channel in full))


def branching(group: Group, media: MediaFolder) -> Branching | None:
    """The drawing of a group; None where no two samples belong to one tree, or where it has too many nodes."""
    members = group.members
    if len({member.tree for member in members}) == len(members):
        return None
    paths = [[Key(t, n) for t, n in enumerate(member.nodes) if n >= 0] for member in members]
    below: dict[Key, list[int]] = {}  # the samples that pass each decision
    parents: dict[Key, Key | None] = {}  # the decision before it on the way of the first of them
    for sample, path in enumerate(paths):
        for last, key in zip([None, *path], path):
            below.setdefault(key, []).append(sample)
            parents.setdefault(key, last)
    if not 0 < len(below) <= MAX_NODES:
        return None
    column = min(COLUMN, WIDEST / group.steps)
    height = {key: sum(map(_height, samples)) / len(samples) for key, samples in below.items()}
    order = sorted(below, key=lambda key: (key.step, height[key]))
    ids = {key: number for number, key in enumerate(order)}
    children, descendants = Counter(parents.values()), Counter[Key]()
    for key in reversed(order):
        if parent := parents[key]:
            descendants[parent] += 1 + descendants[key]
    advantages = {key: members[samples[0]].advantages[key.step] for key, samples in below.items()}
    largest = max((abs(value) for value in advantages.values() if isfinite(value)), default=0.0)
    nodes = []
    for key in order:
        parent, samples, advantage = parents[key], below[key], advantages[key]
        tree = [i for i, member in enumerate(members) if member.tree == members[samples[0]].tree]
        start = height[parent] if parent else sum(map(_height, tree)) / len(tree)
        trained = any(members[i].trained[key.step] for i in samples)
        x = LEFT + column * key.step
        nodes.append(
            Node(
                id=ids[key],
                parent=ids[parent] if parent else -1,
                step=key.step,
                samples=samples,
                x=x + column,
                y=height[key],
                path=_curve(x, start, x + column, height[key]),
                idle=_line(LEFT + column * (parent.step + 1 if parent else 0), start, x),
                width=1 + (THICKEST - 1) * abs(advantage) / largest if isfinite(advantage) and largest else 1.0,
                sign="positive" if advantage > 0 else "negative" if advantage < 0 else "zero",
                trained=trained,
                label=_value(group.values[key.node]) if children[key] != 1 or not parent else "",
                about=_about(group, key, samples, descendants[key], trained),
            )
        )
    end = LEFT + column * group.steps
    leaves = [
        Leaf(
            sample,
            _height(sample),
            _line(LEFT + column * (path[-1].step + 1 if path else 0), _height(sample), end),
            _thumbnail(media, member),
            f"{member.number + 1}: {_value(member.reward)}",
        )
        for sample, (member, path) in enumerate(zip(members, paths, strict=True))
    ]
    ticks = [(LEFT + column * (t + 0.5), t) for t in range(0, group.steps, math.ceil(28 / column))]
    return Branching(end + RIGHT, _height(len(members)) - ROW / 2 + 8, nodes, leaves, ticks)


def _about(group: Group, key: Key, samples: Sequence[int], descendants: int, trained: bool) -> str:
    """One decision in words."""
    member = group.members[samples[0]]
    advantage, std = member.advantages[key.step], member.std[key.step] if member.std else nan
    facts = [
        f"step {key.step}",
        f"value {_value(group.values[key.node])}",
        f"advantage {number(advantage, '+.3f') if isfinite(advantage) else NONE}",
        *([f"sigma {number(std)}"] if isfinite(std) else []),
        *([] if trained else ["not trained"]),
        f"{descendants} {'decision' if descendants == 1 else 'decisions'} below it",
        ("samples " if len(samples) > 1 else "sample ") + ", ".join(str(group.members[i].number + 1) for i in samples),
    ]
    return " · ".join(facts)


def _height(sample: int) -> float:
    """The vertical position of a sample."""
    return TOP + ROW * (sample + 0.5)


def _value(value: float) -> str:
    return number(value) if isfinite(value) else NONE


def _curve(x0: float, y0: float, x1: float, y1: float) -> str:
    middle = (x0 + x1) / 2
    return f"M{x0:.1f} {y0:.1f} C{middle:.1f} {y0:.1f} {middle:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"


def _line(x0: float, y: float, x1: float) -> str:
    return f"M{x0:.1f} {y:.1f} H{x1:.1f}" if x1 > x0 else ""


def _thumbnail(media: MediaFolder, member: Member) -> str:
    """A small image of the member's output, of a clip its first frame; empty where there is none."""
    name = member.output.get("file", "")
    try:
        with open_image(BytesIO(read_medium(media, name, IMAGE_SUFFIXES, MAX_IMAGE_BYTES)), tuple(FORMATS)) as image:
            if image.width * image.height > MAX_PIXELS:
                return ""
            small = image.convert("RGB")
            small.thumbnail((2 * THUMBNAIL, 2 * THUMBNAIL))
            return image_uri(jpeg(small), "image/jpeg")
    except Exception:  # it is no image of the folder; decoders raise whatever a damaged file leads them to
        return ""


def group_page(folder: Path, group: Group, interactive: bool = False, most: int = MAX_PAGE_BYTES) -> str:
    """Mark-up of a group, its media embedded. ``interactive``: nodes of the tree can be chosen, by a script. Of images
    that would exceed ``most`` bytes in all, smaller copies are shown."""
    images = len(group.prompt["media"]) + sum(1 + len(member.previews) for member in group.members)
    place = folder / "groups" / place_of(group.step)
    share = most // images if most < MAX_PAGE_BYTES else 0
    media = MediaFolder(place, most, share) if resolve_within(folder, "groups") else None
    if media is None or resolve_within(folder, f"groups/{media.path.name}") is None:
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


def widest_group(folder: Path) -> Group | None:
    """The group of a run folder whose rewards differ most, of equals the newest: what there was most to learn from."""
    steps = group_steps(folder)
    stride = -(-len(steps) // GROUPS) or 1
    groups = [read_group(folder, step) for step in reversed(steps[::-1][::stride])]
    return max(reversed(groups), key=lambda group: group.spread, default=None)


def widest_group_page(folder: Path, most: int = MAX_PAGE_BYTES) -> str:
    """Mark-up of ``widest_group``; empty where a run folder has none."""
    group = widest_group(folder)
    return group_page(folder, group, most=most) if group else ""


@dataclass(frozen=True)
class Card:
    """A member as a page shows it."""

    member: Member
    media: list[Medium]
    text: str | None
    blocks: list[Block]
    """A completion in several turns, in place of ``text``."""
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
        media=[_medium(media, output[name], title) for name in ("file", "sound") if output.get(name)],
        text=output["text"]
        if kind == "text"
        else output.get("words", None if output.get("file") else f"({kind}, not kept)"),
        blocks=blocks(read_turns(output.get("turns")) or []),
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
    return sound(media, name, text) if Path(name).suffix.lower() in MIME else shown_image(media, name, text)
