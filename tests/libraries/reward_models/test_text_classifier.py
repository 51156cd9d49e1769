"""Scores of sequence classifiers, and the attention by which they share them out."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmgrpo.rewards import scorer
from mmgrpo.types import Prompt, Text
from reward_models.text_classifier import attention_remarks, shares_of, text_classifier
from tests.tiny.causal_lm import KINDS, tokenizer_of

PROMPT = Prompt("how many", "p")


def written(folder: Path, kind: str, causal: bool = True) -> str:
    """A random classifier of two labels with a tokenizer over words."""
    import transformers

    tokenizer = tokenizer_of(KINDS[kind])
    size = {"vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    size |= {"num_attention_heads": 2, "num_labels": 2}
    torch.manual_seed(0)
    if causal:
        config: Any = transformers.MistralConfig(**size, num_key_value_heads=2)
        network: Any = transformers.MistralForSequenceClassification(config)
    else:
        config = transformers.XLMRobertaXLConfig(**size, max_position_embeddings=12)
        network = transformers.XLMRobertaXLForSequenceClassification(config)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def chatting(tmp_path_factory) -> str:
    return written(tmp_path_factory.mktemp("chat"), "qwen2.5")


@pytest.fixture(scope="module")
def pairing(tmp_path_factory) -> str:
    return written(tmp_path_factory.mktemp("pair"), "base", causal=False)


def test_the_score_is_that_of_transformers_on_the_conversation(chatting):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    network = AutoModelForSequenceClassification.from_pretrained(chatting).eval()
    tokenizer = AutoTokenizer.from_pretrained(chatting)
    turns = [{"role": "user", "content": PROMPT.text}, {"role": "assistant", "content": "the blue is 3"}]
    ids = tokenizer(tokenizer.apply_chat_template(turns, tokenize=False), return_tensors="pt")["input_ids"]
    with torch.no_grad():
        wanted = network(input_ids=ids).logits[0]
    made = [text_classifier([PROMPT], [Text("the blue is 3")], chatting, label=label)[0] for label in (0, 1)]
    assert made == pytest.approx(wanted.tolist(), abs=1e-6)
    with pytest.raises(ValueError, match=r"label.*2"):
        text_classifier([PROMPT], [Text("the")], chatting, label=2)


@pytest.mark.parametrize(("fixture", "form"), [("chatting", "chat"), ("chatting", "joined"), ("pairing", "pair")])
def test_shares_are_of_the_words_of_the_answer_and_sum_to_one(fixture, form, request):
    remarks = attention_remarks(request.getfixturevalue(fixture), form)
    [said] = remarks([PROMPT], [Text(" the blue\nis 3")])
    assert [(first, behind) for first, behind, _ in said["shares"]] == [(1, 4), (5, 9), (10, 12), (13, 14)]
    assert math.fsum(share for _, _, share in said["shares"]) == pytest.approx(1, abs=1e-6)
    assert len({round(share, 6) for _, _, share in said["shares"]}) == 4


def test_shares_are_the_attention_of_the_last_token_of_the_text_averaged_over_heads():
    """ABC, arXiv:2402.00782: two heads of .1 .3 and .3 .3 of the last layer: .2 and .3, that is .4 and .6."""
    last = torch.zeros(1, 2, 4, 4)
    last[0, :, 2, 1:3] = torch.tensor([[0.1, 0.3], [0.3, 0.3]])
    last[0, :, 3] = 9.0  # a token behind the text
    places = [(0, 0), (0, 3), (4, 6), (0, 0)]
    assert shares_of([torch.ones(1, 2, 4, 4), last], places, 0) == [
        (0, 3, pytest.approx(0.4)),
        (4, 6, pytest.approx(0.6)),
    ]
    assert shares_of([last], places, 3) == [(1, 3, 1.0)]  # what the chat template wrote of the answer has none
    assert shares_of([last], [(0, 0)] * 4, 0) == []


def test_a_text_beyond_the_positions_of_the_model_has_no_score(pairing):
    long = Text(" ".join(["blue"] * 12))
    assert math.isnan(text_classifier([PROMPT], [long], pairing, form="pair")[0])
    assert attention_remarks(pairing, "pair")([PROMPT], [long]) == [{}]


def test_an_answer_that_the_template_leaves_out_has_no_shares(chatting, monkeypatch):
    monkeypatch.setattr(
        "reward_models.text_classifier.ChatTemplate", lambda _: SimpleNamespace(text=lambda *a, **b: "a")
    )
    assert attention_remarks(chatting)([PROMPT], [Text("the blue")]) == [{"shares": []}]


def test_a_form_is_known_and_a_reward_shares_its_value(chatting):
    assert scorer(f"text_classifier(model='{chatting}')").remarks is not None
    with pytest.raises(ValueError, match="form='chta'"):
        scorer("text_classifier(model='a/b', form='chta')")
