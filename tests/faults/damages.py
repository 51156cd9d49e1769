"""Damage to the checkpoints of a run, as disks, transfers and people do it."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path


def damage(folder: Path, chance: random.Random) -> str:
    """Damage the newest checkpoint (sometimes all of them) in a random way; returns what was done."""
    places = sorted(path for path in folder.iterdir() if path.name.startswith("step-"))
    chosen = places if chance.random() < 0.15 else places[-1:]
    name = chance.choice(sorted(DAMAGES))
    for place in chosen:
        DAMAGES[name](place, places[0], chance)
    return f"{name} in {len(chosen)} of {len(places)}"


def _tensors(place: Path, chance: random.Random) -> Path:
    return chance.choice(sorted(place.glob("*.safetensors")))


def _flip(place: Path, oldest: Path, chance: random.Random) -> None:
    file = chance.choice([_tensors(place, chance), place / "state.json"])
    content = bytearray(file.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def _zero(place: Path, oldest: Path, chance: random.Random) -> None:
    file = _tensors(place, chance)
    content = file.read_bytes()
    half = len(content) // 2
    file.write_bytes(content[:half] + bytes(len(content) - half))


def _cut(place: Path, oldest: Path, chance: random.Random) -> None:
    file = chance.choice(sorted(place.iterdir()))
    content = file.read_bytes()
    file.write_bytes(content[: chance.randrange(len(content))])


def _swap(place: Path, oldest: Path, chance: random.Random) -> None:
    first, second = chance.sample(sorted(place.glob("*.safetensors")), 2)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def _older(place: Path, oldest: Path, chance: random.Random) -> None:
    """A file of an older step; in the oldest checkpoint itself, garbage."""
    name = _tensors(place, chance).name
    if place == oldest:
        (place / name).write_bytes(chance.randbytes(100))
    else:
        shutil.copy(oldest / name, place / name)


def _remove(place: Path, oldest: Path, chance: random.Random) -> None:
    chance.choice(sorted(place.iterdir())).unlink()


def _nan(place: Path, oldest: Path, chance: random.Random) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    file = _tensors(place, chance)
    tensors = load_file(file)
    first = next(name for name, tensor in sorted(tensors.items()) if tensor.is_floating_point())
    tensors[first] = torch.full_like(tensors[first], chance.choice([float("nan"), float("inf")]))
    save_file(tensors, file)


def _state(place: Path, oldest: Path, chance: random.Random) -> None:
    """Another number in the state, still valid JSON."""
    header = json.loads((place / "state.json").read_text())
    key = chance.choice(["step", "round", "cursor", "seconds", "seed"])
    header["state"][key] += chance.choice([1, -1, 1000])
    (place / "state.json").write_text(json.dumps(header))


def _grow(place: Path, oldest: Path, chance: random.Random) -> None:
    with _tensors(place, chance).open("ab") as file:
        file.write(chance.randbytes(chance.randint(1, 64)))


DAMAGES = {
    "a flipped bit": _flip,
    "a zeroed half": _zero,
    "a file cut off": _cut,
    "two files swapped": _swap,
    "a file of an older step": _older,
    "a file removed": _remove,
    "NaN or infinity": _nan,
    "another number in the state": _state,
    "bytes appended": _grow,
}
