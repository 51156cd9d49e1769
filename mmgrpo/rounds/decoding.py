"""Images of the next round, which are decoded while this one is trained on."""

from __future__ import annotations

from mmgrpo.data.streaming import decode_ahead
from mmgrpo.rollout import Round
from mmgrpo.rounds.callback import Callback, Choices, Run


class DecodingAhead(Callback):
    """Begins to decode what the next round draws where it follows the order of the prompts."""

    def on_rollout_end(self, run: Run, round_: Round) -> None:
        count = run.hyperparameters(run.step).rounds.prompts
        decode_ahead(run.prompts, run.order.take(round_.cursor, count), run.accelerator)


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [DecodingAhead()]
