"""Methods that a recipe adds to a plain run, each a ``Callback`` in a file of its own, imported where it is asked."""

from __future__ import annotations

from collections.abc import Sequence

from mmgrpo.config.settings import Optim
from mmgrpo.rounds.callback import Callback
from mmgrpo.scoring import Scorer


def methods(optim: Optim, patience: int, patience_reward: str, scorers: Sequence[Scorer]) -> list[Callback]:
    """The callbacks of the methods that settings ask for (sections optim and eval), in the order in which they act;
    ValueError for settings that the rewards of the run do not allow."""
    found: list[Callback] = []
    if optim.ema:
        from mmgrpo.rounds.moving_average import MovingAverage

        found.append(MovingAverage(optim.ema, optim.ema_every))
    if optim.interpolation != 1:
        from mmgrpo.rounds.interpolation import Interpolation

        found.append(Interpolation(optim.interpolation))
    if patience:
        from mmgrpo.rounds.early_stopping import EarlyStopping

        found.append(EarlyStopping.of(patience, patience_reward, scorers))
    return found
