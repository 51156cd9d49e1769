"""NaN and infinity are errors where they appear, and never reach a score, a checkpoint or a saved model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from mmgrpo.runtime.distributed import everywhere, local


class NotFinite(RuntimeError):
    """A network or a sampler has produced NaN or infinity."""


class TooLarge(NotFinite):
    """A sampler has produced states that are finite, but far larger than its noise levels allow."""


def is_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all entries of all tensors are finite; integers are. Of shards, on all processes, which must all call."""
    tensors, flags = list(tensors), {}
    for tensor in map(local, tensors):
        flags.setdefault(tensor.device, []).append(_finite(tensor))
    # One copy to the host for all tensors of a device.
    return everywhere(all([bool(torch.stack(of_device).all()) for of_device in flags.values()]), tensors)


def _finite(tensor: Tensor) -> Tensor:
    """Whether all entries are finite. The extremes take one pass and no memory, where ``isfinite`` makes three copies;
    of a tensor with NaN they are NaN."""
    if not tensor.numel() or not tensor.is_floating_point():
        return torch.isfinite(tensor).all()
    return torch.isfinite(torch.stack(torch.aminmax(tensor))).all()


def refuse_tensors(tensors: Mapping[str, Tensor], what: str) -> None:
    """Raise ``NotFinite``, which begins with ``what``, if an entry of a named tensor is NaN or infinite."""
    if is_finite(tensors.values()):
        return
    names = [name for name, tensor in tensors.items() if not is_finite([tensor])]
    raise NotFinite(f"{what}: {len(names)} of {len(tensors)} tensors are not finite, e.g. '{names[0]}'")


def refuse_skipped(row: int, most: int, step: int) -> None:
    """Raise ``NotFinite`` where ``row`` optimizer steps in a row were skipped, up to ``step``, and at most ``most`` may
    be."""
    if row >= most:
        raise NotFinite(
            f"{row} optimizer steps in a row, up to step {step}, had a loss or gradient that is not finite and were "
            "skipped; go back to a checkpoint before the divergence with --resume-from and lower --optim.lr, or use "
            "bf16 in place of fp16"
        )


def refuse_nan(values: Tensor, what: str) -> Tensor:
    """The values, which a network computed while sampling; ``NotFinite`` if one of them is NaN.

    Infinite log-probabilities are in order: tokens that may not be chosen have them.
    """
    refuse(bool(values.isnan().any()), what)
    return values


def refuse_nonfinite(values: Tensor, what: str) -> Tensor:
    """``refuse_nan`` that refuses infinite values too."""
    refuse(not bool(_finite(values)), what)
    return values


def refuse(bad: bool, what: str) -> None:
    """``NotFinite`` of what was sampled, where it is ``bad``."""
    if bad:
        raise NotFinite(
            f"{what} are not finite, so nothing can be sampled: the weights have diverged (lower optim.lr and go "
            "back with --resume-from), or the precision is too low (try --model.dtype bfloat16 or float32)"
        )
