"""A training step on images: ours, ours without shared computation, and TRL's GRPOTrainer, on one model and data set.

    mmgrpo bench vlm                      # groups of 16 and 32; every contestant in its own process

All train the language model of one random Qwen2.5-VL (with a frozen vision tower) in fp32 with AdamW, the clipped loss,
no KL, and completions of given lengths. Where all have one length our model gets no end token, TRL ``min_new_tokens``;
else both end each completion where the other does. Images are PNG files,
which both read and preprocess in every step.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from mmgrpo.cli.bench.vlm_worker import ALONE, COMPACT, OURS, SENTENCE, TRL, Contest
from mmgrpo.config.ranges import ANY_TEXT, COUNT, one_of, within
from mmgrpo.files import write_text


@dataclass
class Args:
    """The sizes to measure."""

    groups: Annotated[list[int], within("[2, 4096]")] = field(default_factory=lambda: [16, 32])
    """Group sizes (samples per prompt) to measure."""
    contestants: Annotated[list[str], one_of(OURS, ALONE, TRL, COMPACT)] = field(
        default_factory=lambda: [OURS, ALONE, TRL, COMPACT]
    )
    """Implementations to compare."""
    prompts: Annotated[int, within("[1, 1e6]")] = 1
    """Prompts per step; the samples of a prompt are one forward and backward pass."""
    tokens: Annotated[list[int], within("[1, 1e6]")] = field(default_factory=lambda: [16, 64])
    """Tokens per completion, all of one length."""
    uneven: Annotated[list[int], within("[8, 1e6]")] = field(default_factory=lambda: [256])
    """Tokens of the longest completion where lengths differ; a quarter of it is their mean."""
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
    """Measure all contestants and write ``vlm.json`` and ``vlm.md``."""
    out = Path(args.output)
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        parameters = prepare(args, Path(folder))
        print(f"{machine}\n{parameters / 1e6:.1f} million parameters, {args.prompts} prompts per step\n", flush=True)
        result = {"command": command, "machine": machine, "parameters": parameters, "settings": asdict(args)}
        lengths = [(tokens, False) for tokens in args.tokens] + [(tokens, True) for tokens in args.uneven]
        for (tokens, uneven), group in itertools.product(lengths, args.groups):
            for contestant in args.contestants:
                if contestant in SLOW and (tokens, uneven) != lengths[0]:
                    continue
                contest = Contest(contestant, group, args.prompts, tokens, args.steps, args.threads, folder, uneven)
                rows.append(measure(contest))
                print(_line(rows[-1]), flush=True)
            refuse_unequal(rows)
            write_text(out / "vlm.json", json.dumps({**result, "rows": rows}, indent=1))
            write_text(out / "vlm.md", report({**result, "rows": rows}))
    print(f"\nwritten: {out / 'vlm.md'}")


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
    for number in range(args.prompts * (args.steps + 1)):  # every image is used once
        colours = Image.fromarray(random.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        colours.resize((args.side, args.side), Image.Resampling.BICUBIC).save(folder / f"{number:03d}.png")
    from safetensors import safe_open

    with safe_open(folder / "model" / "model.safetensors", "pt") as weights:
        return sum(int(np.prod(weights.get_slice(name).get_shape())) for name in weights.keys())  # noqa: SIM118


def measure(contest: Contest) -> dict[str, Any]:
    """Measure one contestant in a separate process, so that its peak memory is its own."""
    process = subprocess.run(
        [sys.executable, "-m", "mmgrpo.cli.bench.vlm_worker", json.dumps(asdict(contest))],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": str(contest.threads), "HF_HUB_OFFLINE": "1"},
    )
    if process.returncode:
        raise RuntimeError(f"'{contest.contestant}' with groups of {contest.group} failed:\n{process.stderr[-3000:]}")
    return json.loads(process.stdout.splitlines()[-1])


def refuse_unequal(rows: list[dict[str, Any]]) -> None:
    """Raise RuntimeError if contestants did not process the same numbers of tokens."""
    for group in {_contest(row) for row in rows}:
        work = {(row["prompt tokens"], row["completion tokens"]) for row in rows if _contest(row) == group}
        if len(work) > 1:
            raise RuntimeError(
                f"with (samples, tokens, uneven) of {group} contestants differ in (prompt, completion) tokens: {work}"
            )


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['contestant']:26} {row['group']:2d} of {_length(row):11} {row['seconds']:7.2f} s per step  (rollout "
        f"{row['rollout']:6.2f}  reward {row['reward']:5.2f}  update {row['update']:6.2f})  "
        f"{row['samples a processor second']:6.2f} samples per processor s, "
        f"peak {row['peak']:5.0f} MiB ({row['peak above load']:+.0f} loaded)"
    )


def report(result: dict[str, Any]) -> str:
    """Markdown: the settings, and the speed and memory of every contestant, absolute and relative to TRL."""
    settings, rows = result["settings"], result["rows"]
    places = rows[0]["prompt tokens"]
    names = ["processor s", "samples per processor s", "times TRL's", "s per step", "rollout", "reward", "update"]
    names += ["peak MiB", "of TRL's", "peak above load MiB", "of TRL's"]
    lines = [
        "# Vision-language benchmark",
        "",
        f"`{result['command']}` on {result['machine']}.",
        f"A random Qwen2.5-VL of {result['parameters'] / 1e6:.1f} million parameters ({settings['vocabulary']} words, "
        f"width {settings['width']}, {settings['layers']} layers), its vision tower frozen; fp32, AdamW, no LoRA, no "
        f"KL, no gradient checkpointing; {settings['prompts']} prompts per step of {places} tokens, images of "
        f"{settings['side']} pixels among them; one group is one forward and backward pass. Of "
        f"{settings['steps']} steps after one for warm-up, the least processor time and the median of seconds; every "
        "contestant in a separate "
        "process. A step is everything from reading the PNG files to the optimizer step; other load on the machine "
        "affects its seconds, and its processor seconds less. *TRL's* is TRL, head on answers only.",
        "",
        *(f"- *{name}*: {about}" for name, about in ABOUT.items() if name in settings["contestants"]),
        "",
        "| tokens | samples per prompt | contestant | " + " | ".join(names) + " |",
        "| --- | --- | --- |" + " --- |" * len(names),
    ]
    for row in rows:
        trl = next((r for r in rows if r["contestant"] == COMPACT and _contest(r) == _contest(row)), None)
        name = "samples a processor second"
        cells = [f"{row['processor seconds']:.2f}", f"{row[name]:.2f}", _relative(row, trl, name)]
        cells += [f"{row[name]:.2f}" for name in ("seconds", "rollout", "reward", "update")]
        for name in ("peak", "peak above load"):
            cells += [f"{row[name]:.0f}", _relative(row, trl, name)]
        lines.append(f"| {_length(row)} | {row['group']} | {row['contestant']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


ABOUT = {
    OURS: "a prompt and its image are processed once per group, in sampling and in training.",
    ALONE: "the same with `share_prefix` off: the whole prompt is processed for every sample, in sampling and in "
    "training, and the features of the image are recomputed in every pass.",
    TRL: "`GRPOTrainer` of TRL, unchanged. On a CPU its fused head scores all positions, including the prompt.",
    COMPACT: "the same, patched to score only the completions, as it does on a GPU.",
}


SLOW = (ALONE, TRL)
"""Contestants that are measured at the first length only."""


def _contest(row: dict[str, Any]) -> tuple[Any, ...]:
    """What contestants of one comparison have in common."""
    return row["group"], row["tokens"], row["uneven"]


def _length(row: dict[str, Any]) -> str:
    return f"{row['tokens'] // 4}, most {row['tokens']}" if row["uneven"] else str(row["tokens"])


def _relative(row: dict[str, Any], trl: dict[str, Any] | None, name: str) -> str:
    return f"{row[name] / trl[name]:.2f}" if trl else "-"
