"""Rewards over HTTP: ``mmgrpo serve-rewards``. Bodies are those of ``envelope``; nothing is unpickled or evaluated.

    GET  /health      200 when all rewards are loaded and have scored a first batch, 503 before
    GET  /manifests   what each reward is, and how long it may take
    POST /score       values by the ids of the outputs, null where there is none, and the ids that the reward abstained
                      from (it does not apply to them)

All but /health need the header ``Authorization: Bearer TOKEN`` where the server has a token. Errors are
``{"error": "..."}`` with a status that says whether to repeat the request: 400 malformed, 401 wrong token, 404 no such
reward, 413 too large, 415 another content type, 422 the reward raised an exception: do not; 408 the body came too
slowly, 429 too many wait, 503 not loaded or its process ended, 504 no value in time: later. An error of a reward names
files without their folders, which the server prints where it runs.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mmgrpo.scoring.batching import Batches, Busy, Unreadable, Unready, Unscorable
from mmgrpo.scoring.envelope import FRAMES, JSON, VERSION, Limits, Malformed, TooLarge, read

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.responses import Response

LIMITS = Limits()

BODY_SECONDS = 120.0
"""Seconds within which the body of a request must come."""

HEADER_SECONDS = 30.0
"""Seconds within which the headers of a request must come, from the connection or from their first byte."""

IN_FLIGHT = 1 << 32
"""Bytes of all requests that are being read or scored."""

CONNECTIONS = 1024
"""Connections at a time; further ones are answered 503."""


class Refusal(Exception):
    """An answer that is no success: its status and what it says."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def application(
    rewards: Mapping[str, Batches],
    token: str = "",
    limits: Limits = LIMITS,
    failed: Any = lambda error: None,
    body_seconds: float = BODY_SECONDS,
    in_flight: int = IN_FLIGHT,
) -> FastAPI:
    """The application of a server; ``failed`` is called with the error of a reward that cannot be loaded.

    The bodies of all requests that are being read or scored, and their media once decoded, take at most ``in_flight``
    bytes, or those of a single request.
    """
    from fastapi import FastAPI
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        def on_end(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()):
                failed(error)

        tasks = [asyncio.create_task(reward.run()) for reward in rewards.values()]
        for task in tasks:
            task.add_done_callback(on_end)
        yield
        for task in tasks:
            task.cancel()
        for reward in rewards.values():
            reward.close()

    flying = InFlight(in_flight)
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    async def refuse(request: Request, refusal: Any) -> Response:
        later = {"Retry-After": "1"} if refusal.status in (408, 429, 503) else {}
        # What is left of the body is not read, so the connection cannot be used again.
        return JSONResponse({"error": str(refusal)}, refusal.status, {"Connection": "close", **later})

    def authorize(request: Request) -> None:
        given = request.headers.get("authorization", "").encode("latin-1")
        if token and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            raise Refusal(401, "got a wrong token or none, expected the header 'Authorization: Bearer TOKEN'")

    async def health(request: Request) -> Response:
        ready = all(reward.ready for reward in rewards.values())
        return JSONResponse({"version": VERSION, "status": "ready" if ready else "loading"}, 200 if ready else 503)

    async def manifests(request: Request) -> Response:
        authorize(request)
        return JSONResponse({"version": VERSION, "rewards": {name: facts(reward) for name, reward in rewards.items()}})

    async def score(request: Request) -> Response:
        authorize(request)
        kind = request.headers.get("content-type", "")
        if kind.partition(";")[0].strip().lower() not in (JSON, FRAMES):
            raise Refusal(415, f"got the content type {kind[:100]!r}, expected {JSON} or {FRAMES}")
        try:
            with flying.hold() as grow:
                body = await asyncio.wait_for(read_body(request, limits.body, grow), body_seconds)
                sent = await asyncio.to_thread(read, kind, body, limits)
                grow(sent.nbytes)
                del body
                if sent.reward not in rewards:
                    raise Refusal(404, f"unknown reward '{sent.reward[:100]}', only {', '.join(sorted(rewards))}")
                values = await in_time(rewards[sent.reward], sent)
        except Malformed as error:
            raise Refusal(400, str(error)) from error
        except TooLarge as error:
            raise Refusal(413, str(error)) from error
        except ClientDisconnect as error:
            raise Refusal(400, "the body ended early") from error
        except TimeoutError as error:
            raise Refusal(408, f"the body did not come within {body_seconds:g} s") from error
        scored = dict(zip(sent.ids, values, strict=True))
        finite = {name: value if value is not None and math.isfinite(value) else None for name, value in scored.items()}
        abstained = [name for name, value in scored.items() if value is None]
        return JSONResponse({"version": VERSION, "values": finite, "abstained": abstained})

    app.add_exception_handler(Refusal, refuse)
    app.add_route("/health", health, methods=["GET"])
    app.add_route("/manifests", manifests, methods=["GET"])
    app.add_route("/score", score, methods=["POST"])
    return app


async def read_body(request: Request, most: int, grow: Callable[[int], None] = lambda size: None) -> bytearray:
    """The body of a request, of which no more than ``most`` bytes are ever read; ``grow`` receives its size so far."""
    announced = request.headers.get("content-length", "")
    body = bytearray()
    if not (announced.isdecimal() and len(announced) < 20 and int(announced) > most):
        async for part in request.stream():
            grow(len(body) + len(part))
            body += part
            if len(body) > most:
                break
        else:
            return body
    raise TooLarge(f"got a body of more than {most:,} bytes; send fewer outputs at a time")


async def in_time(reward: Batches, sent: Any) -> list[float | None]:
    """The values of a request, or the refusal that says why there are none."""
    try:
        return await reward.score(sent.prompts, sent.outputs)
    except TimeoutError as error:
        raise Refusal(504, f"reward '{reward.name}' gave no values within {reward.timeout:g} s") from error
    except Busy as error:
        raise Refusal(429, str(error)) from error
    except (Unready, Unreadable, Unscorable) as error:
        status = 503 if isinstance(error, Unready) else 400 if isinstance(error, Unreadable) else 422
        reason = without_folders(str(error))
        if reason != str(error) and str(error) not in _printed:
            _printed.add(str(error))
            print(error, file=sys.stderr, flush=True)
        raise Refusal(status, reason) from error


_printed: set[str] = set()
"""Errors whose paths clients do not get: each is printed once where the server runs."""

FOLDERS = re.compile(
    r"(?<=['\"])(?:/|[A-Za-z]:[/\\]|~/)[^'\"\n]*[/\\](?=[^'\"\n/\\]*['\"])"  # quoted, maybe with spaces
    r"|(?<=\()(?:/|[A-Za-z]:[/\\])[^\n()]*[/\\](?=[^\n()/\\]+:\d+, in )"  # a line of a file (``user_line``)
    r"|(?<![\w.~/:-])(?:/|[A-Za-z]:[/\\]|~/)(?:[^\s/\\'\"]+[/\\])+"
)
"""The folders of an absolute path; a URL is none."""


def without_folders(text: str) -> str:
    """The text with every absolute path as the name of its file, which says what failed and not where."""
    return FOLDERS.sub("", text)


class InFlight:
    """The bytes of all requests that are read, decoded or wait for their values; beyond ``most`` others come later."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """A function that sets the bytes of one request, which are given back at the end."""
        taken = 0

        def grow(size: int) -> None:
            nonlocal taken
            if size <= taken:
                return
            if self.held - taken + size > self.most and self.held > taken:
                raise Refusal(429, f"requests of {self.held:,} bytes are being scored, expected at most {self.most:,}")
            self.held += size - taken
            taken = size

        try:
            yield grow
        finally:
            self.held -= taken


def facts(reward: Batches) -> dict[str, Any]:
    """A reward in the list of manifests, in JSON: infinite bounds and time-outs are null."""
    manifest = reward.manifest and {
        key: None if isinstance(value, float) and math.isinf(value) else value
        for key, value in asdict(reward.manifest).items()
    }
    timeout = reward.timeout if math.isfinite(reward.timeout) else None
    return {"timeout": timeout, "alone": reward.alone, "manifest": manifest}


class Punctual(asyncio.Protocol):
    """A connection that is closed where the headers of a request do not come in time; all else is ``inner``'s.

    uvicorn waits for ever for the first byte, and for the last of half a header, so idle connections could use up
    all that a server may have.
    """

    def __init__(self, inner: Any, seconds: float) -> None:
        self.inner, self.seconds = inner, seconds
        self._timer: asyncio.TimerHandle | None = None
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.inner.connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        self.inner.data_received(data)
        if self._has_open_request():
            self._stop()
        elif self._timer is None:
            self._wait()

    def eof_received(self) -> Any:
        return self.inner.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop()
        self.inner.connection_lost(error)

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def _has_open_request(self) -> bool:
        """Whether a request has come whose answer is not complete."""
        return self.inner.cycle is not None and not self.inner.cycle.response_complete

    def _wait(self) -> None:
        self._timer = self.inner.loop.call_later(self.seconds, self._late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if not self._has_open_request():
            self._transport.close()


class Running:
    """A server that listens on ``host`` and ``port`` (0: a free one, which ``port`` then names).

    Clients may connect as soon as it exists; ``run`` answers them.
    """

    def __init__(
        self, app: FastAPI, host: str, port: int, drain: float, header_seconds: float = HEADER_SECONDS
    ) -> None:
        """``drain``: seconds that requests have to end once the server is asked to stop."""
        import socket

        import uvicorn
        from uvicorn.protocols.http.auto import AutoHTTPProtocol

        def protocol(**options: Any) -> asyncio.Protocol:
            return Punctual(AutoHTTPProtocol(**options), header_seconds)

        host = host.strip("[]")  # as in a url
        self.socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        with suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind((host, port))
            self.socket.listen()
        except OSError as error:
            raise OSError(f"--host {host} --port {port}: {error.strerror or error}; choose another port") from error
        self.port: int = self.socket.getsockname()[1]
        self.url = f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"
        limit = math.ceil(drain) if math.isfinite(drain) else None
        http: Any = protocol  # called as the class of a connection
        config = uvicorn.Config(
            app,
            http=http,
            log_level="warning",
            lifespan="on",
            timeout_graceful_shutdown=limit,
            limit_concurrency=CONNECTIONS,
            ws="none",
            access_log=False,
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or ``stop``; then requests that came before are answered, and no others."""
        self._server.run(sockets=[self.socket])

    def stop(self) -> None:
        """End ``run`` once all requests are answered."""
        self._server.should_exit = True
