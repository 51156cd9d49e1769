"""What a bad reward does to a run: one without weight nothing but a count, one with weight an error that names it."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.evaluation import draw_samples
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.scoring import Scorer
from tests.building import trainer
from tests.faults.bad_rewards import exits
from tests.toys import toy_policy, toy_prompts


def first(prompts: Any, outputs: Any) -> list[float]:
    return [float(output.pixels[0]) for output in outputs]


def raises_at_times(prompts: Any, outputs: Any) -> list[float]:
    raise OSError("server gone")


def scores_nothing(prompts: Any, outputs: Any) -> list[float]:
    return [math.nan] * len(outputs)


def fills(prompts: Any, outputs: Any) -> list[float]:
    for output in outputs:
        output.pixels.numpy()[:] = 7.0
    for prompt in prompts:
        prompt.meta["seen"] = True
    return [0.0] * len(outputs)


def reseeds(prompts: Any, outputs: Any) -> list[float]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    return [float(torch.rand(())) for _ in outputs]


def trained(folder: Path, *watched: Any) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    """The weights and the metrics of two steps; the watched rewards have weight 0."""
    scorers = [*(Scorer(fn.__name__, fn, 0.0) for fn in watched), Scorer("first", first)]
    made = trainer(toy_policy(), folder, toy_prompts(4), steps=2, scorers=scorers)
    made.fit()
    return torch.cat([p.detach().flatten() for p in made.trained.values()]), read_metrics(folder / "metrics.jsonl")


@pytest.mark.parametrize("watched", [raises_at_times, scores_nothing, exits(0), fills, reseeds])
def test_a_reward_without_weight_changes_nothing_whatever_it_does(watched, tmp_path):
    alone, _ = trained(tmp_path / "alone")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        beside, metrics = trained(tmp_path / "beside", watched)
    assert torch.equal(alone, beside)
    lost = watched not in (fills, reseeds)
    for row in metrics:
        name = f"reward/{watched.__name__}"
        assert (row[f"{name}/mean"] is None) == lost and row.get(f"{name}/failed", 0) == (8 if lost else 0)
        assert isinstance(row["reward/first/mean"], float)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (raises_at_times, "'bad'.*8.*OSError"),
        (scores_nothing, "'bad'.*8.*round 0"),
        (exits(0), "'bad'.*8.*SystemExit"),
        (lambda p, o: {n: 1.0 for n in range(len(o))}, "'bad'.*dict"),
    ],
)
def test_a_reward_with_weight_stops_the_run_and_is_named(reward, message, tmp_path):
    scorers = [Scorer("first", first, 0.0), Scorer("bad", reward, 0.5)]
    made = trainer(toy_policy(), tmp_path, toy_prompts(4), steps=2, scorers=scorers)
    with pytest.raises((RuntimeError, ValueError), match=message):
        made.fit()


@pytest.mark.parametrize("reward", [raises_at_times, scores_nothing])
def test_an_evaluation_of_what_cannot_be_scored_is_nan_for_each_prompt(reward):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = draw_samples(
            toy_policy(), [Scorer("first", first), Scorer("watched", reward, 0.0)], toy_prompts(3),
            samples=2, seed=0, batch_size=4, shown=1, accelerator=Accelerator(cpu=True), title="t",
        )  # fmt: skip
    found = samples.means(["first", "watched"])
    assert [math.isnan(value) for value in found.values["watched"]] == [True] * 3
    assert all(math.isfinite(value) for value in found.values["first"])
    assert math.isnan(samples.shown.values[0]["watched"])
