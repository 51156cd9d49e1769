"""The page of the demo: what its head says, how it is served, and that it asks nobody else for anything."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from mmgrpo.cli.demo import Args, app, gate, main
from mmgrpo.cli.demo.app import TABS, build, free_port, header, launch, listen, read_password, serve
from mmgrpo.cli.demo.models import STORED, Opened, open_all
from tests import ROOT
from tests.journeys.browser.answers import at_rest, press, watch
from tests.journeys.browser.conftest import ANSWER, browsing, skip_without_browser
from tests.journeys.cli.demo.fakes import EVIL, painters
from tests.journeys.cli.demo.serving import LIMIT

ADDRESS = re.compile(r"""(?:https?:)?//[\w.-]+\.[a-z]{2,}[^\s"')]*""")


@pytest.fixture
def taken():
    """A port that somebody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen(1)
        yield one.getsockname()[1]


@pytest.fixture
def cache(tmp_path, monkeypatch) -> None:
    """Gradio's folder for uploads, which by default is one for all processes and users of the machine."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "cache"))


@pytest.fixture
def served(tmp_path, cache):
    """The address of a served page."""
    page = launch(painters(), Args(votes=str(tmp_path / "votes.jsonl")), free_port("127.0.0.1", 0))
    yield str(page.local_url).rstrip("/")
    page.close(verbose=False)


PAINTED = """
from mmgrpo.cli.demo import Args
from mmgrpo.cli.demo.app import free_port, launch
from tests.journeys.cli.demo.fakes import painters
page = launch(painters(), Args(), free_port("127.0.0.1", 0))
print(page.local_url.rstrip("/"), flush=True)
page.block_thread()
"""


@pytest.fixture
def apart(tmp_path, cache):
    """The address of a page that a process of its own serves to a browser, without the checks of signatures of these
    tests."""
    skip_without_browser()
    command, environment = [sys.executable, "-c", PAINTED], {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


def test_the_head_says_what_is_opened_and_what_is_left_out():
    runs = {f"run{number}": Path("/") for number in range(8)}
    text = header(Opened(runs, painters().pairs, Path("v"), "cuda:0"))
    assert "8 runs: run0, run1, run2, run3, run4, run5 and 2 more; a; 5 embedded models. Device: cuda:0." in text
    assert "not opened" not in text and "no run;" in header(painters())
    for count, words in ((1, "1 run: run0;"), (2, "2 runs: run0, run1;"), (6, "run4, run5;"), (7, "run5 and 1 more;")):
        few = dict(list(runs.items())[:count])
        assert words in header(Opened(few, {"run0": painters().pairs["a"]}, Path("v"))), "a run is named once"
    stored = Opened({STORED: Path("/")}, {}, Path("v"))
    assert "mmgrpo train --recipe visual/demo" in header(stored) and "--recipe" not in text
    text = header(Opened({EVIL: Path("/")}, {}, Path("v"), left_out={EVIL: EVIL}))
    assert "1 run: " in text and "1 run not opened or only in part" in text
    assert text.count("onerror") == 3 and "<img" not in text


def test_a_port_that_is_taken_is_an_error_that_names_a_free_one(taken):
    with pytest.raises(OSError, match=f"--port {taken}.*--port") as error:
        free_port("127.0.0.1", taken)
    free = int(re.findall(r"--port (\d+) is free", str(error.value))[0])
    assert free > taken and listen("127.0.0.1", free) == free
    assert free_port("127.0.0.1", free) == free


def test_the_command_serves_what_its_options_say(monkeypatch):
    served: list[Args] = []
    monkeypatch.setattr(app, "serve", served.append)
    main(["a", "b", "--port", "5"])
    monkeypatch.setattr(sys, "argv", ["demo", "--votes", "v.jsonl"])
    main()
    assert served == [Args(runs=["a", "b"], port=5), Args(votes="v.jsonl")]
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ImportError, match=r"gradio.*\[demo\]"):
        main([])


def test_a_port_is_free_though_connections_of_an_earlier_server_linger():
    with socket.socket() as server, socket.socket() as visitor:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        port = server.getsockname()[1]
        visitor.connect(("127.0.0.1", port))
        server.accept()[0].close()  # who closes first waits
        assert visitor.recv(1) == b""
    assert listen("127.0.0.1", port) == port


def test_port_0_is_a_free_one(taken):
    assert free_port("127.0.0.1", 0) not in (0, taken)


def test_nothing_is_opened_before_the_port_is_known_to_be_free(taken, monkeypatch):
    monkeypatch.setattr("mmgrpo.cli.demo.app.open_all", lambda *_: pytest.fail("opened"))
    with pytest.raises(OSError, match="is taken"):
        serve(Args(port=taken))


@pytest.mark.parametrize("options", [{"share": True}, {"host": "0.0.0.0"}, {"host": "::"}])
def test_others_need_a_password(options, tmp_path):
    with pytest.raises(ValueError, match="--password-file"):
        serve(Args(**options))
    (tmp_path / "short").write_text(" 1234567\n")
    with pytest.raises(ValueError, match="7 characters.*8"):
        serve(Args(**options, password_file=str(tmp_path / "short")))
    (tmp_path / "long").write_text(" 12345678\n")
    assert read_password(str(tmp_path / "long")) == "12345678"


def test_every_answer_forbids_what_comes_from_elsewhere():
    sent: list[dict] = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b""})

    async def send(message):
        sent.append(message)

    async def receive():
        raise AssertionError("a request without a body is not read")

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost:7860")]}
    asyncio.run(gate.Gate(app, local=True, shared=False, most=1)(scope, receive, send))
    assert sent[0]["headers"] == [(b"a", b"b"), (b"content-security-policy", gate.OWN.encode())]
    assert sent[1] == {"type": "http.response.body", "body": b""}


def test_the_page_has_all_tabs_without_any_run_and_loads_no_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    opened = open_all(Args(), "cpu")
    page = build(opened)
    tabs = [part["props"]["label"] for part in page.config["components"] if part["type"] == "tabitem"]
    assert tabs == list(TABS) and not opened.loaded and not opened.rewards
    (head,) = [part["props"]["value"] for part in page.config["components"] if part["props"].get("elem_id") == "head"]
    assert head.startswith("<header><h1>mmgrpo</h1>") and "<style>" in head
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_served_page_is_for_this_machine_alone(served, tmp_path):
    visitor = httpx.Client(base_url=served, timeout=LIMIT)
    answer = visitor.get("/")
    assert answer.status_code == 200 and answer.headers["content-security-policy"] == gate.OWN
    links = re.findall(r"""<(?:script|link|img)[^>]*(?:src|href)=["']?([^"'\s>]+)""", answer.text)
    assert len(links) > 2 and not [link for link in links if ADDRESS.match(link)]
    assert visitor.get("/", headers={"host": "attacker.example"}).status_code == 403
    (tmp_path / "secret.txt").write_text("hidden words")
    for file in ("/etc/passwd", str(tmp_path / "secret.txt"), "../../../../etc/passwd", str(ROOT / "pyproject.toml")):
        answer = visitor.get(f"/gradio_api/file={file}")
        assert answer.status_code in (403, 404) and "hidden" not in answer.text and "root:" not in answer.text
    api = visitor.get("/gradio_api/info").json()
    assert api["named_endpoints"] == {} and api["unnamed_endpoints"] == {}
    assert visitor.get("/config").json()["analytics_enabled"] is False


STARTED = """
import json, sys
asked = []
def heard(event, details):
    if event == "socket.connect":
        asked.append(str(details[1]))
    elif event == "socket.getaddrinfo":
        asked.append(str(details[0]))
sys.addaudithook(heard)
from mmgrpo.cli.demo import Args
from mmgrpo.cli.demo.app import free_port, launch
from mmgrpo.cli.demo.models import open_all
page = launch(open_all(Args(), "cpu"), Args(), free_port("127.0.0.1", 0))
import time; time.sleep(1)
heavy = {"diffusers", "transformers", "peft", "torchvision", "datasets"} & set(sys.modules)
print(json.dumps([sorted(set(asked)), sorted(heavy)]))
page.close(verbose=False)
"""


@pytest.mark.nightly
def test_the_start_asks_no_other_machine_and_imports_no_model_library(tmp_path):
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", STARTED], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    asked, heavy = json.loads(result.stdout.splitlines()[-1])
    assert not [one for one in asked if "127.0.0.1" not in one and "localhost" not in one and one != "None"]
    assert heavy == []


@pytest.mark.slow
@pytest.mark.nightly
def test_a_browser_asks_no_other_server_and_draws(apart):
    with browsing() as browser:
        page = browser.new_page(viewport={"width": 400, "height": 900})
        page.set_default_timeout(1000 * ANSWER)
        watch(page)
        seen = SimpleNamespace(requests=[], errors=[])
        page.on("request", lambda request: seen.requests.append(request.url))
        page.on("console", lambda line: seen.errors.append(line.text) if line.type == "error" else None)
        with page.expect_request("**/queue/join?*"):  # the page asks for the prompt of an example
            page.goto(apart)
        at_rest(page)
        page.fill("#visual-prompt textarea", EVIL)
        page.fill("#visual-count input[type=number]", "6")
        press(page, "#visual-generate")
        page.wait_for_selector("#visual-winner p")
        press(page, "#visual-after [data-sample='4']")
        page.wait_for_selector("#visual-before [data-sample='4'][aria-pressed=true]")
        at_rest(page)
        page.focus("#visual-before [data-sample='1']")
        page.keyboard.press("Enter")
        page.wait_for_selector("#visual-after [data-sample='1'][aria-pressed=true]")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        assert page.locator("img[src=x]").count() == 0
    assert len(seen.requests) > 10
    assert not [url for url in seen.requests if not url.startswith((apart, "data:", "blob:"))]
    assert seen.errors == []
