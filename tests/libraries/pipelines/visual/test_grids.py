"""Pictures of samples side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image as Pil

from mmgrpo.evaluation import Shown
from mmgrpo.types import Image, Prompt
from pipelines.visual import images
from tests.building import load


def shown(count: int, shade: float = 0.5) -> Shown:
    some = [Image(torch.full((3, 8, 8), shade)) for _ in range(count)]
    prompts = [Prompt(f"picture {number}", str(number)) for number in range(count)]
    return Shown(prompts, some, [{"exact": number / 4} for number in range(count)], [{} for _ in range(count)])


def test_the_words_by_which_an_image_was_drawn_are_its_completion(tmp_path):
    given = shown(2)
    images.write_grid(
        tmp_path / "after", replace(given, outputs=[replace(given.outputs[0], words="a plan"), given.outputs[1]])
    )
    rows = [json.loads(line) for line in (tmp_path / "after.jsonl").read_text().splitlines()]
    assert [row["completion"] for row in rows] == ["a plan", ""]


@pytest.mark.parametrize(("columns", "sets", "expected"), [(4, 2, 4), (5, 2, 4), (1, 2, 2), (3, 1, 3)])
def test_the_sets_stand_side_by_side_in_as_many_columns_as_fit(columns, sets, expected, tmp_path, monkeypatch):
    seen = {}

    def grid(outputs, captions, columns):
        seen.update(shades=[float(one.pixels[0, 0, 0]) for one in outputs], captions=captions, columns=columns)
        return Pil.new("RGB", (1, 1))

    monkeypatch.setattr(images, "sample_grid", grid)
    titles = ["before", ""][-sets:]
    made = {title: shown(4, 0.25 * (number + 1)) for number, title in enumerate(titles)}
    path = images.write_image_grid(tmp_path, made, 2, columns)
    assert path == tmp_path / "grid.png" and seen["columns"] == expected
    assert seen["shades"] == [0.25 * (number + 1) for _ in range(4) for number in range(sets)]
    names = sorted(one.name for one in Path(tmp_path).glob("0*.png"))
    wanted = [f"{slot:03d}-{sample}{f'-{t}' if t else ''}.png" for slot in (0, 1) for sample in (0, 1) for t in titles]
    assert names == sorted(wanted)
    assert seen["captions"][-1] == "picture 3\nexact 0.75" and (
        sets == 1 or "before exact 0.75" in seen["captions"][-2]
    )


def test_the_tokens_of_an_oblong_picture_are_those_of_both_sides(words_folder):
    from pipelines.visual import sd3

    patch = load(sd3, words_folder, height=16, width=16).network.config.patch_size
    for height, width in ((16, 24), (24, 16), (16, 16)):
        made = load(sd3, words_folder, height=height, width=width)
        assert made.latent_shape()[1:] == (height, width)
        assert made.architecture.tokens == (height // patch) * (width // patch)
