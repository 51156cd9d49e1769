"""A reward that a server computes: ``served(url="http://127.0.0.1:8700", reward="pickscore")``.

Outputs are sent in parts of ``batch``, to all servers of a list of urls at once, and their values come back by id. What
may be over in a moment (no connection, no answer in time, 408, 429, 5xx) is tried again, at another server first, with
growing random pauses. The run waits meanwhile and says so. After ``patience`` seconds it is an error: the run stops
after a checkpoint, and goes on with ``--resume``. What will not change (401, 404, 413, 422, ...) is an error at once.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mmgrpo.config.extras import install
from mmgrpo.scoring.background import begin
from mmgrpo.scoring.envelope import FRAMES, VERSION, write
from mmgrpo.scoring.isolation import RewardFailure
from mmgrpo.scoring.manifest import MEDIA, reward
from mmgrpo.types import Output, Prompt

ANSWER = 1_000_000
"""Bytes of the longest answer without values; each value may add ``PER_VALUE``."""

PER_VALUE = 100

CONNECT = 5.0
"""Seconds for a connection."""


URL = "http://127.0.0.1:8700"
"""Where ``mmgrpo serve-rewards`` listens by default."""


_ASKED_ONCE: ContextVar[bool] = ContextVar("whether no server is waited for", default=False)


@contextmanager
def ask_once() -> Iterator[None]:
    """Within the block, a server that does not answer is an error at once: nothing waits for it."""
    token = _ASKED_ONCE.set(True)
    try:
        yield
    finally:
        _ASKED_ONCE.reset(token)


class Again(Exception):
    """A failure that may be over soon."""


@reward(
    "Text",
    "Image",
    "Video",
    "Audio",
    range=(-inf, inf),
    scale="that of the reward of the server",
    reads=("reward",),
    delegates=True,
    packages=("httpx", "tenacity"),
    extra="serve",
    check="mmgrpo.scoring.served:check",
    row="mmgrpo.scoring.served:check_row",
    elsewhere=True,
)
def served(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    *,
    reward: str,
    url: str | list[str] = URL,
    token_file: str = "",
    timeout: int | float = 660.0,
    patience: int | float = 600.0,
    batch: int = 16,
) -> list[float | None]:
    """The values of a reward of ``mmgrpo serve-rewards`` at one or several urls.

    ``token_file`` holds the servers' token. ``timeout``: seconds for one request, more than the server takes before it
    gives up. ``patience``: seconds for which the run waits for servers that fail.
    """
    return _of(reward, url, token_file, timeout, patience, batch)(prompts, outputs)


def check(**settings: Any) -> None:
    """ValueError unless a server has the reward and gives up before this client does; waits while it is loading.
    ``settings`` are those of ``served``."""
    _of(**settings).facts()


def check_row(prompt: Prompt, **settings: Any) -> None:
    """ValueError for a prompt with a file that the reward may read, since a server reads none."""
    files = any(isinstance(medium.source, str | tuple) for medium in prompt.media)
    if files and _of(**settings).reads_media():
        write(settings["reward"], [prompt], [], [])


def _of(
    reward: str = "",
    url: str | list[str] = URL,
    token_file: str = "",
    timeout: int | float = 660.0,
    patience: int | float = 600.0,
    batch: int = 16,
) -> Client:
    return _client(_urls(url), reward, token_file, timeout, patience, batch)


def _urls(url: Any) -> tuple[str, ...]:
    urls = [url] if isinstance(url, str) else url
    if not isinstance(urls, list) or not all(isinstance(address, str) for address in urls):
        raise ValueError(f"rewards: 'served': got url {url!r}, expected a text or a list of texts")
    return tuple(urls)


@functools.cache
def _client(
    urls: tuple[str, ...], reward: str, token_file: str, timeout: int | float, patience: int | float, batch: int
) -> Client:
    token = ""
    if token_file:
        path = Path(token_file).expanduser()
        if not path.is_file():
            raise ValueError(f"rewards: 'served': token_file: no such file: {path}")
        token = path.read_text(encoding="utf-8").strip()
    return Client(urls, reward, token, timeout, patience, batch)


class Client:
    """A reward of one or several servers as a function of prompts and outputs."""

    def __init__(
        self,
        urls: Sequence[str],
        reward: str,
        token: str = "",
        timeout: int | float = 660.0,
        patience: int | float = 600.0,
        batch: int = 16,
        pause: int | float = 0.5,
        transport: Any = None,
    ) -> None:
        """``pause``: seconds of the first pause, at most; ``transport``: how requests are sent (for tests)."""
        try:
            import httpx
            import tenacity  # noqa: F401
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"rewards: 'served' needs the package {error.name}: {install('serve')}", name=error.name
            ) from error

        if not urls or not all(urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname for url in urls):
            raise ValueError(f"rewards: 'served': got url {list(urls)}, expected http://HOST:PORT or a list of such")
        if batch < 1 or not timeout > 0 or not patience >= 0:
            raise ValueError("rewards: 'served': expected a positive batch and timeout, and a patience of at least 0")
        self.urls, self.reward, self.timeout, self.patience = (
            [url.rstrip("/") for url in urls],
            reward,
            timeout,
            patience,
        )
        self.batch, self.pause = batch, pause
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        limits = httpx.Timeout(None if math.isinf(timeout) else timeout, connect=CONNECT)
        # A proxy of the environment cannot reach this machine.
        self._http = {
            url: httpx.Client(
                base_url=url, headers=headers, timeout=limits, trust_env=not is_local(url), transport=transport
            )
            for url in self.urls
        }
        self._slots = threading.Semaphore(2 * len(self.urls))  # one part computes while the next is on its way
        self._turn = itertools.count()
        self._down: dict[str, float] = {}
        self._lock = threading.Lock()
        self._facts: dict[str, Any] | None = None
        self._lost = False

    def __call__(self, prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float | None]:
        """One value per output, NaN where the server has none, None where its reward abstains; ``RewardFailure`` where
        there are no values at all."""
        facts = self.facts()
        ids = [str(place) for place in range(len(outputs))]
        media = self.reads_media()
        size = max(1, len(ids)) if facts["alone"] else self.batch
        parts = [slice(start, start + size) for start in range(0, len(ids), size)]
        waiting = [
            begin(functools.partial(self._part, prompts[part], outputs[part], ids[part], media)) for part in parts
        ]
        values = {name: value for part in waiting for name, value in part().items()}
        return [values[name] for name in ids]

    def reads_media(self) -> bool:
        """Whether the reward may read the media of prompts, which one without a manifest may."""
        manifest = self.facts()["manifest"]
        return manifest is None or not MEDIA.isdisjoint(manifest["reads"])

    def facts(self) -> dict[str, Any]:
        """What the servers say of the reward; ValueError where they cannot be used."""
        with self._lock:
            if self._facts is None:
                self._facts = self._patiently(self._manifest)
        return self._facts

    def _manifest(self, url: str) -> dict[str, Any]:
        if self._send(url, "GET", "/health", ANSWER).get("version") != VERSION:
            raise ValueError(f"rewards: 'served': {url} speaks another version; install the same release on both sides")
        rewards = self._send(url, "GET", "/manifests", ANSWER)["rewards"]
        if self.reward not in rewards:
            raise ValueError(f"rewards: 'served': {url} has no reward '{self.reward}', only {', '.join(rewards)}")
        facts = rewards[self.reward]
        limit = math.inf if facts["timeout"] is None else facts["timeout"]
        if limit >= self.timeout and not math.isinf(self.timeout):
            raise ValueError(
                f"rewards: 'served': got timeout {self.timeout:g}, expected more than the {limit:g} s after which "
                f"{url} gives up, so its answer arrives; e.g. timeout={1.1 * limit:g}"
            )
        return facts

    def _part(
        self, prompts: Sequence[Prompt], outputs: Sequence[Output], ids: Sequence[str], media: bool
    ) -> dict[str, float | None]:
        with self._slots:
            body = write(self.reward, prompts, outputs, ids, media)
            return self._patiently(functools.partial(self._score, body, ids))

    def _score(self, body: bytes, ids: Sequence[str], url: str) -> dict[str, float | None]:
        answer = self._send(url, "POST", "/score", ANSWER + PER_VALUE * len(ids), body)
        values, abstained = answer.get("values"), answer.get("abstained", [])
        if not isinstance(values, dict) or values.keys() != set(ids):
            raise RewardFailure(f"{url}: got values of other outputs than those that it was sent")
        if not all(value is None or type(value) in (int, float) for value in values.values()):
            raise RewardFailure(f"{url}: got values that are no numbers")
        if not isinstance(abstained, list) or not all(name in ids and values[name] is None for name in abstained):
            raise RewardFailure(f"{url}: got abstentions from other outputs than those that it has no values for")
        unscored = {name: None if name in abstained else math.nan for name, value in values.items() if value is None}
        return {name: unscored[name] if value is None else float(value) for name, value in values.items()}

    def _send(self, url: str, method: str, path: str, most: int, body: bytes | None = None) -> dict[str, Any]:
        """The JSON of an answer of at most ``most`` bytes; ``Again`` for a failure that may be over soon."""
        import httpx

        content = bytearray()
        headers = {"Content-Type": FRAMES} if body is not None else {}
        until = time.monotonic() + self.timeout
        try:
            with self._http[url].stream(method, path, content=body, headers=headers) as answer:
                for part in answer.iter_bytes():
                    content += part
                    if len(content) > most or time.monotonic() > until:
                        raise RewardFailure(f"{url}: got an answer of more than {most} bytes, or too slowly")
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol) as error:
            raise RewardFailure(f"{url}: the request cannot be sent ({error}); check the token and the url") from error
        except httpx.TransportError as error:
            raise Again(f"{url} does not answer ({error or type(error).__name__})") from error
        try:
            message = json.loads(bytes(content))
            message = message if isinstance(message, dict) else {}
        except (ValueError, RecursionError):
            message = {}
        if answer.status_code in (408, 429) or answer.status_code >= 500:
            reason = message.get("error") or message.get("status") or "no reason"
            raise Again(f"{url} answers {answer.status_code} ({str(reason)[:300]})")
        if answer.status_code != 200 or not message:
            reason = str(message.get("error", "no JSON"))[:2000]
            raise RewardFailure(f"{url} answers {answer.status_code}: {reason}")
        return message

    def _patiently(self, attempt: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """The result of an attempt at one of the servers; RewardFailure when the patience is over."""
        import tenacity

        first, tries = next(self._turn), itertools.count()
        growing = tenacity.wait_random_exponential(self.pause, max=30)
        # A server that has failed for so long once is not waited for again until it answers.
        patience = 0.0 if self._lost or _ASKED_ONCE.get() else self.patience

        def once() -> dict[str, Any]:
            url = self._choose(first + next(tries))
            try:
                result = attempt(url)
            except Again:
                self._down[url] = time.monotonic()
                raise
            self._down.pop(url, None)
            self._lost = False
            return result

        def wait(state: tenacity.RetryCallState) -> float:
            return growing(state) if state.attempt_number >= len(self.urls) else 0.0

        def tell(state: tenacity.RetryCallState) -> None:
            if state.attempt_number == len(self.urls) and state.outcome is not None:
                text = (
                    f"reward '{self.reward}': {state.outcome.exception()}; the run waits for it, {patience:g} s at most"
                )
                print(text, file=sys.stderr, flush=True)

        def stop(state: tenacity.RetryCallState) -> bool:
            waited = state.seconds_since_start or 0.0
            return state.attempt_number >= len(self.urls) and waited + state.upcoming_sleep >= patience

        try:
            return tenacity.Retrying(
                retry=tenacity.retry_if_exception_type(Again), wait=wait, stop=stop, before_sleep=tell, reraise=True
            )(once)
        except Again as error:
            if _ASKED_ONCE.get():
                raise RewardFailure(
                    f"rewards: '{self.reward}': {error}; start its server (mmgrpo serve-rewards) first, or with the "
                    f"run, which waits for it, {self.patience:g} s at most"
                ) from error
            self._lost = True
            raise RewardFailure(
                f"{error}, for {patience:g} s; start its server again (mmgrpo serve-rewards), then go on with the run"
            ) from error

    def _choose(self, number: int) -> str:
        """A server in turn, of those that did not fail in the last 30 seconds unless all did."""
        now = time.monotonic()
        up = [url for url in self.urls if now - self._down.get(url, -math.inf) > 30]
        urls = up or self.urls
        return urls[number % len(urls)]


def is_local(url: str) -> bool:
    """Whether a url names this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
