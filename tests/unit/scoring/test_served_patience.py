"""How long a client of reward servers waits, for which server, and what it sends and reads of an answer."""

from __future__ import annotations

import json
import math
import threading
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

from mmgrpo.rewards import scorers
from mmgrpo.scoring import served as module
from mmgrpo.scoring.fitting import row_objection
from mmgrpo.scoring.isolation import RewardFailure
from mmgrpo.scoring.served import Client
from mmgrpo.types import Image, Media, Prompt, Text, Turn
from tests.unit.scoring.serving import clock_of_pauses
from tests.unit.scoring.test_served import FACTS, LENGTHS, PROMPTS, TEXTS_OF_MANY_LENGTHS, client, values


@pytest.fixture
def slept(monkeypatch) -> list[float]:
    return clock_of_pauses(monkeypatch)


def refusing(times: int):
    """A server that is busy so many times."""
    left = [times]

    def answer(request: httpx.Request) -> httpx.Response:
        left[0] -= 1
        return httpx.Response(503) if left[0] >= 0 else values(request)

    return answer


def test_pauses_double_to_half_a_minute(slept):
    assert client(refusing(9), pause=0.5, patience=1000)(PROMPTS, TEXTS_OF_MANY_LENGTHS) == LENGTHS
    assert slept == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_another_server_is_tried_at_once_and_the_run_is_told_when_all_have_failed(slept, capsys):
    urls = ("http://a", "http://b", "http://c")
    assert client(refusing(4), urls, pause=0.5, patience=1000, batch=9)(PROMPTS, TEXTS_OF_MANY_LENGTHS) == LENGTHS
    assert slept == [0, 0, 2, 4]
    assert capsys.readouterr().err.count("the run waits for it, 1000 s at most") == 1


def test_no_pause_begins_that_would_outlast_the_patience(slept):
    for patience, pauses in ((3.5, [0.5, 1]), (3.6, [0.5, 1, 2])):  # the next would be of 2 s, of 4 s
        with pytest.raises(RewardFailure, match=f" {patience} s"):
            client(refusing(99), pause=0.5, patience=patience)(PROMPTS, TEXTS_OF_MANY_LENGTHS)
        assert slept == pauses
        slept.clear()
    with pytest.raises(RewardFailure):
        client(refusing(99), ("http://a", "http://b"), patience=0, batch=9)(PROMPTS, TEXTS_OF_MANY_LENGTHS)
    assert slept == [0.0], "each server is asked once, however little patience there is"


def test_a_server_that_is_still_loading_is_waited_for(slept):
    asked = []

    def transport(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if request.url.path == "/health":
            ready = asked.count("/health") > 2
            return httpx.Response(200 if ready else 503, json={"version": 1, "status": "ready" if ready else "loading"})
        return httpx.Response(200, json={"rewards": {"length": FACTS}})

    one = Client(["http://a/"], "length", timeout=20.0, transport=httpx.MockTransport(transport))
    assert one.facts() == one.facts() == FACTS and asked == [*3 * ["/health"], "/manifests"]


@pytest.mark.parametrize(
    ("since", "chosen"), [(None, ["a", "b", "a"]), (30.0, ["a", "a", "a"]), (30.1, ["a", "b", "a"])]
)
def test_a_server_that_failed_is_left_out_for_half_a_minute(since, chosen, monkeypatch):
    one = client(values, ("http://a", "http://b"))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 100.0))
    if since is not None:
        one._down["http://b"] = 100.0 - since
    assert [one._choose(number)[-1] for number in range(3)] == chosen
    one._down = {"http://a": 99.0, "http://b": 99.0}
    assert [one._choose(number)[-1] for number in range(3)] == ["a", "b", "a"], "where all failed, all are tried"


def test_two_parts_are_on_their_way_to_each_server_and_no_more():
    now, most, lock, pair = [0], [0], threading.Lock(), threading.Barrier(2, timeout=60)

    def answer(request: httpx.Request) -> httpx.Response:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        pair.wait()  # passed only where there are two at once
        with lock:
            now[0] -= 1
        return values(request)

    assert client(answer, batch=1)(PROMPTS, TEXTS_OF_MANY_LENGTHS) == LENGTHS
    assert most == [2]


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"timeout": 0}, {"timeout": math.nan}, {"patience": -1}])
def test_settings_without_a_meaning_are_refused(wrong):
    with pytest.raises(ValueError, match="batch.*timeout.*patience.*0"):
        client(values, **wrong)
    client(values, batch=1, patience=0)


@pytest.mark.parametrize("urls", [("http://a", "a"), ("http://a", "http:///b"), ("http://a", "ftp://b")])
def test_every_url_is_one(urls):
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        client(values, urls)


@pytest.mark.parametrize("url", [3, None, ["http://a", 3], ("http://a",)])
def test_urls_are_texts(url):
    with pytest.raises(ValueError, match="text or a list"):
        module._urls(url)


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx.Response(200, json=[1]), "http://a answers 200: no JSON"),
        (httpx.Response(200, content=b"{"), "http://a answers 200: no JSON"),
        (httpx.Response(200, content=b"[" * 100_000), "http://a answers 200: no JSON"),
        (httpx.Response(201, json={"values": {}}), "http://a answers 201: no JSON"),
        (httpx.Response(200, json={"values": [1.0]}), "http://a: got values of other outputs than those that it was"),
    ],
)
def test_an_answer_that_is_none_is_told(response, words):
    with pytest.raises(RewardFailure) as caught:
        client(lambda request: response)(PROMPTS, TEXTS_OF_MANY_LENGTHS)
    assert str(caught.value).startswith(words) and len(str(caught.value)) < 2100


@pytest.mark.parametrize("error", [httpx.LocalProtocolError, httpx.UnsupportedProtocol])
def test_a_request_that_cannot_be_sent_is_not_tried_again(error, slept):
    def broken(request: httpx.Request) -> httpx.Response:
        raise error("a newline in the token")

    with pytest.raises(RewardFailure, match="token and the url"):
        client(broken)(PROMPTS, TEXTS_OF_MANY_LENGTHS)
    assert slept == []


def test_an_answer_may_be_as_long_as_its_values_allow(monkeypatch):
    monkeypatch.setattr(module, "ANSWER", 0)
    scored = json.dumps({"values": {str(place): value for place, value in enumerate(LENGTHS)}}).encode()
    for size, fits in ((6 * module.PER_VALUE, True), (6 * module.PER_VALUE + 1, False)):
        one = client(lambda request, size=size: httpx.Response(200, content=scored.ljust(size)))
        one._facts = FACTS
        if fits:
            assert one(PROMPTS, TEXTS_OF_MANY_LENGTHS) == LENGTHS
        else:
            with pytest.raises(RewardFailure, match="600 bytes"):
                one(PROMPTS, TEXTS_OF_MANY_LENGTHS)


def test_an_answer_that_trickles_is_given_up_after_its_time(monkeypatch):
    clock = iter([0.0, 20.0, 20.1])  # when the request is sent, and after each part of the answer

    def parts() -> Any:
        yield b"{"
        yield b"}"

    one = client(lambda request: httpx.Response(200, content=parts()))
    one._facts = FACTS
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock, 99.0)))
    one._choose = lambda number: "http://a"
    with pytest.raises(RewardFailure, match="or too slowly"):
        one._score(b"", ["0"], "http://a")
    assert next(clock, "over") == "over", "both parts were read"


def test_media_of_prompts_are_sent_only_to_rewards_that_read_them_and_a_whole_batch_where_outputs_are_compared():
    asked: list[dict[str, Any]] = []

    def note(request: httpx.Request) -> httpx.Response:
        size = int.from_bytes(request.content[:8], "big")
        asked.append(json.loads(request.content[8 : 8 + size]))
        return values(request)

    shown = Prompt("p", turns=(Turn("user", (Media("image", Image(torch.zeros(3, 1, 1))), "what?")),))
    reads = ((None, 2), ({"reads": ["media"]}, 2), ({"reads": ["reward"]}, 2), ({"reads": ["text"]}, 1))
    for manifest, sent in reads:
        one = client(note, batch=1)
        one._facts = {**FACTS, "manifest": manifest, "alone": manifest is None}
        assert one([shown, shown], [Text("a"), Text("bb")]) == [1, 2]
        requests = [asked.pop() for _ in range(1 if manifest is None else 2)]
        assert asked == [] and {len(r["prompts"][0]["turns"][0]["parts"]) for r in requests} == {sent}
        assert one([], []) == [] and asked == []


def test_files_of_prompts_are_refused_before_a_run_where_the_reward_of_a_server_may_read_them(monkeypatch):
    kept, shown = (
        Prompt("p", "row 1", turns=(Turn("user", (Media("image", source), "what?")),))
        for source in (Image(torch.zeros(3, 1, 1)), "photos/a.png")
    )
    one = client(values)
    one._facts = {**FACTS, "manifest": None}
    monkeypatch.setattr(module, "_client", lambda *given: one)
    (judge,) = scorers(["served(reward='judge', url='http://a')"])
    for manifest, refused in ((None, True), ({"reads": ["media"]}, True), ({"reads": ["text"]}, False)):
        one._facts = {**FACTS, "manifest": manifest}
        assert ("photos/a.png" in row_objection(judge, shown)) is refused
        assert not row_objection(judge, kept) and not row_objection(judge, Prompt("p"))
