"""Rewards by a head on image embeddings, and by texts of their own: aesthetic, artifact, CLIP-IQA."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mmgrpo.types import Image
from reward_models.clip.aesthetic import aesthetic, published_head
from reward_models.clip.artifact import artifact, magic_bench
from reward_models.clip.clip_iqa import PAIRS, clip_iqa
from reward_models.clip.embeddings import embed
from reward_models.clip.head import Head, HeadFacts, load_head, save_head
from tests.libraries.reward_models.clip.test_cosines import reference_pixels
from tests.libraries.reward_models.clip.tiny import PROMPTS, clip_folder, clip_model, features, pictures

WIDTH = 32


@pytest.fixture
def folder(tmp_path):
    clip_folder(tmp_path)
    return str(tmp_path)


def image_features():
    return features(clip_model(), reference_pixels(pictures()), ["x"])[0]


def linear(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def version_two(numbers, widths=(WIDTH, 16, 8, 6, 4, 1)):
    """The state dict of the published MLP."""
    tensors = {}
    for seed, (number, before, after) in enumerate(zip(numbers, widths[:-1], widths[1:])):
        tensors[f"layers.{number}.weight"] = linear(seed, after, before)
        tensors[f"layers.{number}.bias"] = linear(100 + seed, after)
    return tensors


def test_version_one_of_the_aesthetic_predictor_is_linear(tmp_path, folder):
    weight, bias = linear(0, 1, WIDTH), linear(1, 1)
    torch.save({"weight": weight, "bias": bias}, tmp_path / "sa_0_4_vit_l_14_linear.pth")
    given = {"head": str(tmp_path / "sa_0_4_vit_l_14_linear.pth"), "weights": folder}
    values = torch.tensor(aesthetic(PROMPTS, pictures()[:3], **given, allow_pickle=True))
    # Of these pictures the crop is the same however its corner is rounded.
    assert torch.allclose(values, image_features()[:3] @ weight[0] + bias, atol=1e-5)
    with pytest.raises(ValueError, match=r"aesthetic\(allow_pickle=True\)"):
        aesthetic(PROMPTS, pictures(), **given)
    with pytest.raises(ValueError, match="a pickle"):
        published_head(given["head"])


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_version_two_of_the_aesthetic_predictor_is_one_affine_map(tmp_path, folder, suffix):
    tensors = version_two((0, 2, 4, 6, 7))
    file = tmp_path / f"sac+logos+ava1-l14-linearMSE.{suffix}"
    save_file(tensors, file) if suffix == "safetensors" else torch.save(tensors, file)
    layers = [nn.Linear(*tensors[f"layers.{n}.weight"].T.shape) for n in (0, 2, 4, 6, 7)]
    model = nn.Module()
    model.layers = nn.ModuleDict({str(n): layer for n, layer in zip((0, 2, 4, 6, 7), layers)})
    model.load_state_dict(tensors)
    expected = nn.Sequential(*layers)(image_features()[:3])[:, 0]
    values = torch.tensor(aesthetic(PROMPTS, pictures()[:3], str(file), folder, allow_pickle=True))
    assert torch.allclose(values, expected, rtol=1e-5, atol=1e-4)
    zero, basis = published_head(str(file), True)(torch.zeros(1, WIDTH)), torch.eye(WIDTH)
    affine = image_features() @ (published_head(str(file), True)(basis) - zero) + zero
    assert torch.allclose(affine, published_head(str(file), True)(image_features()), rtol=1e-4, atol=1e-3)


def test_the_sister_of_version_two_has_activations(tmp_path):
    tensors = version_two((0, 3, 6, 9, 11))
    torch.save(tensors, tmp_path / "ava+logos-l14-reluMSE.pth")
    head = published_head(str(tmp_path / "ava+logos-l14-reluMSE.pth"), True)
    x = image_features()
    for number in (0, 3, 6, 9, 11):
        x = (x.relu() if number else x) @ tensors[f"layers.{number}.weight"].T + tensors[f"layers.{number}.bias"]
    assert torch.allclose(head(image_features()), x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("layers.4.weight"), "layers.2.weight|matrices|fit"),
        (lambda tensors: tensors.update({"layers.9.weight": torch.ones(1, 1)}), r"\[0, 2, 4, 6, 7, 9\]"),
        (
            lambda tensors: tensors.update({"layers.2.weight": torch.ones(8, 15)}),
            r"layers.1.weight.*\[8, 15\]",
        ),
        (lambda tensors: tensors.update(more=torch.ones(1)), "unexpected: more"),
    ],
)
def test_what_is_wrong_with_a_head_is_named(tmp_path, change, message):
    tensors = version_two((0, 2, 4, 6, 7))
    change(tensors)
    save_file(tensors, tmp_path / "head.safetensors")
    with pytest.raises(ValueError, match="aesthetic.*head.safetensors"):
        published_head(str(tmp_path / "head.safetensors"))


def test_a_head_is_saved_with_what_it_reads(tmp_path):
    facts = HeadFacts("some/clip", ("hands", "faces"), "gelu", normalised=False, loss="binary")
    head = Head((WIDTH, 8, 2), facts)
    save_head(head, tmp_path / "head.safetensors")
    loaded = load_head(tmp_path / "head.safetensors")
    assert loaded.facts == facts and not loaded.training
    x = linear(3, 5, WIDTH)
    assert torch.equal(loaded(x), head(x))
    by_hand = nn.functional.gelu(x @ head.layers[0].weight.T + head.layers[0].bias)
    assert torch.allclose(loaded(x), by_hand @ head.layers[1].weight.T + head.layers[1].bias, atol=1e-6)


def test_a_normalised_head_ignores_the_length_of_an_embedding():
    head = Head((WIDTH, 1), HeadFacts("some/clip"))
    assert torch.allclose(head(linear(0, 4, WIDTH)), head(7 * linear(0, 4, WIDTH)), atol=1e-6)


def test_files_that_are_no_heads_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="r.*head.*gone.safetensors"):
        load_head(tmp_path / "gone.safetensors", "r")
    save_file({"layers.0.weight": torch.ones(1, 2), "layers.0.bias": torch.ones(1)}, tmp_path / "bare.safetensors")
    with pytest.raises(ValueError, match="bare.safetensors.*'head'"):
        load_head(tmp_path / "bare.safetensors")
    save_head(Head((2, 1), HeadFacts("f")), tmp_path / "whole.safetensors")
    content = (tmp_path / "whole.safetensors").read_bytes()
    (tmp_path / "half.safetensors").write_bytes(content[: len(content) - 4])
    with pytest.raises(ValueError, match="half.safetensors.*(damaged|download)"):
        load_head(tmp_path / "half.safetensors")
    for wrong, message in (
        ({"activation": "tanh"}, "activation.*'tanh'"),
        ({"loss": "hinge"}, "loss.*hinge"),
        ({"outputs": ()}, "outputs"),
    ):
        with pytest.raises(ValueError, match=message):
            HeadFacts("f", **wrong)
    with pytest.raises(ValueError, match=".2.*3.*1"):
        Head((2, 3), HeadFacts("f"))


@pytest.fixture
def artifacts(tmp_path, folder):
    """A head of two kinds of artifacts: (its file, the logits of the pictures)."""
    head = Head((WIDTH, 2), HeadFacts(folder, ("artifact", "hands"), loss="binary"))
    with torch.no_grad():
        head.layers[0].weight.copy_(3 * linear(0, 2, WIDTH))
    save_head(head, tmp_path / "artifacts.safetensors")
    return str(tmp_path / "artifacts.safetensors"), head(embed(pictures(), folder)).detach()


def test_the_artifact_reward_is_the_share_of_no(artifacts):
    file, logits = artifacts
    for column, output in ((0, ""), (0, "artifact"), (1, "hands")):
        # exp(z_no) / (exp(z_no) + exp(z_yes)), with logit = z_yes - z_no and z_no = 0.
        expected = 1 / (1 + logits[:, column].exp())
        assert artifact(PROMPTS, pictures(), file, output) == pytest.approx(expected.tolist(), abs=1e-5)
    images = [*pictures()[:1], Image(torch.full((3, 4, 4), float("nan")))]
    assert math.isnan(artifact(PROMPTS[:2], images, file)[1])


def test_labels_by_a_threshold_and_the_score_of_magic_bench(artifacts):
    file, logits = artifacts
    present = torch.sigmoid(logits[:, 0])
    threshold = float(present.median()) + 1e-4
    values = artifact(PROMPTS, pictures(), file, threshold=threshold)
    assert values == (present < threshold).float().tolist() and sum(values) == 3
    assert magic_bench(values) == pytest.approx(100 * (1 - 2 / 5))
    assert magic_bench([1, 1, 0, math.nan]) == 50 and magic_bench([1.0]) == 100
    with pytest.raises(ValueError, match="magic_bench"):
        magic_bench([])


def test_a_probability_that_reaches_the_threshold_is_an_artifact(tmp_path, folder):
    """A head of zeros finds an artifact with probability 1/2 everywhere; its tower may be replaced."""
    head = Head((WIDTH, 1), HeadFacts("nobody/nothing", ("artifact",), loss="binary"))
    for weight in head.parameters():
        nn.init.zeros_(weight)
    save_head(head, tmp_path / "half.safetensors")
    for threshold, value in ((0.0, 0.5), (0.5, 0.0), (0.75, 1.0)):
        values = artifact(PROMPTS, pictures(), str(tmp_path / "half.safetensors"), "", threshold, folder)
        assert values == [value] * 5


def test_artifacts_of_another_kind_are_refused(tmp_path, artifacts):
    with pytest.raises(ValueError, match="artifact.*output.*'feet'"):
        artifact(PROMPTS, pictures(), artifacts[0], "feet")
    for threshold in (1, -0.1, math.nan):
        with pytest.raises(ValueError, match=f"artifact.*threshold.*{threshold}"):
            artifact(PROMPTS, pictures(), artifacts[0], threshold=threshold)
    save_head(Head((WIDTH, 1), HeadFacts("f")), tmp_path / "score.safetensors")
    with pytest.raises(ValueError, match="binary"):
        artifact(PROMPTS, pictures(), str(tmp_path / "score.safetensors"))


def test_clip_iqa_is_a_softmax_of_two_texts_and_a_mean_of_pairs(folder):
    images, model = pictures(), clip_model()

    def probability(pair):
        seen, texts = features(model, reference_pixels(images), [text.rstrip(".") for text in pair])
        cosine = seen @ texts.T
        return 1 / (1 + (100 * (cosine[:, 1] - cosine[:, 0])).exp())

    # The tiny tokenizer has no full stop: its end-of-text token stands for it, at which a text ends.
    pairs = [["bright", "dark"], ["real", "drawn"]]
    first, second = (probability(pair) for pair in pairs)
    assert clip_iqa(PROMPTS, images, pairs[:1], folder) == pytest.approx(first.tolist(), abs=2e-4)
    assert clip_iqa(PROMPTS, images, pairs, folder) == pytest.approx(((first + second) / 2).tolist(), abs=2e-4)


def test_pairs_have_names(folder):
    named = clip_iqa(PROMPTS, pictures(), "quality+sharpness", folder)
    written = clip_iqa(PROMPTS, pictures(), [PAIRS["quality"], PAIRS["sharpness"]], folder)
    assert named == written != clip_iqa(PROMPTS, pictures(), "quality", folder)
    odd = [["a"], ["a", "b", "c"], "ab", ["a", 3], [3, "a"]]
    wrongs: Any = [([["x", "y"], pair], f"got {re.escape(repr(pair))}, expected .positive text") for pair in odd]
    wrongs += [("ugly", "got 'ugly', expected some of quality"), ("quality+ugly", "got 'ugly'"), ([], "got none")]
    for wrong, message in wrongs:
        with pytest.raises(ValueError, match=f"clip_iqa.*pairs.*{message}"):
            clip_iqa(PROMPTS, pictures(), wrong, folder)


def test_a_head_that_was_saved_here_is_read_as_it_was(tmp_path):
    torch.manual_seed(0)
    head = Head((4, 3, 1), HeadFacts("f", activation="relu"))
    save_head(head, tmp_path / "head.safetensors")
    read = published_head(str(tmp_path / "head.safetensors"), False)
    assert read.facts == head.facts
    assert all(torch.equal(*pair) for pair in zip(read.parameters(), head.parameters(), strict=True))
