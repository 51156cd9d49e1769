"""Learn the map of texts to real pictures by which ``transported`` judges (PISCES), from any collection of pictures:

    mmgrpo learn-map --pictures real.jsonl --embed-text my_clip:texts --embed my_clip:pictures --out map.safetensors

Each line of the file is {"text": a caption, "image": a picture file beside it}. The embeddings are the reward's own.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mmgrpo.cli.errors import enter


def options() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--embed-text", required=True)
    parser.add_argument("--embed", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--device", default="cpu")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Embed the captions and the pictures, learn, and write the map."""
    given = options().parse_args(arguments)
    from mmgrpo.config.plugins import load_object
    from mmgrpo.data.images import read_picture
    from mmgrpo.types import Prompt
    from reward_models.sets.embeddings import embedded
    from reward_models.sets.neural_map import save_map, train_map

    rows = [json.loads(line) for line in given.pictures.read_text(encoding="utf-8").splitlines() if line.strip()]
    pictures = [read_picture(given.pictures.parent / row["image"]) for row in rows]
    texts = load_object(given.embed_text, "--embed-text")([Prompt(row["text"]) for row in rows]).detach().cpu().float()
    seen = embedded(pictures, given.embed, given.device, "transported").float()
    save_map(train_map(texts, seen, given.steps, given.hidden, given.rate), given.out)
    print(f"{given.out}: a map learned from {len(rows)} captions and pictures")


if __name__ == "__main__":
    enter(main)
