"""A head that is trained with adapters in the language model below it: what is trained, saved and served."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from mmgrpo.cli import train_reward
from mmgrpo.types import Image, Prompt, Text
from reward_models import preference_backbone
from reward_models.evaluation.comparison import FIRST, Comparison
from reward_models.last_hidden import ADAPTERS, add_adapters, last_hidden, load_frozen, state
from reward_models.pixels import to_pil
from reward_models.preference import load, preference, save
from reward_models.preference_backbone import LAST_HIDDEN, train_backbone
from reward_models.preference_training import Fitting
from tests.tiny import maker, tiny_checkpoint
from tests.tiny import smolvlm as smolvlm_tiny

YES, NO = Text("the blue is 3"), Text("2")


@pytest.fixture(scope="module")
def folder() -> str:
    return str(tiny_checkpoint(maker("causal_lm")))


def test_adapters_of_b_zero_leave_the_network_as_it_is_and_they_alone_are_trained(folder):
    processor, network = load_frozen(folder, "cpu")
    linear = sum(isinstance(one, torch.nn.Linear) for one in network.modules())
    before = state(processor, network, Prompt("how many"), YES, "cpu")
    trained = add_adapters(network, 2)
    assert torch.equal(state(processor, network, Prompt("how many"), YES, "cpu"), before)
    assert {name for name, one in network.named_parameters() if one.requires_grad} == set(trained)
    assert len(trained) == 2 * linear


def test_an_adapter_adds_twice_its_product():
    """x = (1, 1) and three columns of ones: A x = 2 in each, B A x = 6, twice that is 12."""
    network = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False))
    x = torch.ones(1, 2)
    before = network(x)
    for weight in add_adapters(network, 3).values():
        torch.nn.init.ones_(weight)
    assert (network(x) - before).tolist() == [[pytest.approx(12)] * 2]


def test_a_step_is_over_the_mean_of_its_pairs(folder, monkeypatch):
    """The gradient of the head's last bias and weights, of losses that are written out."""
    three = Comparison(Prompt("how many"), (YES, NO, Text("the blue is 2")), (1.0, 3.0, 2.0), "1")
    tie = Comparison(Prompt("how many"), (YES, NO), (1.0, 1.0), "2")
    steps = []

    def descend(weights, rows, backward, given):
        steps.append((rows, given))
        steps.append(backward(torch.tensor([0, 2, 3])))
        steps.append([weight.grad for weight in weights[-4:]])
        steps.append([weight.detach().clone() for weight in weights[-4:]])

    monkeypatch.setattr(preference_backbone, "descend", descend)
    how = Fitting("bradley_terry", epochs=1, lr=0.1, hidden=5)
    model, adapters = train_backbone([three, tie], LAST_HIDDEN, {"model": folder}, 2, how)
    (first, mean, found, (w, b, v, c)) = steps
    assert first == (4, how) and len(adapters) > 0
    assert not any(one.requires_grad for one in (*model.parameters(), *adapters.values()))
    hidden = last_hidden([Prompt("how many")] * 3, [*three.candidates], model=folder)
    for weight in (w, b, v, c):
        weight.requires_grad_()
    a, no, middle = ((functional.silu(hidden @ w.T + b) @ v.T + c)[:, 0]).unbind()
    tied = (functional.softplus(a - no) + functional.softplus(no - a)) / 2
    expected = (functional.softplus(no - a) + functional.softplus(no - middle) + tied) / 3
    assert mean == pytest.approx(expected.item(), rel=1e-4)
    expected.backward()
    for weight, gradient in zip((w, b, v), found, strict=False):
        torch.testing.assert_close(gradient, weight.grad, rtol=1e-3, atol=1e-5)


def test_a_trained_backbone_is_served_from_its_folder_wherever_that_lies(folder, tmp_path):
    one = Comparison(Prompt("how many"), (YES, NO), FIRST, "1")
    how = Fitting("bradley_terry", epochs=30, lr=0.01, batch=1)
    model, adapters = train_backbone([one], LAST_HIDDEN, {"model": folder}, 2, how)
    assert any(bool(value.any()) for name, value in adapters.items() if ".lora_B." in name), "adapters have moved"
    place = tmp_path / "moved"
    save(model, place)
    save_file(adapters, place / ADAPTERS)
    good, bad = preference([Prompt("how many")] * 2, [YES, NO], str(place))
    assert (good, bad) == pytest.approx((1.0, -1.0), abs=1e-4), "standardized over the two outputs of the training set"
    frozen = last_hidden([Prompt("how many")], [YES], model=folder)
    tuned = last_hidden([Prompt("how many")], [YES], model=folder, adapters=str(place / ADAPTERS))
    assert not torch.allclose(frozen, tuned, atol=1e-3) and not tuned.requires_grad


def test_adapters_of_another_model_are_refused(folder, tmp_path):
    file = tmp_path / ADAPTERS
    for name in ("layers.0.mlp.lora_A.default.weight", "layers.0.mlp.weight"):
        save_file({name: torch.ones(2, 3)}, file)
        with pytest.raises(ValueError, match="adapters"):
            last_hidden([Prompt("a")], [YES], model=folder, adapters=str(file))


def test_other_features_stay_frozen(folder):
    one = Comparison(Prompt("how many"), (YES, NO), FIRST, "1")
    with pytest.raises(ValueError, match="2.*'a:b'.*bradley_terry"):
        train_backbone([one], "a:b", {"model": folder}, 2, Fitting("bradley_terry"))
    with pytest.raises(ValueError, match="2.*regression.*reward_models"):
        train_backbone([one], LAST_HIDDEN, {"model": folder}, 2, Fitting("regression"))


def test_a_vision_language_model_is_trained_by_the_command_and_looks_at_pictures(tmp_path):
    """One step of a tiny Idefics3 on one pair of pictures moves adapters of the vision tower too."""
    from transformers import AutoProcessor

    base = smolvlm_tiny.tiny(tmp_path / "vlm", "idefics3")
    AutoProcessor.from_pretrained(base, image_seq_len=4).save_pretrained(base)
    for name, value in (("light", 0.9), ("dark", 0.1)):
        to_pil(Image(torch.full((3, 16, 16), value))).save(tmp_path / f"{name}.png")
    row = {"prompt": "is the circle red", "left": "light.png", "right": "dark.png", "vote_type": "leftvote"}
    (tmp_path / "votes.jsonl").write_text(json.dumps(row))
    output = tmp_path / "head"
    train_reward.main(
        ["--data", f"votes:{tmp_path}/votes.jsonl", "--heldout", f"votes:{tmp_path}/votes.jsonl", "--lora-rank", "2"]
        + ["--features", f"{LAST_HIDDEN}(model='{base}')", "--loss", "bradley_terry", "--epochs", "2"]
        + ["--device", "cpu", "--output", str(output)]
    )
    moved = [name for name, value in load_file(output / ADAPTERS).items() if ".lora_B." in name and value.any()]
    assert any("vision" in name for name in moved) and any("text" in name for name in moved)
    description = load(str(output)).description
    assert description.parameters["adapters"] == str(output / ADAPTERS)
    assert description.training["heldout_accuracy"]["failed"] == 0
