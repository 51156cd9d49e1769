"""Frozen bases in 8 and 4 bits under LoRA: what is sampled is scored by the same weights, and only adapters train."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.config.settings import config_class
from mmgrpo.family import families, family
from pipelines.quantized import values
from tests.libraries.families.test_battery import ADAPTED, config_of, gradients, policy_of, rescored, rollout_of, shake

NAMES = ["sd3", "wan", "stable_diffusion", "flux", "causal_lm", "qwen_vl", "whisper", "flow_speech"]
"""Families of each kind: transformers and a UNet of diffusers, of transformers with and without media, and our own."""
TOLERANCE = {"8bit": 1e-2, "4bit": 1e-3}
"""Of log-probabilities in batches of other sizes: rows of 8 bits share columns of outliers, and one row of 4 bits has a
kernel of its own."""
NEEDED = pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")


@pytest.mark.parametrize("how", ["8bit", "4bit"])
@pytest.mark.parametrize("name", ["sd3", "causal_lm", "flow_speech", "stable_audio"])
def test_it_needs_adapters_and_the_package_before_anything_is_loaded(name, how, monkeypatch):
    def config(**model: Any) -> Any:
        made = config_class(families()[name].sections)()
        return replace(made, model=replace(made.model, path="nowhere", quantize=how, **model))

    with pytest.raises(ValueError, match=rf"model\.quantize.*{how}.*model\.lora_rank=0"):
        config().check()
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ValueError, match=rf"model\.quantize.*'{how}'"):
        family(name).check(config(lora_rank=2))


@NEEDED
@pytest.mark.parametrize("how", ["8bit", "4bit"])
@pytest.mark.parametrize("name", NAMES)
def test_samples_are_scored_by_the_quantized_weights_that_drew_them(name, how, tiny):
    assert name in ADAPTED
    policy = policy_of(name, tiny(name), lora_rank=2, quantize=how)
    shake(policy, 0.1)
    rollout = rollout_of(name, policy)
    own = rollout.decisions.log_probs[rollout.decisions.loss_mask]
    torch.testing.assert_close(rescored(policy, rollout), own, rtol=0, atol=TOLERANCE[how])
    # The base is that of full precision up to the quantization, and no longer it.
    reference = rescored(policy, rollout, "reference.log_probs")
    plain = rescored(policy_of(name, tiny(name)), rollout)
    gap = (reference - plain).abs()
    assert gap.max() > 0 and (gap / (1 + plain.abs())).mean() < 0.05


@NEEDED
@pytest.mark.parametrize("how", ["8bit", "4bit"])
@pytest.mark.parametrize("name", ["sd3", "causal_lm"])
def test_only_adapters_have_gradients_and_they_are_those_over_what_the_base_stands_for(name, how, tiny):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    policy, plain = (policy_of(name, tiny(name), lora_rank=2, quantize=quantize) for quantize in (how, "none"))
    with torch.no_grad():
        for key, layer in policy.network.named_modules():
            if isinstance(layer, bitsandbytes.nn.Linear4bit | bitsandbytes.nn.Linear8bitLt):
                plain.network.get_submodule(key).weight.copy_(values(layer))  # type: ignore
    for one in (policy, plain):
        shake(one, 0.1)
    rollout = rollout_of(name, policy)
    found = [gradients(one, rollout, 7) for one in (policy, plain)]
    assert found[0].keys() == found[1].keys() and all(".lora_" in key for key in found[0])
    one, other = (torch.cat([gradient.flatten() for gradient in each.values()]) for each in found)
    assert torch.nn.functional.cosine_similarity(one, other, dim=0) > (0.95 if how == "8bit" else 0.999)


@NEEDED
@pytest.mark.parametrize("how", ["8bit", "4bit"])
def test_saved_adapters_go_on_over_the_quantized_base_and_merge_into_what_it_stands_for(how, tiny, tmp_path):
    from tests.libraries.pipelines.test_export import written

    options = {"lora_rank": 2, "lora_alpha": 6.0, "quantize": how}
    policy = policy_of("sd3", tiny("sd3"), **options)
    shake(policy, 0.3)
    rollout = rollout_of("sd3", policy)
    expected = rescored(policy, rollout)
    policy.save(tmp_path / "model")
    again = policy_of("sd3", tiny("sd3"), str(tmp_path / "model"), **options)
    assert torch.equal(rescored(again, rollout), expected)
    config = replace(config_of("sd3", tiny("sd3"), **options), name="a")
    folder = written("sd3", config, Path(tmp_path / "model"), "merged", tmp_path / "out")
    merged = rescored(policy_of("sd3", str(folder)), rollout)
    effect = (rescored(policy_of("sd3", tiny("sd3")), rollout) - expected).abs().max()
    assert (merged - expected).abs().max() < 0.2 * effect
