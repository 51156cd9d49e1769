"""What a world may do, and what becomes of its completion: the policy's fault is read by the policy and rewarded as any
other completion is; the world's own has no reward."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.policies.token_model import Query
from mmgrpo.policies.tool_process import Copy
from mmgrpo.policies.tool_table import WorldFailed, tools_by_name
from mmgrpo.policies.tools import FAILURES, Episode
from mmgrpo.scoring import RewardScores, Scorer, of_unfailed, score_outputs
from mmgrpo.types import Output, Prompt, Request, Text, Turn
from tests.building import algorithm_blocks, killed_and_whole, rounds_of, trainer
from tests.unit.policies.test_tool_process import SOON, ends
from tests.unit.policies.test_tools import (
    END,
    HIDE,
    PEEK,
    PROMPTS,
    conversed,
    few_calls,
    frame,
    policy_of,
    tools_of,
)

BYTES = 10**7
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")


def hangs() -> None:
    threading.Event().wait()


def dies() -> None:
    os._exit(3)


def fails() -> None:
    raise WorldFailed("the simulator is gone")


def raises() -> None:
    raise KeyError("seven")


def swells() -> None:
    held = [bytearray(10**8) for _ in range(100)]  # 10 GB where 0.2 are allowed
    raise AssertionError(len(held))


def babbles() -> None:
    """Writes into every connection that it has."""
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith("socket"):
                os.write(number, b"\0" * 100)


def world(**does: Callable[[], Any]) -> type:
    """A world that is worth 1 and does something else where one of its methods is asked."""

    class World:
        def _does(self, name: str, value: Any) -> Any:
            found = does.get(name, lambda: value)()
            return value if found is None else found

        def reset(self, prompt: Prompt, seed: int) -> None:
            self._does("reset", None)

        def peek(self) -> Any:
            """Look."""
            return self._does("peek", "seven")

        def hide(self) -> str:
            """Hide."""
            return "eight"

        def turn_reward(self) -> Any:
            return self._does("turn_reward", 0.5)

        def state(self) -> Any:
            return self._does("state", 0)

        def reward(self) -> Any:
            return self._does("reward", 1.0)

    return World


SCRIPT = [[PEEK, END], [HIDE, END], ["a", END]]


def served(kind: type, seconds: float = 60.0, script: Sequence[Sequence[str]] = SCRIPT, **limits: Any) -> Any:
    made = tools_of(frame(), kind, seconds=seconds)
    vars(made).update(limits)
    return conversed(script, made, keyed=True)[0].episodes[0]


@pytest.mark.parametrize(
    ("does", "limits", "error"),
    [
        (raises, {}, "KeyError"),
        pytest.param(swells, {"memory": 200_000_000}, "MemoryError", marks=LINUX),
    ],
)
def test_a_call_that_fails_is_read_and_its_completion_rewarded(does, limits, error):
    one = served(world(peek=does), **limits)
    assert error in one.calls[0].error and one.calls[1].result == "eight"
    assert (one.end, one.reward, one.earned, one.fault) == ("answered", 1.0, [0.5] * 3, "")


def test_a_call_without_an_answer_is_read_and_what_only_its_world_knew_is_nan():
    served(world())  # what is imported once
    begun = time.monotonic()
    with pytest.warns(UserWarning, match="reward of class 'World'.*no longer"):
        one = served(world(peek=hangs), seconds=0.5)
    assert "0.5 seconds" in one.calls[0].error and "no longer" in one.calls[1].error
    assert one.end == "answered" and not one.fault and math.isnan(one.reward) and all(map(math.isnan, one.earned))
    assert time.monotonic() - begun < SOON


@pytest.mark.parametrize("result", ["ab" * (BYTES // 2), {"rows": list(range(BYTES // 8))}])
def test_ten_megabytes_are_cut_to_what_is_read(result):
    one = served(world(peek=lambda: result))
    assert 0 < sum(one.observed) < 60 and len(one.calls[0].result) == 10**6 and one.reward == 1.0


@pytest.mark.parametrize(
    ("where", "does", "says"),
    [
        pytest.param("reset", hangs, "1 seconds.*sampling.tool_seconds", marks=pytest.mark.slow),
        ("reset", dies, "status 3"),
        ("reset", raises, "KeyError"),
        ("peek", dies, "status 3"),
        ("peek", fails, "simulator is gone"),
        ("peek", babbles, "."),
        ("turn_reward", dies, "status 3"),
        ("turn_reward", fails, "simulator is gone"),
        pytest.param("state", hangs, "1 seconds", marks=pytest.mark.slow),
        pytest.param("reward", hangs, "1 seconds", marks=pytest.mark.slow),
        ("reward", dies, "status 3"),
    ],
)
def test_a_world_that_fails_ends_its_completion_without_a_reward(where, does, says):
    served(world())  # what is imported once
    begun = time.monotonic()
    with pytest.warns(UserWarning, match=rf"sampling.tools.*'World'.*prompt '0'.*{says}"):
        one = served(world(**{where: does}), seconds=60.0 if does in (babbles, dies) else 1.0)
    assert one.end == "failed" and one.fault and math.isnan(one.reward) and time.monotonic() - begun < SOON
    # The turn in which it fails is the last.
    assert one.turn == (3 if where == "reward" else 1) and len(one.earned) == one.turn
    assert all(math.isnan(value) for value in one.earned) or where == "reward"


def test_a_function_can_say_that_it_is_not_the_policys_fault():
    def peek() -> str:
        """Look."""
        raise WorldFailed("the index is gone")

    with pytest.warns(UserWarning, match="'peek' failed.*'0'.*index is gone"):
        one = conversed([[PEEK, END], ["a", END]], peek)[0].episodes[0]
    assert one.end == "failed" and one.turn == 1


@pytest.mark.parametrize("value", ["much", [1.0], {"a": 1}])
def test_nonsense_for_a_reward_stops_the_run_before_anything_is_learned_from_it(value):
    for method in ("reward", "turn_reward"):
        with pytest.raises(ValueError, match=f"{method} of class 'World'.*{type(value).__name__}"):
            served(world(**{method: lambda: value}))


def listens() -> str:
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=server.accept, daemon=True).start()
    return f"seven {server.getsockname()[1]} {os.getpid()}"


def starts() -> str:
    return f"seven {subprocess.Popen(['sleep', '1000']).pid} {os.getpid()}"


@pytest.mark.parametrize("does", [listens, starts])
def test_what_a_world_has_left_open_ends_with_its_completion(does):
    tools = tools_of(frame(), world(peek=does))
    one = conversed(SCRIPT, tools)[0].episodes[0]
    _, opened, number = one.calls[0].result.split()
    assert not one.fault and one.reward == 1.0 and ends(int(number)) and not tools.process._idle
    if does is listens:
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", int(opened)), timeout=1)
    else:
        assert ends(int(opened))
    kept = tools_of(frame(), world())
    conversed(SCRIPT, kept)
    assert len(kept.process._idle) == 1  # one that has left nothing serves the next


def test_worlds_that_fail_for_prompt_after_prompt_end_the_run():
    broken = tools_of(frame(), world(reset=raises))
    with pytest.warns(UserWarning, match="'World'"):
        for _ in range(FAILURES - 1):
            conversed([[PEEK, END]], broken)
        with pytest.raises(RuntimeError, match=f"sampling.tools.*{FAILURES} prompts in a row.*'World'.*KeyError"):
            conversed([[PEEK, END]], broken)
    mended = tools_of(frame(), world())
    mended.process.failures = FAILURES - 1
    conversed([[PEEK, END], ["a", END]], mended)
    assert mended.process.failures == 0


# ---- in a run


class Fragile:
    """Draws a number from the generator of its process, which ends at some of them; cannot begin for prompt 2."""

    def reset(self, prompt: Prompt, seed: int) -> str:
        if prompt.id == "2":
            raise OSError("no board")
        self.id, self.looks = prompt.id, 0
        return " seven" if seed % 2 else " eight"

    def peek(self) -> str:
        """Look."""
        self.looks += 1
        if self.id == "1" and self.looks == 2:
            os._exit(1)
        return "seven" if random.random() < 0.5 else "eight"

    def hide(self) -> str:
        """Hide."""
        return "eight"

    def reward(self) -> float:
        return float(self.looks)


def test_no_reward_is_asked_of_a_failed_world_and_its_rows_are_not_compared(tmp_path):
    asked: list[Output] = []

    def counted(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        asked.extend(outputs)
        return few_calls(prompts, outputs)

    blocks = algorithm_blocks("grpo", terms=[])
    made = trainer(policy_of(tools=[Fragile]), tmp_path, PROMPTS, reward=counted, steps=1, prompts_per_step=3, **blocks)
    rounds = rounds_of(made)
    with pytest.warns(UserWarning, match="'Fragile'.*'2'.*no board"):
        made.fit()
    (round,), decisions = rounds, rounds[0].rollouts[0].decisions
    failed = decisions.fields["world_failed"] > 0
    outputs = [one for one in round.rollouts[0].outputs if isinstance(one, Text)]
    assert [bool(one.fault) for one in outputs] == failed.tolist() and 4 < int(failed.sum()) < 12
    assert all(bool(one.fault) for prompt, one in zip(round.rollouts[0].prompts, outputs) if prompt.id == "2")
    assert [one for one in outputs if not one.fault] == asked
    assert not round.reward_scores.valid[failed].any() and round.reward_scores.valid[~failed].all()
    assert not round.batch.loss_mask[failed].any() and round.batch.loss_mask[~failed].any()
    share = pytest.approx(float(failed.double().mean()))
    assert round.metrics["rollout/ended_failed"] == share and round.metrics["group/unscored_fraction"] == share
    assert "reward/reward/failed" not in round.metrics


def test_an_evaluation_leaves_failed_worlds_out():
    policy = policy_of(tools=[Fragile])
    with pytest.warns(UserWarning, match="no board"):
        outputs = policy.sample(Request(PROMPTS, [0, 1, 2], 1, seed=0))
    scores = score_outputs([Scorer("calls", few_calls)], PROMPTS, outputs)
    assert scores.failed[2, 0] and scores.valid[0, 0] and scores.values[2, 0] == 0


def test_error_rates_leave_failed_worlds_out():
    def words(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        return [float(len(one.text.split())) for one in outputs if isinstance(one, Text)]

    texts = [Text("a"), Text("a b", fault="gone"), Text("a b c")]
    found = of_unfailed(words)(PROMPTS, texts)
    assert (found[0], found[2]) == (1, 3) and math.isnan(found[1] or 0)
    assert of_unfailed(words)(PROMPTS[:1], texts[:1]) == [1]

    def never(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        raise AssertionError(outputs)

    assert math.isnan(of_unfailed(never)(PROMPTS[:1], texts[1:2])[0] or 0)


def test_where_all_worlds_fail_no_reward_is_asked_and_the_run_ends(tmp_path):
    def never(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        raise AssertionError(outputs)

    scores = score_outputs([Scorer("never", never)], PROMPTS[:1], [Text("a", fault="gone")])
    assert torch.equal(scores.valid, torch.tensor([[False]])) and isinstance(scores, RewardScores)
    made = trainer(
        policy_of(tools=[Fragile]), tmp_path, PROMPTS[2:], reward=never, steps=1, prompts_per_step=1,
        **algorithm_blocks("grpo", terms=[]),
    )  # fmt: skip
    with pytest.warns(UserWarning, match="no board"), pytest.raises(RuntimeError, match=r"sampling\.tools.*all 4 "):
        made.fit()


@pytest.mark.slow
def test_a_killed_run_with_worlds_that_fail_resumes_with_the_same_numbers(tmp_path):
    def fresh(folder: Path) -> Any:
        made, blocks = policy_of(tools=[Fragile]), algorithm_blocks("grpo", terms=[])
        return trainer(made, folder, PROMPTS, reward=few_calls, steps=4, save_every=2, lr=1e-3, **blocks)

    with pytest.warns(UserWarning, match="no board"):
        killed, whole = killed_and_whole(fresh, tmp_path)
    assert len(whole) == 4 and killed == whole
    shares = [line["rollout/ended_failed"] for line in whole]
    assert min(shares) > 0 and max(shares) < 1


def test_a_copy_that_is_killed_from_outside_is_the_worlds_fault():
    tools = tools_of(frame(), world())
    taken: list[Copy] = []
    take = tools.process.take

    def watched() -> Copy:
        taken.append(take())
        os.kill(taken[-1]._number, 9)
        return taken[-1]

    tools.process.take = watched  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match="signal 9"):
        one = conversed([[PEEK, END]], tools)[0].episodes[0]
    assert one.end == "failed"


# ---- environments of TRL


class Wordle:
    """As TRL's ``environment_factory`` takes it."""

    def __init__(self) -> None:
        self.looks = 0

    def reset(self, **columns: Any) -> str | None:
        self.looks, self.columns = 0, columns
        return f" {columns['word']}"

    async def peek(self) -> list[Any]:
        """Look."""
        self.looks += 1
        return [self.columns["prompt"], self.columns["answer"], sorted(self.columns)]

    def hide(self) -> str:
        """Hide."""
        return "eight"

    def get_reward(self) -> float:
        return self.looks / 2


def test_an_environment_of_trl_is_a_class_of_tools():
    asked = Prompt("say a", "0", answer="b", columns={"word": "seven"})
    (query,) = tools_of(frame(), Wordle).open_prompts([Query(asked, 5, 1)], 7)
    assert query.opening == (" seven",)
    assert set(tools_by_name([Wordle])) == {"peek", "hide"} == set(members(Wordle))
    tools, one = tools_of(frame(), Wordle), Episode(query, 0)
    call = tools._make_call(one, "peek", {}, 7)
    assert json.loads(call.result) == ["say a", "b", ["answer", "prompt", "task", "word"]]
    assert tools._sum_hooks(one, "reward", tools.rewarding, 7) == 0.5
    talk = Prompt("say a", "0", turns=(Turn("user", ("say a",)),), columns={"word": "b"})
    one = Episode(replace(query, prompt=talk, opening=(" b",)), 0)
    assert json.loads(tools._make_call(one, "peek", {}, 7).result)[0] == [{"role": "user", "content": "say a"}]


def members(owner: type) -> list[str]:
    """What TRL takes for tools of an environment (GRPOTrainer, 1.16)."""
    names = [name for name, _ in inspect.getmembers(owner, inspect.isfunction)]
    return [name for name in names if name not in ("reset", "get_reward") and not name.startswith("_")]
