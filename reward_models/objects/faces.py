"""Whether an edit keeps the faces of its source: cosines of embeddings by a face recognizer of one's own.

Recognizers' weights are licensed for research only, or not stated, so none is fetched: ``embed`` names a function,
e.g. around insightface's FaceAnalysis or OpenCV's FaceDetectorYN and FaceRecognizerSF with weights that you have:

    def faces(images, *, device="cpu"):     # of mmgrpo.types.Image, pixels [3, height, width] in [0, 1]
        return [...]                        # for each image a tensor [faces, D]; of no face [0, D]
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from mmgrpo.config import plugins
from mmgrpo.config.registry import parse
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt
from reward_models.pixels import image_outputs
from reward_models.rules.edits import source_image


def check_faces(embed: str, **_: object) -> None:
    """ValueError for a text that names no function."""
    _load(parse(embed, "embed")[0])


@reward(
    "Image",
    range=(-1, 1),
    scale="cosine",
    reads=("media",),
    check="reward_models.objects.faces:check_faces",
    row="reward_models.rules.edits:check_source_image",
)
def face_identity(prompts: Sequence[Prompt], outputs: Sequence[Output], embed: str, device: str = "cpu") -> list[float]:
    """Mean over the faces of the source of the largest cosine with a face of the edit; 1 for the source itself.

    ``embed`` is a function of your own, ``package.module:function``, from images to a tensor [faces, D] of each. A face
    is compared once: faces are paired from the largest cosine on, and one without a partner counts 0. NaN for a source
    without a face.
    """
    values = [math.nan] * len(outputs)
    images = {row: image for row, image in enumerate(image_outputs(outputs, "face_identity")) if image is not None}
    sources = {id(prompts[row]): source_image(prompts[row]) for row in images}
    faces = _embed([*sources.values(), *images.values()], embed, device)
    before, after = dict(zip(sources, faces, strict=False)), faces[len(sources) :]
    for row, features in zip(images, after, strict=True):
        values[row] = identity_kept(before[id(prompts[row])], features)
    return values


def identity_kept(before: Float[Tensor, "n width"], after: Float[Tensor, "m width"]) -> float:
    """sum of the cosines of pairs / n, the most alike first, each face in one pair; NaN for n = 0."""
    if not len(before):
        return math.nan
    cosines = functional.normalize(before.double()) @ functional.normalize(after.double()).mT
    total = 0.0
    for _ in range(min(cosines.shape)):
        place = int(cosines.argmax())
        row, column = divmod(place, cosines.shape[1])
        total += float(cosines[row, column])
        cosines[row], cosines[:, column] = -math.inf, -math.inf
    return total / len(before)


def _embed(images: Sequence[Image], embed: str, device: str) -> list[Tensor]:
    """A tensor [faces, D] of each image; ValueError for what is none."""
    if not images:
        return []
    name, parameters = parse(embed, "embed")
    function = _load(name)
    if "device" in inspect.signature(function).parameters:
        parameters = {"device": device, **parameters}
    rows = [torch.as_tensor(row).detach().cpu() for row in function(images, **parameters)]
    if len(rows) != len(images) or any(row.ndim != 2 for row in rows):
        raise ValueError(
            f"face_identity: embed: {embed} returned shapes {[list(row.shape) for row in rows][:4]}, expected a tensor "
            f"[faces, D] for each of {len(images)} images"
        )
    return rows


@functools.cache
def _load(target: str) -> Callable[..., Sequence[Tensor]]:
    if ":" not in target:
        raise ValueError(
            f"face_identity: embed: got {target!r}, expected package.module:function, a face recognizer of your own "
            "(none is fetched: their weights are for research only)"
        )
    return plugins.load_object(target, "embed", own=True)
