"""Early stopping: after which evaluation a run ends, that a resumed run ends there too, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.config.needs import HELDOUT, moot
from mmgrpo.config.settings import Eval, Optim
from mmgrpo.rounds.callback import Choices
from mmgrpo.rounds.early_stopping import EarlyStopping
from mmgrpo.scoring import Scorer
from mmgrpo.trainer import Trainer
from mmgrpo.update import LossRecipe
from tests.building import near_one, trainer
from tests.toys import toy_policy, toy_prompts

NAN = float("nan")


def following(patience: int, means, sign: float = 1.0) -> EarlyStopping:
    stopping = EarlyStopping(patience, "reward", float(sign))
    for number, mean in enumerate(means):
        stopping.observe(10 * number, {"reward": [mean, mean]})
    return stopping


def test_the_example_of_the_module():
    means = [0.2, 0.5, 0.4, 0.5, 0.3]
    assert [bool(following(3, means[:count]).ended()) for count in range(6)] == [False] * 5 + [True]
    section = following(3, means).summary()["stopped"]
    assert section == {"reward": "reward", "patience": 3, "best": 0.5, "best_step": 10}
    assert following(3, means[:4]).summary() == {}


@pytest.mark.parametrize(
    ("patience", "means", "sign", "ended"),
    [
        (0, [0.5] * 9, 1, False),
        (1, [0.5], 1, False),
        (1, [0.5, 0.5], 1, True),  # an equal one is no new best
        (2, [0.5, 0.4, 0.6, 0.5], 1, False),
        (2, [0.5, 0.4, 0.3], -1, False),  # a smaller one is better
        (2, [0.3, 0.4, 0.5], -1, True),
        (2, [0.5, NAN, NAN], 1, True),  # what nothing was scored of is no new best
        (2, [NAN, NAN, 0.1], 1, False),
        (2, [NAN, NAN, NAN], 1, True),
    ],
)
def test_a_run_ends_after_evaluations_in_a_row_without_a_new_best(patience, means, sign, ended):
    assert bool(following(patience, means, sign).ended()) is ended


def test_a_mean_is_of_the_prompts_that_could_be_scored():
    stopping = EarlyStopping(1, "reward")
    stopping.observe(0, {"other": [9.0], "reward": [0.25, NAN, 0.75]})
    assert stopping.means == [(0, 0.5)]


def score(prompts, outputs):
    return [0.0] * len(outputs)


def test_what_is_followed_is_the_first_trained_reward_or_the_one_that_is_named():
    scorers = [Scorer("seen", score, weight=0.0), Scorer("cost", score, weight=-2.0), Scorer("good", score)]
    first, seen, good = (stopping(by=name, scorers=scorers) for name in ("", "seen", "good"))
    assert [(one.reward, one.sign) for one in (first, seen, good)] == [("cost", -1), ("seen", 1), ("good", 1)]
    with pytest.raises(ValueError, match=r"eval\.patience_reward.*'god'.*'good'"):
        stopping(by="god", scorers=scorers)
    with pytest.raises(ValueError, match=r"eval\.patience"):
        stopping(scorers=[])


def stopping(by="", scorers=(), steps=10, every=4) -> EarlyStopping:
    """Of a patience of two evaluations."""
    loss = LossRecipe.of("ppo", "per_sample")
    return EarlyStopping.of(Choices(loss, Optim(), scorers, 2, by, steps=steps, every=every))


@pytest.mark.parametrize(
    ("steps", "every", "message"), [(10, 5, r"eval\.every=5.*1 evaluation .*at most 4"), (2, 1, "lower it")]
)
def test_a_patience_that_could_end_nothing_is_refused(steps, every, message):
    with pytest.raises(ValueError, match=rf"eval\.patience: got 2.*{message}"):
        stopping(scorers=[Scorer("good", score)], steps=steps, every=every)


@pytest.mark.parametrize(
    ("settings", "heldout", "message"),
    [
        ({}, True, r"eval\.every"),
        ({"every": 4}, False, r"data\.heldout"),
        ({"every": 4, "skip": True}, True, r"eval\.skip=true"),
    ],
)
def test_a_patience_needs_evaluations_of_held_out_prompts(settings, heldout, message):
    without = moot({"eval": Eval(patience=2, **settings)}, {HELDOUT: heldout})
    assert "eval.patience" in [one.name for one in without if re.search(message, str(one))]
    assert not moot({"eval": Eval(patience=2, every=4)}, {HELDOUT: True})


# ---- runs: a reward that is only logged and never changes


def flat_run(folder: Path, **settings: Any) -> Trainer:
    scorers = [Scorer("reward", near_one), Scorer("flat", score, weight=0.0)]
    followed: dict[str, Any] = {"patience": 2, "patience_reward": "flat", "every": 2, "scorers": scorers}
    settings = {"steps": 9, "lr": 1e-3, "heldout": toy_prompts(2), **followed, **settings}
    return trainer(toy_policy(steps=3), folder, toy_prompts(4), **settings)


def steps_of(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_without_a_new_best_ends_early_and_says_so(tmp_path, capsys):
    made = flat_run(tmp_path)
    summary = made.fit(tmp_path / "model")
    assert made.step == 4 and steps_of(tmp_path) == [1, 2, 3, 4]
    assert summary["stopped"] == {"reward": "flat", "patience": 2, "best": 0.0, "best_step": 0}
    assert "step 4 (eval.patience)" in capsys.readouterr().out
    assert (tmp_path / "checkpoints" / "step-000004").is_dir() and (tmp_path / "model").is_dir()
    assert summary["eval"]["difference"]["reward"]["mean"] != 0, "it is evaluated after the last step"


def test_a_run_that_improves_goes_on_to_its_end(tmp_path, capsys):
    made = flat_run(tmp_path, patience_reward="", lr=1e-2)
    assert "stopped" not in made.fit() and made.step == 9 and "eval.patience" not in capsys.readouterr().out


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(rounds, tmp_path):
    """Killed before the first evaluation, with one due, and after one."""
    expected = flat_run(tmp_path / "whole").fit()
    killed = flat_run(tmp_path / "cut")
    killed._evaluate_before()
    for _ in range(rounds):
        killed._evaluate_between()
        start = killed.step
        killed.run_round()
        killed.evaluation_due = killed.step // 2 > start // 2
    killed.save()
    resumed = flat_run(tmp_path / "cut")
    assert resumed.resume() and resumed.step == rounds
    assert resumed.fit() == expected and steps_of(tmp_path / "cut") == steps_of(tmp_path / "whole")


def test_a_run_that_ended_early_goes_on_with_more_patience_and_not_without(tmp_path):
    expected = flat_run(tmp_path).fit()
    again, further = flat_run(tmp_path), flat_run(tmp_path, patience=3)
    assert again.resume() and again.fit() == expected and again.step == 4
    assert further.resume() and further.fit()["stopped"]["patience"] == 3 and further.step == 6
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5, 6]
