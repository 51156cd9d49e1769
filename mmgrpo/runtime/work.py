"""How much a run computes, for a dry run: floating-point operations, by those of a pass (``mmgrpo.runtime.counting``).

A backward pass takes twice as many as the forward pass where all weights
train, and as many with adapters, since what is frozen needs no gradient; gradient checkpointing adds a forward pass,
and so does a reference.

Counted is the network that trains: a language model at its prompts as far as ``model.max_prompt_tokens`` says how long
they are, once for a group; an encoder of audio once for each clip. Text encoders, VAE, vision towers, rewards and
evaluation come on top. How much of a card's peak is reached depends on the model and the sizes of batches:
``mmgrpo bench gpu`` measures it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmgrpo.runtime.memory import STORED, Pass

PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "4090": 165e12, "B200": 2250e12}
"""Dense bf16 operations per second of cards, from their data sheets."""
STATED, SHARES = ("H100", "A100", "4090"), (0.4, 0.1)
"""The cards whose hours are stated, and the shares of their peak for which they are."""


def work(counts: Pass, config: Any, totals: Mapping[str, int], reference: bool = False) -> tuple[float, float]:
    """Operations to sample a rollout and to train on it, of all processes together.

    ``totals`` are what its family's arithmetic counts; (0, 0) where these are neither evaluations of a network nor
    completions.
    """
    model = config.model
    again = 1 + reference + getattr(model, "gradient_checkpointing", False)
    passes = again + (1 if getattr(model, "lora_rank", 0) else 2)
    if "evaluations to sample" in totals:
        each = counts.operations
        return each * totals["evaluations to sample"], each * totals["evaluations to train"] * passes
    if "completions to train" not in totals:
        return 0.0, 0.0
    once, each = counts.prompt, counts.operations - counts.prompt
    groups = config.data.prompts_per_step
    sampled = once * groups + each * totals["completions"]
    return sampled, (once * groups * config.optim.epochs + each * totals["completions to train"]) * passes


def report(
    counts: Pass, config: Any, totals: Mapping[str, int], rollouts: int, processes: int, reference: bool = False
) -> list[str]:
    """The lines of a dry run: operations of a rollout and of its updates, and hours of the run on some cards."""
    if not {"evaluations to sample", "completions to train"} & totals.keys():
        return []
    if counts.uncounted:
        return [f"work:      not counted: {counts.uncounted}"]
    sampled, trained = work(counts, config, totals, reference)
    whole = rollouts * (sampled + trained)
    apart = ["encoders of prompts", "VAE"] if "evaluations to sample" in totals else ["towers of media"]
    apart += ["prompts (model.max_prompt_tokens is 0)"] if getattr(config.model, "max_prompt_tokens", 1) == 0 else []
    lines = [
        f"work:      {in_flop(sampled)} to sample a rollout, {in_flop(trained)} to train on it, {in_flop(whole)} in "
        f"all, without {', '.join([*apart, 'rewards'])} and evaluation"
    ]
    if STORED.get(config.model.dtype, 4) == 2:
        hours = {card: [whole / (PEAKS[card] * share * processes * 3600) for share in SHARES] for card in STATED}
        cards = ", ".join(f"{few:.2g} to {many:.2g} h on {processes} x {card}" for card, (few, many) in hours.items())
        most, least = (f"{100 * share:.0f}" for share in SHARES)
        lines.append(f"           at {most} to {least} % of the card's peak: {cards}")
    return lines


def in_flop(operations: float) -> str:
    """1.2 PFLOP."""
    size, name = next(
        (
            unit
            for unit in ((1e21, "ZFLOP"), (1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"))
            if operations > 0.9995 * unit[0]
        ),
        (1e9, "GFLOP"),
    )
    return f"{operations / size:.3g} {name}"
