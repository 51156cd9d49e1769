"""Whole runs whose numbers must not change with the structure of the code, to the last digit.

    python -m tests.golden run FILE            train the runs below with this checkout, and write their numbers
    python -m tests.golden compare FILE FILE   what differs between two files; exit code 1 where anything does

A file holds the metrics of every step without times and memory, and a digest of each saved tensor. Numbers depend on
the kind of CPU and on the versions of the libraries: to compare two commits on another machine than that of
``benchmarks/golden.json``, run both there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors import safe_open

from mmgrpo.toy import scenes
from pipelines.speech import whisper
from pipelines.visual import sd3
from pipelines.vlm import qwen_vl, qwen_vl_tiny
from tests.journeys.cli import quick
from tests.journeys.cli.running import COMMAND, metrics, run
from tests.tiny import maker, tiny_checkpoint

LAUNCH = [sys.executable, "-m", "mmgrpo.cli.launch", "--processes", "2", "--"]
TRAIN = [*COMMAND, "train"]

TOOLS = """
class Notes:
    def reset(self, prompt):
        return "a note lies here"

    def read(self, page: int) -> str:
        '''Read a page.

        Args:
            page: Its number.
        '''
        return "page " + str(page)
"""


@dataclass(frozen=True)
class Golden:
    """A run in a folder of its own, and how it is started."""

    options: Callable[[Path, Path], list[object]]
    """Options of ``train``, by the folder of the run and that of the media."""
    start: tuple[str, ...] = tuple(TRAIN)


def recipe(name: str, *more: object) -> Golden:
    """Two steps of a recipe of images or videos, on the tiny model of its family."""

    def options(folder: Path, media: Path) -> list[object]:
        family = quick.contents(f"visual/{name}")["model"]["family"]
        model = tiny_checkpoint(maker(family))
        return [*quick.visual_recipe(name, model, folder, media), *more]

    return Golden(options)


def scenes_run(*more: object, processes: bool = False) -> Golden:
    """Twelve steps of the model without VAE, by two processes where asked."""

    def options(folder: Path, media: Path) -> list[object]:
        return quick.visual(tiny_checkpoint(sd3.tiny_words, scenes.vocabulary()), folder, *more)

    return Golden(options, tuple(LAUNCH if processes else TRAIN))


def questions(*more: object) -> Golden:
    """Six steps of a tiny Qwen2.5-VL, which can write calls of tools, on images and videos."""

    def options(folder: Path, media: Path) -> list[object]:
        (folder / "my_notes.py").write_text(TOOLS)
        tags = (*qwen_vl_tiny.TAGS, "<tool_call>", "</tool_call>")
        with patch.object(qwen_vl_tiny, "TAGS", tags):
            model = qwen_vl.tiny(folder / "model")
        return quick.vlm_run(model, media, folder, *more)

    return Golden(options)


def transcripts(folder: Path, media: Path) -> list[object]:
    """Two steps of a tiny Whisper on the embedded clips."""
    rewards = ["--rewards", "one_minus_wer", "sentence_chrf", "exact_transcript(weight=0)"]
    return [
        *("--recipe", "whisper_adapt", "--model.path", tiny_checkpoint(whisper.tiny), "--output-dir", folder),
        *(*quick.SPEECH, *rewards),
    ]


RUNS: Mapping[str, Golden] = {
    "image transitions": recipe("flow_grpo"),
    "image tree": recipe("branch_grpo"),
    "image matching, moving averages": recipe("diffusion_nft"),
    "image few steps, a learner": recipe("tdm_r1"),
    "image offline pairs": recipe("diffusion_dpo"),
    "video transitions": recipe("dance_grpo_wan"),
    "plain questions": questions(),
    "questions, replay and samplers": questions(
        *("--algorithm.preset", "vas", "--algorithm.replay", "replay(count=2)", "--optim.ema", 0.5)
    ),
    "questions, tools": questions("--sampling.tools", "my_notes:Notes", "--sampling.max-tokens", 24),
    "transcripts": Golden(transcripts),
    "two processes": scenes_run(processes=True),
    "two processes, sharded": scenes_run("--distributed.shard", "full", "--optim.ema", 0, processes=True),
}


def machine() -> dict[str, str]:
    """What numbers depend on besides the code."""
    return {
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def digests(folder: Path) -> dict[str, str]:
    """Of each tensor of the saved model, the first letters of the SHA-256 of its bytes."""
    found = {}
    for file in sorted((folder / "model").rglob("*.safetensors")):
        with safe_open(str(file), "pt") as tensors:
            for name in sorted(tensors.keys()):
                raw = tensors.get_tensor(name).contiguous().view(torch.uint8).numpy().tobytes()
                found[f"{file.name}:{name}"] = hashlib.sha256(raw).hexdigest()[:16]
    return found


def numbers(name: str, folder: Path, media: Path) -> dict[str, Any]:
    """Train a run, and read what it left."""
    golden = RUNS[name]
    folder.mkdir()
    run([*golden.start], *golden.options(folder, media), cwd=folder)
    [place] = [one.parent for one in folder.rglob("summary.json")]
    return {"metrics": metrics(place), "weights": digests(place)}


def train_all(output: Path, only: str) -> None:
    """Write the numbers of all runs whose names contain ``only``."""
    found: dict[str, Any] = {}
    if not any(only in one for one in RUNS):
        raise SystemExit(f"--only: got '{only}', expected a part of one of: {'; '.join(RUNS)}")
    with tempfile.TemporaryDirectory() as place:
        (media := Path(place) / "media").mkdir()
        quick.write_media(media)
        for number, name in enumerate(one for one in RUNS if only in one):
            found[name] = numbers(name, Path(place) / str(number), media)
            print(f"{name}: {len(found[name]['metrics'])} steps, {len(found[name]['weights'])} tensors", flush=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(written({"machine": machine(), "runs": found}))


def written(found: Mapping[str, Any]) -> str:
    """JSON with a line for each step and for the tensors of a run."""
    lines = [f'{{"machine": {json.dumps(found["machine"])}, "runs": {{']
    for place, (name, one) in enumerate(found["runs"].items()):
        steps = ",\n".join(map(json.dumps, one["metrics"]))
        end = "," if place + 1 < len(found["runs"]) else "}}"
        lines += [
            f'{json.dumps(name)}: {{"metrics": [',
            f'{steps}], "weights":',
            json.dumps(one["weights"]) + f"}}{end}",
        ]
    return "\n".join(lines) + "\n"


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """A line for each value that is not the same in both, and for each run that one of them lacks."""
    yield from (f"{name}: only in one file" for name in sorted(before["runs"].keys() ^ after["runs"].keys()))
    for name in before["runs"].keys() & after["runs"].keys():
        old, new = before["runs"][name], after["runs"][name]
        if len(old["metrics"]) != len(new["metrics"]):
            yield f"{name}: {len(old['metrics'])} steps are {len(new['metrics'])}"
        for step, (one, other) in enumerate(zip(old["metrics"], new["metrics"], strict=False), 1):
            yield from (f"{name}, step {step}: {line}" for line in changed(one, other))
        yield from (f"{name}, saved weights: {line}" for line in changed(old["weights"], new["weights"]))


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """A line for each entry that is not the same in both."""
    for key in sorted(before.keys() | after.keys()):
        if repr(before.get(key)) != repr(after.get(key)):  # NaN is the same as NaN
            yield f"{key}: {before.get(key, 'nothing')} is {after.get(key, 'nothing')}"


def compare(before: Path, after: Path) -> int:
    """Print what differs; the exit code."""
    old, new = (json.loads(path.read_text()) for path in (before, after))
    if old["machine"] != new["machine"]:
        print(f"{before} is of {old['machine']}, {after} of {new['machine']}: run both on one machine")
        return 2
    lines = list(differences(old, new))
    print("\n".join([*lines, f"{len(lines)} differences in {len(old['runs'].keys() & new['runs'].keys())} runs"]))
    return int(bool(lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("run", help="train the runs and write their numbers")
    training.add_argument("output", type=Path)
    training.add_argument("--only", default="", help="a part of the names of the runs")
    comparing = commands.add_parser("compare", help="what differs between two files")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "compare":
        return compare(given.before, given.after)
    train_all(given.output, given.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
