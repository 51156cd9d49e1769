"""Runs whose completions an engine draws: our own sampler, and the real vLLM where ``make engine`` has installed it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import mmgrpo
from mmgrpo.family import Drawable, families
from mmgrpo.types import Output, Prompt
from pipelines import vlm
from pipelines.vlm import qwen_vl
from tests import ROOT
from tests.libraries.families.examples import SEEN
from tests.tiny import tiny_checkpoint

PYTHON = ROOT / "build" / "engine" / "bin" / "python"
"""Of the environment of ``make engine``; another one by MMGRPO_ENGINE."""


def lengths(prompts: list[Prompt], outputs: list[Output]) -> list[float]:
    """Reward: letters of the answer, of which tiny models draw different ones."""
    return [len(output.text) % 7 / 7 for output in outputs]  # type: ignore[union-attr]


def run(folder: Path, name: str, **options: Any) -> Any:
    policy = vlm.policy(str(tiny_checkpoint(qwen_vl.tiny)), max_tokens=5, lora_rank=4)
    settings: dict[str, Any] = {"output_dir": str(folder), "name": name, "trackers": [], "save_every": 1, "steps": 3}
    settings |= {"group_size": 4, "prompts_per_step": 3, "optim": {"lr": 1e-2}, **options}
    return mmgrpo.train(policy, SEEN, [lengths], **settings)


@pytest.mark.slow
def test_a_run_with_an_engine_is_the_run_without_and_resumes_with_or_without_it(tmp_path):
    """Old log-probs are those of a forward pass and no more those of the sampler, which differ in rounding."""
    plain = run(tmp_path, "plain").metrics
    drawn = run(tmp_path, "drawn", rollout={"engine": "sampler"}).metrics
    assert [line["reward/lengths/mean"] for line in drawn] == [line["reward/lengths/mean"] for line in plain]
    assert [line["grad_norm"] for line in drawn] == pytest.approx([line["grad_norm"] for line in plain], rel=1e-3)
    assert max(line["ratio/first_minus_one"] for line in drawn) < 1e-5  # rows are packed with others
    assert max(line["rollout/sampler_gap"] for line in drawn) < 1e-6
    run(tmp_path, "half", steps=2, rollout={"engine": "sampler"})
    half = run(tmp_path, "half", resume=True, rollout={"engine": "sampler"}).metrics
    names = [name for name in half[-1] if not name.startswith(("time/", "memory", "seconds", "run"))]
    assert [half[-1][name] for name in names] == [drawn[-1][name] for name in names]
    run(tmp_path, "other", steps=2, rollout={"engine": "sampler"})
    assert run(tmp_path, "other", resume=True).metrics[-1]["loss"] == pytest.approx(plain[-1]["loss"], abs=1e-5)


@pytest.mark.parametrize("name", sorted(families()))
def test_every_family_takes_an_engine_or_refuses_it_before_it_loads(name, tmp_path):
    from mmgrpo.config.settings import Engine, config_class
    from mmgrpo.family import refuse_engine

    owner = families()[name]
    config = config_class(owner.sections)()
    config.model.family, config.rollout = name, Engine(engine="vllm")
    if isinstance(owner, Drawable) and "vllm" in owner.engines:
        refuse_engine(config, owner)
    else:
        with pytest.raises(ValueError, match="rollout.engine"):
            refuse_engine(config, owner)


@pytest.mark.slow
def test_vllm_draws_with_the_trainers_weights_and_a_wrong_sync_is_caught(tmp_path):
    """Three rounds of adapters with images, videos and text; then one tensor forgotten, swapped, stale, unknown."""
    python = Path(os.environ.get("MMGRPO_ENGINE", PYTHON))
    if not python.exists():
        pytest.skip(f"{python}: vLLM is not installed there; run 'make engine' (3 GB)")
    command = [str(python), "-m", "tests.libraries.engines.worker", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert max(found["gaps"]) < 1e-5 and found["after"] < 1e-5 and found["distinct"] > 6
    for fault in ("forgotten", "unknown"):
        assert "another model" in found[fault]
    for fault in ("swapped", "stale"):
        assert "nothing was trained" in found[fault]
