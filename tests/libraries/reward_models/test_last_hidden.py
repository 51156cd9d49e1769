"""Features of a language model: the state at the last token of the answer; what a vision-language model is shown."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from mmgrpo.types import Audio, Image, Media, Prompt, Text, Turn
from reward_models import last_hidden as module
from reward_models.evaluation.comparison import FIRST, Comparison
from reward_models.last_hidden import last_hidden
from reward_models.pixels import to_pil
from reward_models.preference import preference, save
from reward_models.preference_training import Fitting, train
from tests.tiny import maker, tiny_checkpoint


@pytest.fixture(scope="module")
def folder() -> str:
    """A language model, tiny."""
    return str(tiny_checkpoint(maker("causal_lm")))


def test_rows_are_the_last_state_of_the_whole_conversation(folder):
    from transformers import AutoModel, AutoTokenizer

    rows = last_hidden([Prompt("how many are red")] * 2, [Text("2"), Text("the blue is 3")], model=folder)
    tokenizer, network = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    with torch.no_grad():  # this tokenizer has no template, so lines are lines
        text = tokenizer("how many are red\nthe blue is 3", return_tensors="pt")
        expected = network(**text).last_hidden_state[0, -1]
    assert torch.allclose(rows[1], expected, atol=1e-5) and not torch.allclose(rows[0], rows[1], atol=1e-3)


def test_a_head_is_trained_and_served_on_these_features(folder, tmp_path):
    one = Comparison(Prompt("how many"), (Text("the blue is 3"), Text("2")), FIRST, "1")
    how = Fitting(epochs=40, lr=0.01)
    save(train([one], "reward_models.last_hidden:last_hidden", {"model": folder}, how), tmp_path)
    good, bad = preference([Prompt("how many")] * 2, [Text("the blue is 3"), Text("2")], str(tmp_path))
    assert good > bad + 1


def test_pictures_of_the_prompt_come_before_the_one_that_is_judged(monkeypatch):
    shown = []

    class Processor:
        chat_template = "template"

        def apply_chat_template(self, turns, add_generation_prompt, tokenize):
            shown.append(turns)
            return "".join(part.get("text", "#") for turn in turns for part in turn["content"])

        def __call__(self, text, return_tensors="", images=(), add_special_tokens=True):
            if isinstance(text, str):
                return {"input_ids": [1, 2]}
            shown.append([picture.getpixel((0, 0))[0] for picture in images])
            return Inputs(attention_mask=torch.tensor([[1, 1, 0]]))

    class Inputs(dict):
        def to(self, device):
            return self

    states = SimpleNamespace(last_hidden_state=torch.tensor([[[1.0], [2.0], [3.0]]]))
    monkeypatch.setattr(module, "_load", lambda model, device, adapters: (Processor(), lambda **inputs: states))
    dark, light = (Image(torch.full((3, 2, 2), value)) for value in (0.0, 1.0))
    prompt = Prompt("lighter", turns=(Turn("user", (Media("image", dark), "lighter")),))
    assert last_hidden([prompt], [light], model="some/vlm").tolist() == [[2.0]]  # the third token is padding
    parts = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "lighter"}]
    assert shown[-2:] == [[{"role": "user", "content": parts}], [0, 255]]


class Words:
    """A processor without a template that keeps what it is given."""

    def __init__(self):
        self.given = []

    def __call__(self, text, add_special_tokens=True, **given):
        if isinstance(text, str):
            return {"input_ids": [1, 2]}
        self.given.append({"text": text, **given})
        return SimpleNamespace(to=lambda device: {"attention_mask": torch.ones(1, 1)})


def test_a_text_comes_without_pictures_and_a_picture_may_be_a_file(tmp_path):
    processor, states = Words(), SimpleNamespace(last_hidden_state=torch.ones(1, 1, 1))
    module.state(processor, lambda **_: states, Prompt("a"), Text("b"), "cpu")
    assert processor.given == [{"text": ["a\nb"], "return_tensors": "pt"}]
    to_pil(Image(torch.ones(3, 2, 5))).save(tmp_path / "white.png")
    asked = Prompt("a", turns=(Turn("user", (Media("image", str(tmp_path / "white.png")), "a")),))
    module.state(processor, lambda **_: states, asked, Text("b"), "cpu")
    assert [picture.size for picture in processor.given[1]["images"]] == [(5, 2)]


@pytest.mark.parametrize(("answer", "pictures"), [("yes", 0), ("", 0), ("", 1), ("yes", 1)])
@pytest.mark.parametrize("kind", ["qwen2.5", "llama3"])
def test_turns_are_in_the_form_that_the_template_reads(kind, answer, pictures):
    from tests.tiny.causal_lm import KINDS, tokenizer_of

    tokenizer = tokenizer_of(KINDS[kind])
    if pictures:  # a template of lists
        tokenizer.chat_template = "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{{ p.text or '#' }}"
        tokenizer.chat_template += "{% endfor %};{% endfor %}"
    text = module._conversation(tokenizer, "how many", answer, pictures)
    assert "{'type'" not in text and text.count("how many") == 1 and text.count("#") == pictures
    assert text.count("yes") == bool(answer)


def test_a_conversation_begins_once_where_template_and_tokenizer_both_write_the_beginning():
    from tests.tiny.causal_lm import KINDS, tokenizer_of

    tokenizer, ids = tokenizer_of(KINDS["gemma2"]), []

    def network(input_ids, attention_mask):
        ids.extend(input_ids[0].tolist())
        return SimpleNamespace(last_hidden_state=torch.zeros(*input_ids.shape, 1))

    module.state(tokenizer, network, Prompt("how many"), Text("yes"), "cpu")
    assert ids.count(tokenizer.bos_token_id) == 1


def test_weights_are_frozen_and_read_from_safetensors_only(folder, tmp_path):
    _, network = module.load_frozen(folder, "cpu")
    assert not network.training and not any(one.requires_grad for one in network.parameters())
    place = tmp_path / "lm"
    shutil.copytree(folder, place)
    torch.save(load_file(place / "model.safetensors"), place / "pytorch_model.bin")
    (place / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="pytorch_model.bin"):
        last_hidden([Prompt("a")], [Text("b")], model=str(place))


def test_a_template_that_raises_names_the_model_and_its_file(folder, tmp_path):
    place = tmp_path / "lm"
    shutil.copytree(folder, place)
    (place / "chat_template.jinja").write_text("{{ raise_exception('no answers here') }}")
    with pytest.raises(ValueError, match="last_hidden.*lm.*no answers here.*chat_template.jinja"):
        last_hidden([Prompt("a")], [Text("b")], model=str(place))


def test_what_it_cannot_look_at_is_refused(folder):
    with pytest.raises(TypeError, match="Audio.*Text.*Image"):
        last_hidden([Prompt("a")], [Audio(torch.zeros(1, 1), 16000)], model=folder)
    heard = Prompt("a", turns=(Turn("user", (Media("audio", "a.wav"), "a")),))
    with pytest.raises(TypeError, match="audio"):
        last_hidden([heard], [Text("a")], model=folder)
