"""Samples of the tab Visual: the same noise for both models, their rewards, the best of n, and prompts."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from PIL import Image as Pil

from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened, Pair
from mmgrpo.cli.demo.visual_cards import status
from mmgrpo.cli.demo.visual_samples import Sample, best, command, draw_sides, prompt_of, score, shown
from mmgrpo.cli.train import read
from mmgrpo.family import family
from mmgrpo.scoring import Scorer
from mmgrpo.types import Image, Prompt, Request, Video
from tests.journeys.cli.demo.painting import brightness, drawn, painters


def requests(opened: Opened, side: str) -> list[Request]:
    """What the model of a side was asked for."""
    return next(model.requests for key, model in opened.loaded.items() if key[1] == side)  # type: ignore[attr-defined]


# ---- samples


def test_both_models_draw_from_the_same_noise_whatever_the_count():
    opened = painters()
    drawn(6, opened)
    drawn(3, opened)
    asked = [[(r.seed, tuple(r.slots), r.group_size) for r in requests(opened, side)] for side in (BEFORE, AFTER)]
    assert asked[0] == asked[1] == [(3, (0, 1, 2, 3), 1), (3, (4, 5), 1), (3, (0, 1, 2), 1)]


def test_what_is_drawn_so_far_is_shown_after_every_batch():
    steps = list(draw_sides(painters(), "a", Prompt("a wall"), 3, 6))
    assert [(step.drawn, step.scored, step.done) for step in steps] == [
        (4, (), False),
        (6, (), False),
        (6, (BEFORE,), False),
        (10, (BEFORE,), False),
        (12, (BEFORE,), False),
        (12, (BEFORE, AFTER), True),
    ]


def test_a_pair_without_a_trained_model_shows_its_base():
    last = drawn(2, painters([BEFORE]))
    assert list(last.sides) == [BEFORE] and last.done
    assert "There is no trained model yet" in status(last)
    assert "There is no trained model" not in status(drawn(2))


def test_nothing_is_locked_between_batches_nor_after_a_cancellation():
    opened = painters()
    batches = draw_sides(opened, "a", Prompt("a wall"), 3, 8)
    next(batches)
    assert not opened.lock.locked()
    batches.close()  # type: ignore[attr-defined]
    assert not opened.lock.locked()
    assert drawn(2, opened).done


def test_samples_are_those_of_the_weights_that_there_are():
    assert [drawn(1, painters(sides)).trained for sides in ([BEFORE], [BEFORE, AFTER])] == ["", "b"]


def test_rewards_that_fail_are_not_a_number_and_say_why():
    last = drawn(2)
    (first, second) = last.sides[AFTER]
    assert math.isnan(first.values["brightness"]) and second.values["brightness"] == pytest.approx(0.24)
    assert all(math.isnan(first.values[name]) for name in ("broken", "missing"))
    assert last.weights == {"brightness": 1.0, "broken": 0.0, "missing": 0.0}
    assert last.failures["missing"] == "not there" and "no weights for" in last.failures["broken"]
    assert "brightness" not in last.failures


def test_a_reward_of_rollouts_and_one_without_values_fail():
    scorers = [Scorer("decides", brightness, reads_rollout=True), Scorer("short", lambda prompts, outputs: [1.0])]
    columns, failures = score(scorers, Prompt("a"), [Image(torch.zeros(3, 2, 2))] * 2)
    assert all(math.isnan(value) for column in columns.values() for value in column)
    assert failures["decides"] == "it is defined for training rollouts only" and "2" in failures["short"]


@pytest.mark.parametrize(("seed", "count", "message"), [(-1, 2, "seed.*-1"), (1, 0, "samples: got 0"), (1, 99, "99")])
def test_numbers_out_of_range_are_errors(seed, count, message):
    with pytest.raises(ValueError, match=message):
        next(draw_sides(painters(), "a", Prompt("a"), seed, count))


def test_the_best_of_the_first_n_is_the_first_of_equal_ones():
    samples = [Sample(Pil.new("RGB", (1, 1)), values={"r": value}) for value in (math.nan, 2.0, 3.0, 3.0, 5.0)]
    assert best(samples, "r", 1) is None
    assert best(samples, "r", 4) == (2, 3.0) and best(samples, "r", 5) == (4, 5.0)
    assert best(samples, "r", 5, lowest=True) == (1, 2.0)
    assert best(samples, "other", 5) is None


def test_small_pictures_are_enlarged_by_a_whole_factor_and_clips_play():
    import av

    picture = shown(Image(torch.rand(3, 32, 16)))
    assert picture.picture.size == (224, 448) and not picture.clip
    clip = shown(Video(torch.rand(3, 3, 16, 16), 5.0))
    with av.open(io.BytesIO(clip.clip), "r") as container:
        assert sum(1 for _ in container.decode(video=0)) == 3
    with pytest.raises(TypeError, match="expected"):
        shown(SimpleNamespace())  # type: ignore[arg-type]


# ---- prompts


def pair_of(name: str, *rewards: str) -> Pair:
    """A pair of a family without a model."""
    return Pair(name, read(["--model.family", name, *(["--rewards", *rewards] if rewards else [])], ""), family(name))


def test_a_held_out_prompt_keeps_what_rewards_compare_with():
    pair = pair_of("sd3", "scene_all")
    example = pair.examples(1)[0]
    assert prompt_of(pair, f" {example.text} ") == example and example.answer


def test_words_of_embedded_scenes_are_their_own_answer():
    assert prompt_of(pair_of("sd3", "scene_all"), "a red circle").answer["things"] == [[1, "red", "circle"]]
    film = prompt_of(pair_of("wan", "film_all"), "a red circle moves up fast")
    assert film.answer == [[1, "red", "circle", "up", "fast"]]
    assert prompt_of(pair_of("sd3", "scene_all"), "a castle") == Prompt("a castle", id="demo")
    assert prompt_of(pair_of("sd3", "jpeg_compressibility"), "a red circle").answer is None


def test_batches_are_no_larger_than_those_of_an_evaluation():
    opened = painters()
    config = opened.pairs["a"].config
    smaller = replace(opened.pairs["a"], config=replace(config, eval=replace(config.eval, batch_size=2)))
    opened.pairs = {"a": smaller}
    drawn(5, opened)
    assert [tuple(request.slots) for request in requests(opened, BEFORE)] == [(0, 1), (2, 3), (4,)]


@pytest.mark.parametrize(("text", "message"), [("  ", "the prompt is empty"), ("a" * 2001, "2,001 characters")])
def test_a_prompt_is_neither_empty_nor_endless(text, message):
    with pytest.raises(ValueError, match=message):
        prompt_of(pair_of("sd3"), text)


def test_a_picture_goes_where_a_family_takes_one(tmp_path):
    file = tmp_path / "a.png"
    Pil.new("RGB", (4, 2), "red").save(file)
    with pytest.raises(ValueError, match="'sd3'"):
        prompt_of(pair_of("sd3"), "a wall", str(file))
    with pytest.raises(ValueError, match="'wan_i2v'"):
        prompt_of(pair_of("wan_i2v"), "a wall")
    for name in ("wan_i2v", "flux_kontext"):
        prompt = prompt_of(pair_of(name), "a wall", str(file))
        (medium,) = prompt.media
        assert prompt.text == "a wall" and medium.source.pixels[:, 0, 0].tolist() == [1, 0, 0]  # type: ignore[union-attr]
    assert not prompt_of(pair_of("flux_kontext"), "a wall").media


def test_the_command_draws_the_same_samples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pair = replace(pair_of("sd3"), run=tmp_path / "runs" / "a run")
    made = replace(drawn(2), prompt="it's", seed=7)
    start, end = "mmgrpo sample --run 'runs/a run'", """--seed 7 --prompts 'it'"'"'s' 'it'"'"'s'"""
    assert command(pair, replace(made, trained="model")) == f"{start} --before {end}"
    assert command(pair, replace(made, trained="12")) == f"{start} --weights 12 --before {end}"
    assert command(pair, replace(made, trained="")) == f"{start} --weights untrained {end}"
    assert command(replace(pair, run=None), made) == ""
