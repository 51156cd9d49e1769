"""SIGINT and SIGTERM: a checkpoint of the last round, and a run that goes on as if it had never been stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch

from mmgrpo.runtime.progress import Interrupted
from tests.building import first_number, trainer
from tests.journeys.cli.running import environment, metrics
from tests.toys import toy_policy, toy_prompts

SIGNALS = [signal.SIGINT, signal.SIGTERM]


def fresh(folder, **changes):
    settings = {"heldout": toy_prompts(2), "steps": 6, "updates": 2, "ema": 0.8, "save_every": 1000, **changes}
    return trainer(toy_policy("random_window(size=2)"), folder, toy_prompts(5), **settings)


def acting(at, act):
    """A reward in whose ``at``-th call something happens."""
    calls = []

    def reward(prompts, outputs):
        calls.append(0)
        if len(calls) == at:
            act()
        return first_number(prompts, outputs)

    return reward


def sends(number, at):
    return acting(at, lambda: os.kill(os.getpid(), number))


def fails():
    raise OSError("server gone")


def checkpoints(folder):
    return sorted(path.name for path in (folder / "checkpoints").glob("*"))


def resumed(folder):
    made = fresh(folder)
    made.resume()
    return made.fit()


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(("call", "saved"), [(1, []), (2, []), (3, ["step-000002"]), (5, ["step-000006"])])
def test_a_signal_while_samples_are_scored_saves_the_last_round_and_the_run_goes_on(
    number, call, saved, tmp_path, capsys
):
    """Calls: before; rounds one, two, three (two steps each); after."""
    whole = fresh(tmp_path / "whole")
    expected = whole.fit()
    handlers = [signal.getsignal(one) for one in SIGNALS]
    stopped = fresh(tmp_path / "cut", reward=sends(number, call))
    with pytest.raises(Interrupted) as caught:
        stopped.fit()
    assert caught.value.status == 128 + number and [signal.getsignal(one) for one in SIGNALS] == handlers
    assert checkpoints(tmp_path / "cut") == saved
    assert ("resume with: resume=True" in capsys.readouterr().out) == bool(saved)
    assert resumed(tmp_path / "cut") == expected
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_within_an_update_lets_the_round_end(number, tmp_path):
    whole, stopped = fresh(tmp_path / "whole"), fresh(tmp_path / "cut")
    expected, score, calls = whole.fit(), stopped.policy.score, []

    def signalling(rollout, part, names):
        calls.append(0)
        if len(calls) == 3:
            os.kill(os.getpid(), number)
        return score(rollout, part, names)

    stopped.policy.score = signalling
    with pytest.raises(Interrupted):
        stopped.fit()
    (saved,) = checkpoints(tmp_path / "cut")
    assert stopped.step % 2 == 0 and saved == f"step-{stopped.step:06d}"
    assert resumed(tmp_path / "cut") == expected
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


def test_a_signal_while_the_average_stands_in_for_the_weights_saves_the_weights(tmp_path):
    stopped = fresh(tmp_path, reward=sends(signal.SIGTERM, 5))
    with pytest.raises(Interrupted):
        stopped.fit()
    whole = fresh(tmp_path / "whole")
    whole.fit()
    other = dict(whole.policy.network.named_parameters())
    assert all(torch.equal(value, other[name]) for name, value in stopped.policy.network.named_parameters())


def test_an_error_saves_the_last_round_too(tmp_path):
    broken = fresh(tmp_path / "cut", reward=acting(4, fails))
    with pytest.raises(RuntimeError, match="server gone"):
        broken.fit()
    assert checkpoints(tmp_path / "cut") == ["step-000004"]
    whole = fresh(tmp_path / "whole")
    assert resumed(tmp_path / "cut") == whole.fit()
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


def test_the_trained_model_is_saved_before_the_last_evaluation(tmp_path):
    with pytest.raises(RuntimeError, match="server gone"):
        fresh(tmp_path / "cut", reward=acting(5, fails)).fit(tmp_path / "cut" / "model")
    assert (tmp_path / "cut" / "model" / "run.json").is_file() and checkpoints(tmp_path / "cut") == ["step-000006"]


def run(code, **more):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), **more)


def test_a_second_signal_ends_the_process_at_once():
    code = """
import os, signal, time
from mmgrpo.runtime.progress import Interruption
with Interruption(grace=60):
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""
    process = run(code, timeout=200)
    assert process.returncode == -signal.SIGTERM and "again to stop at once" in process.stderr


def test_a_process_that_cannot_stop_ends_after_its_time_of_grace():
    code = """
import os, signal, time
from mmgrpo.runtime.progress import Interruption
with Interruption(grace=0.1):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""
    process = run(code, timeout=200)
    assert process.returncode == 143 and "0.1 s" in process.stderr
