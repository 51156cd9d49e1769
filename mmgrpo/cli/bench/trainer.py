"""A trainer for benchmarks of token policies, without evaluation and checkpoints."""

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
    """A ``Trainer`` that writes to the existing folder ``folder``; no weight decay, seed 0, on the CPU."""
    from accelerate import Accelerator

    from mmgrpo.advantages.estimate import AdvantageRecipe
    from mmgrpo.advantages.weighting import RewardWeights
    from mmgrpo.config.reading import build
    from mmgrpo.config.settings import Algorithm, Optim
    from mmgrpo.evaluation import EvalSettings
    from mmgrpo.prompts.ledger import Ledger, TrainingPrompts
    from mmgrpo.report.run_record import RunRecord
    from mmgrpo.rollout import RoundSettings
    from mmgrpo.rounds.callback import Hyperparameters
    from mmgrpo.runtime.progress import Checkpoints
    from mmgrpo.trainer import Trainer
    from mmgrpo.update import LossRecipe

    settings = build(Algorithm, algorithm, "the benchmark")
    return Trainer(
        policy=policy,
        scorers=[scorer],
        hyperparameters=Hyperparameters(
            AdvantageRecipe.of(settings),
            LossRecipe.of(settings.objective, settings.aggregation),
            RoundSettings(prompts_per_step, group_size),
            RewardWeights.of([scorer]),
        ),
        prompts=TrainingPrompts(prompts, Ledger(len(prompts))),
        optim=Optim(lr=lr, weight_decay=0.0, micro_batch_size=micro_batch_size),
        steps=steps,
        seed=0,
        evaluation=EvalSettings(),
        record=RunRecord(Checkpoints(folder, Accelerator(cpu=True), every=10**9, every_minutes=0.0)),
    )
