"""Rows outside of the statistics change nothing for those inside, whatever they hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmgrpo.advantages.baseline import BASELINES
from mmgrpo.advantages.combine import COMBINE
from mmgrpo.advantages.scale import SCALES
from mmgrpo.advantages.select import SELECTORS
from mmgrpo.advantages.shape import SHAPES
from mmgrpo.advantages.weighting import KL_WEIGHTS
from mmgrpo.config.registry import bind
from mmgrpo.types import OWN

INSIDE = 7
PARAMETERS = {
    "constant": "constant(value=0.5)",
    "noisy_backward": "noisy_backward(false_positive=0.1, false_negative=0.2)",
    "noisy_forward": "noisy_forward(false_negative=0.2)",
    "drop_outliers": "drop_outliers(limit=1.2)",
    "gfpo": "gfpo(count=2)",
    "contrast": "contrast(count=1)",
    "saving": "saving(by='b', of='a')",
    "max_variance": "max_variance(count=2)",
    "balanced": "balanced(count=2)",
    "first": "first(count=2)",
    "keep_groups": "keep_groups(count=1)",
    "perplexity": "perplexity(alpha=0.1)",
    "consistent": "consistent(by='b', remove=2)",
    **{name: f"{name}(by='b')" for name in ("scaled", "class_factor", "consistency", "dynamic_scaling", "diversity")},
    "uncertain_part": "uncertain_part(of='a', auxiliary=['b'])",
    "best_worst": "best_worst(best=1, worst=1)",
}
"""What blocks need where they have no default, and what makes a difference in groups of three and four."""


def inputs(outside: bool) -> dict[str, Any]:
    """Groups of four and of three rows; with ``outside``, one more row in each and a group of two of its own."""
    generator = torch.Generator().manual_seed(0)
    values = torch.tensor([1.0, 0.0, 0.25, 1.0, 0.0, 1.0, 0.5], dtype=torch.float64)
    key = torch.tensor([3, 3, 3, 3, 8, 8, 8])
    columns = {
        "values": values,
        "key": key,
        "stat": torch.ones(INSIDE, dtype=torch.bool),
        "centred": values - 0.4,
        "advantages": torch.randn(INSIDE, generator=generator, dtype=torch.float64),
        "length": torch.tensor([2, 1, 3, 4, 2, 1, 5]),
        "origin": torch.full((INSIDE,), OWN),
        "truncated": torch.zeros(INSIDE),
        "reference_value": torch.full((INSIDE,), 0.3, dtype=torch.float64),
        "greedy_value": torch.full((INSIDE,), 0.6, dtype=torch.float64),
        "tracker_value": torch.full((INSIDE,), 0.5, dtype=torch.float64),
        "measured_value": torch.full((INSIDE,), 0.5, dtype=torch.float64),
        "window_mean": torch.full((INSIDE,), 0.5, dtype=torch.float64),
        "difficulty": torch.tensor([[0.25, 0.5, 0.75]], dtype=torch.float64).expand(INSIDE, 3),
        "quantile_low": torch.full((INSIDE,), 0.2, dtype=torch.float64),
        "quantile_high": torch.full((INSIDE,), 0.8, dtype=torch.float64),
        "variant": torch.tensor([512.0, 512, 2560, 2560, 512, 512, 2560]),
        "prefix_end": torch.tensor([2560.0, 512, 2560, 2560, 2560, 512, 2560]),
        "prefix_parent": torch.tensor([0.0, 512, 512, 512, 0, 512, 512]),
        "group_share": torch.tensor([0.9, 0.2, 0.5, 0.6, 0.3, 0.8, 0.4], dtype=torch.float64),
        "prefix_value": torch.tensor([0.25, 0.5, 0.25, 1.0, 0.5, 0.0, 1.0], dtype=torch.float64),
        "entropy": torch.rand(INSIDE, 2, generator=generator, dtype=torch.float64),
        "decision_mask": torch.ones(INSIDE, 2, dtype=torch.bool),
        "log_probs": -torch.rand(INSIDE, 2, generator=generator, dtype=torch.float64),
        "turn": torch.tensor([[0, 1]] * INSIDE),
        "call": torch.tensor([[1, 2]] * 3 + [[1, 3]] + [[1, 2]] * 3),
    }
    columns |= {"certainty": columns["entropy"]}
    if outside:
        wild = torch.tensor([1.0, -40.0, 1.0, 0.0], dtype=torch.float64)
        more = {
            "values": wild,
            "key": torch.tensor([3, 8, 11, 11]),
            "stat": torch.zeros(4, dtype=torch.bool),
            "length": torch.tensor([90, 1, 70, 1]),
            "origin": torch.full((4,), OWN),
            "entropy": torch.full((4, 2), 50.0, dtype=torch.float64),
            "decision_mask": torch.ones(4, 2, dtype=torch.bool),
            "log_probs": torch.full((4, 2), -9.0, dtype=torch.float64),
            "certainty": torch.full((4, 2), 50.0, dtype=torch.float64),
            "turn": torch.tensor([[0, 1]] * 4),
            "call": torch.full((4, 2), 9),
            "difficulty": wild[:, None].expand(4, 3),
        }
        columns = {name: torch.cat([column, more.get(name, wild.to(column))]) for name, column in columns.items()}
    rows = len(columns["values"])
    columns |= {"streams": torch.stack([columns["values"], columns["length"].double()], 1), "names": ("a", "b")}
    columns |= {"raw": columns["streams"]}
    columns |= {"weights": torch.tensor([1.0, -0.5])}
    return {**columns, "keep": columns["stat"], "node": torch.arange(2 * rows).view(rows, 2)}


BLOCKS = [
    (what, PARAMETERS.get(name, name), table)
    for what, table in (
        *(("baseline", BASELINES), ("scale", SCALES), ("shape", SHAPES), ("select", SELECTORS)),
        ("kl_weight", KL_WEIGHTS),
    )
    for name in table
]


@pytest.mark.parametrize(("what", "text", "table"), BLOCKS, ids=[text for _, text, _ in BLOCKS])
def test_what_a_block_gives_the_rows_inside_depends_on_them_alone(what, text, table):
    bound = bind(text, table, what)
    alone, together = bound(inputs(outside=False)), bound(inputs(outside=True))
    torch.testing.assert_close(together[:INSIDE], alone, rtol=1e-9, atol=1e-12)
    if what == "select":
        selected = together if together.dim() == 1 else together.any(1)
        # Whether rows that are not kept are selected makes no difference, where the selector does not ask for them.
        assert not selected[INSIDE:].any() or "keep" not in table[text.split("(")[0]].needs or text == "parent_top1"


@pytest.mark.parametrize("name", COMBINE)
def test_combining_rewards_does_not_look_at_rows_outside(name):
    def combined(outside: bool) -> torch.Tensor:
        columns = inputs(outside)
        streams = torch.stack([columns["values"], columns["length"].double()], 1)
        return bind(name, COMBINE, "combine")(
            {
                **columns,
                "names": ("a", "b"),
                "values": streams,
                "weights": torch.tensor([1.0, 0.5]).double(),
                "normalise": lambda one: one,
            }
        )

    torch.testing.assert_close(combined(True)[:INSIDE], combined(False), rtol=1e-9, atol=1e-12)
