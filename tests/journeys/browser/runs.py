"""Quick runs, one of each modality, as the browser is to see them."""

from __future__ import annotations

import json
from pathlib import Path

from mmgrpo.toy import scenes
from pipelines.speech import whisper
from pipelines.visual import sd3, wan
from pipelines.vlm import qwen_vl
from tests.journeys.cli import quick
from tests.journeys.cli.running import call

KINDS = ("pictures", "clips", "texts", "sounds")
"""Names of the runs: what their policies make or are asked about."""
MARK = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
HOSTILE = "<img src=x onerror=hacked=1>"
"""The name of a run's folder, and what all texts in it are: mark-up that would tell if it were run."""


def make_runs(folder: Path) -> Path:
    """Two optimizer steps of a tiny model of each modality; the folder of the runs."""
    runs, models = folder / "runs", folder / "models"
    media = folder / "media"
    for path in (runs, models, media):
        path.mkdir(parents=True)
    # Samples one at a time, with so many steps and tokens that a visitor can cancel them.
    slow, long = ["--sampling.evaluation-steps", 30, "--eval.batch-size", 1], ["--sampling.max-tokens", 512]
    quick.write_media(media)
    few = ["--steps", 2, "--save-every", 2, "--eval.every", 1]
    words = sd3.tiny_words(models / "words", scenes.vocabulary())
    tree = ["--sampling.plan", "branch_tree(splits=[0, 1], factor=2)", "--algorithm.preset", "branch_grpo"]
    call("train", *quick.visual(words, runs, "--name", "pictures", *few, *tree, *slow))
    films = quick.visual_recipe("demo_video", wan.tiny(models / "wan"), runs, media)
    call("train", *films, "--name", "clips")
    looks = quick.vlm(qwen_vl.tiny(models / "qwen"), media, runs, *quick.questions(folder, "exact", ("image",)))
    small = ["--data.prompts-per-step", 2, "--data.group-size", 2]
    call("train", "--model.family", "qwen_vl", *looks, *small, *long, "--rewards", "task", "--name", "texts")
    heard = ["--recipe", "whisper_adapt", "--model.path", whisper.tiny(models / "whisper"), "--output-dir", runs]
    call("train", *heard, *quick.SPEECH, "--name", "sounds")
    return runs


def make_hostile(folder: Path) -> Path:
    """A run whose name, settings, metrics, prompts and completions are mark-up that would tell if it were run."""
    run, mark = folder / HOSTILE, MARK
    (run / "samples").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "config.yaml").write_text(json.dumps({"name": mark, "model": {"path": mark}, mark: mark}))
    rows = [{"step": step, mark: float(step), f"reward/{mark}/mean": 1.0} for step in (1, 2, 3)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    row = {
        "id": mark,
        "task": mark,
        "prompt": mark,
        "meta": {mark: mark},
        "media": [mark],
        "aligned": [],
        "answer": mark,
    }
    text = json.dumps({**row, "rewards": {mark: 1}, "completion": mark})
    (run / "samples" / "before.jsonl").write_text(f"{text}\n")
    return run
