"""Methods that a recipe adds to a plain run, each a ``Callback`` in a file of its own, imported where it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.config.registry import Bound, parse
from mmgrpo.config.schedules import Schedule, named
from mmgrpo.config.settings import Optim
from mmgrpo.prompts.samplers import Sampling
from mmgrpo.rounds.callback import Callback
from mmgrpo.scoring import Scorer
from mmgrpo.types import Prompt
from mmgrpo.update import LossRecipe, losses


def methods(
    loss: LossRecipe,
    optim: Optim,
    scorers: Sequence[Scorer],
    *,
    patience: int = 0,
    patience_reward: str = "",
    given: Sequence[Prompt] = (),
    images: bool = False,
    offline: float = 0.0,
    steps: int = 0,
    staleness: int = 0,
    weighting: Sequence[Bound] = (),
) -> list[Callback]:
    """The callbacks of the methods that settings ask for (sections algorithm, optim and eval), in the order in which
    they act; ValueError for settings that the rewards of the run do not allow. ``given``: the prompts of
    data.supervised. ``images``: whether prompts show images that may be decoded ahead. ``offline``: the share of the
    run's ``steps`` that is made from given answers. ``weighting``: the rules by which the weights of rewards change."""
    callbacks: list[Callback] = []
    if images:
        from mmgrpo.rounds.decoding import DecodingAhead

        callbacks.append(DecodingAhead())
    if offline:
        from mmgrpo.rounds.offline import Offline

        callbacks.append(Offline(offline, steps))
    if staleness:
        from mmgrpo.rounds.ahead import Ahead

        callbacks.append(Ahead(staleness))
    if loss.hint.text != "none":
        from mmgrpo.rounds.hints import Hints

        callbacks.append(Hints())
    if loss.added.text != "none":
        from mmgrpo.rounds.added import AddedRows

        callbacks.append(AddedRows())
    if loss.replay.text != "none":
        from mmgrpo.rounds.replay import ReplayedRows

        callbacks.append(ReplayedRows())
    if loss.supervised.text != "none":
        from mmgrpo.rounds.supervised import SupervisedRows

        callbacks.append(SupervisedRows(given))
    if weighting:
        from mmgrpo.rounds.reward_weights import WeightingRules

        callbacks.append(WeightingRules())
    if loss.networks:
        from mmgrpo.rounds.networks import Learners, NamedNetworks

        callbacks += [NamedNetworks(), *([Learners()] if losses(loss) else [])]
    if parse(optim.step, "optim.step")[0] != "plain":
        from mmgrpo.rounds.steps import StepRule

        callbacks.append(StepRule(optim.step))
    if optim.ema:
        from mmgrpo.rounds.moving_average import MovingAverage

        callbacks.append(MovingAverage(optim.ema, optim.ema_every))
    if optim.interpolation != 1:
        from mmgrpo.rounds.interpolation import Interpolation

        callbacks.append(Interpolation(optim.interpolation))
    if patience:
        from mmgrpo.rounds.early_stopping import EarlyStopping

        callbacks.append(EarlyStopping.of(patience, patience_reward, scorers))
    return callbacks


def schedules(
    recipe: AdvantageRecipe,
    loss: LossRecipe,
    samplers: Sampling,
    scorers: Sequence[Scorer],
    settings: Mapping[str, Schedule],
    steps: int,
) -> list[Callback]:
    """The callback that changes numbers during a run of so many steps; none where nothing follows a schedule. It stands
    behind all others, whose metrics its rules may follow. ``settings``: the schedules of settings, by name."""
    of_blocks = named(recipe, loss, samplers)
    if not (of_blocks or settings or any(one.schedule for one in scorers)):
        return []
    from mmgrpo.rounds.schedules import Schedules

    return [Schedules(of_blocks, settings, scorers, steps)]
