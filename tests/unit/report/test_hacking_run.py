"""A run that is made to hack its reward: the alarm is in its log, its summary and its report."""

from __future__ import annotations

import json

import pytest

import mmgrpo
from mmgrpo.report.run_folder import read_run
from pipelines import visual


def contrast(prompts, outputs):
    """Mean difference of neighbouring pixels, a naive measure of sharpness: texture raises it, whatever is drawn."""
    return [
        float(output.pixels.diff(dim=-1).abs().mean() + output.pixels.diff(dim=-2).abs().mean()) for output in outputs
    ]


@pytest.mark.slow
@pytest.mark.nightly
def test_a_run_that_learns_texture_raises_the_alarm(tmp_path, capsys):
    run = mmgrpo.train(
        visual.policy(
            "embedded:visual/scenes/base", preset="flow_grpo_fast", lora_rank=8, steps=4, kernel="cps(a=0.8)"
        ),
        "embedded:visual/scenes/train.jsonl",
        [contrast, "scene_clean(weight=0)"],
        preset="flow_grpo_fast",
        steps=12,
        heldout="embedded:visual/scenes/heldout.jsonl",
        prompts_per_step=4,
        group_size=8,
        optim={"lr": 4e-3},
        evaluation={"prompts": 32, "every": 4},
        output_dir=str(tmp_path),
        name="hacked",
    )
    alarm = run.summary["alarms"][-1]
    assert (alarm["trained"], alarm["held_out"], alarm["step"]) == ("contrast", "scene_clean", 12)
    assert alarm["gain"]["low"] > 0 > alarm["loss"]["high"]
    assert "possible reward hacking: from step 0 to 12 the trained reward 'contrast'" in capsys.readouterr().out
    assert "Possible reward hacking" in (run.folder / "report.html").read_text()
    assert json.loads((run.folder / "evaluations" / "after.json").read_text())["trained"] == {"contrast": 1.0}
    assert [found.as_dict() for found in read_run(run.folder).alarms] == run.summary["alarms"]
