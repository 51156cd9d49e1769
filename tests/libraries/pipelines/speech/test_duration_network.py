"""The network of durations: its numbers, its formulas, and how it is pretrained."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from pipelines.speech import duration
from pipelines.speech.duration import ALPHABET, Shape, encode, positions

SMALL = Shape(classes=6, frames_a_class=40, width=8, layers=1, heads=2, inner=12)


class Still(torch.optim.SGD):
    """An optimizer that remembers its rates and the gradients, and moves nothing."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.rates, self.norms = [], []

    def step(self, closure: Any = None) -> None:
        [group] = self.param_groups
        self.rates.append(group["lr"])
        self.norms.append(float(torch.stack([p.grad.norm() for p in group["params"]]).norm()))


@pytest.fixture
def still(monkeypatch) -> list[Still]:
    """The optimizers that pretraining makes."""
    made: list[Still] = []
    monkeypatch.setattr(torch.optim, "AdamW", lambda *args, **given: made.append(Still(*args, **given)) or made[-1])
    return made


def test_saved_networks_rely_on_the_numbers_of_characters():
    assert encode(["a é", ""], ALPHABET).tolist() == [[4, 3, 2, 1], [1, 0, 0, 0]]
    assert duration.create(SMALL, 0).characters.padding_idx == 0


def test_positions_are_sines_and_cosines_in_turn():
    wanted = [[0, 1, 0, 1], *([math.sin(n), math.cos(n), math.sin(n / 100), math.cos(n / 100)] for n in (1, 2))]
    torch.testing.assert_close(positions(3, 4), torch.tensor(wanted))


def test_the_query_alone_is_what_the_formulas_say():
    """A layer of arXiv:2002.04745 (norms first) with GELU; attention of one token is its value."""
    network = duration.create(SMALL, 0)  # in training mode: nothing is dropped out
    state = {name.removeprefix("encoder.layers.0."): value for name, value in network.state_dict().items()}

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return state[f"{name}.weight"] @ x + state[f"{name}.bias"]

    def normalized(x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()

    x = state["characters.weight"][duration.QUERY] + torch.tensor([0.0, 1.0] * 4)
    values = (state["self_attn.in_proj_weight"] @ normalized(x) + state["self_attn.in_proj_bias"])[16:]
    x = x + linear("self_attn.out_proj", values)
    y = linear("linear1", normalized(x))
    x = x + linear("linear2", y * (1 + torch.erf(y / 2**0.5)) / 2)
    wanted = linear("head", normalized(x))
    torch.testing.assert_close(network(encode([""], ALPHABET))[0], wanted)


def test_a_new_network_is_a_function_of_shape_and_seed_and_draws_nothing_from_elsewhere():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, same, other = (duration.create(SMALL, seed).head.weight for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "value", "kind"), [("classes", 24.0, "int"), ("classes", True, "int"), ("alphabet", 3, "str")]
)
def test_a_size_of_another_type_is_refused(name, value, kind, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"family": "duration", name: value}))
    with pytest.raises(ValueError, match=f"config.json.*{name}.*'{value}'"):
        duration.read_shape(path)


def test_a_width_is_a_multiple_of_twice_the_heads_and_there_is_a_head():
    with pytest.raises(ValueError, match="2 classes"):
        Shape(heads=0)
    assert Shape(width=12, heads=6).width == 12


def test_the_rate_warms_up_over_a_tenth_and_decays_over_the_second_half(still):
    duration.pretrain(duration.create(SMALL, 0), ["a"], pace=10, steps=20, batch=2, lr=0.1)
    wanted = [0.5, *[1.0] * 10, *(rest / 10 for rest in range(9, 0, -1))]
    assert still[0].rates == pytest.approx([0.1 * factor for factor in wanted])


@pytest.mark.parametrize("wrong", [{"pace": 0}, {"spread": -0.1}, {"texts": []}])
def test_pretraining_needs_a_pace_a_spread_and_texts(wrong):
    given = {"pace": 10, "spread": 0.0, "texts": ["a"], "steps": 0, **wrong}
    with pytest.raises(ValueError, match="pace.*0"):
        duration.pretrain(duration.create(SMALL, 0), **given)
    assert math.isnan(duration.pretrain(duration.create(SMALL, 0), ["a"], pace=10, spread=0, steps=0))


def test_targets_are_the_classes_of_the_durations_at_the_pace(still, monkeypatch):
    """4 characters at 8 a second are 0.5 s or 46.9 frames, class 1 of 40; a factor of e^(1/4 z) is that of z."""
    seen: list[float] = []
    monkeypatch.setattr(duration, "piece", lambda texts, random: texts[0])
    original = Shape.choice
    monkeypatch.setattr(Shape, "choice", lambda self, seconds: seen.append(seconds) or original(self, seconds))
    duration.pretrain(duration.create(SMALL, 0), ["abcd"], pace=8, spread=0, steps=1, batch=2)
    assert seen == [0.5, 0.5]
    seen.clear()
    duration.pretrain(duration.create(SMALL, 0), ["abcd"], pace=8, spread=0.25, steps=1, batch=4000)
    logs = torch.tensor(seen).div(0.5).log()
    assert logs.mean().abs() < 0.02 and logs.std().item() == pytest.approx(0.25, abs=0.02)


def test_pieces_are_beginnings_of_two_texts_of_all_lengths():
    random = torch.Generator().manual_seed(0)
    pieces = {duration.piece(["a b", "c"], random) for _ in range(300)}
    assert pieces == {"a", "a b", "a b a", "a b a b", "a b c", "c", "c a", "c a b", "c c"}
