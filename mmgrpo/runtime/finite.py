"""NaN and infinity are errors where they appear, and never reach a score, a checkpoint or a saved model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from mmgrpo.runtime.sharding import everywhere, local


class NotFinite(RuntimeError):
    """A network or a sampler has produced NaN or infinity."""


class TooLarge(NotFinite):
    """A sampler has produced states that are finite, but far larger than its noise levels allow."""


def is_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all entries of all tensors are finite; integers are. Of shards, on all processes, which must all call."""
    tensors = list(tensors)
    finite = [torch.isfinite(local(tensor)).all().cpu() for tensor in tensors]
    return everywhere(not finite or bool(torch.stack(finite).all()), tensors)


def refuse_tensors(tensors: Mapping[str, Tensor], what: str) -> None:
    """Raise ``NotFinite``, which begins with ``what``, if an entry of a named tensor is NaN or infinite."""
    if is_finite(tensors.values()):
        return
    names = [name for name, tensor in tensors.items() if not is_finite([tensor])]
    raise NotFinite(f"{what}: {len(names)} of {len(tensors)} tensors are not finite, e.g. '{names[0]}'")


def refuse_nan(values: Tensor, what: str) -> Tensor:
    """The values, which a network computed while sampling; ``NotFinite`` if one of them is NaN.

    Infinite log-probabilities are in order: tokens that may not be chosen have them.
    """
    return _refuse(values, what, values.isnan())


def refuse_nonfinite(values: Tensor, what: str) -> Tensor:
    """``refuse_nan`` that refuses infinite values too."""
    return _refuse(values, what, ~values.isfinite())


def _refuse(values: Tensor, what: str, bad: Tensor) -> Tensor:
    if bool(bad.any()):
        raise NotFinite(
            f"{what} are not finite, so that nothing can be sampled: the weights have diverged (lower optim.lr and go "
            "back with --resume-from), or the precision is too low (try --model.dtype bfloat16 or float32)"
        )
    return values
