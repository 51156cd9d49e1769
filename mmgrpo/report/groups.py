"""Training groups of a run folder, which is untrusted input (mmgrpo/report/run_record.py writes them)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from pathlib import Path
from statistics import pstdev
from typing import Any

from mmgrpo.report.figures import is_number
from mmgrpo.report.media import resolve_within
from mmgrpo.report.turns import read_turns
from mmgrpo.report.untrusted import MIB, brief, mapping, parse_json, printable, read_text

MAX_GROUP = 8 * MIB
"""Largest group.json in bytes."""
MAX_MEMBERS, MAX_DECISIONS = 1024, 1 << 16
"""Members of a group, and decisions of all of them."""
MAX_GROUPS = 10_000
"""Folders of groups that are listed."""
STEP = re.compile(r"step-(\d{6,15})")
FLAGS = 8
"""Flags of a member that are shown."""


@dataclass(frozen=True)
class Member:
    """One sample of a group. Lists per decision are of one length; numbers that are missing are NaN."""

    number: int
    tree: int
    flags: list[str]
    output: Mapping[str, Any]
    """``kind`` (text, image, video, audio) with ``text``, or with the name of a ``file``."""
    previews: Mapping[str, str]
    """Name to file."""
    reward: float
    """The rewards as one number, as training combined them; NaN if one that is trained on could not be computed."""
    rewards: Mapping[str, float]
    advantage: float
    """The mean advantage of its decisions."""
    advantages: list[float]
    trained: list[bool]
    """Decisions that this member trains; one that several share is trained by the first of them."""
    std: list[float]
    """Standard deviation of each transition; empty where decisions have none."""
    nodes: list[int]
    """Number of each decision, which members that share it have in common, and -1 where there is none; empty where
    members share nothing."""
    abstained: tuple[str, ...] = ()
    """Rewards that do not apply to it; the others without a number failed."""


@dataclass(frozen=True)
class Group:
    """The samples of one training prompt, with what training made of them."""

    step: int
    """Optimizer steps before it was sampled."""
    steps: int
    """Positions of decisions: denoising steps, or tokens."""
    size: int
    """Members in training; ``members`` may have fewer."""
    equal_rewards: bool
    """Without a difference there is nothing to learn."""
    prompt: Mapping[str, Any]
    """``id``, ``task``, ``text``, ``answer``, and ``media``, names of files."""
    members: Sequence[Member]
    values: Sequence[float]
    """Mean reward of the samples below each decision of a tree."""
    left_out: Sequence[str]

    @property
    def spread(self) -> float:
        """The standard deviation of the rewards, in which advantages are measured; 0 of fewer than two."""
        rewards = [member.reward for member in self.members if isfinite(member.reward)]
        return pstdev(rewards) if len(rewards) > 1 else 0.0

    @property
    def ranked(self) -> list[Member]:
        """Members by reward, the highest first, those without one last."""
        return sorted(
            self.members, key=lambda member: (-member.reward if isfinite(member.reward) else inf, member.number)
        )

    @property
    def largest(self) -> float:
        """The largest absolute advantage."""
        return max((abs(member.advantage) for member in self.members if isfinite(member.advantage)), default=0.0)


def group_steps(folder: Path) -> list[int]:
    """The steps of which the run folder has complete groups, in order."""
    paths = [path for path, _ in zip(folder.glob("groups/step-*/group.json"), range(MAX_GROUPS))]
    names = [name for path in paths if (name := STEP.fullmatch(path.parent.name))]
    steps = sorted({int(name[1]) for name in names if name[0] == place_of(int(name[1]))})
    return [step for step in steps if resolve_within(folder, f"groups/{place_of(step)}/group.json")]


def read_group(folder: Path, step: int) -> Group:
    """The group of a step; ValueError in one line where there is none or it is not what a run writes."""
    name = f"groups/{place_of(step)}/group.json"
    place, text = printable(folder / name), read_text(folder, name, MAX_GROUP)
    if not text:
        raise ValueError(f"{place}: the groups of this step were removed; choose another step")
    record = mapping(parse_json(text, place), place)
    members = [_member(item, f"{place}: members") for item in _list(record.get("members"), f"{place}: members")]
    if not 0 < len(members) <= MAX_MEMBERS or (total := sum(len(m.advantages) for m in members)) > MAX_DECISIONS:
        got = f"{len(members):,} members" if not 0 < len(members) <= MAX_MEMBERS else f"{total:,} decisions"
        raise ValueError(f"{place}: got {got}, expected 1 to {MAX_MEMBERS:,} members, {MAX_DECISIONS:,} decisions")
    values = [_number(mapping(node, place).get("value")) for node in _list(record.get("nodes"), f"{place}: nodes")]
    if (most := max((n for m in members for n in m.nodes), default=-1)) >= len(values):
        raise ValueError(f"{place}: nodes: got node {most:,} of {len(values):,}, expected smaller numbers")
    steps = _count(record.get("steps"), f"{place}: steps")
    longest = max(len(m.advantages) for m in members)
    return Group(
        step=step,
        steps=steps if longest <= steps <= 10 * MAX_DECISIONS else longest,
        size=_count(record.get("size"), f"{place}: size"),
        equal_rewards=record.get("equal_rewards") is True,
        prompt=_prompt(mapping(record.get("prompt"), f"{place}: prompt"), f"{place}: prompt"),
        members=members,
        values=values,
        left_out=[str(note)[:300] for note in _list(record.get("left_out"), place)[:50] if isinstance(note, str)],
    )


def _member(value: Any, place: str) -> Member:
    record = mapping(value, place)
    output, texts = mapping(record.get("output"), f"{place}: output"), ("kind", "text", "file", "sound", "words")
    if output.get("kind") not in ("text", "image", "video", "audio"):
        raise ValueError(f"{place}: output: got kind {brief(output.get('kind'))}, expected text, image, video or audio")
    if not all(isinstance(output.get(name, ""), str) for name in texts) or ("text" in output) is ("file" in output):
        raise ValueError(f"{place}: output: got {brief(output)}, expected a text or the name of a file")
    if read_turns(output.get("turns", [])) is None:
        raise ValueError(f"{place}: output: got turns {brief(output['turns'])}, expected pairs of a role and a text")
    previews = mapping(record.get("previews"), f"{place}: previews")
    rewards = mapping(record.get("rewards"), f"{place}: rewards")
    advantages = [_number(item) for item in _list(record.get("advantages"), place)]
    lists = {name: _list(record.get(name, []), f"{place}: {name}") for name in ("trained", "std", "nodes")}
    for name, values in lists.items():
        if len(values) != len(advantages) and (values or name == "trained"):
            raise ValueError(
                f"{place}: {name}: got {len(values):,} values, expected {len(advantages):,} as of advantages"
            )
    if not all(isinstance(node, int) and -1 <= node <= MAX_DECISIONS for node in lists["nodes"]):
        raise ValueError(f"{place}: nodes: got {brief(lists['nodes'])}, expected integers from -1 to {MAX_DECISIONS:,}")
    return Member(
        number=_count(record.get("member"), f"{place}: member"),
        tree=_count(record.get("tree"), f"{place}: tree"),
        flags=[flag[:40] for flag in _list(record.get("flags"), place)[:FLAGS] if isinstance(flag, str)],
        output=output,
        previews={name: file for name, file in previews.items() if isinstance(file, str)},
        reward=_number(record.get("reward")),
        rewards={name: _number(reward) for name, reward in rewards.items()},
        advantage=_number(record.get("advantage")),
        advantages=advantages,
        trained=[item == 1 for item in lists["trained"]],
        std=[_number(item) for item in lists["std"]],
        nodes=lists["nodes"],
        abstained=tuple(name for name in _list(record.get("abstained", []), place) if isinstance(name, str)),
    )


def _prompt(record: Mapping[str, Any], place: str) -> dict[str, Any]:
    if not all(isinstance(record.get(name), str) for name in ("id", "task", "text")):
        raise ValueError(f"{place}: got {brief(record)}, expected id, task and text")
    answer = record.get("answer")
    media = [name for name in _list(record.get("media"), place)[:64] if isinstance(name, str)]
    texts = {name: record[name] for name in ("id", "task", "text")}
    return {**texts, "answer": answer if isinstance(answer, str) else None, "media": media}


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{printable(place)}: got {brief(value)}, expected a list")
    return value


def _number(value: Any) -> float:
    return float(value) if is_number(value) else nan


def _count(value: Any, place: str) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**53:
        raise ValueError(f"{printable(place)}: got {brief(value)}, expected a whole number of at least 0")
    return value


def place_of(step: int) -> str:
    """The name of the folder of a group."""
    return f"step-{step:06d}"
