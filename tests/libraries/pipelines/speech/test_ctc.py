"""Recognizers with a CTC head, of real architectures: sampled, scored and decoded as the library does."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mmgrpo.config.settings import config_class
from mmgrpo.family import family
from mmgrpo.policies.ctc import CtcPolicy
from mmgrpo.types import Media, Prompt, Request, Rollout
from pipelines import speech
from pipelines.speech import ctc, whisper
from pipelines.training import Training
from tests.building import load
from tests.libraries.families.examples import HEARD, PICTURE, hum, shown
from tests.tiny import maker, tiny_checkpoint
from tests.tiny.ctc import KINDS


@pytest.fixture(scope="module")
def folders() -> dict[str, str]:
    return {kind: tiny_checkpoint(maker("ctc"), kind) for kind in KINDS}


def rollout(policy: CtcPolicy, group_size: int = 4, prompts: list[Prompt] = HEARD) -> Rollout:
    return policy.rollout(Request(prompts, range(len(prompts)), group_size, 0))


def rescored(policy: CtcPolicy, made: Rollout, limit: int = 100) -> Tensor:
    parts = list(made.steps.split(made.decisions.loss_mask, limit))
    return torch.cat([policy.score(made, part, frozenset())["log_probs"] for part in parts])


@pytest.mark.parametrize("kind", KINDS)
def test_log_probs_are_minus_the_librarys_own_loss(kind, folders):
    model = load(ctc, folders[kind])
    made = rollout(CtcPolicy(model))
    network: Any = model.network
    network.config.ctc_loss_reduction = "sum"
    for row, clip in enumerate(made.steps.prompt.tolist()):  # type: ignore[attr-defined]
        labels = torch.tensor([made.steps.labels[row]])  # type: ignore[attr-defined]
        with torch.no_grad():
            loss = network(**made.steps.clips[clip], labels=labels).loss  # type: ignore[attr-defined]
        assert float(made.decisions.log_probs[row, 0]) == pytest.approx(-float(loss), rel=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_decoding_is_the_librarys_without_special_labels(kind, folders):
    model = load(ctc, folders[kind])
    said = CtcPolicy(model).sample(Request(HEARD, range(3), 1, 0))
    network: Any = model.network
    for prompt, output in zip(HEARD, said, strict=True):
        inputs = model.encode(prompt)
        with torch.no_grad():
            generates = kind == "parakeet_ctc"
            paths = network.generate(**inputs) if generates else network(**inputs).logits.argmax(-1)
        # Asked to leave out special labels, the library's wav2vec leaves out blanks before it merges repetitions.
        theirs = re.sub("<[a-z/]+>", "", model.processor.batch_decode(paths)[0]).strip()
        assert output.text == theirs != ""


def test_equal_labels_that_follow_each_other_are_two_letters_and_special_ones_none(folders):
    letters, pieces = load(ctc, folders["wav2vec2"]), load(ctc, folders["parakeet_ctc"])
    ids = letters.processor.tokenizer.get_vocab()
    assert letters.decode([ids[one] for one in "all|of|it"]) == "all of it"
    assert letters.decode([ids["<s>"], ids["a"], ids["</s>"]]) == "a" and letters.decode([]) == pieces.decode([]) == ""
    ids = pieces.processor.tokenizer.get_vocab()
    assert pieces.decode([ids[one] for one in ("▁a", "l", "l", "▁o", "f")]) == "all of"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_with_and_without_gradients_the_same_kernels_run(kind, dtype, folders):
    policy = CtcPolicy(load(ctc, folders[kind], Training(dtype=dtype, lora_rank=2)))
    made = rollout(policy)
    torch.testing.assert_close(rescored(policy, made), made.decisions.log_probs[:, 0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_adapter_has_an_effect(kind, folders):
    policy = CtcPolicy(load(ctc, folders[kind], Training(lora_rank=2)))
    rescored(policy, rollout(policy)).sum().backward()
    names = [name for name, parameter in policy.network.named_parameters() if parameter.requires_grad]
    assert names and all("lora_" in name for name in names)
    parameters = dict(policy.network.named_parameters())
    second = [name for name in names if "lora_B" in name]  # the first factor's gradient is zero at the start
    assert len(second) == len(names) / 2
    assert all(bool(parameters[name].grad.any()) for name in second)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", KINDS)
def test_the_convolutions_that_read_the_sound_are_frozen_unless_asked(kind, folders):
    for frozen in (True, False):
        network = load(ctc, folders[kind], freeze_front_end=frozen).network
        held = {name for name, parameter in network.named_parameters() if not parameter.requires_grad}
        front = {name for name, _ in network.named_parameters() if ".feature_extractor." in name or "subsampl" in name}
        assert front and held == (front if frozen else set())


def test_a_clip_is_read_once_for_its_group_in_rollout_and_in_update(folders):
    model = load(ctc, folders["parakeet_ctc"])
    heard: list[int] = []
    model.network.encoder.register_forward_pre_hook(  # type: ignore[union-attr]
        lambda module, args, given: heard.append(len(given["input_features"])), with_kwargs=True
    )
    policy = CtcPolicy(model)
    made = rollout(policy, group_size=6)
    assert heard == [1, 1, 1]
    rescored(policy, made, limit=2)
    assert heard == [1] * 6


@pytest.mark.parametrize("kind", KINDS)
def test_checkpointing_computes_layers_twice_and_leaves_the_gradient_unchanged(kind, folders):
    gradients, passes = [], [0, 0]

    def count(*_: Any) -> None:
        passes[len(gradients)] += 1

    for checkpointing in (False, True):
        policy = CtcPolicy(load(ctc, folders[kind], Training(gradient_checkpointing=checkpointing)))
        for module in policy.network.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.register_forward_hook(count)
        rescored(policy, rollout(policy)).sum().backward()
        gradients.append({n: p.grad for n, p in policy.network.named_parameters() if p.grad is not None})
    assert passes[1] > passes[0]
    largest = max(float(gradient.abs().max()) for gradient in gradients[0].values())
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-5 * largest, msg=name)


def without(folder: str, target: Path, lacking: str) -> str:
    """A copy of a checkpoint that lacks a weight."""
    target.mkdir()
    for file in Path(folder).iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    weights = load_file(target / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.endswith(lacking)}
    assert len(kept) == len(weights) - 1
    save_file(kept, target / "model.safetensors", {"format": "pt"})
    return str(target)


def test_a_checkpoint_may_lack_the_mask_of_its_pretraining_and_nothing_else(folders, tmp_path):
    """facebook/wav2vec2-base-960h lacks ``masked_spec_embed``."""
    whole = load(ctc, folders["wav2vec2"])
    masked = load(ctc, without(folders["wav2vec2"], tmp_path / "a", "masked_spec_embed"))
    clip = whole.encode(HEARD[0])
    assert torch.equal(whole.logits(whole.network, clip), masked.logits(masked.network, clip))
    with pytest.raises(ValueError, match=r"1.*\['lm_head.weight'\]"):
        load(ctc, without(folders["wav2vec2"], tmp_path / "b", "lm_head.weight"))


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (Prompt("write it down", "7"), "'7'"),
        (shown(7, PICTURE), "image"),
        (shown(7, hum(0), "what is said ?"), "what is said [?].*CTC"),
        (shown(7, hum(0, 0.05)), "'7'.*0.050.*0.1"),
        (shown(7, hum(0, 3.0)), "'7'.*3.0.*model.seconds"),
    ],
)
def test_what_is_no_clip_is_refused(prompt, reason, folders):
    with pytest.raises(ValueError, match=reason):
        load(ctc, folders["wav2vec2"], seconds=2.0).encode(prompt)


@pytest.mark.parametrize("kind", KINDS)
def test_the_shortest_clip_has_a_frame(kind, folders):
    model = load(ctc, folders[kind])
    assert len(model.logits(model.network, model.encode(shown(0, hum(0, 0.1))))) >= 1


def test_a_checkpoint_names_its_family_and_one_of_another_kind_is_refused(folders, tmp_path):
    for kind, folder in folders.items():
        assert speech.policy(folder).settings.family.name == "ctc", kind
    with pytest.raises(ValueError, match="wavlm.*whisper"):
        speech.policy(folders["wavlm"], family="whisper")
    other = whisper.tiny(tmp_path)
    with pytest.raises(ValueError, match="whisper.*'ctc'"):
        speech.policy(other, family="ctc")
    with pytest.raises(ValueError, match="whisper.*CTC"):
        load(ctc, other)


def test_settings_reach_the_policy_and_a_round_costs_a_pass_per_clip(folders):
    made = speech.policy(folders["hubert"], temperature=0.7, search="beam", evaluation_temperature=0.3, seconds=4.0)
    assert isinstance(made, CtcPolicy)
    assert (made.temperature, made.search, made.evaluation_temperature) == (0.7, "beam", 0.3)
    assert made.model.seconds == 4.0  # type: ignore[attr-defined]
    config = config_class(family("ctc").sections)()
    config = replace(config, data=replace(config.data, prompts_per_step=3, group_size=500))
    config.optim.epochs = 2
    told = family("ctc").arithmetic(config)
    assert told.lines == (
        "3 clips x 500 transcripts = 1,500 transcripts",
        "3 clips read to sample, 6 forward and backward",
    )
    assert told.groups == 3
    with pytest.raises(ValueError, match="model.path.*'ctc'"):
        family("ctc").check(config)


def test_the_answer_of_a_row_is_no_member_of_a_group(folders):
    config = config_class(family("ctc").sections)()
    config = replace(config, data=replace(config.data, reference_in_group=True))
    config = replace(config, model=replace(config.model, path=folders["wavlm"]))
    with pytest.raises(ValueError, match="data.reference_in_group.*true.*'ctc'"):
        family("ctc").policy(config, "cpu")


class Frames(torch.nn.Module):
    """Four frames for every clip, of which those with an attention mask have as many as it says."""

    def forward(self, **clip: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=torch.arange(8.0).view(1, 4, 2))

    def _get_output_attention_mask(self, mask: Tensor, target_length: int) -> Tensor:
        assert target_length == 4
        return torch.arange(4)[None] < mask.sum()


@pytest.mark.parametrize(("checkpointing", "grad"), [(True, True), (True, False), (False, True), (False, False)])
def test_frames_that_are_not_of_the_clip_are_left_out_and_layers_are_checkpointed_with_gradients(
    checkpointing, grad, monkeypatch
):
    asked: list[bool] = []
    monkeypatch.setattr(ctc, "checkpoint_layers", lambda network, enabled: asked.append(enabled))
    model = object.__new__(ctc.Ctc)
    model.network, model.checkpointing = Frames(), checkpointing
    model.dtype, model.device = torch.float32, torch.device("cpu")
    with torch.set_grad_enabled(grad):
        masked = model.logits(model.network, {"input_features": torch.ones(1), "attention_mask": torch.ones(1, 3)})
        whole = model.logits(model.network, {"input_values": torch.ones(1)})
    assert masked.tolist() == [[0, 1], [2, 3], [4, 5]] and len(whole) == 4
    assert asked == [checkpointing and grad] * 2
    plain = model.logits(lambda **_: SimpleNamespace(logits=torch.zeros(1, 4, 2)), {"attention_mask": torch.ones(1, 3)})
    assert len(plain) == 3  # the model's own network knows the mask
    model.network = torch.nn.Identity()
    assert len(model.logits(Frames(), {"attention_mask": torch.ones(1, 3)})) == 4


def test_a_sound_of_another_rate_is_resampled(folders):
    model = load(ctc, folders["wav2vec2"])
    sound = hum(0).source
    slow = shown(0, Media("audio", replace(sound, rate=8_000)))  # type: ignore[type-var]
    assert model.encode(slow)["input_values"].shape == (1, 32_000)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recording_has_the_same_transcript_alone_and_in_a_batch_of_other_lengths(kind, folders):
    """Each goes through the network alone, since padding changes what models without a mask compute."""
    model = load(ctc, folders[kind])
    prompts = [shown(0, hum(0, 0.4)), shown(1, hum(1, 1.3)), shown(2, hum(2, 0.9))]
    masked = kind in ("wav2vec2_large", "parakeet_ctc")
    assert ("attention_mask" in model.encode(prompts[0])) == masked
    together = CtcPolicy(model).sample(Request(prompts, range(3), 1, 0))
    alone = [CtcPolicy(model).sample(Request([prompt], [0], 1, 0))[0] for prompt in prompts]
    assert [one.text for one in together] == [one.text for one in alone] and all(one.text for one in alone)
    made = rollout(CtcPolicy(model), prompts=prompts)
    torch.testing.assert_close(rescored(CtcPolicy(model), made), made.decisions.log_probs[:, 0], rtol=1e-6, atol=0)


def test_a_mask_makes_a_padded_batch_of_the_library_equal_to_each_recording_alone(folders):
    model = load(ctc, folders["wav2vec2_large"])
    prompts = [shown(0, hum(0, 0.4)), shown(1, hum(1, 1.3))]
    sounds = [prompt.media[0].source.samples[0].numpy() for prompt in prompts]  # type: ignore[union-attr]
    batch = model.processor(audio=sounds, sampling_rate=16_000, padding=True, return_tensors="pt")
    network: Any = model.network
    with torch.no_grad():
        logits = network(**batch).logits
        for row, prompt in enumerate(prompts):
            own = model.logits(network, model.encode(prompt))
            torch.testing.assert_close(logits[row, : len(own)], own, rtol=0, atol=1e-4)
