"""What a dry run states of the operations of a run against what tiny networks do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from mmgrpo.cli.train import counted_in
from mmgrpo.config.settings import config_class
from mmgrpo.family import families
from mmgrpo.runtime.memory import Folder, Places, compression, places_of, read_folder
from mmgrpo.runtime.work import completions, forward, report, work
from tests.libraries.families.test_battery import config_of, policy_of, rollout_of
from tests.tiny import maker, tiny_checkpoint

IMAGES = [
    name for name, family in families().items() if family.modality == "visual" and family.sections.process != "tokens"
]


def sdpa(query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def counter() -> FlopCounterMode:
    """Counts attention on a CPU as well."""
    own = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: sdpa}
    return FlopCounterMode(display=False, custom_mapping=own)


def read(name: str) -> tuple[str, Folder]:
    path = tiny_checkpoint(maker(name))
    folder = read_folder(Path(path))
    assert folder is not None
    return str(path), folder


@pytest.mark.parametrize("name", IMAGES)
def test_a_forward_pass_takes_as_many_operations_as_are_counted(name):
    """At the positions of the output that are stated, and at the prompt's own, of which the stated ones are the most.
    What depends on the noise level alone is not in it: in LTX-Video with a given image it is so of every token, a fifth
    of a network of one block; in small models that edit, with few positions, that and the patches are an eighth."""
    path, folder = read(name)
    config = config_of(name, path)
    policy: Any = policy_of(name, path)
    network = getattr(policy.network, "transformer", policy.network)
    found: list[tuple[int, int]] = []
    texts: list[int] = []
    cells: list[int] = []
    running = counter()

    def begin(module: nn.Module, given: Any, options: Any) -> None:
        running.__enter__()
        cells.extend(len(one[0]) for one in [options.get("hidden_states", *given[:1])] if isinstance(one, torch.Tensor))

    def end(module: nn.Module, given: Any, options: Any, out: Any) -> None:
        running.__exit__(None, None, None)
        out = out[0] if isinstance(out, tuple) else out.sample
        found.append((running.get_total_flops(), len(out)))

    def seen(module: nn.Module, given: tuple[Any, ...], out: Any) -> None:
        texts.append(given[0].shape[1])

    hooks = [
        network.register_forward_pre_hook(begin, with_kwargs=True),
        network.register_forward_hook(end, with_kwargs=True),
    ]
    reader = network.context_embedder if name == "hunyuan_video15" else getattr(network, "txt_in", None)
    if reader is not None:  # texts are as long as the longest
        hooks.append(reader.register_forward_hook(seen))
    rollout_of(name, policy)
    for hook in hooks:
        hook.remove()
    places = places_of(folder, config, counted_in(config)["given"])
    if texts:
        assert texts[0] <= places.prompt
        places = replace(places, prompt=texts[0])
    if name in ("qwen_image_edit", "flux_kontext", "flux2_klein", "flux2"):  # given images count at the largest size
        assert cells[0] <= places.output
        places = replace(places, output=cells[0])
    operations, samples = found[0]
    least = {"ltx_i2v": 0.75, "z_image": 0.85, "sd3_edit": 0.85}.get(name, 0.95)
    assert least <= forward(folder, places) / (operations / samples) <= 1


def nothing(*sizes: int) -> torch.Tensor:
    return torch.empty(*sizes, device="meta", dtype=torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "places", "inputs"),
    [
        (
            "FLUX.1-dev",
            Places(4096, 512),
            {"hidden_states": nothing(1, 4096, 64), "encoder_hidden_states": nothing(1, 512, 4096)}
            | {"pooled_projections": nothing(1, 768), "img_ids": nothing(4096, 3), "txt_ids": nothing(512, 3)},
        ),
        (
            "SD 3.5 Medium",
            Places(4096, 333),
            {"hidden_states": nothing(1, 16, 128, 128), "encoder_hidden_states": nothing(1, 333, 4096)}
            | {"pooled_projections": nothing(1, 2048)},
        ),
        (
            "SDXL",
            Places(128 * 128, 77, sides=(128, 128), levels=3),
            {"sample": nothing(1, 4, 128, 128), "encoder_hidden_states": nothing(1, 77, 2048)}
            | {"added_cond_kwargs": {"text_embeds": nothing(1, 1280), "time_ids": nothing(1, 6)}},
        ),
        (
            "Wan 14B",
            Places(32760, 512),
            {"hidden_states": nothing(1, 16, 21, 60, 104), "encoder_hidden_states": nothing(1, 512, 4096)},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_networks_of_published_sizes_take_as_many_operations_as_are_stated(model, places, inputs):
    """On tensors without storage, at 1024 x 1024 pixels, and 480 x 832 and 81 frames."""
    from pipelines.visual.memory import MODELS, network_of

    (known,) = (one for one in MODELS if one.name == model)
    network: Any = network_of(known.kind, known.config).to(torch.bfloat16)
    with counter() as counted, torch.no_grad():
        network(**inputs, timestep=nothing(1), return_dict=False)
    weights = {f"transformer.{name}": tuple(one.shape) for name, one in network.named_parameters()}
    assert forward(Folder(weights, {}), places) == pytest.approx(counted.get_total_flops(), rel=0.002)


@pytest.mark.parametrize("name", ["causal_lm", "qwen_vl", "smolvlm", "image_text", "qwen_audio", "whisper"])
def test_a_completion_takes_as_many_operations_as_are_counted(name):
    """Behind no prompt, and behind 30 s of audio; half of the attention to 8 tokens is that of tokens to later ones."""
    path, folder = read(name)
    network: Any = policy_of(name, path).network
    ids = torch.arange(4, 12)[None]
    with counter() as counted, torch.no_grad():
        if name == "whisper":
            mel = torch.zeros(1, folder.config["num_mel_bins"], 2 * folder.config["max_source_positions"])
            network(input_features=mel, decoder_input_ids=ids, use_cache=False)
        else:
            network(input_ids=ids, use_cache=False)
    assert 0.95 < sum(completions(folder, 0, 8)) / counted.get_total_flops() < 1


def test_a_prompt_is_computed_once_for_its_group_and_training_takes_a_multiple():
    """One block of 4 x 6 and a head of 10 words: 48 operations a token and 120 each for the head, 3 x 5 tokens of 2
    prompts x 3 completions, and 2 prompts of 7 tokens."""
    config = config_class(families()["causal_lm"].sections)()
    data = replace(config.data, prompts_per_step=2, group_size=3)
    model = replace(config.model, max_prompt_tokens=7)
    config = replace(config, data=data, model=model, sampling=replace(config.sampling, max_tokens=5))
    folder = Folder({"model.layers.0.mlp.up.weight": (4, 6)}, {"vocab_size": 10, "hidden_size": 6})
    totals = families()["causal_lm"].arithmetic(config).totals
    rollout = 2 * 7 * 48 + 6 * 5 * (48 + 120)
    assert work(folder, config, totals) == (rollout, 3 * rollout)
    assert work(folder, config, totals, reference=True) == (rollout, 4 * rollout)
    adapters = replace(config, model=replace(model, lora_rank=2, gradient_checkpointing=True))
    assert work(folder, adapters, totals) == (rollout, 3 * rollout)
    longer = replace(config, optim=replace(config.optim, epochs=2))
    assert work(folder, longer, families()["causal_lm"].arithmetic(longer).totals) == (rollout, 6 * rollout)


def test_hours_are_those_of_all_cards_at_a_part_of_their_peak():
    """1 PFLOP to sample and 3 to train, 100 times, on two H100 of 989 TFLOPS at 40 %: 506 s."""
    config = config_class(families()["sd3"].sections)()
    model = replace(config.model, dtype="bfloat16", height=16, width=16, max_sequence_length=1)
    folder = Folder({"transformer.transformer_blocks.0.ff.net.0.proj.weight": (4, 6)}, {"patch_size": 2}, {}, {})
    config = replace(config, model=model)
    totals = {"evaluations to sample": 1, "evaluations to train": 1}
    once = work(folder, config, totals)[0]
    assert once == 2 * 24 * places_of(folder, config).output == 48
    many = {name: round(1e15 / once) for name in totals}
    lines = report(folder, config, many, 100, 2)
    assert re.findall(r"[\d.]+ [A-Z]FLOP", lines[0]) == ["1 PFLOP", "3 PFLOP", "400 PFLOP"]
    assert re.findall(r"[\d.]+ (?=to|h)|\d x \w+", lines[1])[1:4] == ["0.14 ", "0.56 ", "2 x H100"]
    assert len(report(folder, replace(config, model=replace(model, dtype="float32")), many, 100, 2)) == 1
    assert report(folder, config, {"choices": 3}, 100, 2) == []


@pytest.mark.parametrize(
    ("vae", "expected"),
    [
        ({"block_out_channels": [128, 256, 512, 512]}, (8, 4)),  # Stable Diffusion, FLUX
        ({"encoder_block_out_channels": [128, 256, 512, 512, 1024, 1024]}, (32, 4)),  # Sana
        ({"dim_mult": [1, 2, 4, 4]}, (8, 4)),  # Qwen-Image, Wan 2.1
        ({"dim_mult": [1, 2, 4, 4], "scale_factor_spatial": 16, "scale_factor_temporal": 4}, (16, 4)),  # Wan 2.2 5B
        ({"block_out_channels": [1], "spatial_compression_ratio": 8, "temporal_compression_ratio": 4}, (8, 4)),
        (
            {"block_out_channels": [128, 256, 512, 512], "spatio_temporal_scaling": [True, True, True, False]}
            | {"patch_size": 4, "patch_size_t": 1},
            (32, 8),
        ),  # LTX-Video
    ],
)
def test_latents_are_as_many_pixels_and_frames_apart_as_in_published_models(vae, expected):
    assert compression(vae) == expected
