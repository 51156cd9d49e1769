"""Preference heads: losses in the head, BaseReward's head, files, features of any model, and learning."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmgrpo.rewards import scorer
from mmgrpo.toy import scenes
from mmgrpo.types import Image, Prompt, Text, Video
from reward_models import preference as preference_module
from reward_models.evaluation.comparison import FIRST, SECOND, TIE, Comparison
from reward_models.preference import Description, PreferenceModel, RewardHead, last_token, load, preference, save
from reward_models.preference_training import Fitting, bradley_terry, bradley_terry_ties, examples, train

SIGMOID = torch.sigmoid
NAN = pytest.approx(math.nan, nan_ok=True)


# ---- losses


def test_bradley_terry_in_the_head():
    """log(1 + e^-1) = 0.313262 for a gap of 1 in the right direction, 1.313262 in the wrong one, log 2 for none."""
    gap = torch.tensor([1.0, 1.0, 0.0, 1.0])
    losses = bradley_terry(gap, torch.tensor([1.0, -1.0, 1.0, 0.0]))
    assert losses.tolist() == pytest.approx([0.313262, 1.313262, math.log(2), 0.813262], abs=1e-6)


def test_bradley_terry_pulls_by_the_probability_of_the_error():
    """d loss / d gap = sigmoid(gap) - 1 for a win, sigmoid(gap) for a loss, their mean for a tie."""
    gap = torch.zeros(3, requires_grad=True)
    bradley_terry(gap, torch.tensor([1.0, -1.0, 0.0])).sum().backward()
    assert gap.grad is not None and gap.grad.tolist() == [-0.5, 0.5, 0.0]


def test_wins_losses_and_ties_are_all_that_can_happen():
    gap = torch.linspace(-6, 6, 13)
    each = [(-bradley_terry_ties(gap, torch.full_like(gap, human))).exp() for human in (1.0, -1.0, 0.0)]
    assert torch.allclose(sum(each, torch.zeros_like(gap)), torch.ones_like(gap), atol=1e-6)
    tie = 24 * SIGMOID(gap - math.log(5)) * SIGMOID(-gap - math.log(5))
    assert torch.allclose(each[2], tie, atol=1e-6) and float(each[2].max()) == pytest.approx(2 / 3)
    assert torch.allclose(each[0], SIGMOID(gap - math.log(5)), atol=1e-6)


def test_a_tie_pulls_scores_together():
    gap = torch.tensor([2.0], requires_grad=True)
    bradley_terry_ties(gap, torch.zeros(1)).sum().backward()
    assert gap.grad is not None and float(gap.grad) > 0  # descent makes the gap smaller


# ---- BaseReward's head


def test_the_head_is_two_layers_with_a_silu():
    """Weights of one: SiLU(1 + 2) = 3 sigmoid(3), twice, plus the bias."""
    head = RewardHead(2, 2)
    for linear in (head.layers[0], head.layers[2]):
        torch.nn.init.ones_(linear.weight)
        torch.nn.init.zeros_(linear.bias)
    assert [tuple(linear.weight.shape) for linear in (head.layers[0], head.layers[2])] == [(2, 2), (1, 2)]
    expected = 2 * 3 * float(SIGMOID(torch.tensor(3.0)))
    assert float(head(torch.tensor([[1.0, 2.0]])).detach()) == pytest.approx(expected)


def test_the_last_token_is_no_padding_on_either_side():
    hidden = torch.arange(8.0).reshape(2, 4, 1)
    right, left = [1, 1, 0, 0], [0, 0, 1, 1]
    assert last_token(hidden, torch.tensor([right, left]).bool()).tolist() == [[1.0], [7.0]]
    assert last_token(hidden, torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0]]).bool()).tolist() == [[3.0], [6.0]]
    with pytest.raises(ValueError, match="row 1"):
        last_token(hidden, torch.tensor([right, [0] * 4]).bool())


# ---- features of a frozen model


def brightness(prompts, outputs, device, scale=1.0):
    """Features in which the better output is seen at once."""
    values = torch.tensor([[float(output.pixels.mean())] for output in outputs], device=device)
    return scale * torch.cat([values, values**2], 1)


def two_sided(prompts, outputs, device):
    values = brightness(prompts, outputs, device)
    return values, torch.ones_like(values)


def wrong_shape(prompts, outputs, device):
    return torch.zeros(len(outputs), 2, 2)


HERE = "tests.libraries.reward_models.test_preference"
LIGHT, DARK = Image(torch.full((3, 4, 4), 0.9)), Image(torch.full((3, 4, 4), 0.1))
PAIRS = [
    Comparison(Prompt("a"), (LIGHT, DARK), FIRST, "1"),
    Comparison(Prompt("b"), (DARK, LIGHT), SECOND, "2"),
    Comparison(Prompt("c"), (DARK, DARK), TIE, "3"),
]


@pytest.mark.parametrize("loss", ["bradley_terry", "bradley_terry_ties"])
@pytest.mark.parametrize("features", ["brightness", "two_sided"])
def test_a_head_learns_on_the_features_of_any_model(tmp_path, features, loss):
    model = train(PAIRS, f"{HERE}:{features}", how=Fitting(loss=loss, epochs=40, lr=0.05, hidden=4))
    save(model, tmp_path)
    light, dark, again = preference([Prompt("x")] * 3, [LIGHT, DARK, LIGHT], str(tmp_path))
    assert light > dark and light == pytest.approx(again, abs=1e-5)
    assert (
        json.loads((tmp_path / "preference.json").read_text())["width"] == {"brightness": 2, "two_sided": 6}[features]
    )


def test_scores_are_standardized_over_the_training_set(tmp_path):
    save(train(PAIRS, f"{HERE}:brightness", {"scale": 2.0}, how=Fitting(epochs=40, lr=0.05, hidden=4)), tmp_path)
    outputs = [output for one in PAIRS for output in one.outputs()]
    values = torch.tensor(preference([Prompt("")] * 6, outputs, str(tmp_path)))
    assert float(values.mean()) == pytest.approx(0, abs=1e-5) and float(values.std(correction=0)) == pytest.approx(
        1, abs=1e-5
    )


def test_regression_fits_ratings_and_needs_them():
    rated = [Comparison(Prompt("a"), (LIGHT, DARK), FIRST, "1", ratings=(4.0, 1.0))]
    how = Fitting("regression", epochs=300, lr=0.05, weight_decay=0, hidden=4)
    model = train(rated, f"{HERE}:brightness", how=how)
    raw = model(*model.features([Prompt("a")] * 2, [LIGHT, DARK], "cpu"))
    assert raw.tolist() == pytest.approx([4.0, 1.0], abs=0.05)
    with pytest.raises(ValueError, match="regression"):
        train(PAIRS, f"{HERE}:brightness", how=Fitting(loss="regression"))
    with pytest.raises(ValueError, match="loss.*hinge.*bradley_terry"):
        train(PAIRS, f"{HERE}:brightness", how=Fitting(loss="hinge"))


def test_embeddings_of_pictures_and_texts_are_joined_with_their_product(monkeypatch):
    pair = torch.tensor([[1.0, 2.0]]).double().requires_grad_(), torch.tensor([[3.0, 4.0]]).double()
    monkeypatch.setattr(preference_module, "load_object", lambda name, what: lambda prompts, outputs, device: pair)
    made = preference_module.frozen_features("a:b", {}, [Prompt("a")], [LIGHT], "cpu")
    assert made.tolist() == [[1, 2, 3, 4, 3, 8]] and made.dtype == torch.float32 and not made.requires_grad


@pytest.mark.parametrize(
    ("made", "shape"), [([[1.0, 2.0]], "list"), (torch.ones(2, 3), r"\[2, 3\]"), (torch.ones(1), r"\[1\]")]
)
def test_features_are_a_row_for_each_output(made, shape, monkeypatch):
    monkeypatch.setattr(preference_module, "load_object", lambda name, what: lambda prompts, outputs, device: made)
    with pytest.raises(ValueError, match=rf"'a:b'.*{shape}.*\[1, width\]"):
        preference_module.frozen_features("a:b", {}, [Prompt("a")], [LIGHT], "cpu")


def test_features_of_a_wrong_shape_are_refused():
    with pytest.raises(ValueError, match=r":wrong_shape.*\[6, 2, 2\].*\[6, width\]"):
        train(PAIRS, f"{HERE}:wrong_shape", how=Fitting(epochs=1))


# ---- files


@pytest.fixture
def folder(tmp_path):
    """An untrained head on the tower of scenes."""
    torch.manual_seed(0)
    save(PreferenceModel(Description()), tmp_path / "head")
    return tmp_path / "head"


def test_what_is_saved_scores_alike_and_nan_pixels_are_no_score(folder):
    prompt = scenes.prompt(scenes.parse("a red circle left of a blue square"))
    shown = scenes.image(scenes.parse(prompt.text), 0)
    broken = Image(torch.full((3, 32, 32), math.nan))
    reward = scorer(f"preference(weights='{folder}')")
    first, lost, again = reward.fn([prompt] * 3, [shown, broken, shown])
    assert first == pytest.approx(again, abs=1e-5) and math.isnan(lost)
    model = load(str(folder))
    assert first == pytest.approx(float(model(*model.features([prompt], [shown], "cpu"))), abs=1e-5)


def test_the_tower_reads_the_order_of_words_and_pictures_of_any_size(folder):
    model = load(str(folder))
    a, b = (Prompt(f"a {x} circle left of a {y} circle") for x, y in (("red", "blue"), ("blue", "red")))
    small, large = (scenes.image(scenes.parse(a.text), 0, size) for size in (32, 64))
    scores = model(*model.features([a, b, a, Prompt("unknown words " * 20)], [small, small, large, small], "cpu"))
    assert len({round(float(score), 6) for score in scores}) == 4
    with pytest.raises(TypeError, match="Text.*Image"):
        preference([a], [Text("a")], str(folder))


def test_a_folder_that_is_no_head_is_named(folder):
    prompt, shown = [Prompt("a red circle")], [LIGHT]
    with pytest.raises(FileNotFoundError, match="preference.json"):
        preference(prompt, shown, str(folder / "gone"))
    (folder.parent / "bare").mkdir()
    (folder.parent / "bare" / "preference.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="model.safetensors"):
        preference(prompt, shown, str(folder.parent / "bare"))
    description = json.loads((folder / "preference.json").read_text())
    for change, message in (({"hidden": 7}, "fit"), ({"wide": 1}, "preference.json")):
        (folder / "preference.json").write_text(json.dumps(description | change))
        load.cache_clear()
        with pytest.raises(ValueError, match=message):
            preference(prompt, shown, str(folder))
    (folder / "preference.json").write_text("[]")
    with pytest.raises(ValueError, match="preference.json"):
        preference(prompt, shown, str(folder))


def test_pictures_are_scored_in_batches_and_pairs_know_who_won(monkeypatch):
    sizes = []

    class Model:
        description = SimpleNamespace(mean=1.0, std=2.0)

        def features(self, prompts, outputs, device):
            sizes.append(len(outputs))
            return (torch.tensor([[float(output.text)] for output in outputs]),)

        def __call__(self, numbers):
            return numbers[:, 0]

    monkeypatch.setattr(preference_module, "BATCH", 2)
    outputs = [Text(str(number)) for number in range(5)]
    model: Any = Model()
    scores = preference_module.scores_of(model, [Prompt("a")] * 5, outputs, "cpu")
    assert scores == [-0.5, 0.0, 0.5, 1.0, 1.5] and sizes == [2, 2, 1]
    sizes.clear()
    holed = LIGHT.pixels.clone()
    holed[2, 3, 3] = math.inf
    mixed = [outputs[3], Image(holed), Video(torch.stack([LIGHT.pixels, holed]), 2.0), outputs[4]]
    assert preference_module.scores_of(model, [Prompt("a")] * 4, mixed, "cpu") == [1.0, NAN, NAN, 1.5] and sizes == [2]
    sizes[:] = [2, 2, 1]
    some = [Comparison(Prompt("a"), tuple(outputs[:3]), (0.0, 1.0, 1.0), "row 1") for _ in range(3)]
    made = examples(model, some, "cpu", batch=2)
    assert made.human.tolist() == [1.0, 1.0, 0.0] * 3 and made.ratings is None
    assert (made.first.tolist(), made.second.tolist()) == (
        [0, 0, 1, 3, 3, 4, 6, 6, 7],
        [1, 2, 2, 4, 5, 5, 7, 8, 8],
    )
    assert sizes[3:] == [6, 3]
