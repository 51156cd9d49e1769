"""The server of rewards: what it answers to whom, and that nothing that one client does reaches another."""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest

from mmgrpo.scoring.batching import Joining
from mmgrpo.scoring.envelope import FRAMES, JSON, Limits, TooLarge, write
from mmgrpo.scoring.isolation import RewardFailure
from mmgrpo.scoring.manifest import Manifest
from mmgrpo.scoring.process import Trace, Unsendable
from mmgrpo.scoring.server import InFlight, Punctual, Refusal, read_body
from mmgrpo.types import Prompt, Text
from tests.unit.scoring.serving import TEXTS, batches, length, mean, pictures, serving, until, url

TOKEN = "a-token-of-more-than-16-characters"


def texts(*several: str, reward: str = "length") -> dict[str, Any]:
    """A request to score texts, as keywords of ``httpx.post``."""
    prompts = [{"text": "a"}]
    outputs = [{"id": str(i), "prompt": 0, "text": text} for i, text in enumerate(several)]
    return {"json": {"version": 1, "reward": reward, "prompts": prompts, "outputs": outputs}, "trust_env": False}


def post(server: Any, **request: Any) -> httpx.Response:
    return httpx.post(f"{url(server)}/score", **{"timeout": 60, "trust_env": False, **request})


def get(server: Any, path: str, **options: Any) -> httpx.Response:
    return httpx.get(url(server) + path, trust_env=False, timeout=60, **options)


def test_it_is_healthy_once_all_rewards_are_loaded_and_have_scored_a_first_batch():
    loading, warming = threading.Event(), threading.Event()
    reward, other = batches("length", length, warm_up=lambda function: warming.wait(60)), batches("other", length)
    load, reward._load = reward._load, lambda: loading.wait(60) and load()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.unit.scoring.serving.until", lambda happened: None)
        with serving(reward, other) as server:
            until(lambda: other.ready)
            answer = post(server, **texts("ab", reward="other")).json()
            assert (answer["version"], answer["values"]) == (1, {"0": 2.0})
            early = post(server, **texts("abc"))
            assert (early.status_code, early.json()["error"]) == (503, "reward 'length' is not loaded yet")
            assert get(server, "/health").status_code == 503
            loading.set()
            assert get(server, "/health").status_code == 503, "loaded, but not warm"
            warming.set()
            until(lambda: get(server, "/health").status_code == 200)
            assert get(server, "/health").json() == {"version": 1, "status": "ready"}
            assert post(server, **texts("abc")).json()["values"] == {"0": 3.0}


def test_a_reward_that_cannot_be_loaded_is_reported():
    def fails() -> Any:
        raise ValueError("no weights")

    reward, errors = batches("length", length), []
    reward._load = fails
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.unit.scoring.serving.until", lambda happened: None)
        with serving(reward, failed=errors.append):
            until(lambda: bool(errors))
    assert str(errors[0]) == "no weights"


def test_manifests_are_listed_in_plain_json():
    unbounded = Manifest(("Text",), 0, float("inf"), reads=("answer",), group=True)
    with serving(batches("a", length, unbounded), batches("b", length, None, timeout=5.0)) as server:
        answer = get(server, "/manifests")
        assert "Infinity" not in answer.text
        rewards = answer.json()["rewards"]
        assert rewards["b"] == {"timeout": 5.0, "alone": True, "manifest": None}
        assert rewards["a"]["alone"] and rewards["a"]["manifest"]["high"] is None
        assert rewards["a"]["manifest"]["reads"] == ["answer"] and rewards["a"]["manifest"]["version"] == 1


@pytest.mark.parametrize("given", ["", TOKEN, f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", "Basic eDp5", "Bearer é"])
def test_a_wrong_token_is_refused_before_the_body_is_read(given):
    calls = []
    with serving(batches("length", lambda *a: calls.append(1) or [1.0]), token=TOKEN) as server:
        headers = {"Authorization": given.encode("latin-1")} if given else {}
        for answer in (post(server, **texts("a"), headers=headers), get(server, "/manifests", headers=headers)):
            assert answer.status_code == 401 and "wrong token or none" in answer.json()["error"]
        announced = {**headers, "Content-Length": "1000", "Content-Type": JSON}
        assert raw(server, announced, b"").startswith(b"HTTP/1.1 401"), "of a body that never comes"
        assert get(server, "/health").status_code == 200
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert post(server, **texts("a"), headers=right).json()["values"] == {"0": 1.0} and calls == [1]


def raw(server: Any, headers: dict[str, Any], body: bytes) -> bytes:
    """The answer to bytes that no client library would send, after which the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        lines = [b"POST /score HTTP/1.1", b"Host: x"]
        lines += [
            name.encode() + b": " + (value if isinstance(value, bytes) else value.encode())
            for name, value in headers.items()
        ]
        connection.sendall(b"\r\n".join([*lines, b"", b""]) + body)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not():
    with serving(batches("length", length), limits=Limits(body=1000)) as server:
        announced = raw(server, {"Content-Length": "1001", "Content-Type": JSON}, b"")
        assert announced.startswith(b"HTTP/1.1 413") and b"more than 1,000 bytes" in announced
        chunked = {"Transfer-Encoding": "chunked", "Content-Type": JSON}
        assert raw(server, chunked, b"1f4\r\n" + 500 * b" " + b"\r\n1f5\r\n" + 501 * b" " + b"\r\n")[9:12] == b"413"
        assert post(server, **texts("abc")).json()["values"] == {"0": 3.0}, "it goes on"


def test_no_more_of_a_body_is_read_than_the_limit():
    class Endless:
        def __init__(self) -> None:
            self.headers, self.given = {"content-length": "5"}, 0  # which is a lie

        async def stream(self) -> AsyncIterator[bytes]:
            while True:
                self.given += 100
                yield 100 * b" "

    request: Any = Endless()
    with pytest.raises(TooLarge):
        asyncio.run(read_body(request, 1000))
    assert request.given == 1100


def test_a_body_that_does_not_come_is_not_waited_for():
    with serving(batches("length", length), body_seconds=0.05) as server:
        answer = raw(server, {"Content-Length": "1000", "Content-Type": JSON}, b"{")
        assert answer.startswith(b"HTTP/1.1 408") and b"did not come within 0.05 s" in answer


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        ({"content": b"{", "headers": {"Content-Type": JSON}}, 400, "got no JSON"),
        ({"content": b"", "headers": {"Content-Type": FRAMES}}, 400, "got an empty body"),
        ({"content": pickle.dumps([1]), "headers": {"Content-Type": FRAMES}}, 400, "a frame"),
        ({"content": pickle.dumps([1]), "headers": {"Content-Type": "application/x-pickle"}}, 415, "content type"),
        ({"data": {"a": "b"}}, 415, "got the content type 'application/x-www-form-urlencoded'"),
        (texts("a", reward="none"), 404, "unknown reward 'none', only length"),
    ],
)
def test_a_malformed_request_has_an_answer_that_says_so(request_, status, words):
    with serving(batches("length", length)) as server:
        answer = post(server, **request_)
        assert answer.status_code == status and words in answer.json()["error"]
        assert post(server, **texts("abc")).json()["values"] == {"0": 3.0}


def test_values_are_those_in_process_bit_for_bit_together_or_one_by_one():
    outputs, prompts = pictures(5), [Prompt("a")] * 5
    expected = mean(prompts, outputs)
    headers = {"Content-Type": FRAMES}
    with serving(batches("mean", mean, Manifest(("Image",)))) as server:
        body = write("mean", prompts, outputs, list("abcde"))
        together = post(server, content=body, headers=headers).json()["values"]
        single = [
            post(server, content=write("mean", prompts[:1], [one], ["x"]), headers=headers).json()["values"]["x"]
            for one in outputs
        ]
    assert [together[name] for name in "abcde"] == single == expected


def test_an_abstention_is_listed():
    with serving(batches("length", lambda p, o: [None, float("nan"), 0.5])) as server:
        answer = post(server, **texts("a", "b", "c")).json()
        assert (answer["values"], answer["abstained"]) == ({"0": None, "1": None, "2": 0.5}, ["0"])


def test_what_could_not_be_scored_is_null():
    with serving(batches("length", lambda p, o: [float("nan"), float("inf"), 0.5])) as server:
        answer = post(server, **texts("a", "b", "c"))
        assert json.loads(answer.text, parse_constant=pytest.fail)["values"] == {"0": None, "1": None, "2": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize("manifest", [TEXTS, Manifest(("Text",), group=True), None])
def test_64_clients_at_once_have_their_own_values_and_are_joined_only_where_asked(manifest):
    go, sizes = threading.Event(), []

    def patient(prompts: Any, outputs: Any) -> list[float]:
        sizes.append(len(outputs))
        assert go.wait(60)
        return length(prompts, outputs)

    reward = batches("length", patient, manifest, joining=Joining(16, 0.0))
    with serving(reward) as server, ThreadPoolExecutor(64) as pool:
        first = pool.submit(post, server, **texts(""))
        until(lambda: sizes == [1])
        others = [pool.submit(post, server, **texts(*["x" * n] * (1 + n % 2))) for n in range(1, 64)]
        until(lambda: reward._queue.qsize() == 63)
        go.set()
        for n, answer in enumerate([first, *others]):
            assert set(answer.result().json()["values"].values()) == {float(n)}
    assert sum(sizes) == 1 + 31 * 1 + 32 * 2
    joined = len(sizes) < 10 and max(sizes) <= 16
    assert joined if manifest is TEXTS else len(sizes) == 64


def test_what_one_request_does_wrong_is_not_the_others_fault():
    go, sizes = threading.Event(), []

    def strict(prompts: Any, outputs: Any) -> list[float]:
        sizes.append(len(outputs))
        assert go.wait(60)
        if any(output.text == "bad" for output in outputs):
            raise ValueError("a bad text")
        return length(prompts, outputs)

    reward = batches("length", strict, joining=Joining(16, 0.0))
    with serving(reward) as server, ThreadPoolExecutor(4) as pool:
        first = pool.submit(post, server, **texts("first"))
        until(lambda: sizes == [1])
        others = [pool.submit(post, server, **texts(text)) for text in ("good", "bad", "better")]
        until(lambda: reward._queue.qsize() == 3)
        go.set()
        good, bad, better = (answer.result() for answer in others)
        assert first.result().status_code == 200
    assert (good.json()["values"], better.json()["values"]) == ({"0": 4.0}, {"0": 6.0})
    place = f"{Path(__file__).name}:{strict.__code__.co_firstlineno + 4}, in strict"
    assert bad.status_code == 422 and bad.json()["error"] == f"reward 'length': ValueError: a bad text ({place})"
    assert sizes == [1, 3, 1, 1, 1]


def test_a_slow_reward_has_its_time_and_the_server_goes_on():
    go = threading.Event()

    def hangs(prompts: Any, outputs: Any) -> list[float]:
        assert outputs[0].text != "slow" or go.wait(60)
        return length(prompts, outputs)

    with serving(batches("length", hangs, timeout=0.2), batches("other", length)) as server:
        answer = post(server, **texts("slow"))
        assert (answer.status_code, answer.json()["error"]) == (504, "reward 'length' gave no values within 0.2 s")
        assert post(server, **texts("a", reward="other")).json()["values"] == {"0": 1.0}
        waiting = post(server, **texts("waits for the slow one"))
        assert waiting.status_code == 504
        go.set()
        until(lambda: post(server, **texts("abc")).status_code == 200)


def test_too_many_waiting_requests_are_told_to_come_later():
    go, sizes = threading.Event(), []

    def patient(prompts: Any, outputs: Any) -> list[float]:
        sizes.append(len(outputs))
        assert go.wait(60)
        return length(prompts, outputs)

    reward = batches("length", patient, waiting=1)
    with serving(reward) as server, ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, server, **texts("a"))
        until(lambda: sizes == [1])
        second = pool.submit(post, server, **texts("bb"))
        until(lambda: reward._queue.qsize() == 1)
        third = post(server, **texts("ccc"))
        assert third.status_code == 429 and third.headers["Retry-After"] == "1"
        go.set()
        assert [one.result().json()["values"] for one in (first, second)] == [{"0": 1.0}, {"0": 2.0}]


def test_a_process_that_ended_may_be_asked_again_and_an_exception_in_it_may_not():
    class Process:
        def close(self) -> None: ...

        def __call__(self, prompts: Any, outputs: Any) -> list[float]:
            if outputs[0].text == "die":
                raise RewardFailure("its process was killed by signal 9")
            raise RewardFailure("ValueError: no such answer") from Trace("...")

    with serving(batches("length", Process())) as server:
        assert post(server, **texts("die")).status_code == 503
        raised = post(server, **texts("raise"))
        assert (raised.status_code, raised.json()["error"]) == (422, "reward 'length': ValueError: no such answer")


def answers(server: Any) -> bool:
    try:
        get(server, "/health")
    except httpx.TransportError:  # no connection, or one that ends before it is answered
        return False
    return True


def test_it_answers_what_it_works_on_before_it_ends_and_nothing_else():
    go, begun, closed = threading.Event(), threading.Event(), []

    class Slow:
        def close(self) -> None:
            closed.append(True)

        def __call__(self, prompts: Any, outputs: Any) -> list[float]:
            begun.set()
            assert go.wait(60)
            return length(prompts, outputs)

    with ThreadPoolExecutor(1) as pool, serving(batches("length", Slow()), drain=60.0) as server:
        answer = pool.submit(post, server, **texts("abc"))
        assert begun.wait(60)
        server.stop()
        until(lambda: not answers(server))
        assert not closed
        go.set()
        assert answer.result().json()["values"] == {"0": 3.0}
    assert closed == [True]


def test_a_text_that_a_client_sends_as_frames_is_the_same():
    with serving(batches("length", length)) as server:
        body = write("length", [Prompt("a")], [Text("abc")], ["x"])
        assert post(server, content=body, headers={"Content-Type": FRAMES}).json()["values"] == {"x": 3.0}


# ---- what many or slow clients could use up


def test_requests_in_flight_have_a_limit_together_and_one_alone_has_only_its_own():
    flying = InFlight(100)
    with flying.hold() as first:
        first(150)  # alone: its own limit is that of a body
        with pytest.raises(Refusal) as refused, flying.hold() as second:
            second(1)
        assert refused.value.status == 429 and flying.held == 150
    assert flying.held == 0
    with flying.hold() as first, flying.hold() as second:
        first(60)
        second(40)
        first(50)  # what is held is not given back in between
        assert flying.held == 100
        with pytest.raises(Refusal, match="requests.*100"):
            second(41)
    assert flying.held == 0


class Timers:
    """In place of an event loop: what is to be called later."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def call_later(self, seconds: float, call: Any) -> Any:
        timer = SimpleNamespace(seconds=seconds, call=call, cancel=lambda: self.waiting.remove(timer))
        self.waiting.append(timer)
        return timer

    def pass_time(self) -> None:
        for timer in [*self.waiting]:
            self.waiting.remove(timer)
            timer.call()


@pytest.mark.parametrize("data", [b"", b"POST /score HTTP/1.1\r\nHost: a"], ids=["nothing", "half of a header"])
def test_a_connection_whose_headers_do_not_come_is_closed(data: bytes):
    loop, closed = Timers(), []
    inner = MagicMock(loop=loop, cycle=None)
    connection = Punctual(inner, 30.0)
    connection.connection_made(MagicMock(spec=asyncio.Transport, close=lambda: closed.append(True)))
    assert [timer.seconds for timer in loop.waiting] == [30.0]
    if data:
        connection.data_received(data)
        inner.data_received.assert_called_once_with(data)
    loop.pass_time()
    assert closed == [True]


def test_a_request_has_its_time_and_half_of_a_second_one_has_not():
    loop, closed = Timers(), []
    inner = MagicMock(loop=loop, cycle=None)
    connection = Punctual(inner, 30.0)
    connection.connection_made(MagicMock(spec=asyncio.Transport, close=lambda: closed.append(True)))
    inner.cycle = SimpleNamespace(response_complete=False)  # its headers are complete
    connection.data_received(b"a body")
    loop.pass_time()
    assert closed == [] and loop.waiting == []
    inner.cycle.response_complete = True
    connection.data_received(b"POST")  # the next on the same connection
    loop.pass_time()
    assert closed == [True]
    connection.connection_lost(None)
    inner.connection_lost.assert_called_once_with(None)


def test_what_cannot_be_given_to_the_reward_is_refused_and_restarts_nothing():
    def unsendable(prompts: Any, outputs: Any) -> Any:
        raise Unsendable("prompts and outputs cannot be sent to its process")

    with serving(batches("length", unsendable)) as server:
        answer = post(server, **texts("ab"))
    assert answer.status_code == 400 and "cannot be sent" in answer.json()["error"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ValueError: bad (/srv/rewards/a.py:12, in f)", "ValueError: bad (a.py:12, in f)"),
        ("ValueError: bad (/srv/my rewards/a.py:12, in f)", "ValueError: bad (a.py:12, in f)"),
        ("No such file or directory: '/srv/my models/x.pt'", "No such file or directory: 'x.pt'"),
        ("C:\\Users\\me\\x.pt and ~/data/x.json", "x.pt and x.json"),
        ("https://a.org/b/c.html, 1/2, a/b/c", "https://a.org/b/c.html, 1/2, a/b/c"),
    ],
)
def test_a_client_gets_the_error_of_a_reward_without_the_folders_of_the_server(text, told, capfd):
    def raises(prompts: Any, outputs: Any) -> list[float]:
        raise RewardFailure(text)

    with serving(batches("length", raises)) as server:
        for _ in range(2):
            answer = post(server, **texts("a"))
            assert (answer.status_code, answer.json()["error"]) == (422, f"reward 'length': {told}")
    assert capfd.readouterr().err.count(text) == (text != told), "once, where the server runs"
