"""A training step on images: ours, ours without shared computation, ours with completions that vLLM draws, and TRL's
GRPOTrainer, on one model and data set.

    mmgrpo bench vlm                      # groups of 16 and 32; every contestant in its own process

All train the language model of one random Qwen2.5-VL (with a frozen vision tower) in fp32 with AdamW, the clipped loss,
no KL, and completions of given lengths. Where all have one length our model gets no end token, TRL ``min_new_tokens``;
else both end each completion where the other does. Images are PNG files, which both read and preprocess in every step.
vLLM needs an environment of its own: that of ``make engine``, or the one whose Python MMGRPO_ENGINE names.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from mmgrpo.cli.bench.vlm_worker import ALONE, COMPACT, ENGINE, GENERIC, OURS, SENTENCE, TRL, Contest
from mmgrpo.config.ranges import ANY_TEXT, COUNT, one_of, within
from mmgrpo.files import write_text


@dataclass
class Args:
    """The sizes to measure."""

    groups: Annotated[list[int], within("[2, 4096]")] = field(default_factory=lambda: [16, 32])
    """Group sizes (samples per prompt) to measure."""
    contestants: Annotated[list[str], one_of(OURS, GENERIC, ALONE, ENGINE, TRL, COMPACT)] = field(
        default_factory=lambda: [OURS, ALONE, ENGINE, TRL, COMPACT]
    )
    """Implementations to compare."""
    prompts: Annotated[int, within("[1, 1e6]")] = 1
    """Prompts per step; the samples of a prompt are one forward and backward pass."""
    tokens: Annotated[list[int], within("[1, 1e6]")] = field(default_factory=lambda: [16, 64])
    """Tokens per completion, all of one length."""
    uneven: Annotated[list[int], within("[8, 1e6]")] = field(default_factory=lambda: [256])
    """Tokens of the longest completion where lengths differ; a quarter of it is their mean."""
    images: Annotated[int, within("[1, 64]")] = 1
    """Images per prompt."""
    checkpointing: Annotated[list[str], one_of("off", "on")] = field(default_factory=lambda: ["off"])
    """Whether the backward pass recomputes activations."""
    before: Annotated[str, ANY_TEXT] = ""
    """Checkout of another commit, whose code is measured beside this one's; its worker must know these settings."""
    side: Annotated[int, within("[28, 16384]")] = 224
    """Width and height of the images in pixels; a media token covers 28 x 28."""
    vocabulary: Annotated[int, within("[1, 1e7]")] = 32_000
    """Size of the vocabulary."""
    width: Annotated[int, within("[1, 65536]")] = 256
    """Width of the language model."""
    layers: Annotated[int, within("[2, 1024]")] = 6
    """Layers of the language model; the vision tower has half as many."""
    steps: Annotated[int, COUNT] = 3
    """Steps to measure, after one for warm-up."""
    threads: Annotated[int, within("[1, 1024]")] = 1
    """CPU threads of torch."""
    output: Annotated[str, ANY_TEXT] = "benchmarks"
    """Output folder."""


def run(args: Args, machine: str, command: str) -> None:
    """Measure all contestants and write ``vlm.json`` and ``vlm.md``, or ``vlm_images`` with several images."""
    out = Path(args.output)
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    name = "vlm" if args.images == 1 else "vlm_images"
    with tempfile.TemporaryDirectory() as folder:
        parameters = prepare(args, Path(folder))
        print(f"{machine}\n{parameters / 1e6:.1f} million parameters, {args.prompts} prompts per step\n", flush=True)
        result = {"command": command, "machine": machine, "parameters": parameters, "settings": asdict(args)}
        lengths = [(tokens, False) for tokens in args.tokens] + [(tokens, True) for tokens in args.uneven]
        commits = [args.before, ""] if args.before else [""]
        for (tokens, uneven), group, recomputed in itertools.product(lengths, args.groups, args.checkpointing):
            for contestant, before in itertools.product(args.contestants, commits):
                if contestant in SLOW and (tokens, uneven) != lengths[0]:
                    continue
                sizes = group, args.prompts, tokens, args.steps, args.threads, folder, uneven, args.images
                rows.append(measure(Contest(contestant, *sizes, recomputed == "on", before)))
                print(_line(rows[-1]), flush=True)
            refuse_unequal(rows)
            write_text(out / f"{name}.json", json.dumps({**result, "rows": rows}, indent=1))
            write_text(out / f"{name}.md", report({**result, "rows": rows}))
    print(f"\nwritten: {out / name}.md")


def prepare(args: Args, folder: Path) -> int:
    """Write a random model and random smooth images; returns the number of parameters of the model."""
    import numpy as np
    from PIL import Image

    from pipelines.vlm.qwen_vl_tiny import write_model

    words = [*SENTENCE.split(), *(f"w{number}" for number in range(args.vocabulary))][: args.vocabulary]
    write_model(
        folder / "model",
        words,
        width=args.width,
        layers=args.layers,
        heads=args.width // 64 or 1,
        vision_width=args.width // 64 * 32 or 32,
        vision_layers=args.layers // 2,
        patch=14,
        min_pixels=28 * 28,
        max_pixels=args.side**2,
    )
    random = np.random.default_rng(0)
    for number in range(args.images * args.prompts * (args.steps + 1)):  # every image is used once
        colours = Image.fromarray(random.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        colours.resize((args.side, args.side), Image.Resampling.BICUBIC).save(folder / f"{number:05d}.png")
    from safetensors import safe_open

    with safe_open(folder / "model" / "model.safetensors", "pt") as weights:
        return sum(int(np.prod(weights.get_slice(name).get_shape())) for name in weights.keys())  # noqa: SIM118


def measure(contest: Contest) -> dict[str, Any]:
    """Measure one contestant in a separate process, so its peak memory is its own."""
    python = python_with_vllm() if contest.contestant == ENGINE else sys.executable
    if not python:
        return {**{name: getattr(contest, name) for name in ("contestant", "before", *COMMON)}, "missing": MISSING}
    # The environment of vLLM sees the packages of this one, but not what these install in place.
    root = str(Path(contest.before).resolve() if contest.before else Path(__file__).parents[3])
    paths = [root] if root != sysconfig.get_paths()["purelib"] else []
    paths += [path for path in [os.environ.get("PYTHONPATH")] if path]
    process = subprocess.run(
        [python, "-m", "mmgrpo.cli.bench.vlm_worker", json.dumps(asdict(contest))],
        capture_output=True,
        text=True,
        check=False,
        cwd=contest.before or None,  # whose modules python -m finds first
        env={
            **os.environ,
            "OMP_NUM_THREADS": str(contest.threads),
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(paths),
            "VLLM_LOGGING_LEVEL": "ERROR",
        },
    )
    if process.returncode:
        raise RuntimeError(f"'{contest.contestant}' with groups of {contest.group} failed:\n{process.stderr[-3000:]}")
    return json.loads(process.stdout.splitlines()[-1])


def python_with_vllm() -> str:
    """The Python of the environment of vLLM; empty where it is not installed."""
    if named := os.environ.get("MMGRPO_ENGINE"):
        if not Path(named).is_file():
            raise ValueError(f"MMGRPO_ENGINE: got {named}, which does not exist; expected the Python of 'make engine'")
        return named
    if importlib.util.find_spec("vllm"):
        return sys.executable
    return str(MADE.absolute()) if MADE.is_file() else ""


def refuse_unequal(rows: list[dict[str, Any]]) -> None:
    """Raise RuntimeError if contestants did not process the same numbers of tokens."""
    for group in {_contest(row) for row in rows}:
        work = {
            (row["prompt tokens"], row["completion tokens"]) for row in without_missing(rows) if _contest(row) == group
        }
        if len(work) > 1:
            raise RuntimeError(
                f"with (samples, tokens, uneven) of {group} contestants differ in (prompt, completion) tokens: {work}"
            )


def without_missing(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of contestants that are installed."""
    return [row for row in rows if "missing" not in row]


def _line(row: dict[str, Any]) -> str:
    head = f"{_name(row):26} {row['group']:2d} of {_length(row):11}"
    if "missing" in row:
        return f"{head} {row['missing']}"
    return (
        f"{head} {row['seconds']:7.2f} s per step  (rollout "
        f"{row['rollout']:6.2f}  reward {row['reward']:5.2f}  update {row['update']:6.2f})  "
        f"{row['samples a processor second']:6.2f} samples per processor s, "
        f"{row['tokens a processor second']:6.0f} tokens drawn, "
        f"peak {row['peak']:5.0f} MiB ({row['peak above load']:+.0f} loaded)"
    )


def report(result: dict[str, Any]) -> str:
    """Markdown: the settings, and the speed and memory of every contestant, absolute and relative to TRL."""
    settings, rows = result["settings"], result["rows"]
    places = next(iter(without_missing(rows)), {"prompt tokens": "?"})["prompt tokens"]
    base = "before's" if settings["before"] else "TRL's"
    names = ["processor s", "samples per processor s", f"times {base}", "drawing processor s", "tokens per processor s"]
    names += ["s per step", "rollout", "reward", "update"]
    names += ["peak MiB", f"of {base}", "peak above load MiB", f"of {base}"]
    lines = [
        "# Vision-language benchmark",
        "",
        f"`{result['command']}` on {result['machine']}.",
        f"A random Qwen2.5-VL of {result['parameters'] / 1e6:.1f} million parameters ({settings['vocabulary']} words, "
        f"width {settings['width']}, {settings['layers']} layers), its vision tower frozen; fp32, AdamW, no LoRA, no "
        f"KL; {settings['prompts']} prompts per step of {places} tokens, those of images of {settings['side']} pixels "
        f"among them ({settings['images']} a prompt); one group is one forward and backward pass. Of "
        f"{settings['steps']} steps after one for warm-up, the least processor time and the median of seconds; every "
        "contestant in a separate "
        "process. A step is everything from reading the PNG files to the optimizer step; other load on the machine "
        "affects its seconds, and its processor seconds less. *TRL's* is TRL, head on answers only; *before* is "
        "another commit, measured beside; *recomputed* is gradient checkpointing; *drawing* is what draws the "
        "completions, without what a rollout does besides.",
        "",
        *(f"- *{name}*: {about}" for name, about in ABOUT.items() if name in settings["contestants"]),
        "",
        "| tokens | samples per prompt | contestant | " + " | ".join(names) + " |",
        "| --- | --- | --- |" + " --- |" * len(names),
    ]
    for row in rows:
        head = f"| {_length(row)} | {row['group']} | {_name(row)} | "
        if "missing" in row:
            lines.append(head + " | ".join([row["missing"], *[""] * (len(names) - 1)]) + " |")
            continue
        known = row["contestant"] if settings["before"] else COMPACT, settings["before"]
        other = next(
            (r for r in rows if (r["contestant"], r["before"]) == known and _contest(r) == _contest(row)), None
        )
        name = "samples a processor second"
        cells = [f"{row['processor seconds']:.2f}", f"{row[name]:.2f}", _relative(row, other, name)]
        cells += [f"{row['drawing']:.2f}", f"{row['tokens a processor second']:.0f}"]
        cells += [f"{row[name]:.2f}" for name in ("seconds", "rollout", "reward", "update")]
        for name in ("peak", "peak above load"):
            cells += [f"{row[name]:.0f}", _relative(row, other, name)]
        lines.append(head + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


ABOUT = {
    OURS: "a prompt and its image are processed once per group, in sampling and in training. Linear layers are "
    "multiplied by oneDNN, where torch, and so TRL, uses MKL; both are the same on a GPU.",
    GENERIC: "the same network by the family for any architecture, whose own forward pass reads prompts.",
    ALONE: "ours with `share_prefix` off: the whole prompt is processed for every sample, in sampling and in "
    "training, and the features of the image are recomputed in every pass.",
    ENGINE: "our trainer with `rollout.engine` vllm in the trainer's process, whose processor time and memory (1 GiB "
    "of it for vLLM's cache) are those of both. It is a build for CPUs: on a GPU another with other kernels is used. "
    "Its drawing is vLLM's `generate` alone, without the features of the image, which the trainer computes; weights "
    "are sent before every step, and what was drawn is scored by the trainer, which our own sampler does not need.",
    TRL: "`GRPOTrainer` of TRL, unchanged. On a CPU its fused head scores all positions, including the prompt.",
    COMPACT: "TRL, patched to score only the completions, as it does on a GPU.",
}


SLOW = (ALONE, TRL)
"""Contestants that are measured at the first length only."""


COMMON = ("group", "tokens", "uneven", "checkpointing")

MISSING = "vLLM is not installed: make engine"

MADE = Path("build/engine/bin/python")
"""The Python that ``make engine`` makes."""


def _contest(row: dict[str, Any]) -> tuple[Any, ...]:
    """What contestants of one comparison have in common."""
    return tuple(row[name] for name in COMMON)


def _length(row: dict[str, Any]) -> str:
    return f"{row['tokens'] // 4}, most {row['tokens']}" if row["uneven"] else str(row["tokens"])


def _name(row: dict[str, Any]) -> str:
    """The contestant, and what is measured of it."""
    return f"{row['contestant']}{', recomputed' * row['checkpointing']}{' (before)' * bool(row['before'])}"


def _relative(row: dict[str, Any], other: dict[str, Any] | None, name: str) -> str:
    return f"{row[name] / other[name]:.2f}" if other else "-"
