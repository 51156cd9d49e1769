"""What the editing model is pretrained on, and where it begins."""

from __future__ import annotations

from itertools import islice

import torch

from mmgrpo.randomness import stream
from mmgrpo.toy import edits
from pipelines.visual.words import WordEncoder
from scripts.pretrain import edits as script
from scripts.pretrain.flow import sample


def test_source_and_target_differ_in_one_object():
    texts, sources, targets = script.draw(20, stream(0, "draw"))
    known = {edits.text(one) for one in edits.edits()}
    for text, source, target in zip(texts, sources, targets, strict=True):
        changed = (source != target).any(0)
        assert text in known and 0 < changed.float().mean() < 0.25
        assert len({tuple(pixel) for pixel in target[:, changed].T.tolist()}) == 1


def test_it_begins_as_the_model_of_scenes_whatever_the_source_is():
    base, words = script.read(script.Path(script.locate("embedded:visual/scenes/base")))
    wide, more = script.build(script.Args())
    text = ["a red circle left of a blue square"]
    sources = torch.rand(1, 3, 32, 32, generator=stream(0, "sources"))
    plain = sample(lambda x, t, c: base(x, *c, t * 1000, return_dict=False)[0], words, text, (3, 32, 32), 1)
    torch.testing.assert_close(sample(script.velocity_of(wide, sources), more, text, (3, 32, 32), 1), plain)
    assert [*islice(more.vocabulary, len(words.vocabulary))] == [*words.vocabulary]
    assert more.vocabulary == edits.vocabulary()


def test_training_stops_and_saves_a_model_that_goes_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(script, "measure", lambda *_: {})
    args = {"batch": 1, "steps": 4, "stop": 2, "every": 9}
    script.train(script.Args(output=tmp_path / "base", **args))
    assert "step 2 " in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"base"}
    again, words = script.build(script.Args(start=str(tmp_path / "base")))
    assert again.config.in_channels == 6
    assert words.vocabulary == WordEncoder.load(tmp_path / "base" / "words").vocabulary
