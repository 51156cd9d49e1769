"""Wan from words: equal to diffusers' own pipeline, two networks, a time per token, sizes, memory."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from mmgrpo.types import Prompt, Request
from pipelines.training import Training
from pipelines.visual import wan
from pipelines.visual.options import WanOptions
from pipelines.visual.wan_experts import Experts
from tests.building import denoising_policy_over, load
from tests.libraries.pipelines.visual.drawing import check_adapters, check_sample, draw, noise, shake
from tests.libraries.pipelines.visual.filming import TEXTS, VERSIONS, checkpoint, clips_of, ours, theirs


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Version to the folder of its tiny checkpoint, with Euler's scheduler."""
    return {version: checkpoint(tmp_path_factory.mktemp("wan"), version) for version in VERSIONS}


@pytest.fixture(scope="module")
def two(folders):
    return folders["2.2-14B"]


FORMS = [("2.1", 1.0, 0.0), ("2.1", 4.0, 0.0), ("2.2-14B", 4.0, 0.0), ("2.2-14B", 4.0, 2.0), ("2.2-5B", 4.0, 0.0)]


@pytest.mark.parametrize(("version", "guidance", "guidance_2"), FORMS)
def test_a_sample_equals_the_pipeline_of_diffusers(folders, version, guidance, guidance_2):
    model = ours(folders[version], guidance=guidance, guidance_2=guidance_2)
    options = {"guidance_scale": guidance} | ({"guidance_scale_2": guidance_2} if guidance_2 else {})
    check_sample(model, lambda x, output: theirs(folders[version], x, output, **options), prompts=TEXTS)
    assert model.fps == (24 if version == "2.2-5B" else 16)


@pytest.mark.parametrize("steps", [1, 4, 50])
def test_the_noise_levels_are_those_of_the_checkpoint_s_scheduler(tmp_path, steps):
    from diffusers import UniPCMultistepScheduler

    model = ours(wan.tiny(tmp_path))
    scheduler = UniPCMultistepScheduler.from_pretrained(tmp_path, subfolder="scheduler")
    scheduler.set_timesteps(steps)
    grid = model.grid(steps)
    assert torch.equal(grid.levels, scheduler.sigmas) and grid.shift == 3.0
    assert torch.equal(grid.times, scheduler.sigmas[:-1])  # the pipeline rounds 1000 sigma, which is not done here


# ---- two networks


def rows(model, times):
    """Predictions at different times in one batch, and one by one."""
    x, conditioning = noise(model, len(times)), model.encode([TEXTS[0]] * len(times))
    time = torch.tensor(times)
    alone = [
        model.predict(model.network, x[i : i + 1], time[i : i + 1], conditioning.take(torch.tensor([i])))
        for i in range(len(times))
    ]
    return model.predict(model.network, x, time, conditioning), torch.cat(alone)


def test_each_row_passes_through_the_network_of_its_time(two):
    model = ours(two, guidance=4.0, guidance_2=2.0)
    scales = model.architecture.scale_at(torch.tensor([0.3, 0.875, 0.8749, 1.0]), 4.0)
    assert scales.flatten().tolist() == [2.0, 4.0, 2.0, 4.0]
    mixed, alone = rows(model, [0.3, 0.875, 0.8749, 1.0])
    torch.testing.assert_close(mixed, alone, atol=1e-5, rtol=0)
    with torch.no_grad():
        for parameter in model.network.transformer_2.parameters():
            parameter.zero_()
    changed, _ = rows(model, [0.3, 0.875, 0.8749, 1.0])
    same = [torch.equal(one, other) for one, other in zip(changed, mixed, strict=True)]
    assert same == [False, True, False, True]


@pytest.mark.parametrize("options", [{}, {"lora_rank": 2}])
def test_two_networks_are_trained_and_compared_with_both_references(two, options):
    model = ours(two, guidance=4.0, guidance_2=2.0, keep_reference=True, **options)
    policy = denoising_policy_over(model)
    rollout = policy.rollout(Request(TEXTS[:2], [0, 1], 2, seed=0))
    with torch.no_grad():
        for number, parameter in enumerate(p for p in model.network.parameters() if p.requires_grad):
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    for part in rollout.steps.split(rollout.decisions.loss_mask, 5):  # parts of both sides of the boundary
        scores = policy.score(rollout, part, frozenset({"log_probs", "reference.log_probs"}))
        sampled = rollout.decisions.log_probs[part.rows, part.positions]
        torch.testing.assert_close(scores["reference.log_probs"], sampled, rtol=0, atol=2e-5)
        assert (scores["log_probs"] - sampled).abs().min() > 1e-4
        scores["log_probs"].sum().backward()
        again = policy.score(rollout, part, frozenset({"log_probs"}))["log_probs"]
        assert torch.equal(again, scores["log_probs"]), "the reference leaves both networks as they were"
    for network in (model.network.transformer, model.network.transformer_2):
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        assert all(".lora_" in name or not options for name, p in network.named_parameters() if p.requires_grad)
        assert any(p.grad is not None and p.grad.abs().max() > 0 for p in trained)


def test_two_whole_networks_are_two_folders_of_diffusers(two, tmp_path):
    from diffusers import WanTransformer3DModel

    model = ours(two)
    with torch.no_grad():
        model.network.transformer.proj_out.bias += 1.0
        model.network.transformer_2.proj_out.bias += 2.0
    model.save(tmp_path, model.network)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["transformer", "transformer_2"]
    for name in ("transformer", "transformer_2"):
        saved = WanTransformer3DModel.from_pretrained(tmp_path, subfolder=name).state_dict()
        own = getattr(model.network, name).state_dict()
        assert saved.keys() == own.keys() and all(torch.equal(saved[key], own[key]) for key in own)
    again = ours(two, weights=tmp_path)
    start = noise(model)
    assert torch.equal(draw(again, again.network, start, TEXTS), draw(model, model.network, start, TEXTS))


class Counted(torch.nn.Module):
    """A network that adds its number to what it is given, and counts rows."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number, self.rows = number, []

    def forward(self, x, time, words, image, return_dict):
        self.rows.append((len(x), None if image is None else image.tolist()))
        return (x + self.number,)


@pytest.mark.parametrize("pictures", [None, torch.arange(3.0)])
def test_a_network_without_rows_is_not_called(pictures):
    first, second = Counted(1.0), Counted(2.0)
    experts = Experts(first, second, 900.0)
    first.config = object()  # type: ignore[assignment]
    assert experts.config is first.config
    x, words = torch.zeros(3, 4, 1, 2, 2), torch.zeros(3, 5, 8)
    (moved,) = experts(x, torch.tensor([900.0, 950.0, 1000.0]), words, pictures, return_dict=False)
    assert bool((moved == 1).all()) and second.rows == []
    (moved,) = experts(x, torch.tensor([100.0, 950.0, 899.0]), words, pictures, return_dict=False)
    assert moved[:, 0, 0, 0, 0].tolist() == [2.0, 1.0, 2.0]
    given = (None, None) if pictures is None else ([1.0], [0.0, 2.0])
    assert (first.rows[1], second.rows[0]) == ((1, given[0]), (2, given[1]))


# ---- adapters


@pytest.mark.parametrize("version", VERSIONS)
def test_saved_adapters_give_diffusers_the_same_clip(folders, tmp_path, version):
    model = ours(folders[version], guidance=4.0, lora_rank=2, lora_alpha=6)
    library = lambda x, lora: theirs(folders[version], x, "latent", lora=lora, guidance_scale=4.0)  # noqa: E731
    check_adapters(model, tmp_path, library, prompts=TEXTS, close=2e-5)
    again, start = ours(folders[version], guidance=4.0, weights=tmp_path), noise(model)
    assert torch.equal(draw(again, again.network, start, TEXTS), draw(model, model.network, start, TEXTS))


def test_adapters_of_one_network_do_not_continue_two(folders, two, tmp_path):
    model = ours(folders["2.1"], lora_rank=2)
    model.save(tmp_path, model.network)
    with pytest.raises(FileNotFoundError, match="adapters"):
        ours(two, weights=tmp_path)


@pytest.mark.parametrize("rank", [0, 2])
def test_the_values_of_both_saved_networks_are_read_by_the_names_of_the_trained_parameters(
    two, folders, tmp_path, rank
):
    model = ours(two, lora_rank=rank)
    shake(model.network)
    trained = {name: one.detach().clone() for name, one in model.network.named_parameters() if one.requires_grad}
    assert {name.partition(".")[0] for name in trained} == {"transformer", "transformer_2"}
    model.save(tmp_path / "both", model.network)
    other = ours(two, lora_rank=rank)
    read = other.reference.read(tmp_path / "both")
    assert read.keys() == trained.keys() and all(torch.equal(read[name], trained[name]) for name in trained)
    one = ours(folders["2.1"], lora_rank=rank)
    one.save(tmp_path / "one", one.network)
    with pytest.raises(FileNotFoundError, match="transformer_2"):
        other.reference.read(tmp_path / "one")


# ---- memory


def test_clips_that_are_decoded_one_by_one_are_the_same(folders):
    model = ours(folders["2.1"])
    whole = clips_of(model.decode(noise(model)))
    model.decode_batch_size = 1
    torch.testing.assert_close(clips_of(model.decode(noise(model))), whole, atol=2e-5, rtol=0)


@pytest.mark.parametrize("version", ["2.1", "2.2-5B"])
def test_a_clip_in_tiles_is_the_same_to_a_fifth_of_its_contrast(folders, version):
    # A tile sees nothing of its surroundings, so tiling is an approximation. The root mean square of the error is
    # a tenth of the standard deviation of the pixels; if the tiles were one pixel off it would be .4.
    model = load(wan, folders[version], height=64, width=96, frames=5)
    whole = clips_of(model.decode(noise(model, 2)))
    model.limit_memory(WanOptions(vae_tiling=True), "the test")
    vae = model.architecture.pipeline.vae
    assert vae.use_tiling
    vae.enable_tiling(64, 64, 32, 32)
    calls = []
    vae.decoder.register_forward_hook(lambda *_: calls.append(1))
    tiled = clips_of(model.decode(noise(model, 2)))
    assert len(calls) == 2 * 3 * 2 and tiled.shape == whole.shape  # rows, columns, latent frames
    assert 0 < (tiled - whole).square().mean().sqrt() < 0.2 * whole.std()
    assert (tiled.roll(1, -1) - whole).square().mean().sqrt() > 0.3 * whole.std()


def test_a_vae_that_overflows_in_half_precision_is_found_though_it_clamps(folders):
    model = ours(folders["2.1"])
    with torch.no_grad():
        for name, parameter in model.architecture.pipeline.vae.decoder.named_parameters():
            if name.startswith("conv_in"):
                parameter.mul_(1e6)
    assert clips_of(model.decode(noise(model))).isfinite().all()
    model.limit_memory(WanOptions(vae_dtype="float16"), "the test")
    with pytest.raises(ValueError, match="VAE.*float16.*NaN"):
        model.decode(noise(model))


# ---- what cannot be


def test_a_prompt_that_is_too_long_or_cannot_be_cleaned_is_refused(folders, monkeypatch):
    model = ours(folders["2.1"], max_sequence_length=8)
    with pytest.raises(ValueError, match=r"a red circle.*\d+.*UMT5"):
        model.encode([Prompt("a red circle")])
    model.encode([Prompt("a &amp;amp;  b")])  # a & b, 6 tokens
    monkeypatch.setattr("diffusers.utils.is_ftfy_available", lambda: True)
    assert wan.clean("caf\u00e9") == "caf\u00e9"
    monkeypatch.setattr("diffusers.utils.is_ftfy_available", lambda: False)
    with pytest.raises(ValueError, match=r"caf\u00e9.*ASCII"):
        model.encode([Prompt("caf\u00e9")])


def test_a_second_network_without_its_boundary_is_an_error(two, tmp_path):
    folder = shutil.copytree(two, tmp_path / "model")
    file = folder / "model_index.json"
    index = json.loads(file.read_text())
    for change, message in (
        ({"boundary_ratio": 9}, "boundary_ratio.*9"),
        ({"boundary_ratio": 0}, "boundary_ratio.*0"),
        ({"boundary_ratio": 1}, "boundary_ratio.*1"),
        ({"boundary_ratio": "0.9"}, "boundary_ratio.*0.9"),
        ({"transformer_2": [None, None]}, r"transformer_2.*\[None, None\]"),
        ({"transformer_2": None}, "transformer_2.*None"),
    ):
        file.write_text(json.dumps(index | change))
        with pytest.raises(ValueError, match=message):
            ours(folder)


def test_a_repository_without_an_index_has_one_network(monkeypatch):
    monkeypatch.setattr(wan, "read_json", lambda *_: None)
    monkeypatch.setattr(wan, "read_network", lambda kind, source, training, name: f"{source}/{name}")
    assert wan.read_networks("owner/name", Training()) == {"transformer": "owner/name/transformer"}
