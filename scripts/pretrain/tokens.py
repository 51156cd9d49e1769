"""Pretrain the small model that draws with tokens (family janus).

    python -m scripts.pretrain.tokens

What it is: a ``JanusForConditionalGeneration`` of 0.6 M parameters that reads a sentence word by word and draws the
8 x 8 codes of an image, with cross-entropy on rendered scenes of one thing (kinds ``one`` and ``many``). A code is one
of 256 patches of 4 x 4 pixels (k-means), and the enlarger of the other small model draws them at 64 x 64 pixels. As
there, some colours and shapes are drawn more often than others, so the model succeeds sometimes for most prompts,
and all sentences occur: the held-out prompts are held out from reinforcement learning only. A tenth of the prompts are
replaced by padding, so classifier-free guidance is possible. The weights are saved in half precision, without a
VQ model; 13 CPU-minutes (AMD EPYC with AVX2), to a loss of .102 a code.

A network of width 96 with 2 layers is too small for as many minutes: after 1,200 steps at a peak rate of 3e-3 (4.2
CPU-minutes, loss .451 a code) its images have the place of their prompt at .74 and its colour at .07, since the codes
of one object have several colours; all is right at .03 (5 rounds of 128 training samples).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.cli.errors import enter
from mmgrpo.config.plugins import locate

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

KINDS = ("one", "many")
"""Kinds of scenes that it draws: one object at a place, and two or three equal ones."""
SHARES = (0.7, 0.3, 0.0, 0.0, 0.0)
"""Fractions of images of each kind of the scenes, in their order."""
MARKS = ("<pad>", "<bos>", "<eos>", "<image>", "<begin_of_image>", "<unknown>")
"""Tokens besides words, in the order of their ids."""


@dataclass
class Schedule:
    """How the weights of a model that draws codes are optimized."""

    output: Path
    """Output folder."""
    steps: int
    """Optimizer steps."""
    batch: int = 32
    """Images per step."""
    lr: float = 2e-3
    """Peak learning rate of AdamW: linear warm-up, then cosine decay to zero."""
    warmup: int = 100
    """Warm-up steps."""
    dropout: float = 0.1
    """Fraction of images whose prompt is left out, so classifier-free guidance is possible."""
    every: int = 250
    """Steps between evaluations, after which the model is saved."""
    threads: int = 1
    """CPU threads."""
    seed: int = 0
    """Seed of the weights, the images and the codes."""


@dataclass
class Args(Schedule):
    """How the model is pretrained."""

    output: Path = Path("pipelines/visual/assets/tokens/base")
    """Output folder; the prompts of the two splits are written beside it."""
    steps: int = 2250
    codes: int = 256
    """Patches of the tokenizer."""
    width: int = 128
    """Width of the network."""
    layers: int = 3
    """Its layers."""


def word_tokenizer(words: Sequence[str]) -> Any:
    """A tokenizer of whole lower-case words, which begins every text with ``<bos>``."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    places = {word: place for place, word in enumerate([*MARKS, *words])}
    inner = Tokenizer(models.WordLevel(places, unk_token="<unknown>"))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", places["<bos>"])])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unknown>",
        additional_special_tokens=["<image>", "<begin_of_image>"],
    )


def build(args: Args, vocabulary: int) -> Any:
    """The untrained network."""
    import torch
    from transformers import JanusConfig, JanusForConditionalGeneration

    from mmgrpo.randomness import derive

    width = args.width
    text = {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": args.layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": vocabulary,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "max_position_embeddings": 96,
    }
    vision = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 32,
        "patch_size": 4,
        "projection_dim": width,
        "num_image_tokens": 64,
        "mlp_ratio": 1.0,
        "depth": 1,
    }
    codes = {
        "embed_dim": 8,
        "num_embeddings": args.codes,
        "latent_channels": 32,
        "base_channels": 32,
        "channel_multiplier": [1, 1, 1],
        "num_res_blocks": 1,
        "projection_dim": width,
        "image_token_embed_dim": width,
    }
    torch.manual_seed(derive(args.seed, "weights"))
    network: Any = JanusForConditionalGeneration(
        JanusConfig(text_config=text, vision_config=vision, vq_config=codes, image_token_id=3)
    )
    network.model.vqmodel = None
    network.generation_config.pad_token_id, network.generation_config.bos_token_id = 0, 1
    network.generation_config.generation_kwargs = {"boi_token_id": MARKS.index("<begin_of_image>")}
    return network


def loss_of(network: Any, tokenizer: Any, patches: Any, args: Args, random: Any) -> Float[Tensor, ""]:
    """Mean cross-entropy of the codes of a new batch, in nats."""
    import torch
    from torch import nn

    from mmgrpo.data.chat import pad_left, positions_of
    from scripts.pretrain.visual import draw

    texts, (pixels,) = draw(torch.tensor(SHARES), args.batch, random)
    codes, begin = patches.encode(pixels), MARKS.index("<begin_of_image>")
    ids, real = pad_left([[*row, begin] for row in tokenizer(texts)["input_ids"]], 0)
    dropped = torch.rand(args.batch, generator=random) < args.dropout
    ids = torch.where(dropped[:, None] & (ids != 1) & (ids != begin), 0, ids)
    real = torch.cat([real, torch.ones_like(codes[:, 1:], dtype=torch.bool)], 1)
    inputs = torch.cat(
        [network.get_input_embeddings()(ids), network.prepare_embeddings_for_image_generation(codes[:, :-1])], 1
    )
    states = network.model.language_model(
        inputs_embeds=inputs, attention_mask=real.long(), position_ids=positions_of(real)[:, 0], use_cache=False
    ).last_hidden_state[:, ids.shape[1] - 1 :]
    return nn.functional.cross_entropy(network.model.generation_head(states).flatten(0, 1), codes.flatten())


def image_tokenizer(codes: int, seed: int) -> Any:
    """The patches of the kinds of scenes, as many as ``codes``, and the enlarger of the other small model."""
    import torch

    from mmgrpo.randomness import stream
    from pipelines.visual.enlarger import Enlarger
    from pipelines.visual.patches import PatchTokenizer
    from scripts.pretrain.visual import draw

    enlarger = Enlarger.load(Path(locate("embedded:visual/scenes/base")) / "enlarger")
    _, (images,) = draw(torch.tensor(SHARES), 1000, stream(seed, "tokenizer"))
    return PatchTokenizer.fit(images, codes, 8, enlarger, stream(seed, "clusters"))


def optimize(
    parameters: Sequence[Any], loss: Callable[[], Tensor], save: Callable[[], None], schedule: Schedule
) -> None:
    """AdamW with warm-up and cosine decay; prints the mean loss and saves every so many steps."""
    import torch
    from torch import nn
    from tqdm import tqdm

    begin, losses, steps, peak = time.process_time(), [], schedule.steps, schedule.lr
    optimizer = torch.optim.AdamW(parameters, lr=peak, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
    for step in tqdm(range(1, steps + 1), mininterval=5):
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1, step / schedule.warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))
        value = loss()
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(value.item())
        if step % schedule.every == 0 or step == steps:
            minutes = (time.process_time() - begin) / 60
            tqdm.write(f"step {step}  cpu-minutes {minutes:.1f}  loss {sum(losses) / len(losses):.4f}")
            losses.clear()
            save()


def train(args: Args) -> None:
    """Train, evaluate regularly, and save."""
    from mmgrpo.randomness import stream
    from mmgrpo.toy import scenes

    write_prompts(args.output.parent)
    patches, tokenizer = image_tokenizer(args.codes, args.seed), word_tokenizer(scenes.vocabulary())
    network = build(args, len(tokenizer))
    parts = (network.model.vision_model, network.model.aligner, network.lm_head)
    frozen = {id(weight) for part in parts for weight in part.parameters()}
    frozen -= {id(network.get_input_embeddings().weight)}
    random = stream(args.seed, "pretrain")
    optimize(
        [weight for weight in network.parameters() if id(weight) not in frozen],
        lambda: loss_of(network, tokenizer, patches, args, random),
        lambda: save(args.output, network, tokenizer, patches),
        args,
    )


def write_prompts(folder: Path) -> None:
    """The prompts of ``KINDS`` of the embedded scenes, as they are divided there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "heldout"):
        rows = (Path(locate("embedded:visual/scenes")) / f"{name}.jsonl").read_text().splitlines()
        kept = [row for row in rows if json.loads(row)["task"] in KINDS]
        (folder / f"{name}.jsonl").write_text("\n".join(kept) + "\n")


def save(folder: Path, network: Any, tokenizer: Any, patches: Any) -> None:
    """Write a model folder in half precision; the tokenizer of images in full."""
    import copy

    half = copy.deepcopy(network).half()
    half.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    patches.save(folder / "patches")


def main() -> None:
    import torch
    import tyro

    args = tyro.cli(Args, description=__doc__)
    torch.set_num_threads(args.threads)
    train(args)


if __name__ == "__main__":
    enter(main)
