"""What a dry run states of the operations of a run against what tiny networks do."""

from __future__ import annotations

import importlib
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
from mmgrpo.runtime.counting import ROWS, count, cut_stacks
from mmgrpo.runtime.memory import Folder, Pass, compression, read_folder
from mmgrpo.runtime.work import report, work
from pipelines.visual.memory import MODELS, network_of
from pipelines.visual.sizes import Sample
from tests.libraries.families.test_battery import config_of, policy_of, rollout_of
from tests.libraries.sharding.test_memory import GIVEN, given_size
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
    """At the prompt's own length, of which the stated one is the most; the images that are given are no squares."""
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
    told = config
    if texts:
        told = replace(config, model=replace(config.model, max_sequence_length=texts[0]))
    if name in GIVEN:  # given images count at the largest size
        told = replace(told, model=replace(told.model, given_size=given_size(folder, config, cells[0])))
    operations, samples = found[0]
    counts = counted_in(told, folder)["counts"]
    assert counts.operations == pytest.approx(operations / samples, rel=0.1 if name in GIVEN else 0.01), (
        counts.uncounted
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "module", "sample", "operations"),
    [
        ("FLUX.1-dev", "flux", Sample(128, 128, words=512), 74.38e12),
        ("SD 3.5 Medium", "sd3", Sample(128, 128, words=333), 11.250e12),
        ("SDXL", "sdxl", Sample(128, 128, words=77), 6.761e12),
        ("Wan 14B", "wan", Sample(60, 104, frames=21, words=512), 1.678e15),
    ],
)
def test_networks_of_published_sizes_take_as_many_operations_as_are_stated(model, module, sample, operations):
    """At 1024 x 1024 pixels, and 480 x 832 and 81 frames; what torch's own counter counts without a gradient."""
    (known,) = (one for one in MODELS if one.name == model)
    network: Any = network_of(known.kind, known.config)
    with torch.device("meta"):
        inputs = importlib.import_module(f"pipelines.visual.{module}").inputs_of(network.config, sample)
        with counter() as counted, torch.no_grad():
            network(**inputs, return_dict=False)
    assert counted.get_total_flops() == pytest.approx(operations, rel=1e-3)
    counts = count(network, lambda: network(**inputs, return_dict=False), stacks=cut_stacks(network))
    assert counts.operations * ROWS == pytest.approx(operations, rel=1e-3)


@pytest.mark.parametrize("name", ["causal_lm", "qwen_vl", "smolvlm", "image_text", "qwen_audio", "whisper"])
def test_a_completion_takes_as_many_operations_as_are_counted(name):
    """Behind no prompt, and behind 30 s of audio; half of the attention to 8 tokens is that of tokens to later ones."""
    path, folder = read(name)
    network: Any = policy_of(name, path).network
    config = config_of(name, path)
    config = replace(config, sampling=replace(config.sampling, max_tokens=8))
    ids = torch.arange(4, 12)[None]
    with counter() as counted, torch.no_grad():
        if name == "whisper":
            mel = torch.zeros(1, folder.config["num_mel_bins"], 2 * folder.config["max_source_positions"])
            network(input_features=mel, decoder_input_ids=ids, use_cache=False)
        else:
            network(input_ids=ids, use_cache=False)
    counts = counted_in(config, folder)["counts"]
    assert 0.95 < counts.operations / counted.get_total_flops() < 1.01, counts.uncounted


def test_a_prompt_is_computed_once_for_its_group_and_training_takes_a_multiple():
    """20 operations of a prompt and 5 of a completion: 2 prompts with 3 completions each, 70 in all."""
    config = config_class(families()["causal_lm"].sections)()
    config = replace(config, data=replace(config.data, prompts_per_step=2, group_size=3))
    counts, totals = Pass(25, prompt=20), families()["causal_lm"].arithmetic(config).totals
    assert work(counts, config, totals) == (70, 3 * 70)
    assert work(counts, config, totals, reference=True) == (70, 4 * 70)
    adapters = replace(config, model=replace(config.model, lora_rank=2, gradient_checkpointing=True))
    assert work(counts, adapters, totals) == (70, 3 * 70)
    longer = replace(config, optim=replace(config.optim, epochs=2))
    assert work(counts, longer, families()["causal_lm"].arithmetic(longer).totals) == (70, 6 * 70)


def test_hours_are_those_of_all_cards_at_a_part_of_their_peak():
    """1 PFLOP to sample and 3 to train, 100 times, on two H100 of 989 TFLOPS at 40 %: 506 s."""
    config = config_class(families()["sd3"].sections)()
    config = replace(config, model=replace(config.model, dtype="bfloat16"))
    totals: dict[str, int] = {"evaluations to sample": 1000, "evaluations to train": 1000}
    counts = Pass(1e12)
    lines = report(counts, config, totals, 100, 2)
    assert re.findall(r"[\d.]+ [A-Z]FLOP", lines[0]) == ["1 PFLOP", "3 PFLOP", "400 PFLOP"]
    assert re.findall(r"[\d.]+ (?=to|h)|\d x \w+", lines[1])[1:4] == ["0.14 ", "0.56 ", "2 x H100"]
    plain = replace(config, model=replace(config.model, dtype="float32"))
    assert len(report(counts, plain, totals, 100, 2)) == 1
    assert report(counts, config, {"choices": 3}, 100, 2) == []
    assert report(Pass(uncounted="a reason"), config, totals, 100, 2) == ["work:      not counted: a reason"]


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
