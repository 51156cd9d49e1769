"""What the small flow models of the demos have in common: rectified flow from rendered images or clips.

Rectified flow (Liu et al., arXiv:2209.03003): x_t = (1 - t) x_0 + t noise, and the network predicts noise - x_0. Times
are logit-normal and shifted. The exponential moving average of the weights is saved, the transformer in half precision.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from jaxtyping import Float
    from torch import Tensor

    from mmgrpo.types import Prompt

    Velocity = Callable[[Tensor, Tensor, tuple[Tensor, Tensor]], Tensor]
    """Prediction of noise - x_0 from x_t, t in [0, 1], and the hidden states and pooled vectors of the words."""
    Measures = Mapping[str, Float[np.ndarray, "P samples"]]

SHIFT = 3.0
"""Time shift of the scheduler, with which samples are drawn."""


@dataclass
class Loop:
    """How the weights are optimized."""

    output: Path
    """Output folder: transformer/, words/, scheduler/."""
    measure: bool = False
    """Do not train: evaluate the model in ``output`` on the held-out prompts."""
    steps: int = 1600
    """Optimizer steps. The result is a function of the steps and the seed, not of the time."""
    stop: int = 0
    """The step after which training stops, at the latest that at which the schedule ends; 0: there."""
    batch: int = 32
    """Samples per step."""
    lr: float = 2e-3
    """Peak learning rate: linear warm-up, then cosine decay to zero."""
    warmup: int = 50
    """Warm-up steps."""
    ema: float = 0.995
    """Decay of the moving average of the weights, which is saved."""
    dropout: float = 0.1
    """Fraction of samples with the empty prompt, so classifier-free guidance is possible."""
    shift: float = 3.0
    """Time shift t = shift u / (1 + (shift - 1) u) of logit-normal u in training; the scheduler's is ``SHIFT``."""
    start: str = ""
    """Folder of a model to continue from; empty: random weights."""
    every: int = 400
    """Steps between evaluations, after each of which the model is saved as <output>-<step>."""
    threads: int = 1
    """CPU threads."""
    seed: int = 0
    """Seed of the weights, the samples and the noise."""


def flow_loss(
    velocity: Velocity,
    words: Any,
    texts: Sequence[str],
    x: Float[Tensor, "N *size"],
    loop: Loop,
    random: torch.Generator,
) -> Float[Tensor, ""]:
    """Mean squared error of the velocity: mean |v(x_t, t, prompt) - (noise - x_0)|^2."""
    import torch

    keep = torch.rand(len(x), generator=random) >= loop.dropout
    conditions = words(words.tokenize([t if k else "" for t, k in zip(texts, keep, strict=True)]))
    u = torch.sigmoid(torch.randn(len(x), generator=random))
    t = loop.shift * u / (1 + (loop.shift - 1) * u)
    noise = torch.randn(x.shape, generator=random)
    at = t.reshape(-1, *[1] * (x.ndim - 1))
    return (velocity((1 - at) * x + at * noise, t, conditions) - (noise - x)).square().mean()


def fit(
    matrices: Sequence[Tensor],
    others: Sequence[Tensor],
    loss: Callable[[torch.Generator], Float[Tensor, ""]],
    measure: Callable[[], Measures],
    save: Callable[[Path], None],
    loop: Loop,
) -> None:
    """Train, evaluate regularly, and save the moving average of the weights.

    The ``matrices`` of the blocks, where there are any, are optimized by Muon (Jordan et al. 2024; scaled as in
    Moonlight, arXiv:2502.16982), the ``others`` by AdamW.
    """
    import numpy as np
    import torch
    from tqdm import tqdm

    from mmgrpo.randomness import stream

    parameters = [*matrices, *others]
    average = [p.detach().clone() for p in parameters]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, lr=loop.lr, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
    ]
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, lr=loop.lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"))
    random = stream(loop.seed, "pretrain")
    begin, losses, last = time.process_time(), [], min(loop.stop or loop.steps, loop.steps)
    for step in tqdm(range(1, last + 1), mininterval=5):
        rate = loop.lr * min(1, step / loop.warmup) * 0.5 * (1 + math.cos(math.pi * step / loop.steps))
        error = loss(random)
        error.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        losses.append(error.item())
        with torch.no_grad():
            torch._foreach_lerp_(average, parameters, 1 - min(loop.ema, step / (step + 10)))
        if step % loop.every == 0 or step == last:
            minutes = (time.process_time() - begin) / 60
            now = [p.detach().clone() for p in parameters]
            with torch.no_grad():
                torch._foreach_copy_(parameters, average)
            rewards = "  ".join(f"{name} {np.nanmean(value):.3f}" for name, value in measure().items())
            tqdm.write(f"step {step}  cpu-minutes {minutes:.1f}  loss {np.mean(losses):.4f}  {rewards}")
            save(loop.output if step == last else Path(f"{loop.output}-{step}"))
            losses.clear()
            with torch.no_grad():
                torch._foreach_copy_(parameters, now)


def sample(
    velocity: Velocity, words: Any, texts: Sequence[str], size: tuple[int, ...], steps: int = 10, shift: float = SHIFT
) -> Float[Tensor, "N *size"]:
    """Samples of the Euler ODE without guidance, from fixed noise, in [-1, 1] up to the model's errors."""
    import torch

    from mmgrpo.diffusion.schedules import flow_grid
    from mmgrpo.randomness import stream

    random, levels, samples = stream(0, "measure"), flow_grid(steps, shift).levels, []
    for start in range(0, len(texts), 64):
        with torch.no_grad():
            conditions = words(words.tokenize(texts[start : start + 64]))
            x = torch.randn((len(texts[start : start + 64]), *size), generator=random)
            for now, then in pairwise(levels):
                x = x + (then - now) * velocity(x, now.expand(len(x)), conditions)
        samples.append(x)
    return torch.cat(samples)


def save(folder: Path, transformer: Any, words: Any, shift: float = SHIFT) -> None:
    """Write a model folder; the transformer in half precision, the few word vectors in full."""
    from diffusers.schedulers import FlowMatchEulerDiscreteScheduler

    half: Any = (
        type(transformer)
        .from_config(
            {name: value for name, value in transformer.config.items() if not name.startswith("_")}  # no local paths
        )
        .half()
    )
    half.load_state_dict({name: weight.half() for name, weight in transformer.state_dict().items()})
    half.save_pretrained(folder / "transformer")
    words.save(folder / "words")
    FlowMatchEulerDiscreteScheduler(shift=shift).save_pretrained(folder / "scheduler")


def describe(values: Measures, success: str, prompts: Sequence[Prompt]) -> str:
    """Means of all rewards, and of the reward ``success`` by kind of prompt and by prompt."""
    import numpy as np

    means = values[success].mean(1)
    kinds = {task: means[[p.task == task for p in prompts]].mean() for task in dict.fromkeys(p.task for p in prompts)}
    bins, _ = np.histogram(means, np.linspace(0, 1, 11))
    middle = ((means >= 0.2) & (means <= 0.8)).mean()
    return "\n".join(
        [
            "  ".join(f"{name} {np.nanmean(value):.3f}" for name, value in values.items()),
            "  ".join(f"{name} {value:.3f}" for name, value in kinds.items()),
            f"prompts by success in tenths {bins.tolist()}",
            f"never {(means == 0).sum()}, always {(means == 1).sum()}, 20 to 80 % {middle:.2f} of {len(prompts)}",
        ]
    )
