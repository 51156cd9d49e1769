"""Runs whose completions an engine draws: our own sampler, and the real vLLM where ``make engine`` has installed it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mmgrpo
from mmgrpo.family import families
from mmgrpo.types import Output, Prompt
from pipelines import vlm
from pipelines.vlm import qwen_vl
from tests import ROOT
from tests.libraries.families.examples import EXAMPLES, SEEN
from tests.tiny import maker, tiny_checkpoint

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
    if owner.engines and "vllm" in owner.engines.names:
        refuse_engine(config, owner)
    else:
        with pytest.raises(ValueError, match="rollout.engine"):
            refuse_engine(config, owner)


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_an_engine_that_is_not_installed_is_refused_before_a_model_is_loaded(options, monkeypatch, tmp_path):
    from mmgrpo import family
    from mmgrpo.cli.train import main
    from pipelines import pretrained

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(family, "find_spec", lambda name: None)
    monkeypatch.setattr(pretrained, "check_weights", lambda *_: pytest.fail("weights are read"))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "yes ?", "answer": "yes"}\n')
    model = ["--model.family", "qwen_vl", "--model.path", str(tiny_checkpoint(qwen_vl.tiny)), "--model.device", "cpu"]
    run = ["--data.train", "rows.jsonl", "--rewards", "exact", "--data.prompts-per-step", "1", "--eval.skip"]
    with pytest.raises((ModuleNotFoundError, ValueError), match=r"rollout\.engine: vllm needs vLLM"):
        main([*model, *run, "--rollout.engine", "vllm", *options])
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize("name", ["sd3", "stable_diffusion"])
def test_a_denoising_family_draws_with_a_network_of_its_own(name):
    """The same samples, also after an update of the trained network."""
    from mmgrpo.config.settings import Engine
    from tests.libraries.families.test_battery import config_of, rollout_of

    owner = families()[name]
    assert owner.engines is not None
    config = replace(config_of(name, str(tiny_checkpoint(maker(name)))), rollout=Engine(engine="sampler"))
    alone, served = (owner.policy(config, "cpu", EXAMPLES[name].prompts) for _ in range(2))
    owner.engines.draw(owner, config, served, "cpu", 1, 0, "")
    for policy in (alone, served):
        with torch.no_grad():
            for one in policy.network.parameters():
                one *= 1.01
    one, other = rollout_of(name, alone), rollout_of(name, served)
    assert torch.equal(one.decisions.log_probs, other.decisions.fields["sampler_log_probs"])
    torch.testing.assert_close(one.decisions.log_probs, other.decisions.log_probs, rtol=0, atol=1e-4)
    owner.engines.end(served)


def test_a_family_draws_samples_without_likelihood_with_a_network_of_its_own():
    """As the policy itself, and refused where prompts of one round would be divided."""
    from mmgrpo.config.settings import Engine
    from tests.libraries.families.test_battery import config_of, rollout_of

    owner = families()["sd3"]
    assert owner.engines is not None
    config = replace(config_of("sd3", str(tiny_checkpoint(maker("sd3")))), rollout=Engine(engine="sampler"))
    config = replace(config, sampling=replace(config.sampling, policy="matching"))
    alone, served = (owner.policy(config, "cpu", EXAMPLES["sd3"].prompts) for _ in range(2))
    owner.engines.draw(owner, config, served, "cpu", 1, 0, "")
    for policy in (alone, served):
        with torch.no_grad():
            for one in policy.network.parameters():
                one *= 1.01
    one, other = rollout_of("sd3", alone), rollout_of("sd3", served)
    assert torch.equal(one.steps.clean, other.steps.clean)
    assert torch.equal(one.decisions.log_probs, other.decisions.log_probs)
    owner.engines.end(served)


@pytest.mark.slow
@pytest.mark.parametrize("lora", ["merged", "adapter", "whole"])
def test_vllm_draws_with_the_trainers_weights_and_a_wrong_sync_is_caught(lora, tmp_path):
    """Three rounds with images, videos and text, of adapters, or of the whole network, whose output layer is tied to
    its embeddings and whose completions are shown images by a tool; then one tensor forgotten, swapped, stale, unknown.
    Sent by themselves, adapters also draw a run a round ahead, behind HTTP."""
    python = Path(os.environ.get("MMGRPO_ENGINE", PYTHON))
    if not python.exists():
        pytest.skip(f"{python}: vLLM is not installed there; run 'make engine' (3 GB)")
    command = [str(python), "-m", "tests.libraries.engines.worker", str(tmp_path), lora]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    limit = 1e-4 if lora == "whole" else 1e-5  # its numbers are larger, and so is their rounding
    assert max(found["gaps"]) < limit and found["after"] < limit and found["distinct"] > 6
    assert len({*found["sent"]}) == (2 if lora == "adapter" else 1)  # all each time, or once
    assert ("7" in found["results"]) == (lora == "whole") and (found["shown"] > 1) == (lora == "whole")
    if lora == "adapter":
        assert found["sent"][1:] == [found["sent"][1]] * 2 and 2 * found["sent"][1] < found["sent"][0]
        assert [line["rollout/staleness"] for line in found["ahead"]] == [0, 1, 1, 1]
        assert all(line["rollout/sampler_gap_most"] < 1e-5 and line["grad_norm"] > 0 for line in found["ahead"])
    for fault in ("forgotten", "unknown"):
        assert "another model" in found[fault]
    for fault in ("swapped", "stale"):
        assert "nothing was trained" in found[fault]
