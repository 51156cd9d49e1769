"""Rewards in the process of the run, in one of their own, and on a server; and what overlap with sampling hides.

    python -m benchmarks rewards                  # a vision transformer as large as CLIP's ViT-B/32, a few minutes

Images are scored in batches of 16, by turns in the three ways, which must give the same values bit for bit. Then two
runs train the embedded model of images with a reward in a process of its own that takes as long as sampling: one
scores each round after it is sampled, the other while the round's next prompts are sampled.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mmgrpo.cli.bench.trainer import bench_trainer
from mmgrpo.config.ranges import ANY_TEXT, COUNT, COUNT_OR_ZERO, within
from mmgrpo.files import write_text

if TYPE_CHECKING:
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Image

REWARD = "benchmarks.rewards_vit:vit"
HERE, PROCESS, SERVER = "in the process of the run", "in a process of its own", "on a server, over loopback"
COMPUTES, WAITS = "another core of this machine", "another machine (it waits)"
AFTER, WHILE = "scored after sampling", "scored while sampling"


@dataclass
class Args:
    """The sizes to measure."""

    width: Annotated[int, within("[64, 4096]")] = 768
    """Channels of the vision transformer, a multiple of 64."""
    layers: Annotated[int, within("[1, 100]")] = 12
    """Its blocks."""
    size: Annotated[int, within("[8, 4096]")] = 512
    """Side of the images in pixels, which are sent as floats."""
    batch: Annotated[int, COUNT] = 16
    """Images per batch."""
    batches: Annotated[int, COUNT] = 4
    """Batches per measurement; a client sends the next one while one is scored."""
    repeats: Annotated[int, COUNT] = 5
    """Measurements of each way, which alternate."""
    prompts: Annotated[int, COUNT] = 16
    """Prompts per round of the run."""
    at_once: Annotated[int, COUNT] = 4
    """Of these, with overlap, as many are sampled at once: more parts hide more, and make sampling slower."""
    group: Annotated[int, within("[2, 4096]")] = 4
    """Images per prompt."""
    rounds: Annotated[int, COUNT_OR_ZERO] = 5
    """Rounds to measure with and without overlap; 0 leaves them out."""
    device: Annotated[str, ANY_TEXT] = "cpu"
    """Device of the reward."""
    threads: Annotated[int, within("[1, 1024]")] = 1
    """CPU threads of torch."""
    output: Annotated[str, ANY_TEXT] = "benchmarks"
    """Output folder."""


def run(args: Args, machine: str, command: str) -> None:
    """Measure, and write ``rewards.json`` and ``rewards.md``."""
    out = Path(args.output)
    out.mkdir(parents=True, exist_ok=True)
    print(f"{machine}\n", flush=True)
    rows = throughput(args)
    with tempfile.TemporaryDirectory() as folder:
        overlap = measure_overlap(args, Path(folder)) if args.rounds else []
    settings = {name: value for name, value in asdict(args).items() if name != "output"}
    result = {"command": command, "machine": machine, "settings": settings, "rows": rows, "overlap": overlap}
    write_text(out / "rewards.json", json.dumps(result, indent=1))
    write_text(out / "rewards.md", report(result))
    print(report(result) + f"\nwritten: {out / 'rewards.md'}")


def throughput(args: Args) -> list[dict[str, Any]]:
    """Seconds per batch of each way, the least of all measurements: what else the machine does only adds to them."""
    from mmgrpo.types import Prompt

    outputs = images(args.batch * args.batches, args.size)
    prompts = [Prompt("a picture")] * len(outputs)
    parts = [slice(start, start + args.batch) for start in range(0, len(outputs), args.batch)]
    with ways(args) as functions:
        seconds: dict[str, list[float]] = {name: [] for name in functions}
        values: dict[str, list[float]] = {}
        for number in range(args.repeats + 1):
            for name, function in functions.items():
                started = time.perf_counter()
                if name == SERVER:  # the client divides
                    values[name] = function(prompts, outputs)
                else:
                    values[name] = [v for part in parts for v in function(prompts[part], outputs[part])]
                if number:  # the first loads the model
                    seconds[name].append((time.perf_counter() - started) / args.batches)
    if len({str(numbers) for numbers in values.values()}) > 1:
        raise RuntimeError("the three ways gave different values, expected the same, bit for bit")
    return [{"way": name, "seconds": min(times)} for name, times in seconds.items()]


@contextmanager
def ways(args: Args) -> Iterator[dict[str, Callable[..., list[float]]]]:
    """The reward in the three ways, ready."""
    from mmgrpo.rewards import scorer
    from mmgrpo.scoring.served import Client

    written = f"{REWARD}(width={args.width}, layers={args.layers}, device={args.device!r}"
    command = [sys.executable, "-m", "mmgrpo.cli.main", "serve-rewards", "--reward", f"{written})", "--port", "0"]
    command += ["--threads", str(args.threads), "--device", "cpu"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    served: Any = scorer(f"{written})").fn
    try:
        assert server.stdout is not None
        client = Client([server.stdout.readline().split()[-1]], "vit", batch=args.batch)
        client.facts()["alone"] = False  # it has no manifest, but it does not compare images
        yield {HERE: scorer(f"{written}, process=False)").fn, PROCESS: served, SERVER: client}  # type: ignore[dict-item]
    finally:
        served.close()
        server.terminate()
        server.wait()


def images(count: int, size: int) -> list[Image]:
    """Images of noise."""
    import torch

    from mmgrpo.types import Image

    generator = torch.Generator().manual_seed(0)
    return [Image(torch.rand((3, size, size), generator=generator)) for _ in range(count)]


def measure_overlap(args: Args, folder: Path) -> list[dict[str, Any]]:
    """Seconds of sampling and of waiting for scores in a round, with and without overlap; rounds alternate."""
    from mmgrpo.rewards import scorer
    from mmgrpo.runtime.metrics import read_metrics

    trainers = {name: trainer_of(args, folder / str(number)) for number, name in enumerate((AFTER, WHILE))}
    trainers[WHILE].rounds = replace(trainers[WHILE].rounds, prompts_at_once=args.at_once)
    for _ in range(2):
        for trainer in trainers.values():
            trainer.run_round()  # warm
    # Rewards that take as long as sampling: a transformer, repeated as often as needed, and one that only waits.
    count = args.prompts * args.group
    sampling = read_metrics(folder / "0" / "metrics.jsonl")[-1]["time/rollout"]
    small = f"{REWARD}(width=192, layers=4, process=True"
    once = seconds_of(scorer(f"{small})").fn, images(count, 64))
    rewards = {
        COMPUTES: scorer(f"{small}, repeats={max(1, round(sampling / once))})"),
        WAITS: scorer(f"benchmarks.rewards_vit:waits(seconds={sampling / count}, process=True)"),
    }
    seconds_of(rewards[COMPUTES].fn, images(count, 64))
    rows = []
    for kind, reward in rewards.items():
        begun = {name: trainer.step for name, trainer in trainers.items()}
        for _ in range(args.rounds):
            for trainer in trainers.values():
                trainer.scorers = [reward]
                trainer.run_round()
        row: dict[str, Any] = {"reward": kind}
        for number, name in enumerate(trainers):
            lines = read_metrics(folder / str(number) / "metrics.jsonl")[begun[name] :]
            best = min(lines, key=lambda line: line["time/rollout"] + line["time/reward"])
            row[name] = {part: best[f"time/{part}"] for part in ("rollout", "reward")}
        saved = sum(row[AFTER].values()) - sum(row[WHILE].values())
        rows.append({**row, "hidden": saved / row[AFTER]["reward"]})
    return rows


def seconds_of(function: Callable[..., Any], outputs: Sequence[Image]) -> float:
    """Seconds of the second of two calls."""
    from mmgrpo.types import Prompt

    prompts, started = [Prompt("a picture")] * len(outputs), 0.0
    for _ in range(2):
        started = time.perf_counter()
        function(prompts, outputs)
    return time.perf_counter() - started


def trainer_of(args: Args, folder: Path) -> Trainer:
    """A run of the embedded model of images that learns next to nothing."""
    from mmgrpo.rewards import scorer
    from mmgrpo.types import Prompt
    from pipelines import visual

    folder.mkdir()
    colours = ("red", "green", "blue", "yellow")
    prompts = [Prompt(f"a {colours[number % 4]} circle", str(number)) for number in range(args.prompts)]
    return bench_trainer(
        visual.policy("embedded:visual/scenes/base", lora_rank=4),
        scorer("jpeg_incompressibility"),
        prompts,
        folder,
        algorithm={"preset": "flow_grpo"},
        prompts_per_step=args.prompts,
        group_size=args.group,
        steps=10**6,
        lr=1e-12,
    )


def report(result: dict[str, Any]) -> str:
    """Markdown: throughput relative to that in the process of the run, and the part of scoring that overlap hides."""
    settings, rows, overlap = result["settings"], result["rows"], result["overlap"]
    here = next(row["seconds"] for row in rows if row["way"] == HERE)
    lines = [
        "# Rewards benchmark",
        "",
        f"`{result['command']}` on {result['machine']}.",
        f"A vision transformer of {settings['layers']} blocks of {settings['width']} channels on {settings['device']}; "
        f"batches of {settings['batch']} images of {settings['size']} x {settings['size']} pixels, sent as "
        f"floats. The fastest of {settings['repeats']} measurements of {settings['batches']} batches, which alternate; "
        "the values of the three ways are equal bit for bit. What a process or a server adds does not depend on the "
        "reward, so the throughput of a cheaper one is a smaller part.",
        "",
        "| reward | s per batch | throughput | added s per batch |",
        "| --- | --- | --- | --- |",
    ]
    for row in rows:
        added = row["seconds"] - here
        lines.append(f"| {row['way']} | {row['seconds']:.3f} | {here / row['seconds']:.2f} | {added:.3f} |")
    if overlap:
        lines += [
            "",
            f"A round of the embedded image model, {settings['prompts']} prompts x {settings['group']} images, "
            "with a reward in a process of its own that takes about as long as sampling; with overlap "
            f"`data.prompts_at_once` is {settings['at_once']}. The fastest of {settings['rounds']} rounds, which "
            "alternate. Hidden is what overlap saves of the whole round, relative to the time of scoring.",
            "",
            "| the reward computes on | s of sampling | s of scoring | overlap: s of sampling | s waiting | hidden |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for row in overlap:
            cells = [row[name][part] for name in (AFTER, WHILE) for part in ("rollout", "reward")]
            numbers = " | ".join(f"{cell:.2f}" for cell in cells)
            lines.append(f"| {row['reward']} | {numbers} | {row['hidden']:.0%} |")
    return "\n".join(lines) + "\n"
