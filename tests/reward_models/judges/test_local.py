"""A judge in this process: a small model of a real architecture (Idefics3) with random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmgrpo.types import Image
from pipelines.vlm import smolvlm_tiny
from reward_models.judges.local import first_tokens, load_judge
from reward_models.judges.question import Question
from reward_models.pixels import to_pil

WORDS = [("yes",), ("no",)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from transformers import AutoProcessor

    place = smolvlm_tiny.tiny(tmp_path_factory.mktemp("judge"), "idefics3")
    AutoProcessor.from_pretrained(place, image_seq_len=4).save_pretrained(place)
    return place


def picture(seed, height=16, width=16):
    return Image(torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed)))


QUESTIONS = [
    Question(("is the circle red ?", picture(0))),
    Question((picture(1, 24, 16), "or is it left of the blue square ?", picture(2), "answer")),
    Question(("is it", picture(1)), start=" the"),
]


def test_a_batch_is_judged_as_its_questions_alone(folder):
    together, alone = load_judge(folder, batch=3), load_judge(folder, batch=1)
    rows: Any = together.log_probs(QUESTIONS, WORDS)
    torch.testing.assert_close(torch.tensor(rows), torch.tensor(alone.log_probs(QUESTIONS, WORDS)), rtol=0, atol=1e-5)
    assert len({tuple(row) for row in rows}) == 3, "every question has an answer of its own"


def test_the_probability_of_a_word_is_that_of_the_whole_vocabulary(folder):
    judge = load_judge(folder)
    text = judge.processor.apply_chat_template(
        [{"role": "user", "content": [{"type": "text", "text": "is it"}, {"type": "image"}]}],
        add_generation_prompt=True,
        tokenize=False,
    )
    inputs = judge.processor(text=[text + " the"], images=[[to_pil(picture(1))]], return_tensors="pt")
    logits = judge.network(**inputs).logits[0, -1]
    ids = [judge.processor.tokenizer.get_vocab()[word] for (word,) in WORDS]
    expected = [float(logits[one] - logits.logsumexp(0)) for one in ids]
    assert judge.log_probs(QUESTIONS[2:], WORDS) == [pytest.approx(expected, abs=1e-6)]


def test_an_answer_is_what_comes_after_the_question_and_must_have_ended(folder):
    judge = load_judge(folder, batch=2)
    assert judge.answers(QUESTIONS, 3) == [None] * 3, "no end within three tokens"
    judge.network.generation_config.eos_token_id = list(range(len(judge.processor.tokenizer)))
    answers = judge.answers(QUESTIONS, 3)
    assert all(answer is not None and len(answer.split()) <= 1 for answer in answers)


def test_words_that_begin_alike_or_are_unknown_cannot_be_told_apart(folder):
    tokenizer = load_judge(folder).processor.tokenizer
    ids = tokenizer.get_vocab()
    assert first_tokens(tokenizer, [("yes", "no"), ("left",)]) == [sorted((ids["yes"], ids["no"])), [ids["left"]]]
    for words in ([("yes", "left"), ("left", "no")], [("yes",), ("excellent",)]):
        with pytest.raises(ValueError, match="expected different ones for each word"):
            first_tokens(tokenizer, words)


def test_what_a_tokenizer_puts_before_every_text_is_no_word():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({"<s>": 0, "yes": 1, "no": 2, "[UNK]": 3}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]")
    assert first_tokens(tokenizer, WORDS) == [[1], [2]]


def test_a_folder_that_holds_no_judge_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ValueError, match=f"judge: {tmp_path} cannot be loaded as a vision-language model"):
        load_judge(str(tmp_path))
    with pytest.raises(ValueError, match="expected a positive batch"):
        load_judge(str(tmp_path), dtype="int8")
