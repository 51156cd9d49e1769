"""Products of linear layers as a CPU does them fast are those of the layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mmgrpo.runtime import products
from mmgrpo.runtime.products import LARGE, aligned, packed

copying = pytest.mark.skipif(not products._available(), reason="torch is built without oneDNN, or with an old one")


@pytest.mark.parametrize("bias", [False, True])
def test_outputs_in_rows_of_an_even_length_and_their_gradients_are_those_of_the_layer(bias: bool) -> None:
    torch.manual_seed(0)
    layer, inputs = nn.Linear(8, 3 * 64 + 13, bias=bias), torch.randn(70, 8, requires_grad=True)
    made, wanted = aligned(layer, inputs), layer(inputs)
    assert made.stride() == (4 * 64, 1)
    torch.testing.assert_close(made, wanted)
    slopes, leaves = torch.randn_like(wanted), (inputs, *layer.parameters())
    found = [torch.autograd.grad(outputs, leaves, slopes) for outputs in (made, wanted)]
    torch.testing.assert_close(*found)


def test_a_layer_that_is_not_a_plain_one_or_would_not_gain_is_called_as_it_is() -> None:
    inputs = torch.randn(70, 8)
    plain, even, hooked, replaced, frozen = nn.Linear(8, 77), nn.Linear(8, 128), *(nn.Linear(8, 77) for _ in range(3))
    hooked.register_forward_hook(lambda *_: torch.ones(1))
    replaced.forward = lambda _: torch.ones(2)
    assert aligned(plain, inputs).stride() == (128, 1)
    for layer, rows, shape in (
        (plain, inputs[:64], (64, 77)),
        (nn.Linear(8, 77), inputs[:, None], (70, 1, 77)),
        (even, inputs, (70, 128)),
        (nn.Sequential(plain), inputs, (70, 77)),
        (hooked, inputs, (1,)),
        (replaced, inputs, (2,)),
        (frozen.bfloat16(), inputs.bfloat16(), (70, 77)),
    ):
        made = aligned(layer, rows)
        assert made.shape == shape and made.is_contiguous()
    with torch.autocast("cpu", torch.bfloat16):
        assert aligned(plain, inputs).dtype == torch.bfloat16


@copying
@torch.no_grad()
def test_copied_weights_give_the_layers_outputs_and_are_gone_afterwards() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(LARGE // 512, 512), nn.Linear(512, LARGE // 512, bias=False), nn.Linear(512, 3))
    inputs = torch.randn(2, 3, LARGE // 512)
    wanted = network(inputs)
    with packed(network, 8):
        copied = ["forward" in vars(layer) for layer in network]
        torch.testing.assert_close(network(inputs), wanted)
        network[0].weight.zero_()
        torch.testing.assert_close(network(inputs), wanted)  # it is copies that are read
        with packed(network, 8):
            pass
        assert copied == ["forward" in vars(layer) for layer in network]
    assert copied == [True, True, False]
    assert not any("forward" in vars(layer) for layer in network)
    changed = network(inputs)
    with pytest.raises(KeyError), packed(network, 8):
        torch.testing.assert_close(network(inputs), changed)
        raise KeyError
    assert not any("forward" in vars(layer) for layer in network)


def test_nothing_is_copied_for_few_products_or_in_another_precision() -> None:
    network = nn.Sequential(nn.Linear(512, LARGE // 512))
    with packed(network, 7):
        assert "forward" not in vars(network[0])
    with torch.autocast("cpu", torch.bfloat16), packed(network, 100):
        assert "forward" not in vars(network[0])
    with packed(network.bfloat16(), 100):
        assert "forward" not in vars(network[0])


@copying
def test_copies_end_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Sequential(nn.Linear(512, LARGE // 256), *(nn.Linear(512, LARGE // 512) for _ in range(2)))
    for room, copied in ((2 * LARGE, [True, False, False]), (LARGE, [False, True, False])):
        monkeypatch.setattr(products, "MOST", room)
        with packed(network, 8):
            assert ["forward" in vars(layer) for layer in network] == copied
