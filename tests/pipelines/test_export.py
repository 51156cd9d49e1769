"""Trained models in the files of other programs: read by diffusers and peft, at full strength without a header."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmgrpo.family import Exporter, families, family
from mmgrpo.runtime.saved_model import write_model
from pipelines.export import merge_adapters
from pipelines.visual.comfyui import WRITERS
from tests.families.examples import EXAMPLES
from tests.families.test_battery import ADAPTED, NAMES, config_of, policy_of, rescored, rollout_of, shake
from tests.tiny import tiny_checkpoint

LAYERS = {
    "stable_diffusion": ("unet", "StableDiffusionPipeline"),
    "sdxl": ("unet", "StableDiffusionXLPipeline"),
    "sd3": ("transformer", "StableDiffusion3Pipeline"),
    "flux": ("transformer", "FluxPipeline"),
    "flux2_klein": ("transformer", "Flux2KleinPipeline"),
    "qwen_image": ("transformer", "QwenImagePipeline"),
    "z_image": ("transformer", "ZImagePipeline"),
    "ltx_video": ("transformer", "LTXPipeline"),
    "wan": ("transformer", "WanPipeline"),
}
"""Family to the network's name in diffusers' pipeline and the pipeline's class."""
ALPHA = 6.0
"""With rank 2 the scale is 3, so that a file which loses it is seen."""


@pytest.fixture(scope="module")
def tiny() -> Any:
    from tests.building import module

    made: dict[str, str] = {}

    def folder(name: str) -> str:
        if name not in made:
            made[name] = str(tiny_checkpoint(module(name).tiny))
        return made[name]

    return folder


def trained(name: str, path: str, folder: Path, rank: int = 2) -> Any:
    """A policy whose adapters are not zero, and the folder in which a run would have saved it."""
    options = {"lora_rank": rank, "lora_alpha": ALPHA} if rank else {}
    policy = policy_of(name, path, **options)
    shake(policy, 0.3 if rank else 0.05)
    write_model(folder / "model", policy.save, "run", 1)
    config = replace(config_of(name, path, **options), name="a")
    return policy, config, folder / "model"


def written(name: str, config: Any, model: Path, form: str, output: Path, **options: Any) -> Path:
    one = family(name)
    assert isinstance(one, Exporter)
    given = {"dtype": "float32", "device": "cpu", "check": 0, **options}
    one.elsewhere.export(one, config, model, form, output, **given)
    return output


def products(network: Any) -> dict[str, torch.Tensor]:
    """What the adapters of a network of diffusers add to each weight."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, BaseTunerLayer)}
    return {name: layer.get_delta_weight(layer.active_adapters[0]).detach() for name, layer in layers.items()}  # type: ignore


@pytest.mark.parametrize("form", ["comfyui", "diffusers"])
@pytest.mark.parametrize("name", LAYERS)
def test_diffusers_reads_every_layer_at_full_strength_without_the_header(name, form, tiny, tmp_path):
    import diffusers

    policy, config, model = trained(name, tiny(name), tmp_path)
    [file] = written(name, config, model, form, tmp_path / "out").glob("*.safetensors")
    network, pipeline = LAYERS[name]
    pipe = getattr(diffusers, pipeline).from_pretrained(tiny(name))
    save_file(load_file(file), tmp_path / "bare.safetensors")  # no header
    pipe.load_lora_weights(str(tmp_path), weight_name="bare.safetensors")
    ours, theirs = products(policy.network), products(getattr(pipe, network))
    assert ours and {name for name, added in theirs.items() if added.any()} == ours.keys()
    for layer, added in ours.items():
        torch.testing.assert_close(theirs[layer], added, rtol=1e-5, atol=1e-7, msg=layer)
        ratio = float(theirs[layer].norm() / added.norm())
        assert ratio == pytest.approx(1.0, abs=1e-5), layer


@pytest.mark.parametrize("name", ["stable_diffusion", "sdxl"])
def test_kohyas_names_are_those_of_the_layers_with_underscores(name, tiny, tmp_path):
    policy, config, model = trained(name, tiny(name), tmp_path)
    tensors = load_file(written(name, config, model, "comfyui", tmp_path / "out") / "a.safetensors")
    layers = {f"lora_unet_{layer.replace('.', '_')}" for layer in products(policy.network)}
    assert tensors.keys() == {
        f"{layer}.{part}" for layer in layers for part in ("lora_down.weight", "lora_up.weight", "alpha")
    }
    assert {float(tensors[f"{layer}.alpha"]) for layer in layers} == {ALPHA}
    assert {len(tensors[f"{layer}.lora_down.weight"]) for layer in layers} == {2}


def test_names_of_wan_are_those_of_its_authors(tiny, tmp_path):
    _, config, model = trained("wan", tiny("wan"), tmp_path)
    tensors = load_file(written("wan", config, model, "comfyui", tmp_path / "out") / "a.safetensors")
    layers = {key.split(".lora")[0] for key in tensors if ".lora" in key}
    assert layers == {
        f"diffusion_model.blocks.{block}.{attn}.{part}"
        for block in range(2)
        for attn in ("self_attn", "cross_attn")
        for part in "qkvo"
    }


def test_two_networks_are_two_files(tmp_path):
    from pipelines.visual import wan_tiny

    path = str(wan_tiny.tiny(tmp_path / "tiny", version="2.2-14B"))
    _, config, model = trained("wan", path, tmp_path)
    for form, names in (
        ("comfyui", ["a_high_noise.safetensors", "a_low_noise.safetensors"]),
        ("diffusers", ["pytorch_lora_weights.safetensors", "transformer_2/pytorch_lora_weights.safetensors"]),
    ):
        folder = written("wan", config, model, form, tmp_path / form)
        assert sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.safetensors")) == names


@pytest.mark.parametrize("name", ["sd3", "causal_lm", "whisper"])
def test_peft_reads_what_is_written_for_it(name, tiny, tmp_path):
    from peft import PeftModel

    policy, config, model = trained(name, tiny(name), tmp_path)
    folder = written(name, config, model, "peft", tmp_path / "out")
    base = policy_of(name, tiny(name)).network
    theirs = products(PeftModel.from_pretrained(base, str(folder)).base_model.model)
    ours = products(policy.network)
    assert theirs.keys() == ours.keys() and ours
    for layer, added in ours.items():
        torch.testing.assert_close(theirs[layer], added, rtol=0, atol=0, msg=layer)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(config["target_modules"])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_merged_model_loads_as_its_base_and_is_the_policy(name, tiny, tmp_path):
    adapted = name in ADAPTED
    policy, config, model = trained(name, tiny(name), tmp_path, 2 if adapted else 0)
    rollout = rollout_of(name, policy)
    expected = rescored(policy, rollout)
    folder = written(name, config, model, "merged", tmp_path / "out")
    merged = policy_of(name, str(folder), **({"folder": ""} if name == "flow_speech" else {}))
    scored = rescored(merged, rollout)
    torch.testing.assert_close(scored, expected, rtol=1e-4, atol=5e-5)
    if adapted:  # which change the log-probabilities of some tiny models by no more than 1e-4
        effect = (rescored(policy_of(name, tiny(name)), rollout) - expected).abs().max()
        assert effect > 2e-5 and (scored - expected).abs().max() < 0.2 * effect
    assert {file.stat().st_mode & 0o044 for file in folder.rglob("*") if file.is_file()} == {0o044}


def test_a_merged_model_in_half_precision_has_the_bases_other_files(tiny, tmp_path):
    _, config, model = trained("sd3", tiny("sd3"), tmp_path)
    folder = written("sd3", config, model, "merged", tmp_path / "out", dtype="bfloat16")
    base = {file.relative_to(tiny("sd3")) for file in Path(tiny("sd3")).rglob("*") if file.is_file()}
    assert {file.relative_to(folder) for file in folder.rglob("*") if file.is_file()} == base
    weights = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}


def test_a_merged_model_is_compared_with_the_policy_before_it_is_written(tiny, tmp_path, monkeypatch):
    _, config, model = trained("causal_lm", tiny("causal_lm"), tmp_path)
    one: Any = family("causal_lm")
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"text": prompt.text}) + "\n" for prompt in EXAMPLES["causal_lm"].prompts))
    config = replace(config, data=replace(config.data, heldout=str(file)))
    done = one.elsewhere.export(
        one, config, model, "merged", tmp_path / "right", dtype="float32", device="cpu", check=2
    )
    assert "log-probabilities" in done

    def halved(network: Any) -> int:
        with torch.no_grad():
            for key, weight in network.named_parameters():
                if ".lora_B." in key:
                    weight *= 0.5
        return merge_adapters(network)

    monkeypatch.setattr("pipelines.export.merge_adapters", halved)
    with pytest.raises(RuntimeError, match="merged"):
        one.elsewhere.export(one, config, model, "merged", tmp_path / "wrong", dtype="float32", device="cpu", check=2)
    assert not (tmp_path / "wrong").exists() and not list(tmp_path.glob(".export-*"))


def test_formats_are_refused_before_anything_is_loaded(tiny, tmp_path):
    for name in NAMES:
        one = family(name)
        assert isinstance(one, Exporter)
        with pytest.raises(ValueError, match="--format.*comfy"):
            one.elsewhere.check(one, tmp_path, "comfy")
        if name not in WRITERS:
            with pytest.raises(ValueError, match=f"--format.*'{name}'"):
                one.elsewhere.check(one, tmp_path, "comfyui")
    _, _, model = trained("sd3", tiny("sd3"), tmp_path, rank=0)
    sd3: Any = family("sd3")
    for form in ("diffusers", "comfyui", "peft"):
        with pytest.raises(ValueError, match=f"--format.*{form}"):
            sd3.elsewhere.check(sd3, model, form)
    sd3.elsewhere.check(sd3, model, "merged")


def test_an_output_that_exists_is_left_alone(tiny, tmp_path):
    _, config, model = trained("sd3", tiny("sd3"), tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    with pytest.raises(ValueError, match="--output"):
        written("sd3", config, model, "diffusers", tmp_path / "out")


def test_a_module_without_a_name_elsewhere_is_named(tmp_path):
    pair = torch.zeros(2, 4), torch.zeros(4, 2)
    for name, layer in (("wan", "condition_embedder.time_proj"), ("ltx_video", "proj_in"), ("flux2_klein", "proj_out")):
        with pytest.raises(ValueError, match=layer):
            WRITERS[name]({layer: pair}, 2.0)


def test_every_family_can_be_exported():
    assert all(isinstance(one, Exporter) for one in families().values())
