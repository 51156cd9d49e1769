"""What Gradio would do for anyone who can reach the page, and the demo does not.

- Gradio downloads files that a request names by address (``/file=https://...``, and files among the inputs of events),
  and passes requests on to other servers: refused, since nothing outside this machine is asked for anything.
- A page of another site, open in the same browser, can send requests to this machine: refused by their ``Origin``, and
  by their ``Host``, which such a page can have resolved to this machine (DNS rebinding).
- Messages of Gradio are mark-up, in which a name from a run folder could load an image of another server: the page is
  restricted to its own resources (Content-Security-Policy).
- The limit of an upload holds for each file, and for events there is none: the whole request is limited.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL = ("localhost", "127.0.0.1", "::1")
"""Names of this machine for itself."""
FORM = 1024 * 1024
"""Bytes of a request besides its files."""
ELSEWHERE = ("/proxy=", "/run-history", "/vibe-")
"""Parts of the paths of requests that are passed on to others."""
OWN = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"
OWN += "; base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
"""What the page may load. Gradio's scripts are inline, and make others."""
MAX_LEVELS = 64
"""Levels of lists and objects in a request."""


def gate(local: bool, shared: bool, upload: int) -> Middleware:
    """The gate before a page. ``local``: its server listens to this machine alone; ``shared``: it is also shown through
    Gradio's servers, from which it is loaded then; ``upload``: the largest, in bytes."""
    return Middleware(Gate, local=local and not shared, shared=shared, most=upload + FORM)


class Gate:
    """Answers requests that are refused, and passes the others on."""

    def __init__(self, app: ASGIApp, local: bool, shared: bool, most: int) -> None:
        self.app, self.local, self.shared, self.most = app, local, shared, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self.refusal(scope["method"], scope["path"], Headers(scope=scope))
        # A body of any type but a form can be read as JSON.
        form = Headers(scope=scope).get("content-type", "").startswith("multipart/form-data")
        if not refusal and not form and scope["method"] == "POST":
            body = await read_body(receive)
            receive = again(body, receive)
            if names_an_address(body):
                refusal = 403, "files are uploaded, not fetched from an address"
        if refusal:
            status, reason = refusal
            await PlainTextResponse(reason, status)(scope, receive, send)
            return
        await self.app(scope, receive, send if self.shared else with_policy(send))

    def refusal(self, method: str, path: str, headers: Headers) -> tuple[int, str] | None:
        """Status and reason, if a request is refused without regard to its body."""
        if self.local and host_name(headers.get("host", "")) not in LOCAL:
            return 403, "this page is served to this machine alone"
        origin = headers.get("origin")
        if self.local and origin is not None and urlsplit(origin).netloc != headers.get("host"):
            return 403, "requests of other sites are refused"
        if any(part in path for part in ELSEWHERE) or "://" in path.partition("/file=")[2]:
            return 403, "nothing is fetched from other servers"
        if method not in ("GET", "HEAD", "OPTIONS"):
            length = headers.get("content-length", "")
            if not length.isdecimal():
                return 411, "a request must say how long it is"
            if (size := int(length[:20])) > self.most:
                return 413, f"got a request of {size:,} bytes, expected at most {self.most:,}"
        return None


def with_policy(send: Send) -> Send:
    """What sends a response with the header that says what a page may load."""

    async def send_with_policy(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["content-security-policy"] = OWN
        await send(message)

    return send_with_policy


def host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    return urlsplit(f"//{host}").hostname or ""


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request, whose length has been checked."""
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def again(body: bytes, receive: Receive) -> Receive:
    """What receives the body that has been read, and then what comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


def names_an_address(body: bytes) -> bool:
    """Whether a file among the inputs of an event is an address, or they are nested too deeply to tell."""
    try:
        level: list[Any] = [json.loads(body or b"null")]
    except (ValueError, RecursionError):
        return False  # what cannot be read names nothing
    for _ in range(MAX_LEVELS):
        objects = [item for item in level if isinstance(item, dict)]
        if any(isinstance(o.get("path"), str) and "://" in o["path"] for o in objects):
            return True
        level = [child for item in level if isinstance(item, list) for child in item]
        level += [child for item in objects for child in item.values()]
        if not level:
            return False
    return True
