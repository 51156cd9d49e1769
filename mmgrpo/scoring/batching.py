"""Requests that come at the same time, scored one after the other or together, each within its time.

A reward computes one batch at a time. Each request is a batch of its own, so its values do not depend on the
requests of others, not even in their rounding; with ``max_batch`` several are joined to batches of at most so many
outputs, unless the reward compares outputs with each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mmgrpo.scoring.isolation import column, in_words
from mmgrpo.scoring.manifest import Manifest
from mmgrpo.scoring.process import Trace, Unsendable
from mmgrpo.types import Output, Prompt


class Busy(RuntimeError):
    """Too many requests wait already."""


class Unready(RuntimeError):
    """The reward is not loaded, or its process ended; the request may be repeated."""


class Unreadable(ValueError):
    """The request holds what cannot be given to the reward; to repeat it is useless."""


class Unscorable(RuntimeError):
    """The reward raised an exception for these outputs; to repeat the request is useless."""


@dataclass(eq=False)
class Job:
    """A request that waits for its values."""

    prompts: Sequence[Prompt]
    outputs: Sequence[Output]
    values: asyncio.Future[list[float | None]]


@dataclass(frozen=True)
class Joining:
    """How requests are joined: to at most ``outputs`` (0: not at all), waiting at most ``seconds`` for further ones."""

    outputs: int
    seconds: float


class Batches:
    """One reward of a server: its queue, and the task that empties it (``run``)."""

    def __init__(
        self,
        name: str,
        load: Callable[[], Callable[..., Any]],
        manifest: Manifest | None,
        *,
        timeout: float,
        joining: Joining,
        waiting: int,
        warm_up: Callable[[Callable[..., Any]], Any] = lambda function: None,
    ) -> None:
        self.name, self.manifest, self.timeout = name, manifest, timeout
        self.joining, self.ready = joining, False
        self._load, self._warm_up, self._function = load, warm_up, None
        self._queue: asyncio.Queue[Job] = asyncio.Queue(waiting)
        self._next: Job | None = None

    @property
    def alone(self) -> bool:
        """Whether each request is scored by itself: nobody knows of a reward without a manifest what it compares."""
        return self.manifest is None or self.manifest.group

    async def score(self, prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float | None]:
        """The values of one request; TimeoutError after ``timeout`` seconds of waiting and computing."""
        if not self.ready:
            raise Unready(f"reward '{self.name}' is not loaded yet")
        if not outputs:
            return []
        job = Job(prompts, outputs, asyncio.get_running_loop().create_future())
        try:
            self._queue.put_nowait(job)
        except asyncio.QueueFull:
            raise Busy(f"reward '{self.name}': {self._queue.qsize()} requests wait already") from None
        return await asyncio.wait_for(job.values, self.timeout)

    async def run(self) -> None:
        """Load the reward, then score what is in the queue, for ever."""
        self._function = await asyncio.to_thread(self._load)
        await asyncio.to_thread(self._warm_up, self._function)
        self.ready = True
        while True:
            await self._score(await self._batch())

    def close(self) -> None:
        """End the reward's process, if it has one; a batch that it is computing fails."""
        if close := getattr(self._function, "close", None):
            close()

    async def _batch(self) -> list[Job]:
        job, self._next = self._next or await self._queue.get(), None
        jobs = [job]
        until, most = asyncio.get_running_loop().time() + self.joining.seconds, self.joining.outputs
        while not self.alone and (count := sum(len(job.outputs) for job in jobs)) < most:
            try:
                async with asyncio.timeout_at(until):  # what waits already is taken also when the time is over
                    further = await self._queue.get()
            except TimeoutError:
                break
            if count + len(further.outputs) > most:
                self._next = further
                break
            jobs.append(further)
        return jobs

    async def _score(self, jobs: list[Job]) -> None:
        jobs = [job for job in jobs if not job.values.done()]  # those who asked may have gone, or their time is over
        if not jobs:
            return
        prompts = [prompt for job in jobs for prompt in job.prompts]
        outputs = [output for job in jobs for output in job.outputs]
        try:
            values = await asyncio.to_thread(self._call, prompts, outputs)
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:  # what one request did is not the others' fault
                    await self._score([job])
            elif not jobs[0].values.done():
                jobs[0].values.set_exception(error)
            return
        for job in jobs:
            mine, values = values[: len(job.outputs)], values[len(job.outputs) :]
            if not job.values.done():
                job.values.set_result(mine)

    def _call(self, prompts: list[Prompt], outputs: list[Output]) -> list[float | None]:
        assert self._function is not None
        try:
            return column(self._function(prompts, outputs), len(outputs))
        except Unsendable as error:
            raise Unreadable(f"reward '{self.name}': {in_words(error)}") from error
        except Exception as error:
            # What the reward itself raised in its process has the text of its traceback as cause; without one, the
            # process ended.
            again = hasattr(self._function, "close") and not isinstance(error.__cause__, Trace)
            raise (Unready if again else Unscorable)(f"reward '{self.name}': {in_words(error)}") from error
