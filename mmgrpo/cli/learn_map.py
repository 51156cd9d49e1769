"""Learn the map of texts to real images by which ``transported`` judges (PISCES), from any collection of images:

    mmgrpo learn-map --images real.jsonl --embed-text my_clip:texts --embed my_clip:images --out map.safetensors

Each line of the file is {"text": a caption, "image": an image file next to it}. The embeddings are the reward's own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mmgrpo.cli.errors import enter
from mmgrpo.cli.learn_direction import read_captions
from mmgrpo.config.advice import usage_errors


def options() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", "--pictures", type=Path, required=True, help="JSONL file of captioned images")
    parser.add_argument("--embed-text", required=True, help="module:function of the text embeddings")
    parser.add_argument("--embed", required=True, help="module:function of the image embeddings")
    parser.add_argument("--out", type=Path, required=True, help="safetensors file to write")
    parser.add_argument("--steps", type=int, default=1000, help="optimizer steps (default: 1000)")
    parser.add_argument("--hidden", type=int, default=256, help="width of the map's hidden layer (default: 256)")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate (default: 1e-3)")
    parser.add_argument("--device", default="cpu", help="device of the image embeddings (default: cpu)")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Embed the captions and the images, learn, and write the map."""
    with usage_errors():
        given = options().parse_args(arguments)
    from mmgrpo.config.plugins import load_object
    from mmgrpo.types import Prompt
    from reward_models.sets.embeddings import embeddings_of
    from reward_models.sets.neural_map import save_map, train_map

    captions, images = read_captions(given.images)
    texts = load_object(given.embed_text, "--embed-text")([Prompt(text) for text in captions]).detach().cpu().float()
    seen = embeddings_of(images, given.embed, given.device, "transported").float()
    save_map(train_map(texts, seen, given.steps, given.hidden, given.rate), given.out)
    print(f"{given.out}: a map learned from {len(captions)} captions and images")


if __name__ == "__main__":
    enter(main)
