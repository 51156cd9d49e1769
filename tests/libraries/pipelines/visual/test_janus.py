"""Janus as an image token policy, against transformers and against its own parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.config.settings import config_class
from mmgrpo.family import family
from mmgrpo.policies.generation import DecodingState
from mmgrpo.policies.token_model import next_position
from mmgrpo.types import Image, Prompt, Request, Rollout
from pipelines.visual import janus
from pipelines.visual.enlarger import Enlarger
from pipelines.visual.janus import VQ, weight_names, words_of
from pipelines.visual.patches import PatchTokenizer
from tests.building import rescored
from tests.tiny import tiny_checkpoint
from tests.tiny.janus import tiny

PROMPTS = [Prompt("a red square", "0"), Prompt("blue", "1"), Prompt("a green circle left of a blue square .", "2")]
"""Of different lengths, so rows are padded."""


@pytest.fixture(scope="module")
def folder() -> str:
    return tiny_checkpoint(tiny)


def config_of(path: str, prompts: int = 3, **model: Any) -> Any:
    kind = config_class(family("janus").sections)()
    config = replace(
        kind, model=replace(kind.model, path=path, device="cpu", **{"guidance": 1.0, **model}), trackers=[], threads=1
    )
    return replace(config, data=replace(config.data, prompts_per_step=prompts, group_size=4))


def policy_of(path: str, weights: str = "", **model: Any) -> Any:
    return family("janus").policy(config_of(path, **model), "cpu", PROMPTS, weights=weights)


def shaken(policy: Any, size: float = 0.1) -> Any:
    """Weights at which prompts and codes matter."""
    with torch.no_grad():
        for number, one in enumerate(policy.network.parameters()):
            if one.requires_grad:
                one += size * torch.randn(one.shape, generator=torch.Generator().manual_seed(number))
    return policy


def drawn(policy: Any, count: int = 4) -> Rollout:
    return policy.rollout(Request(PROMPTS, range(len(PROMPTS)), count, seed=3))


def ratio_gap(policy: Any, rollout: Rollout) -> float:
    return float((rescored(policy, rollout) - rollout.decisions.log_probs).exp().sub(1).abs().max())


@pytest.mark.parametrize("model", [{"guidance": 5.0}, {}, {"guidance": 2.0, "gradient_checkpointing": True}])
def test_what_is_drawn_with_a_cache_is_what_one_pass_scores(model, folder):
    policy = shaken(policy_of(folder, **model))
    rollout = drawn(policy)
    torch.testing.assert_close(rescored(policy, rollout), rollout.decisions.log_probs, rtol=0, atol=1e-5)
    [part] = rollout.steps.split(rollout.decisions.loss_mask, 100)
    again = policy.score(rollout, part, frozenset({"log_probs"}))["log_probs"]  # whole rows under checkpointing
    expected = rollout.decisions.log_probs[part.rows, part.positions]
    torch.testing.assert_close(again.detach(), expected, rtol=0, atol=1e-5)


def test_the_ratio_is_one_only_under_the_guidance_that_drew(folder):
    policy = shaken(policy_of(folder, guidance=5.0))
    rollout = drawn(policy)
    assert ratio_gap(policy, rollout) < 1e-4
    policy.model.guidance = 4.0
    assert ratio_gap(policy, rollout) > 0.05
    plain = shaken(policy_of(folder))
    assert ratio_gap(plain, rollout) > 0.05


def test_images_have_all_their_codes_and_guidance_counts_twice(folder):
    once, twice = drawn(policy_of(folder)), drawn(policy_of(folder, guidance=2.0))
    for rollout in (once, twice):
        assert rollout.decisions.loss_mask.all() and rollout.decisions.loss_mask.shape == (12, 16)
        assert not rollout.decisions.fields["truncated"].any()
        for one in rollout.outputs:
            assert isinstance(one, Image) and one.pixels.shape == (3, 8, 8)
            assert float(one.pixels.min()) >= 0 and float(one.pixels.max()) <= 1
    assert (once.evaluations, twice.evaluations) == (12 * 16, 2 * 12 * 16)
    totals = [family("janus").arithmetic(config_of(folder, guidance=scale)).totals for scale in (1.0, 2.0)]
    assert [one["rows to sample"] for one in totals] == [12, 24]


def generated(policy: Any, **options: Any) -> Tensor:
    """Codes of transformers' own loop for the prompts of the policy."""
    context, network, words = policy.model.encode(PROMPTS), policy.network, policy.model.words
    given = {"pad_token_id": words.pad, "bos_token_id": words.bos, "guidance_scale": policy.model.guidance, **options}
    return network.generate(
        context.ids - policy.model.codebook, context.real.long(), generation_mode="image", use_cache=True, **given
    )


def test_greedy_codes_are_those_of_generate(folder):
    policy = shaken(policy_of(folder, guidance=5.0))
    policy.evaluation_temperature = 0.0
    theirs = generated(policy, do_sample=False)
    assert len(theirs.unique()) > 4
    images = policy.sample(Request(PROMPTS, range(len(PROMPTS)), 1, seed=0))
    for ours, image in zip(images, policy.model.pixels(theirs).clamp(0, 1), strict=True):
        assert torch.equal(ours.pixels, image)


def test_sampled_codes_are_those_of_generate_for_equal_seeds(folder):
    policy = shaken(policy_of(folder, guidance=5.0))
    torch.manual_seed(7)
    theirs = generated(policy, do_sample=True, top_k=0, top_p=1.0, temperature=1.0)
    model, network, context = policy.model, policy.network, policy.model.encode(PROMPTS)
    torch.manual_seed(7)
    codes = []
    with torch.no_grad():
        hidden, cache = model.hidden(network, context.ids, context.real, context.positions, (), None)
        state = DecodingState(model, network, hidden[:, -1], cache, context.real, next_position(context), 1)
        for _ in range(model.codes):
            codes.append(torch.multinomial(torch.softmax(model.logits(network, state.hidden), -1), 1)[:, 0])
            state = state.advance(codes[-1], torch.ones(len(PROMPTS), dtype=torch.bool))
    assert torch.equal(torch.stack(codes, 1), theirs)


@pytest.mark.parametrize("rank", [0, 2])
def test_the_vq_model_is_no_part_of_what_trains_or_is_stored(rank, folder):
    policy = policy_of(folder, lora_rank=rank)
    names = [name for name, _ in policy.network.named_parameters()]
    assert names and not any("vqmodel" in name for name in names)
    assert not any(one.requires_grad for one in policy.model.images.parameters())
    trained = {name for name, one in policy.network.named_parameters() if one.requires_grad}
    assert trained and not any("vision_model" in name or "aligner" in name.split("generation_")[0] for name in trained)


def test_a_saved_model_is_one_of_transformers_with_its_vq(folder, tmp_path):
    from transformers import JanusForConditionalGeneration

    policy = shaken(policy_of(folder))
    policy.save(tmp_path / "saved")
    theirs: Any = JanusForConditionalGeneration.from_pretrained(tmp_path / "saved")
    codes = torch.arange(32).view(2, 16) % 24
    image = theirs.decode_image_tokens(codes).permute(0, 3, 1, 2)
    torch.testing.assert_close((image + 1) / 2, policy.model.pixels(codes), rtol=0, atol=1e-6)
    rollout = drawn(policy)
    assert torch.equal(rescored(policy_of(str(tmp_path / "saved")), rollout), rescored(policy, rollout))


def test_no_gradient_reaches_the_encoder_through_the_forward_pass_of_the_vq_model(folder):
    """Which decodes from indices: a tokenizer is trained by its parts."""
    vq: Any = policy_of(folder).model.images.requires_grad_(True)
    vq(torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1)[0].sum().backward()
    assert vq.encoder.conv_in.weight.grad is None and vq.decoder.conv_out.weight.grad is not None


def changed(folder: str, place: Path, values: dict[str, Any], without: str = "") -> str:
    """A copy of the checkpoint with other values in a section of its configuration, and without some weights."""
    from safetensors.torch import load_file, save_file

    place.mkdir()
    for file in Path(folder).iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    config = json.loads((place / "config.json").read_text())
    for section, some in values.items():
        config[section] |= some
    (place / "config.json").write_text(json.dumps(config))
    if without:
        kept = {n: w for n, w in load_file(place / "model.safetensors").items() if not n.startswith(without)}
        save_file(kept, place / "model.safetensors", {"format": "pt"})
    return str(place)


@pytest.mark.parametrize(
    ("values", "without", "size", "message"),
    [
        ({}, "", 16, r"model\.size.*16.*8"),
        ({}, VQ, 0, r"model\.path.*model\.vqmodel"),
        ({"text_config": {"max_position_embeddings": 16}}, "", 0, r"num_image_tokens.*16.*max_position_embeddings=16"),
        ({"vision_config": {"num_image_tokens": 15}}, "", 0, r"num_image_tokens.*15.*16"),
    ],
)
def test_a_checkpoint_that_cannot_draw_is_refused_before_its_weights_are_read(
    values, without, size, message, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(janus, "read_network", lambda *given, **named: pytest.fail("read"))
    path = changed(folder, tmp_path / "copy", values, without)
    config, owner = config_of(path, size=size), family("janus")
    with pytest.raises(ValueError, match=message):
        owner.refuse_model(config, path)
    with pytest.raises(ValueError, match=message):
        owner.policy(config, "cpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" ", "no text"),
        ("a purple square", "'purple'"),
        ("a <begin_of_image> square", "begin_of_image"),
        ("a " * 48, r"50 tokens.*49"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_named(text, message, folder):
    words = words_of(folder)
    with pytest.raises(ValueError, match=f"'bad'.*{message}"):
        words.ids(Prompt(text, "bad"))
    usable, skipped = family("janus").readable(
        replace(config_of(folder), data=replace(config_of(folder).data, skip_limit=0.5)),
        [*PROMPTS, Prompt(text, "bad")],
        "rows",
    )
    assert (len(usable), [one.id for one in skipped]) == (3, ["bad"])


def test_names_of_weights_are_those_of_the_files_or_of_the_index_of_a_repository(folder, tmp_path, monkeypatch):
    assert any(VQ in name for name in weight_names(folder) or ()) and weight_names(str(tmp_path)) is None
    for index, names in (({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}, {"a", "b"}), (None, None)):
        monkeypatch.setattr(janus, "read_json", lambda source, file, index=index: index)
        assert weight_names("someone/model") == names


def test_the_longest_prompt_and_its_image_fill_the_context(folder):
    policy = policy_of(folder)
    longest = [Prompt("a " * 47, "long")]  # 64 places: 47 words, two marks, and 15 codes that are read
    assert len(policy.rollout(Request(longest, [0], 2, seed=0)).outputs) == 2


def test_a_prompt_is_the_turn_of_a_chat_template_with_one_beginning(folder, tmp_path):
    path = changed(folder, tmp_path / "copy", {})
    template = "{% for m in messages %}a {{ m['content'] }} . {% endfor %}"
    (tmp_path / "copy" / "chat_template.jinja").write_text(template)
    words = words_of(path)
    assert words.tokenizer.decode(words.ids(Prompt("red square", "0"))) == "<bos> a red square . <begin_of_image>"


def test_patches_are_found_again_and_drawn_in_their_places():
    """Patches of one colour each: white, and three others."""
    table = torch.tensor([[1.0, 1, 1], [-1, 1, 1], [1, -1, 1], [1, 1, -1]])[:, :, None, None].expand(4, 3, 2, 2)
    patches = PatchTokenizer(table, 3, Enlarger(scale=1))
    for weight in patches.enlarger.parameters():
        torch.nn.init.zeros_(weight)
    codes = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 0]])
    image = patches.decode(codes)
    assert patches.size == 6 and image.shape == (1, 3, 6, 6)
    assert image[0, :, 0, 2].tolist() == [-1, 1, 1] and image[0, :, 2, 0].tolist() == [1, 1, -1]
    assert torch.equal(patches.encode(image), codes)
    assert torch.equal(patches.encode(image.repeat_interleave(2, 2).repeat_interleave(2, 3)), codes)


def test_a_small_model_draws_with_patches_and_saves_them(folder, tmp_path, capfd):
    """Without a VQ model, which is neither looked for nor named as missing."""
    path = changed(folder, tmp_path / "small", {}, VQ)
    generator = torch.Generator().manual_seed(0)
    enlarger = Enlarger(scale=2)
    table = torch.rand(24, 3, 2, 2, generator=generator) * 2 - 1
    PatchTokenizer(table, 4, enlarger).save(Path(path) / "patches")
    family("janus").refuse_model(config_of(path, size=16), path)
    policy = shaken(policy_of(path))
    assert "vqmodel" not in capfd.readouterr().err
    rollout = drawn(policy)
    assert all(isinstance(one, Image) and one.pixels.shape == (3, 16, 16) for one in rollout.outputs)
    policy.save(tmp_path / "saved")
    again = policy_of(str(tmp_path / "saved"))
    codes = torch.arange(32).view(2, 16) % 24
    assert torch.equal(again.model.pixels(codes), policy.model.pixels(codes))
    assert torch.equal(rescored(again, rollout), rescored(policy, rollout))
