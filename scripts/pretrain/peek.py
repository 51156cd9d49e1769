"""Pretrain the small vision-language model of the recipe vlm/peek: it can look, and seldom does so rightly.

    python -m scripts.pretrain.peek --output /tmp/first
    python -m scripts.pretrain.peek --start /tmp/first --seed 1 --silent 0 --told 0.1 --where 0.6 --lr 3e-3 \\
        --steps 300 --output /tmp/second
    python -m scripts.pretrain.peek --start /tmp/second --seed 2 --silent 0 --told 0.1 --where 0.3 --aimed 0.6 \\
        --lr 2e-3 --steps 200 --output /tmp/third
    python -m scripts.pretrain.peek --start /tmp/third --seed 11 --silent 0 --told 0.1 --where 0.8 --aimed 0.3 \\
        --lr 3e-3 --steps 500 --output /tmp/fourth
    python -m scripts.pretrain.peek --start /tmp/fourth --seed 12 --silent 0 --where 0.5 --called --aimed 0.3 \\
        --lr 2.5e-3 --steps 500 --output pipelines/vlm/assets/peek/base
    python -m scripts.pretrain.peek --output pipelines/vlm/assets/peek/base --measure

What it is: supervised next-token training of the Qwen2.5-VL architecture on conversations about the tiles of
mmgrpo/toy/peek.py. Some ask what is in the picture, or where the tiles are. In the others it answers at once, with any
pattern, or asks to look at a tile, often at any. Where it was shown the tile that was asked for it answers rightly;
else it looks at another, or answers with any pattern. So it can do what the task needs, and does not yet do it. No
image of the splits "tune" and "heldout" occurs in the data.

The committed base is the result of the five runs above, 9 CPU minutes on one core of a busy machine.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from mmgrpo.cli.errors import enter

PATCH = 4
"""Side of a patch in pixels; four are a token, which a tile is."""

TAGS = ("<tool_call>", "</tool_call>", '"name"', '"arguments"', '"look"', '"row"', '"column"')
"""What calls are written with: a word that is a string of JSON is one token with its quotation marks."""

TELL = "what is in the picture?"
"""Asks for the colours of an overview, and for the colour and the pattern of a tile from near."""

TEMPLATE = """\
{%- if tools %}<|im_start|>system
<tool_call> {
{%- for tool in tools %} "{{ tool['function']['name'] }}" : {
{%- for name in tool['function']['parameters']['properties'] %} "{{ name }}"{% endfor %} }
{%- endfor %} } </tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}
{%- for part in message['content'] %}
{%- if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>
{%- else %}{{ part['text'] }}{% endif %}
{%- endfor %}{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""The chat template: tools are written as their names with those of their parameters."""


@dataclass
class Args:
    """How the model is pretrained."""

    output: Path = Path("pipelines/vlm/assets/peek/base")
    """Output folder: config, weights in half precision, tokenizer, processor."""
    measure: bool = False
    """Do not train: sample answers of the model in ``output`` to held-out questions, with and without a look."""
    start: str = ""
    """Folder of a model to continue from; empty: random weights."""
    steps: int = 700
    """Optimizer steps."""
    batch: int = 32
    """Conversations per step."""
    silent: int = 100
    """Steps at the beginning of which all conversations ask what is in the picture."""
    told: float = 0.2
    """Part of the conversations that ask so afterwards."""
    where: float = 0.4
    """Part of the conversations that ask where the tiles are."""
    called: bool = False
    """Whether these are answered by the calls that look at the tiles; else by places alone."""
    look: float = 0.5
    """Probability that a tile is looked at, as long as the one that was asked for has not been seen."""
    aimed: float = 0.2
    """Probability that the first look is at the tile that was asked for; else it is at any."""
    turns: int = 3
    """Most turns of the model."""
    lr: float = 4e-3
    """Peak learning rate of AdamW: linear warm-up, then cosine decay to zero."""
    width: int = 48
    """Channels of the language model, and of the vision tower."""
    layers: int = 3
    """Layers of the language model; the vision tower has one less."""
    every: int = 250
    """Steps between lines of the loss."""
    threads: int = 1
    """CPU threads."""
    seed: int = 0
    """Seed of the weights and of the conversations."""


def vocabulary() -> tuple[str, ...]:
    """The words of questions, answers and calls."""
    from mmgrpo.toy.peek import PATTERNS
    from mmgrpo.toy.scenes import COLOURS

    words = "tool what which pattern has the tile where is in picture 1 2 ? , : { } error"
    return (*words.split(), *COLOURS, *PATTERNS)


def arguments(place: int) -> dict[str, int]:
    """How a place is named."""
    row, column = divmod(place, 2)
    return {"row": row + 1, "column": column + 1}


def call(place: int) -> str:
    """The call that looks at a tile."""
    return f"<tool_call> {json.dumps({'name': 'look', 'arguments': arguments(place)})} </tool_call>"


def conversation(tiles: Any, target: int, args: Args, random: np.random.Generator) -> tuple[Any, ...]:
    """The turns of a conversation about an image."""
    from mmgrpo.toy.peek import image, overview, tile, whole
    from mmgrpo.types import Media, Turn

    kind, far = random.random(), Media("image", image(overview(whole(tiles))))
    if kind < args.told / 2:
        near = Media("image", image(tile(tiles, target)))
        return Turn("user", (near, TELL)), Turn("assistant", (" ".join(tiles[target]),))
    if kind < args.told:
        return Turn("user", (far, TELL)), Turn("assistant", (" ".join(colour for colour, _ in tiles),))
    if kind >= args.told + args.where:
        return looking(tiles, target, far, args, random)
    turns = []
    for number, place in enumerate(random.permutation(len(tiles)).tolist()):
        turns.append(Turn("user", (*([] if number else [far]), f"where is the {tiles[place][0]} tile?")))
        turns.append(Turn("assistant", (call(place) if args.called else json.dumps(arguments(place)),)))
    return tuple(turns)


def looking(tiles: Any, target: int, far: Any, args: Args, random: np.random.Generator) -> tuple[Any, ...]:
    """The turns of a conversation in which the model looks at any tiles, or at none."""
    from mmgrpo.toy.peek import PATTERNS, image, tile
    from mmgrpo.types import Media, Turn

    turns = [Turn("user", (far, f"which pattern has the {tiles[target][0]} tile?"))]
    answer, places = str(random.choice(list(PATTERNS))), random.permutation(len(tiles)).tolist()
    if random.random() < args.aimed:
        places = [target]
    for place in places[: args.turns - 1]:
        if random.random() >= args.look:
            break
        turns.append(Turn("assistant", (call(place),)))
        turns.append(Turn("tool", (Media("image", image(tile(tiles, place))),)))
        if place == target:
            answer = tiles[target][1]
            break
    return (*turns, Turn("assistant", (f"<answer> {answer} </answer>",)))


def batch(model: Any, args: Args, random: np.random.Generator) -> tuple[dict[str, Any], Any]:
    """Inputs of the network and the labels (-100 where there is no loss) of conversations about new images: ids and
    positions are those at which the family reads them."""
    import torch

    from mmgrpo.toy.peek import content
    from mmgrpo.toy.questions import split_of
    from mmgrpo.types import Prompt

    prompts = []
    while len(prompts) < args.batch:
        if split_of(tiles := content(random)) == "train":
            prompts.append(Prompt("", turns=conversation(tiles, int(random.integers(4)), args, random)))
    read = model.encode(prompts)
    end, begin, assistant = model.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>", "assistant"])
    # The template opens a further answer behind the last, which is left out.
    labels = torch.full_like(read.ids, -100)
    for row, ids in enumerate(read.ids.tolist()):
        for place in range(len(ids) - 2):
            if ids[place : place + 2] == [begin, assistant]:
                stop = ids.index(end, place) + 1
                labels[row, place + 2 : stop] = read.ids[row, place + 2 : stop]
    patches = [medium for media in read.media for medium in media]
    return {
        "input_ids": read.ids,
        "attention_mask": read.real.long(),
        "position_ids": read.positions.permute(1, 0, 2),
        "pixel_values": torch.cat([medium.patches for medium in patches]),
        "image_grid_thw": torch.tensor([medium.grid for medium in patches]),
    }, labels


def create(args: Args, folder: Path) -> None:
    """Write an untrained model."""
    from mmgrpo.randomness import derive
    from mmgrpo.toy.peek import TILE
    from pipelines.vlm.qwen_vl_tiny import write_model
    from scripts.pretrain.vlm import THETA

    write_model(
        folder,
        vocabulary(),
        width=args.width,
        layers=args.layers,
        heads=4,
        vision_width=args.width,
        vision_layers=args.layers - 1,
        patch=PATCH,
        theta=THETA,
        min_pixels=TILE * TILE,
        max_pixels=4 * TILE * TILE,
        seed=derive(args.seed, "weights"),
        tags=TAGS,
        template=TEMPLATE,
    )


def train(args: Args) -> None:
    """Train and save."""
    import torch

    from pipelines.tools import schemas
    from pipelines.vlm.options import QwenVlOptions
    from pipelines.vlm.peek import Peek
    from pipelines.vlm.qwen_vl import load
    from scripts.pretrain.vlm import adamw, learn, save

    with tempfile.TemporaryDirectory() as folder:
        if not args.start:
            create(args, Path(folder))
        plain = load(QwenVlOptions(path=args.start or folder, freeze_vision=False))
    model = replace(plain, template={"tools": schemas([Peek])})
    network: Any = model.network.train()
    torch.manual_seed(args.seed + 1)
    for weight in () if args.start else network.parameters():
        if weight.dim() > 1:  # so narrow a network begins better from 1 / sqrt(inputs) than from 0.02
            torch.nn.init.normal_(weight, std=weight[0].numel() ** -0.5)
    random, optimizer = np.random.default_rng(args.seed), adamw(network)
    begin, losses = time.process_time(), []
    for step in range(1, args.steps + 1):
        rate = args.lr * min(1, step / 30) * 0.5 * (1 + math.cos(math.pi * step / args.steps))
        now = replace(args, told=1.0) if step <= args.silent else args
        losses.append(learn(network, optimizer, rate, batch(model, now, random)))
        if step % args.every == 0 or step == args.steps:
            minutes = (time.process_time() - begin) / 60
            print(f"step {step}  cpu-minutes {minutes:.1f}  loss {np.mean(losses):.4f}", flush=True)
            losses.clear()
    save(model, args.output)


def measure(args: Args, turns: int, split: str = "heldout", count: int = 400) -> float:
    """The part of right answers that the saved model samples in at most so many turns."""
    from mmgrpo.toy.peek import prompts
    from mmgrpo.types import Request
    from pipelines import vlm
    from pipelines.vlm.peek import Peek
    from reward_models.rules.tasks import task

    tools: Any = {"tools": [Peek], "turns": turns, "max_tokens": 96, "evaluation_temperature": 1.0}
    policy = vlm.policy(str(args.output), device="cpu", **tools)
    questions = prompts(split, count)
    outputs = policy.sample(Request(questions, [*range(count)], 1, args.seed))
    return float(np.mean(task(questions, outputs)))


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    import torch

    torch.set_num_threads(args.threads)
    torch.backends.mkldnn.set_flags(False)  # layers so narrow are faster without
    if not args.measure:
        return train(args)
    for turns in (1, args.turns):
        print(f"turns {turns}  right {measure(args, turns):.3f}", flush=True)


if __name__ == "__main__":
    enter(main)
