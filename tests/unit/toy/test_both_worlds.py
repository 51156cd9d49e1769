"""What holds for the world of pictures and for that of clips: sentences read back, and splits are apart."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from mmgrpo.data.prompts import load_prompts
from mmgrpo.toy import scenes, videos
from tests import ROOT

ASSETS = ROOT / "pipelines" / "visual" / "assets"
WORLDS: dict[str, Any] = {"scenes": (scenes, scenes.Scene), "films": (videos, videos.VideoScene)}
"""By the folder of the embedded files."""
OTHERS = {
    "scenes": ["a red cube", "two red circle", "a red circles", "four red circles", "a red circle under a blue square"],
    "films": [
        *("a red cube moves left", "two red circle move left", "a red circle", "a red circle moves"),
        "a red circle moves left and a red square moves right",
        "a red circle moves left and a blue square moves up",
        "two red circles move left fast",
    ],
}
"""Sentences of neither."""
LONGEST = {"scenes": 16, "films": 11}

world = pytest.mark.parametrize("world", WORLDS)
split = pytest.mark.parametrize(("world", "name"), [(w, name) for w in WORLDS for name in WORLDS[w][0].SPLITS])


def every(world: str) -> list[Any]:
    module, _ = WORLDS[world]
    return [scene for kind in module.KINDS for scene in module.scenes(kind)]


@world
def test_every_sentence_reads_back_and_is_said_once(world):
    module, kind = WORLDS[world]
    scenes = every(world)
    sentences = [module.text(scene) for scene in scenes]
    step = 20 if world == "films" else 1
    assert [module.parse(sentence) for sentence in sentences[::step]] == scenes[::step]
    assert len(set(sentences)) == len(sentences)
    assert max(len(sentence.split()) for sentence in sentences) <= LONGEST[world]
    assert [kind.from_json(json.loads(json.dumps(scene.to_json()))) for scene in scenes] == scenes


@pytest.mark.parametrize(
    ("world", "sentence"), [(w, sentence) for w, some in OTHERS.items() for sentence in (*some, "")]
)
def test_a_sentence_of_another_world_is_refused_with_an_example(world, sentence):
    example = {"scenes": "a red circle left of a blue square", "films": "'a red circle moves left'"}[world]
    with pytest.raises(ValueError, match=example):
        WORLDS[world][0].parse(sentence)


@world
def test_an_unknown_kind_is_refused_with_the_known_ones(world):
    with pytest.raises(ValueError, match="'several'.*(relation|order)"):
        WORLDS[world][0].scenes("several")


@world
def test_splits_are_disjoint_and_as_large_as_stated(world):
    module, _ = WORLDS[world]
    parts = module.splits()
    sentences = [module.text(scene) for part in parts.values() for scene in part]
    assert len(set(sentences)) == len(sentences)
    counts = {name: dict(Counter(scene.kind for scene in part)) for name, part in parts.items()}
    assert counts == {name: dict(wanted) for name, wanted in module.SPLITS.items()}


@split
def test_the_prompt_files_hold_the_splits(world, name, tmp_path):
    module, kind = WORLDS[world]
    module.write_prompts(tmp_path)
    file = ASSETS / world / f"{name}.jsonl"
    assert file.read_text() == (tmp_path / f"{name}.jsonl").read_text()
    loaded = load_prompts(file)
    assert [kind.from_json(p.answer) for p in loaded] == [module.parse(p.text) for p in loaded]


@world
def test_the_base_model_knows_every_word_of_the_prompts(world):
    from pipelines.visual.words import WordEncoder

    words = WordEncoder.load(ASSETS / world / "base" / "words")
    texts = [p.text for name in WORLDS[world][0].SPLITS for p in load_prompts(ASSETS / world / f"{name}.jsonl")]
    assert (words.tokenize(texts) != 0).any(1).all()
    with pytest.raises(ValueError, match="'elephant'"):
        words.tokenize(["a red elephant"])
