"""Every family reads prompts, leaves out what cannot be read, and takes those of a command line; no model is loaded."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image as Pil

from mmgrpo.config.settings import config_class
from mmgrpo.data.streaming import StoredPrompts
from mmgrpo.family import families, family
from mmgrpo.types import Media, Prompt, Turn
from tests.libraries.families.examples import ASKED, EDITED, EXAMPLES, SEEN, TEXTS

NAMES = list(families())
MEDIUM = {
    name: prompt.media[0].kind for name, example in EXAMPLES.items() for prompt in example.prompts[:1] if prompt.media
} | {"codec_speech": "audio"}
"""Family to the kind of media that its prompts may have."""
HEARING = ("ctc", "whisper", "qwen_audio", "audio_text")
CHECKED = [name for name in NAMES if families()[name].modality == "visual"]
CHECKED += ["stable_audio", "stable_audio3", "higgs_audio", "flow_speech"]
"""Families that ask their model whether it takes a prompt."""


def config_of(name: str, **data: Any) -> Any:
    config = config_class(family(name).sections)()
    for key, value in data.items():
        setattr(config.data, key, value)
    return config


@pytest.mark.parametrize("name", NAMES)
def test_prompts_that_can_be_read_are_all_kept(name):
    prompts = EXAMPLES[name].prompts
    usable, skipped = family(name).readable(config_of(name), prompts, "here")
    assert list(usable) == list(prompts) and skipped == []


@pytest.mark.parametrize("name", MEDIUM)
def test_a_prompt_whose_medium_cannot_be_read_is_left_out_and_listed(name):
    lost = Prompt("a", "lost", turns=(Turn("user", (Media(MEDIUM[name], "lost.file"), "a")),))
    prompts = [EXAMPLES[name].prompts[0], lost]
    usable, [skipped] = family(name).readable(config_of(name, skip_limit=0.5), prompts, "here")
    assert list(usable) == prompts[:1] and skipped.id == "lost" and "lost.file" in skipped.file
    with pytest.raises(ValueError, match=r"here.*1.*data\.skip_limit=0\.49"):
        family(name).readable(config_of(name, skip_limit=0.49), prompts, "here")


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(MEDIUM) - {"duration", "causal_lm"}))
def test_media_that_no_model_of_a_family_takes_are_refused(name):
    with pytest.raises(ValueError, match="1 media"):
        family(name).readable(config_of(name), EDITED, "here")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_read_with_its_media(name, tmp_path):
    file = {"image": "a.png", "audio": "a.wav"}
    Pil.new("RGB", (32, 24), "red").save(tmp_path / "a.png")
    soundfile.write(tmp_path / "a.wav", 0.5 * np.sin(np.arange(8_000) * 0.1), 16_000)
    kind = MEDIUM.get(name, "")
    text = "" if name in ("ctc", "whisper") else "a red square"  # recognizers are asked nothing
    rows = [{"text": text, "id": "7"} | ({kind: file[kind]} if kind else {})]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    [prompt], skipped = family(name).read(config_of(name), str(tmp_path / "rows.jsonl"))
    assert (prompt.text, prompt.id, skipped) == (text, "7", [])
    assert [medium.source for medium in prompt.media] == ([str(tmp_path / file[kind])] if kind else [])
    config = config_of(name)
    if getattr(config.data, "stream", None) is False and name not in ("codec_speech", "higgs_audio"):
        config.data.stream = True
        stored, _ = family(name).read(config, str(tmp_path / "rows.jsonl"))
        assert isinstance(stored, StoredPrompts) and list(stored) == [prompt]


def length(prompt: Prompt) -> int:
    return len(prompt.text)


def short(prompt: Prompt) -> None:
    if len(prompt.text) > 12:
        raise ValueError(f"'{prompt.text}' is too long")


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_that_the_model_does_not_take_is_left_out_where_it_is_asked(name):
    architecture = SimpleNamespace(check=short, frame_size=None)
    policy: Any = SimpleNamespace(model=SimpleNamespace(check=short, architecture=architecture, prompt_length=length))
    config = config_of(name, skip_limit=0.5)
    if name in CHECKED:
        kept, skipped = family(name).accept(config, policy, TEXTS)
        assert kept == TEXTS[:2] and [(one.id, one.file) for one in skipped] == [("2", "")]
        assert TEXTS[2].text in skipped[0].reason
        with pytest.raises(ValueError, match="prompts: 1 of 3"):
            family(name).accept(config_of(name, skip_limit=0.3), policy, TEXTS)
    else:
        assert family(name).accept(config, policy, TEXTS) == (TEXTS, [])
    if hasattr(config.model, "max_prompt_tokens"):
        config.model.max_prompt_tokens = 12
        assert family(name).accept(config, policy, TEXTS) == (TEXTS, [])  # they are refused when they are read
        config.data.too_long = "filter"
        kept, [skipped] = family(name).accept(config, policy, TEXTS)
        assert kept == TEXTS[:2] and skipped.id == "2"
        config.model.max_prompt_tokens = 0
        assert family(name).accept(config, policy, TEXTS) == (TEXTS, [])


@pytest.mark.parametrize("name", NAMES)
def test_prompts_of_a_command_line_are_texts_or_files_of_sounds(name, tmp_path):
    words, config = [str(tmp_path / "a.wav"), str(tmp_path / "b.wav")], config_of(name)
    for word in words:
        soundfile.write(word, 0.5 * np.sin(np.arange(8_000) * 0.1), 16_000)
    made = family(name).prompts(config, words)
    if name in HEARING:
        assert [(one.text, one.id, one.media[0].kind, one.media[0].source) for one in made] == [
            ("", "a.wav", "audio", words[0]),
            ("", "b.wav", "audio", words[1]),
        ]
    else:
        assert made == [Prompt(words[0], "prompt-0"), Prompt(words[1], "prompt-1")]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_on_pictures_is_also_evaluated_blind(name):
    measured = []

    def measure(title: str, prompts: Any) -> Any:
        measured.append((title, prompts))
        return SimpleNamespace(intervals=lambda: {"reward": 0.5})

    trainer: Any = SimpleNamespace(evaluation=SimpleNamespace(prompts=SEEN), measure=measure)
    made, config = family(name), config_of(name)
    if made.modality in ("vlm", "text"):
        assert made.summary(config, trainer) == {"blind": {"reward": 0.5}}
        [(title, blank)] = measured
        assert title == "blind" and [one.id for one in blank] == [one.id for one in SEEN]
        assert SEEN[0].media[0].source.pixels.std() > 0 == blank[0].media[0].source.pixels.std()
        config.eval.blind = False
    assert made.summary(config, trainer) == {}
    trainer.evaluation.prompts = ASKED  # a sound has no blank one
    assert made.summary(config_of(name), trainer) == {} == made.summary(config, trainer)
    assert made.blank(ASKED) == []
