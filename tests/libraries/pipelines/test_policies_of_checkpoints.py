"""``visual.policy`` and its siblings: what they ask for."""

from __future__ import annotations

import pytest

from pipelines import speech, text, visual, vlm
from tests.tiny import maker


@pytest.mark.parametrize("modality", [visual, vlm, speech], ids=lambda module: module.__name__)
def test_the_checkpoint_names_the_family_and_the_seed_is_0_unless_they_are_told(modality, monkeypatch):
    asked = []
    monkeypatch.setattr(modality, "make_policy", lambda *given: asked.append(given))
    modality.policy("a/b")
    modality.policy("a/b", family="own", seed=3, preset="rloo", lora_rank=4)
    families = modality.FAMILIES
    assert asked == [(families, "a/b", "", 0, {}, ""), (families, "a/b", "own", 3, {"lora_rank": 4}, "rloo")]


def test_a_model_that_hears_is_whisper_tiny_unless_another_is_named(monkeypatch):
    asked = []
    monkeypatch.setattr(speech, "make_policy", lambda *given: asked.append(given[1]))
    speech.policy()
    assert asked == ["pypi:whisper-tiny.en"]


def test_a_language_model_is_made_where_language_models_are(tmp_path):
    path = maker("causal_lm")(tmp_path)
    for given in ({}, {"family": "causal_lm"}):
        with pytest.raises(ValueError, match=r"pipelines\.text\.policy.*causal_lm"):
            vlm.policy(path, **given)
    with pytest.raises(ValueError, match="'causal_l'.*'causal_lm'"):
        text.policy(path, family="causal_l")
