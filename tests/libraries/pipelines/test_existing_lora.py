"""Adapters that exist already: read in every layout as diffusers and peft read them, continued and merged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmgrpo.config.conflicts import refuse_conflicts
from mmgrpo.family import family
from pipelines.existing_lora import ExistingLora
from pipelines.visual.comfyui import WRITERS
from tests.libraries.families.test_battery import config_of, policy_of, rescored, rollout_of, shake
from tests.libraries.pipelines.test_export import ALPHA, products, trained, written


def given(network: Any, path: Any, name: str = "", **options: Any) -> dict[str, torch.Tensor]:
    """What a file adds to each weight of a network."""
    names = WRITERS[name].targets if name in WRITERS else None
    factors = ExistingLora(str(path), names=names, **options).read(network)
    return {module: one.product().float() for module, one in factors.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys() and one
    for module, added in one.items():
        torch.testing.assert_close(added, other[module], rtol=1e-5, atol=1e-6, msg=module)


@pytest.mark.parametrize("form", ["diffusers", "comfyui", "peft"])
@pytest.mark.parametrize(
    "name",
    [
        "stable_diffusion",
        "sdxl",
        "sd3",
        "flux",
        "flux2_klein",
        "wan",
        "z_image",
        "causal_lm",
        "whisper",
    ],
)
def test_what_is_written_for_others_is_read_back(name, form, tiny, tmp_path):
    if form not in family(name).elsewhere().formats:  # type: ignore
        pytest.skip(f"{name} has no {form}")
    policy, config, model = trained(name, tiny(name), tmp_path)
    folder = written(name, config, model, form, tmp_path / "out")
    base = policy_of(name, tiny(name)).network
    same(given(base, folder, name), products(policy.network))
    same(given(base, model, name), products(policy.network))  # as a run saves it


@pytest.mark.parametrize("style", ["kohya", "lora_A", "lora.down", "processor", "bare"])
def test_spellings_of_one_file(style, tiny, tmp_path):
    """scale = alpha / rank = 3 / 2 where the file has alpha, else 1; B A of ones is the rank."""
    base = policy_of("stable_diffusion", tiny("stable_diffusion")).network
    module = "mid_block.attentions.0.transformer_blocks.0.attn1.to_out.0"
    width = dict(base.named_parameters())[f"{module}.weight"].shape[0]
    down, up = torch.ones(2, width), torch.ones(width, 2)
    short = module.removesuffix(".0")
    tensors = {
        "kohya": {
            f"lora_unet_{module.replace('.', '_')}.lora_down.weight": down,
            f"lora_unet_{module.replace('.', '_')}.lora_up.weight": up,
            f"lora_unet_{module.replace('.', '_')}.alpha": torch.tensor(3.0),
        },
        "lora_A": {f"unet.{module}.lora_A.weight": down, f"unet.{module}.lora_B.weight": up},
        "lora.down": {f"unet.{module}.lora.down.weight": down, f"unet.{module}.lora.up.weight": up},
        "processor": {
            f"unet.{short.replace('attn1.', 'attn1.processor.')}_lora.down.weight": down,
            f"unet.{short.replace('attn1.', 'attn1.processor.')}_lora.up.weight": up,
        },
        "bare": {f"{module}.lora_A.weight": down, f"{module}.lora_B.weight": up},
    }[style]
    save_file(tensors, tmp_path / "a.safetensors")
    expected = 2 * (1.5 if style == "kohya" else 1.0)
    same(given(base, tmp_path / "a.safetensors"), {module: torch.full((width, width), expected)})


def test_ranks_and_alphas_of_single_modules_and_of_rank_stabilized_adapters(tiny, tmp_path):
    """peft: alpha 4 at rank 2 is 2; a pattern sets 6 for one module, 3; with rslora 4 / sqrt(2)."""
    from peft import LoraConfig, PeftModel, get_peft_model

    for number, stabilized in enumerate((False, True)):
        base = policy_of("causal_lm", tiny("causal_lm")).network
        options: Any = {"alpha_pattern": {"q_proj": 6}, "rank_pattern": {"v_proj": 4}, "use_rslora": stabilized}
        made = get_peft_model(base, LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], **options))
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.requires_grad:
                    parameter.normal_()
        folder = tmp_path / str(number)
        made.save_pretrained(str(folder))
        theirs = products(
            PeftModel.from_pretrained(policy_of("causal_lm", tiny("causal_lm")).network, str(folder)).base_model.model
        )
        same(given(policy_of("causal_lm", tiny("causal_lm")).network, folder), theirs)


@pytest.mark.parametrize("name", ["sd3", "stable_diffusion", "causal_lm"])
def test_continued_adapters_are_the_given_ones_and_the_reference_keeps_them(name, tiny, tmp_path):
    first, _, model = trained(name, tiny(name), tmp_path)
    rollout = rollout_of(name, first)
    expected = rescored(first, rollout)
    for rank, alpha in ((2, ALPHA), (2, 2.0), (5, 7.0)):
        policy = policy_of(name, tiny(name), lora_path=str(model), lora_rank=rank, lora_alpha=alpha)
        gap = 0.0 if (rank, alpha) == (2, ALPHA) else 1e-4
        torch.testing.assert_close(rescored(policy, rollout), expected, rtol=gap, atol=gap)
        own = rollout_of(name, policy)  # the ratio begins at one
        torch.testing.assert_close(
            rescored(policy, own), own.decisions.log_probs[own.decisions.loss_mask], rtol=1e-4, atol=1e-4
        )
        shake(policy)
        assert (rescored(policy, rollout) - expected).abs().max() > 1e-4
        torch.testing.assert_close(rescored(policy, rollout, "reference.log_probs"), expected, rtol=gap, atol=gap)
        policy.save(tmp_path / f"saved-{rank}-{alpha}")
        again = policy_of(
            name,
            tiny(name),
            str(tmp_path / f"saved-{rank}-{alpha}"),
            lora_path=str(model),
            lora_rank=rank,
            lora_alpha=alpha,
        )
        assert torch.equal(rescored(again, rollout), rescored(policy, rollout))
        torch.testing.assert_close(rescored(again, rollout, "reference.log_probs"), expected, rtol=gap, atol=gap)


@pytest.mark.parametrize("name", ["sd3", "causal_lm"])
def test_merged_adapters_are_in_the_base(name, tiny, tmp_path):
    first, _, model = trained(name, tiny(name), tmp_path)
    rollout = rollout_of(name, first)
    expected = rescored(first, rollout)
    for rank in (0, 3):
        policy = policy_of(name, tiny(name), lora_path=str(model), lora_mode="merge", lora_rank=rank)
        policy.keep_reference()
        torch.testing.assert_close(rescored(policy, rollout), expected, rtol=1e-4, atol=1e-4)
        shake(policy, 0.02)
        torch.testing.assert_close(rescored(policy, rollout, "reference.log_probs"), expected, rtol=1e-4, atol=1e-4)
        policy.save(tmp_path / f"saved-{rank}")  # the whole network has them inside: they are not added twice
        again = policy_of(
            name, tiny(name), str(tmp_path / f"saved-{rank}"), lora_path=str(model), lora_mode="merge", lora_rank=rank
        )
        assert torch.equal(rescored(again, rollout), rescored(policy, rollout))


@pytest.mark.parametrize(
    ("name", "form"), [("sd3", "diffusers"), ("sd3", "comfyui"), ("flux", "comfyui"), ("causal_lm", "peft")]
)
def test_an_export_after_a_merge_adapts_the_published_base(name, form, tiny, tmp_path):
    _, _, model = trained(name, tiny(name), tmp_path / "first")
    options = {"lora_path": str(model), "lora_mode": "merge", "lora_rank": 3}
    policy = policy_of(name, tiny(name), **options)
    shake(policy, 0.1)
    policy.save(tmp_path / "second" / "model")
    config = replace(config_of(name, tiny(name), **options), name="a")
    folder = written(name, config, tmp_path / "second" / "model", form, tmp_path / "out")
    rollout = rollout_of(name, policy)
    plain = policy_of(name, tiny(name), lora_path=str(folder), lora_rank=16)
    torch.testing.assert_close(rescored(plain, rollout), rescored(policy, rollout), rtol=1e-4, atol=1e-4)


def broken(model: Path, folder: Path, change: Any) -> str:
    [file] = model.glob("*.safetensors")
    tensors = load_file(file)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "broken.safetensors")
    return str(folder / "broken.safetensors")


CHANGES = {
    "unknown": (lambda t: t.update({"transformer.nowhere.lora_A.weight": torch.ones(2, 4)}), "1 of its.*nowhere"),
    "half": (lambda t: t.pop(next(key for key in t if ".lora_B." in key)), "down only"),
    "shape": (lambda t: t.update({key: t[key][:, :3] for key in list(t)[:1]}), r"\[2, 3\].*\[rank, "),
    "kind": (lambda t: t.update({"transformer.a.hada_w1_a": torch.ones(2, 2)}), "hada_w1_a"),
    "value": (lambda t: t[next(iter(t))].fill_(float("nan")), "NaN"),
    "empty": (lambda t: [t.pop(key) for key in list(t)], "none of the network"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_file_that_does_not_fit_is_refused(kind, tiny, tmp_path):
    _, _, model = trained("sd3", tiny("sd3"), tmp_path)
    change, match = CHANGES[kind]
    path = broken(model, tmp_path, change)
    with pytest.raises(ValueError, match=f"model.lora_path.*{match}"):
        policy_of("sd3", tiny("sd3"), lora_path=path, lora_rank=2)


def test_settings_that_do_not_fit_are_refused(tiny, tmp_path):
    _, _, model = trained("sd3", tiny("sd3"), tmp_path)
    with pytest.raises(ValueError, match="model.lora_rank.*1.*2 or more"):
        policy_of("sd3", tiny("sd3"), lora_path=str(model), lora_rank=1)
    with pytest.raises(ValueError, match="model.lora_rank.*1.*2 or more"):  # by the file alone, as in a dry run
        ExistingLora.of(config_of("sd3", "", lora_path=str(model), lora_rank=1).model, fetched=False)
    with pytest.raises(FileNotFoundError, match="model.lora_path.*nowhere"):
        policy_of("sd3", tiny("sd3"), lora_path=str(tmp_path / "nowhere"), lora_rank=2)
    with pytest.raises(ValueError, match="adapted modules are not in UNet2DConditionModel"):
        policy_of("stable_diffusion", tiny("stable_diffusion"), lora_path=str(model), lora_rank=2)
    with pytest.raises(ValueError, match=r"model.lora_rank.*0"):
        refuse_conflicts({"model": config_of("sd3", tiny("sd3"), lora_path="a").model})
    save_file(load_file(next(iter(model.glob("*.safetensors")))), model / "b.safetensors")
    save_file(load_file(model / "b.safetensors"), model / "c.safetensors")
    (model / "pytorch_lora_weights.safetensors").unlink()
    with pytest.raises(ValueError, match="got 2 files of adapters.*b.safetensors"):
        policy_of("sd3", tiny("sd3"), lora_path=str(model), lora_rank=2)


def test_tensors_of_text_encoders_are_named(tiny, tmp_path):
    _, _, model = trained("sd3", tiny("sd3"), tmp_path)
    path = broken(model, tmp_path, lambda t: t.update({"text_encoder.a.lora_A.weight": torch.ones(2, 2)}))
    with pytest.warns(UserWarning, match="1 of its.*text encoder"):
        policy_of("sd3", tiny("sd3"), lora_path=path, lora_rank=2)


def test_targets_beyond_the_file_begin_at_zero(tiny, tmp_path):
    first, _, model = trained("sd3", tiny("sd3"), tmp_path)
    policy = policy_of("sd3", tiny("sd3"), lora_path=str(model), lora_rank=2, lora_targets=["attn.to_q", "ff.net.2"])
    added = products(policy.network)
    assert {name for name, one in added.items() if not one.any()} == {
        name for name in added if name.endswith("ff.net.2")
    }
    same({name: one for name, one in added.items() if one.any()}, products(first.network))


def test_both_networks_of_wan_14b_begin_with_their_own(tiny, tmp_path):
    from pipelines.visual import wan_tiny

    path = str(wan_tiny.tiny(tmp_path / "tiny", version="2.2-14B"))
    first, config, model = trained("wan", path, tmp_path)
    rollout = rollout_of("wan", first)
    for folder in (model, written("wan", config, model, "comfyui", tmp_path / "out")):
        policy = policy_of("wan", path, lora_path=str(folder), lora_rank=2, lora_alpha=ALPHA)
        torch.testing.assert_close(rescored(policy, rollout), rescored(first, rollout), rtol=1e-5, atol=1e-5)
        shake(policy)
        torch.testing.assert_close(
            rescored(policy, rollout, "reference.log_probs"), rescored(first, rollout), rtol=1e-5, atol=1e-5
        )
    [file, *_] = sorted((tmp_path / "out").glob("*.safetensors"))
    with pytest.raises(ValueError, match="model.lora_path.*one file.*transformer_2"):
        policy_of("wan", path, lora_path=str(file), lora_rank=2)
