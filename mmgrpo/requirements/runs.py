"""Whether a run can train: everything that is known of it before it samples."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mmgrpo.config.settings import Optim
from mmgrpo.prompts.trackers import LEDGER_FIELDS
from mmgrpo.requirements.policies import refuse_alone
from mmgrpo.requirements.rewards import refuse_unsuited, refuse_unweighted
from mmgrpo.rollout import RoundSettings
from mmgrpo.rounds.callback import Run
from mmgrpo.runtime.distributed import RankSlice
from mmgrpo.runtime.networks import is_prompt_value


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
    if rounds.group_size < 2:
        refuse_alone(rounds.group_size, run.recipe, run.loss)
    rounds.samplers.refuse((run.recipe.fields | run.loss.fields) & LEDGER_FIELDS, "algorithm")
    refuse_unpredicted(run, rounds)
    RankSlice.of(rounds.prompts, run.accelerator, "the number of prompts per round")
    refuse_unsuited(run.policy, run.recipe, run.loss, run.scorers, run.prompts, evaluates, run.callbacks.used)
    if run.callbacks.given(run.steps - 1) is None:
        refuse_unweighted(run.scorers)


def refuse_unpredicted(run: Run, rounds: RoundSettings) -> None:
    """ValueError for a sampler that reads the values of prompts where nothing predicts them, and for the reverse."""
    networks, choice = [rule.text for rule in run.loss.networks if is_prompt_value(rule)], rounds.samplers.choice
    reads = choice is not None and "predicted_reward" in choice.needs
    if choice is not None and reads and not networks:
        raise ValueError(
            f"algorithm.sampler: got '{choice.text}', which reads the values of prompts, and no network predicts them; "
            "add prompt_value(lr=1e-5) to algorithm.networks"
        )
    if networks and not reads:
        raise ValueError(
            f"algorithm.networks: got '{networks[0]}', and no sampler reads its values; add nearest_predicted to "
            "algorithm.sampler, or leave it out"
        )
