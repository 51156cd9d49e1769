"""What a run leaves in its folder while it trains, which its main process writes.

metrics.jsonl               a line for each optimizer step (mmgrpo/runtime/metrics.py)
alarms.json                 what trains nothing, if anything (mmgrpo/report/idle.py)
evaluations/<title>.json    values per held-out prompt, and their samples in samples/
groups/step-000040/         training groups (mmgrpo/report/group_record.py)
prompts.jsonl               what is known of the prompts, as of the newest checkpoint (mmgrpo/prompts/ledger.py)
checkpoints/step-000120/    all on which the rest of the run depends (mmgrpo/runtime/progress.py)
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mmgrpo.evaluation import Evaluation, Shown, directions
from mmgrpo.files import write_text
from mmgrpo.report.group_record import NONE, GroupRecord
from mmgrpo.report.idle import Idle, Watch, gap_warning, write_alarms
from mmgrpo.report.run_folder import print_alarms
from mmgrpo.report.tracking import send_evaluation
from mmgrpo.rollout import Round
from mmgrpo.rounds.callback import Run
from mmgrpo.runtime.metrics import MetricsLog, read_metrics
from mmgrpo.runtime.progress import Checkpoints, Interrupted
from mmgrpo.scoring import rules_of
from mmgrpo.types import Prompt


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
        """``metrics.jsonl``, opened at first use, so that a run that cannot start leaves its folder unchanged."""
        return MetricsLog(self.folder, run=self.checkpoints.run)

    def attach(self, run: Run) -> None:
        """The run whose record this is."""
        trained = sum(parameter.numel() for parameter in run.trained.values())
        self.run, self.watch = run, Watch.of(run.scorers, run.loss, run.optim, run.steps, trained)
        self.main_reward = next((f"reward/{one.name}/mean" for one in run.scorers if one.weight), "")

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
        self.watch.fixed.append(Idle.unchanged(model, self.run.step))
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
