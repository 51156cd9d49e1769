"""Visitors who mean harm, and run folders that do: nothing leaks, nothing breaks. Events of every tab are tried."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.cli.demo import runs
from mmgrpo.cli.demo.gate import FORM
from mmgrpo.cli.demo.runs import details_html
from tests.journeys.cli.demo.fakes import write_run
from tests.journeys.cli.demo.serving import FILE, LIMIT, Served, serving

SECRET = "the secret of another user"
CLIENTS = 32

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def secret(tmp_path_factory) -> Path:
    """A file that the demo has not opened."""
    path = tmp_path_factory.mktemp("home") / "secret.png"
    path.write_text(SECRET)
    return path


@pytest.fixture(scope="module")
def demo(tmp_path_factory, secret) -> Iterator[Served]:
    """A demo of eight runs, one of which has links to the secret, and one a name that is mark-up."""
    folder = tmp_path_factory.mktemp("demo")
    runs = [write_run(folder / "runs" / f"run-{number}", steps=number + 1) for number in range(6)]
    runs += [write_run(folder / "runs" / "links"), write_run(folder / "runs" / "<img src=x onerror=alert(1)>")]
    (runs[6] / "samples" / "after.png").unlink()
    (runs[6] / "samples" / "after.png").symlink_to(secret)
    (runs[6] / "samples" / "step-000003.jsonl").symlink_to(secret)
    (runs[6] / "notes").symlink_to(secret.parent)
    with serving(folder, folder / "runs", max_mebibytes=1) as served:
        yield served


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[tuple[str, list[str]]]:
    """A server of somebody else: its address, and the paths that it was asked for."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/picture.png", asked
    server.shutdown()


# ---- files


@pytest.mark.parametrize(
    "form", ["{0}", "/{0}", "//{0}", "{1}/../../{0}", "{1}/..%2f..%2f{0}", "file://{0}", "..%5c{0}"]
)
def test_files_of_the_disk_are_not_served(demo, secret, form):
    path = form.format(secret, demo.cache)
    with demo.client() as client:
        for start in (
            "/gradio_api/file=",
            "/gradio_api/file/",
            "/static/",
            "/assets/",
            "/gradio_api/custom_component/",
        ):
            assert SECRET not in client.get(f"{start}{path}").text
        assert client.get(f"/gradio_api/file={path}").status_code in (403, 404)


def test_files_of_the_runs_are_not_served_by_name(demo):
    run = demo.opened.runs["run-1"]
    with demo.client() as client:
        for name in ("config.yaml", "run.json", "samples/after.png", "samples", ""):
            assert client.get(f"/gradio_api/file={run / name}").status_code == 403


def test_a_file_that_is_served_is_one_that_was_uploaded(demo):
    """Without this, the tests above could pass because nothing is served at all."""
    with demo.client() as client:
        [path] = client.post("/gradio_api/upload", files={"files": ("a.png", b"mine")}).json()
        assert client.get(f"/gradio_api/file={path}").content == b"mine"


@pytest.mark.parametrize(
    "name", ["../../../../evil.png", "/etc/evil.png", "..\\..\\evil.png", "a/../../evil.png", "é" * 300]
)
def test_uploads_lie_in_the_cache_whatever_they_are_called(demo, name):
    with demo.client() as client:
        reply = client.post("/gradio_api/upload", files={"files": (name, b"content")})
        for path in reply.json() if reply.status_code == 200 else ():
            assert Path(path).resolve().is_relative_to(demo.cache) and Path(path).read_bytes() == b"content"


@pytest.mark.parametrize("name", ["evil.html", "evil.svg", "evil.js", "evil.xml"])
def test_an_upload_that_is_a_page_is_not_shown_as_one(demo, name):
    with demo.client() as client:
        [path] = client.post("/gradio_api/upload", files={"files": (name, b"<script>alert(1)</script>")}).json()
        headers = client.get(f"/gradio_api/file={path}").headers
        assert headers["content-disposition"].startswith("attachment")
        assert headers["content-type"].startswith("application/octet-stream")


def test_uploads_over_the_limit_are_refused_and_leave_nothing(demo):
    before = sum(path.stat().st_size for path in demo.cache.rglob("*") if path.is_file())
    with demo.client() as client:
        one = client.post("/gradio_api/upload", files={"files": ("a.png", b"x" * ((1 << 20) + 1))})
        assert one.status_code == 413
        many = [("files", (f"{number}.png", b"x" * (1 << 19))) for number in range(5)]
        assert client.post("/gradio_api/upload", files=many).status_code == 413
        endless = client.post(
            "/gradio_api/upload", content=iter([b"x"]), headers={"content-type": "multipart/form-data"}
        )
        assert endless.status_code == 411
        event = json.dumps({"data": ["x" * ((1 << 20) + FORM)], "fn_index": 0, "session_hash": "a"})
        assert client.post("/gradio_api/queue/join", content=event).status_code == 413
        assert client.post("/gradio_api/upload", files={"files": ("a.png", b"x" * (1 << 19))}).status_code == 200
    after = sum(path.stat().st_size for path in demo.cache.rglob("*") if path.is_file())
    assert after - before <= 1 << 19


# ---- events


def hostile(demo: Served, secret: Path, address: str) -> list[Any]:
    """Values that no component offers."""
    names = [
        str(secret),
        f"../../{secret}",
        f"file://{secret}",
        f"{demo.cache}/../../{secret}",
        f"links/notes/{secret.name}",
    ]
    files = [{"path": name, "meta": FILE, "orig_name": "a.png", "mime_type": "image/png"} for name in (*names, address)]
    links = demo.opened.runs["links"] / "samples" / "after.png"
    files += [{"path": str(links), "meta": FILE}, {"path": address}, {"path": None, "url": address, "meta": FILE}]
    others = ["<script>alert(1)</script>", "\0", 1e308, -1, True, None, {}, [[]], {"a": {"b": ["c"]}}]
    return [*names, names, *files, files[:1], {"video": files[0]}, {"background": files[0], "layers": files}, *others]


def served_files(demo: Served, text: str) -> Iterator[bytes]:
    """The files that an answer refers to."""
    with demo.client() as client:
        for path in set(re.findall(r'"path": "([^"]+)"', text)):
            yield client.get(f"/gradio_api/file={path}").content


@pytest.mark.nightly
def test_events_of_all_tabs_with_foreign_names_and_paths_tell_nothing(demo, secret, elsewhere):
    address, asked = elsewhere
    values = hostile(demo, secret, address)
    requests = [(event, [value] * len(event["inputs"])) for event in demo.events if event["inputs"] for value in values]
    for start in range(0, len(requests), CLIENTS):
        for answer in demo.ask(requests[start : start + CLIENTS]):
            assert SECRET not in answer.text and "Traceback" not in answer.text
            assert all(SECRET.encode() not in content for content in served_files(demo, answer.text))
    assert asked == []
    assert all(answer.ok for answer in demo.ask([(demo.event("runs-choose"), [["run-1"], None, "seconds", 0])]))


def test_every_event_is_private(demo):
    assert {event["api_visibility"] for event in demo.events} == {"private"}
    with demo.client() as client:
        assert client.get("/gradio_api/info").json()["named_endpoints"] == {}


# ---- other servers, other sites


def test_nothing_is_fetched_from_other_servers(demo, elsewhere):
    address, asked = elsewhere
    with demo.client() as client:
        for path in (f"file={address}", f"file=%68ttp://{address[7:]}", f"proxy={address}", "run-history/buckets"):
            assert client.get(f"/gradio_api/{path}").status_code == 403
        body = {"data": [{"path": address, "meta": FILE}], "fn_index": 0, "session_hash": "a"}
        for headers in ({}, {"content-type": "application/json"}, {"content-type": "text/plain"}):
            reply = client.post("/gradio_api/queue/join", content=json.dumps(body), headers=headers)
            assert reply.status_code == 403
        assert client.get("/gradio_api/runs").status_code == 404
    assert asked == []


def test_pages_of_other_sites_cannot_use_the_demo(demo):
    own = demo.url.removesuffix("/")
    with demo.client() as client:
        for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"host": "evil.example:7860"}):
            assert client.get("/config", headers=headers).status_code == 403
            assert client.post("/gradio_api/upload", files={"files": b"x"}, headers=headers).status_code == 403
        assert client.get("/config", headers={"origin": own}).status_code == 200


def test_the_page_names_no_other_server_and_counts_nobody(demo):
    with demo.client() as client:
        page = client.get("/").text
        config = client.get("/config").json()
        assert not config["analytics_enabled"] and not config.get("run_history")
        loaded = re.findall(r"""(?:src|href)=["'](https?://[^"']+)""", page)
        assert [address for address in loaded if not address.startswith(demo.url)] == []
        assert client.get("/monitoring/summary").status_code in (403, 404)


# ---- many visitors


def test_many_visitors_at_once_get_right_answers(demo):
    names = [name for name in demo.opened.runs if name.startswith("run-")]
    event = demo.event("runs-choose")
    looks = {name: runs.read_look(name, demo.opened.runs[name]) for name in names}
    wanted = [names[number % len(names)] for number in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(lambda name: demo.ask([(event, [[name], None, "seconds", 0])])[0], wanted))
    for name, answer in zip(wanted, answers):
        assert answer.ok and details_html([looks[name]]) in answer.data


def test_visitors_for_whom_there_is_no_room_are_told_so(tmp_path, monkeypatch):
    run, free = write_run(tmp_path / "a"), threading.Event()
    with serving(tmp_path, run, waiting=4) as demo:
        event, signature = demo.event("runs-choose"), runs.signature

        def slow(folder: Path) -> runs.Signature:
            assert free.wait(2 * LIMIT)
            return signature(folder)

        monkeypatch.setattr(runs, "signature", slow)
        with ThreadPoolExecutor(CLIENTS) as pool:
            asked = [pool.submit(demo.ask, [(event, [["a"], None, "seconds", 0])]) for _ in range(CLIENTS)]
            end = time.monotonic() + LIMIT / 2
            # Four wait, and one or two are being answered.
            while sum(one.done() for one in asked) < CLIENTS - 6 and time.monotonic() < end:
                time.sleep(0.05)
            free.set()
            answers = [one.result()[0] for one in asked]
        busy = [answer.reason for answer in answers if not answer.ok]
        assert len(busy) >= CLIENTS - 6 and all("ueue is full" in reason for reason in busy)
        assert any(answer.ok for answer in answers)
        assert demo.ask([(event, [["a"], None, "seconds", 0])])[0].ok


# ---- runs that change, or are damaged


def test_a_run_that_is_being_written_is_shown_at_any_moment(tmp_path):
    run = write_run(tmp_path / "runs" / "busy", finished=False)
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "run.json"}
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for path, content in files.items():
                path.write_bytes(content[: len(content) // 2])
                path.unlink()
                path.write_bytes(content)

    with serving(tmp_path, tmp_path / "runs") as demo:
        writer = threading.Thread(target=write)
        writer.start()
        try:
            requests = [(demo.event("runs-choose"), [["busy"], None, "seconds", 0])] * 20
            answers = demo.ask(requests)
        finally:
            stop.set()
            writer.join()
        assert all(answer.ok for answer in answers) and "Traceback" not in "".join(a.text for a in answers)
        last = demo.ask(requests[:1])[0]
        assert last.ok and "Its last recorded step is 4" in last.text
