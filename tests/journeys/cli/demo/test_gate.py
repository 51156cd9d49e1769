"""The gate before the page, asked directly: what it refuses, what it passes on, and how the page is launched."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from mmgrpo.cli.demo import Args, app, gate, look
from mmgrpo.cli.demo.gate import MAX_LEVELS, OWN, Gate, names_an_address
from mmgrpo.cli.demo.models import Opened

HOST = {"host": "localhost:7860"}


def ask(
    path: str = "/",
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    kind: str = "http",
    **options: Any,
) -> tuple[int, str, dict[str, str], bytes | None]:
    """Status, text and headers of the answer, and the body that the page behind the gate received; None if nothing."""
    received: list[bytes] = []
    parts = [body[: len(body) // 2], body[len(body) // 2 :]]
    messages = [
        {"type": "http.request", "body": parts[0], "more_body": True},
        {"type": "http.request", "body": parts[1]},
    ]
    sent: list[dict[str, Any]] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        content, more = b"", True
        while more and kind == "http":
            message = await receive()
            content, more = content + message.get("body", b""), message.get("more_body", False)
        received.append(content)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"page"})

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    several = [
        (k.encode(), v.encode()) for k, v in ({**HOST, "content-length": str(len(body))} | (headers or {})).items()
    ]
    scope = {"type": kind, "method": method, "path": path, "headers": several}
    guard = Gate(behind, **{"local": True, "shared": False, "most": 100, **options})
    asyncio.run(guard(scope, receive, send))
    start = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
    return sent[0]["status"], sent[1]["body"].decode(), start, received[0] if received else None


def test_a_request_is_passed_on_whole_and_the_page_may_load_only_its_own():
    status, text, headers, body = ask("/api", "POST", body=b'{"a": [1]}')
    assert (status, text, body) == (200, "page", b'{"a": [1]}') and headers["content-security-policy"] == OWN
    assert "content-security-policy" not in ask(shared=True, local=False)[2]
    assert ask("/api", "POST", body=b"")[0] == 200
    assert "content-security-policy" not in ask(kind="websocket", headers={"host": "example.com"})[2]


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"headers": {"host": "example.com"}}, 403, "this machine alone"),
        ({"headers": {"host": ""}}, 403, "this machine alone"),
        ({"headers": {"host": "example.com"}, "local": False}, 200, "page"),
        ({"headers": {"host": "127.0.0.1"}}, 200, "page"),
        ({"headers": {"host": "[::1]:7860"}}, 200, "page"),
        ({"headers": {"origin": "http://localhost:7860"}}, 200, "page"),
        ({"headers": {"origin": "http://localhost:7861"}}, 403, "other sites"),
        ({"headers": {"origin": "http://example.com"}, "local": False}, 200, "page"),
        ({"path": "/x/proxy=http"}, 403, "other servers"),
        ({"path": "/run-history"}, 403, "other servers"),
        ({"path": "/vibe-code"}, 403, "other servers"),
        ({"path": "/file=https://example.com"}, 403, "other servers"),
        ({"path": "/file=/tmp/a.png"}, 200, "page"),
        ({"path": "/a://b"}, 200, "page"),
        ({"method": "POST", "headers": {"content-length": ""}}, 411, "how long it is"),
        ({"method": "PUT", "headers": {"content-length": "-1"}}, 411, "how long it is"),
        (
            {"method": "POST", "headers": {"content-length": "101"}},
            413,
            "got a request of 101 bytes, expected at most 100",
        ),
        ({"method": "POST", "headers": {"content-length": "100"}}, 200, "page"),
        ({"method": "POST", "headers": {"content-length": "9" * 5000}}, 413, "expected at most 100"),
        (
            {"method": "POST", "headers": {"content-length": "9" * 21}},
            413,
            "got a request of 99,999,999,999,999,999,999 bytes",
        ),
        ({"method": "HEAD", "headers": {"content-length": "101"}}, 200, "page"),
        ({"method": "OPTIONS", "headers": {"content-length": "101"}}, 200, "page"),
        ({"method": "POST", "body": b'{"path": "https://a"}'}, 403, "not fetched from an address"),
        ({"method": "PUT", "body": b'{"path": "https://a"}'}, 200, "page"),
        (
            {
                "method": "POST",
                "body": b'{"path": "https://a"}',
                "headers": {"content-type": "multipart/form-data; boundary=x"},
            },
            200,
            "page",
        ),
    ],
)
def test_what_is_refused_and_what_is_not(changes: dict[str, Any], status: int, words: str):
    answer = ask(**changes)
    assert answer[0] == status and words in answer[1] and (answer[3] is None) is (status != 200)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"path": "https://a"}, True),
        ({"path": "a"}, False),
        ({"path": 3}, False),
        ({"url": "https://a"}, False),
        ([1, [{"data": {"path": "x://y"}}]], True),
        (None, False),
    ],
)
def test_an_address_is_found_where_a_file_is_named(value: Any, found: bool):
    assert names_an_address(json.dumps(value).encode()) is found


def test_after_a_body_that_was_read_comes_what_the_server_sends_next():
    async def gone() -> Any:
        return {"type": "http.disconnect"}

    async def both() -> list[Any]:
        receive = gate.again(b"x", gone)
        return [await receive(), await receive()]

    assert asyncio.run(both()) == [{"type": "http.request", "body": b"x", "more_body": False}, asyncio.run(gone())]


def test_what_is_nested_too_deeply_to_tell_names_an_address():
    def nested(levels: int) -> bytes:
        return b"[" * levels + b"]" * levels

    assert MAX_LEVELS == 64 and not names_an_address(nested(64)) and names_an_address(nested(65))
    assert not names_an_address(b"") and not names_an_address(b"{") and not names_an_address(b"[" * 100_000)


def test_the_gate_of_a_page_knows_who_can_reach_it():
    for local, shared, kept in ((True, False, True), (True, True, False), (False, False, False)):
        made = gate.gate(local, shared, 5)
        assert made.cls is Gate and made.kwargs == {"local": kept, "shared": shared, "most": 5 + (1 << 20)}


@pytest.mark.parametrize("args", [Args(), Args(host="0.0.0.0", share=True, max_mebibytes=3, waiting=7)])
def test_the_page_is_launched_as_the_options_say_and_shares_nothing_else(args: Args, monkeypatch):
    launched: dict[str, Any] = {}
    queued: dict[str, Any] = {}
    monkeypatch.setattr(gr.Blocks, "launch", lambda self, **options: launched.update(options))
    monkeypatch.setattr(gr.Blocks, "queue", lambda self, **options: queued.update(options) or self)
    monkeypatch.setattr(app, "build", lambda opened: gr.Blocks())
    assert isinstance(app.launch(Opened({}, {}, Path("v")), args, 5, "secret" if args.share else ""), gr.Blocks)
    assert queued == {"max_size": args.waiting, "default_concurrency_limit": 1, "api_open": False}
    (middleware,) = launched.pop("app_kwargs")["middleware"]
    assert middleware.kwargs["most"] == (args.max_mebibytes << 20) + (1 << 20)
    assert (middleware.kwargs["local"], middleware.kwargs["shared"]) == (not args.share, args.share)
    assert isinstance(launched.pop("theme"), gr.themes.Base)
    assert launched == {
        **{"server_name": args.host, "server_port": 5, "share": args.share, "max_file_size": args.max_mebibytes << 20},
        **{"auth": ("mmgrpo", "secret") if args.share else None, "css": look.CSS, "head": look.HEAD},
        **{"allowed_paths": [], "footer_links": [], "strict_cors": True, "show_error": True, "quiet": True},
        **dict.fromkeys(("enable_monitoring", "mcp_server", "ssr_mode", "pwa", "run_history"), False),
        "prevent_thread_lock": True,
    }


def test_the_command_says_where_the_page_is(monkeypatch, capsys, tmp_path):
    class Page:
        local_url, share_url, blocked = "http://localhost:5/", "", False

        def block_thread(self) -> None:
            self.blocked = True

    page, seen = Page(), []
    found = Opened({}, {}, Path("v"), left_out={"a": "broken"})
    monkeypatch.setattr(app, "open_all", lambda args, device: seen.append(device) or found)
    monkeypatch.setattr(app, "launch", lambda *given: seen.append(given) or page)
    app.serve(Args(port=0, device="cpu"))
    out = capsys.readouterr().out
    assert out.startswith(
        "left out: a (broken)\ndemo of no run; 5 embedded models. Device: cpu\nhttp://localhost:5 (Ctrl+C"
    )
    assert page.blocked and seen[0] == "cpu" and seen[1][3] == "" and seen[1][2] > 0
    (tmp_path / "p").write_text("password\n")
    page.share_url = "https://x.gradio.live"
    app.serve(Args(port=0, device="cpu", share=True, password_file=str(tmp_path / "p")))
    assert seen[3][3] == "password" and "http://localhost:5 and https://x.gradio.live (" in capsys.readouterr().out
    for args, where in ((Args(share=True), "--share"), (Args(host="0.0.0.0"), "--host 0.0.0.0")):
        with pytest.raises(ValueError, match=f"^{where}"):
            app.serve(args)
