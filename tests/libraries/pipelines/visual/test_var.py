"""Next-scale models: what is drawn scale by scale is what is scored, and what a checkpoint must be."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmgrpo.family import families
from mmgrpo.policies.parallel_tokens import CachingModel, ParallelTokenPolicy
from mmgrpo.types import Prompt, Request
from pipelines.training import Training
from pipelines.visual.options import VarOptions
from pipelines.visual.scales import ScaleTokenizer
from pipelines.visual.var import Var, load, words_of
from pipelines.visual.var_checkpoint import convert, decoder_of, transformer_of
from tests.libraries.families.test_battery import config_of, rescored
from tests.tiny.var import tiny

functional = nn.functional
PROMPTS = [Prompt("a red square", "0"), Prompt("4", "1"), Prompt("a photo of an owl", "2", meta={"class": 4})]
SIDES = (1, 2, 4)


@pytest.fixture(scope="module")
def folder() -> str:
    return str(tiny())


def model(folder: str, guidance: float, **training: Any) -> Var:
    return load(VarOptions(path=folder, guidance=guidance), Training(**training))


@pytest.mark.parametrize("guidance", [1.0, 5.0])
def test_drawn_with_a_cache_and_scored_in_one_pass(folder, guidance):
    made = model(folder, guidance)
    assert isinstance(made, CachingModel)
    policy = ParallelTokenPolicy(made, batch_size=4)
    rollout = policy.rollout(Request(PROMPTS, [0, 1, 2], 3, 3))
    old = rollout.decisions.log_probs
    assert old.shape == (9, 21) and rollout.outputs[0].pixels.shape == (3, 16, 16)  # type: ignore[union-attr]
    torch.testing.assert_close(rescored(policy, rollout), old.flatten(), rtol=0, atol=1e-5)
    assert rollout.evaluations == 9 * 3 * (1 if guidance == 1 else 2)


def test_scored_without_its_guidance_the_ratio_is_not_one(folder):
    guided, plain = (ParallelTokenPolicy(model(folder, scale)) for scale in (5.0, 1.0))
    rollout = guided.rollout(Request(PROMPTS, [0, 1, 2], 3, 3))
    ratio = (rescored(plain, rollout) - rollout.decisions.log_probs.flatten()).exp().view(9, 21)
    torch.testing.assert_close(ratio[:, 0], torch.ones(9), rtol=0, atol=1e-5)  # the first scale has no guidance
    assert (ratio[:, 1:] - 1).abs().mean() > 0.05


def naive(made: Var, label: int, tokens: list[int], guidance: float) -> list[float]:
    """Log-probs of the codes of one image, scale by scale, each from a pass over the places that it sees alone."""
    network: Any = made.network
    images, log_probs, first = made.images, [], 0
    for scale, side in enumerate(SIDES):
        logits = {}
        for name, number in (("class", label), ("none", made.classes.count)):
            condition = network.labels.weight[number]
            states = [condition + network.start[0] + network.scale.weight[0] + network.place[0]]
            features, begin = torch.zeros(1, 8, 4, 4), 0
            for coarse in range(scale):
                some = torch.tensor(tokens[begin : begin + SIDES[coarse] ** 2])
                begin += len(some)
                grid = images.codebook(some).T.reshape(1, 8, SIDES[coarse], SIDES[coarse])
                grid = functional.interpolate(grid, (4, 4), mode="bicubic")
                features = features + 0.5 * grid + 0.5 * images.mixers[(0, 2)[coarse]](grid)
                small = functional.avg_pool2d(features, 4 // SIDES[coarse + 1])[0].flatten(1).T
                for number_of, vector in enumerate(small):
                    placed = network.scale.weight[coarse + 1] + network.place[begin + number_of]
                    states.append(network.enter(vector) + placed)
            hidden = network_of(network, torch.stack(states), condition)[first:]
            factor, shift = network.modulation(functional.silu(condition)).chunk(2)
            logits[name] = network.head(functional.layer_norm(hidden, (32,), eps=1e-6) * (1 + factor) + shift)
        mixed = logits["none"] + (1 + (guidance - 1) * scale / 2) * (logits["class"] - logits["none"])
        for place in range(side * side):
            log_probs.append(float(mixed[place].log_softmax(0)[tokens[first + place]]))
        first += side * side
    return log_probs


def network_of(network: Any, hidden: Tensor, condition: Tensor) -> Tensor:
    """The layers, with a loop over queries and heads."""
    level = [scale for scale, side in enumerate(SIDES) for _ in range(side * side)]
    for block in network.blocks:
        gate, inner_gate, scale, inner_scale, shift, inner_shift = block.modulation(functional.silu(condition)).chunk(6)
        read, attention = functional.layer_norm(hidden, (32,), eps=1e-6) * (1 + scale) + shift, block.attention
        query, key, value = (part(read) for part in (attention.to_q, attention.to_k, attention.to_v))
        rows = []
        for place in range(len(hidden)):
            seen = [other for other in range(len(hidden)) if level[other] <= level[place]]
            heads = []
            for head in range(2):
                part = slice(16 * head, 16 * head + 16)
                asked = query[place, part] / query[place, part].norm() * attention.sharpness[head].exp()
                known = key[seen][:, part] / key[seen][:, part].norm(dim=1, keepdim=True)
                heads.append((known @ asked.flatten()).softmax(0) @ value[seen][:, part])
            rows.append(torch.cat(heads))
        hidden = hidden + attention.to_out(torch.stack(rows)) * gate
        read = functional.layer_norm(hidden, (32,), eps=1e-6) * (1 + inner_scale) + inner_shift
        hidden = hidden + block.fall(functional.gelu(block.rise(read), approximate="tanh")) * inner_gate
    return hidden


@torch.no_grad()
def test_log_probs_are_those_of_a_naive_loop(folder):
    made = model(folder, 3.0)
    rollout = ParallelTokenPolicy(made).rollout(Request(PROMPTS[2:], [0], 1, 3))
    tokens = rollout.steps.tokens[0].tolist()  # type: ignore[attr-defined]
    wanted = torch.tensor(naive(made, 4, tokens, 3.0))
    torch.testing.assert_close(rollout.decisions.log_probs[0], wanted, rtol=0, atol=2e-5)


@torch.no_grad()
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_the_probabilities_of_all_images_of_four_codes_sum_to_one(tmp_path, guidance):
    made = model(str(tiny(tmp_path, scales=(1, 2), codes=4)), guidance)
    every = torch.tensor(list(itertools.product(range(4), repeat=5)))
    rows, order = torch.zeros(len(every)).long(), made.level.expand(len(every), -1)
    logits = made.logits(made.network, {"class": rows}, every, order, rows + 1)
    total = logits.log_softmax(-1).gather(2, every[..., None]).sum((1, 2))
    assert float(total.exp().sum()) == pytest.approx(1, abs=1e-5)
    # With a cache, of each scale: the same.
    cache: dict[str, Any] = {}
    parts = []
    for _ in range(2):
        parts.append(made.next_logits(made.network, {"class": rows}, every, cache))
    torch.testing.assert_close(torch.cat(parts, 1), logits, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_code_is_seen_by_finer_scales_alone(folder):
    made, tokens = model(folder, 2.0), torch.zeros(1, 21).long()
    other = tokens.clone()
    other[0, 2] = 5  # of the second scale
    read = [made.logits(made.network, {"class": torch.tensor([1])}, one, one, one[:, 0]) for one in (tokens, other)]
    moved = (read[0] - read[1]).abs().amax(2)[0]
    assert moved[:5].max() == 0 and moved[5:].min() > 1e-4


def test_scales_share_the_convolutions_of_the_published_tokenizer():
    images: Any = ScaleTokenizer(codes=2, channels=1, widths=(), patch=1)
    assert [images.mixer(scale) for scale in range(10)] == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3]


def test_features_are_the_sum_of_scales_and_small_models_draw_patches():
    images: Any = ScaleTokenizer((1, 2), 3, 13, 0, widths=(), patch=2, enlarging=(2, 4))
    with torch.no_grad():
        for weight in images.decoder.parameters():
            weight.zero_()
        images.codebook.weight.zero_()
        images.codebook.weight[1, :12], images.codebook.weight[2, 12] = -1.0, 7.0
        drawn = images.decode(torch.tensor([[2, 0, 1, 0, 0]]))
    assert images.size == 8 and drawn.shape == (1, 3, 8, 8)
    assert torch.equal(drawn[0, :, :4, 4:], torch.zeros(3, 4, 4)) and int((drawn == 1).sum()) == 3 * 48
    assert images.all_inputs(torch.tensor([[2, 0, 1, 0, 0]]))[0, :, 12].tolist() == [7.0] * 4


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        (Prompt("A red  square"), 0),
        (Prompt("Strix nebulosa"), 4),
        (Prompt("great grey owl, strix nebulosa"), 4),
        (Prompt("6"), 6),
        (Prompt("crane", meta={"class": 5}), 5),
    ],
)
def test_a_prompt_is_a_class(folder, prompt, wanted):
    assert words_of(folder).ids(prompt) == wanted


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (Prompt("crane", "a"), r"'a'.*crane.*5.*6"),
        (Prompt("a red sqare", "a"), r"'a'.*'a red sqare'.*a red square"),
        (Prompt("7", "a"), r"'a'.*'7'.*6"),
        (Prompt("x", "a", meta={"class": -1}), r"'a'.*class: got '-1'"),
        (Prompt("x", "a", meta={"class": True}), r"'a'.*class: got 'True'"),
    ],
)
def test_what_is_no_class_is_refused_by_name(folder, prompt, words):
    with pytest.raises(ValueError, match=words):
        words_of(folder).ids(prompt)


def broken(folder: str, to: Path, file: str, **changes: Any) -> str:
    shutil.copytree(folder, to)
    values = json.loads((to / file).read_text())
    (to / file).write_text(json.dumps({**values, **changes}))
    for weights in to.rglob("*.safetensors"):
        weights.write_bytes(b"never read")
    return str(to)


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("transformer/config.json", {"codes": 25}, r"codes: got 25, expected 24"),
        ("transformer/config.json", {"scales": [1, 2, 3]}, r"scales: got \[1, 2, 3\], expected \[1, 2, 4\]"),
        ("classes.json", {"names": ["one"]}, r"classes\.json: got 1 names, expected 7"),
    ],
)
def test_a_checkpoint_is_refused_before_its_weights_are_read(folder, tmp_path, file, changes, words):
    path = broken(folder, tmp_path / "model", file, **changes)
    with pytest.raises(ValueError, match=words):
        families()["var"].refuse_model(config_of("var", path), path)


def test_sizes_and_missing_tokenizers_are_refused_before_weights_are_read(folder, tmp_path):
    owner = families()["var"]
    with pytest.raises(ValueError, match=r"^model\.size: got 30.*16"):
        owner.refuse_model(config_of("var", folder, size=30), folder)
    shutil.copytree(folder, tmp_path / "model")
    shutil.rmtree(tmp_path / "model" / "images")
    with pytest.raises(ValueError, match=r"images/config\.json"):
        owner.refuse_model(config_of("var", folder), str(tmp_path / "model"))


def test_a_saved_model_is_read_again(folder, tmp_path):
    made = model(folder, 2.0)
    with torch.no_grad():
        next(made.network.parameters()).add_(0.1)
    made.save(tmp_path, made.network)
    again = load(VarOptions(path=str(tmp_path), guidance=2.0))
    request = Request(PROMPTS, [0, 1, 2], 2, 0)
    images = [ParallelTokenPolicy(one).sample(request) for one in (made, again)]
    assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(*images, strict=True))  # type: ignore[union-attr]


def published(scales: tuple[int, ...], width: int = 8, codes: int = 5, channels: int = 4) -> tuple[dict, dict]:
    """Random tensors with the names and shapes of the published files, of one layer and two resolutions."""
    random = torch.Generator().manual_seed(0)

    def linear(name: str, *shape: int) -> dict[str, Tensor]:
        weight = torch.randn(*shape, generator=random)
        return {f"{name}.weight": weight, f"{name}.bias": torch.randn(shape[0], generator=random)}

    places = sum(side * side for side in scales)
    transformer = {
        "pos_start": torch.randn(1, 1, width, generator=random),
        "pos_1LC": torch.randn(1, places, width, generator=random),
        "lvl_1L": torch.zeros(1, places),
        "attn_bias_for_masking": torch.zeros(1, 1, places, places),
        "class_emb.weight": torch.randn(3, width, generator=random),
        "lvl_embed.weight": torch.randn(len(scales), width, generator=random),
        "blocks.0.attn.mat_qkv.weight": torch.randn(3 * width, width, generator=random),
        "blocks.0.attn.q_bias": torch.randn(width, generator=random),
        "blocks.0.attn.v_bias": torch.randn(width, generator=random),
        "blocks.0.attn.zero_k_bias": torch.zeros(width),
        "blocks.0.attn.scale_mul_1H11": torch.randn(1, 2, 1, 1, generator=random),
        **linear("word_embed", width, channels),
        **linear("blocks.0.attn.proj", width, width),
        **linear("blocks.0.ffn.fc1", 12, width),
        **linear("blocks.0.ffn.fc2", width, 12),
        **linear("blocks.0.ada_lin.1", 6 * width, width),
        **linear("head_nm.ada_lin.1", 2 * width, width),
        **linear("head", codes, width),
    }

    def convolution(name: str, rows: int, columns: int, side: int = 3) -> dict[str, Tensor]:
        return linear(name, rows, columns, side, side)

    def layer(name: str, before: int, after: int) -> dict[str, Tensor]:
        norms = {
            f"{name}.norm{number}.{part}": torch.ones(size)
            for number, size in ((1, before), (2, after))
            for part in ("weight", "bias")
        }
        shortcut = convolution(f"{name}.nin_shortcut", after, before, 1) if before != after else {}
        return {
            **norms,
            **convolution(f"{name}.conv1", after, before),
            **convolution(f"{name}.conv2", after, after),
            **shortcut,
        }

    def attention(name: str, size: int) -> dict[str, Tensor]:
        norm = {f"{name}.norm.{part}": torch.ones(size) for part in ("weight", "bias")}
        return {
            **norm,
            **convolution(f"{name}.qkv", 3 * size, size, 1),
            **convolution(f"{name}.proj_out", size, size, 1),
        }

    decoder = {
        "quantize.embedding.weight": torch.randn(codes, channels, generator=random),
        "quantize.ema_vocab_hit_SV": torch.zeros(len(scales), codes),
        **convolution("quantize.quant_resi.qresi_ls.0", channels, channels),
        **convolution("encoder.conv_in", 4, 3),
        **convolution("quant_conv", channels, channels),
        **convolution("post_quant_conv", channels, channels),
        **convolution("decoder.conv_in", 16, channels),
        **layer("decoder.mid.block_1", 16, 16),
        **attention("decoder.mid.attn_1", 16),
        **layer("decoder.mid.block_2", 16, 16),
        **{key: value for number in range(3) for key, value in layer(f"decoder.up.1.block.{number}", 16, 16).items()},
        **{key: value for number in range(3) for key, value in attention(f"decoder.up.1.attn.{number}", 16).items()},
        **convolution("decoder.up.1.upsample.conv", 16, 16),
        **layer("decoder.up.0.block.0", 16, 8),
        **{key: value for number in (1, 2) for key, value in layer(f"decoder.up.0.block.{number}", 8, 8).items()},
        "decoder.norm_out.weight": torch.ones(8),
        "decoder.norm_out.bias": torch.ones(8),
        **convolution("decoder.conv_out", 3, 8),
    }
    return transformer, decoder


def test_published_files_become_a_folder_of_the_family(tmp_path):
    transformer, decoder = published((1, 2))
    torch.save(transformer, tmp_path / "var.pth")
    torch.save(decoder, tmp_path / "vae.pth")
    convert(tmp_path / "var.pth", tmp_path / "vae.pth", tmp_path / "model", (1, 2), ("owl", "crane"))
    made = load(VarOptions(path=str(tmp_path / "model")))
    weights, images = made.network.state_dict(), made.images.state_dict()
    query, key, value = transformer["blocks.0.attn.mat_qkv.weight"].chunk(3)
    for name, wanted in (("to_q", query), ("to_k", key), ("to_v", value)):
        assert torch.equal(weights[f"blocks.0.attention.{name}.weight"], wanted)
    assert torch.equal(weights["blocks.0.modulation.bias"], transformer["blocks.0.ada_lin.1.bias"])
    assert torch.equal(weights["place"], transformer["pos_1LC"][0])
    block = "decoder.1.up_blocks"  # from the coarsest
    assert torch.equal(
        images[f"{block}.0.attentions.2.to_v.weight"], decoder["decoder.up.1.attn.2.qkv.weight"][32:, :, 0, 0]
    )
    assert torch.equal(
        images[f"{block}.1.resnets.0.conv_shortcut.weight"], decoder["decoder.up.0.block.0.nin_shortcut.weight"]
    )
    assert made.classes.names["crane"] == (1,) and made.classes.count == 2
    assert made.images.size == 4


def test_files_of_other_scales_and_architectures_are_refused(tmp_path):
    transformer, decoder = published((1, 2))
    torch.save(transformer, tmp_path / "var.pth")
    torch.save(decoder, tmp_path / "vae.pth")
    with pytest.raises(ValueError, match=r"scales: got \[1, 3\].*10.*5"):
        convert(tmp_path / "var.pth", tmp_path / "vae.pth", tmp_path / "model", (1, 3))
    with pytest.raises(ValueError, match="blocks.0.ada_gss"):
        transformer_of({"blocks.0.ada_gss": torch.zeros(1)})
    with pytest.raises(ValueError, match="decoder.up.0.other"):
        decoder_of({**decoder, "decoder.up.0.other.weight": torch.zeros(1)})
    torch.save({"trainer": Path("x")}, tmp_path / "var.pth")
    with pytest.raises(ValueError, match=r"var\.pth"):
        convert(tmp_path / "var.pth", tmp_path / "vae.pth", tmp_path / "model")
