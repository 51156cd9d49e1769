"""An engine behind HTTP: ``mmgrpo serve-engine``. Messages are those of ``mmgrpo.scoring.wire``; nothing is unpickled.

    GET  /state      its name, form, version of weights, and the fingerprint of every tensor
    POST /weights    {"version", "tensors", "last"}: tensors by name, in parts; they are taken over with the last one
    POST /generate   queries, rules and how to draw; the completions with the version of the weights that drew them
    POST /trajectories  a request of a denoising policy; what was drawn for it, with the version of the weights
    POST /rest       free memory until the next weights

All need the header ``Authorization: Bearer TOKEN`` where the server has a token. A request that cannot be answered is
422 with the reason, one for weights that the server does not hold (any more) 409; whatever else fails may be over soon.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mmgrpo.config.extras import install
from mmgrpo.engines.denoising import Denoiser
from mmgrpo.engines.engine import Asked, Drawn, Engine, EngineFailure, Forgotten, Named, Rules
from mmgrpo.policies.generation import Drawing
from mmgrpo.policies.token_model import Query
from mmgrpo.policies.trajectories import Trajectories
from mmgrpo.scoring.wire import LENGTH, frames, read
from mmgrpo.types import Request

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request as Received

PART = 1 << 29
"""Bytes of tensors in one request, at most one tensor more."""

MOST = 1 << 36
"""Bytes of the longest message."""

CONNECT = 5.0
"""Seconds for a connection."""


MEND = {
    401: "; set rollout.token_file to the file with which the server was started",
    404: "; it is no server of engines: name the address of a 'mmgrpo serve-engine' in rollout.url",
}
"""Status to what a user does about it."""


class Unanswered(EngineFailure):
    """A server that does not answer, or only that it cannot now."""


def message(value: Any) -> bytes:
    """A value as the body of a request or an answer."""
    return b"".join(frames(value))


def value_of(body: bytes) -> Any:
    """The value of a body; ValueError where it is none."""
    place = 0

    def frame() -> bytes:
        nonlocal place
        length = int.from_bytes(body[place : place + LENGTH], "big")
        content = body[place + LENGTH : place + LENGTH + length]
        if len(content) != length:
            raise ValueError("got a message that ends early")
        place += LENGTH + length
        return content

    return read(frame)


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
    ) -> None:
        """``timeout``: seconds for an answer; ``patience``: seconds for which a server that fails is waited for;
        ``transport``: how requests are sent (for tests)."""
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"rollout.engine served needs the package httpx: {install('serve')}", name="httpx"
            ) from error
        self.name, self.patience, self.pause, self.timeout = f"the engine at {url}", patience, pause, timeout
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        limits = httpx.Timeout(timeout, connect=CONNECT)
        self._http = httpx.Client(base_url=url, headers=headers, timeout=limits, transport=transport, trust_env=False)
        state = self._state()
        self.whole, self.form = bool(state["whole"]), str(state["form"])

    def held(self) -> Mapping[str, str]:
        """The fingerprints that the server states."""
        return self._state()["held"]

    def load(self, tensors: Named, version: int) -> None:
        """Send tensors in parts."""
        part: dict[str, Tensor] = {}
        first, size = True, 0
        for name, tensor in tensors:
            if size > PART:
                self._send("POST", "/weights", {"version": version, "tensors": part, "first": first, "last": False})
                part, size, first = {}, 0, False
            part[name] = tensor.detach().cpu()
            size += tensor.nbytes
        self._send("POST", "/weights", {"version": version, "tensors": part, "first": first, "last": True})

    def generate(self, asked: Sequence[Asked], rules: Rules, drawing: Drawing) -> list[list[Drawn]]:
        """The completions that the server draws."""
        given = {name: sorted(value) for name, value in asdict(rules).items()}
        rows = [{**fields_of(one.query), "ids": list(one.ids), "media": dict(one.media)} for one in asked]
        answer = self._send("POST", "/generate", {"asked": rows, "rules": given, "drawing": asdict(drawing)})
        return [[Drawn(**one) for one in several] for several in answer["drawn"]]

    def trajectories(self, request: Request) -> list[Trajectories]:
        """The trajectories that the server draws."""
        given = {"prompts": list(request.prompts), "slots": list(request.slots), "group_size": request.group_size}
        given |= {"seed": request.seed, "round": request.round, "sampling": dict(request.sampling)}
        return [Trajectories(**one) for one in self._send("POST", "/trajectories", given)["drawn"]]

    def rest(self) -> None:
        """Tell the server."""
        self._send("POST", "/rest", {})

    def close(self) -> None:
        """End the connection; the server goes on."""
        self._http.close()

    def _state(self) -> dict[str, Any]:
        return self._send("GET", "/state")

    def _send(self, method: str, path: str, value: Any = None) -> Any:
        """The value of an answer. What may be over soon is tried again until the patience is over."""
        import httpx

        body, until, warned = (message(value) if value is not None else None), time.monotonic() + self.patience, False
        while True:
            late = False
            try:
                answer = self._http.request(method, path, content=body)
                if answer.status_code == 200:
                    return value_of(answer.content)
                failure = f"{self.name} answers {answer.status_code}: {reason_of(answer)}"
                if answer.status_code == 409:
                    raise Forgotten(failure)
                if answer.status_code in (400, 401, 404, 413, 422):
                    raise EngineFailure(f"rollout.engine: {failure}{MEND.get(answer.status_code, '')}")
            except httpx.TransportError as error:
                late = isinstance(error, httpx.ReadTimeout)
                wait = f"within {self.timeout:g} s (rollout.timeout)" if late else f"({error or type(error).__name__})"
                failure = f"{self.name} does not answer {wait}"
            except ValueError as error:
                raise EngineFailure(
                    f"rollout.engine: {self.name}: got an answer that cannot be read ({error})"
                ) from error
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


def reason_of(answer: Any) -> str:
    """Why a server, or what stands between, does not answer as asked: its ``error``, else the name of the status."""
    try:
        return str(json.loads(answer.content)["error"])[:2000]
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


def refuse_servers(urls: Iterable[str], token: str) -> None:
    """EngineFailure, before a model is loaded, for a server that is none of engines or wants another token; one that
    does not answer may still be starting."""
    for url in urls:
        try:
            Client(url, token, timeout=CONNECT, patience=0.0).close()
        except Unanswered:
            continue


def fields_of(query: Query) -> dict[str, Any]:
    """A query as what a message can hold."""
    names = ("prompt", "slot", "count", "origin", "forced", "variant", "shown", "opening")
    return {name: getattr(query, name) for name in names}


def application(engine: Engine | Denoiser, token: str = "") -> FastAPI:
    """The application of a server, which answers one request at a time."""
    from fastapi import FastAPI
    from starlette.responses import JSONResponse, Response

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    turn = asyncio.Lock()
    waiting: dict[str, Tensor] = {}
    version: int | None = None

    def state(_: Any) -> Any:
        own = {"name": engine.name, "whole": engine.whole, "form": engine.form}
        return {**own, "version": version, "held": dict(engine.held())}

    def weights(value: Any) -> Any:
        nonlocal version
        if value["first"]:
            waiting.clear()
        waiting.update(value["tensors"])
        if value["last"]:
            version = None  # of no round, until all of them are taken over
            engine.load(list(waiting.items()), int(value["version"]))
            waiting.clear()
            version = int(value["version"])
        return {}

    def refuse_other_weights(asked: int) -> None:
        if version != asked:
            raise Forgotten(f"got weights of {version}, asked for those of round {asked}")

    def trajectories(value: Any) -> Any:
        if not isinstance(engine, Denoiser):
            raise ValueError(f"{engine.name} draws tokens, expected a denoising model")
        request = Request(**value)
        refuse_other_weights(request.round)
        return {"drawn": [vars(one) for one in engine.trajectories(request)]}

    def generate(value: Any) -> Any:
        if not isinstance(engine, Engine):
            raise ValueError(f"{engine.name} draws trajectories, expected a model of tokens")
        drawing = Drawing(**value["drawing"])
        refuse_other_weights(drawing.round)
        rules = Rules(**{name: frozenset(ids) for name, ids in value["rules"].items()})
        asked = [Asked(Query(**some_of(one, "ids", "media")), one["ids"], one["media"]) for one in value["asked"]]
        drawn = engine.generate(asked, rules, drawing)
        return {"drawn": [[{**asdict(one), "ids": list(one.ids)} for one in several] for several in drawn]}

    def rest(_: Any) -> Any:
        engine.rest()
        return {}

    def answered(act: Callable[[Any], Any]) -> Any:
        async def answer(received: Received) -> Response:
            given = received.headers.get("authorization", "").encode("latin-1")
            if token and not hmac.compare_digest(given, f"Bearer {token}".encode()):
                return JSONResponse({"error": "got a wrong token or none"}, 401)
            body = b""
            async for part in received.stream():
                body += part
                if len(body) > MOST:
                    return JSONResponse({"error": f"got a body of more than {MOST} bytes"}, 413)
            try:
                async with turn:
                    value = await asyncio.to_thread(lambda: act(value_of(body) if body else None))
                return Response(message(value))
            except Forgotten as error:
                return JSONResponse({"error": str(error)}, 409)
            except (EngineFailure, ValueError, KeyError, TypeError) as error:
                text = str(error).removeprefix("rollout.engine: ")
                return JSONResponse({"error": text or type(error).__name__}, 422)
            except Exception as error:  # which may be over soon; a run prints it while it waits
                traceback.print_exc()
                return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)

        return answer

    for path, method, act in (
        ("/state", "GET", state),
        ("/weights", "POST", weights),
        ("/generate", "POST", generate),
        ("/trajectories", "POST", trajectories),
        ("/rest", "POST", rest),
    ):
        app.add_route(path, answered(act), methods=[method])
    return app


def some_of(row: Mapping[str, Any], *without: str) -> dict[str, Any]:
    """A row without some of its keys."""
    return {name: value for name, value in row.items() if name not in without}
