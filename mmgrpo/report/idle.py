"""Alarms of a run that trains nothing: while it runs, in its summary and on top of its report.

    Watch.see(rows)     the metrics of a round's optimizer steps, one round after the other
    Watch.alarms()      what is wrong so far: at most one for rounds without any training, one for each reward
    alarms.json         the same in the run folder, so a report of an unfinished run has them

A round trains if one of its steps has a learning rate, decisions, a finite gradient that is not zero, and advantages.
It is an alarm if no round of the run did, from ``FEW`` rounds on, or at the end of a shorter run; if the last ``LONG``
rounds did not; and if at the end half of all did not. A reward with a weight is one if it gave one and the same number
to every sample of the run, or abstained from all. Votes have collapsed if nearly all prompts' samples agree. Gradients
are faint if AdamW's ``eps`` is most of what it divides them by. Tools are uncalled if no completion of the run called
one.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mmgrpo.config.names import plural
from mmgrpo.config.settings import Optim
from mmgrpo.files import write_text
from mmgrpo.report.untrusted import MAX_JSON, parse_json, read_text
from mmgrpo.scoring import Scorer
from mmgrpo.update import LossRecipe

FEW = 3
"""Rounds from the beginning of a run after which it is an alarm that none has trained."""
ALIKE = 0.9
"""Share of prompts whose samples all answer alike, from which on votes have collapsed."""
CHANCE = 0.5
"""Share of pairs that scores without any knowledge order as a verifier does."""
LONG = 10
"""Rounds in a row after which it is one in a run that has trained before."""
GAP, PPO_CLIP = 0.5, 0.2
"""Share of the clip range above which a difference between log-probs of sampling and training is warned of, and the
clip range that is used where an objective has none."""
ROUNDING = 1e-6
"""Of the mean of equal numbers in fp32."""
FILE = "alarms.json"
MOST = 100
"""Alarms of a folder that are read."""

CAUSES: Mapping[str, tuple[str, str]] = {
    "learning_rate": ("the learning rate was 0", "optim.lr, optim.warmup and optim.decay"),
    "not_finite": (
        "the loss or the gradient was not finite, so every step was skipped",
        "optim.lr, or model.dtype (bfloat16 in place of float16)",
    ),
    "unscored": (
        "no sample had a reward: for each a reward failed, or all abstained (reward/<name>/failed, .../abstained)",
        "rewards, and the columns of data.train that they read (mmgrpo check-data)",
    ),
    "truncated": (
        "every sample was cut off at the longest length, and such samples are not trained",
        "sampling.max_tokens; or sampling.truncated and drop_truncated in algorithm.select",
    ),
    "no_spread": (
        "in every group all rewards were equal (group/zero_std_fraction 1), so there is nothing to compare",
        "rewards; data.train, if prompts are always or never solved; data.group_size or more exploration (sampling)",
    ),
    "selected_none": ("no decision was left to train", "algorithm.select and sampling.plan"),
    "clipped": (
        "every decision was outside of the clip range",
        "algorithm.objective (low, high), optim.updates and optim.epochs",
    ),
    "no_gradient": (
        "the gradient was 0 (grad_norm)",
        "algorithm.objective, algorithm.credit and what is trainable (model.lora_rank, model.freeze_...)",
    ),
}
"""Why a round trained nothing, in words, and the settings to look at."""


@dataclass(frozen=True)
class Idle:
    """An alarm: what trained nothing, between which optimizer steps, and which settings to look at."""

    cause: str
    """A key of ``CAUSES``; ``constant_reward``, ``absent_reward``, ``collapsed_votes``, ``clip_range``, ``warmup``,
    ``unchanged_model``, ``faint_gradient``, ``uncalled_tools``, ``collapsed_judge``."""
    settings: str
    since: int
    step: int
    message: str
    subject: str = ""
    """What it is about, where one cause can have several: the name of a reward."""

    @staticmethod
    def unchanged_model(folder: Path, step: int) -> Idle:
        """The alarm of a saved model that is the one from before training."""
        settings = "optim.lr, model.dtype"
        return Idle(
            "unchanged_model",
            settings,
            0,
            step,
            f"{folder} holds the weights from before training: in {step} optimizer steps none has changed; look at "
            f"{settings} (a step that is smaller than half a unit in the last place of bfloat16 changes nothing), and "
            "at the other alarms",
        )

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "trains nothing", **asdict(self)}

    def __str__(self) -> str:
        return self.message


@dataclass
class Watch:
    """What the rounds of a run trained, fed with their metrics."""

    rewards: Sequence[str]
    """Names of the rewards that are trained on."""
    clip_range: float = math.inf
    """Of the objective (``LossRecipe.clip_range``)."""
    updates: int = 1
    """Optimizer steps of a round."""
    fixed: list[Idle] = field(default_factory=list)
    """Alarms that do not depend on rounds."""
    rounds: int = 0
    idle: int = 0
    """Rounds that trained nothing."""
    first: int = 0
    last: int = 0
    """First and last optimizer step that was seen."""
    since: int = 0
    """First optimizer step of the present row of idle rounds."""
    row: Counter[str] = field(default_factory=Counter)
    """Causes of the present row of idle rounds."""
    all_causes: Counter[str] = field(default_factory=Counter)
    constant: dict[str, float] = field(default_factory=dict)
    """The number that a reward gave to all samples so far; NaN for one that abstained from all."""
    votes: Sequence[str] = ()
    """Those among them that reward agreement (``Manifest.votes``)."""
    alike: Counter[str] = field(default_factory=Counter)
    """Rounds in a row in which nearly all prompts' samples answered alike, by the name of the reward."""
    coarse: int = 0
    """Rounds from the first on in which log-probs were rounded more coarsely than the clip range; -1: not in all."""
    least: float = 0.0
    """The norm of a gradient whose entries are ``optim.eps`` on average: AdamW halves the steps of such a one."""
    faint: int = 0
    """Rounds from the first on in which every gradient that was not zero was smaller; -1: not in all."""
    uncalled: int = 0
    """Rounds from the first on in which no completion called a tool; -1: not in all, or there are no tools."""
    one_sided: int = 0
    """Rounds in a row in which nearly all verdicts of the policy were the same."""
    misled: int = 0
    """Rounds in a row in which its scores agreed with those of a verifier no better than chance."""

    @classmethod
    def of(cls, scorers: Sequence[Scorer], loss: LossRecipe, optim: Optim, steps: int, trained: int) -> Watch:
        """That of a run of ``steps`` optimizer steps which trains so many numbers."""
        weighed = [scorer for scorer in scorers if scorer.weight]
        return cls(
            [scorer.name for scorer in weighed],
            loss.clip_range,
            optim.steps_per_round,
            settings_alarms(optim, steps),
            votes=[scorer.name for scorer in weighed if scorer.manifest and scorer.manifest.votes],
            least=optim.eps * math.sqrt(trained),
        )

    def see(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take in the metrics of one round: a row per optimizer step."""
        self.rounds += 1
        self.first, self.last = self.first or rows[0]["step"], rows[-1]["step"]
        if cause := cause_of(rows):
            self.idle += 1
            self.since = self.since if self.row else rows[0]["step"]
            self.row[cause] += 1
            self.all_causes[cause] += 1
        else:
            self.row.clear()
        for name in self.rewards:
            value = _one_value(rows[0], name)
            if self.rounds == 1 and value is not None:
                self.constant[name] = value
            elif name in self.constant and not _same(self.constant[name], value):
                del self.constant[name]
        for name in self.votes:
            unanimous = _number(rows[0], f"reward/{name}/zero_std_fraction") >= ALIKE
            # Samples that all differ have equal votes too, but few each.
            agreed = unanimous and _number(rows[0], f"reward/{name}/mean") >= ALIKE
            self.alike[name] = self.alike[name] + 1 if agreed else 0
        coarse = _number(rows[0], "ratio/first_minus_one") > self.clip_range and self.updates > 1
        self.coarse = self.coarse + 1 if coarse and self.coarse >= 0 else -1
        if norm := max(_number(row, "grad_norm", 0.0) for row in rows):
            self.faint = self.faint + 1 if norm < self.least and self.faint >= 0 else -1
        uncalled = _number(rows[0], "rollout/tool_calls") == 0 and self.uncalled >= 0
        self.uncalled = self.uncalled + 1 if uncalled else -1
        if "judging/first_fraction" in rows[0]:  # only some rounds have verdicts
            share = _number(rows[0], "judging/first_fraction")
            self.one_sided = self.one_sided + 1 if max(share, 1 - share) >= ALIKE else 0
        if "judging/agreement" in rows[0]:
            self.misled = self.misled + 1 if _number(rows[0], "judging/agreement") <= CHANCE else 0

    def alarms(self, ended: bool = False) -> list[Idle]:
        """What is wrong so far, each cause of each reward once; ``ended``: no round follows."""
        alarms, count = [*self.fixed], self.row.total()
        enough = self.rounds >= FEW or (ended and self.rounds > 0)
        if (count == self.rounds and enough) or count >= LONG:
            alarms.append(self._idle(self.row, count, self.since))
        elif ended and 2 * self.idle >= self.rounds >= FEW:
            alarms.append(self._idle(self.all_causes, self.idle, self.first))
        if enough:
            alarms += [self._constant(name, value) for name, value in self.constant.items()]
        alarms += [self._collapsed_votes(name, count) for name, count in self.alike.items() if count >= FEW]
        if enough and self.coarse == self.rounds:
            alarms.append(
                Idle(
                    "clip_range",
                    "algorithm.objective, model.dtype, optim.updates, optim.epochs",
                    self.first,
                    self.last,
                    f"log-probs are rounded more coarsely (ratio/first_minus_one) than the clip range of "
                    f"{self.clip_range:g}, so rounding decides which decisions the {self.updates - 1} later "
                    "updates of a round train; set optim.updates and optim.epochs to 1, a wider clip range "
                    "(algorithm.objective), or model.dtype float32",
                )
            )
        if self.faint >= FEW or (ended and self.faint > 0):
            alarms.append(
                Idle(
                    "faint_gradient",
                    "algorithm.aggregation, algorithm.terms, optim.eps",
                    self.first,
                    self.last,
                    f"this run trains next to nothing: up to step {self.last} every gradient (grad_norm) was below "
                    f"{self.least:.2g}, that of entries of optim.eps on average, under which AdamW takes a part of "
                    "optim.lr only; look at algorithm.aggregation (a constant far above the decisions of a sample) "
                    "and at coefficients of the objective, or set optim.eps lower",
                )
            )
        if enough and self.uncalled == self.rounds:
            alarms.append(
                Idle(
                    "uncalled_tools",
                    "data.system, model.path, sampling.turns",
                    self.first,
                    self.last,
                    f"up to step {self.last} no completion called a tool of sampling.tools, so calls are not "
                    "learned; ask for them in data.system, take a model that writes them, and set sampling.turns above "
                    "1, without which none is answered",
                )
            )
        if max(self.one_sided, self.misled) >= FEW:
            alarms.append(self._collapsed_judge())
        # The first stays: one that settings show says more than the rounds that show it too.
        once: dict[tuple[str, str], Idle] = {}
        for alarm in alarms:
            once.setdefault((alarm.cause, alarm.subject), alarm)
        return [*once.values()]

    def _idle(self, causes: Counter[str], count: int, since: int) -> Idle:
        cause, _ = causes.most_common(1)[0]
        words, settings = CAUSES[cause]
        others = [f"{CAUSES[name][0]} in {n}" for name, n in causes.items() if name != cause]
        also = f" ({'; '.join(others)} of them)" if others else ""
        rounds = f"{count} of {self.rounds} rounds" if count < self.rounds else f"all {plural(count, 'round')} so far"
        return Idle(
            cause,
            settings,
            since,
            self.last,
            f"this run trains nothing: in {rounds}, up to step {self.last}, {words}{also}; look at {settings}",
        )

    def _collapsed_votes(self, name: str, count: int) -> Idle:
        settings = "rewards, optim.lr, sampling.temperature, --steps"
        return Idle(
            "collapsed_votes",
            settings,
            self.first,
            self.last,
            f"reward '{name}': in the last {count} rounds, up to step {self.last}, the samples of at least {ALIKE:.0%} "
            "of the prompts all gave the same answer, so votes teach nothing more, and agreement is no sign of "
            "correctness; compare the verifier of held-out prompts, take an earlier checkpoint, and look at "
            f"{settings}",
            name,
        )

    def _collapsed_judge(self) -> Idle:
        settings = "algorithm.judging, rewards, optim.lr"
        if self.one_sided >= FEW:
            what = f"at least {ALIKE:.0%} of the verdicts of the last {self.one_sided} rounds, up to step {self.last}, "
            what += "are the same word (judging/first_fraction)"
        else:
            what = f"in the last {self.misled} rounds, up to step {self.last}, its scores order samples no more like "
            what += "the verifier than chance does (judging/agreement)"
        return Idle(
            "collapsed_judge",
            settings,
            self.first,
            self.last,
            f"the policy no longer judges its samples: {what}, so the reward it gives itself is no sign of "
            f"correctness; compare held-out judgements, take an earlier checkpoint, and look at {settings}",
        )

    def _constant(self, name: str, value: float) -> Idle:
        if math.isnan(value):
            cause, words = "absent_reward", "abstained from every sample"
            advice = "see which task or column it reads, and whether prompts have it (mmgrpo check-data)"
        else:
            cause, words = "constant_reward", f"gave {value:g} to every sample"
            advice = "see what it expects of an output, and whether prompts ask for it (data.system, data.template)"
        return Idle(
            cause,
            "rewards",
            self.first,
            self.last,
            f"reward '{name}' {words} of {plural(self.rounds, 'round')}, and teaches nothing; {advice}, or set its "
            "weight to 0",
            name,
        )


def cause_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Why the steps of a round trained nothing, a key of ``CAUSES``; empty where one of them did."""
    first, advantage = rows[0], _number(rows[0], "group/advantage", 1.0)

    def every(name: str, value: float) -> bool:
        return all(_number(row, name) == value for row in rows)

    if every("nonfinite", 1.0):
        return "not_finite"
    if every("decisions", 0.0):
        for name, cause in (
            ("group/unscored_fraction", "unscored"),
            ("rollout/truncated_fraction", "truncated"),
            ("group/zero_std_fraction", "no_spread"),
        ):
            if _number(first, name) == 1:
                return cause
        return "selected_none"
    if advantage == 0:
        return "no_spread" if _number(first, "group/zero_std_fraction") == 1 else "no_gradient"
    if every("lr", 0.0):
        return "learning_rate"
    if not every("grad_norm", 0.0):
        return ""
    if all(_number(row, "clip/low") + _number(row, "clip/high") >= 1 for row in rows):
        return "clipped"
    return "no_spread" if _number(first, "group/zero_std_fraction") == 1 else "no_gradient"


def settings_alarms(optim: Optim, steps: int) -> list[Idle]:
    """Alarms that a run of ``steps`` optimizer steps has before it starts."""
    if optim.lr == 0:
        message = f"this run trains nothing: optim.lr is 0 in all {steps} steps; set it, e.g. 1e-4 for LoRA adapters"
        return [Idle("learning_rate", "optim.lr", 0, 0, message)]
    if optim.warmup > steps:
        share = steps / optim.warmup
        message = (
            f"optim.warmup of {optim.warmup} steps is longer than the run of {steps}, so the learning rate ends "
            f"at {share:.2%} of optim.lr; set it below --steps"
        )
        return [Idle("warmup", "optim.warmup", 0, 0, message)]
    return []


def range_in_force(loss: LossRecipe) -> float:
    """The clip range with which a difference of log-probs is compared: the objective's, or ``PPO_CLIP``."""
    return loss.clip_range if math.isfinite(loss.clip_range) else PPO_CLIP


def gap_warning(gap: float, loss: LossRecipe, optim: Optim) -> str:
    """The warning of a difference between the log-probs of sampling and of training, ``gap`` in their ratio; empty
    where it is below ``GAP`` of the clip range in force."""
    limit = range_in_force(loss)
    if gap <= GAP * limit:
        return ""
    used, later = f"{'usual ' * math.isinf(loss.clip_range)}clip range of {limit:g}", optim.steps_per_round - 1
    effect = "the only update of a round takes the ratio as 1, so it is exact if this is rounding"
    if later:
        effect = (
            f"the first update of a round takes the ratio as 1, and the {later} after it compare with log-probs that "
            "training computes before it, in which its own rounding remains; set optim.updates and optim.epochs to 1, "
            "or model.dtype float32, if that is much of the clip range"
        )
    return (
        f"ratio/first_minus_one: log-probs of sampling and training give a ratio of 1 +- {gap:.1e} before the first "
        f"update, expected less than {GAP:.0%} of the {used} (algorithm.objective '{loss.objective.text}'): sampler "
        f"and trainer assign different log-probs to the same decisions; {effect}"
    )


def write_alarms(folder: Path, alarms: Sequence[Idle]) -> None:
    """Write ``alarms.json``, or remove it where there are none."""
    if alarms:
        write_text(folder / FILE, json.dumps([alarm.as_dict() for alarm in alarms], indent=1))
    else:
        (folder / FILE).unlink(missing_ok=True)


def read_alarms(folder: Path) -> list[Idle]:
    """The alarms in ``alarms.json`` of a run folder, which is untrusted input; what is none is left out."""
    rows = parse_json(read_text(folder, FILE, MAX_JSON) or "[]", folder / FILE)
    alarms = []
    for row in rows[:MOST] if isinstance(rows, list) else []:
        texts = [row.get(name) for name in ("cause", "settings", "message")] if isinstance(row, dict) else [None]
        steps = [row.get(name) for name in ("since", "step")] if isinstance(row, dict) else [None]
        subject = str(row.get("subject", ""))[:200] if isinstance(row, dict) else ""
        if all(isinstance(text, str) for text in texts) and all(type(step) is int for step in steps):
            cause, settings, message = (str(text)[:2000] for text in texts)
            alarms.append(Idle(cause, settings, *map(int, steps), message, subject))  # type: ignore[arg-type]
    return alarms


def _one_value(row: Mapping[str, Any], name: str) -> float | None:
    """The number that a reward gave to all samples of a round, NaN if it abstained from all; None if they differ."""
    mean, std = _number(row, f"reward/{name}/mean"), _number(row, f"reward/{name}/std")
    if math.isfinite(mean):
        return mean if std <= ROUNDING * max(1.0, abs(mean)) else None
    return math.nan if _number(row, f"reward/{name}/abstained_fraction") == 1 else None


def _same(first: float, second: float | None) -> bool:
    if second is None:
        return False
    if math.isnan(first) or math.isnan(second):
        return math.isnan(first) and math.isnan(second)
    return math.isclose(first, second, rel_tol=ROUNDING, abs_tol=ROUNDING)


def _number(row: Mapping[str, Any], name: str, absent: float = math.nan) -> float:
    value = row.get(name, absent)
    return math.nan if value is None else float(value)
