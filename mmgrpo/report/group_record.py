"""Training groups as files of the run folder, so that people see what advantages were computed from.

    groups/step-000040/group.json       prompt, members, rewards, advantages, trees (mmgrpo/report/groups.py reads it)
    groups/step-000040/prompt-0.jpg     media of the prompt
    groups/step-000040/003.png          the output of member 3, if it is no text
    groups/step-000040/003-1.png        its first preview, small

A group is that of the first prompt of a round, sampled after as many optimizer steps as its folder says. It has a
limited size: what does not fit is made smaller or left out, and ``left_out`` says so. The folder is written under
another name and renamed, and contains neither times nor random names, so that a resumed run writes the same bytes.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from PIL import Image as Pil
from torch import Tensor

from mmgrpo.files import new_folder, write_bytes
from mmgrpo.report.audio_player import Sound, wav
from mmgrpo.report.media import image_within, jpeg_within, strip, thumbnail, to_pil, webp_within, words
from mmgrpo.rollout import Round
from mmgrpo.types import (
    CONTRAST,
    GIVEN,
    REFERENCE,
    REPLAYED,
    Audio,
    Image,
    Media,
    Output,
    Prompt,
    Text,
    Video,
    select_rows,
)

MAX_MEDIA = 4 << 20
"""Bytes of all media of a group; every file has an equal share."""
MAX_MEMBERS = 128
"""Members that are written."""
MAX_ENTRIES = 1 << 15
"""Members times decisions that are written, of every number per decision."""
MAX_LETTERS = 20_000
"""Characters of a text."""
FIELDS = ("std", "level", "entropy", "step_rewards", "step_values")
"""Numbers per decision (``Decisions.fields``) that are written, where a policy has them."""
ORIGINS = {REPLAYED: "replayed", REFERENCE: "reference", CONTRAST: "contrast", GIVEN: "given"}
"""Flags of members that the policy did not sample in this round."""
NAME = re.compile(r"step-(\d{6,})")
FILE = re.compile(r"group\.json|(prompt|\d+)(-\d+)?\.\w+")

Displayed: TypeAlias = Callable[[Media | Audio], "Pil.Image | Sound"]
"""A medium of a prompt, or a generated audio clip, as a small file (``Family.displayed``)."""


def displayed(medium: Media | Audio) -> Pil.Image | Sound:
    """``Family.displayed`` where no family is known: media in memory only, and recordings as WAV."""
    content = medium.source if isinstance(medium, Media) else medium
    if isinstance(content, Image):
        return thumbnail(to_pil(content))
    if isinstance(content, Video):
        return strip([to_pil(Image(frame)) for frame in content.frames])
    if isinstance(content, Audio):
        return wav(content)
    raise ValueError(f"{content}: files are read by the policy's family, and this policy has none")


@dataclass(frozen=True)
class GroupRecord:
    """Which training groups a run keeps: ``kept`` of them, at equal distances over its ``steps``."""

    folder: Path
    """The run folder."""
    kept: int
    """0 keeps none."""
    steps: int = 1
    per_round: int = 1
    """Optimizer steps of a round."""
    displayed: Displayed = displayed

    def due(self, step: int) -> bool:
        """Whether the round that begins at ``step`` contains a step whose group is kept."""
        return self.kept > 0 and -step % -(-self.steps // self.kept) < self.per_round

    def write(self, step: int, round: Round) -> None:
        """Write the round's first group, if it is due."""
        if self.due(step):
            write_group(self.folder / "groups" / f"step-{step:06d}", step, round, self.displayed)

    def truncate(self, step: int) -> None:
        """Remove the groups that a run resumed at ``step`` samples again."""
        folder = self.folder / "groups"
        for place in folder.iterdir() if folder.is_dir() else ():
            if (name := NAME.fullmatch(place.name)) and int(name[1]) >= step:
                _remove(place)
        _remove_partial(folder)


NONE = GroupRecord(Path(), 0)


def write_group(place: Path, step: int, round: Round, displayed: Displayed) -> None:
    """Write the folder of a group; a partial one is never seen under its name."""
    writing = new_folder(place.parent, ".writing-")
    try:
        record = describe(step, round, GroupFolder(writing, displayed))
        # A lone surrogate, which a prompt read from JSON can contain, becomes a question mark.
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        write_bytes(writing / "group.json", text.encode(errors="replace"))
        _remove(place)
        if not place.exists():
            writing.rename(place)
        else:  # it holds files that no run wrote
            for file in sorted(writing.iterdir(), key=lambda file: file.name == "group.json"):
                file.rename(place / file.name)
    finally:
        _remove_partial(place.parent)


def describe(step: int, round: Round, folder: GroupFolder) -> dict[str, Any]:
    """The contents of ``group.json``; writes the media into ``folder``."""
    rollout, place = round.batch.rollouts[0], round.batch.places[0]
    key = rollout.decisions.keys["prompt"].cpu()
    rows = (key == key[0]).nonzero()[:, 0]
    at = place[rows]
    decisions, totals = select_rows(round.batch.decisions, at), numbers(round.totals[at])
    mask, trained = decisions.decision_mask, round.batch.loss_mask[at]
    learned = torch.isin(decisions.node, decisions.node[trained]) & mask  # also where another row owns the decision
    per_decision = {"advantages": round.batch.advantages[at]}
    per_decision |= {name: decisions.fields[name] for name in FIELDS if name in decisions.fields}
    values, valid = round.reward_scores.values[at], round.reward_scores.valid[at]
    rewards = numbers(torch.where(valid, values.float(), torch.nan))
    abstained = round.reward_scores.abstentions[at].tolist()
    nodes, tree = tree_of(decisions.node, mask, totals) if "tree" in decisions.keys else ([], [])
    _, trees = torch.unique(decisions.keys.get("tree", torch.arange(len(at))), return_inverse=True)

    count = min(len(rows), MAX_MEMBERS)
    width = min(mask.shape[1], MAX_ENTRIES // count)
    lengths = [int(row.nonzero().max()) + 1 if bool(row.any()) else 0 for row in mask]
    if count < len(rows):
        folder.left_out.append(f"{len(rows) - count} of {len(rows)} members")
    if width < max(lengths):
        folder.left_out.append(f"the numbers of decisions after the first {width} of a member")
    previews = list(rollout.previews)
    folder.share = MAX_MEDIA // (count * (1 + len(previews)) + len(rollout.prompts[int(rows[0])].media))
    prompt = folder.prompt(rollout.prompts[int(rows[0])])
    members = []
    for member, row in enumerate(rows[:count].tolist()):
        output, length = rollout.outputs[row], min(lengths[member], width)
        truncated = isinstance(output, Text) and output.truncated
        flags = {
            "invalid reward": totals[member] is None,
            "truncated": truncated,
            "not trained": not bool(learned[member].any()),
            **{name: int(decisions.origin[member]) == origin for origin, name in ORIGINS.items()},
        }
        whole = {name: numbers(value[member]) for name, value in per_decision.items()}
        own = [one for one, real in zip(whole["advantages"], mask[member].tolist(), strict=True) if real]
        members.append(
            {
                "member": member,
                "tree": int(trees[member]),
                "flags": [name for name, applies in flags.items() if applies],
                "output": folder.output(f"{member:03d}", output),
                "previews": {
                    name: folder.preview(f"{member:03d}-{place + 1}", rollout.previews[name][row])
                    for place, name in enumerate(previews)
                },
                "reward": totals[member],
                "rewards": dict(zip(round.names, rewards[member], strict=True)),
                **(
                    {"abstained": names}
                    if (names := [n for n, yes in zip(round.names, abstained[member]) if yes])
                    else {}
                ),
                **({"age": int(decisions.fields["age"][member])} if "age" in decisions.fields else {}),
                "advantage": mean_of(own),
                **{name: value[:length] for name, value in whole.items()},
                "decisions": mask[member, :length].int().tolist(),
                "trained": trained[member, :length].int().tolist(),
                "nodes": nodes[member][:length] if nodes else [],
            }
        )
    scored = {total for total in totals if total is not None}
    about = {"step": step, "steps": rollout.decisions.loss_mask.shape[1], "size": len(rows)}
    about |= {"equal_rewards": len(scored) == 1, "prompt": prompt, "members": members, "nodes": tree}
    return {**about, "left_out": folder.left_out}


def tree_of(
    node: Tensor, mask: Tensor, totals: Sequence[float | None]
) -> tuple[list[list[int]], list[dict[str, float | None]]]:
    """Decisions numbered from 0, [rows, T] with -1 where there is none, and of each the mean reward of its leaves.

    The leaves of a decision are the samples that pass it; those without a reward do not count, and null is the value
    of a decision that has no others.
    """
    numbering: dict[int, int] = {}
    table, leaves = [[-1] * node.shape[1] for _ in node], []
    for t in range(node.shape[1]):
        for row, total in enumerate(totals):
            if not bool(mask[row, t]):
                continue
            number = table[row][t] = numbering.setdefault(int(node[row, t]), len(numbering))
            leaves += [[]] if number == len(leaves) else []
            leaves[number] += [] if total is None else [total]
    means = [math.fsum(values) / len(values) if values else None for values in leaves]
    return table, [{"value": mean} for mean in means]


def numbers(values: Tensor) -> list[Any]:
    """A tensor as nested lists, in the fewest digits that distinguish single precision; null where not finite."""
    if values.dim() > 1:
        return [numbers(row) for row in values]
    singles = values.detach().cpu().float()
    return [float(str(one)) if math.isfinite(one) else None for one in singles.numpy()]


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of numbers, 0 of none; None where one of them is not finite (``numbers``)."""
    known = [value for value in values if value is not None]
    return None if len(known) < len(values) else math.fsum(known) / max(1, len(known))


@dataclass
class GroupFolder:
    """The folder of a group while it is written."""

    path: Path
    displayed: Displayed
    share: int = MAX_MEDIA
    """Largest file in bytes."""
    left_out: list[str] = field(default_factory=list)
    """What was made smaller or left out, in words."""

    def prompt(self, prompt: Prompt) -> dict[str, Any]:
        """What the policy was given, with its media as small files."""
        names = [self.small(f"prompt-{number}", medium) for number, medium in enumerate(prompt.media)]
        answer = prompt.answer
        if not isinstance(answer, str | None):
            answer = json.dumps(answer, ensure_ascii=False, default=str)
        text = {"id": prompt.id, "task": prompt.task, "text": words(prompt)}
        answer = answer if answer is None else self.cut(answer)
        return {**text, "text": self.cut(text["text"]), "answer": answer, "media": [name for name in names if name]}

    def output(self, stem: str, output: Output) -> dict[str, Any]:
        """The kind of an output, its file or text, and its size."""
        if isinstance(output, Text):
            turns = [[role, self.cut(text)] for role, text in output.messages] if output.turns else []
            text = {"kind": "text", "text": self.cut(output.transcript), "tokens": output.tokens}
            return {**text, "turns": turns} if turns else text
        if isinstance(output, Image):
            image = to_pil(output)
            words = {"words": self.cut(output.words)} if output.words else {}
            return {"kind": "image", "file": self.write(stem, image_within(image, self.share)), **words}
        if isinstance(output, Video):
            frames = [to_pil(Image(frame)) for frame in output.frames]
            content = webp_within(frames, output.fps, self.share)
            video = {"kind": "video", "file": self.write(stem, content), "seconds": len(frames) / output.fps}
            return {**video, "sound": self.small(f"{stem}-0", output.sound)} if output.sound else video
        seconds = output.samples.shape[-1] / output.rate
        return {"kind": "audio", "file": self.small(stem, output), "seconds": seconds}

    def preview(self, stem: str, output: Output) -> str:
        """A small file of a preview; a text has none."""
        if isinstance(output, Text):
            return ""
        medium = {Image: "image", Video: "video", Audio: "audio"}[type(output)]
        return self.small(stem, Media(medium, output), plain=True)

    def small(self, stem: str, medium: Media | Audio, plain: bool = False) -> str:
        """A thumbnail, a strip of frames, or a small audio file; the name of its file, or empty if it is left out.

        ``plain``: without the policy's family, whose readers are made for the media of prompts.
        """
        try:
            shown = displayed(medium) if plain else self.displayed(medium)
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            self.left_out.append(f"{stem}: {type(error).__name__}: {error}"[:300])
            return ""
        if isinstance(shown, Pil.Image):
            return self.write(stem, jpeg_within(shown, self.share) if not plain else image_within(shown, self.share))
        return self.write(stem, (shown.content, shown.suffix, ""))

    def write(self, stem: str, file: tuple[bytes, str, str]) -> str:
        """Write a file of (content, suffix, note); its name, or empty if it is too large."""
        content, suffix, note = file
        if len(content) > self.share:
            self.left_out.append(f"{stem}{suffix}: {len(content):,} bytes, at most {self.share:,} here")
            return ""
        if note and note not in self.left_out:
            self.left_out.append(note)
        write_bytes(self.path / f"{stem}{suffix}", content)
        return f"{stem}{suffix}"

    def cut(self, text: str) -> str:
        """The beginning of a long text."""
        if len(text) > MAX_LETTERS:
            self.left_out.append(f"{len(text) - MAX_LETTERS:,} characters of a text")
        return text[:MAX_LETTERS]


def _remove(place: Path) -> None:
    """Remove what a run wrote into the folder of a group, and the folder if nothing else is in it."""
    if not place.is_dir() or place.is_symlink():
        return
    for file in place.iterdir():
        if FILE.fullmatch(file.name):
            file.unlink()
    if not any(place.iterdir()):
        place.rmdir()


def _remove_partial(folder: Path) -> None:
    """Remove what a killed process left of writing a group."""
    for path in folder.glob(".writing-*"):
        shutil.rmtree(path)
