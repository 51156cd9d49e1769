"""The client of a chat API: what it sends, what it tries again, when it gives up, and what it may cost."""

from __future__ import annotations

import base64
import io
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest
import torch
from PIL import Image as Pil

from mmgrpo.types import Image
from reward_models.judges import chat
from reward_models.judges.chat import BudgetSpent, ChatJudge
from reward_models.judges.question import Question
from tests.libraries.reward_models.judges.served import chat_server

PICTURE = Image(torch.arange(3 * 2 * 2).reshape(3, 2, 2).float() / 255)
QUESTION = Question(("What is it?", PICTURE))
YES = {"choices": [{"message": {"content": "yes"}}]}


@pytest.fixture
def waits(monkeypatch):
    """Seconds that the client would have waited."""
    seconds = []
    monkeypatch.setattr(chat.time, "sleep", seconds.append)
    return seconds


def test_a_question_is_sent_whole_and_pictures_without_loss(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "secret")
    with chat_server(lambda body, number: "Score: 4") as server:
        judge = ChatJudge(server.url, "m", key="JUDGE_KEY", options='{"seed": 7}')
        assert judge.answers([Question(("What is it?", PICTURE), "It is")], 12) == ["Score: 4"]
    (body,) = server.bodies
    assert (body["model"], body["temperature"], body["max_tokens"], body["seed"]) == ("m", 0, 12, 7)
    assert body["continue_final_message"] is True and body["add_generation_prompt"] is False
    user, start = body["messages"]
    assert start == {"role": "assistant", "content": "It is"}
    text, picture = user["content"]
    assert text == {"type": "text", "text": "What is it?"}
    name, data = picture["image_url"]["url"].split(",")
    assert name == "data:image/png;base64"
    assert np.array_equal(
        Pil.open(io.BytesIO(base64.b64decode(data))), np.arange(12).reshape(3, 2, 2).transpose(1, 2, 0)
    )
    assert server.headers[0]["Authorization"] == "Bearer secret"


def test_answers_are_in_the_order_of_the_questions_although_they_come_in_another(waits):
    last = threading.Event()

    def backwards(body, number):
        text = body["messages"][0]["content"][0]["text"]
        last.set() if text == "3" else last.wait(10)
        return text

    with chat_server(backwards) as server:
        judge = ChatJudge(server.url, "m", parallel=4)
        assert judge.answers([Question((str(n),)) for n in range(4)], 8) == ["0", "1", "2", "3"]


def answering(*answers, **settings):
    """A client whose requests are answered without a server, by bytes or by an error each, in turn."""
    judge, given = ChatJudge("http://127.0.0.1:1/v1", "m", **settings), iter(answers)

    def post(content):
        answer = next(given)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    vars(judge).update(_post=post, _random=SimpleNamespace(random=lambda: 1.0))
    return judge


def refusal(status, text=b"", **headers):
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return HTTPError("http://127.0.0.1:1/v1", status, "", message, io.BytesIO(text))


def test_further_answers_to_a_question_are_drawn():
    with chat_server(lambda body, number: "a") as server:
        judge = ChatJudge(server.url, "m", options='{"seed": 7, "temperature": 0.1}', temperature=0.9, parallel=1)
        judge.answers([Question(("q",)), Question(("q",), draw=1), Question(("q",), draw=2)], 3)
    assert [(body["temperature"], body["seed"]) for body in server.bodies] == [(0.1, 7), (0.9, 1), (0.9, 2)]
    assert len({Question(("q",), draw=draw).digest for draw in range(3)}) == 3  # each is asked, and remembered
    with pytest.raises(ValueError, match="temperature=0"):
        ChatJudge("http://127.0.0.1:1/v1", "m", temperature=0)


def test_waits_double_up_to_half_a_minute_and_a_quarter(waits):
    with pytest.raises(RuntimeError, match="in 9 tries"):
        answering(*[refusal(503)] * 9, tries=9).answers([QUESTION], 8)
    assert waits == [1.25 * wait for wait in (0.5, 1, 2, 4, 8, 16, 30, 30)], "none after the last try"


@pytest.mark.parametrize(("said", "wait"), [("7", 7), ("30", 30), ("31", 30), ("soon", 0.625), ("", 0.625)])
def test_the_server_may_say_how_long_to_wait_but_no_longer_than_half_a_minute(waits, said, wait):
    assert answering(refusal(429, Retry_After=said), YES).answers([QUESTION], 8) == ["yes"]
    assert waits == [wait]


def test_an_answer_has_at_most_16_mebibytes_and_must_be_there_in_time(monkeypatch):
    judge = ChatJudge("http://127.0.0.1:1/v1", "m", seconds=60)
    times: list[float] = []
    monkeypatch.setattr(chat, "time", SimpleNamespace(monotonic=lambda: times.pop(0) if times else 0.0))
    for size in (0, 3, 1 << 24):
        judge._opener = SimpleNamespace(open=lambda *_, size=size, **__: io.BytesIO(bytes(size)))
        assert len(judge._post(b"")) == size
    judge._opener = SimpleNamespace(open=lambda *_, **__: io.BytesIO(bytes((1 << 24) + 1)))
    with pytest.raises(ValueError, match="16777216"):
        judge._post(b"")
    judge._opener = SimpleNamespace(open=lambda *_, **__: io.BytesIO(b"a"))
    times[:] = [10.0, 70.0]
    assert judge._post(b"") == b"a"
    times[:] = [10.0, 70.5]
    with pytest.raises(TimeoutError, match="60 s"):
        judge._post(b"")


def test_after_an_error_no_further_question_is_asked(monkeypatch):
    over, asked = threading.Event(), []

    class Threads(ThreadPoolExecutor):
        def shutdown(self, wait=True, *, cancel_futures=False):
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            over.set()
            super().shutdown(wait)

    def ask(question, wanted):
        asked.append(question)
        if len(asked) > 1:
            over.wait(30)
        raise RuntimeError("refused")

    monkeypatch.setattr(chat, "ThreadPoolExecutor", Threads)
    judge = ChatJudge("http://127.0.0.1:1/v1", "m", parallel=1)
    vars(judge)["_ask"] = ask
    with pytest.raises(RuntimeError, match="refused"):
        judge.answers([QUESTION] * 9, 8)
    assert len(asked) <= 2, "the first, and one that had begun"


def test_a_proxy_is_asked_for_other_hosts_only(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with chat_server(lambda body, number: "proxy") as proxy, chat_server(lambda body, number: "server") as server:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        assert ChatJudge("http://judge.example/v1", "m").answers([QUESTION], 8) == ["proxy"]
        assert ChatJudge(server.url, "m").answers([QUESTION], 8) == ["server"]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again_and_the_waits_double(waits, status):
    with chat_server(lambda body, number: "yes" if number == 3 else status) as server:
        assert ChatJudge(server.url, "m").answers([QUESTION], 8) == ["yes"]
    assert len(server.bodies) == 4
    assert all(0.5 * 2**n <= wait <= 0.625 * 2**n for n, wait in enumerate(waits)) and len(waits) == 3


def test_a_server_that_stays_away_is_an_error_with_its_reason(waits):
    with chat_server(lambda body, number: 503) as server, pytest.raises(RuntimeError, match="2.*503"):
        ChatJudge(server.url, "m", tries=2).answers([QUESTION], 8)
    with pytest.raises(RuntimeError, match="2 tries.*refused"):
        ChatJudge(server.url, "m", tries=2).answers([QUESTION], 8)


@pytest.mark.parametrize("status", [400, 401, 404, 302])
def test_what_is_refused_is_not_asked_again(waits, status):
    answer = (status, {"Location": "http://127.0.0.1:1/v1"}) if status == 302 else status
    with chat_server(lambda body, number: answer) as server, pytest.raises(RuntimeError, match=f"status {status}"):
        ChatJudge(server.url, "m").answers([QUESTION], 8)
    assert len(server.bodies) == 1


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_an_answer_that_is_cut_off_is_none(reason):
    whole = {"choices": [{"message": {"content": "Score: 4"}, "finish_reason": reason}]}
    with chat_server(lambda body, number: whole) as server:
        assert ChatJudge(server.url, "m").answers([QUESTION], 8) == [None]


def test_a_budget_of_requests_counts_further_tries_and_is_never_exceeded(waits):
    with chat_server(lambda body, number: 503) as server:
        with pytest.raises(BudgetSpent, match="3 requests, 0 tokens"):
            ChatJudge(server.url, "m", tries=9, requests=3).answers([QUESTION], 8)
        assert len(server.bodies) == 3


def test_a_budget_of_tokens_ends_when_the_server_has_counted_them():
    with chat_server(lambda body, number: "yes") as server:
        judge = ChatJudge(server.url, "m", parallel=1, total_tokens=150)
        with pytest.raises(BudgetSpent, match="2 requests, 200 tokens"):
            judge.answers([QUESTION] * 3, 8)
    counted = {**YES, "usage": {"total_tokens": 100}}
    with pytest.raises(BudgetSpent, match="1 requests, 100 tokens"):
        answering(counted, counted, parallel=1, total_tokens=100).answers([QUESTION] * 2, 8)
    with (
        chat_server(lambda body, number: {"choices": [{"message": {"content": "a"}}]}) as server,
        pytest.raises(BudgetSpent, match="tokens"),
    ):
        ChatJudge(server.url, "m", total_tokens=150).answers([QUESTION], 8)


def _top(*tokens):
    rows = [{"token": token, "logprob": math.log(p)} for token, p in tokens]
    return {"choices": [{"logprobs": {"content": [{"top_logprobs": rows}]}, "message": {"content": ""}}]}


def test_spellings_of_a_word_are_summed_and_an_absent_word_is_bounded_by_the_last():
    given = _top(("Yes", 0.5), (" yes", 0.25), ("Perhaps", 0.125))
    with chat_server(lambda body, number: given) as server:
        rows: Any = ChatJudge(server.url, "m").log_probs([QUESTION], [("Yes", "yes"), ("No", "no")])
    ((yes, no),) = rows
    assert (math.exp(yes), math.exp(no)) == pytest.approx((0.75, 0.125))
    assert (server.bodies[0]["max_tokens"], server.bodies[0]["top_logprobs"]) == (1, 20)
    assert server.bodies[0]["logprobs"] is True
    assert [turn["role"] for turn in server.bodies[0]["messages"]] == ["user"]  # there is nothing to go on with
    assert not {"continue_final_message", "add_generation_prompt"} & server.bodies[0].keys()


def test_a_word_that_is_impossible_is_minus_infinity():
    given = _top(("Yes", 0.5))
    given["choices"][0]["logprobs"]["content"][0]["top_logprobs"].append({"token": "No", "logprob": -math.inf})
    with chat_server(lambda body, number: given) as server:
        rows: Any = ChatJudge(server.url, "m").log_probs([QUESTION], [("Yes",), ("No",)])
    assert rows == [[math.log(0.5), -math.inf]]


def test_where_none_of_the_words_is_likely_there_is_no_probability():
    with chat_server(lambda body, number: _top(("Maybe", 0.9))) as server:
        assert ChatJudge(server.url, "m").log_probs([QUESTION], [("Yes",), ("No",)]) == [None]


def test_a_server_without_log_probs_is_an_error():
    with chat_server(lambda body, number: "Yes") as server, pytest.raises(ValueError, match="logprobs"):
        ChatJudge(server.url, "m").log_probs([QUESTION], [("Yes",), ("No",)])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"url": "127.0.0.1:8080"}, "http"),
        ({"url": "file:///etc/passwd"}, "http"),
        ({"url": "ftp://host/v1"}, "http"),
        ({"url": "http:///v1"}, "http"),
        ({"url": "http://user:word@host/v1"}, "http"),
        ({"url": "http://host/v1?key=1"}, "http"),
        ({"key": "NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE"),
        ({"options": "[1]"}, "JSON"),
        ({"options": "{"}, "JSON"),
        *(({name: 0}, "expected all to be positive") for name in ("seconds", "tries", "parallel")),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        ChatJudge(**{"url": "http://127.0.0.1:1/v1", "model": "m", **wrong})


@pytest.mark.parametrize(
    "reply",
    [
        *(b"", b"null", b"[]", b"3", b'"text"', b"{", b"\xff\xfe", b"[" * 200_000, b"{}", b'{"choices": null}'),
        *(b'{"choices": {}}', b'{"choices": []}', b'{"choices": [null]}', b'{"choices": ["4"]}', b'{"choices": [[]]}'),
    ],
)
def test_a_reply_of_another_form_is_asked_for_again_and_named(reply, monkeypatch):
    judge = ChatJudge("http://127.0.0.1:1/v1", "m", tries=2)
    asked: list[bytes] = []
    monkeypatch.setattr(judge, "_post", lambda content: asked.append(content) or reply)
    monkeypatch.setattr("reward_models.judges.chat.time.sleep", lambda seconds: None)
    with pytest.raises(RuntimeError, match="2 tries"):
        judge.answers([Question(("?",))], 8)
    assert len(asked) == 2


@pytest.mark.parametrize("message", ["null", "3", "[]", '"4"', "{}", '{"content": null}', '{"content": ["4"]}'])
def test_a_reply_without_a_text_is_no_answer(message, monkeypatch):
    judge = ChatJudge("http://127.0.0.1:1/v1", "m")
    body = f'{{"choices": [{{"message": {message}, "finish_reason": []}}], "usage": {{"total_tokens": -5}}}}'
    monkeypatch.setattr(judge, "_post", lambda content: body.encode())
    assert judge.answers([Question(("?",))], 8) == [None] and judge.used == 0
