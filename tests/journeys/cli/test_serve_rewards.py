"""The command that serves rewards: what it refuses, and that a reward may die or hang without ending it."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from mmgrpo.cli.serve_rewards import Args, batches, is_loopback, main, read_token
from mmgrpo.scoring.batching import Joining
from mmgrpo.scoring.envelope import Limits
from mmgrpo.scoring.manifest import Manifest
from mmgrpo.types import Prompt, Text
from tests.journeys.cli.running import COMMAND, environment, refused
from tests.processes import Forked
from tests.unit.scoring.serving import until

OWN = """
import os, time
from pathlib import Path

def length(prompts, outputs):
    for output in outputs:
        if output.text == "die" and not Path("died").exists():
            Path("died").touch()
            os._exit(7)
        if output.text == "hang":
            while True:
                time.sleep(1)
    return [len(output.text) for output in outputs]
"""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "reward"),
        (["--reward", "ocr", "--host", "0.0.0.0"], "--host 0.0.0.0.*--token-file"),
        (["--reward", "ocr", "--port", "65536"], "65536"),
        (["--reward", "served(reward='a')"], "another server"),
        (["--reward", "ocr(process=False)"], "process=False"),
        (["--reward", "ocr", "--reward", "ocr(timeout=5)"], "two rewards"),
    ],
)
def test_what_it_refuses(options, words):
    with pytest.raises(ValueError, match=words):
        main(options)


def test_it_says_where_and_serves_until_it_is_stopped(monkeypatch, capsys):
    class Server:
        port, url = 1234, "http://127.0.0.1:1234"

        def __init__(self, app: object, host: str, port: int, drain: float, headers: float) -> None:
            self.asked = (host, port, drain)

        def run(self) -> None:
            assert capsys.readouterr().out == f"ocr: http://{self.asked[0]}:1234\n"
            raise KeyboardInterrupt

    monkeypatch.setattr("mmgrpo.scoring.server.Running", Server)
    with pytest.raises(KeyboardInterrupt):
        main(["--reward", "ocr"])


class Served:
    """In place of the server: what it was made with; it runs until it is stopped, which a failing reward does."""

    made: list[Any]
    fails = False

    def __init__(self, app: Any, host: str, port: int, drain: float, headers: float) -> None:
        Served.made = [app, host, port, drain]
        app.headers = headers
        self.port, self.url, self.stopped = 1234, f"http://{f'[{host}]' if ':' in host else host}:1234", False

    def stop(self) -> None:
        self.stopped = True

    def run(self) -> None:
        if Served.fails:
            self.made[0].failed(OSError("no weights"))
        assert self.stopped is Served.fails


@pytest.fixture
def served(monkeypatch, capsys):
    """What a server was made with and what was printed."""
    monkeypatch.setattr("mmgrpo.scoring.server.Running", Served)
    monkeypatch.setattr(
        "mmgrpo.scoring.server.application",
        lambda rewards, token, limits, failed, body, flying: SimpleNamespace(
            rewards=rewards, token=token, limits=limits, failed=failed, body=body, flying=flying
        ),
    )

    def serve(*options: str, fails: bool = False) -> tuple[Any, list[Any], str]:
        monkeypatch.setattr(Served, "fails", fails)
        main([*options, "--device", "cpu"])
        return Served.made[0], Served.made[1:], capsys.readouterr().out

    return serve


def test_a_server_has_the_limits_of_its_options(served, tmp_path):
    app, place, said = served("--reward", "ocr", "--reward", "jpeg_compressibility(log_as='size')")
    assert list(app.rewards) == ["ocr", "size"] == [one.name for one in app.rewards.values()]
    assert app.token == "" and app.limits == Limits(body=1 << 30, pixels=1 << 24, decoded=1 << 32)
    assert place == ["127.0.0.1", 8700, 600.0] and said == "ocr, size: http://127.0.0.1:1234\n"
    (tmp_path / "token").write_text("0123456789abcdef\n")
    given = ["--host", "::", "--port", "9", "--drain", "2", "--max-mebibytes", "3", "--max-pixels", "5"]
    app, place, said = served("--reward", "ocr", *given, "--token-file", str(tmp_path / "token"))
    assert app.token == "0123456789abcdef" and place == ["::", 9, 2.0]
    assert (app.headers, app.body, app.flying) == (30.0, 120.0, 4 << 30)
    more = ["--header-seconds", "2", "--body-seconds", "3", "--max-in-flight", "4", "--max-seconds", "5"]
    other = served("--reward", "ocr", *more)[0]
    assert (other.headers, other.body, other.flying, other.limits.seconds) == (2.0, 3.0, 4 << 20, 5.0)
    assert app.limits == Limits(body=3 << 20, pixels=5, decoded=12 << 20) and said == "ocr: http://[::]:1234\n"


def test_a_reward_that_cannot_be_loaded_stops_the_server(served):
    with pytest.raises(ValueError, match="no weights"):
        served("--reward", "ocr", fails=True)


DECLARED = Manifest(("Text",), 0, 1, reads=("text",))


@pytest.mark.parametrize(
    ("text", "written", "declared"),
    [
        ("jpeg_compressibility", "jpeg_compressibility(timeout=600.0)", DECLARED),
        ("own:mine(size=3, timeout=5, process=True)", "own:mine(size=3, timeout=5)", None),
        ("own:mine", "own:mine(timeout=600.0)", DECLARED),
    ],
)
def test_a_reward_is_loaded_on_its_device_and_warmed_up_where_it_declares_what_it_reads(
    text, written, declared, monkeypatch
):
    loaded: list[tuple[str, str]] = []
    asked: list[Any] = []

    def reward(prompts: list[Prompt], outputs: list[Any]) -> list[float]:
        asked.extend(outputs)
        return [0.0]

    def scorer(spec: str, device: str) -> Any:
        loaded.append((spec, device))
        return SimpleNamespace(fn=reward, manifest=declared)

    monkeypatch.setattr("mmgrpo.rewards.scorer", scorer)

    one = batches(text, Args(), "cuda:1")

    async def warmed() -> None:
        task = asyncio.create_task(one.run())
        while not one.ready and not task.done():
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(warmed())
    assert loaded == [(written, "cuda:1")] and (one.manifest, len(asked)) == (declared, declared is not None)


def test_a_token_is_what_stands_in_its_file(tmp_path, monkeypatch):
    assert read_token("") == ""
    (tmp_path / "token").write_text("\n  0123456789abcdef \n")
    assert read_token(str(tmp_path / "token")) == "0123456789abcdef"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_token("~/token") == "0123456789abcdef"
    for wrong in ("0123456789abcde", "0123456789 abcdef", "0123456789abcdé0", "0123456789\x07abcdef"):
        (tmp_path / "token").write_text(wrong)
        with pytest.raises(ValueError, match=f"token.*{len(wrong)}"):
            read_token(str(tmp_path / "token"))


@pytest.mark.parametrize("token", ["", "short", "with spaces in the token", "é" * 20])
def test_a_token_that_protects_nothing_is_refused(token, tmp_path):
    (tmp_path / "token").write_text(token + "\n")
    with pytest.raises(ValueError, match="16.*ASCII"):
        main(["--reward", "ocr", "--token-file", str(tmp_path / "token")])


def test_addresses_of_this_machine_need_no_token():
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.org")))


def test_a_reward_has_its_name_its_time_and_its_manifest():
    plain = batches("jpeg_compressibility", Args(), "cpu")
    assert (plain.name, plain.timeout, plain.alone, plain.joining.outputs) == ("jpeg_compressibility", 600, False, 0)
    own = batches("my.module:mine(timeout=inf, log_as='other')", Args(max_batch=8), "cpu")
    assert (own.name, own.timeout, own.alone, own.joining) == ("other", float("inf"), True, Joining(8, 0.005))
    assert batches("my.module:mine", Args(max_wait=2.0), "cpu").joining.seconds == 2.0
    assert batches("my.module:mine", Args(), "cpu").name == "mine"
    assert batches("length_bonus", Args(), "cpu").alone


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[Forked, str]]:
    process = Forked(COMMAND[-1], ["serve-rewards", "--port", "0", *options], environment(), folder)
    try:
        until(lambda: "http://" in process.printed and process.printed.endswith("\n"), 1000)
        [url] = re.findall(r"http://\S+", process.printed)
        until(lambda: httpx.get(f"{url}/health", trust_env=False, timeout=1000).status_code == 200, 1000)
        yield process, url
    finally:
        process.kill()


def score(url: str, reward: str, text: str) -> httpx.Response:
    outputs = [{"id": "0", "prompt": 0, "text": text}]
    body = {"version": 1, "reward": reward, "prompts": [{"text": "a"}], "outputs": outputs}
    return httpx.post(f"{url}/score", json=body, trust_env=False, timeout=1500)


@pytest.mark.slow
def test_a_reward_that_dies_or_hangs_ends_neither_the_server_nor_the_others(tmp_path):
    """Each in its own process: the one that died is started again, the one that hangs is killed."""
    (tmp_path / "own.py").write_text(OWN)
    rewards = ["--reward", "own:length(timeout=1000)", "--reward", "own:length(timeout=3, log_as='hasty')"]
    with serving(tmp_path, *rewards) as (process, url):
        assert score(url, "length", "abc").json()["values"] == {"0": 3.0}
        died = score(url, "length", "die")
        assert died.status_code == 503 and "its process exited with status 7" in died.json()["error"]
        assert score(url, "length", "die").json()["values"] == {"0": 3.0}, "the process is started again"
        hung = score(url, "hasty", "hang")
        assert hung.status_code in (503, 504), "whichever of the two time-outs comes first"
        assert score(url, "length", "abcd").json()["values"] == {"0": 4.0}
        from mmgrpo.scoring.served import Client

        (tmp_path / "died").unlink()
        client = Client([url], "length", timeout=1500, patience=1000, pause=0.01)
        assert client([Prompt("a")], [Text("die")]) == [3.0], "the client asks again"
        process.terminate()
        process.communicate(600)
        assert process.returncode in (0, -signal.SIGTERM)


@pytest.mark.slow
def test_a_reward_that_cannot_be_loaded_ends_the_server_with_one_line(tmp_path):
    said = refused(COMMAND, "serve-rewards", "--port", "0", "--reward", "own:missing", cwd=tmp_path)
    assert said.startswith("a reward could not be loaded: ") and "own" in said
