"""How much the members of a group differ in what they say next, recorded for credits that compare them (TW-GRPO,
arXiv:2505.24718; ``generation.group_divergence``)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mmgrpo.config.conflicts import OTHERS
from mmgrpo.policies.generation import Generated
from mmgrpo.policies.token_model import Query, Sequences
from mmgrpo.policies.walks import Addition


class Divergence(Addition):
    """The field ``divergence``, measured while a group is drawn."""

    setting = "algorithm.credit"
    fields = measures = frozenset({"divergence"})
    traits = frozenset({"divergence", OTHERS})

    def __init__(self, value: object = True) -> None:
        super().__init__("divergence")

    def numbers(self, queries: Sequence[Query], sequences: Sequences, drawn: Generated) -> dict[str, Tensor]:
        """``divergence`` of each token."""
        return {"divergence": drawn.divergence}
