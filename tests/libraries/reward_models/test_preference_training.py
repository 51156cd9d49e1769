"""How preference heads are trained: steps by hand, what is trained on, and what is not said."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from mmgrpo.types import Image, Prompt, Text
from reward_models import preference_training as module
from reward_models.evaluation.comparison import FIRST, TIE, Comparison
from reward_models.preference import SCENES, Description, PreferenceModel
from reward_models.preference_backbone import LAST_HIDDEN, train_backbone
from reward_models.preference_training import (
    Examples,
    Fitting,
    descend,
    examples,
    initialize,
    pairs,
    standardize,
    train,
)
from reward_models.preference_users import train_groups
from tests.libraries.reward_models.test_preference import DARK, HERE, LIGHT, PAIRS
from tests.tiny import maker

RATED = Comparison(Prompt("a"), (LIGHT, DARK), FIRST, "1", ratings=(4.0, 1.0))


def test_steps_are_those_of_adamw_with_a_cosine_to_zero_and_gradients_of_length_one():
    """Weight w, gradients 0.5, 5 and 0.25 (the second is cut to 1), lr 0.1, decay 0.5: AdamW by its formula."""
    weight, gradients, seen = nn.Parameter(torch.tensor([2.0])), [0.5, 5.0, 0.25], []

    def backward(chosen):
        seen.append(chosen.tolist())
        (weight.sum() * gradients[len(seen) - 1]).backward()
        return 0.0

    descend([weight], 5, backward, Fitting(epochs=1, lr=0.1, batch=2, weight_decay=0.5))
    assert [*map(len, seen)] == [2, 2, 1] and {*seen[0], *seen[1], *seen[2]} == {0, 1, 2, 3, 4}
    w, mean, square = 2.0, 0.0, 0.0
    for step, gradient in enumerate((0.5, 1.0, 0.25)):
        lr = 0.1 * (1 + math.cos(math.pi * step / 3)) / 2
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        corrected, root = mean / (1 - 0.9 ** (step + 1)), math.sqrt(square / (1 - 0.999 ** (step + 1)))
        w = w * (1 - lr * 0.5) - lr * corrected / (root + 1e-8)
    assert float(weight.detach()) == pytest.approx(w, rel=1e-5)


def test_rows_are_in_another_order_in_each_epoch():
    weight, seen = nn.Parameter(torch.ones(1)), []
    torch.manual_seed(0)
    descend([weight], 9, lambda chosen: seen.append(chosen.tolist()) or 0.0, Fitting(epochs=2, lr=0.1, batch=9))
    first, second = seen
    assert first != second and sorted(first) == sorted(second) == list(range(9))


def test_every_two_outputs_are_a_pair_with_who_won():
    three = Comparison(Prompt("a"), (LIGHT, DARK, LIGHT), (2.0, 1.0, 2.0), "1")
    assert pairs(three) == [(0, 1, -1.0), (0, 2, 0.0), (1, 2, 1.0)]


class Scores(nn.Module):
    """The scores of outputs are weights."""

    description = Description("a:b")

    def __init__(self, *scores):
        super().__init__()
        self.scores = nn.Parameter(torch.tensor(scores))

    def forward(self, rows):
        return self.scores[rows[:, 0].long()]


@pytest.mark.parametrize(
    ("loss", "rows", "gradient"),
    [
        ("bradley_terry", 2, [-0.25, 0.25, 0.25, -0.25]),  # (sigmoid(0) - 1) / 2 for the better of each pair
        ("regression", 4, [-2.0, -0.5, 0.0, 0.5]),  # 2 (score - rating) / 4
    ],
)
def test_the_loss_is_the_mean_over_pairs_or_over_rated_outputs(loss, rows, gradient, monkeypatch):
    model: Any = Scores(0.0, 0.0, 0.0, 0.0)
    ratings = torch.tensor([4.0, 1.0, 0.0, -1.0])
    given = Examples(
        (torch.arange(4.0)[:, None],), torch.tensor([0, 2]), torch.tensor([1, 3]), torch.tensor([1.0, -1.0]), ratings
    )
    asked = []
    monkeypatch.setattr(module, "descend", lambda *given: asked.append(given))
    how = Fitting(loss, epochs=3, lr=0.1, batch=2)
    module.fit(model, given, how)
    ((weights, count, backward, same),) = asked
    assert count == rows and same is how and weights[0] is model.scores
    backward(torch.arange(rows))
    assert model.scores.grad.tolist() == gradient


def test_ratings_are_used_where_every_comparison_has_them():
    model = PreferenceModel(Description(f"{HERE}:brightness", width=2))
    assert examples(model, [RATED, replace(RATED, ratings=(3.0, 2.0))], "cpu").ratings.tolist() == [4, 1, 3, 2]
    assert examples(model, [RATED, replace(RATED, ratings=())], "cpu").ratings is None
    train([RATED, RATED], f"{HERE}:brightness", how=Fitting(epochs=1))  # rated outputs can be compared too


def test_scores_that_are_all_equal_are_standardized_by_a_millionth():
    model = standardize(PreferenceModel(Description(f"{HERE}:brightness", width=2)), torch.tensor([3.0, 3.0]))
    assert (model.description.mean, model.description.std) == (3.0, 1e-6)
    assert not model.training and not any(one.requires_grad for one in model.parameters())
    model = standardize(model, torch.tensor([1.0, 5.0]))
    assert (model.description.mean, model.description.std) == (3.0, 2.0)


def test_the_head_fits_its_features_and_the_tower_its_head():
    model, given = initialize(PAIRS, f"{HERE}:brightness", {}, Fitting(hidden=4))
    assert model.tower is None and given.features[0].shape == (6, 2)
    assert [tuple(one.shape) for one in model.head.parameters()] == [(4, 2), (4,), (1, 4), (1,)]
    scene = Comparison(Prompt("a red circle"), (Image(torch.ones(3, 32, 32)),) * 2, TIE, "1")
    model, given = initialize([scene], SCENES, {}, Fitting(hidden=4))
    assert model.tower is not None and model.description.width == 128
    assert model(*given.features).shape == (2,)


@pytest.mark.parametrize("function", [train, train_groups, train_backbone])
def test_only_the_seed_decides_and_the_generator_of_torch_is_left_alone(function, tmp_path):
    model = str(maker("causal_lm")(tmp_path)) if function is train_backbone else ""
    one = Comparison(Prompt("how many"), (Text("2"), Text("the blue is 3")), FIRST, "1", user="a")
    features = {train: ([one], f"{__name__}:length", {}), train_groups: ([one], 1, 1, f"{__name__}:length", {})}
    given = features.get(function, ([one], LAST_HIDDEN, {"model": model}, 2))
    made = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected = torch.rand(2)
        torch.manual_seed(seed)
        found = function(*given, Fitting("bradley_terry", epochs=1, hidden=4))
        made.append(found if function is train else found[0][0] if function is train_groups else found[0])
        assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(*pair) for pair in zip(*(one.head.parameters() for one in made), strict=True))


def length(prompts, outputs, device):
    """Features of texts."""
    return torch.tensor([[float(len(output.text))] for output in outputs])
