"""The networks of ConSE with random weights: their published sizes, and each part's arithmetic written out."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from mmgrpo.types import Image
from reward_models.objects import efficientnet, sentences
from reward_models.objects.efficientnet import Block, Convolution, EfficientNetLite0


@pytest.fixture(scope="module")
def network() -> EfficientNetLite0:
    torch.manual_seed(0)
    return EfficientNetLite0().eval()


def rescaled(x: torch.Tensor) -> torch.Tensor:
    """A fresh batch normalization in evaluation: mean 0, variance 1, and an epsilon of a thousandth."""
    return x / 1.001**0.5


def test_the_classifier_has_the_published_size_and_shrinks_a_picture_32_times(network):
    assert sum(parameter.numel() for parameter in network.parameters()) == 4_652_008
    stages = [
        (block._depthwise_conv.kernel_size[0], block._depthwise_conv.stride[0], block._project_conv.out_channels)
        for block in network._blocks
    ]
    repeated = [(3, 1, 24), (5, 1, 40), *[(3, 1, 80)] * 2, *[(5, 1, 112)] * 2, *[(5, 1, 192)] * 3]
    first = [(3, 1, 16), (3, 2, 24), (5, 2, 40), (3, 2, 80), (5, 1, 112), (5, 2, 192), (3, 1, 320)]
    assert sorted(stages) == sorted(first + repeated) and stages[:3] == [(3, 1, 16), (3, 2, 24), (3, 1, 24)]
    assert [block._expand_conv is None for block in network._blocks] == [True] + [False] * 15
    assert (network._conv_stem.kernel_size, network._conv_stem.stride) == ((3, 3), (2, 2))


@pytest.mark.parametrize(
    ("size", "stride", "expansion", "channels_in", "channels_out"), [(3, 1, 1, 4, 4), (5, 2, 6, 4, 4), (3, 1, 6, 4, 8)]
)
def test_a_block_is_expansion_a_convolution_of_each_channel_and_projection(
    size, stride, expansion, channels_in, channels_out
):
    torch.manual_seed(1)
    block = Block(size, stride, expansion, channels_in, channels_out).eval()
    x = 3 * torch.randn(2, channels_in, 8, 8)
    inner = x if expansion == 1 else functional.relu6(rescaled(block._expand_conv(x)))
    assert inner.shape[1] == channels_in * expansion == block._depthwise_conv.groups
    inner = functional.relu6(rescaled(block._depthwise_conv(inner)))
    wanted = rescaled(block._project_conv(inner)) + (x if (stride, channels_in) == (1, channels_out) else 0)
    torch.testing.assert_close(block(x), wanted)
    assert wanted.shape[2] == 8 // stride


def test_a_convolution_with_a_stride_of_one_keeps_the_size_and_pads_both_sides():
    layer = Convolution(1, 1, 5)
    nn.init.ones_(layer.weight)
    sums = layer(torch.ones(1, 1, 6, 7))[0, 0]
    assert sums.shape == (6, 7) and sums[0, 0] == 9 and sums[2, 2] == sums[3, 4] == 25
    assert Convolution(1, 1, 1, 3)(torch.ones(1, 1, 7, 7)).shape[2:] == (3, 3)  # nothing is cut where none is padded


def test_the_logits_are_those_of_the_mean_over_the_picture(network):
    torch.manual_seed(2)
    short = EfficientNetLite0().eval()
    short._blocks = nn.ModuleList([Convolution(32, 320, 1)])
    x = 3 * torch.randn(2, 3, 8, 8)
    states = short._blocks[0](functional.relu6(rescaled(short._conv_stem(x))))
    pooled = functional.relu6(rescaled(short._conv_head(states))).flatten(2).sum(2) / 16
    torch.testing.assert_close(short(x), short._fc(pooled))


def test_probabilities_come_in_batches_and_in_order(monkeypatch):
    shown = []

    def classifier(weights: str, device: str):
        def logits(pictures):
            shown.append(len(pictures))
            return torch.stack([pictures[:, 0, 0, 0], torch.zeros(len(pictures))], 1)

        return logits

    monkeypatch.setattr(efficientnet, "classifier", classifier)
    shades = [1.0, 0.5, 0.0]
    made = efficientnet.probabilities([Image(torch.full((3, 4, 4), shade)) for shade in shades], "cpu", "", batch=2)
    levels = torch.tensor([(round(255 * shade) - 127) / 128 for shade in shades])
    torch.testing.assert_close(made[:, 0], levels.sigmoid())
    torch.testing.assert_close(made.sum(1), torch.ones(3))
    assert shown == [2, 1]


def test_weights_and_names_are_read_from_their_files(network, tmp_path, monkeypatch):
    asked = []

    def folder(name: str, source: str, reward: str):
        asked.append((name, source, reward))
        return tmp_path

    monkeypatch.setattr(efficientnet, "weights_folder", folder)
    torch.save(network.state_dict(), tmp_path / "efficientnet-lite0-57934424.pth")
    (tmp_path / "imagenet1k_clean_names.json").write_text(json.dumps(["tench", "thé"]), encoding="utf-8")
    read = efficientnet.classifier.__wrapped__("there", "cpu")
    assert all(torch.equal(*pair) for pair in zip(read.parameters(), network.parameters(), strict=True))
    assert not read.training and efficientnet.class_names.__wrapped__("there") == ("tench", "thé")
    assert asked == [("efficientnet-lite0", "there", "conse"), ("imagenet-names", "there", "conse")]


def test_a_sentence_is_the_mean_of_the_states_of_its_tokens(monkeypatch):
    rows = {"long": ([1, 2, 3], [1, 1, 1]), "short": ([4, 5, 9], [1, 1, 0])}
    batches = []

    def encode_batch(texts):
        batches.append(texts)
        return [SimpleNamespace(ids=rows[text][0], attention_mask=rows[text][1]) for text in texts]

    def states(input_ids, attention_mask):
        return SimpleNamespace(last_hidden_state=torch.stack([input_ids, 2.0 * input_ids**2], 2))

    monkeypatch.setattr(sentences, "_encoder", lambda *_: (SimpleNamespace(encode_batch=encode_batch), states))
    made = sentences.sentence_embeddings(["long", "short", "long"], "cpu", "", batch=2)
    long, short = torch.tensor([[6.0, 28.0], [9.0, 82.0]])  # sums of ids and of twice their squares
    wanted = torch.stack([long / long.norm(), short / short.norm(), long / long.norm()])
    torch.testing.assert_close(made, wanted)
    assert batches == [["long", "short"], ["long"]]


def test_the_encoder_of_sentences_is_read_from_its_files_and_reads_256_tokens(tmp_path, monkeypatch):
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    network = BertModel(config)
    config.to_json_file(tmp_path / "config.json")
    weights = {name: value.contiguous() for name, value in network.state_dict().items()}
    save_file(weights | {"embeddings.position_ids": torch.arange(512)[None]}, tmp_path / "model.safetensors")
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr(
        sentences, "weights_folder", lambda *asked: tmp_path if asked[0] == "all-minilm-l6-v2" else None
    )
    read, made = sentences._encoder.__wrapped__("", "cpu")
    assert [len(row.ids) for row in read.encode_batch(["a b", "a " * 300])] == [256, 256]
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in made.state_dict().items())
    assert not made.training
