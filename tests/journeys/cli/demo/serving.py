"""The demo, served as the command serves it by a thread of this process, and what a visitor can ask of it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr
import httpx
import pytest

from mmgrpo.cli.demo import Args, app
from mmgrpo.cli.demo.models import Opened

FILE = {"_type": "gradio.FileData"}
BUILD = app.build
LIMIT = 300.0
"""Seconds that a test waits for an answer; none takes as long."""


@dataclass(frozen=True)
class Answer:
    """What came of an event: its results, or the reason why there are none."""

    ok: bool
    data: list[Any]
    reason: str
    text: str
    """All messages as they came."""


@dataclass(frozen=True)
class Served:
    """A demo that is served."""

    url: str
    page: gr.Blocks
    opened: Opened
    cache: Path
    """Gradio's own folder for uploads and results."""

    def client(self, **options: Any) -> httpx.Client:
        """A visitor."""
        return httpx.Client(base_url=self.url, timeout=LIMIT, **options)

    @property
    def events(self) -> list[Mapping[str, Any]]:
        """The events of all tabs that the server answers."""
        config: Any = self.page.config
        return [event for event in config["dependencies"] if event["backend_fn"]]

    def event(self, elem_id: str, name: str = "") -> Mapping[str, Any]:
        """The first event of a component."""
        ids = {number for number, block in self.page.blocks.items() if block.elem_id == elem_id}
        return next(e for e in self.events if any(i in ids and name in ("", what) for i, what in e["targets"]))

    def defaults(self, event: Mapping[str, Any]) -> list[Any]:
        """The inputs of an event as they are before anything was chosen."""
        values = {one["id"]: one["props"].get("value") for one in self.page.config["components"]}
        return [values.get(number) for number in event["inputs"]]

    def ask(self, requests: Sequence[tuple[Mapping[str, Any], Sequence[Any]]]) -> list[Answer]:
        """Answers to several events with their inputs, sent at once by one visitor."""
        session, waiting, answers = uuid.uuid4().hex, {}, {}
        with self.client() as client:
            for number, (event, data) in enumerate(requests):
                body = {"data": list(data), "fn_index": event["id"], "session_hash": session}
                reply = client.post("/gradio_api/queue/join", json=body)
                if reply.status_code == 200:
                    waiting[reply.json()["event_id"]] = number
                else:
                    answers[number] = Answer(False, [], reply.text, reply.text)
            texts = dict.fromkeys(waiting, "")
            for message in messages(client, session) if waiting else ():
                name = message.get("event_id")
                if name not in waiting:
                    continue
                texts[name] += json.dumps(message, ensure_ascii=False)
                if message["msg"] == "process_completed":
                    output = message["output"]
                    reason = str(output.get("error") or "")
                    found = Answer(message["success"], output.get("data", []), reason, texts[name])
                    answers[waiting.pop(name)] = found
                if not waiting:
                    break
        return [answers[number] for number in range(len(requests))]


def messages(client: httpx.Client, session: str) -> Iterator[dict[str, Any]]:
    """The messages of the server to a visitor."""
    end = time.monotonic() + LIMIT
    with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as stream:
        for line in stream.iter_lines():
            assert time.monotonic() < end, "no answer came"
            if line.startswith("data:"):
                yield json.loads(line.removeprefix("data:"))


@contextmanager
def serving(folder: Path, *runs: Path, **options: Any) -> Iterator[Served]:
    """Serve these runs as ``mmgrpo demo`` does; ``folder`` is for the cache and the votes."""
    pages: list[tuple[gr.Blocks, Opened]] = []

    def remember(opened: Opened) -> gr.Blocks:
        pages.append((BUILD(opened), opened))
        return pages[0][0]

    args = Args(runs=[str(run) for run in runs], votes=str(folder / "votes.jsonl"), port=0)
    args = replace(args, device="cpu", **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(folder / "cache"))
        patch.setattr(app, "build", remember)
        patch.setattr(gr.Blocks, "block_thread", lambda self: None)  # which waits for the end
        patch.chdir(folder)  # where there is no folder runs/
        app.serve(args)
        page, opened = pages[0]
        try:
            yield Served(str(page.local_url), page, opened, folder / "cache")
        finally:
            page.close(verbose=False)
