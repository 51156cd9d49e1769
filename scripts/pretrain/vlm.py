"""Pretrain the small vision-language model of the demo and the tests.

    python -m scripts.pretrain.vlm --plain --steps 4000 --until 1500 --silent 300 --output /tmp/first
    python -m scripts.pretrain.vlm --start /tmp/first --seed 1 --silent 0 --warmup 20 --steps 1600 \\
        --output pipelines/vlm/assets/questions/base
    python -m scripts.pretrain.vlm --output pipelines/vlm/assets/questions/base --measure

What it is: supervised next-token training of the Qwen2.5-VL architecture on conversations about procedural images
and clips (mmgrpo/toy/questions.py, mmgrpo/toy/clips.py). A conversation has a few questions with their right answers
and ends with a description of the whole image or clip; the loss is that of the assistant's tokens only. At first the
paper is white: what things look like is learned before where they are.

The images are clean. The questions of the demo are about photographs of such images in dim, coloured light, which
the model has never seen. No image of the splits "tune" and "heldout" occurs in the data.

The committed base is the result of the two runs above, 22 and 26 CPU minutes on one core of a busy machine
(1.2 M parameters, 2.3 MB).
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from mmgrpo.cli.errors import enter

PATCH = 8
"""Side of a patch in pixels; four are a token, so an image has 16."""

THETA = 10.0
"""Base of the rotary positions. With the usual 10,000 the axis of the width of so small a head turns by less than 0.004
per position, and the model would not know left from right."""


@dataclass
class Args:
    """How the model is pretrained."""

    output: Path = Path("pipelines/vlm/assets/questions/base")
    """Output folder: config, weights in half precision, tokenizer, processor."""
    measure: bool = False
    """Do not train: evaluate the model in ``output`` on held-out questions."""
    plain: bool = False
    """White paper, on which nothing but a thing itself says where it is."""
    start: str = ""
    """Folder of a model to continue from; empty: random weights."""
    steps: int = 1600
    """Optimizer steps. The result is a function of the steps and the seed, not of the time."""
    until: int = 0
    """Stop after this number of steps, with the learning rate schedule of ``steps``; 0 runs all of them."""
    images: int = 24
    """Conversations about images per step."""
    clips: int = 8
    """Conversations about clips per step."""
    turns: int = 6
    """Questions per conversation, before the description."""
    silent: int = 500
    """Steps at the beginning without questions, with descriptions only."""
    lr: float = 3e-3
    """Peak learning rate of AdamW: linear warm-up, then cosine decay to zero."""
    warmup: int = 100
    """Warm-up steps."""
    width: int = 128
    """Channels of the language model."""
    layers: int = 3
    """Layers of the language model, and of the vision tower."""
    vision_width: int = 96
    """Channels of the vision tower."""
    every: int = 200
    """Steps between evaluations."""
    questions: int = 160
    """Questions per evaluation, from the split tune (with --measure: heldout)."""
    threads: int = 1
    """CPU threads."""
    seed: int = 0
    """Seed of the weights, the images and their annotations."""


def conversation(content: Any, video: bool, turns: int, random: Any) -> list[tuple[str, str]]:
    """(question, answer) pairs about an image or clip: up to ``turns`` different ones, then a description."""
    from mmgrpo.toy import clips, questions

    kinds, ask = (clips.KINDS, clips.ask) if video else (questions.KINDS, questions.ask)
    candidates = [ask(content, kind, random) for kind in random.choice(kinds, turns).tolist()]
    pairs = {question.text: f"<answer> {question.answer} </answer>" for question in candidates if question}
    description = _clip_description(content) if video else _image_description(content)
    return [*pairs.items(), (f"what is in the {'clip' if video else 'picture'}?", description)]


def _image_description(things: Any) -> str:
    """Name and position of every object, row by row."""
    from mmgrpo.toy.questions import place_of

    ordered = sorted(things, key=lambda thing: (int(thing.centre[1]) // 16, thing.centre[0]))
    return " . ".join(f"{thing.name} {place_of(thing)}".strip() for thing in ordered)


def _clip_description(movers: Any) -> str:
    """Colour, direction and interval of every object, in the order of appearance."""
    ordered = sorted(movers, key=lambda mover: (mover.first, mover.name))
    return " . ".join(f"{mover.colour} moves {mover.way} {mover.first} to {mover.end}" for mover in ordered)


class Batches:
    """Conversations as tensors for the network."""

    def __init__(self, family: Any, args: Args) -> None:
        import numpy as np

        self.family, self.args = family, args
        self.ids = family.tokenizer.get_vocab()
        self.random = np.random.default_rng([args.seed, 7])

    def draw(self, turns: int) -> tuple[dict[str, Any], Any]:
        """Conversations about new images and clips: see ``tensors``."""
        import numpy as np

        from mmgrpo.toy import clips, questions

        paper = np.full_like(questions.PAPER, 255) if self.args.plain else questions.PAPER
        shown = []
        for number in range(self.args.images + self.args.clips):
            video = number >= self.args.images
            draw: Any = clips.clip if video else questions.image
            content: Any
            while questions.split_of(content := draw(self.random)) != "train":
                pass
            draw_on: Any = clips.render if video else questions.render
            drawn = draw_on(content, paper)
            source = drawn.frames if video else drawn.pixels[None]
            seconds = 2 / clips.FPS if video else 0.0
            shown.append((*self.patches(source), seconds, conversation(content, video, turns, self.random)))
        return self.tensors(shown)

    def tensors(self, shown: Sequence[tuple[Any, Any, float, Sequence[tuple[str, str]]]]) -> tuple[dict[str, Any], Any]:
        """Inputs of the network and the labels (-100 where there is no loss), from (patches, their grid, seconds a
        step of its time, pairs). Positions are the family's, which are not always those of the library."""
        import torch

        from pipelines.vlm.qwen_vl import grid_positions

        speed = self.family.network.config.vision_config.tokens_per_second
        rows, labels, positions, patches, grids = [], [], [], ([], []), ([], [])
        for pieces, grid, seconds, pairs in shown:
            video = grid[0] > 1
            patches[video].append(pieces)
            grids[video].append(grid)
            ids, label = self.tokens(pairs, video, math.prod(grid) // 4)
            rows.append(ids)
            labels.append(label)
            merged = (grid[0], grid[1] // 2, grid[2] // 2)
            positions.append(grid_positions(ids, self.family.media_tokens, [merged], [seconds * speed]))
        longest = max(map(len, rows))
        pad = self.family.pad_id
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
        real = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        inputs = {
            "input_ids": ids,
            "attention_mask": real,
            "position_ids": torch.stack(
                [torch.nn.functional.pad(position, (0, longest - position.shape[1])) for position in positions], 1
            ),
        }
        if grids[0]:
            inputs |= {"pixel_values": torch.cat(patches[0]), "image_grid_thw": torch.tensor(grids[0])}
        if grids[1]:
            inputs |= {"pixel_values_videos": torch.cat(patches[1]), "video_grid_thw": torch.tensor(grids[1])}
        return inputs, torch.tensor([row + [-100] * (longest - len(row)) for row in labels])

    def patches(self, frames: Any) -> tuple[Any, tuple[int, int, int]]:
        """Patches and grid of normalized frames."""
        from mmgrpo.data.images import patchify

        # The processor's mean and std are one half.
        return patchify(2 * frames - 1, self.family.processor.patch_size, 2, 2)

    def tokens(self, pairs: Sequence[tuple[str, str]], video: bool, features: int) -> tuple[list[int], list[int]]:
        """Ids of a conversation in the chat template, and labels: the assistant's words and their end token."""
        from mmgrpo.toy.questions import words

        mark = "<|video_pad|>" if video else "<|image_pad|>"
        media = ["<|vision_start|>", *[mark] * features, "<|vision_end|>"]
        ids, labels = [], []
        for number, (question, answer) in enumerate(pairs):
            user = ["<|im_start|>", "user", *(media if number == 0 else ()), *words(question), "<|im_end|>"]
            user += ["<|im_start|>", "assistant"]
            assistant = [self.ids[word] for word in (*words(answer), "<|im_end|>")]
            ids += [*(self.ids[word] for word in user), *assistant]
            labels += [*[-100] * len(user), *assistant]
        return ids, labels


def create(args: Args, folder: Path) -> None:
    """Write an untrained model."""
    from mmgrpo.randomness import derive
    from mmgrpo.toy.questions import SIZE, vocabulary
    from pipelines.vlm.qwen_vl_tiny import write_model

    write_model(
        folder,
        vocabulary(),
        width=args.width,
        layers=args.layers,
        heads=4,
        vision_width=args.vision_width,
        vision_layers=args.layers,
        patch=PATCH,
        theta=THETA,
        min_pixels=SIZE * SIZE,
        max_pixels=SIZE * SIZE,
        seed=derive(args.seed, "weights"),
    )


def train(args: Args) -> None:
    """Train, evaluate regularly, and save."""
    import tempfile

    import numpy as np
    import torch
    from tqdm import tqdm

    from mmgrpo.randomness import derive
    from pipelines.vlm.options import QwenVlOptions
    from pipelines.vlm.qwen_vl import load

    with tempfile.TemporaryDirectory() as folder:
        if not args.start:
            create(args, Path(folder))
        model = load(QwenVlOptions(path=str(args.start or folder), freeze_vision=False))
    network: Any = model.network.train()
    if not args.start:  # a std of 0.02 suits wide networks; so narrow a one trains faster from 1 / sqrt(inputs)
        torch.manual_seed(derive(args.seed, "wider"))
        for name, weight in network.named_parameters():
            if weight.dim() > 1 and "embed_tokens" not in name:
                torch.nn.init.normal_(weight, std=weight[0].numel() ** -0.5)
    batches = Batches(model, args)
    optimizer = adamw(network)
    begin, losses = time.process_time(), []
    last = args.until or args.steps
    for step in tqdm(range(1, last + 1), mininterval=5):
        rate = args.lr * min(1, step / args.warmup) * 0.5 * (1 + math.cos(math.pi * step / args.steps))
        loss = learn(network, optimizer, rate, batches.draw(args.turns if step > args.silent else 0))
        losses.append(loss)
        if step % args.every == 0 or step == last:
            minutes = (time.process_time() - begin) / 60
            save(model, args.output)
            rewards = "  ".join(f"{kind} {value:.2f}" for kind, value in measure(args, "tune", 0.0).items())
            tqdm.write(f"step {step}  cpu-minutes {minutes:.1f}  loss {np.mean(losses):.4f}  greedy {rewards}")
            losses.clear()
            network.train()


def adamw(network: Any) -> Any:
    """The optimizer; ``learn`` sets the learning rate of every step."""
    import torch

    weights = [weight for weight in network.parameters() if weight.requires_grad]
    return torch.optim.AdamW(weights, betas=(0.9, 0.98), weight_decay=0.01, fused=True)


def learn(network: Any, optimizer: Any, rate: float, batch: tuple[dict[str, Any], Any]) -> float:
    """One optimizer step on a batch of conversations; returns the loss before it."""
    import torch

    inputs, labels = batch
    for group in optimizer.param_groups:
        group["lr"] = rate
    hidden = network.model(**inputs).last_hidden_state
    answers = labels[:, 1:] != -100
    logits = network.lm_head(hidden[:, :-1][answers])
    loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:][answers])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def save(model: Any, folder: Path) -> None:
    """Write a model folder in half precision, completely or not at all."""
    import copy

    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save(temporary, copy.deepcopy(model.network).half())
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(temporary, folder)


def measure(args: Args, split: str, temperature: float) -> dict[str, float]:
    """Mean task reward of the saved model's answers, overall and by kind of question."""
    from collections import defaultdict

    from mmgrpo.policies.token import TokenPolicy
    from mmgrpo.toy.clips import mixture
    from mmgrpo.types import Request
    from pipelines.vlm.options import QwenVlOptions
    from pipelines.vlm.qwen_vl import load
    from reward_models.rules.tasks import task

    policy = TokenPolicy(load(QwenVlOptions(path=str(args.output))), max_tokens=24, evaluation_temperature=temperature)
    prompts = mixture(split, args.questions)
    by_kind: dict[str, list[float]] = defaultdict(list)
    for start in range(0, len(prompts), 40):
        part = prompts[start : start + 40]
        outputs = policy.sample(Request(part, [*range(start, start + len(part))], 1, args.seed))
        for prompt, value in zip(part, task(part, outputs), strict=True):
            by_kind[prompt.meta["kind"]].append(value)
    every = [value for values in by_kind.values() for value in values]
    return {"all": sum(every) / len(every)} | {kind: sum(v) / len(v) for kind, v in by_kind.items()}


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    import torch

    torch.set_num_threads(args.threads)
    if not args.measure:
        return train(args)
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        values = measure(args, "heldout", temperature)
        print(name, "  ".join(f"{kind} {value:.3f}" for kind, value in values.items()), flush=True)


if __name__ == "__main__":
    enter(main)
