"""An engine behind HTTP: ``mmgrpo serve-engine``. Messages are those of ``mmgrpo.scoring.wire``; nothing is unpickled.

    POST /lease      the run that the engine draws for; again every few seconds while it goes on
    POST /release    the run has ended
    GET  /state      its name, form, weights (round and digest), and the fingerprint of every tensor
    POST /weights    {"version", "push", "tensors", "first", "last"}: tensors by name, in parts; taken over with
                     the last one
    POST /generate   queries, rules and how to draw; the completions, and the weights that drew them
    POST /trajectories  a request of a denoising policy; what was drawn for it, and the weights that drew it
    POST /rest       free memory until the next weights

A server draws for one run at a time. Every request states the protocol (``PROTOCOL``) and the run by its id, and one
that asks for samples the weights: the number of their round and a digest of the fingerprints of all tensors, which the
answer repeats. A run keeps the engine while it is heard from, ``LEASE`` seconds beyond that, or until its release; then
the next run that asks has it, without weights. The same run, resumed, has the same id.

All need the header ``Authorization: Bearer TOKEN`` where the server has a token. Errors are ``{"error": "..."}`` with a
status: 400 malformed, or of another protocol; 401 wrong token; 408 the body came too slowly; 409 for weights that the
server does not hold (any more); 413 too large; 422 cannot be answered; 423 draws for another run; 503 another process
of the run sends weights. Whatever else fails may be over soon. Of a request without the token, or of another run, the
body is not read.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import math
import secrets
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import torch
from safetensors import SafetensorError
from torch import Tensor

from mmgrpo.config.extras import install
from mmgrpo.config.settings import Config
from mmgrpo.engines.denoising import Denoiser
from mmgrpo.engines.engine import (
    FORMS,
    UNTRAINED,
    Drawn,
    EncodedQuery,
    Engine,
    EngineFailure,
    Forgotten,
    Named,
    Rules,
    Unanswered,
)
from mmgrpo.policies.generation import Drawing
from mmgrpo.policies.token_model import Query
from mmgrpo.policies.trajectories import Trajectories
from mmgrpo.scoring.envelope import Malformed, TooLarge, take
from mmgrpo.scoring.server import read_body
from mmgrpo.scoring.wire import LENGTH, frames, read
from mmgrpo.types import Media, Prompt, Request

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request as Received

PROTOCOL = 2
"""Version of what both sides exchange; 1 had neither runs nor digests."""

PROTOCOL_HEADER, RUN_HEADER, NAME_HEADER = "mmgrpo-protocol", "mmgrpo-run", "mmgrpo-run-name"

STATED = {PROTOCOL_HEADER: str(PROTOCOL)}
"""Headers of all answers."""

LEASE = 60.0
"""Seconds for which an engine is kept for a run that is not heard from."""

BEATS = 4
"""How often in ``LEASE`` a run is heard from."""

PART = 1 << 29
"""Bytes of tensors in one request, at most one tensor more."""

MOST = 1 << 34
"""Bytes of the longest message."""

BODY_SECONDS = 600.0
"""Seconds within which the body of a request must come."""

CONNECT = 5.0
"""Seconds for a connection."""


MEND = {
    401: "; set rollout.token_file to the file with which the server was started",
    404: "; it is no server of engines: name the address of a 'mmgrpo serve-engine' in rollout.url",
}
"""Status to what a user does about it."""


class Occupied(Exception):
    """An engine draws for another run."""


class Busy(Exception):
    """Another process of the run sends weights."""


class Slow(Exception):
    """A body that does not come in time."""


@dataclass(frozen=True)
class Weights:
    """What weights are called: by their round, and by a digest of the fingerprints of all tensors."""

    round: int
    digest: str

    @staticmethod
    def of(round: int, held: Mapping[str, str]) -> Weights:
        """Those that a holder states."""
        text = json.dumps(sorted(held.items())).encode()
        return Weights(round, hashlib.sha256(text).hexdigest()[:32])

    @staticmethod
    def read(table: Any, where: str) -> Weights:
        """Those of a message."""
        return Weights(**take_all(take(table, "weights", dict, where), WEIGHTS, f"{where}.weights"))

    def __str__(self) -> str:
        return f"round {self.round} ({self.digest[:8]})"


NUMBER = (int, float)

WEIGHTS = {"round": int, "digest": str}
STATE = {"name": str, "whole": bool, "form": str, "weights": (dict, type(None)), "held": dict}
DRAWN = {"ids": list, "log_probs": list, "version": int}
TRAJECTORIES: dict[str, Any] = {name: Tensor for name in ("states", "source", "target", "log_probs", "final")}
TRAJECTORIES |= {"version": int}
PUSH = {"version": int, "push": str, "tensors": dict, "first": bool, "last": bool}
QUERY = {"prompt": Prompt, "slot": int, "count": int, "origin": int, "forced": tuple, "variant": (*NUMBER, type(None))}
QUERY |= {"shown": tuple, "opening": tuple, "numbers": tuple, "fault": str}
DRAWING = {"seed": int, "temperature": NUMBER, "max_tokens": int, "top_p": NUMBER, "round": int}
RULES = {"end": list, "suppressed": list, "begin_suppressed": list, "media": list}
REQUEST = {"prompts": list, "slots": list, "group_size": int, "seed": int, "round": int, "sampling": dict}
"""The keys of each message, and the types of their values."""


def take_all(table: Any, kinds: Mapping[str, Any], where: str) -> dict[str, Any]:
    """An object with exactly these keys and types; Malformed for another."""
    values = {name: take(table, name, kind, where) for name, kind in kinds.items()}
    if unknown := sorted(map(str, table.keys() - kinds.keys())):
        raise Malformed(f"{where}: has an unknown '{unknown[0][:60]}', expected {', '.join(kinds)}")
    return values


def all_are(kind: type, values: Iterable[Any], where: str, least: int | float = -math.inf) -> None:
    """Malformed unless all values are of a type, numbers from ``least`` on."""
    for value in values:
        if type(value) is not kind or (least > -math.inf and value < least):
            bound = f" from {least:g} on" if least > -math.inf else ""
            raise Malformed(
                f"{where}: got {str(value)[:60]!r} ({type(value).__name__}), expected {kind.__name__}{bound}"
            )


def message(value: Any) -> bytes:
    """A value as the body of a request or an answer."""
    return b"".join(frames(value))


def value_of(body: bytes | bytearray) -> Any:
    """The value of a body, in time linear in its length; Malformed where it is none."""
    rest = memoryview(body)

    def frame() -> bytes:
        nonlocal rest
        length = int.from_bytes(rest[:LENGTH], "big")
        if len(rest) < LENGTH or length > len(rest) - LENGTH:
            raise ValueError("it ends early")
        content, rest = bytes(rest[LENGTH : LENGTH + length]), rest[LENGTH + length :]
        return content

    try:
        value = read(frame)
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        OverflowError,
        SafetensorError,
    ) as error:
        raise Malformed(f"got a message that cannot be read ({type(error).__name__}: {str(error)[:200]})") from error
    if rest:
        raise Malformed(f"got a message with {len(rest)} bytes behind its end")
    return value


class Client:
    """The engine of a server, as one of this process."""

    def __init__(
        self,
        url: str,
        token: str = "",
        timeout: float = 1800.0,
        patience: float = 600.0,
        pause: float = 1.0,
        transport: Any = None,
        run: str = "",
        title: str = "",
        beat: float = LEASE / BEATS,
    ) -> None:
        """``timeout``: seconds for an answer; ``patience``: seconds for which a server that fails is waited for;
        ``transport``: how requests are sent (for tests); ``run``: the id of the run, which a client without one makes
        up, and ``title`` what others are shown of it; ``beat``: seconds between two signs of life."""
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"rollout.engine served needs the package httpx: {install('serve')}", name="httpx"
            ) from error
        self.name, self.patience, self.pause, self.timeout = f"the engine at {url}", patience, pause, timeout
        run = run or secrets.token_hex(8)
        headers = {PROTOCOL_HEADER: str(PROTOCOL), RUN_HEADER: run, NAME_HEADER: quote(title or run)}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        limits = httpx.Timeout(timeout, connect=CONNECT)
        self._http = httpx.Client(base_url=url, headers=headers, timeout=limits, transport=transport, trust_env=False)
        self._weights: Weights | None = None
        """What the server stated to hold last, which ``push`` compares with the trainer's before anything is drawn."""
        self._send("POST", "/lease", {})
        state = self._state()
        self.whole, self.form = state["whole"], state["form"]
        ended = threading.Event()
        living = threading.Thread(target=_live, args=(self._http, ended, beat), name="lease of an engine", daemon=True)
        living.start()
        self._leave = weakref.finalize(self, _leave, self._http, ended, living)  # at the latest with the process

    def fingerprints(self) -> Mapping[str, str]:
        """The fingerprints that the server states."""
        state = self._state()
        weights = state["weights"] and Weights.read(state, "the state")
        with self._refuse_malformed():
            if weights and weights != Weights.of(weights.round, state["held"]):
                raise Malformed(f"the state.weights: got a digest that is not of its fingerprints, {weights}")
        self._weights = weights
        return state["held"]

    def load(self, tensors: Named, version: int) -> None:
        """Send tensors in parts."""
        part: dict[str, Tensor] = {}
        first, size, push = True, 0, secrets.token_hex(8)

        def send(last: bool) -> None:
            body = {"version": version, "push": push, "tensors": part, "first": first, "last": last}
            try:
                self._send("POST", "/weights", body)
            except Forgotten as error:
                raise EngineFailure(f"rollout.engine: {error} while they were sent; go on with the run") from error

        for name, tensor in tensors:
            if size > PART:
                send(False)
                part, size, first = {}, 0, False
            part[name] = tensor.detach().cpu()
            size += tensor.nbytes
        send(True)

    def generate(self, encoded: Sequence[EncodedQuery], rules: Rules, drawing: Drawing) -> list[list[Drawn]]:
        """The completions that the server draws."""
        rule_ids = {name: sorted(value) for name, value in asdict(rules).items()}
        rows = [{**fields_of(query.query), "ids": list(query.ids), "media": dict(query.media)} for query in encoded]
        return self._samples(
            "/generate", {"asked": rows, "rules": rule_ids, "drawing": asdict(drawing)}, drawing.round, read_completions
        )

    def trajectories(self, request: Request) -> list[Trajectories]:
        """The trajectories that the server draws."""
        fields = {"prompts": list(request.prompts), "slots": list(request.slots), "group_size": request.group_size}
        fields |= {"seed": request.seed, "round": request.round, "sampling": dict(request.sampling)}
        return self._samples("/trajectories", {"request": fields}, request.round, read_trajectories)

    def rest(self) -> None:
        """Tell the server."""
        self._send("POST", "/rest", {})

    def close(self) -> None:
        """Leave the engine to other runs; the server goes on."""
        self._leave()

    def _samples(self, path: str, body: dict[str, Any], round: int, read: Callable[[Any], list[Any]]) -> list[Any]:
        """What a server draws with the weights that it was proven to hold; Forgotten where there are none of the
        round."""
        weights = self._weights
        if weights is None or weights.round != round:
            raise Forgotten(f"{self.name} holds {weights or 'no weights'}, asked for those of round {round}")
        answer = self._send("POST", path, {**body, "weights": asdict(weights)})
        with self._refuse_malformed():
            if (other := Weights.read(answer, "the answer")) != weights:
                raise Malformed(f"got samples of the weights of {other}, expected those of {weights}")
            return read(take(answer, "drawn", list, "the answer"))

    def _state(self) -> dict[str, Any]:
        state = self._send("GET", "/state")
        with self._refuse_malformed():
            state = take_all(state, STATE, "the state")
            if state["form"] not in FORMS:
                raise Malformed(f"the state.form: got {state['form'][:60]!r}, expected one of {', '.join(FORMS)}")
            all_are(str, [*state["held"], *state["held"].values()], "the state.held")
            if state["weights"] is not None:
                take_all(state["weights"], WEIGHTS, "the state.weights")
        return state

    @contextmanager
    def _refuse_malformed(self) -> Iterator[None]:
        """EngineFailure, within the block, for an answer that is none."""
        try:
            yield
        except Malformed as error:
            raise EngineFailure(f"rollout.engine: {self.name}: {error}; {UNTRAINED}") from error

    def _send(self, method: str, path: str, value: Any = None) -> Any:
        """The value of an answer. What may be over soon is tried again until the patience is over."""
        import httpx

        body, until, warned = (message(value) if value is not None else None), time.monotonic() + self.patience, False
        while True:
            late = False
            try:
                answer, content = self._exchange(method, path, body)
                if answer.status_code == 200:
                    if answer.headers.get(PROTOCOL_HEADER) != str(PROTOCOL):
                        stated = answer.headers.get(PROTOCOL_HEADER, "none")
                        raise EngineFailure(
                            f"rollout.url: {self.name} states protocol {stated[:20]}, expected {PROTOCOL}; install the "
                            "same release of mmgrpo on both sides"
                        )
                    with self._refuse_malformed():
                        return value_of(content)
                failure = f"{self.name} answers {answer.status_code}: {reason_of(answer, content)}"
                if answer.status_code == 409:
                    raise Forgotten(failure)
                if answer.status_code in (400, 401, 404, 413, 422, 423):
                    raise EngineFailure(f"rollout.engine: {failure}{MEND.get(answer.status_code, '')}")
            except httpx.TransportError as error:
                late = isinstance(error, httpx.ReadTimeout)
                wait = f"within {self.timeout:g} s (rollout.timeout)" if late else f"({error or type(error).__name__})"
                failure = f"{self.name} does not answer {wait}"
            if time.monotonic() + self.pause > until:
                mend = "raise rollout.timeout if it only needs longer, else " * late
                raise Unanswered(
                    f"rollout.engine: {failure}, for {self.patience:g} s (rollout.patience); {mend}start it again "
                    "(mmgrpo serve-engine), then go on with the run"
                )
            if not warned:
                warned = True
                print(f"{failure}; the run waits for it, {self.patience:g} s at most", file=sys.stderr, flush=True)
            time.sleep(self.pause)

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[Any, bytearray]:
        """An answer and its content, of at most ``MOST`` bytes, within the timeout."""
        import httpx

        content, until = bytearray(), time.monotonic() + self.timeout
        with self._http.stream(method, path, content=body) as answer:
            for part in answer.iter_bytes():
                content += part
                if len(content) > MOST:
                    raise EngineFailure(f"rollout.engine: {self.name}: got an answer of more than {MOST:,} bytes")
                if time.monotonic() > until:
                    raise httpx.ReadTimeout("the answer comes too slowly")
        return answer, content


def _live(http: Any, ended: threading.Event, beat: float) -> None:
    """Keep the lease of a run until it has ended. What fails is not reported here: the next request meets it."""
    import httpx

    while not ended.wait(beat):
        with suppress(httpx.HTTPError, RuntimeError):  # RuntimeError: the client was closed meanwhile
            http.request("POST", "/lease", content=message({}), timeout=CONNECT)


def _leave(http: Any, ended: threading.Event, living: threading.Thread) -> None:
    """End the lease of a run."""
    import httpx

    ended.set()
    living.join(2 * CONNECT)  # a sign of life behind the release would keep the engine
    with suppress(httpx.HTTPError):  # a server that is gone is left by all
        http.request("POST", "/release", content=message({}), timeout=CONNECT)
    http.close()


def read_completions(rows: list[Any]) -> list[list[Drawn]]:
    """The completions of an answer; Malformed for what is none."""
    all_are(list, rows, "drawn")
    return [[_completion(table, f"drawn[{place}]") for table in row] for place, row in enumerate(rows)]


def _completion(table: Any, where: str) -> Drawn:
    values = take_all(table, DRAWN, where)
    all_are(int, values["ids"], f"{where}.ids", 0)
    all_are(float, values["log_probs"], f"{where}.log_probs")
    return Drawn(**values)


def read_trajectories(tables: list[Any]) -> list[Trajectories]:
    """The trajectories of an answer; Malformed for what is none."""
    trajectories = []
    for place, table in enumerate(tables):
        values = take_all(table, TRAJECTORIES, f"drawn[{place}]")
        for name, dtype in (("states", torch.float32), ("source", torch.int64), ("target", torch.int64)):
            if values[name].dtype != dtype:
                raise Malformed(f"drawn[{place}].{name}: got {values[name].dtype}, expected {dtype}")
        trajectories.append(Trajectories(**values))
    return trajectories


def reason_of(answer: Any, content: bytes | bytearray) -> str:
    """Why a server, or what stands between, does not answer as asked: its ``error``, else the name of the status."""
    try:
        return str(json.loads(bytes(content))["error"])[:2000]
    except (ValueError, KeyError, TypeError):
        return str(answer.reason_phrase)


def token_of(path: str) -> str:
    """The token in the file of ``rollout.token_file``; empty without one."""
    if not path:
        return ""
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"rollout.token_file: '{path}' is no file; name that with which the server was started")
    return file.read_text(encoding="utf-8").strip()


def title_of(config: Config) -> str:
    """What other runs are shown of a run."""
    return f"{config.name or config.algorithm.preset} on {socket.gethostname()}"


def refuse_servers(urls: Iterable[str], token: str, run: str = "", title: str = "") -> None:
    """EngineFailure, before a model is loaded, for a server that is none of engines, wants another token or draws for
    another run; one that does not answer may still be starting."""
    for url in urls:
        try:
            Client(url, token, timeout=CONNECT, patience=0.0, run=run, title=title).close()
        except Unanswered:
            continue


def fields_of(query: Query) -> dict[str, Any]:
    """A query as what a message can hold."""
    return {name: getattr(query, name) for name in QUERY}


def generation(value: Any) -> tuple[list[EncodedQuery], Rules, Drawing]:
    """What a request for completions asks; Malformed for another."""
    drawing = Drawing(**take_all(take(value, "drawing", dict, "the request"), DRAWING, "drawing"))
    all_are(int, [drawing.max_tokens], "drawing.max_tokens", 1)
    rules = take_all(take(value, "rules", dict, "the request"), RULES, "rules")
    for name, ids in rules.items():
        all_are(int, ids, f"rules.{name}", 0)
    queries = []
    for place, row in enumerate(take(value, "asked", list, "the request")):
        where = f"asked[{place}]"
        query = take_all(row, {**QUERY, "ids": list, "media": dict}, where)
        all_are(int, [*query["ids"], *query["forced"]], f"{where}.ids", 0)
        all_are(int, [query["count"]], f"{where}.count", 1)
        all_are(Media, query["shown"], f"{where}.shown")
        all_are(str, [query["prompt"].text, query["prompt"].id, *query["opening"]], where)
        queries.append(EncodedQuery(Query(**some_of(query, "ids", "media")), query["ids"], query["media"]))
    return queries, Rules(**{name: frozenset(ids) for name, ids in rules.items()}), drawing


def denoising(value: Any) -> Request:
    """What a request for trajectories asks; Malformed for another."""
    table = take_all(take(value, "request", dict, "the request"), REQUEST, "request")
    all_are(Prompt, table["prompts"], "request.prompts")
    all_are(int, [*table["slots"]], "request.slots", 0)
    all_are(int, [table["group_size"]], "request.group_size", 1)
    if len(table["slots"]) != len(table["prompts"]):
        raise Malformed(f"request.slots: got {len(table['slots'])} of {len(table['prompts'])} prompts")
    return Request(**table)


class Lease:
    """For which run an engine draws."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.run, self.title, self.seen, self.active = "", "", 0.0, 0

    def take(self, run: str, title: str) -> bool:
        """Keep the engine for a run, or go on to; whether it drew for another before. Occupied while it does."""
        other, quiet = run != self.run, time.monotonic() - self.seen
        if other and self.run and (self.active or quiet < self.seconds):
            raise Occupied(
                f"the engine draws for the run '{self.title}' (heard from {quiet:.0f} s ago), for one at a time; "
                "stop that run, or start another engine and name its address in rollout.url. An engine is free "
                f"{self.seconds:g} s after a run that was killed was heard from"
            )
        self.run, self.title, self.seen = run, title, time.monotonic()
        return other

    def release(self, run: str) -> None:
        """Leave the engine to any run, if it is this one's."""
        if run == self.run:
            self.seen = -math.inf


def application(
    engine: Engine | Denoiser, token: str = "", lease_seconds: float = LEASE, body_seconds: float = BODY_SECONDS
) -> FastAPI:
    """The application of a server, which answers one request at a time, all of one run."""
    from fastapi import FastAPI
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse, Response

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    turn, lease = asyncio.Lock(), Lease(lease_seconds)
    waiting: dict[str, Tensor] = {}
    pushing, since = "", 0.0
    """The push of which ``waiting`` are the tensors so far, and when its last part came."""
    loaded: int | None = None
    """The round of the weights that were taken over; None while they are of no round."""
    present: Weights | None = None
    """Those weights, from when they were stated on."""

    def forget() -> None:
        """What another run has sent is not drawn from."""
        nonlocal loaded, present, pushing
        loaded, present, pushing = None, None, ""
        waiting.clear()

    def state(_: Any) -> Any:
        nonlocal present
        held = dict(engine.fingerprints())
        if loaded is not None and present is None:
            present = Weights.of(loaded, held)
        stated = {"name": engine.name, "whole": engine.whole, "form": engine.form}
        return {**stated, "weights": present and asdict(present), "held": held}

    def weights(value: Any) -> Any:
        nonlocal loaded, present, pushing, since
        body = take_all(value, PUSH, "the request")
        all_are(str, body["tensors"], "the request.tensors")
        all_are(Tensor, body["tensors"].values(), "the request.tensors")
        late = time.monotonic() - since > body_seconds
        if pushing and pushing != body["push"] and not late:
            raise Busy("another process of the run sends weights")
        if body["first"]:
            waiting.clear()
            pushing = body["push"]
        elif pushing != body["push"]:
            raise Forgotten("the first parts of the weights are no longer there")
        since = time.monotonic()
        waiting.update(body["tensors"])
        if body["last"]:
            loaded, present, pushing = None, None, ""  # of no round, until all of them are taken over
            tensors = [*waiting.items()]
            waiting.clear()
            engine.load(tensors, body["version"])
            loaded = body["version"]
        return {}

    def refuse_other_weights(value: Any) -> None:
        if present != (stated := Weights.read(value, "the request")):
            raise Forgotten(f"the engine holds {present or 'no weights'}, asked for those of {stated}")

    def answer_of(value: Any, drawn: list[Any]) -> Any:
        return {"weights": take(value, "weights", dict, "the request"), "drawn": drawn}

    def trajectories(value: Any) -> Any:
        if not isinstance(engine, Denoiser):
            raise ValueError(f"{engine.name} draws tokens, expected a denoising model")
        request = denoising(value)
        refuse_other_weights(value)
        return answer_of(value, [vars(batch) for batch in engine.trajectories(request)])

    def generate(value: Any) -> Any:
        if not isinstance(engine, Engine):
            raise ValueError(f"{engine.name} draws trajectories, expected a model of tokens")
        queries, rules, drawing = generation(value)
        refuse_other_weights(value)
        drawn = engine.generate(queries, rules, drawing)
        rows = [[{**asdict(row), "ids": list(row.ids)} for row in completions] for completions in drawn]
        return answer_of(value, rows)

    def rest(_: Any) -> Any:
        engine.rest()
        return {}

    def tenant(received: Received) -> str:
        """The id of the run that a request is of, which has the engine from here on."""
        stated = received.headers.get(PROTOCOL_HEADER, "none")
        if stated != str(PROTOCOL):
            raise Malformed(
                f"protocol: got {stated[:20]}, expected {PROTOCOL}; install the same release of mmgrpo on both sides"
            )
        run = received.headers.get(RUN_HEADER, "")
        if not run:
            raise Malformed(f"got no header {RUN_HEADER}, expected the id of a run")
        if lease.take(run, unquote(received.headers.get(NAME_HEADER, run))[:200]):
            forget()
        return run

    async def act_on(received: Received, act: Callable[[Any], Any]) -> Response:
        try:
            body = await asyncio.wait_for(read_body(received, MOST), body_seconds)
        except TimeoutError as error:
            raise Slow(f"the body did not come within {body_seconds:g} s") from error
        value = await asyncio.to_thread(value_of, body) if body else None
        del body
        async with turn:
            return Response(await asyncio.to_thread(lambda: message(act(value))), headers=STATED)

    def guard(act: Callable[[Any], Any] | None) -> Any:
        async def answer(received: Received) -> Response:
            def refusal(status: int, error: Exception) -> Response:
                # What is left of a body is not read, so the connection cannot be used again.
                text = str(error).removeprefix("rollout.engine: ") or type(error).__name__
                return JSONResponse({"error": text}, status, {**STATED, "Connection": "close"})

            authorization = received.headers.get("authorization", "").encode("latin-1")
            if token and not hmac.compare_digest(authorization, f"Bearer {token}".encode()):
                return refusal(401, ValueError("got a wrong token or none"))
            try:
                run = tenant(received)
                if act is None:
                    lease.release(run) if received.url.path == "/release" else None
                    return Response(message({}), headers=STATED)
                lease.active += 1
                try:
                    return await act_on(received, act)
                finally:
                    lease.active -= 1
                    lease.seen = time.monotonic()
            except Forgotten as error:
                return refusal(409, error)
            except Occupied as error:
                return refusal(423, error)
            except Busy as error:
                return refusal(503, error)
            except TooLarge as error:
                return refusal(413, error)
            except Slow as error:
                return refusal(408, error)
            except ClientDisconnect:
                return refusal(400, ValueError("the body ended early"))
            except Malformed as error:
                return refusal(400, error)
            except (EngineFailure, ValueError, LookupError, TypeError, AttributeError) as error:
                return refusal(422, error)
            except Exception as error:  # which may be over soon; a run prints it while it waits
                traceback.print_exc()
                return refusal(500, RuntimeError(f"{type(error).__name__}: {error}"))

        return answer

    for path, method, act in (
        ("/lease", "POST", None),
        ("/release", "POST", None),
        ("/state", "GET", state),
        ("/weights", "POST", weights),
        ("/generate", "POST", generate),
        ("/trajectories", "POST", trajectories),
        ("/rest", "POST", rest),
    ):
        app.add_route(path, guard(act), methods=[method])
    return app


def some_of(row: Mapping[str, Any], *without: str) -> dict[str, Any]:
    """A row without some of its keys."""
    return {name: value for name, value in row.items() if name not in without}
