"""The preference set of the scenes: reproducible from its seeds, true by its rule, and split by prompt."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from PIL import Image as Pil

from mmgrpo.report.plots import sample_grid
from mmgrpo.toy.scenes import parse, splits, text
from reward_models.evaluation import attacks
from reward_models.evaluation.protocols import read_benchmark
from reward_models.evaluation.readers import scenes
from reward_models.rules.scenes import scene_all, scene_clean

ROWS = {split: [row.values for row in scenes.rows(split)] for split in scenes.SIZES}


@pytest.mark.parametrize("split", scenes.SIZES)
def test_the_files_are_what_their_seeds_make(split):
    made = list(itertools.islice(scenes.make(split), 200))
    assert made == ROWS[split][:200] and len(ROWS[split]) == scenes.SIZES[split]


def test_a_file_ends_after_its_pairs(monkeypatch):
    monkeypatch.setattr(scenes, "SIZES", {"heldout": 3})
    assert list(itertools.islice(scenes.make("heldout"), 5)) == ROWS["heldout"][:3]


def test_no_prompt_is_in_both_files_and_categories_are_even():
    prompts = {split: {row["prompt"] for row in rows} for split, rows in ROWS.items()}
    assert not prompts["train"] & prompts["heldout"]
    for split, known in prompts.items():
        assert known <= {text(scene) for scene in splits()[split]}
        counts = [sum(row["category"] == name for row in ROWS[split]) for name in scenes.CATEGORIES]
        assert max(counts) - min(counts) <= 1
        sides = [sum(row["label"] == side for row in ROWS[split]) for side in ("left", "right")]
        assert 0.8 < sides[0] / sides[1] < 1.25


def test_the_better_picture_is_better_by_the_stated_rule():
    """Verifiers and the cleanness of pixels, which made none of the labels, agree with all of them."""
    for one, row in zip(read_benchmark("scenes:heldout").comparisons, ROWS["heldout"], strict=True):
        order = np.argsort(one.ranks, kind="stable")
        better, worse = (one.outputs()[side] for side in order)
        right = scene_all([one.prompt] * 2, [better, worse])
        clean = scene_clean([one.prompt] * 2, [better, worse])
        shown = [row[("left", "right")[side]] for side in order]
        match row["category"]:
            case "tie":
                assert row["label"] == "tie" and right == [1, 1] and clean == [1, 1]
            case "noise" | "texture" | "blur":
                assert right[0] == 1 and clean[0] == 1 > clean[1] and shown[0]["scene"] == shown[1]["scene"]
            case "content_over_quality":
                assert right[1] == 0 and clean[1] == 1 > clean[0] and shown[0]["scene"] == row["prompt"]
            case error:
                assert right == [1, 0] and clean == [1, 1] and error in scenes.ERRORS


@pytest.mark.parametrize("error", scenes.ERRORS)
def test_an_error_changes_only_what_it_says(error):
    scene = parse("two red circles at the top" if error != "position" else "a red circle left of a blue square")
    wrong = scenes.wrong(scene, error, np.random.default_rng(0))
    assert wrong is not None and wrong != scene
    before, after = ({"colour": s.things[0].colour, "count": s.things[0].count, "shape": s.things[0].shape,
                      "position": s.place} for s in (scene, wrong))  # fmt: skip
    assert {key for key in before if before[key] != after[key]} == {error}
    assert scenes.wrong(parse("a red circle and a blue square"), "position", np.random.default_rng(0)) is None


def test_both_files_and_the_sheet_of_examples_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(scenes, "SIZES", {"train": 2, "heldout": 3})
    scenes.write(tmp_path / "new")
    for split, count in (("train", 2), ("heldout", 3)):
        lines = (tmp_path / "new" / f"{split}.jsonl").read_text().splitlines()
        assert lines == [json.dumps(row, separators=(",", ":")) for row in ROWS[split][:count]]
    with Pil.open(tmp_path / "new" / "examples.png") as sheet:
        assert sheet.size == scenes.sheet().size and len(sheet.getcolors()) <= 64
    for each in (1, 2):  # two categories a row
        wanted = sample_grid([Pil.new("RGB", (32, 32))] * 16, [""] * 16, columns=4 * each, tile=128)
        assert scenes.sheet(each=each).width == wanted.width


def test_a_file_of_ones_own_is_read_and_checked(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(ROWS["heldout"][0]) + "\n" + json.dumps(ROWS["heldout"][1] | {"left": {"seed": 1}}))
    with pytest.raises(ValueError, match="mine.jsonl.*row 2.*scene"):
        read_benchmark(f"scenes:{file}")


# ---- attacks


def test_damages_change_pictures_as_they_say():
    grey = scenes.Image(torch.full((3, 32, 32), 0.5))
    draw = np.random.default_rng(0)
    assert torch.allclose(attacks.blur(grey, draw, 1.0).pixels, grey.pixels)
    board = attacks.texture(grey, draw, 0.1).pixels
    assert {round(float(value), 6) for value in board.unique()} == {0.4, 0.6} and float(board.mean()) == pytest.approx(
        0.5
    )
    assert (board[:, 0, :-1] != board[:, 0, 1:]).all() and (board[:, :-1, 0] != board[:, 1:, 0]).all()
    noisy = attacks.noise(grey, np.random.default_rng(1), 0.1).pixels
    assert float(noisy.std()) == pytest.approx(0.1, rel=0.05)
    assert torch.equal(noisy, attacks.noise(grey, np.random.default_rng(1), 0.1).pixels)
    edge = grey.pixels.clone()
    edge[:, :, 16:] = 1.0
    blurred = attacks.blur(scenes.Image(edge), draw, 2.0).pixels
    assert 0.5 < float(blurred[0, 5, 15]) < 0.75 < float(blurred[0, 5, 16]) < 1
    assert torch.allclose(blurred[:, 5], blurred[:, 20])
    assert not torch.equal(attacks.jpeg(scenes.Image(edge), draw, 10).pixels, edge)
