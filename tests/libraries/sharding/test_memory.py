"""What a dry run states of memory against what tiny models take."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.scale import Counted
from mmgrpo.cli.train import costs_of, counted_in
from mmgrpo.config.settings import Config, Distributed, config_class
from mmgrpo.family import families
from mmgrpo.runtime.memory import Folder, Pass, compression, fits, needs, read_folder, report
from pipelines.pretrained import headers_on_hub
from pipelines.visual import flux
from pipelines.visual.counting import sample_of
from tests.libraries.families.test_battery import config_of, gradients, policy_of, rollout_of
from tests.tiny import maker, tiny_checkpoint

NAMES = ("sd3", "wan", "stable_diffusion", "qwen_vl", "whisper")
CLOSE = ("sd3", "wan", "stable_diffusion", "qwen_vl", "flux", "ltx_video")
"""Families whose activations are stated within 15 %."""
OTHERS = [
    name
    for name, family in families().items()
    if family.modality == "visual" and family.sections.process != "tokens" and name not in CLOSE
] + ["whisper"]
"""Those whose activations are stated within 25 %: with prompts that are not filled up, and Whisper, whose completions
share the keys and values of a clip."""

GIVEN = ("flux_kontext", "flux2_klein", "flux2", "qwen_image_edit")
"""Those whose images of the prompt have sizes of their own."""


def stated(name: str, **model: Any) -> tuple[dict[str, float], Config]:
    path = tiny_checkpoint(maker(name))
    folder = read_folder(Path(path))
    assert folder is not None
    config = config_of(name, str(path), **model)
    return needs(folder, config, processes=1, **{**counted_in(config, None), "reference": True}), config


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_weights_gradients_and_optimizer_are_those_of_the_model(name, rank):
    found, config = stated(name, **({"lora_rank": rank} if rank else {}))
    policy = policy_of(name, config.model.path, **({"lora_rank": rank} if rank else {}))
    rollout = rollout_of(name, policy)
    gradients(policy, rollout, 64)
    own = list(policy.network.parameters())
    trained = [one for one in own if one.requires_grad]
    for one in trained:
        one.grad = torch.zeros_like(one)
    optimizer = torch.optim.AdamW(trained)
    optimizer.step()
    moments = sum(v.nbytes for state in optimizer.state.values() for v in state.values() if v.ndim)
    assert found["weights"] == pytest.approx(sum(one.nbytes for one in own), rel=0.15)
    assert found["gradients"] == pytest.approx(sum(one.nbytes for one in trained), rel=0.15)
    assert found["optimizer"] == pytest.approx(moments, rel=0.15)
    assert ("reference" in found) == (not rank)
    if families()[name].modality == "visual":
        parts = policy.model.frozen_parts()  # type: ignore[attr-defined]
        bytes_of = {part: sum(p.nbytes for p in one.parameters()) for part, one in parts.items()}
        assert found["VAE"] == pytest.approx(bytes_of.pop("vae"), rel=0.15)
        assert found["encoders"] == pytest.approx(sum(bytes_of.values()), rel=0.15)


def given_size(folder: Folder, config: Config, tokens: int) -> int:
    """The side of the given image with which a sample has so many tokens of two by two latents."""
    drawn = sample_of(folder, config, False)
    return 2 * compression(folder.vae)[0] * round((tokens - drawn.height * drawn.width // 4) ** 0.5)


def measured(name: str, **model: Any) -> tuple[float, float]:
    """Activations of a micro batch of six as they are stated, and the most bytes that are alive in its backward pass,
    weights and their gradients left out."""
    _, config = stated(name, **model)
    rows = 4 if name in GIVEN else 6  # of one prompt: images of each size are a pass of their own
    config = replace(config, optim=replace(config.optim, micro_batch_size=rows))
    folder = read_folder(Path(config.model.path))
    assert folder is not None
    told = config
    if name == "qwen_vl":  # its prompts have 36 tokens, images included
        told = replace(config, model=replace(config.model, max_prompt_tokens=36))
    if name == "whisper":  # its clips have 200 positions, of the 1500 of half a minute
        folder = replace(folder, config={**folder.config, "max_source_positions": 200})
    policy = policy_of(name, config.model.path, **model)
    if name == "hunyuan_video15" and not model.get("lora_rank"):
        # What reads quoted words is 2,048 wide in a network of any size; its gradient alone is more than the rest.
        policy.network.context_embedder_2.requires_grad_(False)
    rollout = rollout_of(name, policy)
    part = next(rollout.steps.split(rollout.decisions.loss_mask, rows))

    def backward() -> None:
        policy.score(rollout, part, frozenset({"log_probs"}))["log_probs"].sum().backward()

    texts: list[int] = []
    cells: list[int] = []
    network = getattr(policy.network, "transformer", policy.network)
    reader: Any = network.context_embedder if name == "hunyuan_video15" else getattr(network, "txt_in", nn.Identity())
    hooks = [reader.register_forward_hook(lambda module, given, out: texts.append(given[0].shape[1]))]
    if name in GIVEN:
        count = lambda module, given, options: cells.append(len(options["hidden_states"][0]))  # noqa: E731
        hooks.append(network.register_forward_pre_hook(count, with_kwargs=True))
    backward()  # as in the second micro batch of an update, gradients of weights are there
    for hook in hooks:
        hook.remove()
    if cells:  # images of prompts are counted at the largest size; those of the tests are smaller
        told = replace(config, model=replace(config.model, given_size=given_size(folder, config, cells[0])))
    if name == "z_image":  # its prompts are filled up to 32
        told = replace(told, model=replace(told.model, max_sequence_length=32))
    if texts:  # some read prompts without padding, and the empty one of guidance
        told = replace(config, model=replace(told.model, max_sequence_length=sum(texts) // len(texts)))
    activations = needs(folder, told, processes=1, **counted_in(told, folder))["activations"]
    own = [*policy.network.parameters(), *policy.network.buffers()]
    counted = Counted([*(one.detach() for one in own), *(one.grad for one in own if one.grad is not None)])
    before = counted.alive
    with counted:
        backward()
    return activations, counted.most - before


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("name", [*CLOSE, *OTHERS])
def test_activations_are_the_peak_of_a_backward_pass(name, rank, checkpointed):
    if checkpointed and name == "whisper":
        pytest.skip("its family refuses gradient checkpointing")
    options = ({"lora_rank": rank} if rank else {}) | ({"gradient_checkpointing": True} if checkpointed else {})
    activations, most = measured(name, **options)
    assert activations == pytest.approx(most, rel=0.15 if name in CLOSE else 0.25)


@pytest.fixture
def hub(monkeypatch):
    """A hub of one repository, the tiny FLUX.1, at an address of this machine."""
    from huggingface_hub import constants

    folder = Path(tiny_checkpoint(maker("flux")))
    files = {one.relative_to(folder).as_posix(): one for one in folder.rglob("*") if one.is_file()}
    asked: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            place = self.path.partition("?")[0]
            if place == "/api/models/some/flux/tree/main":
                tree = [{"type": "file", "oid": "0", "size": 1, "path": name} for name in files]
                return self.reply(200, json.dumps(tree).encode())
            name = place.removeprefix("/some/flux/resolve/main/")
            if name == place or name not in files:
                return self.reply(404, b"")
            content, ranged = files[name].read_bytes(), self.headers.get("range")
            first, last = map(int, ranged.removeprefix("bytes=").split("-")) if ranged else (0, len(content))
            asked.append(len(content[first : last + 1]) if self.command == "GET" else 0)
            return self.reply(206 if ranged else 200, content[first : last + 1])

        def reply(self, status: int, content: bytes) -> None:
            self.send_response(status)
            for name, value in (("ETag", "0"), ("X-Repo-Commit", "0" * 40), ("Content-Length", str(len(content)))):
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield folder, asked
        server.shutdown()


def test_a_model_on_the_hub_is_read_by_its_headers_and_nothing_is_kept(hub):
    folder, asked = hub
    assert headers_on_hub("some/flux") == read_folder(folder)
    assert max(asked) <= 100_001 and sum(asked) > 0
    with pytest.raises(OSError, match="404"):
        headers_on_hub("some/other")
    config = config_of("flux", str(folder))
    remote = replace(config, model=replace(config.model, path="some/flux"))
    assert costs_of(remote, 2) == costs_of(config, 2) and len(costs_of(config, 2)) == 4
    (line,) = costs_of(remote, 2, on_hub=False)
    assert "not computed" in line


def test_a_model_without_a_part_of_its_weights_is_not_read(tmp_path):
    shutil.copytree(tiny_checkpoint(maker("flux")), tmp_path / "flux")
    index = tmp_path / "flux/transformer/diffusion_pytorch_model.safetensors.index.json"
    here, absent = "diffusion_pytorch_model.safetensors", "diffusion_pytorch_model-00002-of-00002.safetensors"
    for named, complete in (({"a": here}, True), ({"a": here, "b": absent}, False), ({"b": absent}, True)):
        index.write_text(json.dumps({"weight_map": named}))  # the last is that of a variant that is not here
        assert bool(read_folder(tmp_path / "flux")) == complete


def test_a_divided_model_takes_its_share_and_two_blocks():
    """10 weights in two blocks of 4 and 2 others: 16 bytes each, by 2 processes; the blocks and their gradients."""
    config = config_class(families()["sd3"].sections)()
    config = replace(config, model=replace(config.model, lora_rank=0), distributed=Distributed("full"))
    folder = Folder({"blocks.0.a": (4,), "blocks.1.a": (2, 2), "out": (2,)}, {})
    found = needs(folder, config, processes=2, in_step=True)
    assert (found["weights"], found["gradients"], found["optimizer"]) == (20, 20, 40)
    assert found["gathered"] == 2 * 4 * (8 + 4)
    assert needs(folder, config, processes=2, in_step=False)["gathered"] == 96 + 2 * (4 + 4)  # "out" is in no block
    assert needs(folder, config, processes=1)["weights"] == 40


def test_a_part_of_what_is_divided_and_frozen_is_the_worked_number():
    """10 weights on four processes, two of which hold a copy; of encoders 100 in bf16, of the VAE 50 in fp32."""
    config = config_class(families()["sd3"].sections)()
    model = replace(config.model, lora_rank=0, dtype="bfloat16")
    optim = replace(config.optim, optimizer="adamw_8bit", ema=0.9, interpolation=0.5)
    config = replace(config, model=model, optim=optim, distributed=Distributed("full", 2))
    folder = Folder({"blocks.0.a": (4,), "blocks.1.a": (2, 2), "out": (2,)}, {}, {"text_encoder": 100, "vae": 50})
    found = needs(folder, config, processes=4, in_step=True)
    names = ("weights", "gradients", "optimizer", "copies", "encoders", "VAE")
    assert [found[name] for name in names] == [20, 20, 10, 40, 200, 200]
    changed = replace(model, forget_encoders=True, vae_dtype="bfloat16")
    found = needs(folder, replace(config, model=changed), processes=4, in_step=True)
    assert "encoders" not in found and found["VAE"] == 100
    whole = replace(config, distributed=Distributed("full", 2, "whole"))
    assert needs(folder, whole, processes=4, in_step=True)["gathered"] == 2 * 4 * (4 + 4)  # more than 2 x 10
    large = Folder({**folder.network, "out": (100,)}, {})
    assert needs(large, whole, processes=4, in_step=True)["gathered"] == 2 * 108


def test_activations_are_divided_as_tokens_are_and_a_dry_run_names_the_mesh():
    """Of eight processes, two by two: four that have prompts of their own, each with half of the activations."""
    folder = read_folder(Path(tiny_checkpoint(maker("flux"))))
    assert folder is not None
    config, counts = config_of("flux", ""), Pass(1.0, 2.0, 3.0)
    whole = needs(folder, config, processes=8, counts=counts)
    config = replace(config, distributed=Distributed("full", 2, sequence=2))
    found = needs(folder, config, processes=8, counts=counts)
    assert found["activations"] == whole["activations"] / 2 and found["weights"] == whole["weights"] / 4
    lines = report(folder, config, 8)
    assert "data 4 x sequence 2; weights: copies 2 x shards 4" in lines[0]
    assert not any("mesh" in line for line in report(folder, replace(config, distributed=Distributed()), 8))


def test_a_further_network_is_a_copy_of_what_trains_and_one_that_learns_has_moments():
    """Ten parameters: 40 bytes of an average, 40 and 80 of moments of a critic."""
    config = config_class(families()["causal_lm"].sections)()
    config = replace(config, model=replace(config.model, lora_rank=0))
    networks = ["average", "critic(lr=1e-5)"]
    several = replace(config, algorithm=replace(config.algorithm, networks=networks))
    folder = Folder({"b.0.to_q.weight": (2, 5)}, {})
    assert needs(folder, several, processes=1)["networks"] == 40 + 120
    assert "networks" not in needs(folder, config, processes=1)


def test_the_base_of_adapters_is_stored_as_it_is_quantized():
    """48 weights in half a byte each, and 2 x 14 of adapters in fp32."""
    config = config_class(families()["sd3"].sections)()
    config = replace(config, model=replace(config.model, lora_rank=2, quantize="4bit"))
    found = needs(Folder({"b.0.to_q.weight": (8, 6)}, {}), config, processes=1, targets=["to_q"])
    assert (found["weights"], found["gradients"]) == (24 + 4 * 28, 4 * 28)


def test_keys_and_values_are_those_of_the_samples_that_are_drawn_at_a_time():
    """3 prompts x 4 samples on one of two processes; 2 x 3 layers x 2 heads x 8 numbers in bf16, at 20 tokens of each
    completion and 30 of each prompt, which is there once, or for each completion where nothing is shared."""
    config = config_class(families()["qwen_vl"].sections)()
    model = replace(config.model, dtype="bfloat16", lora_rank=2, max_prompt_tokens=30)
    data = replace(config.data, prompts_per_step=5, group_size=4)
    sampling = replace(config.sampling, max_tokens=20, logits_chunk_size=100)
    optim = replace(config.optim, micro_batch_size=16)
    config = replace(config, model=model, data=data, sampling=sampling, optim=optim)
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    folder = Folder({"b.0.to_q.weight": (8, 6)}, {**sizes, "vocab_size": 1000})
    one = 2 * 3 * 2 * 8 * 2
    assert needs(folder, config, processes=2)["cache"] == one * (12 * 20 + 3 * 30)
    some = replace(config, sampling=replace(sampling, draw_batch_size=5))
    assert needs(folder, some, processes=2)["cache"] == one * (5 * 20 + 3 * 30)
    alone = replace(config, sampling=replace(sampling, share_prefix=False))
    windows = replace(folder, config={**folder.config, "layer_types": ["full_attention", "sliding_attention"]})
    assert needs(folder, alone, processes=2)["cache"] == one * 12 * 50
    assert needs(windows, config, processes=2)["cache"] == one * 12 * 50
    # 12 samples are no micro batch of 16, and 100 logits of 1000 words take 6 bytes each
    wider = {**folder.config, "vocab_size": 2000}
    gap = [needs(replace(folder, config=c), config, processes=2)["activations"] for c in (folder.config, wider)]
    assert gap[1] - gap[0] == 6 * 100 * 1000
    smaller = replace(config, optim=replace(optim, micro_batch_size=12))
    assert needs(folder, smaller, processes=2)["activations"] == gap[0]


def test_activations_of_audio_of_unknown_length_are_not_stated():
    _, config = stated("flow_speech")
    folder = read_folder(Path(config.model.path))
    assert folder is not None
    known = counted_in(config, folder)
    assert "activations" not in needs(folder, config, processes=1, **known)
    assert "not in it: family 'flow_speech'" in " ".join(report(folder, config, 1, **known))


def test_a_network_that_cannot_be_counted_is_named(monkeypatch):
    _, config = stated("flux")
    folder = read_folder(Path(config.model.path))
    monkeypatch.setattr(flux, "inputs_of", lambda config, sample: {"hidden_states": torch.empty(1, 3)})
    (_, printed, *_, last) = costs_of(config, 1)
    assert "activations are not in it: FluxTransformer2DModel of family 'flux'" in printed
    assert last.startswith("work:      not counted: FluxTransformer2DModel of family 'flux' cannot be run")
    monkeypatch.delattr(flux, "inputs_of")
    assert "pipelines.visual.flux has no inputs_of" in counted_in(config, folder)["counts"].uncounted


def test_adapters_are_counted_by_the_names_of_their_layers():
    folder = Folder({"b.0.attn.to_q.weight": (8, 6), "b.0.to_k.weight": (8, 6), "b.0.norm.weight": (8,)}, {})
    assert folder.adapters(2, ["to_q"]) == 2 * 14 and folder.adapters(1, ["to_q", "to_k"]) == 28


def test_cards_keep_a_reserve():
    assert "24 GB and of 80 GB" in fits(22) and fits(22.1) == "fits a card of 80 GB" and "not fit" in fits(78.5)
