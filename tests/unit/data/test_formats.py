"""Rows as other projects lay them out: each becomes the prompt that it means, with the answer that a verifier takes."""

from __future__ import annotations

from typing import Any

import pytest

from mmgrpo.data.columns import unwrap
from mmgrpo.data.messages import prompt_of
from mmgrpo.policies.token_model import answer_of, answers_of

BLOCKS = [{"type": "text", "text": "What is it?"}]
FORMATS: dict[str, tuple[dict[str, Any], str, str, Any]] = {
    "TRL": (
        {"prompt": [{"role": "user", "content": "What is it?"}], "image": "a.png", "solution": "x"},
        *("image", "a.png", "x"),
    ),
    "LLaVA": (
        {
            "conversations": [{"from": "human", "value": "<image>What is it?"}, {"from": "gpt", "value": "x"}],
            "image": "a.png",
        },
        *("image", "a.png", "x"),
    ),
    "EasyR1": ({"problem": "<image>What is it?", "images": ["a.png"], "answer": "x"}, *("image", "a.png", "x")),
    "ms-swift": (
        {"messages": [{"role": "user", "content": "<image>What is it?"}], "images": ["a.png"], "solution": "x"},
        *("image", "a.png", "x"),
    ),
    "R1-V": (
        {"image": "a.png", "problem": "What is it?", "solution": "<answer> x </answer>"},
        *("image", "a.png", "x"),
    ),
    "VLM-R1": (
        {
            "image": "a.png",
            "conversations": [
                {"from": "human", "value": "<image>What is it?"},
                {"from": "gpt", "value": "<think>so</think> <answer>x</answer>"},
            ],
        },
        *("image", "a.png", "x"),
    ),
    "OpenAI": (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}, *BLOCKS]},
                {"role": "assistant", "content": "x"},
            ]
        },
        *("image", "a.png", "x"),
    ),
    "question and answer": (
        {"question": "What is it?", "image": "a.png", "answer": "x"},
        *("image", "a.png", "x"),
    ),
    "NeMo": ({"audio_filepath": "a.wav", "duration": 1.5, "text": "a word"}, *("audio", "a.wav", "a word")),
    "Common Voice": ({"audio": "a.wav", "sentence": "a word"}, *("audio", "a.wav", "a word")),
    "audio folder": ({"audio": {"path": "a.wav"}, "transcription": "a word"}, *("audio", "a.wav", "a word")),
}
"""Project to a row of its data, and the kind of its medium, its file and its answer."""


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_is_read_as_it_is(name):
    row, kind, file, answer = FORMATS[name]
    prompt = prompt_of(row, "the file:1", "1", "media")
    (medium,) = prompt.media
    assert (medium.kind, medium.source) == (kind, f"media/{file}")
    assert prompt.answer == answer
    assert prompt.text == ("" if kind == "audio" else "What is it?")


def test_a_question_beside_a_text_stays_what_it_was():
    prompt = prompt_of({"text": "Say it.", "question": "Which?"}, "the file:1", "1")
    assert prompt.text == "Say it." and prompt.meta == {"question": "Which?"}
    heard = prompt_of({"text": "Transcribe.", "audio": "a.wav", "answer": "b"}, "the file:1", "1")
    assert (heard.text, heard.answer) == ("Transcribe.", "b")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("<answer>\n4\n</answer>", "4"),
        ("<think>2 + 2\nis 4</think><answer>4</answer> ", "4"),
        ("4 <answer>5</answer>", "4 <answer>5</answer>"),
        ("<answer>4</answer> or <answer>5</answer>", "<answer>4</answer> or <answer>5</answer>"),
        ("<answer></answer>", ""),
        ([1, 2], [1, 2]),
        (None, None),
    ],
)
def test_tags_of_a_completion_are_taken_off_where_they_hold_all_of_it(written, meant):
    assert unwrap(written) == meant


@pytest.mark.parametrize(
    ("row", "learned"),
    [
        ({"text": "2 + 2?", "answer": "4"}, "4"),
        ({"text": "2 + 2?", "answer": "<answer> 4 </answer>"}, "<answer> 4 </answer>"),
        (
            {"problem": "2 + 2?", "solution": "<think>so</think><answer>4</answer>"},
            "<think>so</think><answer>4</answer>",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "2 + 2?"},
                    {"role": "assistant", "content": "<think>so</think> <answer>4</answer>"},
                ]
            },
            "<think>so</think> <answer>4</answer>",
        ),
    ],
)
def test_an_answer_is_compared_without_tags_and_learned_with_them(row, learned):
    prompt = prompt_of(row, "the file:1", "1")
    assert prompt.answer == "4" and answers_of(prompt) == [learned] and answer_of(prompt) == learned


def test_a_picture_in_a_url_is_not_fetched():
    blocks = [{"type": "image_url", "image_url": {"url": "https://a.b/c.png", "detail": "low"}}, *BLOCKS]
    with pytest.raises(ValueError, match="file:1.*https://a.b/c.png"):
        prompt_of({"messages": [{"role": "user", "content": blocks}]}, "the file:1", "1")
