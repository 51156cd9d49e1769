"""A chat server on this machine whose answers a test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def chat_server(answer: Callable[[dict[str, Any], int], Any]) -> Iterator[Any]:
    """Serve ``answer(body, number of the request)``: a text, a status, (status, headers), or a whole JSON answer; the
    server has the ``url`` of the API and the ``bodies`` and ``headers`` that came."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                server.bodies.append(body)
                server.headers.append(dict(self.headers))
                number = len(server.bodies) - 1
            given = answer(body, number)
            status, headers = given if isinstance(given, tuple) else (given if isinstance(given, int) else 200, {})
            if isinstance(given, str):
                given = {"choices": [{"message": {"content": given}, "finish_reason": "stop"}]}
                given["usage"] = {"total_tokens": 100}
            content = given if isinstance(given, bytes) else json.dumps(given).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    lock = threading.Lock()
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.bodies, server.headers = [], []
    server.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
