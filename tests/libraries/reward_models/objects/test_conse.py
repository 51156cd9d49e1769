"""ConSE: its arithmetic by hand, and real networks that find the right picture for a prompt."""

from __future__ import annotations

import math
import re
import tempfile

import numpy as np
import pytest
import torch

from mmgrpo.types import Image, Prompt, Text
from reward_models.objects import conse as module
from reward_models.objects import efficientnet, sentences
from reward_models.objects.conse import conse, conse_z
from tests.libraries.reward_models.photographs import clock, fetched, image, lights, portrait, texture

WHEELS = ("efficientnet-lite0", "all-minilm-l6-v2", "imagenet-names")
TEXTS = ["a woman in a military uniform", "a clock on the wall", "a traffic light"]
BROKEN = Image(torch.full((3, 8, 8), math.nan))


# ---- by hand


@pytest.fixture
def three_classes(monkeypatch) -> None:
    """Classes along the axes; the first prompt is between the first two, the second along the third."""
    vectors = {"both": [0.6, 0.8, 0.0], "third": [0.0, 0.0, 1.0]}
    shown = iter([[0.75, 0.25, 0.0], [0.0, 0.5, 0.5]])
    monkeypatch.setattr(module, "TOP", 2)
    monkeypatch.setattr(module, "_labels", lambda *_: torch.eye(3))
    monkeypatch.setattr(module, "sentence_embeddings", lambda texts, *_: torch.tensor([vectors[t] for t in texts]))
    monkeypatch.setattr(module, "probabilities", lambda images, *_: torch.tensor([next(shown) for _ in images]))


def test_a_picture_is_the_mean_of_its_likeliest_classes(three_classes):
    prompts = [Prompt("both", "0"), Prompt("both", "0"), Prompt("third", "1")]
    first, second, third = conse(prompts, [image(clock()), BROKEN, image(clock())])
    # (0.75, 0.25, 0) / |.| with (0.6, 0.8, 0); (0, 0.5, 0.5) / |.| with (0, 0, 1)
    assert first == pytest.approx((0.75 * 0.6 + 0.25 * 0.8) / math.hypot(0.75, 0.25))
    assert math.isnan(second) and third == pytest.approx(math.sqrt(0.5))


def test_the_ten_likeliest_classes_count(monkeypatch):
    """Twelve classes along the axes, the first the likeliest: the tenth is a part of the picture, the next is none."""
    shown = torch.arange(12.0, 0.0, -1.0) / 78
    monkeypatch.setattr(module, "_labels", lambda *_: torch.eye(12))
    monkeypatch.setattr(module, "sentence_embeddings", lambda texts, *_: torch.eye(12)[[int(t) for t in texts]])
    monkeypatch.setattr(module, "probabilities", lambda images, *_: shown.expand(len(images), -1))
    tenth, eleventh = conse([Prompt("9", "9"), Prompt("10", "10")], [image(clock())] * 2)
    assert tenth == pytest.approx(3 / math.sqrt(sum(n * n for n in range(3, 13)))) and eleventh == 0


def test_the_standardized_form_measures_in_deviations_of_the_prompt(three_classes):
    prompts = [Prompt("third", "1"), Prompt("both", "0"), Prompt("third", "1")]
    broken, first, second = conse_z(prompts, [BROKEN, image(clock()), image(clock())])
    similarity = np.array([[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]])
    standard = (similarity - similarity.mean(1, keepdims=True)) / similarity.std(1, ddof=1, keepdims=True)
    assert first == pytest.approx(0.75 * standard[0, 0] + 0.25 * standard[0, 1])
    assert second == pytest.approx(0.5 * standard[1, 1] + 0.5 * standard[1, 2]) and math.isnan(broken)


def test_a_batch_without_a_picture_that_can_be_scored_is_not_classified(three_classes, monkeypatch):
    monkeypatch.setattr(module, "probabilities", lambda *_: pytest.fail("nothing is shown"))
    values = conse([Prompt("both", "0")], [BROKEN]) + conse_z([Prompt("third", "1")] * 2, [BROKEN] * 2)
    assert len(values) == 3 and all(map(math.isnan, values))


def test_prompts_without_text_and_outputs_that_are_no_picture_are_errors(three_classes):
    with pytest.raises(ValueError, match="conse.*'3'"):
        conse([Prompt(" ", "3")], [BROKEN])
    with pytest.raises(TypeError, match="conse_z.*Text"):
        conse_z([Prompt("both", "0")], [Text("hello")])


def test_the_classifier_sees_the_centre_of_a_picture():
    pixels = torch.zeros(3, 256, 512)
    pixels[:, 16:240, 144:368] = 1  # 224 of 256 pixels, in the middle
    seen = efficientnet.preprocess(Image(pixels))
    assert seen.shape == (3, 224, 224) and bool((seen == 1).all())  # (255 - 127) / 128
    assert efficientnet.preprocess(Image(torch.rand(3, 1, 1))).shape == (3, 224, 224)


def test_an_odd_padding_is_at_the_right_and_the_bottom():
    """As in TensorFlow: of 4 pixels with a window of 3 and a stride of 2, only one column is padded."""
    layer = efficientnet.Convolution(1, 1, 3, 2)
    torch.nn.init.ones_(layer.weight)
    pixels = torch.arange(16.0).reshape(1, 1, 4, 4)
    rows = [
        [0 + 1 + 2 + 4 + 5 + 6 + 8 + 9 + 10, 2 + 3 + 6 + 7 + 10 + 11],
        [8 + 9 + 10 + 12 + 13 + 14, 10 + 11 + 14 + 15],
    ]
    assert layer(pixels)[0, 0].tolist() == rows


def test_the_vectors_of_the_classes_are_kept_and_made_again_if_they_are_damaged(tmp_path, monkeypatch):
    calls = []

    def embeddings(texts, *_):
        calls.append(list(texts))
        return torch.eye(len(texts), sentences.WIDTH)

    monkeypatch.setattr(module, "sentence_embeddings", embeddings)
    monkeypatch.setattr(module, "class_names", lambda _: ("cat", "dog"))
    made = [module._labels.__wrapped__("", "", "cpu", tmp_path) for _ in range(2)]
    assert torch.equal(*made) and calls == [["a photo of a cat", "a photo of a dog"]]
    [file] = tmp_path.iterdir()
    for damage in (b"", b"pickle", file.read_bytes()[:-8]):
        file.write_bytes(damage)
        assert torch.equal(module._labels.__wrapped__("", "", "cpu", tmp_path), made[0])
    for damage in (2 * made[0], 1.0015 * made[0], torch.eye(3, sentences.WIDTH)):
        np.save(file, damage.numpy())
        assert torch.equal(module._labels.__wrapped__("", "", "cpu", tmp_path), made[0])
    assert len(calls) == 7 and re.fullmatch(r"conse-[0-9a-f]{16}\.npy", file.name)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))  # it is written next to its place
    file.unlink()
    module._labels.__wrapped__("", "", "cpu", tmp_path)
    assert file.is_file()
    np.save(file, 1.0005 * made[0].numpy())
    assert torch.equal(module._labels.__wrapped__("", "", "cpu", tmp_path), 1.0005 * made[0])
    assert torch.equal(module._labels.__wrapped__("", "", "cpu", tmp_path / "none"), made[0])


# ---- with the networks


@pytest.mark.slow
def test_the_right_picture_of_a_prompt_is_found():
    for name in WHEELS:
        fetched(name)
    pictures = [image(portrait()), image(clock()), image(lights())]
    for reward, margin in ((conse, 0.25), (conse_z, 2.0)):
        for place, text in enumerate(TEXTS):
            values = reward([Prompt(text, text)] * 3, pictures)
            others = [value for number, value in enumerate(values) if number != place]
            assert values[place] > max(others) + margin, (reward.__name__, text, values)
    # The standardized form also finds the right prompt of a picture.
    prompts = [Prompt(text, text) for text in TEXTS]
    for place, picture in enumerate(pictures):
        assert int(np.argmax(conse_z(prompts, [picture] * 3))) == place


@pytest.mark.slow
def test_a_batch_is_scored_as_its_pictures_are_alone():
    for name in WHEELS:
        fetched(name)
    grey, tiny = image(portrait().convert("L").convert("RGB")), Image(torch.rand(3, 1, 1))
    pictures = [grey, image(texture(1024)), BROKEN, tiny, image(portrait())]
    prompts = [Prompt(text, str(number)) for number, text in enumerate([*TEXTS, "grey", "x " * 900])]
    for reward in (conse, conse_z):
        alone = [reward([prompt], [picture])[0] for prompt, picture in zip(prompts, pictures, strict=True)]
        assert reward(prompts, pictures) == pytest.approx(alone, abs=1e-4, nan_ok=True)
        assert [math.isnan(value) for value in alone] == [False, False, True, False, False]


@pytest.mark.slow
def test_the_classifier_knows_a_clock_and_a_traffic_light():
    for name in WHEELS:
        fetched(name)
    names = efficientnet.class_names("")
    assert len(names) == 1000 and names[0] == "tench" and names[999] == "toilet paper"
    for picture, known in ((clock(), {"analog clock", "wall clock"}), (lights(), {"traffic light"})):
        [shown] = efficientnet.probabilities([image(picture)], "cpu", "")
        assert float(shown.sum()) == pytest.approx(1, abs=1e-5)
        assert names[int(shown.argmax())] in known


@pytest.mark.slow
def test_sentences_of_one_meaning_are_near_to_each_other():
    fetched("all-minilm-l6-v2")
    cat, kitten, rocket = sentences.sentence_embeddings(["a cat", "a small kitten", "a rocket launch"], "cpu", "")
    assert float(cat @ cat) == pytest.approx(1, abs=1e-5)
    assert float(cat @ kitten) > 0.6 > 0.4 > float(cat @ rocket)
