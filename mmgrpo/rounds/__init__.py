"""Methods that a recipe adds to a plain run, each a ``Callback`` in a file of its own, imported where it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.config.registry import parse
from mmgrpo.config.schedules import Schedule, schedules_of
from mmgrpo.config.settings import Optim
from mmgrpo.prompts.drawing import Sampling
from mmgrpo.rounds.callback import Callback, Choices
from mmgrpo.scoring import Scorer
from mmgrpo.update import LossRecipe


def rules_for(module: str) -> Callable[[Choices], Any]:
    """Whether a block of ``algorithm.networks`` or ``algorithm.judging`` says that this module does what it asks."""
    return lambda choices: choices.rules(module)


METHODS: Mapping[str, Callable[[Choices], Any]] = {
    "decoding": lambda choices: choices.images,
    "offline": lambda choices: choices.offline,
    "hints": lambda choices: choices.loss.hint.text != "none",
    "added": lambda choices: choices.loss.added.text != "none",
    "judging": rules_for("judging"),
    "self_play": rules_for("self_play"),
    "reward_network": rules_for("reward_network"),
    "discriminator": rules_for("discriminator"),
    "replay": lambda choices: choices.loss.replay.text != "none",
    "supervised": lambda choices: choices.loss.supervised.text != "none",
    "reward_weights": lambda choices: choices.weighting,
    "networks": lambda choices: choices.loss.networks,
    "ahead": lambda choices: choices.staleness,
    "critic": rules_for("critic"),
    "global_value": rules_for("global_value"),
    "turn_critic": rules_for("turn_critic"),
    "guidance": rules_for("guidance"),
    "prompt_value": rules_for("prompt_value"),
    "reward_gradients": lambda choices: "gradient_reward" in choices.loss.scores or choices.reward_drift,
    "windows": lambda choices: choices.total_tokens,
    "entropy_temperature": lambda choices: choices.temperature_by_entropy,
    "steps": lambda choices: parse(choices.optim.step, "optim.step")[0] != "plain",
    "moving_average": lambda choices: choices.optim.ema,
    "interpolation": lambda choices: choices.optim.interpolation != 1,
    "early_stopping": lambda choices: choices.patience,
}
"""The modules of methods, in the order in which they act, and whether a recipe asks for one. Each has a function
``callbacks``."""


def methods(loss: LossRecipe, optim: Optim, scorers: Sequence[Scorer], **further: Any) -> list[Callback]:
    """The callbacks of the methods that the settings of a recipe ask for (``Choices``); ValueError for settings that
    the rewards or the length of the run do not allow."""
    choices = Choices(loss, optim, scorers, **further)
    modules = [import_module(f"{__name__}.{name}") for name, asks in METHODS.items() if asks(choices)]
    return [callback for module in modules for callback in module.callbacks(choices)]


def schedule_callbacks(
    recipe: AdvantageRecipe,
    loss: LossRecipe,
    samplers: Sampling,
    scorers: Sequence[Scorer],
    settings: Mapping[str, Schedule],
    steps: int,
) -> list[Callback]:
    """The callback that changes numbers during a run of so many steps; none where nothing follows a schedule. It stands
    behind all others, whose metrics its rules may follow. ``settings``: the schedules of settings, by name."""
    of_blocks = schedules_of(recipe, loss, samplers)
    if not (of_blocks or settings or any(scorer.schedule for scorer in scorers)):
        return []
    from mmgrpo.rounds.schedules import Schedules

    return [Schedules(of_blocks, settings, scorers, steps)]
