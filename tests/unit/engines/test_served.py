"""A served engine draws for one run at a time, with the weights that this run has sent, or not at all."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmgrpo.engines.engine import Drift, EncodedQuery, EngineFailure, Forgotten, fingerprint, parameters
from mmgrpo.engines.sampler import OwnSampler
from mmgrpo.policies.generation import Drawing
from mmgrpo.policies.token_model import Query
from tests.unit.engines.test_engine import PROMPTS, RULES, client, drawing_with, policy, rolled, shift

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")

from mmgrpo.engines import served  # noqa: E402
from mmgrpo.engines.served import PROTOCOL, PROTOCOL_HEADER, RUN_HEADER, Weights, message  # noqa: E402

HEADERS = {PROTOCOL_HEADER: str(PROTOCOL), RUN_HEADER: "a"}


class Watched(OwnSampler):
    """Notes the weights with which it draws."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.drawn_with: list[str] = []

    def generate(self, *given: Any) -> Any:
        self.drawn_with.append(print_of(self.policy.network))
        return super().generate(*given)


def print_of(network: Any) -> str:
    return "".join(fingerprint(one) for _, one in parameters(network))


def test_of_two_runs_on_one_server_the_second_is_refused_with_the_name_of_the_first(serve):
    engine = Watched(policy())
    url = serve(engine)
    first, second = policy(), policy(seed=5)
    drawing_with(first, client(url, run="a", title="first on host"))
    rolled(first)
    for number in (1, 2):
        with pytest.raises(EngineFailure, match=r"423.*'first on host'.*rollout\.url"):
            client(url, run="b", title="second on host")
        shift(first.network, 50)
        rolled(first, number)
    assert engine.drawn_with[-1] == print_of(first.network)
    assert first.engine is not None
    first.engine.close()
    drawing_with(second, client(url, run="b", title="second on host"))  # the first has left
    rolled(second)
    assert engine.drawn_with[-1] == print_of(second.network)


@pytest.mark.slow
def test_two_runs_that_take_turns_never_draw_with_the_weights_of_the_other(serve):
    """Each is suspended past its lease; the other has sent weights of the same round, so near that no gap shows it."""
    engine = Watched(policy())
    url = serve(engine, lease_seconds=0.0)
    runs = [policy(), policy()]
    with torch.no_grad():
        for one in runs[1].network.parameters():
            one += 1e-7
    for name, one in zip("ab", runs, strict=True):
        drawing_with(one, client(url, run=name, beat=1e3))
    for number, one in itertools.product(range(3), runs):
        rolled(one, number)
        rolled(one, number)
        assert engine.drawn_with[-2:] == [print_of(one.network)] * 2, number
    assert len({*engine.drawn_with}) == 2


def test_a_run_that_was_killed_is_resumed_at_once_and_makes_room_for_another_after_its_lease(serve, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(served, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))
    url = serve(OwnSampler(policy()), lease_seconds=60.0)
    killed = client(url, run="a", title="killed", beat=1e9)
    again = client(url, run="a", beat=1e9)  # resumed: the same id
    now[0] += 59
    with pytest.raises(EngineFailure, match="'a'"):
        client(url, run="b", beat=1e9)
    now[0] += 2
    other = client(url, run="b", title="next", beat=1e9)
    for one in (killed, again):
        with pytest.raises(EngineFailure, match="'next'"):
            one.fingerprints()
    assert other.fingerprints()


@pytest.mark.slow
def test_a_run_that_only_computes_keeps_its_engine(serve):
    url = serve(OwnSampler(policy()), lease_seconds=1.5)
    first = client(url, run="a", beat=0.05)
    time.sleep(2.0)
    with pytest.raises(EngineFailure, match="423"):
        client(url, run="b")
    del first
    gc.collect()  # as at the end of a process
    client(url, run="b")


def test_a_server_answers_with_the_weights_that_were_asked_for_or_not_at_all(serve):
    engine, network = OwnSampler(policy(seed=3)), policy().network
    one, own = client(serve(engine), run="a"), [*parameters(network)]
    asked = [EncodedQuery(Query(PROMPTS[0], 0, 2), [])]

    def push(version: int) -> None:
        one.load(own, version)
        one.fingerprints()

    push(3)
    assert one.generate(asked, RULES, Drawing(0, 1.0, 3, round=3))
    for other in (2, 4):
        with pytest.raises(Forgotten):
            one.generate([], RULES, Drawing(0, 1.0, 3, round=other))
    kept, one._weights = one._weights, replace(one._weights, digest="0" * 32)
    with pytest.raises(Forgotten):  # of the same round, but other weights
        one.generate(asked, RULES, Drawing(0, 1.0, 3, round=3))
    one._weights = kept
    with pytest.raises(EngineFailure, match="another model"):
        one.load([("unknown", torch.zeros(1))], 4)
    for number in (3, 4):  # half of the later weights may be there
        with pytest.raises(Forgotten):
            one.generate([], RULES, Drawing(0, 1.0, 3, round=number))


def test_a_push_that_stopped_half_way_leaves_nothing_behind_and_two_at_a_time_are_kept_apart(serve, monkeypatch):
    url, own = serve(OwnSampler(policy(seed=3))), [*parameters(policy().network)]
    one = client(url, run="a")
    part = {"version": 5, "push": "x", "tensors": {"unknown": torch.zeros(1)}, "first": True, "last": False}
    one._send("POST", "/weights", part)
    with pytest.raises(EngineFailure, match="503.*another process"):  # of the run, which still sends
        client(url, run="a", patience=0.0).load(own, 5)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 1e4, sleep=time.sleep)
    monkeypatch.setattr(served, "time", later)
    one.load(own, 5)
    one.fingerprints()
    assert len(one.generate([EncodedQuery(Query(PROMPTS[0], 0, 2), [])], RULES, Drawing(0, 1.0, 3, round=5))[0]) == 2


def test_a_server_or_a_run_of_another_release_is_refused(serve):
    url = serve(OwnSampler(policy()))
    for headers in ({}, {PROTOCOL_HEADER: "1", RUN_HEADER: "a"}, {PROTOCOL_HEADER: str(PROTOCOL)}):
        for path in ("lease", "weights", "generate"):
            assert httpx.post(f"{url}/{path}", headers=headers, content=message({})).status_code == 400, headers
    old = httpx.MockTransport(lambda _: httpx.Response(200, content=message({"whole": True, "form": "merged"})))
    with pytest.raises(EngineFailure, match=r"rollout\.url.*protocol none.*2"):
        client("http://a", transport=old)


ASKED = {
    "asked": [{**served.fields_of(Query(PROMPTS[0], 0, 2)), "ids": [1, 2], "media": {}}],
    "rules": {"end": [9], "suppressed": [], "begin_suppressed": [], "media": []},
    "drawing": {"seed": 0, "temperature": 1.0, "max_tokens": 3, "top_p": 1.0, "round": 0},
    "weights": {"round": 0, "digest": "x"},
}
PUSHED = {"version": 0, "push": "x", "tensors": {}, "first": True, "last": True}


def changed(value: Any, path: str, new: Any) -> Any:
    """A message with another value at a path; without the key for ``...``."""
    copied, *keys = _copy(value), *path.split(".")
    place: Any = copied
    for key in keys[:-1]:
        place = place[int(key) if isinstance(place, list) else key]
    last: Any = int(keys[-1]) if isinstance(place, list) else keys[-1]
    if new is ...:
        del place[last]
    else:
        place[last] = new
    return copied


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(one) for key, one in value.items()}
    return [_copy(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("generate", b"x"),
        ("generate", b""),
        ("generate", b"\0" * 8),
        ("generate", b"\0" * 7 + b"\2{}"),
        ("generate", b"\0" * 7 + b"\2[]"),
        ("generate", b"\xff" * 20),
        ("generate", (b := b'{"value": {"object": 7}, "objects": [], "tensors": 0}') and len(b).to_bytes(8, "big") + b),
        ("generate", (b := b'{"value": ' + b"[" * 10**5) and len(b).to_bytes(8, "big") + b),
        ("generate", message(ASKED) + b"more"),
        ("generate", message(None)),
        ("generate", message([])),
        ("generate", message(changed(ASKED, "asked", {}))),
        ("generate", message(changed(ASKED, "asked.0", "x"))),
        ("generate", message(changed(ASKED, "asked.0.prompt", "x"))),
        ("generate", message(changed(ASKED, "asked.0.count", 0))),
        ("generate", message(changed(ASKED, "asked.0.count", "2"))),
        ("generate", message(changed(ASKED, "asked.0.ids", [1, -2]))),
        ("generate", message(changed(ASKED, "asked.0.unknown", 1))),
        ("generate", message(changed(ASKED, "rules", []))),
        ("generate", message(changed(ASKED, "rules.end", ...))),
        ("generate", message(changed(ASKED, "rules.end", ["9"]))),
        ("generate", message(changed(ASKED, "drawing.seed", "0"))),
        ("generate", message(changed(ASKED, "drawing.max_tokens", 0))),
        ("generate", message(changed(ASKED, "weights", ...))),
        ("generate", message(changed(ASKED, "weights.digest", 1))),
        ("weights", message({})),
        ("weights", message(changed(PUSHED, "tensors", []))),
        ("weights", message(changed(PUSHED, "tensors", {"a": 1}))),
        ("weights", message(changed(PUSHED, "tensors", {1: torch.zeros(1)}))),
        ("weights", message(changed(PUSHED, "version", "0"))),
        ("weights", message(changed(PUSHED, "first", 1))),
    ],
)
def test_a_malformed_request_is_400(serve, path, body, capfd):
    answer = httpx.post(f"{serve(OwnSampler(policy()))}/{path}", headers=HEADERS, content=body)
    assert answer.status_code == 400 and answer.json()["error"]
    assert "Traceback" not in capfd.readouterr().err


COMPLETION = {"ids": [1, 9], "log_probs": [-1.0, -2.0], "version": 0}


STATE: dict[str, Any] = {"name": "x", "whole": True, "form": "own", "held": {"a": "x"}}
STATE["weights"] = vars(Weights.of(0, STATE["held"]))


def answered(answers: dict[str, Any]) -> Any:
    """A client of a server that answers a path by what is stated for it."""

    def answer(request: Any) -> Any:
        return httpx.Response(200, headers=HEADERS, content=message(answers.get(request.url.path, {})))

    return client("http://a", transport=httpx.MockTransport(answer))


@pytest.mark.parametrize(
    ("drawn", "name"),
    [
        (None, "drawn"),
        ({}, "drawn"),
        ([COMPLETION], "drawn"),
        ([[1]], r"drawn\[0\]"),
        ([[{**COMPLETION, "ids": ["1", 9]}]], "ids"),
        ([[{**COMPLETION, "ids": [1.0, 9]}]], "ids"),
        ([[{**COMPLETION, "ids": [True, 9]}]], "ids"),
        ([[{**COMPLETION, "ids": [-1, 9]}]], "ids"),
        ([[{**COMPLETION, "log_probs": [None, -1.0]}]], "log_probs"),
        ([[{**COMPLETION, "version": "0"}]], "version"),
        ([[{**COMPLETION, "more": 0}]], "more"),
        ([[{"ids": [1]}]], "log_probs"),
    ],
)
def test_an_answer_that_is_none_is_one_line(drawn, name):
    one = answered({"/state": STATE, "/generate": {"weights": STATE["weights"], "drawn": drawn}})
    one.fingerprints()
    with pytest.raises(EngineFailure, match=rf"rollout.engine: .*{name}") as caught:
        one.generate([], RULES, Drawing(0, 1.0, 3))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("form", "xml"),
        ("whole", 1),
        ("held", []),
        ("held.a", 1),
        ("weights", []),
        ("weights.round", "0"),
        ("weights.digest", "of others"),
        ("weights", ...),
    ],
)
def test_a_state_that_is_none_is_one_line(path, new):
    with pytest.raises(EngineFailure, match=path.partition(".")[0]) as caught:
        answered({"/state": changed(STATE, path, new)}).fingerprints()
    assert "\n" not in str(caught.value)


def test_samples_of_other_weights_than_those_that_were_asked_for_are_refused():
    others = {"weights": {"round": 0, "digest": "of others"}, "drawn": [[COMPLETION]]}
    one = answered({"/state": STATE, "/generate": others})
    one.fingerprints()
    with pytest.raises(EngineFailure, match="of other"):
        one.generate([], RULES, Drawing(0, 1.0, 3))


def test_a_body_is_read_in_time_linear_in_its_size():
    """8 MB in parts of 1 KB take some 5 ms; joined part by part they are copied 4000 times."""
    from mmgrpo.scoring.server import read_body

    async def stream() -> Any:
        for _ in range(1 << 13):
            yield b"x" * 1024

    started = time.monotonic()
    received: Any = SimpleNamespace(headers={}, stream=stream)
    assert len(asyncio.run(read_body(received, 1 << 30))) == 1 << 23
    assert time.monotonic() - started < 1


def test_weights_of_many_parts_come_whole(serve, monkeypatch):
    monkeypatch.setattr(served, "PART", 1 << 18)
    sent = [(f"{number}", torch.randn(1 << 16)) for number in range(8)]
    taken: dict[str, Any] = {}
    engine = OwnSampler(policy())
    engine.weights = SimpleNamespace(load=lambda several, _: taken.update(several), fingerprints=dict)  # type: ignore[assignment]
    client(serve(engine)).load(sent, 0)
    assert taken.keys() == dict(sent).keys() and all(torch.equal(taken[name], one) for name, one in sent)


@pytest.mark.slow
def test_a_body_is_read_after_the_token_and_the_run_and_within_limits_of_time_and_size(serve, monkeypatch):
    url = serve(OwnSampler(policy()), token="t" * 20, body_seconds=0.2)
    read = threading.Event()

    def endless() -> Any:
        yield b"x"
        read.wait(3)
        yield b"x"

    def status(headers: dict[str, str], content: Any) -> int:
        return httpx.post(f"{url}/weights", headers={**HEADERS, **headers}, content=content, timeout=10).status_code

    authorized = {"Authorization": f"Bearer {'t' * 20}"}
    monkeypatch.setattr(served, "MOST", 1000)
    started = time.monotonic()
    assert status(authorized, b"x" * 1001) == 413
    assert status({}, b"x" * 1001) == 401 and status({**authorized, PROTOCOL_HEADER: "1"}, b"x" * 1001) == 400
    assert status({**authorized, RUN_HEADER: "b"}, b"x" * 1001) == 423
    assert httpx.post(f"{url}/weights", headers={**HEADERS, **authorized}, content=endless()).status_code == 408
    assert time.monotonic() - started < 30
    read.set()


def test_a_wrong_sync_behind_http_is_caught(serve):
    """The server keeps a tensor as it was."""

    class Stale(OwnSampler):
        def load(self, tensors: Any, version: int) -> None:
            super().load([(name, one) for name, one in tensors if "o_proj" not in name], version)

    trained = drawing_with(policy(seed=1), client(serve(Stale(policy()))))
    with pytest.raises(Drift, match="nothing was trained"):
        rolled(trained)
