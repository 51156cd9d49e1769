"""Rewards of a set of outputs: how diverse it is, and how near to a set of exemplars.

    r_i = F(S) - F(S without i)                     credit="leave_one_out", as DRAGON compares sets (arXiv:2504.15217)
    r_i = F(S)                                      credit="shared"
    r_i = 1 in D+, 0 in D-                          credit="contrast"

F is larger where the set is better. S are the outputs of one prompt, or, with ``over="call"``, all that are scored at
once; with ``over="output"`` the windows of one recording, and r_i = F(S). A shared value is the same for a whole group,
from which a comparison within the group learns nothing. As the value of a row depends on the others, no cache of scores
may keep it. The first two are this package's reading; DRAGON contrasts two halves: ``contrast``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

import torch
from torch import Tensor

from mmgrpo.config.plugins import load_object, locate
from mmgrpo.data.images import decode_image
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.checkpoints import read_tensors
from reward_models.rules.groups import groups
from reward_models.sets.audio import SUFFIXES, audio_of, read_sound, windows
from reward_models.sets.distances import frechet_distance, transport_plan, vendi_score
from reward_models.sets.embeddings import LAYOUT, check_embed, embedded_texts, embeddings_of

set_reward = functools.partial(reward, "Text", "Image", "Video", "Audio")

IMAGE_NAMES = (".png", ".jpg", ".jpeg", ".webp")


@set_reward(
    range=(-inf, inf),
    scale="what an output adds to its set",
    group=True,
    source="Vendi score, arXiv:2210.02410; DRAGON, arXiv:2504.15217",
    check="reward_models.sets.rewards:check_sets",
)
def vendi(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    embed: str = LAYOUT,
    over: str = "prompt",
    credit: str = "leave_one_out",
    device: str = "cpu",
) -> list[float]:
    """The Vendi score of a set of outputs, or what each adds to it; 1 for outputs that are all alike.

    An output without an embedding is NaN and not in the set; so is one that leaves an empty set.
    """
    rows = embeddings_of(outputs, embed, device, "vendi")
    return _of_sets(prompts, rows, vendi_score, over, credit, 1, "vendi")


@set_reward(
    range=(-inf, inf),
    scale="what an output adds to its set",
    group=True,
    source="FID, arXiv:1706.08500; FAD, arXiv:1812.08466; DRAGON, arXiv:2504.15217",
    check="reward_models.sets.rewards:check_frechet",
)
def frechet(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    exemplars: str,
    embed: str = LAYOUT,
    over: str = "call",
    credit: str = "leave_one_out",
    ddof: int = 0,
    window: float = 1.0,
    device: str = "cpu",
) -> list[float]:
    """Minus the Fréchet distance of a set of outputs to ``exemplars``, or what each adds to it.

    ``exemplars`` is a folder of images or audio, which are embedded as the outputs are, a .txt file of a text per
    line for an embedding that reads texts too (clap), or a .safetensors file with their ``embeddings`` [n, D]. With an
    embedding of Inception this is FID, with one of recordings FAD. With ``over="output"`` (recordings only) it is the
    distance of each recording by itself, cut into parts of ``window`` seconds: the per-song FAD of DRAGON.
    """
    vectors = _exemplars(exemplars, embed, device)

    def nearness(some: Tensor) -> float:
        return -frechet_distance(some, vectors, ddof)

    if over == "output":
        parts = [windows(audio_of(output, "over='output'"), window) for output in outputs]
        rows = [
            _like_exemplars(embeddings_of(part, embed, device, "frechet"), vectors, exemplars, embed) for part in parts
        ]
        whole = [row.isfinite().all().item() and len(row) > ddof for row in rows]
        return [nearness(row) if usable else math.nan for row, usable in zip(rows, whole, strict=True)]
    rows = _like_exemplars(embeddings_of(outputs, embed, device, "frechet"), vectors, exemplars, embed)
    return _of_sets(prompts, rows, nearness, over, credit, 1 + ddof, "frechet")


def _like_exemplars(rows: Tensor, given: Tensor, exemplars: str, embed: str) -> Tensor:
    """The rows, which must be as wide as the exemplars."""
    if given.shape[1] != rows.shape[1]:
        raise ValueError(
            f"frechet: exemplars: {exemplars} has {given.shape[1]} numbers a row and {embed} {rows.shape[1]}, expected "
            "exemplars with the same embedding"
        )
    return rows


@set_reward(
    range=(-1, 1),
    scale="mean cosine under a transport plan",
    reads=("text",),
    source="PISCES, arXiv:2602.01624, without its trained heads",
)
def transport(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    embed_text: str,
    embed_parts: str,
    epsilon: float = 0.05,
    exponent: float = 0.9,
    device: str = "cpu",
) -> list[float]:
    """The mean cosine of the words of a prompt and the parts of its output under the plan that transports one to the
    other: sum_ij P_ij cos_ij / sum_ij P_ij, with the cost 1 - cos, scaled to [0, 1].

    ``embed_text`` takes prompts and ``embed_parts`` outputs (``module:function``); both return one tensor [n, D] each.
    The plan is that of PISCES (arXiv:2602.01624); there it steers the attention of a trained matching head, in whose
    place the cosine is here. With an ``exponent`` below 1 what nothing fits is transported less, and counts less. NaN
    for an output whose parts are not finite.
    """
    if not epsilon > 0 or not 0 < exponent <= 1:
        raise ValueError(
            f"transport: got epsilon={epsilon} and exponent={exponent}, expected a positive one and one in (0, 1]"
        )
    texts = load_object(embed_text, "transport: embed_text")(prompts)
    parts = load_object(embed_parts, "transport: embed_parts")(outputs)
    return [_transport(*pair, epsilon, exponent) for pair in zip(texts, parts, strict=True)]


def _transport(words: Tensor, parts: Tensor, epsilon: float, exponent: float) -> float:
    units = [torch.nn.functional.normalize(side.detach().cpu().double()) for side in (words, parts)]
    cosine = units[0] @ units[1].T
    if not cosine.numel():
        return math.nan
    cost = 1 - cosine
    spread = float(cost.max() - cost.min())
    plan = transport_plan((cost - cost.min()) / spread if spread > 0 else torch.zeros_like(cost), epsilon, exponent)
    return float((plan * cosine).sum() / plan.sum())  # NaN, as the whole plan, where a part is not finite


def check_frechet(
    over: str = "call", credit: str = "leave_one_out", embed: str = LAYOUT, window: float = 1.0, **_: object
) -> None:
    """ValueError for parameters with which no Fréchet distance can be computed."""
    if not 0 < window < math.inf:
        raise ValueError(f"window: got {window}, expected a number of seconds above 0")
    check_sets("prompt" if over == "output" else over, credit, embed)


def check_sets(over: str = "prompt", credit: str = "leave_one_out", embed: str = LAYOUT, **_: object) -> None:
    """ValueError for parameters with which no set can be scored."""
    if over not in ("prompt", "call") or credit not in ("leave_one_out", "shared", "contrast"):
        raise ValueError(
            f"got over={over!r} and credit={credit!r}, expected prompt or call, and leave_one_out, shared or contrast"
        )
    check_embed(embed)


def _of_sets(
    prompts: Sequence[Prompt],
    rows: Tensor,
    functional: Callable[[Tensor], float],
    over: str,
    credit: str,
    least: int,
    reward: str,
) -> list[float]:
    """The values of all rows; ``least`` is the smallest set that ``functional`` takes."""
    try:
        check_sets(over, credit)
    except ValueError as error:
        raise ValueError(f"{reward}: {error}") from None
    finite = rows.isfinite().all(1).tolist()
    values = [math.nan] * len(prompts)
    for members in groups(prompts) if over == "prompt" else [list(range(len(prompts)))]:
        inside = [row for row in members if finite[row]]
        if len(inside) < (2 * least if credit == "contrast" else least + (credit == "leave_one_out")):
            continue
        if credit == "contrast":
            for row, positive in zip(inside, contrast(rows[inside], functional), strict=False):
                values[row] = float(positive)
            continue
        whole = functional(rows[inside])
        for row in inside:
            rest = [other for other in inside if other != row]
            values[row] = whole - functional(rows[rest]) if credit == "leave_one_out" else whole
    return values


def contrast(rows: Tensor, functional: Callable[[Tensor], float]) -> list[bool]:
    """Which rows of two halves of equal size, D1 and D2, belong to the positive set D+ (DRAGON, arXiv:2504.15217,
    algorithm 1): D+ is the half with the larger F, and then pair by pair the i-th rows of both change places where that
    raises F(D+).

    For F = -|mean - 1|, D1 = {0, 4} and D2 = {1, 3}: both have F = -1, so D1 is D+; 1 for 0 would make it worse, 3
    for 4 raises F to -0.5, and D+ = {0, 3}.
    """
    half = len(rows) // 2
    first, second = list(range(half)), list(range(half, 2 * half))
    positive, negative = (first, second) if functional(rows[first]) >= functional(rows[second]) else (second, first)
    value = functional(rows[positive])
    for place in range(half):
        changed = [*positive[:place], negative[place], *positive[place + 1 :]]
        if (new := functional(rows[changed])) > value:
            positive[place], negative[place], value = negative[place], positive[place], new
    return [row in positive for row in range(2 * half)]


@functools.cache
def _exemplars(source: str, embed: str, device: str) -> Tensor:
    """Embeddings [n, D] of the exemplars, read once."""
    place = Path(locate(source)).expanduser()
    if place.suffix == ".safetensors":
        tensors = read_tensors(place, "frechet")
        if set(tensors) != {"embeddings"} or tensors["embeddings"].ndim != 2:
            shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
            raise ValueError(f"frechet: exemplars: {place}: got {shapes}, expected one tensor embeddings [n, D]")
        rows = tensors["embeddings"].double()
    elif place.suffix == ".txt":
        texts = [line.strip() for line in place.read_text(encoding="utf-8").splitlines() if line.strip()]
        rows = embedded_texts(texts, embed, device, "frechet") if texts else torch.empty(0)
    else:
        files = [file for file in sorted(place.glob("*")) if file.suffix.lower() in (*IMAGE_NAMES, *SUFFIXES)]
        outputs = [read_sound(file, "frechet") if _is_sound(file) else decode_image(file) for file in files]
        rows = embeddings_of(outputs, embed, device, "frechet") if outputs else torch.empty(0)
    if len(rows) < 2 or not bool(rows.isfinite().all()):
        raise ValueError(
            f"frechet: exemplars: {place}: got {len(rows)} rows, expected a folder of at least two images or audio, "
            "a .txt file of texts, or a .safetensors file of finite embeddings"
        )
    return rows


def _is_sound(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES
