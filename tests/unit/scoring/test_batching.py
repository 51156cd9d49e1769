"""Which requests are computed together, and what a server says and where it listens, without one that runs."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from mmgrpo.scoring.batching import Batches, Job, Joining, Unready, Unscorable
from mmgrpo.scoring.manifest import Manifest
from mmgrpo.scoring.server import Refusal, application
from mmgrpo.types import Prompt, Text
from tests.unit.scoring.serving import TEXTS, batches, length


def texts(count: int) -> tuple[list[Prompt], list[Text]]:
    return [Prompt("p")] * count, [Text("x" * (1 + place)) for place in range(count)]


def together(
    sizes: list[int], outputs: int, seconds: float = 0.0, manifest: Manifest | None = TEXTS
) -> list[list[int]]:
    """The sizes of the requests of each batch, where requests of these sizes wait."""

    async def batch() -> list[list[int]]:
        reward = batches("length", length, manifest, joining=Joining(outputs, seconds))
        for size in sizes:
            reward._queue.put_nowait(Job(*texts(size), asyncio.get_running_loop().create_future()))
        found: list[list[int]] = []
        while sum(map(len, found)) < len(sizes):
            found.append([len(job.outputs) for job in await reward._batch()])
        return found

    return asyncio.run(batch())


@pytest.mark.parametrize(
    ("sizes", "outputs", "found"),
    [
        ([1, 2, 1], 3, [[1, 2], [1]]),
        ([2, 2, 1], 3, [[2], [2, 1]]),
        ([4, 1], 3, [[4], [1]]),
        ([1, 1, 1], 0, [[1], [1], [1]]),
        ([1, 1, 1], 9, [[1, 1, 1]]),
    ],
)
def test_requests_are_joined_up_to_so_many_outputs_in_their_order(sizes, outputs, found):
    assert together(sizes, outputs) == found


@pytest.mark.parametrize("manifest", [None, Manifest(("Text",), group=True)])
def test_requests_whose_outputs_may_be_compared_are_never_joined(manifest):
    assert together([1, 1], 9, manifest=manifest) == [[1], [1]]


def test_further_requests_are_waited_for_where_they_may_come():
    async def batch() -> int:
        reward, loop = batches("length", length, joining=Joining(2, 60.0)), asyncio.get_running_loop()
        for delay in (0.0, 0.05):
            job = Job(*texts(1), loop.create_future())
            loop.call_later(delay, reward._queue.put_nowait, job)
        return len(await reward._batch())

    assert asyncio.run(batch()) == 2


def test_one_process_of_a_reward_answers_those_who_still_wait():
    """Of four requests one is gone before, one while it is computed."""
    asked: list[list[str]] = []

    async def score() -> list[Any]:
        reward, loop = batches("length", length), asyncio.get_running_loop()
        jobs = [Job([Prompt("p")], [Text("x" * size)], loop.create_future()) for size in (1, 2, 3, 4)]

        def compute(prompts: list[Prompt], outputs: list[Text]) -> list[float]:
            asked.append([output.text for output in outputs])
            loop.call_soon_threadsafe(jobs[2].values.cancel)
            return length(prompts, outputs)

        reward._function = compute
        jobs[0].values.cancel()
        await reward._score(jobs[:1])  # nobody waits
        await reward._score(jobs)
        return [None if job.values.cancelled() else job.values.result() for job in jobs]

    assert asyncio.run(score()) == [None, [2.0], None, [4.0]]
    assert asked == [["xx", "xxx", "xxxx"]]


def test_an_error_is_that_of_the_request_that_made_it():
    asked: list[list[str]] = []

    async def score() -> list[Any]:
        reward, loop = batches("length", length), asyncio.get_running_loop()
        jobs = [Job([Prompt("p")], [Text(text)], loop.create_future()) for text in ("a", "bad", "left", "cc")]

        def compute(prompts: list[Prompt], outputs: list[Text]) -> list[float]:
            asked.append([output.text for output in outputs])
            if asked[-1] == ["left"]:
                loop.call_soon_threadsafe(jobs[2].values.cancel)
            if {"bad", "left"} & {*asked[-1]}:
                raise OSError("broken")
            return length(prompts, outputs)

        reward._function = compute
        await reward._score(jobs)
        assert jobs[2].values.cancelled()
        return [job.values.exception() or job.values.result() for job in jobs if not job.values.cancelled()]

    first, error, last = asyncio.run(score())
    assert (first, last) == ([1.0], [2.0])
    assert isinstance(error, Unscorable)
    assert re.fullmatch(rf"reward 'length': OSError: broken \({re.escape(__file__)}:\d+, in compute\)", str(error))
    assert asked == [["a", "bad", "left", "cc"], ["a"], ["bad"], ["left"], ["cc"]]


def test_a_reward_that_is_not_loaded_has_no_values_and_no_outputs_need_none():
    async def ask(reward: Batches, ready: bool) -> list[float]:
        reward.ready = ready
        return await reward.score([], [])

    with pytest.raises(Unready, match="'length'"):
        asyncio.run(ask(batches("length", length), False))
    assert asyncio.run(ask(batches("length", length), True)) == []
    batches("length", length).close()  # before anything is loaded


def test_the_process_of_a_reward_ends_with_the_server():
    class Far:
        def close(self) -> None:
            closed.append(True)

    closed: list[bool] = []
    reward = batches("length", length)
    reward._function = length
    reward.close()
    reward._function = Far()
    reward.close()
    assert closed == [True]


def test_a_reward_is_warmed_up_before_it_is_ready():
    async def start() -> None:
        reward = batches("length", length, warm_up=lambda function: seen.append((function, reward.ready)))
        task = asyncio.create_task(reward.run())
        while not reward.ready:
            await asyncio.sleep(0)
        task.cancel()

    seen: list[Any] = []
    asyncio.run(start())
    assert seen == [(length, False)]


@pytest.mark.parametrize(("status", "later"), [(408, True), (429, True), (503, True), (504, False), (422, False)])
def test_what_may_be_asked_again_later_says_when(status, later):
    app = application({})
    answer = asyncio.run(app.exception_handlers[Refusal](None, Refusal(status, "not now")))
    assert (answer.status_code, answer.body) == (status, b'{"error":"not now"}')
    assert answer.headers["Connection"] == "close" and answer.headers.get("Retry-After") == ("1" if later else None)
