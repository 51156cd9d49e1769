"""The fault campaign: runs of every modality that are killed, stopped, damaged, replaced or denied the disk.

    make faults                                          # the whole; writes benchmarks/faults.md
    python -m tests.faults.campaign --scale 0.1          # a tenth of it

Every trial goes on after its fault as a user would, with --resume, until the run ends, and is compared with a run that
nothing happened to: metrics, evaluations, summary, weights, optimizer and average, bit by bit. A user's files lie in
and around every run folder and are compared as well.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.faults.damages import damage
from tests.faults.trials import NONE, Ended, Fault, in_child
from tests.unit.runtime.trees import tree

USERS = {"notes.txt": b"mine", "samples/best.png": b"mine", "model/mine.md": b"mine", "src/a.py": b"mine"}
"""A user's files in every run folder, once it exists."""


COUNTS = {"kill": 30, "term": 6, "overwrite": 8, "damage": 17, "disk": 8, "two": 3}
"""Trials of each kind, of every setting."""

LENGTH = """
def length(prompts, outputs):
    return [float(len(output.text) % 7) for output in outputs]
"""
"""A reward of the user's, in a process of its own, in which samples of a small model differ."""


@dataclass(frozen=True)
class Setting:
    """A small run: its options, threads and processes."""

    name: str
    options: Callable[[Path], list[object]]
    """From the folder of the run's output."""
    threads: int = 1
    ranks: int = 1

    def arguments(self, output: Path, *more: object) -> list[str]:
        return [*map(str, self.options(output)), "--threads", str(self.threads), *map(str, more)]


@dataclass
class Campaign:
    """Trials so far, by kind, and what went wrong in them."""

    folder: Path
    seed: int
    trials: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    """How many trials met their fault; in the others the run had ended before."""
    failures: list[str] = field(default_factory=list)
    seconds: Counter[str] = field(default_factory=Counter)
    references: dict[str, tuple[dict[str, Any], Ended]] = field(default_factory=dict)

    def reference(self, setting: Setting) -> tuple[dict[str, Any], Ended]:
        """The results of a run that nothing happens to, and how long it took."""
        if setting.name not in self.references:
            output = self.folder / f"reference {setting.name}".replace(" ", "-")
            ended = train(setting, output)
            assert ended.status == 0, ended.output[-3000:]
            found = results(output / "run")
            assert all(line["decisions"] for line in found["metrics"]), f"{setting.name}: a step trains nothing"
            self.references[setting.name] = found, ended
        return self.references[setting.name]

    def run(self, kind: str, trial: Callable[[random.Random, Path], str], count: int) -> None:
        """``count`` trials of a kind; a trial returns what went wrong, or an empty string."""
        for number in range(count):
            start = time.monotonic()
            place = Path(tempfile.mkdtemp(dir=self.folder, prefix="trial-"))
            told = trial(random.Random(f"{self.seed} {kind} {number}"), place)
            self.trials[kind] += 1
            self.seconds[kind] += time.monotonic() - start
            if told:
                self.failures.append(f"{kind} {number}: {told}")
                print(self.failures[-1], flush=True)
            else:
                shutil.rmtree(place)
        print(f"{kind}: {self.trials[kind]} trials in {self.seconds[kind]:.0f} s", flush=True)


def train(setting: Setting, output: Path, *more: object, fault: Fault = NONE) -> Ended:
    """A run, or its continuation, in a process (or processes) of its own."""
    from tests.journeys.cli.running import call

    output.mkdir(parents=True, exist_ok=True)

    def work() -> None:
        os.chdir(output.parent / "media")  # where a reward of the user's lies
        call("train", *setting.arguments(output, *more))

    return in_child(work, output / "run", fault, setting.ranks)


def results(run: Path) -> dict[str, Any]:
    """All that must be equal: numbers without times, and the bytes of weights."""
    from tests.journeys.cli.running import metrics

    summary = json.loads((run / "summary.json").read_text())
    kept = {name: value for name, value in summary.items() if name not in ("run", "seconds", "wall_seconds")}
    evaluations = {path.name: json.loads(path.read_text()) for path in sorted((run / "evaluations").glob("*.json"))}
    numbers = {name: [one["step"], one["prompts"], one["values"], one["counts"]] for name, one in evaluations.items()}
    checkpoint = max((run / "checkpoints").glob("step-*"), key=lambda path: path.name)
    files = {path.name: path.read_bytes() for path in sorted(checkpoint.glob("*.safetensors"))}
    model = {
        name: content for name, content in tree(run / "model").items() if name != "run.json" and "mine.md" not in name
    }
    return {"metrics": metrics(run), "summary": kept, "evaluations": numbers, "weights": files, "model": model}


def compare(setting: Setting, campaign: Campaign, run: Path) -> str:
    """The first part of the results that differs from the reference's."""
    expected, _ = campaign.reference(setting)
    try:
        actual = results(run)
    except (OSError, ValueError, KeyError) as error:
        return f"no results: {error}"
    return next((f"{name} differ" for name in expected if expected[name] != actual[name]), "")


def finish(setting: Setting, campaign: Campaign, output: Path, *more: object) -> str:
    """Go on until the run ends, and compare."""
    ended = train(setting, output, "--resume", *more)
    if ended.status:
        return f"--resume ended with {ended.status}: {ended.output[-400:]}"
    return compare(setting, campaign, output / "run") or bystanders(output)


def add_users_files(output: Path) -> None:
    """Put a user's files into the run folder, where it exists, and beside it."""
    (output / "beside.txt").write_bytes(b"mine")
    for name, content in USERS.items() if (output / "run" / "run.json").exists() else ():
        (output / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (output / "run" / name).write_bytes(content)


def bystanders(output: Path) -> str:
    """What happened to the user's files, and what the run left beside its folder."""
    here = tree(output)
    if here.get("beside.txt", b"mine") != b"mine":
        return "a file beside the run changed"
    marked = [name for name in USERS if f"run/{name}" in here or (output / "marked").exists()]
    changed = [name for name in marked if here.get(f"run/{name}") != USERS[name]]
    left = [name for name in here if name.startswith(".run")]
    return f"files of the user's changed: {changed}" if changed else f"left behind: {left}" if left else ""


def killed(setting: Setting, campaign: Campaign, act: str) -> Callable[[random.Random, Path], str]:
    """Up to three faults in a row, at operations on files or at any time, then the run goes on to its end."""

    def trial(chance: random.Random, output: Path) -> str:
        _, whole = campaign.reference(setting)
        for attempt in range(chance.randint(1, 3)):
            at = chance.randint(1, whole.operations)
            timed = act == "kill" and chance.random() < 0.4
            fault = Fault(seconds=chance.uniform(0.05, whole.seconds)) if timed else Fault(at, act)
            ended = train(setting, output, *(["--resume"] if attempt else []), fault=fault)
            campaign.faults[f"{act}: {setting.name}"] += bool(ended.status)
            if told := unexpected(ended, act):
                return told
            add_users_files(output)
        return finish(setting, campaign, output)

    return trial


def unexpected(ended: Ended, act: str) -> str:
    """What is wrong with how a child ended under a fault."""
    if ended.traceback or "HUNG" in ended.output:
        return f"{ended.output[-600:]}"
    allowed = {"kill": (0, -9), "term": (0, 143, -15)}.get(act, (0, 2))
    return "" if ended.status in allowed else f"status {ended.status}: {ended.output[-400:]}"


def overwritten(setting: Setting, campaign: Campaign) -> Callable[[random.Random, Path], str]:
    """A finished run is replaced, the replacement is killed, and repeated."""

    def trial(chance: random.Random, output: Path) -> str:
        _, whole = campaign.reference(setting)
        shutil.copytree(campaign.folder / f"reference-{setting.name}".replace(" ", "-") / "run", output / "run")
        add_users_files(output)
        old = json.loads((output / "run" / "run.json").read_text())["run"]
        early = chance.random() < 0.5
        at = chance.randint(1, 30 if early else whole.operations + 40)
        ended = train(setting, output, "--overwrite", fault=Fault(at, "kill"))
        campaign.faults[f"overwrite: {setting.name}"] += bool(ended.status)
        if told := unexpected(ended, "kill"):
            return told
        # Until the new run has a checkpoint the old one is somewhere, whole.
        folders = [path for path in output.iterdir() if (path / "run.json").is_file()]
        ids = {path: json.loads((path / "run.json").read_text())["run"] for path in folders}
        new = [path for path, run in ids.items() if run != old]
        if not any(list((path / "checkpoints").glob("step-*")) for path in new):
            whole_old = [path for path, run in ids.items() if run == old and (path / "summary.json").is_file()]
            if not whole_old:
                return "the old run is gone before the new one has a checkpoint"
        ended = train(setting, output, "--overwrite")
        if ended.status:
            return f"--overwrite ended with {ended.status}: {ended.output[-400:]}"
        (output / "marked").write_text("the user's files were there before")
        return compare(setting, campaign, output / "run") or bystanders(output)

    return trial


def damaged(setting: Setting, campaign: Campaign) -> Callable[[random.Random, Path], str]:
    """A checkpoint is damaged; the run ends with the right numbers and names it, or refuses by name."""

    def trial(chance: random.Random, output: Path) -> str:
        campaign.reference(setting)
        shutil.copytree(campaign.folder / f"reference-{setting.name}".replace(" ", "-") / "run", output / "run")
        what = damage(output / "run" / "checkpoints", chance)
        ended = train(setting, output, "--resume")
        campaign.faults[f"damage: {setting.name}"] += 1
        if ended.traceback or ended.status not in (0, 2):
            return f"{what}: {ended.status} {ended.output[-400:]}"
        if ended.status == 2:
            named = "step-" in ended.output.strip().splitlines()[-1] or "intact" in ended.output
            return "" if named else f"{what}: {ended.output[-300:]}"
        if "damaged" not in ended.output and what != "an older checkpoint":
            return f"{what}: resumed in silence"
        return compare(setting, campaign, output / "run")

    return trial


def without_disk(setting: Setting, campaign: Campaign) -> Callable[[random.Random, Path], str]:
    """The disk is full, read-only or gone from an operation on; afterwards it is back, and the run goes on."""

    def trial(chance: random.Random, output: Path) -> str:
        _, whole = campaign.reference(setting)
        act = chance.choice(["ENOSPC", "EROFS", "EIO", "ENOENT", "EDQUOT", "ESTALE"])
        ended = train(setting, output, fault=Fault(chance.randint(1, whole.operations), act))
        campaign.faults[f"disk: {setting.name}"] += bool(ended.status)
        if told := unexpected(ended, act):
            return f"{act}: {told}"
        add_users_files(output)
        return finish(setting, campaign, output)

    return trial


def two_at_once(setting: Setting, campaign: Campaign) -> Callable[[random.Random, Path], str]:
    """Two starts in one folder: one is refused by name, and the other ends with the right numbers."""

    def trial(chance: random.Random, output: Path) -> str:
        from threading import Thread

        output.mkdir(exist_ok=True)
        ended: list[Ended] = []
        delay = chance.uniform(0, 1.5)

        def second() -> None:
            time.sleep(delay)
            options = [*setting.arguments(output), *(["--overwrite"] if chance.random() < 0.5 else ["--resume"])]
            from tests.journeys.cli.running import call

            def work() -> None:
                os.chdir(output.parent / "media")
                call("train", *options)

            ended.append(in_child(work, output / "second"))

        thread = Thread(target=second)
        thread.start()
        first = train(setting, output)
        thread.join()
        campaign.faults[f"two: {setting.name}"] += 1
        statuses = sorted(one.status for one in (first, *ended))
        refused = [one for one in (first, *ended) if one.status == 2]
        if statuses not in ([0, 2], [0, 0]) or any(one.traceback for one in (first, *ended)):
            return f"{statuses}: {first.output[-300:]} {ended[0].output[-300:]}"
        if refused and "is in use by process" not in refused[0].output and "already contains" not in refused[0].output:
            return refused[0].output[-300:]
        return compare(setting, campaign, output / "run")

    return trial


def settings(folder: Path) -> Iterator[Setting]:
    """Small runs of every modality, with 1 and 2 threads, and one with two processes."""
    from mmgrpo.toy import scenes
    from pipelines.speech import whisper
    from pipelines.visual import sd3
    from pipelines.vlm import qwen_vl
    from tests.journeys.cli import quick

    words = sd3.tiny_words(folder / "words", scenes.vocabulary())
    whisper_folder = whisper.tiny(folder / "whisper")
    media = folder / "media"
    media.mkdir()
    quick.write_media(media)
    (media / "length.py").write_text(LENGTH)
    seeing = qwen_vl.tiny(folder / "qwen")
    often = ["--save-every", 2, "--eval.every", 2, "--keep", 2, "--trackers", "tensorboard"]
    draw: list[object] = ["--steps", 6, "--eval.prompts", 2, "--data.group-size", 2, "--sampling.steps", 3, *often]

    def drawing(output: Path) -> list[object]:
        return [*quick.visual(Path(words), output), *draw]

    def looking(output: Path) -> list[object]:
        small: list[object] = ["--steps", 4, "--data.group-size", 2, *often]
        return [*quick.vlm_run(str(seeing), media, media), "--output-dir", output, *small]

    def hearing(output: Path) -> list[object]:
        small: list[object] = ["--steps", 4, "--data.group-size", 4, "--eval.extra", "--eval.prompts", 2, *often]
        base: list[object] = ["--recipe", "whisper_adapt", "--model.path", whisper_folder, "--output-dir", output]
        return [*base, *quick.SPEECH, "--name", "run", *small, "--rewards", "length:length", "one_minus_wer(weight=0)"]

    for name, options in (("draws", drawing), ("looks", looking), ("hears", hearing)):
        yield Setting(name, options)
        yield Setting(f"{name}, 2 threads", options, threads=2)
    yield Setting("draws, 2 processes", drawing, ranks=2)


def main() -> None:
    from tests.faults.table import write_results

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="size relative to the whole campaign")
    parser.add_argument("--only", default="", help="settings whose name begins with this, e.g. draws")
    parser.add_argument("--kinds", nargs="+", choices=COUNTS, default=[*COUNTS], help="only these kinds of faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="file of the results; 'python -m tests.faults.table' makes a table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a child could not use the threads that this process had started
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    campaign = Campaign(folder, arguments.seed)
    every = [setting for setting in settings(folder) if setting.name.startswith(arguments.only)]

    for setting in every:
        kinds: dict[str, Callable[[random.Random, Path], str]] = {
            "kill": killed(setting, campaign, "kill"),
            "term": killed(setting, campaign, "term"),
            "overwrite": overwritten(setting, campaign),
            "damage": damaged(setting, campaign),
            "disk": without_disk(setting, campaign),
            "two": two_at_once(setting, campaign),
        }
        for kind in arguments.kinds:
            if setting.ranks == 1 or kind in ("kill", "term", "overwrite"):
                count = max(1, round(COUNTS[kind] * arguments.scale))
                campaign.run(f"{kind}: {setting.name}", kinds[kind], count)
        write_results(campaign.trials, campaign.faults, campaign.failures, campaign.seconds, arguments.output)
    raise SystemExit(bool(campaign.failures))


if __name__ == "__main__":
    main()
