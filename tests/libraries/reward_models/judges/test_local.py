"""A judge in this process: a small model of a real architecture (Idefics3) with random weights."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

from mmgrpo.types import Image
from reward_models.judges.local import LocalJudge, first_tokens, load_judge
from reward_models.judges.question import Question
from reward_models.pixels import to_pil
from tests.tiny import maker, tiny_checkpoint
from tests.tiny import smolvlm as smolvlm_tiny

WORDS = [("yes",), ("no",)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from transformers import AutoProcessor

    place = smolvlm_tiny.tiny(tmp_path_factory.mktemp("judge"), "idefics3")
    AutoProcessor.from_pretrained(place, image_seq_len=4).save_pretrained(place)
    return place


def pickled(place):
    """The same weights, as a pickle."""
    torch.save(load_file(place / "model.safetensors"), place / "pytorch_model.bin")
    (place / "model.safetensors").unlink()


def foreign(place):
    """A model whose classes are in its folder."""
    (place / "own.py").write_text(f"open({str(place / 'run')!r}, 'w')\nclass Own: pass\n")
    config = json.loads((place / "config.json").read_text())
    classes = {"AutoConfig": "own.Own", "AutoModelForImageTextToText": "own.Own"}
    (place / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": classes}))


def raising(place):
    """A template that takes texts only, and whose weights need not be read to see it."""
    written = "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}"
    written += "{{ raise_exception('no pictures here') }}{% endif %}{{ p.text }}{% endfor %}{% endfor %}"
    (place / "chat_template.jinja").write_text(written)
    (place / "model.safetensors").unlink()


def unclosed(place):
    (place / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}")


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


def test_a_further_answer_is_drawn_from_a_seed_of_its_own(folder):
    judge = load_judge(folder, batch=2, temperature=2.0)
    judge.network.generation_config.eos_token_id = list(range(len(judge.processor.tokenizer)))
    drawn = [replace(QUESTIONS[0], draw=draw) for draw in range(24)]
    torch.manual_seed(0)
    answers = judge.answers(drawn, 3)
    state = torch.get_rng_state()
    assert answers[0] == judge.answers(QUESTIONS[:1], 3)[0] and len({*answers}) > 1
    assert judge.answers(drawn[::-1], 3) == answers[::-1]  # whatever is asked beside it
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match="temperature.*0"):
        load_judge(folder, temperature=0)


class Inputs(dict):
    """What a processor gives."""


class Numbers:
    """A tokenizer that adds nothing."""

    eos_token_id = None
    added_tokens_decoder: ClassVar[dict[int, Any]] = {}
    all_special_ids: ClassVar[list[int]] = []

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [len(word) for word in text.split()]}


class Processor:
    """Numbers the words of a text; keeps what it was given."""

    chat_template, tokenizer = "template", Numbers()

    def __init__(self):
        self.given = []

    def apply_chat_template(self, turns, add_generation_prompt, tokenize):
        assert not tokenize
        return " ".join(part.get("text", "<picture>") for turn in turns for part in turn["content"])

    def __call__(self, text, padding, return_tensors, **media):
        assert padding is True and return_tensors == "pt"
        self.given.append((text, *(len(row) for row in media.get("images", ()))))
        return Inputs(input_ids=torch.zeros(len(text), 2, dtype=torch.long))

    def batch_decode(self, ids, skip_special_tokens):
        return [" ".join(str(one) for one in row if one < 8 or not skip_special_tokens) for row in ids.tolist()]


class Network:
    """Writes the same tokens whatever it is asked; 8 and 9 end an answer."""

    written = torch.tensor([[5, 8, 0], [5, 6, 7], [9, 9, 9]])

    def __init__(self, ends):
        self.generation_config, self.asked = SimpleNamespace(eos_token_id=ends), []

    def generate(self, input_ids, **options):
        self.asked.append(options)
        return torch.cat([input_ids, self.written[: len(input_ids)]], 1)


@pytest.mark.parametrize(("ends", "answers"), [([8, 9], ["5 0", None, ""]), (8, ["5 0", None, None])])
def test_an_answer_ends_at_any_of_the_ends_and_is_the_most_probable_one(ends, answers):
    network, processor = Network(ends), Processor()
    judge = LocalJudge(network, processor, 3, torch.device("cpu"))
    assert judge.answers([Question(("a",)), Question(("b",), " so"), Question(("c",))], 3) == answers
    assert network.asked == [{"max_new_tokens": 3, "do_sample": False, "eos_token_id": [ends] if ends == 8 else ends}]
    assert processor.given == [(["a", "b so", "c"],)], "without pictures none are given"


def test_questions_with_and_without_pictures_are_asked_together():
    processor = Processor()
    judge = LocalJudge(Network(8), processor, 2, torch.device("cpu"))
    assert len(judge.answers([Question(("a",)), Question(("b", picture(0))), Question((picture(1), "c"))], 3)) == 3
    assert processor.given == [(["a", "b <picture>"], 0, 1), (["<picture> c"], 1)]


def test_a_question_begins_once_where_template_and_tokenizer_both_write_the_beginning():
    judge = load_judge(str(tiny_checkpoint(maker("image_text"), kind="gemma3", published=True)))
    (batch,) = judge._batches(QUESTIONS[:1])
    assert batch["input_ids"].tolist()[0].count(judge.processor.tokenizer.bos_token_id) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda place: (place / "chat_template.jinja").unlink(), "chat template"),
        (raising, "judge.*chat template.*an image and a text.*no pictures here.*chat_template.jinja"),
        (unclosed, "judge.*chat template.*chat_template.jinja"),
        (pickled, "model.safetensors"),
        (foreign, "loaded"),
    ],
)
def test_a_folder_without_a_template_or_with_code_in_it_is_refused(folder, tmp_path, change, message):
    place = tmp_path / "judge"
    shutil.copytree(folder, place)
    change(place)
    with pytest.raises(ValueError, match=message):
        load_judge(str(place))
    assert not (tmp_path / "judge" / "run").exists()


def test_words_that_begin_alike_or_are_unknown_cannot_be_told_apart(folder):
    tokenizer = load_judge(folder).processor.tokenizer
    ids = tokenizer.get_vocab()
    assert first_tokens(tokenizer, [("yes", "no"), ("left",)]) == [sorted((ids["yes"], ids["no"])), [ids["left"]]]
    assert first_tokens(tokenizer, [("yes left",), ("no left",)]) == [[ids["yes"]], [ids["no"]]]
    for words in ([("yes", "left"), ("left", "no")], [("yes",), ("excellent",)]):
        with pytest.raises(ValueError, match="different"):
            first_tokens(tokenizer, words)


def test_what_a_tokenizer_puts_before_every_text_is_no_word():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({"<s>": 0, "yes": 1, "no": 2, "[UNK]": 3}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]")
    assert first_tokens(tokenizer, WORDS) == [[1], [2]]


def test_a_space_that_is_a_token_of_its_own_is_no_word():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({" ": 0, "yes": 1, "no": 2, "[UNK]": 3}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]")
    assert first_tokens(tokenizer, WORDS) == [[1], [2]]


def test_a_folder_that_holds_no_judge_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ValueError, match=f"judge.*{tmp_path}"):
        load_judge(str(tmp_path))
    for wrong in ({"dtype": "int8"}, {"batch": 0}):
        with pytest.raises(ValueError, match="batch"):
            load_judge(str(tmp_path), **wrong)
