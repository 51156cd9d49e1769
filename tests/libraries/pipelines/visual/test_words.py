"""Models without VAE, and their words."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.types import Prompt
from pipelines.visual import sd3
from pipelines.visual.words import NULL, PAD, WordEncoder
from tests.building import load
from tests.libraries.pipelines.visual.drawing import draw, noise, ours


def test_a_model_without_vae_draws_pixels(words_folder):
    model = load(sd3, words_folder, height=16, width=24, guidance=2.0)
    assert model.latent_shape() == (3, 16, 24)
    x = torch.zeros(2, 3, 16, 24)
    x[0], x[1] = -1.0, 0.5
    dark, light = model.decode(x)
    assert dark.pixels.unique().tolist() == [0.0]  # (-1 + 1) / 2
    assert light.pixels.unique().tolist() == [0.75]  # (0.5 + 1) / 2
    beyond = model.decode(torch.stack([torch.full((3, 16, 24), value) for value in (-3.0, 3.0)]))
    assert [one.pixels.unique().tolist() for one in beyond] == [[0.0], [1.0]]
    prompts = [Prompt("a red circle"), Prompt("a blue square.")]
    one, other = draw(model, model.network, x[:1].expand(2, -1, -1, -1), prompts)
    assert not torch.equal(one, other)


def test_the_words_of_a_small_model_do_not_train(words_folder):
    words = ours(words_folder).architecture.words
    assert list(words.parameters()) and not any(parameter.requires_grad for parameter in words.parameters())
    assert not words.training


def test_a_model_without_vae_is_saved_whole(words_folder, tmp_path):
    model = ours(words_folder)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(1.1)
    model.save(tmp_path, model.network)
    again = ours(tmp_path)
    prompt, x = [Prompt("a green square")], noise(model, 1)
    assert torch.equal(draw(again, again.network, x, prompt), draw(model, model.network, x, prompt))
    assert torch.equal(again.grid(4).levels, model.grid(4).levels)


def words() -> WordEncoder:
    torch.manual_seed(0)
    return WordEncoder(["a", "red", "cube", ",", "sphere"], length=5, width=8, pooled_width=4)


def test_words_are_lower_cased_and_parted_from_punctuation():
    # ids in order of the vocabulary from 2: a 2, red 3, cube 4, comma 5, sphere 6
    ids = words().tokenize(["A red,  CUBE", ""])
    assert ids.tolist() == [[2, 3, 5, 4, PAD], [NULL, PAD, PAD, PAD, PAD]]


def test_an_unknown_word_names_itself_its_prompt_and_the_known_ones():
    with pytest.raises(ValueError, match="a red cub.*'cub'.*'cube'"):
        words().tokenize(["a cube", "a red cub"])


def test_a_prompt_that_is_too_long_is_refused_not_cut():
    with pytest.raises(ValueError, match="6.*punctuation.*5"):
        words().tokenize(["a a a a a a"])


def test_padding_says_nothing_and_the_pool_is_the_mean_of_the_words():
    encoder = words()
    hidden, pooled = encoder(encoder.tokenize(["red cube"]))
    assert hidden[0, 2:].abs().max() == 0
    red = encoder.table.weight[3] + encoder.place[0]
    cube = encoder.table.weight[4] + encoder.place[1]
    torch.testing.assert_close(hidden[0, 0], red, atol=0, rtol=0)
    torch.testing.assert_close(pooled[0], encoder.pool((red + cube) / 2), atol=1e-6, rtol=0)


def test_the_order_of_words_matters():
    encoder = words()
    one, other = encoder(encoder.tokenize(["red cube", "cube red"]))[0]
    assert not torch.equal(one, other)


def test_a_word_encoder_is_saved_and_read_exactly(tmp_path):
    encoder = words()
    for _ in range(2):  # into a folder that is not there, and into one that is
        encoder.save(tmp_path / "new" / "words")
    again = WordEncoder.load(tmp_path / "new" / "words")
    assert again.vocabulary == encoder.vocabulary and not again.training
    for one, other in zip(again(again.tokenize(["a red"])), encoder(encoder.tokenize(["a red"])), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["words.json", "words.safetensors"])
def test_half_a_word_encoder_is_none(name, tmp_path):
    words().save(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        WordEncoder.load(tmp_path)


def test_a_vocabulary_holds_single_different_words():
    with pytest.raises(ValueError, match="ice cream"):
        WordEncoder(["ice cream"])
    with pytest.raises(ValueError, match="duplicates"):
        WordEncoder(["red", "a", "red"])
