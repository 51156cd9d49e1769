"""A training step on speech: clips encoded once per run, once per round, or once per transcript.

    mmgrpo bench speech                   # the real Whisper tiny.en on embedded clips

All train the decoder of one Whisper with a frozen encoder, on the same clips with the same seeds, and alternate round
by round in one process. The learning rate is negligible, so all produce the same transcripts.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mmgrpo.cli.bench.trainer import bench_trainer
from mmgrpo.config.plugins import locate
from mmgrpo.config.ranges import ANY_TEXT, COUNT, within
from mmgrpo.files import write_text

if TYPE_CHECKING:
    from mmgrpo.policies.token_model import Context, Features
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Prompt

CACHED, ROUND, EACH = "kept over rounds", "once a round", "every transcript"

ABOUT = {
    CACHED: "the encoder states of clips are cached (`features_kept`), as in a run from its second epoch on.",
    ROUND: "`features_kept=0`: a clip is encoded once per round, for all of its transcripts and for the update.",
    EACH: "nothing is shared: a clip is encoded for each of its transcripts in the rollout and again in the update, "
    "and every transcript has its own keys and values of the clip, as with `generate(num_return_sequences=...)` and a "
    "forward pass over `input_features`.",
}


@dataclass
class Args:
    """The sizes to measure."""

    model: Annotated[str, ANY_TEXT] = "pypi:whisper-tiny.en"
    """A Whisper model: a folder, a hub id, or pypi:<model>."""
    clips: Annotated[int, COUNT] = 8
    """Number of clips; all are encoded once before the measurement."""
    prompts_per_step: Annotated[int, within("[1, 1e6]")] = 4
    """Clips per step."""
    group: Annotated[int, within("[2, 4096]")] = 8
    """Transcripts per clip."""
    tokens: Annotated[int, within("[1, 1e6]")] = 32
    """Largest number of tokens per transcript."""
    seconds: Annotated[float, within("[0.02, 30]")] = 30.0
    """Seconds of encoder states that the decoder attends to; the encoder always processes 30 seconds."""
    steps: Annotated[int, COUNT] = 3
    """Steps to measure per variant."""
    threads: Annotated[int, within("[1, 1024]")] = 1
    """CPU threads of torch."""
    output: Annotated[str, ANY_TEXT] = "benchmarks"
    """Output folder."""


def run(args: Args, machine: str, command: str) -> None:
    """Measure all variants and write ``speech.json`` and ``speech.md``."""
    out = Path(args.output)
    out.mkdir(parents=True, exist_ok=True)
    print(f"{machine}\n{args.prompts_per_step} clips x {args.group} transcripts per step\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(args, Path(folder))
    for row in rows:
        print(_line(row), flush=True)
    refuse_unequal(rows)
    settings = {name: value for name, value in asdict(args).items() if name not in ("model", "output")}
    name = args.model and Path(args.model).name
    result = {"command": command, "machine": machine, "model": name or "whisper-tiny.en", "settings": settings}
    write_text(out / "speech.json", json.dumps({**result, "rows": rows}, indent=1))
    write_text(out / "speech.md", report({**result, "rows": rows}))
    print(f"\nwritten: {out / 'speech.md'}")


def measure(args: Args, folder: Path) -> list[dict[str, Any]]:
    """Medians over the steps of each variant, after those that encode clips for the first time; variants alternate."""
    from mmgrpo.runtime.metrics import read_metrics

    prompts = embedded_clips(args.clips)
    passes: dict[str, list[int]] = {name: [] for name in ABOUT}
    trainers = {name: trainer_of(name, args, prompts, folder / str(n), passes[name]) for n, name in enumerate(ABOUT)}
    warm = -(-args.clips // args.prompts_per_step)
    times: dict[str, list[tuple[float, float, int]]] = {name: [] for name in ABOUT}
    for _ in range(warm + args.steps):
        for name, trainer in trainers.items():
            before, encoded = (time.perf_counter(), time.process_time()), sum(passes[name])
            trainer.run_round()
            wall, processor = time.perf_counter() - before[0], time.process_time() - before[1]
            times[name].append((wall, processor, sum(passes[name]) - encoded))
    rows = []
    for number, name in enumerate(ABOUT):
        lines = read_metrics(folder / str(number) / "metrics.jsonl")[warm:]
        parts = {part: statistics.median(line[f"time/{part}"] for line in lines) for part in PARTS}
        wall, processor, encoded = (statistics.median(column) for column in zip(*times[name][warm:], strict=True))
        both = statistics.median(line["time/rollout"] + line["time/update"] for line in lines)
        other = {"rollout and update": both, "processor seconds": processor, "clips encoded": encoded}
        tokens = [int(line["decisions"]) for line in lines]
        rows.append({"contestant": name, "seconds": wall, **parts, **other, "tokens": tokens})
    return rows


PARTS = ("rollout", "reward", "update")


def embedded_clips(count: int) -> list[Prompt]:
    """The first ``count`` embedded training clips."""
    from mmgrpo.data.prompts import load_prompts

    prompts = load_prompts(locate("embedded:speech/train.jsonl"))
    if not 0 < count <= len(prompts):
        raise ValueError(f"--clips must be 1 to {len(prompts)}, got {count}")
    return prompts[:count]


def trainer_of(name: str, args: Args, prompts: Sequence[Prompt], folder: Path, passes: list[int]) -> Trainer:
    """The trainer of one variant; the number of clips in every pass of its encoder is appended to ``passes``."""
    from mmgrpo.policies.token import TokenPolicy
    from mmgrpo.policies.token_passes import Memory
    from mmgrpo.rewards import scorer
    from pipelines.speech.options import WhisperOptions
    from pipelines.speech.whisper import load

    model = load(WhisperOptions(path=locate(args.model), seconds=args.seconds))
    network: Any = model.network
    network.model.encoder.register_forward_pre_hook(lambda module, inputs: passes.append(len(inputs[0])))
    if name == EACH:
        encode_per_transcript(model, args.group)
    policy = TokenPolicy(
        model,
        max_tokens=args.tokens,
        memory=Memory(share_prefix=name != EACH, features_kept=args.clips if name == CACHED else 0),
    )
    folder.mkdir()
    return bench_trainer(
        policy,
        scorer("one_minus_wer"),
        prompts,
        folder,
        algorithm={"preset": "dr_grpo"},
        prompts_per_step=args.prompts_per_step,
        group_size=args.group,
        steps=10**6,
        lr=1e-12,
    )


def encode_per_transcript(model: Any, group: int) -> None:
    """Patch the model to encode a clip once per transcript, and not to cache its encoder states."""
    encode = model.features

    def features(network: Any, context: Context) -> Features:
        repeated = [sound for sound in context.media for _ in range(group)]
        return encode(network, replace(context, media=repeated))[::group]

    model.features, model.frozen_media = features, False


def refuse_unequal(rows: Sequence[dict[str, Any]], tolerance: float = 0.02) -> None:
    """Raise RuntimeError if variants differ in tokens per step by more than ``tolerance`` (rounding changes a few)."""
    for step in zip(*(row["tokens"] for row in rows), strict=True):
        if max(step) > (1 + tolerance) * min(step):
            raise RuntimeError(f"contestants differ in the tokens of a step: {step}")


def _line(row: dict[str, Any]) -> str:
    parts = "  ".join(f"{part} {row[part]:5.2f}" for part in PARTS)
    return f"{row['contestant']:18} {row['seconds']:6.2f} s per step  ({parts})  {row['clips encoded']:g} clips encoded"


def report(result: dict[str, Any]) -> str:
    """Markdown: the settings, and the speed of every variant, absolute and relative to encoding per transcript."""
    settings, rows = result["settings"], result["rows"]
    slow = next(row for row in rows if row["contestant"] == EACH)
    names = [
        "clips encoded per step",
        "s per step",
        "rollout",
        "reward",
        "update",
        "rollout and update",
        "times faster",
    ]
    names += ["processor s", "times faster"]
    lines = [
        "# Speech benchmark",
        "",
        f"`{result['command']}` on {result['machine']}.",
        f"{result['model']}, its decoder trained with a frozen encoder in fp32 with AdamW, no KL; "
        f"{settings['prompts_per_step']} embedded clips x {settings['group']} transcripts of at most "
        f"{settings['tokens']} tokens per step ({statistics.median(slow['tokens']):g} in all), the first "
        f"{settings['seconds']:g} s of encoder states. Medians of {settings['steps']} steps, which alternate between "
        f"variants, after those in which the {settings['clips']} clips are encoded for the first time. A step is "
        "everything from reading the files to the optimizer step; other load on the machine affects its seconds, but "
        "hardly its processor seconds.",
        "",
        *(f"- *{name}*: {about}" for name, about in ABOUT.items()),
        "",
        "| encoder states | " + " | ".join(names) + " |",
        "| --- |" + " --- |" * len(names),
    ]
    for row in rows:
        both, processor = row["rollout and update"], row["processor seconds"]
        cells = [f"{row['clips encoded']:g}"] + [f"{row[name]:.2f}" for name in ("seconds", *PARTS)]
        cells += [f"{both:.2f}", f"{slow['rollout and update'] / both:.1f}"]
        cells += [f"{processor:.2f}", f"{slow['processor seconds'] / processor:.1f}"]
        lines.append(f"| {row['contestant']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
