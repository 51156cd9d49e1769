"""What the picture model is pretrained on, and that it stops where it is told."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.data.prompts import load_prompts
from mmgrpo.randomness import stream
from mmgrpo.toy import scenes
from pipelines.visual.enlarger import Enlarger
from pipelines.visual.words import WordEncoder
from scripts.pretrain import visual

BASE = visual.PROMPTS / "base"


@pytest.mark.parametrize(
    ("sentence", "often"),
    [
        ("a red circle on the left", 1.0),
        ("a red square on the left", 0.1),
        ("two red circles", 0.5),
        ("three black circles", 0.1 * 0.2),
        ("two blue squares and a green triangle", 0.5),
        ("a red circle left of a blue square", 1.0),
        ("a red circle right of a green square", 0.1 * 0.5),
        ("a green circle above a blue square", 0.1 * 0.25),
        ("a green circle below a red square", 0.1 * 0.1 * 0.125),
    ],
)
def test_some_scenes_are_drawn_more_often_than_others(sentence, often):
    scene = scenes.parse(sentence)
    among = scenes.scenes(scene.kind)
    assert float(visual.frequencies(scene.kind)[among.index(scene)]) == pytest.approx(often)


def test_pictures_are_of_their_sentence():
    shares = torch.tensor([0.2, 0.25, 0.3, 0.25, 0.0])
    texts, (small, large) = visual.draw(shares, 40, stream(0, "draw"), (32, 64))
    assert small.shape == (40, 3, 32, 32) and large.shape == (40, 3, 64, 64)
    for text, picture in zip(texts, small, strict=True):
        colours = {tuple(pixel) for pixel in ((picture + 1) * 127.5).round().int().flatten(1).T.tolist()}
        named = {scenes.COLOURS[colour] for colour, _ in scenes.parse(text).objects}
        assert colours == named | {scenes.BACKGROUND}
    again, _ = visual.draw(shares, 40, stream(0, "draw"))
    assert again == texts and len(set(texts)) > 20


@pytest.mark.parametrize(("steps", "stop"), [(8, 2), (2, 8)])
def test_training_stops_where_it_is_told_or_its_schedule_ends(steps, stop, tmp_path, capsys):
    sizes = {"batch": 2, "width": 16, "layers": 1, "heads": 2, "enlarging": 1, "every": 100}
    visual.train(visual.Args(output=tmp_path / "base", steps=steps, stop=stop, **sizes))
    assert "step 2 " in capsys.readouterr().out
    started = torch.Generator().manual_seed(5)
    place = WordEncoder.load(tmp_path / "base" / "words").place
    assert (place - torch.empty_like(place).normal_(generator=started)).abs().max() < 0.01 * place.std()
    assert {path.name for path in (tmp_path / "base").iterdir()} == {"transformer", "words", "enlarger", "scheduler"}


def test_pretraining_is_a_function_of_its_seed():
    losses, drawn = [], []
    for seed in (0, 0, 1):
        args = visual.Args(batch=4, width=16, heads=2, layers=2, enlarging=2, seed=seed)
        transformer, words = visual.build(args)
        losses.append(visual.loss_of(transformer, words, args, torch.ones(4), stream(seed, "pretrain")).item())
        drawn.append(visual.train_enlarger(args, torch.ones(4))(torch.ones(1, 3, 4, 4)))
    assert losses[0] == losses[1] != losses[2]
    assert (drawn[0] == drawn[1]).all() and (drawn[0] != drawn[2]).any() and drawn[0].shape == (1, 3, 8, 8)
    # The output layer starts at zero, so the first loss is E|noise - x_0|^2 = 1 + E x_0^2, at most 2.
    assert all(1 < loss <= 2.1 for loss in losses)


@pytest.mark.nightly
def test_the_base_model_succeeds_sometimes_at_every_kind():
    from diffusers.models import SD3Transformer2DModel

    transformer = SD3Transformer2DModel.from_pretrained(str(BASE / "transformer")).float().eval()
    words, enlarger = WordEncoder.load(BASE / "words"), Enlarger.load(BASE / "enlarger")
    prompts = load_prompts(visual.PROMPTS / "tune.jsonl")
    values = visual.measure(transformer, words, enlarger, prompts, samples=2, shift=3.0, steps=2)
    assert 0.35 < values["scene_all"].mean() < 0.6
    assert values["scene_clean"].mean() > 0.8
    for kind in scenes.SPLITS["tune"]:
        assert values["scene_all"][[prompt.task == kind for prompt in prompts]].mean() > 0
