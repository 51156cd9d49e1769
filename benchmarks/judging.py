"""A policy that judges its own samples beside one that only answers: both held-out figures, over seeds.

    python -m benchmarks judging                # four runs of 25 to 60 CPU-seconds with each of three seeds
    python -m benchmarks judging --arms verdicts --split tune --seeds 1

The world: "largest 3 1 7 2 5" has the answer 7, and "largest 3 1 7 2 5 answer 5 right" the answer no. A random language
model of 21,000 parameters is taught both by ``WARM`` batches of right examples (seconds), which leave it at a third of
the answers and a little above chance at judgements. Then it is trained by

    answers    GRPO on answers alone
    verdicts   with as many questions about its own answers in every round: is it right? (SPARK)
    turns      the same, of rounds by turns: five train answers alone, five verdicts alone
    open       half of the prompts have no rule: what the policy says of its answers is their reward (URPO)

Lists for training, for the choice of settings (``--split tune``) and held out are disjoint. A held-out judgement is of
an answer that is right for one half and another number of the list for the other.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from mmgrpo.config.ranges import ANY_TEXT, COUNT, one_of, within
from mmgrpo.files import write_text

LENGTH = 5
"""Numbers of a list."""
WORDS = ("largest", "answer", "right", "yes", "no", *map(str, range(10)))
TERMS = ("kl_k3(coef=0.02)",)
"""Of the loss of every run."""
WARM = 100
"""Batches of the warm start."""
POINT = " answer {sample} right"
VERDICTS = f"verdicts(pairs=0, most=32, reflections=0, balanced=True, point='{POINT}', TURNS)"
OWN = f"own(reward='own_judgement', verifier='truth', together=False, votes=4, text='{POINT}')"

ARMS: Mapping[str, Sequence[str]] = {
    "answers": (),
    "verdicts": (VERDICTS.replace(", TURNS", ""),),
    "turns": (VERDICTS.replace("TURNS", "turns=5"),),
    "open": (OWN, VERDICTS.replace(", TURNS", "")),
}
"""Runs to what they judge."""


@dataclass
class Args:
    """What to run, and how long."""

    arms: Annotated[list[str], one_of(*ARMS)] = field(default_factory=lambda: list(ARMS))
    """Runs to compare."""
    seeds: Annotated[int, within("[1, 1000]")] = 3
    """Seeds of each."""
    steps: Annotated[int, COUNT] = 200
    """Optimizer steps."""
    split: Annotated[str, one_of("tune", "heldout")] = "heldout"
    """The lists on which is measured."""
    lr: Annotated[float, within("(0, 1]")] = 2e-3
    """Learning rate."""
    threads: Annotated[int, within("[1, 1024]")] = 1
    """CPU threads of torch."""
    output: Annotated[str, ANY_TEXT] = "benchmarks"
    """Output folder."""


def lists(split: str, count: int) -> list[list[int]]:
    """Lists of different numbers, each once, of a split."""
    drawn, chosen = random.Random(split), list[list[int]]()
    while len(chosen) < count:
        numbers = drawn.sample(range(10), LENGTH)
        if split_of(numbers) == split and numbers not in chosen:
            chosen.append(numbers)
    return chosen


def split_of(numbers: Sequence[int]) -> str:
    """train for 8 of 10 lists, tune and heldout for one each, by the sum of the numbers times their places."""
    rest = sum((place + 1) * number for place, number in enumerate(numbers)) % 10
    return {0: "tune", 1: "heldout"}.get(rest, "train")


def question(numbers: Sequence[int]) -> str:
    return "largest " + " ".join(map(str, numbers))


def answers(split: str, count: int) -> list[dict[str, Any]]:
    """Rows that ask for the largest number."""
    return [
        {"text": question(numbers), "answer": str(max(numbers)), "task": "exact"} for numbers in lists(split, count)
    ]


def judgements(split: str, count: int) -> list[dict[str, Any]]:
    """Rows that ask whether a proposed answer is right, which it is in every second."""
    drawn, rows = random.Random(f"{split} judgements"), list[dict[str, Any]]()
    for place, numbers in enumerate(lists(split, count)):
        right = max(numbers)
        wrong = drawn.choice([number for number in numbers if number != right])
        text = POINT.replace("{sample}", str((right, wrong)[place % 2]))
        rows.append({"text": question(numbers) + text, "answer": ("yes", "no")[place % 2], "task": "exact"})
    return rows


@functools.cache
def taught_model(steps: int = WARM, rows: int = 32) -> Any:
    """A language model that has seen ``steps`` batches of right examples, each of one kind of question."""
    import torch
    from torch import nn

    from mmgrpo.types import Prompt
    from pipelines.text.causal_lm import toy

    model = toy(WORDS, width=32, layers=2)
    kinds: dict[int, list[tuple[list[int], list[int]]]] = {}
    for row in [*answers("train", 1500), *judgements("train", 1500)]:
        ids = model.encode([Prompt(row["text"])]).ids[0].tolist()
        kinds.setdefault(len(ids), []).append((ids, model.spell(row["answer"])))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        optimizer = torch.optim.Adam(model.network.parameters(), lr=2e-3)
        drawn = random.Random(0)
        for _ in range(steps):
            [of_kind] = drawn.choices([*kinds.values()], [len(examples) for examples in kinds.values()])
            chosen = drawn.choices(of_kind, k=rows)
            questions, said = (torch.tensor([example[part] for example in chosen]) for part in (0, 1))
            logits = model.network(torch.cat([questions, said], 1)).logits[:, questions.shape[1] - 1 : -1]
            error = nn.functional.cross_entropy(logits.flatten(0, 1), said.flatten())
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
    return model


def train_once(arm: str, seed: int, args: Args, folder: Path) -> dict[str, Any]:
    """Train once; the held-out rewards prompt by prompt before and after, the judge's agreement, and seconds."""
    import mmgrpo
    from mmgrpo.policies.token import TokenPolicy
    from mmgrpo.runtime.metrics import read_metrics
    from pipelines.training import FrozenCopy

    model = copy.deepcopy(taught_model())
    model.reference = FrozenCopy(model.network)
    policy = TokenPolicy(model, max_tokens=2)
    is_open = arm == "open"
    rows = answers("train", 1000)
    if is_open:
        rows = [{**row, "task": ("exact", "open")[place % 2]} for place, row in enumerate(rows)]
    rewards = ["by_task(tasks=['exact'], reward='exact(tags=False)', log_as='rules')"]
    if is_open:
        rewards += [
            "own_judgement",
            "by_task(tasks=['open'], reward='exact(tags=False)', weight=0, log_as='truth')",
        ]
    measured = folder / "judgements.jsonl"
    write_text(measured, "".join(json.dumps(row) + "\n" for row in judgements(args.split, 400)))
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        made = mmgrpo.train(
            policy,
            rows,
            rewards,
            preset="grpo",
            steps=args.steps,
            heldout=answers(args.split, 400),
            prompts_per_step=24,
            group_size=8,
            algorithm={"terms": list(TERMS), "judging": list(ARMS[arm])},
            optim={"lr": args.lr},
            evaluation={"extra": [str(measured)], "every": 0, "prompts": 0},
            output_dir=str(folder),
            name=f"{arm}-{seed}",
            seed=seed,
            save_every=10**9,
        )
    row: dict[str, Any] = {"arm": arm, "seed": seed, "seconds": time.process_time() - start}
    for when in ("before", "after"):
        for name, file in (("answers", when), ("judgements", f"{when}-judgements")):
            record = json.loads((made.folder / "evaluations" / f"{file}.json").read_text(encoding="utf-8"))
            row[f"{name} {when}"] = record["values"]["rules"]
    lines = read_metrics(made.folder / "metrics.jsonl")
    agreed = [line["judging/agreement"] for line in lines if "judging/agreement" in line]
    if agreed:
        tenth = max(1, len(agreed) // 10)
        row["agreement"] = [sum(some) / tenth for some in (agreed[:tenth], agreed[-tenth:])]
    return row


def line(record: Mapping[str, Any]) -> str:
    """A run in a line."""
    said = [f"{record['arm']:9} seed {record['seed']}:"]
    for name in ("answers", "judgements"):
        before, after = (sum(record[f"{name} {when}"]) / len(record[f"{name} {when}"]) for when in ("before", "after"))
        said.append(f"{name} {before:.3f} -> {after:.3f}")
    if "agreement" in record:
        said.append("agreement {:.3f} -> {:.3f}".format(*record["agreement"]))
    return ", ".join(said) + f" in {record['seconds']:.0f} s"


def page(runs: Sequence[Mapping[str, Any]], machine: str, command: str) -> list[str]:
    """Markdown: both figures of every run, with intervals of the paired differences over prompts."""
    import numpy as np

    from mmgrpo.statistics import bootstrap_mean

    text = ["# A policy that judges itself", "", f"`{command}` on {machine}.", ""]
    text += ["| run | seed | answers | difference | judgements | difference | seconds |", "| --- " * 7 + "|"]
    for run in runs:
        cells = [run["arm"], str(run["seed"])]
        for name in ("answers", "judgements"):
            before, after = (np.array(run[f"{name} {when}"]) for when in ("before", "after"))
            gain = bootstrap_mean(after - before).as_dict()
            cells += [
                f"{before.mean():.3f} to {after.mean():.3f}",
                f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]",
            ]
        text.append("| " + " | ".join([*cells, f"{run['seconds']:.0f}"]) + " |")
    return text


def run(args: Args, machine: str, command: str) -> None:
    """Train every run with every seed, and write ``judging.json`` and ``judging.md``."""
    runs: list[dict[str, Any]] = []
    out = Path(args.output)
    out.mkdir(parents=True, exist_ok=True)
    for arm in args.arms:
        for seed in range(args.seeds):
            with tempfile.TemporaryDirectory(prefix="bench-judging-") as folder:
                runs.append(train_once(arm, seed, args, Path(folder)))
            print(line(runs[-1]), flush=True)
    result = {"machine": machine, "command": command, "settings": asdict(args), "runs": runs}
    write_text(out / "judging.json", json.dumps(result))
    write_text(out / "judging.md", "\n".join(page(runs, machine, command)) + "\n")
