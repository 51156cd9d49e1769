"""What trains of an image generator: adapters, or the whole network, and what it is compared with."""

from __future__ import annotations

import pytest
import torch

from pipelines.lora import adapters_off, add_lora
from tests.libraries.pipelines.visual.drawing import at, check_adapters, load_pipeline, ours, shake, theirs


def test_only_adapters_train_and_the_base_is_what_they_start_from(words_folder):
    model, base = ours(words_folder, lora_rank=2), ours(words_folder)
    trained = [name for name, parameter in model.network.named_parameters() if parameter.requires_grad]
    # 8 projections of 2 layers but for to_add_out, which the last layer lacks: 15 adapters of A and B
    assert len(trained) == 2 * 15
    assert all(".lora_" in name for name in trained)
    assert torch.equal(at(model, model.network), at(base, base.network))


def test_the_targets_of_adapters_are_in_one_order_in_every_run(words_folder):
    # peft keeps a set of names, whose order differs from process to process
    config = ours(words_folder, lora_rank=2).network.peft_config["default"].to_dict()
    names = ["add_k_proj", "add_q_proj", "add_v_proj", "to_add_out", "to_k", "to_out.0", "to_q", "to_v"]
    assert config["target_modules"] == [f"attn.{name}" for name in names]


def test_adapters_come_back_after_an_error(words_folder):
    model = ours(words_folder, lora_rank=2)
    shake(model.network)
    adapted = at(model, model.network)
    with pytest.raises(RuntimeError, match="inside"), model.reference():
        raise RuntimeError("inside")
    assert torch.equal(at(model, model.network), adapted)


def test_a_reference_between_forward_and_backward_leaves_the_gradient(words_folder):
    model = ours(words_folder, lora_rank=2)
    shake(model.network)
    trained = [parameter for parameter in model.network.parameters() if parameter.requires_grad]
    expected = torch.autograd.grad(at(model, model.network).square().mean(), trained)
    loss = at(model, model.network).square().mean()
    with model.reference() as network, torch.no_grad():
        at(model, network)
    assert [p for p in model.network.parameters() if p.requires_grad] == trained
    for one, other in zip(torch.autograd.grad(loss, trained), expected, strict=True):
        assert torch.equal(one, other)


def test_a_frozen_adapter_stays_frozen_behind_the_reference(words_folder):
    model = ours(words_folder, lora_rank=2)
    model.network.requires_grad_(False)
    with adapters_off(model.network):
        pass
    assert not any(parameter.requires_grad for parameter in model.network.parameters())


def test_saved_adapters_give_diffusers_the_same_picture(folder, tmp_path):
    model = ours(folder, guidance=2.0, lora_rank=2, lora_alpha=6)  # a scale of 3, which the file must say
    library = lambda x, lora: theirs(load_pipeline("StableDiffusion3Pipeline", folder, lora), x, 2.0, "latent")  # noqa: E731
    check_adapters(model, tmp_path, library)


def test_adapters_of_another_network_are_refused(folder, words_folder, tmp_path):
    model = ours(folder, lora_rank=2, lora_targets=["attn2.to_q"])  # dual attention, which the other lacks
    model.save(tmp_path, model.network)
    with pytest.raises(ValueError, match="attn2.to_q"):
        ours(words_folder, weights=tmp_path)


def test_a_target_that_no_module_has_is_an_error(words_folder):
    with pytest.raises(ValueError, match="attn.to_qq.*attn.to_q"):
        ours(words_folder, lora_rank=2, lora_targets=["attn.to_k", "attn.to_qq"])


def test_adapters_are_a_function_of_their_seed(words_folder):
    one, same, other = (ours(words_folder, lora_rank=2, lora_seed=seed).network.state_dict() for seed in (0, 0, 1))
    drawn = [name for name in one if "lora_A" in name]
    assert all(torch.equal(one[name], same[name]) for name in drawn)
    assert not any(torch.equal(one[name], other[name]) for name in drawn)


def test_adding_adapters_leaves_the_global_generator_alone(words_folder):
    from diffusers import SD3Transformer2DModel

    network = SD3Transformer2DModel.from_pretrained(words_folder, subfolder="transformer")
    before = torch.random.get_rng_state()
    add_lora(network, 2, 4, ["attn.to_q"], seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_kept_reference_does_not_move_with_the_network(words_folder, tmp_path):
    model = ours(words_folder, keep_reference=True)
    before = at(model, model.network).detach()
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(1.1)
    with model.reference() as network:
        assert torch.equal(at(model, network), before)
        assert not any(parameter.requires_grad for parameter in network.parameters())
    after = at(model, model.network)
    assert not torch.equal(after, before)

    model.save(tmp_path, model.network)
    again = ours(words_folder, weights=tmp_path)
    assert torch.equal(at(again, again.network), after)


def test_without_a_kept_reference_one_is_told_how_to_have_it(words_folder):
    with pytest.raises(ValueError, match="keep_reference"):
        ours(words_folder).reference()
