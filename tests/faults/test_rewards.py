"""Bad rewards: what comes of each is a named error or the right score, and nothing else is changed by it.

``MMGRPO_FAULTS=full`` also calls every one of them in a process of its own.
"""

from __future__ import annotations

import builtins
import math
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from mmgrpo.rewards import scorer
from mmgrpo.scoring import Scorer, score_outputs
from mmgrpo.scoring.process import RewardProcess
from mmgrpo.types import Image, Media, Prompt, Turn
from tests.faults.bad_rewards import ALONE, ENDS, ERRORS, HANGS, SCORES, right
from tests.journeys.cli.running import is_running
from tests.processes import copies
from tests.unit.scoring.serving import until

FULL = os.environ.get("MMGRPO_FAULTS") == "full"
ANY = "tests.faults.bad_rewards:any_of"
RIGHT = [0.25, 0.5, 0.75]


def batch(name: str, **meta: Any) -> tuple[list[Prompt], list[Image]]:
    """Three pictures of one prompt whose fields are all in use."""
    shown = Media("image", Image(torch.ones(3, 2, 2)), {"fps": 2})
    meta = {"size": [4, 4], "boxes": [[0, 0, 1, 1]], "file": "", **meta}
    prompt = Prompt(name, "1", ["a", "b"], "count", meta, (Turn("user", (shown, name)),))
    return [prompt] * 3, [Image(torch.full((3, 4, 4), value)) for value in RIGHT]


def settings() -> list[Any]:
    """What a run depends on and a reward could change."""
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    torch_settings = [torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads()]
    more = [torch.is_grad_enabled(), torch.get_float32_matmul_precision(), deterministic]
    return [*torch_settings, *more, os.getcwd(), handlers, sys.stdout, sys.stderr, math.isfinite, builtins.float]


def score(reward: Scorer, prompts: Sequence[Prompt], outputs: Sequence[Image]) -> list[float]:
    """The scores, NaN where they are not valid; whatever the reward does, it must change nothing."""
    given = list(prompts), list(outputs)
    before, state = repr([list(prompts), list(outputs)]), settings()
    try:
        scores = score_outputs([reward], prompts, outputs)
    finally:
        assert settings() == state
        assert (list(map(id, prompts)), list(map(id, outputs))) == tuple(list(map(id, some)) for some in given)
        assert repr([list(prompts), list(outputs)]) == before
    good = score_outputs([Scorer("good", lambda p, o: right(o))], prompts, outputs)
    assert good.values[:, 0].tolist() == RIGHT and bool(good.valid.all())
    return torch.where(scores.valid, scores.values, math.nan)[:, 0].tolist()


@pytest.fixture(scope="module")
def process() -> Iterator[Scorer]:
    """Any bad reward, in a process of its own."""
    with copies():
        reward = scorer(ANY)
        yield reward
    close(reward)


def close(reward: Scorer) -> None:
    assert isinstance(reward.fn, RewardProcess)
    reward.fn.close()


# ---- in the process of the run


@pytest.mark.parametrize("name", SCORES)
def test_here_scores_are_right_whatever_else_it_does(name):
    reward, expected = SCORES[name]
    assert score(Scorer("bad", reward), *batch(name)) == pytest.approx(expected, rel=0, nan_ok=True)


@pytest.mark.parametrize("name", ERRORS)
def test_here_anything_else_than_numbers_is_an_error_that_names_the_reward(name):
    reward, message = ERRORS[name]
    with pytest.raises((ValueError, RuntimeError), match=f"'bad'.*{message}") as error:
        score(Scorer("bad", reward), *batch(name))
    assert len(str(error.value)) < 3000


EXCEPTIONS = [
    kind
    for kind in vars(builtins).values()
    if isinstance(kind, type) and issubclass(kind, BaseException) and not issubclass(kind, BaseExceptionGroup)
]


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_every_exception_but_the_users_interruption_is_an_error_that_names_the_reward(kind):
    given = ("utf-8", b"", 0, 1, "why") if kind is UnicodeDecodeError else ("utf-8", "", 0, 1, "why")
    error = kind(*given[5 if not issubclass(kind, UnicodeError) else kind is UnicodeTranslateError :])
    error = UnicodeError() if kind is UnicodeError else error

    def reward(prompts: Any, outputs: Any) -> None:
        raise error

    expected = kind if kind is KeyboardInterrupt else RuntimeError
    with pytest.raises(expected) as failure:
        score(Scorer("bad", reward), *batch(""))
    if kind is not KeyboardInterrupt:
        assert str(failure.value).startswith("reward 'bad' failed") and kind.__name__ in str(failure.value)
        assert failure.value.__cause__ is error


def test_here_a_closed_stream_is_an_error(monkeypatch, tmp_path):
    with (tmp_path / "stdout").open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(RuntimeError, match="'bad'.*stdout"):
            score(Scorer("bad", lambda p, o: [stream.close(), 1.0, 1.0]), *batch(""))


def test_a_trusted_reward_that_changes_pixels_is_found_out():
    """It is given the tensors themselves, for speed."""
    prompts, outputs = batch("")
    given = []

    def fills(prompts, outputs):
        given.extend(output.pixels for output in outputs)
        outputs[1].pixels.mul_(2)
        return [1.0] * len(outputs)

    with pytest.raises(RuntimeError, match="'fast'.*place"):
        score_outputs([Scorer("fast", fills, trusted=True)], prompts, outputs)
    assert all(tensor is output.pixels for tensor, output in zip(given, outputs, strict=True))


# ---- in a process of its own


@pytest.mark.slow
@pytest.mark.parametrize("name", SCORES if FULL else ["no numbers", "fills pixels", "prints megabytes"])
def test_there_scores_are_right_too(name, process):
    assert score(process, *batch(name)) == pytest.approx(SCORES[name][1], rel=0, nan_ok=True)
    if name.startswith(("other", "no gradients")):
        close(process)  # the settings of its own process are its own


@pytest.mark.slow
@pytest.mark.parametrize("name", ERRORS if FULL else ["exits with 0", "a dict", "too few", "an error without words"])
def test_there_errors_are_the_same(name, process):
    with pytest.raises((ValueError, RuntimeError), match=f"any_of.*{ERRORS[name][1]}") as error:
        score(process, *batch(name))
    assert len(str(error.value)) < 3000
    assert score(process, *batch("fills pixels")) == RIGHT


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDS if FULL else ["os._exit(0)", "segmentation fault"])
def test_what_ends_its_process_is_an_error_and_the_next_batch_has_a_new_one(name, process):
    with pytest.raises(RuntimeError, match=f"any_of.*3.*{ENDS[name][1]}"):
        score(process, *batch(name))
    assert score(process, *batch("fills pixels")) == RIGHT


@pytest.mark.slow
@pytest.mark.parametrize("name", HANGS if FULL else ["searches for ever"])
def test_what_never_returns_is_ended_by_its_time_out(name, copied):
    reward = scorer(f"{ANY}(timeout=0.5)")
    with pytest.raises(RuntimeError, match="any_of.*0.5.*timeout=2"):
        score(reward, *batch(name))
    assert reward.fn._process.poll() == -signal.SIGKILL  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in ALONE if n not in HANGS] if FULL else ["patches math"])
def test_there_nothing_reaches_the_run(name, process):
    try:
        assert score(process, *batch(name)) == RIGHT
    finally:
        close(process)


@pytest.mark.slow
def test_children_end_with_their_process(process, tmp_path):
    file = tmp_path / "children"
    assert score(process, *batch("leaves children", file=str(file))) == RIGHT
    children = [int(number) for number in file.read_text().split()]
    assert [is_running(child) for child in children] == [True, True]
    close(process)
    until(lambda: not any(map(is_running, children)))
