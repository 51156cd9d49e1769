"""Trained models in the files of other programs: read by diffusers and peft, at full strength without a header."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmgrpo.family import Elsewhere, Family, families, family
from mmgrpo.runtime.saved_model import write_model
from pipelines.engines import check_untied
from pipelines.export import merge_adapters, some_prompts
from pipelines.visual.comfyui import WRITERS
from tests.libraries.families.examples import EXAMPLES
from tests.libraries.families.test_battery import ADAPTED, NAMES, config_of, policy_of, rescored, rollout_of, shake

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
UNREAD = {(name, "comfyui") for name in ("sd3", "ltx_video", "flux", "wan")}
"""Files that diffusers has no converter for (SD3, LTX-Video), or one that takes only the published width (FLUX) or only
blocks of which all modules are adapted (Wan)."""
ALPHA = 6.0
"""With rank 2 the scale is 3, so a file which loses it is seen."""


def trained(name: str, path: str, folder: Path, rank: int = 2) -> Any:
    """A policy whose adapters are not zero, and the folder in which a run would have saved it."""
    options = {"lora_rank": rank, "lora_alpha": ALPHA} if rank else {}
    policy = policy_of(name, path, **options)
    shake(policy, 0.3 if rank else 0.05)
    write_model(folder / "model", policy.save, "run", 1)
    config = replace(config_of(name, path, **options), name="a")
    return policy, config, folder / "model"


def elsewhere_of(one: Family) -> Elsewhere:
    assert one.elsewhere is not None
    return one.elsewhere()


def written(name: str, config: Any, model: Path, form: str, output: Path, **options: Any) -> Path:
    one = family(name)
    given = {"dtype": "float32", "device": "cpu", "check": 0, **options}
    elsewhere_of(one).export(one, config, model, form, output, **given)
    return output


def products(network: Any) -> dict[str, torch.Tensor]:
    """What the adapters of a network of diffusers add to each weight."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, BaseTunerLayer)}
    return {name: layer.get_delta_weight(layer.active_adapters[0]).detach() for name, layer in layers.items()}  # type: ignore


@pytest.mark.parametrize(
    ("name", "form"),
    [(name, form) for name in LAYERS for form in ("comfyui", "diffusers") if (name, form) not in UNREAD],
)
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


def test_kohyas_names_are_those_of_the_layers_with_underscores(tiny, tmp_path):
    policy, config, model = trained("stable_diffusion", tiny("stable_diffusion"), tmp_path)
    tensors = load_file(written("stable_diffusion", config, model, "comfyui", tmp_path / "out") / "a.safetensors")
    layers = {f"lora_unet_{layer.replace('.', '_')}" for layer in products(policy.network)}
    assert tensors.keys() == {
        f"{layer}.{part}" for layer in layers for part in ("lora_down.weight", "lora_up.weight", "alpha")
    }
    assert {float(tensors[f"{layer}.alpha"]) for layer in layers} == {ALPHA}
    assert {len(tensors[f"{layer}.lora_down.weight"]) for layer in layers} == {2}


@pytest.mark.parametrize("name", ["sd3", "ltx_video", "flux", "wan_i2v", "hunyuan_video", "skyreels_i2v"])
def test_whatever_the_names_and_the_matrices_that_are_one_the_adapters_add_as_much(name, tiny, tmp_path):
    """The sum of squares of all that is added does not depend on which matrices are written as one."""
    policy, config, model = trained(name, tiny(name), tmp_path)
    tensors = load_file(written(name, config, model, "comfyui", tmp_path / "out") / "a.safetensors")
    added = 0.0
    for layer in (key.removesuffix(".alpha") for key in tensors if key.endswith(".alpha")):
        down, up = tensors[f"{layer}.lora_down.weight"], tensors[f"{layer}.lora_up.weight"]
        added += float((up @ down * (float(tensors[f"{layer}.alpha"]) / len(down))).square().sum())
    assert added == pytest.approx(sum(float(one.square().sum()) for one in products(policy.network).values()), rel=1e-4)


PUBLISHED = {
    "stable_diffusion": [("mid_block.attentions.0.proj_in", "lora_unet_mid_block_attentions_0_proj_in")],
    "sd3": [
        ("transformer_blocks.1.attn.to_q", "lora_unet_joint_blocks_1_x_block_attn_qkv"),
        ("transformer_blocks.1.attn.add_k_proj", "lora_unet_joint_blocks_1_context_block_attn_qkv"),
        ("transformer_blocks.1.attn2.to_out.0", "lora_unet_joint_blocks_1_x_block_attn2_proj"),
        ("transformer_blocks.1.ff_context.net.0.proj", "lora_unet_joint_blocks_1_context_block_mlp_fc1"),
    ],
    "flux": [
        ("transformer_blocks.1.attn.to_v", "lora_unet_double_blocks_1_img_attn_qkv"),
        ("transformer_blocks.1.attn.to_add_out", "lora_unet_double_blocks_1_txt_attn_proj"),
        ("transformer_blocks.1.ff.net.2", "lora_unet_double_blocks_1_img_mlp_2"),
        ("single_transformer_blocks.1.attn.to_k", "lora_unet_single_blocks_1_linear1"),
        ("single_transformer_blocks.1.proj_mlp", "lora_unet_single_blocks_1_linear1"),
        ("single_transformer_blocks.1.proj_out", "lora_unet_single_blocks_1_linear2"),
        ("single_transformer_blocks.1.norm.linear", "lora_unet_single_blocks_1_modulation_lin"),
    ],
    "flux2_klein": [
        ("transformer_blocks.0.attn.add_v_proj", "lora_unet_double_blocks_0_txt_attn_qkv"),
        ("transformer_blocks.0.ff_context.linear_in", "lora_unet_double_blocks_0_txt_mlp_0"),
        ("single_transformer_blocks.0.attn.to_qkv_mlp_proj", "lora_unet_single_blocks_0_linear1"),
        ("single_transformer_blocks.0.attn.to_out", "lora_unet_single_blocks_0_linear2"),
    ],
    "qwen_image": [("transformer_blocks.3.attn.to_out.0", "lora_unet_transformer_blocks_3_attn_to_out_0")],
    "z_image": [("layers.3.attention.to_q", "diffusion_model.layers.3.attention.to_q")],
    "ltx_video": [
        ("transformer_blocks.3.attn2.to_q", "diffusion_model.transformer_blocks.3.attn2.to_q"),
        ("proj_in", "diffusion_model.patchify_proj"),
    ],
    "wan": [
        ("blocks.3.attn1.to_q", "lora_unet_blocks_3_self_attn_q"),
        ("blocks.3.attn2.to_out.0", "lora_unet_blocks_3_cross_attn_o"),
        ("blocks.3.attn2.add_k_proj", "lora_unet_blocks_3_cross_attn_k_img"),
        ("blocks.3.ffn.net.2", "lora_unet_blocks_3_ffn_2"),
        ("condition_embedder.time_proj", "lora_unet_time_projection_1"),
    ],
    "hunyuan_video": [
        ("transformer_blocks.1.attn.to_q", "lora_unet_double_blocks_1_img_attn_qkv"),
        ("single_transformer_blocks.1.attn.to_q", "lora_unet_single_blocks_1_linear1"),
        ("x_embedder.proj", "lora_unet_img_in_proj"),
        (
            "context_embedder.token_refiner.refiner_blocks.1.attn.to_v",
            "lora_unet_txt_in_individual_token_refiner_blocks_1_self_attn_qkv",
        ),
    ],
}
"""Module in diffusers and name of the adapter in files that people publish."""


@pytest.mark.parametrize(("family_name", "pairs"), PUBLISHED.items(), ids=PUBLISHED)
def test_names_are_the_published_ones(family_name, pairs):
    pair = torch.ones(1, 2), torch.ones(4, 1)
    for layer, wanted in pairs:
        tensors = WRITERS[family_name]({layer: pair}, 1.0)
        assert {key.rpartition(".lora_")[0] or key.removesuffix(".alpha") for key in tensors} == {wanted}


def test_adapters_of_matrices_that_the_authors_have_as_one_are_one_of_the_sum_of_their_ranks():
    """Queries and values of rank 1 with alpha 2 (scale 2): rank 2 with alpha 4 (scale 2), rows of zeros for keys."""
    query = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0], [2.0]])
    value = torch.tensor([[3.0, 4.0]]), torch.tensor([[5.0], [6.0]])
    block = "transformer_blocks.0.attn"
    tensors = WRITERS["flux"]({f"{block}.to_v": value, f"{block}.to_q": query}, 2.0)
    name = "lora_unet_double_blocks_0_img_attn_qkv"
    assert tensors[f"{name}.lora_down.weight"].tolist() == [[1, 2], [3, 4]]
    assert tensors[f"{name}.lora_up.weight"].T.tolist() == [[1, 2, 0, 0, 0, 0], [0, 0, 0, 0, 5, 6]]
    assert float(tensors[f"{name}.alpha"]) == 4
    # One matrix of a block with one stream: queries, keys, values and the MLP, four times as high.
    mlp = torch.tensor([[7.0, 8.0]]), torch.arange(8.0)[:, None]
    tensors = WRITERS["flux"]({f"single_{block}.to_v": value, "single_transformer_blocks.0.proj_mlp": mlp}, 2.0)
    up = tensors["lora_unet_single_blocks_0_linear1.lora_up.weight"].T.tolist()
    assert up == [[0, 0, 0, 0, 5, 6] + [0] * 8, [0] * 6 + [0, 1, 2, 3, 4, 5, 6, 7]]


def test_layers_of_sdxl_are_numbered_in_one_sequence():
    """Published adapters name the blocks 4, 5, 7, 8 on the way down and 0 to 5 on the way up."""
    pair = torch.ones(1, 2), torch.ones(2, 1)
    down = [f"down_blocks.{block}.attentions.{layer}" for block in (1, 2) for layer in range(2)]
    up = [f"up_blocks.{block}.attentions.{layer}" for block in (0, 1) for layer in range(3)]
    tensors = WRITERS["sdxl"]({f"{block}.proj_in": pair for block in (*down, "mid_block.attentions.0", *up)}, 1.0)
    blocks = [key.removesuffix("_proj_in.alpha").removeprefix("lora_unet_") for key in tensors if "alpha" in key]
    assert blocks == [f"input_blocks_{n}_1" for n in (4, 5, 7, 8)] + ["middle_block_1"] + [
        f"output_blocks_{n}_1" for n in range(6)
    ]
    others = ["down_blocks.0.resnets.1.conv1", "down_blocks.0.downsamplers.0.conv", "up_blocks.0.upsamplers.0.conv"]
    tensors = WRITERS["sdxl"]({name: pair for name in (*others, "mid_block.resnets.1.conv_shortcut")}, 1.0)
    assert [key.removesuffix(".alpha") for key in tensors if "alpha" in key] == [
        "lora_unet_input_blocks_2_0_in_layers_2",
        "lora_unet_input_blocks_3_0_op",
        "lora_unet_output_blocks_2_2_conv",
        "lora_unet_middle_block_2_skip_connection",
    ]


FLUX_BLOCKS = {
    **{f"transformer_blocks.0.attn.{name}": (3072, 3072) for name in ("to_q", "to_k", "to_v", "to_out.0")},
    **{f"transformer_blocks.0.attn.add_{name}_proj": (3072, 3072) for name in "qkv"},
    "transformer_blocks.0.attn.to_add_out": (3072, 3072),
    "transformer_blocks.0.ff.net.0.proj": (12288, 3072),
    "transformer_blocks.0.ff_context.net.2": (3072, 12288),
    "transformer_blocks.0.norm1_context.linear": (18432, 3072),
    **{f"single_transformer_blocks.0.attn.{name}": (3072, 3072) for name in ("to_q", "to_k", "to_v")},
    "single_transformer_blocks.0.proj_mlp": (12288, 3072),
    "single_transformer_blocks.0.proj_out": (3072, 15360),
}
WAN_BLOCKS = {
    **{
        f"blocks.0.{attn}.{name}": (8, 6)
        for attn in ("attn1", "attn2")
        for name in ("to_q", "to_k", "to_v", "to_out.0")
    },
    **{f"blocks.0.ffn.{name}": (8, 6) for name in ("net.0.proj", "net.2")},
}


@pytest.mark.parametrize(("name", "shapes"), [("flux", FLUX_BLOCKS), ("wan", WAN_BLOCKS)], ids=["flux", "wan"])
def test_diffusers_converters_give_back_the_modules_of_a_block(name, shapes):
    import diffusers

    random = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = {layer: (random(2, width), random(height, 2)) for layer, (height, width) in shapes.items()}
    state = getattr(diffusers, LAYERS[name][1]).lora_state_dict(WRITERS[name](pairs, ALPHA))
    assert {key.split(".lora_")[0].removeprefix("transformer.") for key in state} == pairs.keys()
    probe = random(15360, 1)
    for layer, (down, up) in pairs.items():
        theirs = [state[f"transformer.{layer}.lora_{part}.weight"] for part in "AB"]
        seen = probe[: down.shape[1]]
        torch.testing.assert_close(theirs[1] @ (theirs[0] @ seen), 3 * up @ (down @ seen), rtol=1e-9, atol=1e-9)


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
    done = elsewhere_of(one).export(
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
        elsewhere_of(one).export(
            one, config, model, "merged", tmp_path / "wrong", dtype="float32", device="cpu", check=2
        )
    assert not (tmp_path / "wrong").exists() and not list(tmp_path.glob(".export-*"))


@pytest.mark.parametrize("targets", [["lm_head"], ["q_proj", "lm_head"], ["embed_tokens"]], ids=" ".join)
def test_an_adapted_layer_that_was_tied_is_merged_into_a_weight_of_its_own(targets, tiny, tmp_path):
    options = {"lora_rank": 2, "lora_alpha": ALPHA, "lora_targets": targets}
    policy = policy_of("causal_lm", tiny("causal_lm"), **options)
    table, head = policy.network.get_input_embeddings(), policy.network.get_output_embeddings()
    assert table.weight is head.weight
    shake(policy, 0.3)
    write_model(tmp_path / "model", policy.save, "run", 1)
    config = replace(config_of("causal_lm", tiny("causal_lm"), **options), name="a")
    folder = written("causal_lm", config, tmp_path / "model", "merged", tmp_path / "out", check=0)
    from transformers import AutoModelForCausalLM

    ids = torch.arange(4, 14)[None]
    with torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits
        plain = AutoModelForCausalLM.from_pretrained(tiny("causal_lm"), dtype=torch.float32)(ids).logits
        trained_logits = policy.network(ids).logits
    assert (trained_logits - plain).abs().max() > 0.1
    torch.testing.assert_close(merged, trained_logits, rtol=0, atol=1e-4)
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False


def test_existing_adapters_of_a_tied_layer_leave_the_other_as_it_was(tiny, tmp_path):
    options = {"lora_rank": 2, "lora_alpha": ALPHA, "lora_targets": ["lm_head"]}
    policy = policy_of("causal_lm", tiny("causal_lm"), **options)
    shake(policy, 0.3)
    policy.save(tmp_path / "given")
    merged = policy_of("causal_lm", tiny("causal_lm"), lora_path=str(tmp_path / "given"), lora_mode="merge")
    ids = torch.arange(4, 14)[None]
    with torch.no_grad():
        torch.testing.assert_close(merged.network(ids).logits, policy.network(ids).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("network", ["adapted", "merged"])
def test_an_engine_that_reads_the_checkpoint_takes_no_adapters_of_a_tied_layer(network, tiny, tmp_path):
    options = {"lora_rank": 2, "lora_targets": ["lm_head"]}
    policy = policy_of("causal_lm", tiny("causal_lm"), **options)
    if network == "merged":
        policy.save(tmp_path / "given")
        policy = policy_of("causal_lm", tiny("causal_lm"), lora_path=str(tmp_path / "given"), lora_mode="merge")
    with pytest.raises(ValueError, match=r"rollout\.engine.*model\.lora_"):
        check_untied(policy.network, "vLLM")
    check_untied(policy_of("causal_lm", tiny("causal_lm"), lora_rank=2).network, "vLLM")


@pytest.mark.parametrize("content", ["", "a = 1\n"], ids=["empty folder", "a text file"])
def test_a_run_without_a_data_file_is_compared_on_texts_of_ours(content, tiny, tmp_path, monkeypatch):
    _, config, model = trained("causal_lm", tiny("causal_lm"), tmp_path / "run")
    config = replace(config, data=replace(config.data, train="", heldout=""))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    if content:
        Path("constraints.txt").write_text(content)
    one: Any = family("causal_lm")
    options = {"dtype": "float32", "device": "cpu", "check": 2}
    assert "log-probabilities" in elsewhere_of(one).export(one, config, model, "merged", tmp_path / "out", **options)


def test_a_run_without_a_data_file_whose_prompts_have_media_names_the_option(tiny, tmp_path):
    one, config = family("wan_i2v"), config_of("wan_i2v", tiny("wan_i2v"))
    config = replace(config, data=replace(config.data, train="", heldout=""))
    with pytest.raises(ValueError, match=r"no data file.*--prompts"):
        some_prompts(one, config, 2)


def test_formats_are_refused_before_anything_is_loaded(tiny, tmp_path):
    for name in NAMES:
        one = family(name)
        with pytest.raises(ValueError, match="--format.*comfy"):
            elsewhere_of(one).check(one, tmp_path, "comfy")
        if name not in WRITERS:
            with pytest.raises(ValueError, match=f"--format.*'{name}'"):
                elsewhere_of(one).check(one, tmp_path, "comfyui")
    _, _, model = trained("sd3", tiny("sd3"), tmp_path, rank=0)
    sd3: Any = family("sd3")
    for form in ("diffusers", "comfyui", "peft"):
        with pytest.raises(ValueError, match=f"--format.*{form}"):
            elsewhere_of(sd3).check(sd3, model, form)
    elsewhere_of(sd3).check(sd3, model, "merged")


def test_an_output_that_exists_is_left_alone(tiny, tmp_path):
    _, config, model = trained("sd3", tiny("sd3"), tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    with pytest.raises(ValueError, match="--output"):
        written("sd3", config, model, "diffusers", tmp_path / "out")


def test_a_module_without_a_name_elsewhere_is_named(tmp_path):
    pair = torch.zeros(2, 4), torch.zeros(4, 2)
    for name, layer in (
        ("wan", "norm_out"),
        ("ltx_video", "norm_out"),
        ("flux", "norm_out.linear"),
        ("sdxl", "conv_up"),
    ):
        with pytest.raises(ValueError, match=layer):
            WRITERS[name]({layer: pair}, 2.0)


def test_every_family_can_be_exported():
    assert all(one.elsewhere for one in families().values())
