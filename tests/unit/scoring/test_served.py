"""The client of reward servers: the same values, patience with what passes, and an end to what does not."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from mmgrpo.rewards import scorer
from mmgrpo.scoring import score_outputs
from mmgrpo.scoring.envelope import Limits
from mmgrpo.scoring.isolation import RewardFailure
from mmgrpo.scoring.manifest import Manifest
from mmgrpo.scoring.served import Client, check, is_local
from mmgrpo.types import Prompt, Text
from tests.unit.runtime.ports import meeting_port
from tests.unit.scoring.serving import PICTURES, TEXTS, batches, length, mean, pictures, serving, url

PROMPTS = [Prompt(str(number)) for number in range(6)]
TEXTS_OF_MANY_LENGTHS = [Text("x" * number) for number in (3, 1, 4, 1, 5, 9)]
LENGTHS = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0]

FACTS = {"timeout": 10.0, "alone": False, "manifest": None}


def client(answer: Callable[[httpx.Request], httpx.Response], urls: tuple[str, ...] = ("http://a",), **options: Any):
    """A client of servers that are a function; health and manifests are answered here."""

    def transport(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/health":
            return httpx.Response(200, json={"version": 1, "status": "ready"})
        if request.url.path == "/manifests":
            return httpx.Response(200, json={"version": 1, "rewards": {"length": FACTS}})
        return answer(request)

    settings = {"timeout": 20.0, "patience": 60.0, "pause": 0.001, **options}
    return Client(urls, "length", transport=httpx.MockTransport(transport), **settings)


def values(request: httpx.Request, **changes: Any) -> httpx.Response:
    """The right answer to a request for lengths of texts."""
    body = request.content
    outputs = json.loads(body[8 : 8 + int.from_bytes(body[:8], "big")])["outputs"]
    scored = {row["id"]: float(len(row["text"])) for row in outputs}
    return httpx.Response(200, json={"version": 1, "values": {**scored, **changes}})


@pytest.mark.slow
def test_values_are_those_in_process_bit_for_bit_however_outputs_are_divided():
    outputs, prompts = pictures(11), [Prompt("a")] * 11
    with serving(batches("mean", mean, PICTURES)) as server:
        for batch in (1, 4, 16):
            assert Client([url(server)], "mean", batch=batch)(prompts, outputs) == mean(prompts, outputs)
        served = scorer(f"served(reward='mean', url={url(server)!r}, batch=5)")
        there = score_outputs([served], prompts, outputs)
    here = score_outputs([scorer(mean)], prompts, outputs)
    assert there.values.tolist() == here.values.tolist() and there.valid.all()
    assert served.name == "mean" and served.elsewhere


def test_values_belong_to_ids_and_not_to_an_order():
    def reversed_order(request: httpx.Request) -> httpx.Response:
        scored = values(request).json()["values"]
        return httpx.Response(200, json={"version": 1, "values": dict(reversed(scored.items()))})

    assert client(reversed_order)(PROMPTS, TEXTS_OF_MANY_LENGTHS) == LENGTHS


def test_no_value_is_nan_and_no_number():
    got = client(lambda request: values(request, **{"2": None}))(PROMPTS, TEXTS_OF_MANY_LENGTHS)
    assert math.isnan(got[2]) and got[:2] + got[3:] == LENGTHS[:2] + LENGTHS[3:]


def test_an_abstention_is_none_and_only_of_an_output_without_a_value():
    def abstaining(request: httpx.Request, *ids: str) -> httpx.Response:
        answer = values(request, **{"1": None, "2": None}).json()
        return httpx.Response(200, json={**answer, "abstained": list(ids)})

    got = client(lambda request: abstaining(request, "2"))(PROMPTS, TEXTS_OF_MANY_LENGTHS)
    assert got[2] is None and math.isnan(got[1]) and [got[0], *got[3:]] == [LENGTHS[0], *LENGTHS[3:]]
    for wrong in ("0", "77"):
        with pytest.raises(RewardFailure, match="abstentions"):
            client(lambda request, wrong=wrong: abstaining(request, wrong))(PROMPTS, TEXTS_OF_MANY_LENGTHS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"6": 1.0}, "other outputs"),
        ({"0": "1"}, "numbers"),
        ({"0": True}, "numbers"),
    ],
)
def test_other_answers_are_refused(changes, words):
    with pytest.raises(RewardFailure, match=words):
        client(lambda request: values(request, **changes))(PROMPTS, TEXTS_OF_MANY_LENGTHS)


def test_an_endless_answer_is_not_read_to_its_end():
    read = []

    def endless() -> Any:
        while True:
            read.append(1)
            yield 100_000 * b" "

    answering = client(lambda request: httpx.Response(200, content=endless()))
    with pytest.raises(RewardFailure, match="more than"):
        answering(PROMPTS, TEXTS_OF_MANY_LENGTHS)
    assert len(read) < 20


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again_and_the_run_is_told_once_that_it_waits(status, capsys):
    tries = []

    def third(request: httpx.Request) -> httpx.Response:
        tries.append(1)
        return values(request) if len(tries) > 2 else httpx.Response(status, json={"error": "not now"})

    assert client(third)(PROMPTS, TEXTS_OF_MANY_LENGTHS) == LENGTHS and len(tries) == 3
    waits = f"reward 'length': http://a answers {status} (not now); the run waits for it, 60 s at most\n"
    assert capsys.readouterr().err == waits


@pytest.mark.parametrize("error", [httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError, httpx.ReadError])
def test_a_lost_connection_is_tried_again(error, capsys):
    tries = []

    def third(request: httpx.Request) -> httpx.Response:
        tries.append(1)
        if len(tries) < 3:
            raise error("lost")
        return values(request)

    assert client(third)(PROMPTS, TEXTS_OF_MANY_LENGTHS) == LENGTHS and len(tries) == 3
    assert "http://a does not answer (lost)" in capsys.readouterr().err


@pytest.mark.parametrize("status", [400, 401, 404, 413, 415, 422, 302])
def test_what_will_not_pass_is_an_error_at_once(status):
    tries = []

    def refuse(request: httpx.Request) -> httpx.Response:
        tries.append(1)
        return httpx.Response(status, json={"error": "ValueError: a bad text"}, headers={"Location": "http://b"})

    with pytest.raises(RewardFailure, match=f"http://a.*{status}.*ValueError: a bad text"):
        client(refuse)(PROMPTS, TEXTS_OF_MANY_LENGTHS)
    assert tries == [1]


def test_patience_ends_and_a_server_that_was_lost_is_not_waited_for_again(capsys):
    tries, up = [], []

    def answer(request: httpx.Request) -> httpx.Response:
        tries.append(1)
        return values(request) if up else httpx.Response(503)

    lost = client(answer, patience=0.05)
    with pytest.raises(RewardFailure, match="http://a.*503.*0.05"):
        lost(PROMPTS, TEXTS_OF_MANY_LENGTHS)
    tries.clear()
    with pytest.raises(RewardFailure):
        lost(PROMPTS, TEXTS_OF_MANY_LENGTHS)
    assert len(tries) == 1
    up.append(1)
    assert lost(PROMPTS, TEXTS_OF_MANY_LENGTHS) == LENGTHS


def test_parts_are_spread_over_servers_and_groups_are_not_divided():
    asked: dict[str, list[int]] = {"a": [], "b": []}
    both = threading.Barrier(2, timeout=60)  # passed only if both servers are asked at the same time

    def answer(request: httpx.Request) -> httpx.Response:
        scored = values(request)
        asked[request.url.host].append(len(scored.json()["values"]))
        both.wait()
        return scored

    assert client(answer, ("http://a", "http://b"), batch=3)(PROMPTS, TEXTS_OF_MANY_LENGTHS) == LENGTHS
    assert asked == {"a": [3], "b": [3]}
    sizes = []

    def compare(prompts: Any, outputs: Any) -> list[float]:
        sizes.append(len(outputs))
        return length(prompts, outputs)

    for manifest in (Manifest(("Text",), group=True), None):
        with serving(batches("length", compare, manifest)) as server:
            assert Client([url(server)], "length", batch=2)(PROMPTS, TEXTS_OF_MANY_LENGTHS) == LENGTHS
    assert sizes == [6, 6]


def test_of_two_servers_one_may_die():
    calls = []

    def counted(prompts: Any, outputs: Any) -> list[float]:
        calls.append(len(outputs))
        return length(prompts, outputs)

    with serving(batches("length", counted)) as stays:
        with serving(batches("length", length)) as dies:
            both = Client([url(dies), url(stays)], "length", batch=1, patience=60, pause=0.001)
            assert both(PROMPTS, TEXTS_OF_MANY_LENGTHS) == LENGTHS
            assert 0 < len(calls) < 6
        calls.clear()
        assert both(PROMPTS, TEXTS_OF_MANY_LENGTHS) == LENGTHS
        assert len(calls) == 6


def test_a_server_that_comes_back_goes_on_with_the_run(monkeypatch):
    with meeting_port() as port, ExitStack() as later:  # nobody else is given the port meanwhile
        with serving(batches("length", length), port=port) as server:
            reward = Client([url(server)], "length", patience=60, pause=0.001)
            assert reward(PROMPTS, TEXTS_OF_MANY_LENGTHS) == LENGTHS
        # It is started when the client says that it waits.
        again = serving(batches("length", length), port=port)
        monkeypatch.setattr("builtins.print", lambda *words, **options: later.enter_context(again))
        assert reward(PROMPTS, TEXTS_OF_MANY_LENGTHS) == LENGTHS


def test_proxies_are_ignored_for_this_machine(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with serving(batches("length", length)) as server:
        assert Client([url(server)], "length", patience=0)(PROMPTS, TEXTS_OF_MANY_LENGTHS) == LENGTHS
    local = ("http://127.0.0.1:1", "http://127.9.9.9", "http://[::1]:80", "http://localhost", "http://a.localhost")
    assert all(map(is_local, local))
    assert not any(map(is_local, ("http://10.0.0.1", "http://example.org", "http://localhost.example.org", "")))


def test_a_run_that_could_not_score_does_not_start(tmp_path):
    token = tmp_path / "token.txt"
    token.write_text("a-token-of-more-than-16-characters\n")
    with serving(batches("length", length, timeout=30.0), token=token.read_text().strip()) as server:
        here = url(server)
        check(reward="length", url=here, token_file=str(token), timeout=31)
        with pytest.raises(ValueError, match=f"timeout 30.*30.*{here}"):
            check(reward="length", url=here, token_file=str(token), timeout=30)
        with pytest.raises(ValueError, match=f"{here}.*'size'"):
            check(reward="size", url=here, token_file=str(token))
        with pytest.raises(RewardFailure, match=f"{here}.*401"):
            check(reward="length", url=here)
    with pytest.raises(RewardFailure, match="does not answer"):
        check(reward="length", url=here, patience=0, timeout=32)
    with pytest.raises(ValueError, match="token_file"):
        check(reward="length", url=here, token_file=str(tmp_path / "gone"))
    for wrong in ("127.0.0.1:8700", "ftp://a", "http://", []):
        with pytest.raises(ValueError, match="http://HOST:PORT"):
            check(reward="length", url=wrong)
    with pytest.raises(ValueError, match="process"):
        scorer(f"served(reward='length', url={here!r}, process=True)")


def test_what_the_server_refuses_is_an_error_that_names_the_reward():
    with serving(batches("length", length), limits=Limits(body=10)) as server:
        reward = scorer(f"served(reward='length', url={url(server)!r})")
        with pytest.raises(RuntimeError, match="'length'.*batch.*6.*413"):
            score_outputs([reward], PROMPTS, TEXTS_OF_MANY_LENGTHS)


def test_no_outputs_need_no_server():
    with serving(batches("length", length, TEXTS)) as server:
        reward = Client([url(server)], "length")
        assert reward([], []) == []
