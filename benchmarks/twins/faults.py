"""Planted faults: each changes one line of the trainer in this process, and must turn at least one twin red.

A twin is red where its gain under the fault leaves its band, or training fails: above it where what holds the policy
back is gone. This is a test of the twins, not of the trainer: what no twin sees, they do not protect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

PANEL = (
    *("visual/flow_grpo_fast", "visual/mix_grpo", "visual/dance_grpo_wan", "visual/tempflow", "visual/cm_grpo"),
    *("visual/diffusion_nft", "visual/crd", "visual/dgpo", "preset/d3po", "preset/diffusion_dpo", "several_epochs"),
    *("vlm/demo", "speech/ibm_sqa", "speech/demo_duration"),
)
"""Twins that are trained under every fault, once each."""

Change = Callable[..., Any]


@contextlib.contextmanager
def changed_batch(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Advantages [B, T] and trained decisions of every round, as ``change`` makes them."""
    import mmgrpo.rollout as rollout

    def batch(rollouts: Any, places: Any, decisions: Any, advantages: Tensor, mask: Tensor) -> Any:
        return original(rollouts, places, decisions, *change(advantages, mask))

    original = rollout.Batch
    with patch.object(rollout, "Batch", batch):
        yield


def changed_method(owner: Any, name: str, change: Change) -> Any:
    """A method that ``change(original, self, ...)`` replaces."""
    original = getattr(owner, name)
    return patch.object(owner, name, lambda self, *given, **named: change(original, self, *given, **named))


def another(count: int) -> Tensor:
    """A permutation of the rows."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(count))


@contextlib.contextmanager
def mixed_groups() -> Iterator[None]:
    """Rows are counted to the groups as if those of a group were not adjacent."""

    import mmgrpo.rollout as rollout

    def estimate(values: Any, valid: Any, weights: Any, decisions: Any, *rest: Any) -> Any:
        key = decisions.keys["prompt"]
        keys = {**decisions.keys, "prompt": torch.arange(len(key)) % len(key.unique())}
        return original(values, valid, weights, replace(decisions, keys=keys), *rest)

    original = rollout.estimate
    with patch.object(rollout, "estimate", estimate):
        yield


def reference_that_moves() -> Any:
    from contextlib import nullcontext

    from pipelines.training import FrozenCopy

    return patch.object(FrozenCopy, "__call__", lambda self: nullcontext(self.network))


def noise_of_another_scale() -> Any:
    from mmgrpo.diffusion.kernels import Transition

    return patch.object(Transition, "sample", lambda self, noise: self.mean + 3 * self.std * noise)


def next_step() -> Any:
    from mmgrpo.diffusion.ode import Solver

    def predict(original: Change, self: Any, network: Any, x: Any, step: Any, conditioning: Any, grid: Any) -> Any:
        if torch.is_grad_enabled():
            step = (step + 1).clamp(max=grid.steps - 1)
        return original(self, network, x, step, conditioning, grid)

    return changed_method(Solver, "predict", predict)


def inverted_ratio() -> Any:
    import mmgrpo.objectives.surrogates as surrogates

    original = surrogates.exp_ratio
    return patch.object(surrogates, "exp_ratio", lambda log_ratio, *given: original(-log_ratio, *given))


def no_clip() -> Any:
    import mmgrpo.objectives.surrogates as surrogates

    original = surrogates.clipped_surrogate
    return patch.object(
        surrogates, "clipped_surrogate", lambda log_ratio, advantages, *given: original(log_ratio, advantages, 1.0, 1e9)
    )


def no_gradient() -> Any:
    from accelerate import Accelerator

    return patch.object(Accelerator, "backward", lambda self, loss, **named: None)


def average_that_stays() -> Any:
    from mmgrpo.rounds.moving_average import Ema

    return patch.object(Ema, "update", lambda self, step: None)


def other_prompts() -> Any:
    from benchmarks.twins.worlds import Angles

    def take(original: Change, self: Any, index: Tensor) -> Any:
        return original(self, index.roll(1) if torch.is_grad_enabled() and len(index) > 1 else index)

    return changed_method(Angles, "take", take)


def vanishing_rate() -> Any:
    return patch("mmgrpo.update.learning_rate", lambda optim, step, steps: optim.lr / (1 + step) ** 2)


FAULTS: Mapping[str, Callable[[], Any]] = {
    "the sign of the advantage": lambda: changed_batch(lambda advantages, mask: (-advantages, mask)),
    "the mask of trained decisions shifted by one": lambda: changed_batch(lambda a, mask: (a, mask.roll(1, 1))),
    "noise of three times the std that is scored": noise_of_another_scale,
    "a reference that is the trained network": reference_that_moves,
    "the network's time one step late in training": next_step,
    "the ratio inverted": inverted_ratio,
    "groups mixed": mixed_groups,
    "the clip ignored": no_clip,
    "advantages of other samples": lambda: changed_batch(lambda a, mask: (a[another(len(a))], mask)),
    "the loss detached from the weights": no_gradient,
    "an average of weights that is never updated": average_that_stays,
    "other prompts in training than in sampling": other_prompts,
    "a learning rate that vanishes": vanishing_rate,
}


def plant_faults(
    bands: Mapping[str, tuple[float, float]],
    once: Callable[[str, int], Mapping[str, Any]],
    names: Sequence[str],
    kept: Mapping[str, Mapping[str, float | None]],
) -> Iterator[dict[str, Any]]:
    """Train the twins ``names`` under every fault, by ``once(name, seed)``; for each fault the gains, with those that
    are ``kept``, and which twins are red."""
    for name, fault in FAULTS.items():
        gains = dict(kept.get(name, {}))
        for twin in names:
            with fault():
                gains[twin] = once(twin, 0).get("gain")
        caught = [twin for twin, gain in gains.items() if gain is None or gain <= 0 or not _inside(gain, bands[twin])]
        yield {"caught": caught, "fault": name, "gains": gains}


def _inside(gain: float, band: tuple[float, float]) -> bool:
    return band[0] <= gain <= band[1]


def table(record: Mapping[str, Any]) -> list[str]:
    """Markdown: a row per fault."""
    lines = [
        "## Planted faults",
        "",
        f"`python -m benchmarks twins --faults`, commit {record['commit'] or 'unknown'}: one seed of each twin of a "
        "panel.",
    ]
    lines += ["", "| fault | red | of | red twins (gain under the fault) |", "| --- " * 4 + "|"]
    for fault in record["faults"]:
        shown = [
            f"{twin} ({'failed' if (gain := fault['gains'][twin]) is None else f'{gain:+.3f}'})"
            for twin in fault["caught"]
        ]
        lines.append(f"| {fault['fault']} | {len(fault['caught'])} | {len(fault['gains'])} | {', '.join(shown)} |")
    return lines
