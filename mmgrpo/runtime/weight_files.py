"""The weights of a checkpoint's folder, which may come from a stranger: safetensors of that folder, and nothing else.

A pickle (``pytorch_model.bin``) is a program that its reader runs; libraries read one where there are no safetensors,
and also one that an index or an adapter next to the weights names.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
"""Weights that libraries read by unpickling."""
VARIANTS = re.compile(r"(diffusion_pytorch_)?model(\.(?P<variant>\w+))?(-\d+-of-\d+)?\.safetensors")
"""Names of weights in safetensors, with the variant that the library's argument of that name asks for."""
CONVERT = (
    'python -c "from torch import load; from safetensors.torch import save_file; save_file({n: w.clone() for n, w in '
    "load('NAME', weights_only=True).items()}, 'TARGET.safetensors', {'format': 'pt'})\""
)
"""The conversion of a pickle without running what it may contain; ``load`` refuses everything but tensors."""


def check_weight_files(folder: Path, allow_pickle: bool, remedy: str) -> None:
    """ValueError where weights would be unpickled unasked, or are named outside the folder.

    ``remedy`` is the setting that allows pickles. A folder that does not exist has nothing to check: the libraries that
    download a repository read safetensors only.
    """
    if (folder / "adapter_config.json").exists():
        raise ValueError(
            f"'{folder}' contains adapters (adapter_config.json), with which transformers would load the model that "
            "they name; give the model itself as the path, and the adapters as weights"
        )
    for index in sorted({*folder.glob("*.index.json"), *folder.glob("*.index.*.json")}):  # the latter of variants
        check_shards(index, allow_pickle)
    pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
    if pickles and not allow_pickle and not any(folder.glob("*.safetensors")):
        raise pickle_error(folder / pickles[0], remedy)


def variant_of(folder: Path) -> str:
    """The variant, for example fp16, of the safetensors of a folder whose weights have no other form; else empty.

    Files are called model.safetensors, model-00001-of-00002.safetensors, and of a variant model.fp16.safetensors or
    model.fp16-00001-of-00002.safetensors, or begin with diffusion_pytorch_model in place of model.
    """
    names = [VARIANTS.fullmatch(file.name) for file in folder.glob("*.safetensors")]
    variants = {match["variant"] or "" for match in names if match}
    return variants.pop() if len(variants) == 1 else ""


def check_shards(index: Path, allow_pickle: bool) -> None:
    """ValueError where an index names other files than safetensors of its folder. A shard is read by its suffix,
    whatever the name of the index says."""
    shards = read_object(index).get("weight_map")
    names = set(shards.values()) if isinstance(shards, dict) and all_strings(shards.values()) else {str(shards)}
    for shard in sorted(names):
        readable = shard.endswith(".safetensors") or (allow_pickle and shard.endswith(".bin"))
        if Path(shard).name != shard or not readable:
            raise ValueError(
                f"{index}: names the file {shard[:80]!r}, expected safetensors of this folder; download or save the "
                "checkpoint again"
            )


def pickle_error(file: Path, remedy: str) -> ValueError:
    """The error for weights that are in a pickle only."""
    # diffusers and peft keep the stem of their file, transformers has another one of safetensors.
    kept = [stem for stem in ("adapter_model", "diffusion_pytorch_model") if file.stem.startswith(stem)]
    target = kept[0] if kept else "model"
    command = CONVERT.replace("NAME", file.name).replace("TARGET", target)
    return ValueError(
        f"'{file.parent}' has its weights in {file.name} only, a pickle, which can contain code. Convert it there: "
        f"{command}{f'; or read it all the same with {remedy}' if remedy else ''}"
    )


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    return parse_object(file.read_bytes(), file)


def parse_object(content: str | bytes, file: Path) -> dict[str, Any]:
    """The JSON object in a text; ``file`` is where it is from."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: not JSON ({error}); download or save the checkpoint again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{file}: got a {type(value).__name__}, expected an object; save the checkpoint again")
    return value


def all_strings(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)
