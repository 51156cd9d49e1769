"""What a run leaves in its folder while it trains, which its main process writes.

metrics.jsonl               a line for each optimizer step (mmgrpo/runtime/metrics.py)
alarms.json                 what trains nothing, if anything (mmgrpo/report/idle.py)
evaluations/<title>.json    values per held-out prompt, and their samples in samples/
groups/step-000040/         training groups (``GroupRecord``), from which people see what advantages were computed
prompts.jsonl               what is known of the prompts, as of the newest checkpoint (mmgrpo/prompts/ledger.py)
checkpoints/step-000120/    all on which the rest of the run depends (mmgrpo/runtime/progress.py)

A training group:

    group.json       prompt, members, rewards, advantages, trees (mmgrpo/report/groups.py reads it)
    prompt-0.jpg     media of the prompt
    003.png          the output of member 3, if it is no text
    003-1.png        its first preview, small

It is that of the first prompt of a round, sampled after as many optimizer steps as its folder says. It has a limited
size: what does not fit is made smaller or left out, and ``left_out`` says so. The folder is written under another name
and renamed, and contains neither times nor random names, so a resumed run writes the same bytes.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import torch
from PIL import Image as Pil
from torch import Tensor
from tqdm import tqdm

from mmgrpo.evaluation import Evaluation, Shown, directions
from mmgrpo.files import new_folder, write_bytes, write_text
from mmgrpo.report.audio_player import Sound, wav
from mmgrpo.report.idle import Idle, Watch, gap_warning, write_alarms
from mmgrpo.report.media import image_within, jpeg_within, strip, thumbnail, to_pil, webp_within, words
from mmgrpo.report.run_folder import print_alarms
from mmgrpo.report.tracking import send_evaluation
from mmgrpo.rollout import Round
from mmgrpo.rounds.callback import Run
from mmgrpo.runtime.metrics import MetricsLog, read_metrics
from mmgrpo.runtime.progress import Checkpoints, Interrupted
from mmgrpo.scoring import rules_of
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


def display_form(medium: Media | Audio) -> Pil.Image | Sound:
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
    displayed: Displayed = display_form

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
        advantages = [
            advantage for advantage, real in zip(whole["advantages"], mask[member].tolist(), strict=True) if real
        ]
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
                "advantage": mean_of(advantages),
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
    return [float(str(single)) if math.isfinite(single) else None for single in singles.numpy()]


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
            shown = display_form(medium) if plain else self.displayed(medium)
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


class RunRecord:
    """The files of a run, its progress bar and its warnings."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        groups: GroupRecord = NONE,
        write_samples: Callable[[Path, Shown], None] = lambda stem, shown: None,
        again: str = "resume=True",
    ) -> None:
        self.checkpoints, self.folder, self.accelerator = checkpoints, checkpoints.folder, checkpoints.accelerator
        self.groups, self.write_samples, self.again = groups, write_samples, again
        self.watch = Watch(())
        self.alarms: list[Idle] = []
        self.raised: set[tuple[str, str]] = set()
        """Causes and subjects of the alarms so far."""
        self.warned_of_gap = False
        self.main_reward = self.shown = ""
        """Metrics of the progress bar: that of a run, and that of the present round."""

    @cached_property
    def log(self) -> MetricsLog:
        """``metrics.jsonl``, opened at first use, so a run that cannot start leaves its folder unchanged."""
        return MetricsLog(self.folder, run=self.checkpoints.run)

    def attach(self, run: Run) -> None:
        """The run whose record this is."""
        trained = sum(parameter.numel() for parameter in run.trained.values())
        self.run, self.watch = run, Watch.of(run.scorers, run.loss, run.optim, run.steps, trained)
        self.main_reward = next((f"reward/{scorer.name}/mean" for scorer in run.scorers if scorer.weight), "")

    def begin_round(self, round_: Round) -> None:
        """Write a group of a round, where one is due."""
        self.shown = round_.shown or self.main_reward
        if self.accelerator.is_main_process:
            self.groups.write(self.run.step, round_)

    def step(self, line: Mapping[str, float | int], bar: tqdm) -> None:
        """Write the metrics of an optimizer step."""
        if self.accelerator.is_main_process:
            metrics = {name: value for name, value in line.items() if name != "step"}
            self.log.write(self.run.step, {"seconds": self.run.seconds, **metrics})
            self.accelerator.log(metrics, step=self.run.step)
            bar.set_postfix_str(self.postfix)
        bar.update(1)

    def warn_of_gap(self, gap: float) -> None:
        """Warn once of log-probs that differ between sampling and training."""
        words = "" if self.warned_of_gap else gap_warning(gap, self.run.loss, self.run.optim)
        if words:
            self.warned_of_gap = True
            warnings.warn(words, stacklevel=2)

    def end_round(self, lines: Sequence[Mapping[str, float | int]], bar: tqdm) -> None:
        """Take in the metrics of a round's optimizer steps."""
        if lines:
            self.watch.see(lines)
            self.raise_alarms()
            bar.set_postfix_str(self.postfix)

    def raise_alarms(self, ended: bool = False) -> None:
        """Keep ``alarms.json`` as the alarms are, and warn of each once; ``ended``: no round follows."""
        self.alarms = self.watch.alarms(ended)
        if self.accelerator.is_main_process:
            write_alarms(self.folder, self.alarms)
            for alarm in self.alarms:
                if (alarm.cause, alarm.subject) not in self.raised:
                    self.raised.add((alarm.cause, alarm.subject))
                    warnings.warn(str(alarm), stacklevel=2)

    def raise_unchanged(self, model: Path) -> None:
        """Raise the alarm of a saved model that is the one from before training."""
        self.watch.fixed.append(Idle.unchanged_model(model, self.run.step))
        self.raise_alarms(ended=True)

    @property
    def postfix(self) -> str:
        """The end of the progress bar: the main reward, and the causes of alarms."""
        causes = "".join(f"  ALARM {alarm.cause}" for alarm in self.alarms)
        return (self.log.summary(self.shown) if self.accelerator.is_main_process else "") + causes

    def evaluation(
        self,
        title: str,
        prompts: Sequence[Prompt],
        result: Evaluation,
        shown: Shown,
        numbers: Mapping[str, float],
        compared: bool,
    ) -> None:
        """Write the values and samples of an evaluation, and send them to the trackers. ``numbers`` are the metrics of
        callbacks; ``compared``: its values are held against those before it (mmgrpo/report/hacking.py)."""
        if not self.accelerator.is_main_process:
            return
        run, stem = self.run, self.folder / "samples" / title
        if shown.outputs:
            self.write_samples(stem, shown)
        send_evaluation(self.accelerator, title, result, stem.with_name(f"{title}.png"), run.step, numbers)
        written: dict[str, Any] = {"run": self.checkpoints.run, "step": run.step, "seconds": run.seconds}
        written |= {"prompts": [prompt.id for prompt in prompts], "trained": directions(run.scorers, run.recipe)}
        written |= {"rules": rules} if (rules := rules_of(run.scorers)) else {}
        written |= {"metrics": dict(numbers)} if numbers else {}
        write_text(self.folder / "evaluations" / f"{title}.json", json.dumps({**written, **result.as_dict()}))
        if compared:
            print_alarms(self.folder, run.step)

    def flush(self) -> None:
        """Write to disk what no checkpoint may be ahead of."""
        if self.accelerator.is_main_process:
            self.log.flush()
            self.run.ledger.write(self.folder, self.run.prompts, self.run.step)

    def resume(self) -> None:
        """Remove what a run that goes on at its step writes again."""
        if self.accelerator.is_main_process:
            self.log.truncate(self.run.step)
            self.groups.truncate(self.run.step)
            rows, size = read_metrics(self.log.path), self.run.optim.steps_per_round
            for start in range(0, len(rows), size):
                self.watch.see(rows[start : start + size])

    def print_ways_on(self, error: BaseException) -> None:
        """Say how to go on after a signal or an error."""
        if self.accelerator.is_main_process and self.checkpoints.saved:
            print(f"{self.checkpoints.latest} is the newest checkpoint; resume with: {self.again}", flush=True)
        elif self.accelerator.is_main_process and not self.run.step and isinstance(error, Interrupted):
            print(f"no step was trained yet, so nothing is lost; start again with: {self.again}", flush=True)
