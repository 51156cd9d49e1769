"""The optimizer's step in numbers, and optimizers that keep their averages in fewer bits."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn

from mmgrpo.config.settings import OPTIMIZERS, Config, Optim
from mmgrpo.runtime.checkpoint import flatten_optimizer, load_checkpoint, restore_optimizer, save_checkpoint
from mmgrpo.runtime.optimizers import make_optimizer

QUANTIZED = [name for name in OPTIMIZERS if name != "adamw"]


# The first step of AdamW is lr g / (|g| + eps): 1e-4 * 5e-9 / (5e-9 + 1e-8) = 1e-4 / 3.
@pytest.mark.parametrize(("eps", "step"), [(1e-8, 1e-4 / 3), (1e-15, 1e-4), (0.0, 1e-4)])
def test_gradients_below_eps_make_small_steps(eps, step):
    weight = nn.Parameter(torch.zeros(1))
    optimizer = make_optimizer({"weight": weight}, Optim(lr=1e-4, weight_decay=0.0, eps=eps))
    weight.grad = torch.tensor([5e-9])
    optimizer.step()
    assert float(weight.detach()) == pytest.approx(-step, rel=1e-4)


@pytest.mark.parametrize("eps", [-1e-8, 1.0])
def test_an_eps_out_of_range_is_refused(eps):
    with pytest.raises(ValueError, match=r"optim\.eps"):
        Optim(eps=eps).check()


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_missing_package_is_named_before_anything_is_loaded(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None if package == "bitsandbytes" else object())
    with pytest.raises(ValueError, match=rf"optim\.optimizer.*'{name}'.*optim\.optimizer=adamw"):
        Config(optim=Optim(optimizer=name)).check()
    Config().check()


def trained(optimizer, weight, steps, seed):
    """Steps towards a target, with gradients of all sizes."""
    target = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
    for _ in range(steps):
        optimizer.zero_grad()
        (weight - target).square().mean().backward()
        optimizer.step()


def start():
    """8192 entries, of which the averages are quantized."""
    return nn.Parameter(torch.linspace(-1, 1, 8192).view(64, 128))


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("name", QUANTIZED)
def test_a_quantized_optimizer_goes_the_way_of_adamw_and_resumes_exactly(name, tmp_path):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    optim = Optim(lr=1e-2, optimizer=name, weight_decay=0.1)
    plain, weight = start(), start()
    optimizer = make_optimizer({"weight": weight}, optim)
    trained(make_optimizer({"weight": plain}, Optim(lr=1e-2, weight_decay=0.1)), plain, 3, seed=0)
    trained(optimizer, weight, 3, seed=0)
    gone, apart = (plain - start()).abs().mean(), (plain - weight).abs().mean()
    assert gone > 2e-2 and apart < (0.05 if "8bit" in name else 1e-4) * gone

    tensors, state = flatten_optimizer(optimizer)
    held = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    assert held < (3 if "8bit" in name else 9) * weight.numel()  # 2 or 8 bytes an entry
    path = save_checkpoint(tmp_path, 3, {"optimizer": tensors}, {"optimizer": state})
    other = nn.Parameter(weight.detach().clone())
    fresh, loaded = make_optimizer({"weight": other}, optim), load_checkpoint(path)
    restore_optimizer(fresh, loaded.tensors["optimizer"], loaded.state["optimizer"])
    trained(optimizer, weight, 2, seed=1)
    trained(fresh, other, 2, seed=1)
    assert torch.equal(weight, other)
