"""Products of linear layers as a CPU does them fast are those of the layers."""

from __future__ import annotations

import os
import subprocess
import sys
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mmgrpo.runtime import products
from mmgrpo.runtime.products import COPIED, LARGE, Linear, by_onednn, packed_weights

copying = pytest.mark.skipif(not products._is_built(), reason="torch is built without oneDNN, or with an old one")


@copying
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("outputs", [256, COPIED + 3])
def test_outputs_and_gradients_by_onednn_are_those_of_the_layer(bias: bool, outputs: int) -> None:
    layer, draw = nn.Linear(64, outputs, bias=bias), partial(torch.randint, -3, 4, dtype=torch.float32)
    for parameter in layer.parameters():
        parameter.data = draw(parameter.shape)  # small whole numbers, whose sums are exact in any order
    inputs = draw((5, 128, 64)).requires_grad_()
    even, leaves, slopes = inputs[:, ::2], (inputs, *layer.parameters()), draw((5, 64, outputs))
    wanted = layer(even)
    by_onednn(layer)
    made = layer(even)
    assert made.grad_fn.name() != wanted.grad_fn.name()
    torch.testing.assert_close(made, wanted, atol=0, rtol=0)
    found = [torch.autograd.grad(result, leaves, slopes) for result in (made, wanted)]
    torch.testing.assert_close(*found, atol=0, rtol=0)


@copying
def test_what_is_frozen_gets_no_gradient_and_keeps_no_inputs() -> None:
    layer, inputs = Linear(64, 256), torch.randn(64, 64)
    for trained in (layer.weight, layer.bias, inputs):
        layer.requires_grad_(False)
        inputs.requires_grad_(False)
        trained.requires_grad_(True)
        made = layer(inputs)
        kept = [one is not None for one in made.grad_fn.saved_tensors]
        assert kept == [trained is layer.weight, trained is inputs]
        made.sum().backward()
        assert trained.grad is not None
    assert Linear.forward(layer, inputs.detach()).grad_fn is None


def test_a_layer_that_is_not_a_plain_one_or_would_not_gain_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = nn.Sequential(
        nn.modules.linear.NonDynamicallyQuantizableLinear(64, 256), nn.Linear(64, 256), nn.Conv2d(1, 2, 3)
    )
    kept[1].forward = lambda _: torch.ones(2)
    by_onednn(kept)
    assert Linear not in {type(layer) for layer in kept}
    layer, inputs = Linear(64, 256), torch.randn(64, 64)
    own = layer(inputs).grad_fn.name()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(inputs).dtype == torch.bfloat16
    with FlopCounterMode(display=False) as counter:
        layer(inputs)
    assert counter.get_total_flops() == 2 * 64 * 64 * 256
    for rows in (inputs[0], inputs[:15], inputs[:0]):
        assert layer(rows).shape == (*rows.shape[:-1], 256)
        assert layer(rows).grad_fn.name() != own
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "enabled", False)
        assert layer(inputs).grad_fn.name() != own
    assert layer.bfloat16()(inputs.bfloat16()).dtype == torch.bfloat16
    assert Linear(64, 256, device="meta")(inputs.to("meta")).shape == (64, 256)


@copying
def test_a_copy_of_a_network_multiplies_by_its_own_weights() -> None:
    layer = Linear(64, 256)
    copied = deepcopy(layer)
    layer.weight.data.zero_()
    assert copied(torch.ones(64, 64)).abs().sum() > 0
    assert set(copied.state_dict()) == {"weight", "bias"}


@copying
@torch.no_grad()
def test_copied_weights_give_the_layers_outputs_and_are_gone_afterwards() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(LARGE // 512, 512), nn.Linear(512, LARGE // 512, bias=False), nn.Linear(512, 3))
    inputs = torch.randn(2, 3, LARGE // 512)
    wanted = network(inputs)
    with packed_weights(network, 8):
        copied = ["forward" in vars(layer) for layer in network]
        torch.testing.assert_close(network(inputs), wanted)
        network[0].weight.zero_()
        torch.testing.assert_close(network(inputs), wanted)  # it is copies that are read
        with packed_weights(network, 8):
            pass
        assert copied == ["forward" in vars(layer) for layer in network]
    assert copied == [True, True, False]
    assert not any("forward" in vars(layer) for layer in network)
    changed = network(inputs)
    with pytest.raises(KeyError), packed_weights(network, 8):
        torch.testing.assert_close(network(inputs), changed)
        raise KeyError
    assert not any("forward" in vars(layer) for layer in network)


def test_nothing_is_copied_for_few_products_or_in_another_precision() -> None:
    network = nn.Sequential(nn.Linear(512, LARGE // 512))
    with packed_weights(network, 7):
        assert "forward" not in vars(network[0])
    with torch.autocast("cpu", torch.bfloat16), packed_weights(network, 100):
        assert "forward" not in vars(network[0])
    with packed_weights(network.bfloat16(), 100):
        assert "forward" not in vars(network[0])


@copying
def test_copies_end_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Sequential(nn.Linear(512, LARGE // 256), *(nn.Linear(512, LARGE // 512) for _ in range(2)))
    for room, copied in ((2 * LARGE, [True, False, False]), (LARGE, [False, True, False])):
        monkeypatch.setattr(products, "MOST", room)
        with packed_weights(network, 8):
            assert ["forward" in vars(layer) for layer in network] == copied


LENGTHS = """
import os
import torch
from mmgrpo.runtime.products import Linear
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
torch.set_num_threads(1)
layer, before = Linear(64, 256), 0.0
for length in range(64, 364):
    if length == 164:
        before = resident()
    layer(torch.ones(length, 64)).sum().backward()
names = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"
print(resident() - before, *map(os.environ.get, names))
"""


@copying
@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="resident memory is read from /proc")
def test_memory_does_not_grow_with_every_new_length() -> None:
    """200 lengths of two products each took 248 MB more with the capacities of the libraries, and 10 with ours; the
    user's own stand."""
    environ = {name: value for name, value in os.environ.items() if not name.endswith("CACHE_CAPACITY")}
    environ |= {"LRU_CACHE_CAPACITY": "100"}
    command = [sys.executable, "-c", LENGTHS]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240, env=environ)
    grown, *capacities = ended.stdout.split()
    assert float(grown) < 60 and capacities == [str(products.SHAPES), "100"]
