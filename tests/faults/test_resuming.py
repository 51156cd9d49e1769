"""What a resumed run must notice, and what it must not lose."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from mmgrpo.runtime.finite import NotFinite
from mmgrpo.runtime.metrics import read_metrics
from tests.building import average_of, trainer
from tests.journeys.cli.running import metrics
from tests.toys import toy_policy, toy_prompts


def fresh(folder, run="a", **changes):
    made = trainer(
        toy_policy(), folder, toy_prompts(3), **{"steps": 6, "save_every": 2, "heldout": toy_prompts(2), **changes}
    )
    made.checkpoints.run = run
    return made


def test_an_evaluation_that_a_kill_prevented_is_made_up(tmp_path):
    def every_two(folder):
        made = fresh(folder)
        object.__setattr__(made.evaluation, "every", 2)
        return made

    every_two(tmp_path / "whole").fit()
    cut = every_two(tmp_path / "cut")
    measure = cut.measure

    def killed(title, prompts):
        if title == "step-000004":
            raise KeyboardInterrupt
        return measure(title, prompts)

    cut.measure = killed
    with pytest.raises(KeyboardInterrupt):
        cut.fit()
    assert not (tmp_path / "cut" / "evaluations" / "step-000004.json").exists()
    again = every_two(tmp_path / "cut")
    assert again.resume() and again.step == 4
    again.fit()

    def evaluations(folder):
        records = {path.name: json.loads(path.read_text()) for path in (folder / "evaluations").iterdir()}
        return {name: {k: v for k, v in record.items() if k != "seconds"} for name, record in records.items()}

    assert evaluations(tmp_path / "cut") == evaluations(tmp_path / "whole")
    assert evaluations(tmp_path / "cut").keys() == {"before.json", "step-000002.json", "step-000004.json", "after.json"}


def test_going_back_before_a_divergence_repeats_the_steps_from_there(tmp_path):
    whole = fresh(tmp_path / "whole")
    expected = whole.fit()
    shutil.copytree(tmp_path / "whole", tmp_path / "back")
    back = fresh(tmp_path / "back")
    assert back.resume(4) and back.step == 4
    assert [row["step"] for row in read_metrics(tmp_path / "back" / "metrics.jsonl")] == [1, 2, 3, 4]
    names = sorted(path.name for path in (tmp_path / "back" / "checkpoints").iterdir())
    assert names == ["abandoned-step-000006", "step-000004"]
    assert back.fit() == expected and metrics(tmp_path / "back") == metrics(tmp_path / "whole")


def test_nan_in_a_checkpoint_that_was_written_whole_is_not_resumed(tmp_path, monkeypatch):
    from mmgrpo.runtime import checkpoint

    made = fresh(tmp_path, save_every=2, ema=0.5)
    made.fit()
    monkeypatch.setattr(checkpoint, "refuse_tensors", lambda tensors, what: None)
    average_of(made).shadow[0].fill_(torch.nan)
    made.save()
    monkeypatch.undo()
    again = fresh(tmp_path, ema=0.5)
    assert again.resume() and again.step == 4
    with pytest.raises(NotFinite):
        checkpoint.load_checkpoint(tmp_path / "checkpoints" / "damaged-step-000006")
