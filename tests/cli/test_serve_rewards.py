"""The command that serves rewards: what it refuses, and that a reward may die or hang without ending it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from mmgrpo.cli.serve_rewards import Args, batches, is_loopback, main, warm_up
from mmgrpo.scoring.manifest import Manifest
from mmgrpo.types import Prompt, Text
from tests.cli.running import COMMAND, environment, refused
from tests.scoring.serving import until

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
        ([], "got no reward, expected at least one"),
        (["--reward", "ocr", "--host", "0.0.0.0"], "--host 0.0.0.0: others can reach it; set --token-file"),
        (["--reward", "ocr", "--port", "65536"], "got 65536"),
        (["--reward", "served(reward='a')"], "got a reward of another server"),
        (["--reward", "ocr(process=False)"], "got process=False, expected a process of its own"),
        (["--reward", "ocr", "--reward", "ocr(timeout=5)"], "got two rewards of one name"),
    ],
)
def test_what_it_refuses(options, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        main(options)


def test_it_says_where_and_serves_until_it_is_stopped(monkeypatch, capsys):
    class Server:
        port = 1234

        def __init__(self, app: object, host: str, port: int, drain: float) -> None:
            self.asked = (host, port, drain)

        def run(self) -> None:
            assert capsys.readouterr().out == f"ocr: http://{self.asked[0]}:1234\n"
            raise KeyboardInterrupt

    monkeypatch.setattr("mmgrpo.scoring.server.Running", Server)
    with pytest.raises(KeyboardInterrupt):
        main(["--reward", "ocr"])


@pytest.mark.parametrize("token", ["", "short", "with spaces in the token", "é" * 20])
def test_a_token_that_protects_nothing_is_refused(token, tmp_path):
    (tmp_path / "token").write_text(token + "\n")
    with pytest.raises(ValueError, match="expected at least 16 printable ASCII characters without spaces"):
        main(["--reward", "ocr", "--token-file", str(tmp_path / "token")])


def test_addresses_of_this_machine_need_no_token():
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.org")))


def test_a_reward_has_its_name_its_time_and_its_manifest():
    plain = batches("jpeg_compressibility", Args(), "cpu")
    assert (plain.name, plain.timeout, plain.alone, plain.joining.outputs) == ("jpeg_compressibility", 600, False, 0)
    own = batches("my.module:mine(timeout=inf, log_as='other')", Args(max_batch=8), "cpu")
    assert (own.name, own.timeout, own.alone, own.joining.outputs) == ("other", float("inf"), True, 8)
    assert batches("length_bonus", Args(), "cpu").alone


def test_a_reward_is_warmed_up_with_what_it_reads_and_only_if_that_can_be_made_up():
    asked: list[Any] = []

    def reward(prompts: list[Prompt], outputs: list[Any]) -> list[float]:
        asked.extend(outputs)
        return [0.0]

    for kind in ("Text", "Image", "Video", "Audio"):
        warm_up(reward, Manifest((kind,), reads=("text",)))
    assert [type(one).__name__ for one in asked] == ["Text", "Image", "Video", "Audio"]
    warm_up(reward, Manifest(("Text",), reads=("answer",)))
    warm_up(reward, None)
    assert len(asked) == 4


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [*COMMAND, "serve-rewards", "--port", "0", *options],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        until(lambda: httpx.get(f"{url}/health", trust_env=False).status_code == 200, 200)
        yield process, url
    finally:
        process.kill()
        process.wait()


def score(url: str, reward: str, text: str) -> httpx.Response:
    outputs = [{"id": "0", "prompt": 0, "text": text}]
    body = {"version": 1, "reward": reward, "prompts": [{"text": "a"}], "outputs": outputs}
    return httpx.post(f"{url}/score", json=body, trust_env=False, timeout=100)


@pytest.mark.slow
def test_a_reward_that_dies_or_hangs_ends_neither_the_server_nor_the_others(tmp_path):
    """Each in its own process: the one that died is started again, the one that hangs is killed."""
    (tmp_path / "own.py").write_text(OWN)
    rewards = ["--reward", "own:length(timeout=100)", "--reward", "own:length(timeout=3, log_as='hasty')"]
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
        client = Client([url], "length", timeout=200, patience=100, pause=0.01)
        assert client([Prompt("a")], [Text("die")]) == [3.0], "the client asks again"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)


@pytest.mark.slow
def test_a_reward_that_cannot_be_loaded_ends_the_server_with_one_line(tmp_path):
    said = refused(COMMAND, "serve-rewards", "--port", "0", "--reward", "own:missing", cwd=tmp_path)
    assert said.startswith("a reward could not be loaded: ") and "own" in said
