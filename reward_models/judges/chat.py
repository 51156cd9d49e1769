"""A judge behind an OpenAI-style chat API: vLLM, SGLang, llama.cpp, or a hosted one.

Images are sent as PNG, since JPEG changes scores. Nothing beyond Python's standard library is needed.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from mmgrpo.types import Image
from reward_models.judges.question import Question
from reward_models.pixels import to_pil

AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses of HTTP after which the same request may succeed."""

LONGEST = 16 << 20
"""Bytes of the longest answer."""

CUT = ("content_filter", "length")
"""Reasons for the end of an answer that is not whole: of 4.5 it may say 4."""

LOCAL = ("127.0.0.1", "localhost", "::1")
"""Hosts that no proxy is asked for."""

TOP = 20
"""Most probable first tokens that are asked for."""


class BudgetSpent(RuntimeError):
    """The judge would have to be asked more than its budget allows."""


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:  # the key would go to another server
        return None


@dataclass
class ChatJudge:
    """A model behind ``url``/chat/completions. ``key`` is the NAME of an environment variable that holds the API key.

    A request takes at most ``seconds``; one that times out, is refused, or is answered by a status in ``AGAIN`` is sent
    up to ``tries`` times, after waits that double from half a second (or as long as the server says), at most 30 s.
    ``parallel`` are under way at a time. ``requests`` and ``total_tokens`` are the budget of the process, beyond which
    ``BudgetSpent`` ends the run; 0 is no limit. ``options`` is a JSON object that is added to every request, e.g.
    ``{"chat_template_kwargs": {"enable_thinking": false}}``. Of several answers to a question those after the first are
    drawn at ``temperature``.
    """

    url: str
    model: str
    key: str = ""
    seconds: float = 60.0
    tries: int = 4
    parallel: int = 8
    requests: int = 0
    total_tokens: int = 0
    options: str = ""
    temperature: float = 0.7
    sent: int = field(default=0, init=False)
    """Requests so far, further tries included."""
    used: int = field(default=0, init=False)
    """Tokens of questions and answers so far, as the server counts them."""

    def __post_init__(self) -> None:
        split = urlsplit(self.url)
        if split.scheme not in ("http", "https") or not split.hostname or split.username or split.query:
            raise ValueError(f"judge: url: got {self.url!r}, expected the form http://host:port/v1")
        if self.seconds <= 0 or self.tries < 1 or self.parallel < 1 or self.temperature <= 0:
            raise ValueError(
                f"judge: got seconds={self.seconds}, tries={self.tries}, parallel={self.parallel} and "
                f"temperature={self.temperature}, expected all to be positive"
            )
        if self.key and not os.environ.get(self.key):
            raise ValueError(
                f"judge: key: the environment has no variable {self.key}, expected the API key in it; set it, and "
                "never write the key itself into a recipe"
            )
        try:
            self._options = json.loads(self.options or "{}")
        except ValueError as error:
            raise ValueError(f"judge: options: got {self.options!r}, expected a JSON object: {error}") from error
        if not isinstance(self._options, dict):
            raise ValueError(f"judge: options: got {self.options!r}, expected a JSON object")
        self._opener: OpenerDirector = build_opener(
            _NoRedirects(), *([ProxyHandler({})] if split.hostname in LOCAL else [])
        )
        self._lock = threading.Lock()
        self._random = random.Random()  # of waits only

    def answers(self, questions: Sequence[Question], tokens: int) -> list[str | None]:
        """The text of each answer; None where the server refuses the content or cuts the answer off."""
        return [_text(choice) for choice in self._ask_all(questions, {"max_tokens": tokens})]

    def log_probs(self, questions: Sequence[Question], words: Sequence[Sequence[str]]) -> list[list[float] | None]:
        """As ``Judge.log_probs``, from the ``TOP`` most probable first tokens.

        A word that is not among them gets the log-probability of the last of them, which is an upper bound; None where
        none of the words is. The server must give ``top_logprobs``.
        """
        wanted = {"max_tokens": 1, "logprobs": True, "top_logprobs": TOP}
        return [self._first_token(choice, words) for choice in self._ask_all(questions, wanted)]

    def _first_token(self, choice: Mapping[str, Any], words: Sequence[Sequence[str]]) -> list[float] | None:
        try:
            top = [
                (str(row["token"]), float(row["logprob"])) for row in choice["logprobs"]["content"][0]["top_logprobs"]
            ]
        except (KeyError, TypeError, IndexError, ValueError):
            top = []
        if not top:
            raise ValueError(
                f"judge: {self.url} gives no logprobs with top_logprobs for {self.model}, which scores by probability "
                "need; use a server that does (vLLM, SGLang), or vlm(model=...)"
            )
        lowest = min(value for _, value in top)
        matches = [
            [value for token, value in top if token.strip(" \u2581\u0120\n") in spellings and math.isfinite(value)]
            for spellings in words
        ]
        if not any(matches):
            return None
        return [math.log(sum(map(math.exp, values))) if values else lowest for values in matches]

    def _ask_all(self, questions: Sequence[Question], wanted: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        with ThreadPoolExecutor(self.parallel) as threads:
            pending = [threads.submit(self._ask, question, wanted) for question in questions]
            try:
                return [future.result() for future in pending]
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise

    def _ask(self, question: Question, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        body = {"model": self.model, "messages": messages(question), "temperature": 0, **wanted, **self._options}
        if question.draw:
            body |= {"temperature": self.temperature, "seed": question.draw}
        if question.start:  # vLLM and SGLang continue a last turn of the assistant
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        content = json.dumps(body).encode()
        reason = ""
        for attempt in range(self.tries):
            self._spend()
            wait = min(30.0, 0.5 * 2**attempt) * (1 + self._random.random() / 4)
            try:
                return self._choice(json.loads(self._post(content)))
            except HTTPError as error:
                detail = error.read(2000).decode(errors="replace").strip()
                reason = f"status {error.code} ({error.reason}) {detail}".strip()
                if error.code not in AGAIN:
                    raise RuntimeError(f"judge: {self.url} refused a question: {reason}") from None
                after = error.headers.get("Retry-After", "")
                wait = min(30.0, float(after)) if after.isdigit() else wait
            except (OSError, HTTPException, ValueError, URLError, RecursionError) as error:
                reason = f"{type(error).__name__}: {error}"
            if attempt + 1 < self.tries:
                time.sleep(wait)
        raise RuntimeError(
            f"judge: {self.url} gave no answer in {self.tries} tries of at most {self.seconds:g} s ({reason}); see "
            "whether it runs, or give it more time: chat(seconds=..., tries=...)"
        )

    def _spend(self) -> None:
        with self._lock:
            over = self.requests and self.sent >= self.requests
            if over or (self.total_tokens and self.used >= self.total_tokens):
                limit = f"{self.requests} requests" if over else f"{self.total_tokens} tokens"
                raise BudgetSpent(
                    f"judge: the budget of {limit} is spent ({self.sent} requests, {self.used} tokens); allow more: "
                    "chat(requests=..., total_tokens=...)"
                )
            self.sent += 1

    def _post(self, content: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {os.environ[self.key]}"
        deadline = time.monotonic() + self.seconds
        request = Request(f"{self.url.rstrip('/')}/chat/completions", content, headers)
        parts, size = [], 0
        with self._opener.open(request, timeout=self.seconds) as response:
            while part := response.read1(1 << 16):
                parts.append(part)
                size += len(part)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the answer took more than {self.seconds:g} s")
                if size > LONGEST:
                    raise ValueError(f"the answer has more than {LONGEST} bytes")
        return b"".join(parts)

    def _choice(self, answer: Any) -> Mapping[str, Any]:
        usage = answer.get("usage") if isinstance(answer, dict) else None
        with self._lock:
            tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
            if isinstance(tokens, int) and tokens >= 0:
                self.used += tokens
            elif self.total_tokens:
                raise BudgetSpent(
                    f"judge: {self.url} does not count tokens; limit the requests instead of total_tokens"
                )
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise ValueError(f"got {str(answer)[:200]!r}, expected an answer with choices")
        return choices[0]


def messages(question: Question) -> list[dict[str, Any]]:
    """A question in the form of the API; images are data URLs of PNG."""
    content = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_png(part)}"}}
        if isinstance(part, Image)
        else {"type": "text", "text": part}
        for part in question.parts
    ]
    start = [{"role": "assistant", "content": question.start}] if question.start else []
    return [{"role": "user", "content": content}, *start]


def _png(image: Image) -> str:
    file = io.BytesIO()
    to_pil(image).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _text(choice: Mapping[str, Any]) -> str | None:
    message = choice.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, str) and choice.get("finish_reason") not in CUT else None
