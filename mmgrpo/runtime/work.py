"""How much a run computes, for a dry run: floating-point operations, by the shapes of a checkpoint's weights.

A matrix of n numbers takes 2 n operations at each position that it is applied to, and attention of q positions to k
others 4 q k for each number of its width. A backward pass takes twice as many as the forward pass where all weights
train, and as many with adapters, since what is frozen needs no gradient; gradient checkpointing adds a forward pass,
and so does a reference.

Counted is the network that trains: a language model at its prompts as far as ``model.max_prompt_tokens`` says how long
they are, once for a group; an encoder of audio once for each clip. Text encoders, VAE, vision towers, rewards and
evaluation come on top. How much of a card's peak is reached depends on the model and the sizes of batches:
``mmgrpo bench gpu`` measures it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from mmgrpo.runtime.memory import CONTEXT, SMALL, STORED, Folder, Places, places_of

PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "4090": 165e12, "B200": 2250e12}
"""Dense bf16 operations per second of cards, from their data sheets."""
STATED, SHARES = ("H100", "A100", "4090"), (0.4, 0.1)
"""The cards whose hours are stated, and the shares of their peak for which they are."""
TABLES = r"(^|\.)(embed_tokens|embed_positions|wte|wpe|shared)\.weight$"
"""Tables that are looked up."""
MEDIA = r"(^|\.)(visual|vision_\w+|audio_tower|multi_modal_projector|connector)\."
"""What reads the media of a prompt."""
AUDIO = r"(^|\.)encoder\.(?!.*encoder_attn)|\.encoder_attn\.[kv]_proj\."
"""What is computed once for a clip."""
HEADS = r"(^|\.)(lm_head|proj_out)\.weight$"
"""Output layers of language models, which are applied to completions alone."""
QUERIES = r"(.*\.)(to_q|q_proj|to_qkv\w*|qkv)\.weight$"
"""Matrices of queries, alone or with keys and values; each is an attention."""


def forward(folder: Folder, places: Places) -> float:
    """Operations of the forward pass of one sample of a network that denoises."""
    joint = any(".add_q_proj." in name for name in folder.network)
    sana = folder.config.get("_class_name", "").startswith("Sana")

    def at(name: str) -> float:
        if re.search(CONTEXT, name):
            return places.prompt
        if places.sides and "_block" not in name:
            return places.output
        moved = 0.25 if "downsamplers" in name else 4 if "upsamplers" in name else 1
        return places.of(name, joint) * moved

    return _operations(folder, at, folder.config.get("attention_head_dim", 0) if sana else 0)


def _operations(folder: Folder, at: Callable[[str], float], linear: int = 0) -> float:
    """Operations of all matrices and attention, where matrix ``name`` is applied at ``at(name)`` positions; ``linear``:
    the width of a head of linear attention to the output itself (0 for attention of the usual kind)."""
    names, total = folder.network, 0.0
    for name, shape in names.items():
        if len(shape) < 2 or re.search(TABLES, name) or (re.search(SMALL, name) and not re.search(CONTEXT, name)):
            continue
        count = at(name)
        total += 2 * prod(shape) * count
        if match := re.match(QUERIES, name):
            other = f"{match[1]}add_q_proj.weight"
            queries = count + (at(other) if other in names else 0)
            keys = queries if other in names else at(name.replace("q_proj.", "k_proj.").replace("to_q.", "to_k."))
            keys = linear if linear and ".attn1." in name else keys
            width = shape[0] if match[2] in ("to_q", "q_proj") else shape[1]
            total += 4 * queries * keys * width
    return total


def work(
    folder: Folder, config: Any, totals: Mapping[str, int], reference: bool = False, given: bool = False
) -> tuple[float, float]:
    """Operations to sample a rollout and to train on it, of all processes together.

    ``totals`` are what its family's arithmetic counts; (0, 0) where these are neither evaluations of a network nor
    completions. ``given``: as ``mmgrpo.runtime.memory.needs``.
    """
    model = config.model
    again = 1 + reference + getattr(model, "gradient_checkpointing", False)
    passes = again + (1 if getattr(model, "lora_rank", 0) else 2)
    if "evaluations to sample" in totals and {"height", "width"} <= vars(model).keys():
        evaluation = forward(folder, places_of(folder, config, given))
        return evaluation * totals["evaluations to sample"], evaluation * totals["evaluations to train"] * passes
    if "completions to train" not in totals:
        return 0.0, 0.0
    tokens, prompt = config.sampling.max_tokens, getattr(model, "max_prompt_tokens", 0)
    once, each = completions(folder, prompt, tokens)
    groups = config.data.prompts_per_step
    sampled = once * groups + each * totals["completions"]
    return sampled, (once * groups * config.optim.epochs + each * totals["completions to train"]) * passes


def completions(folder: Folder, prompt: int, tokens: int) -> tuple[float, float]:
    """Operations of a language model's forward pass: of a prompt or clip, and of one completion behind it."""
    inside = {**folder.config, **folder.config.get("text_config", {})}
    read = {name: shape for name, shape in folder.network.items() if not re.search(MEDIA, name)}
    heads = {name: shape for name, shape in read.items() if re.search(HEADS, name)}
    body = {name: shape for name, shape in read.items() if name not in heads}
    clip = {name: shape for name, shape in body.items() if re.search(AUDIO, name)}
    body = {name: shape for name, shape in body.items() if name not in clip}
    source = inside.get("max_source_positions", 0) if clip else 0
    words, width = inside.get("vocab_size", 0), inside.get("hidden_size") or inside.get("d_model", 0)
    behind = prompt + tokens / 2  # what a token attends to on average

    def attention(queries: float, keys: float) -> float:
        inner = (shape for name, shape in body.items() if re.match(QUERIES, name) and ".encoder_attn." not in name)
        crossed = (shape for name, shape in body.items() if re.match(QUERIES, name) and ".encoder_attn." in name)
        return 4 * queries * (keys * sum(shape[0] for shape in inner) + source * sum(shape[0] for shape in crossed))

    def matrices(shapes: Mapping[str, tuple[int, ...]], count: float) -> float:
        return sum(
            2 * prod(shape) * count for name, shape in shapes.items() if len(shape) > 1 and not re.search(TABLES, name)
        )

    once = matrices(body, prompt) + attention(prompt, prompt / 2)
    once += _operations(replace(folder, network=clip), lambda name: source)
    head = 2 * words * width * tokens
    return once, matrices(body, tokens) + attention(tokens, behind) + head


def report(
    folder: Folder, config: Any, totals: Mapping[str, int], rollouts: int, processes: int, **known: bool
) -> list[str]:
    """The lines of a dry run: operations of a rollout and of its updates, and hours of the run on some cards."""
    sampled, trained = work(folder, config, totals, **known)
    if not sampled:
        return []
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
