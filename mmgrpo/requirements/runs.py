"""Whether a run can train: everything that is known of it before it samples."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mmgrpo.config.settings import Optim
from mmgrpo.prompts.trackers import LEDGER_FIELDS
from mmgrpo.requirements.blocks import OF_NETWORKS, REQUIREMENTS, of_algorithm, refuse_unmet, refuse_unread
from mmgrpo.requirements.rewards import refuse_start, refuse_unsuited
from mmgrpo.rollout import RoundSettings
from mmgrpo.rounds.callback import Run
from mmgrpo.runtime.distributed import RankSlice


def refuse_untrainable(trained: Mapping[str, torch.nn.Parameter], optim: Optim) -> None:
    """ValueError for settings of the optimizer that do not go together, and for a policy with nothing to train."""
    optim.check()
    if not trained:
        raise ValueError("got a policy without trainable parameters; check its LoRA targets or train the full model")


def refuse_unfit(run: Run, rounds: RoundSettings, evaluates: bool) -> None:
    """ValueError for every error that is detectable before sampling; ``evaluates``: on held-out prompts, between
    rounds."""
    if run.steps < 1:
        raise ValueError(f"got steps {run.steps}, expected at least 1")
    recipe, loss, blocks = run.recipe, run.loss, rounds.samplers.blocks
    refuse_start(rounds.group_size, recipe, loss, run.scorers, float(run.callbacks.giver(run.steps - 1) is not None))
    rounds.samplers.refuse((recipe.fields | loss.fields) & LEDGER_FIELDS, "algorithm")
    refuse_unmet(recipe, loss, (REQUIREMENTS.keys() - OF_NETWORKS.keys()) | of_algorithm(loss), samplers=blocks)
    refuse_unread(recipe, loss, blocks)
    RankSlice.of(rounds.prompts, run.accelerator, "the number of prompts per round")
    refuse_unsuited(run.policy, recipe, loss, run.scorers, run.prompts, evaluates, run.callbacks.used)
