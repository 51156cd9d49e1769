"""A trainer for benchmarks of policies that write: no evaluation, no checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmgrpo.scoring import Scorer
    from mmgrpo.trainer import Trainer
    from mmgrpo.types import Policy, Prompt


def bench_trainer(
    policy: Policy,
    scorer: Scorer,
    prompts: Sequence[Prompt],
    folder: Path,
    *,
    algorithm: dict[str, Any],
    prompts_per_step: int,
    group_size: int,
    steps: int,
    lr: float,
    micro_batch_size: int = 64,
) -> Trainer:
    """Everything of a run, in a folder that is there."""
    from accelerate import Accelerator

    from mmgrpo.advantages.estimate import AdvantageRecipe
    from mmgrpo.rollout import RoundSettings
    from mmgrpo.runtime.config import Algorithm, Optim
    from mmgrpo.runtime.reading import build
    from mmgrpo.trainer import EvalSettings, Trainer
    from mmgrpo.update import LossRecipe

    written = build(Algorithm, algorithm, "the benchmark")
    return Trainer(
        policy=policy,
        scorers=[scorer],
        recipe=AdvantageRecipe.of(written),
        loss=LossRecipe.of(written.objective, written.aggregation),
        prompts=prompts,
        rounds=RoundSettings(prompts_per_step, group_size),
        steps=steps,
        optim=Optim(lr=lr, weight_decay=0.0, micro_batch_size=micro_batch_size),
        evaluation=EvalSettings(),
        folder=folder,
        seed=0,
        accelerator=Accelerator(cpu=True),
        save_every=10**9,
    )
