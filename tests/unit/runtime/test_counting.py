"""What a pass of a network takes, counted without storage, against numbers of two layers."""

from __future__ import annotations

import torch
from torch import nn

from mmgrpo.runtime.counting import ROWS, attention, count, cut_stacks


def test_operations_and_kept_numbers_are_those_of_two_layers():
    """2 x 3 x (4 x 5 + 5 x 2) operations; ReLU keeps its output of 3 x 5, the predicted 3 x 2 are alive too. Gradients
    come to the 5 wide, before and after ReLU, while the prediction is there."""
    with torch.device("meta"):
        network, given = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), torch.empty(ROWS, 3, 4)
    counts = count(network, lambda: network(given))
    assert counts.operations == 2 * 3 * (20 + 10)
    assert counts.kept == 15 + 6


def test_masks_with_values_decide_lengths_and_attention_keeps_no_probabilities():
    """Of 4 tokens 3 are real: 2 x 3 x 2 x 2 operations, and 4 x 4 x 4 x 2 of attention, half of them of causal."""
    mask = torch.tensor([True, True, True, False])
    with torch.device("meta"):
        network, given = nn.Linear(2, 2), torch.empty(4, 2)
        tokens = torch.empty(1, 1, 4, 2, requires_grad=True)
    assert count(network, lambda: network(given[mask])).operations * ROWS == 24
    for causal, operations in ((False, 128), (True, 64)):
        counts = count(network, lambda causal=causal: attention(tokens, tokens, tokens, is_causal=causal))
        assert (counts.operations * ROWS, counts.kept * ROWS < 16) == (operations, True)


def test_blocks_of_a_stack_that_are_left_out_count_like_the_third():
    with torch.device("meta"):
        blocks, given = nn.ModuleList(nn.Linear(4, 4) for _ in range(6)), torch.empty(ROWS, 4)
        network = nn.ModuleDict({"first": nn.Linear(4, 4), "blocks": blocks})

    def run() -> torch.Tensor:
        states = network["first"](given)
        for block in blocks:
            states = block(states.sin())
        return states

    whole = count(network, run)
    assert whole.operations == 7 * 32
    stacks = cut_stacks(network)
    assert len(blocks) == 3 and count(network, run, stacks=stacks) == whole
