"""The network of F5-TTS against what is published of it: names, sizes, and that a row is alone in its batch."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from pipelines.speech.f5_checkpoint import find_folder
from pipelines.speech.f5_network import (
    Attention,
    F5Network,
    F5Shape,
    ResponseNorm,
    Rotary,
    TextBlock,
    TextEmbedding,
    TimeEmbedding,
    modulate,
    positions,
    rotate,
)
from tests.flows import seeded

SMALL = F5Shape(12, mels=6, width=32, depth=2, head=8, inner=48, text_width=8, text_layers=2, text_inner=16)


def network(shape: F5Shape = SMALL) -> F5Network:
    """Every weight random, so none hides an error."""
    made = F5Network(shape).eval()
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=seeded(number)) * 0.15)
    return made


def inputs(frames: int, rows: int = 1, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """x, a reference over the first third, characters and times."""
    x, reference = (torch.randn(rows, frames, 6, generator=seeded(seed + n)) for n in range(2))
    reference[:, frames // 3 :] = 0
    text = torch.randint(0, 12, (rows, 5), generator=seeded(seed + 2))
    return x, reference, text, torch.rand(rows, generator=seeded(seed + 3))


def test_the_published_base_model_has_its_names_and_sizes():
    with torch.device("meta"):
        base = F5Network(F5Shape())
    parameters = {name: tuple(value.shape) for name, value in base.state_dict().items()}
    published = {
        "time_embed.time_mlp.0.weight": (1024, 256),
        "time_embed.time_mlp.2.weight": (1024, 1024),
        "text_embed.text_embed.weight": (2546, 512),
        "text_embed.text_blocks.3.dwconv.weight": (512, 1, 7),
        "text_embed.text_blocks.0.norm.weight": (512,),
        "text_embed.text_blocks.0.pwconv1.weight": (1024, 512),
        "text_embed.text_blocks.0.grn.gamma": (1, 1, 1024),
        "text_embed.text_blocks.0.pwconv2.weight": (512, 1024),
        "input_embed.proj.weight": (1024, 712),
        "input_embed.conv_pos_embed.conv1d.0.weight": (1024, 64, 31),
        "input_embed.conv_pos_embed.conv1d.2.bias": (1024,),
        "rotary_embed.inv_freq": (32,),
        "transformer_blocks.21.attn_norm.linear.weight": (6144, 1024),
        "transformer_blocks.0.attn.to_q.weight": (1024, 1024),
        "transformer_blocks.0.attn.to_out.0.weight": (1024, 1024),
        "transformer_blocks.0.ff.ff.0.0.weight": (2048, 1024),
        "transformer_blocks.0.ff.ff.2.weight": (1024, 2048),
        "norm_out.linear.weight": (2048, 1024),
        "proj_out.weight": (100, 1024),
    }
    assert {name: parameters.get(name) for name in published} == published
    assert not any("proj_out_ln_sig" in name for name in parameters)
    assert len(base.text_embed.text_blocks) == 4 and len(base.transformer_blocks) == 22
    assert (base.shape.rotates_all, base.shape.masks_text, base.shape.spread) == (True, True, False)
    count = sum(value.numel() for value in base.parameters())
    assert count / 1e6 == pytest.approx(335.8, abs=2)  # the paper's figure, which leaves the vocabulary open


@pytest.mark.parametrize("release", [True, False], ids=["v1", "v0"])
@pytest.mark.parametrize("wordless", [False, True])
def test_a_row_in_a_batch_is_the_row_alone(release, wordless):
    net = network(replace(SMALL, rotates_all=release, masks_text=release, spread=True))
    x, reference, text, time = inputs(24, rows=2)
    reference[1, 15:], text[1, 3:] = 0, -1
    frames = torch.tensor([24, 15])
    together = net(x, reference, text, time, frames, wordless)
    alone = net(x[1:, :15], reference[1:, :15], text[1:, :3], time[1:], frames[1:], wordless)
    torch.testing.assert_close(together[1:, :15], alone, rtol=0, atol=1e-5)
    assert not together[1, 15:].any() and together.shape == (2, 24, 12)


def test_everything_that_is_given_changes_the_prediction_and_nothing_else_behind_the_frames():
    net, frames = network(), torch.tensor([20])
    given = inputs(20)
    base = net(*given, frames)
    for place, other in enumerate(inputs(20, seed=9)):
        changed = [*given[:place], other, *given[place + 1 :]]
        assert (net(*changed, frames) - base).abs().max() > 1e-3, place
    wordless = net(*given, frames, True)
    unworded = net(given[0], torch.zeros_like(given[1]), torch.flip(given[2], [1]), given[3], frames, True)
    assert torch.equal(wordless, unworded)  # neither the words nor the reference
    assert (wordless - base).abs().max() > 1e-3


def test_the_releases_differ_in_rotation_and_in_the_padding_of_the_text():
    given, frames = inputs(20), torch.tensor([20])
    variants = [replace(SMALL, rotates_all=all_, masks_text=masks) for all_ in (True, False) for masks in (True, False)]
    outputs = [network(shape)(*given, frames) for shape in variants]
    for first in range(4):
        for second in range(first):
            assert (outputs[first] - outputs[second]).abs().max() > 1e-3


def test_rotary_products_depend_on_the_distance_alone_and_v0_rotates_one_head():
    turns = Rotary(8)(12)
    query, key = torch.randn(2, 8, generator=seeded(0))
    turned = [rotate(one.expand(1, 1, 12, 8), turns)[0, 0] for one in (query, key)]
    products = turned[0] @ turned[1].T
    for distance in range(1, 12):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)
    assert (products[0, 1:] - products[0, 0]).abs().min() > 1e-3
    pair = rotate(torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0]).expand(1, 1, 2, 8), turns[:2])[0, 0, 1]
    assert pair.tolist()[:2] == pytest.approx([math.cos(1), math.sin(1)])
    x, real = torch.randn(1, 12, 16, generator=seeded(1)), torch.ones(1, 12, dtype=torch.bool)
    first = Attention(16, 8, rotates_all=False)
    with torch.no_grad():
        first.to_out[0].weight.copy_(torch.eye(16))
    flipped = first(x.flip(1), turns, real).flip(1)
    straight = first(x, turns, real)
    assert (straight - flipped)[..., :8].abs().max() > 1e-3  # the first head knows the direction
    torch.testing.assert_close(straight[..., 8:], flipped[..., 8:], rtol=0, atol=1e-5)


def test_the_response_norm_is_a_channels_norm_over_the_mean_of_all():
    """Channels with norms 3 and 1 over the two real frames: x 1.5 and x 0.5, plus x itself."""
    norm = ResponseNorm(2)
    torch.nn.init.ones_(norm.gamma)
    x = torch.tensor([[[3.0, 0.0], [0.0, 1.0], [7.0, 7.0]]])
    out = norm(x, torch.tensor([[True, True, False]]))
    torch.testing.assert_close(out[0, :2], torch.tensor([[7.5, 0.0], [0.0, 1.5]]), rtol=1e-5, atol=0)


def test_times_are_sines_and_cosines_of_a_thousand_t():
    embedding = TimeEmbedding(8)
    seen = []
    embedding.time_mlp = torch.nn.Identity()
    seen = embedding(torch.tensor([0.25]))[0]
    assert seen[0].item() == pytest.approx(math.sin(250), abs=1e-4)
    assert seen[128].item() == pytest.approx(math.cos(250), abs=1e-4)
    assert seen[127].item() == pytest.approx(math.sin(0.025), abs=1e-6)  # the lowest frequency is 1 / 10,000
    assert seen[255].item() == pytest.approx(math.cos(0.025), abs=1e-6)


def test_text_that_is_longer_than_the_frames_is_cut_to_them():
    embedding = TextEmbedding(SMALL).eval()
    real = torch.ones(1, 3, dtype=torch.bool)
    text = torch.tensor([[1, 2, 3, 4, 5]])
    assert torch.equal(embedding(text, real, False), embedding(text[:, :3], real, False))


def test_recomputed_activations_have_the_same_gradient():
    gradients, passes = [], []
    for recomputes in (False, True):
        net = network()
        if recomputes:
            net.enable_gradient_checkpointing()
        net.transformer_blocks[0].register_forward_pre_hook(lambda *_: passes.append(0))
        output = net(*inputs(10), torch.tensor([10]))
        output.square().sum().backward()
        gradients.append(net.transformer_blocks[0].attn.to_q.weight.grad)  # type: ignore[union-attr]
        assert len(passes) == 1 + 2 * recomputes
    torch.testing.assert_close(gradients[0], gradients[1])


# Formulas


def linear(state: dict[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
    return state[f"{name}.weight"] @ x + state[f"{name}.bias"]


def normalized(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean()) / (x.var(correction=0) + 1e-6).sqrt()


def gelu(x: torch.Tensor) -> torch.Tensor:
    return x * (1 + torch.erf(x / 2**0.5)) / 2


def silu(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + (-x).exp())


def middle(state: dict[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
    """A convolution in groups of a single frame, of which only the middle tap reads something."""
    taps = state[f"{name}.weight"]
    taps = taps[:, :, taps.shape[-1] // 2]
    parts = x.view(-1, taps.shape[1]).repeat_interleave(len(taps) // (len(x) // taps.shape[1]), 0)
    return (taps * parts).sum(1) + state[f"{name}.bias"]


def test_a_single_frame_is_what_the_formulas_say():
    """Attention of one frame is its value, and a convolution its middle tap."""
    net = network()
    state = {name: value.double() for name, value in net.state_dict().items()}
    x, reference, _, _ = (one[0].double() for one in inputs(1))
    x, reference = x[0], torch.linspace(-1, 1, 6).double()
    angles = 1000 * 0.25 * 10_000 ** (-torch.arange(128).double() / 127)
    time = linear(state, "time_embed.time_mlp.0", torch.cat([angles.sin(), angles.cos()]))
    time = silu(linear(state, "time_embed.time_mlp.2", silu(time)))  # silu of the modulations
    words = state["text_embed.text_embed.weight"][1 + 7] + torch.tensor([1.0] * 4 + [0.0] * 4)  # cos 0 and sin 0
    for name in ("text_embed.text_blocks.0", "text_embed.text_blocks.1"):
        y = normalized(middle(state, f"{name}.dwconv", words)) * state[f"{name}.norm.weight"]
        y = gelu(linear(state, f"{name}.pwconv1", y + state[f"{name}.norm.bias"]))
        response = y * y.abs() / (y.abs().mean() + 1e-6)
        y = state[f"{name}.grn.gamma"][0, 0] * response + state[f"{name}.grn.beta"][0, 0] + y
        words = words + linear(state, f"{name}.pwconv2", y)
    h = linear(state, "input_embed.proj", torch.cat([x, reference, words]))
    y = h
    for number in (0, 2):
        y = middle(state, f"input_embed.conv_pos_embed.conv1d.{number}", y)
        y = y * (1 + y.exp()).log().tanh()  # mish
    h = h + y
    for name in ("transformer_blocks.0", "transformer_blocks.1"):
        shift, scale, gate, shift_2, scale_2, gate_2 = linear(state, f"{name}.attn_norm.linear", time).chunk(6)
        values = linear(state, f"{name}.attn.to_v", normalized(h) * (1 + scale) + shift)
        h = h + gate * linear(state, f"{name}.attn.to_out.0", values)
        y = linear(state, f"{name}.ff.ff.0.0", normalized(h) * (1 + scale_2) + shift_2)
        y = y / 2 * (1 + (math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)).tanh())
        h = h + gate_2 * linear(state, f"{name}.ff.ff.2", y)
    scale, shift = linear(state, "norm_out.linear", time).chunk(2)
    wanted = linear(state, "proj_out", normalized(h) * (1 + scale) + shift)
    given = (x.float()[None, None], reference.float()[None, None], torch.tensor([[7]]), torch.tensor([0.25]))
    torch.testing.assert_close(net(*given, torch.tensor([1]))[0, 0].double(), wanted, rtol=1e-4, atol=1e-5)


def test_positions_are_cosines_then_sines_and_rotary_frequencies_come_in_pairs():
    wanted = [[1, 1, 0, 0], *([math.cos(n), math.cos(n / 100), math.sin(n), math.sin(n / 100)] for n in (1, 2))]
    torch.testing.assert_close(positions(3, 4), torch.tensor(wanted))
    torch.testing.assert_close(Rotary(8)(3)[2], torch.tensor([2, 2, 0.2, 0.2, 0.02, 0.02, 0.002, 0.002]))


def test_text_without_blocks_has_no_positions_and_the_filler_is_zero_where_it_is_masked():
    text, real = torch.tensor([[4, 5, -1, -1]]), torch.ones(1, 6, dtype=torch.bool)
    plain = TextEmbedding(replace(SMALL, text_layers=0))
    rows = plain.text_embed.weight
    assert torch.equal(plain(text, real, False)[0], rows[[5, 6, 0, 0, 0, 0]])
    assert torch.equal(plain(text, real, True)[0], rows[[0] * 6])
    behind = [network(replace(SMALL, masks_text=masks)).text_embed(text, real, False)[0, 2:] for masks in (True, False)]
    assert not behind[0].any() and behind[1].all()


def test_norms_take_small_values_as_noise():
    """A variance of 1e-6 is halved by the 1e-6 that is added to it."""
    small, none = torch.tensor([[[1e-3, -1e-3]]]), torch.zeros(1, 2)
    torch.testing.assert_close(modulate(small, none, none), torch.tensor([[[0.5**0.5, -(0.5**0.5)]]]))
    assert TextBlock(2, 2).norm.eps == 1e-6
    response = ResponseNorm(1)
    torch.nn.init.ones_(response.gamma)
    tiny = response(torch.full((1, 1, 1), 1e-6), torch.ones(1, 1, dtype=torch.bool))
    assert tiny.item() == pytest.approx(1.5e-6)


@pytest.mark.parametrize("folder", ["", "F5TTS_v1_Base"])
def test_of_a_repository_only_the_weights_and_the_vocabulary_are_downloaded(folder, tmp_path, monkeypatch):
    import huggingface_hub

    asked, chosen = [], tmp_path / folder
    chosen.mkdir(exist_ok=True)
    (chosen / "model.safetensors").write_bytes(b"")
    (chosen / "vocab.txt").write_text("a")

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, [pattern.removeprefix(f"{folder}/" if folder else "") for pattern in allow_patterns]))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert find_folder("SWivid/F5-TTS", folder) == chosen
    assert asked == [("SWivid/F5-TTS", ["*.safetensors", "vocab.txt"])]
