"""Higgs Audio v2 against transformers: its ``generate``, its delay pattern, recordings of a codec, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.family import families
from mmgrpo.types import Media, Prompt, Request, Turn
from pipelines.speech import higgs_audio
from tests.building import load
from tests.libraries.families.test_battery import config_of
from tests.tiny import maker, tiny_checkpoint
from tests.tiny.higgs_audio import CODEBOOKS, CODES

BEGIN, END = CODES, CODES + 1
PROMPTS = [Prompt("a red square", "0"), Prompt("five", "1")]
STEPS = 14


@pytest.fixture(scope="module")
def folder() -> str:
    return tiny_checkpoint(maker("higgs_audio"))


def ours(folder: str, **options: Any) -> Any:
    return load(higgs_audio, folder, **{"vocoder": "tones", **options})


def policy_of(folder: str, steps: int = STEPS, **sampling: Any) -> Any:
    config = config_of("higgs_audio", folder)
    config = replace(config, sampling=replace(config.sampling, steps=steps, evaluation_steps=0, **sampling))
    return families()["higgs_audio"].policy(config, "cpu", PROMPTS)


def drawn(policy: Any, temperature: float = 0.0) -> Tensor:
    """Tokens of both prompts [2, S, C]."""
    steps, *_ = policy._draw(policy.model, Request(PROMPTS, [0, 1], 1, seed=3), temperature)
    return steps.tokens.view(2, -1, CODEBOOKS)


def with_another_head(network: Any, seed: int) -> None:
    with torch.no_grad():
        weight = network.audio_lm_head.weight
        weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)))


def test_the_most_likely_codes_are_those_of_transformers_own_generate(folder):
    policy, ended = policy_of(folder), 0
    read = policy.model.encode(PROMPTS)
    assert not read["real"].all(), "prompts of two lengths"
    given = {"input_ids": read["ids"], "attention_mask": read["real"].long()}
    for seed in range(6):
        with_another_head(policy.network, seed)
        codes = drawn(policy)
        expected = policy.network.generate(**given, do_sample=False, max_new_tokens=STEPS)
        shown = expected.shape[1]
        assert torch.equal(codes[:, :shown], expected) and (codes[:, shown:] == END).all()
        assert len(codes[codes < CODES].unique()) > 4
        ended += int((codes == END).all(-1).any(-1).sum())
    assert 0 < ended < 12, "some utterances end, and some do not"


@torch.no_grad()
def test_log_probs_are_those_of_a_loop_with_the_librarys_mask_and_without_a_cache(folder):
    from transformers.models.higgs_audio_v2.generation_higgs_audio_v2 import HiggsAudioV2DelayPatternLogitsProcessor

    policy = policy_of(folder, temperature=0.7)
    rollout = policy.rollout(Request(PROMPTS, [0, 1], 8, seed=1))
    model, config = policy.model, policy.network.config
    codes = rollout.steps.tokens.view(16, STEPS, CODEBOOKS)
    read = {name: value[rollout.steps.prompt] for name, value in model.encode(PROMPTS).items()}
    mask: Any = HiggsAudioV2DelayPatternLogitsProcessor(
        [1, 2, 3, 4], config.audio_bos_token_id, config.audio_delay_token_id, BEGIN, END, CODEBOOKS, CODES + 2
    )
    ids, real = read["ids"], read["real"]
    got, free, over = (
        rollout.decisions.log_probs.view_as(codes),
        rollout.decisions.loss_mask.view_as(codes),
        torch.zeros(16).bool(),
    )
    for step in range(STEPS):
        spoken = {"audio_input_ids": codes[:, :step]} if step else {}
        place = real.long().cumsum(1).sub(1).clamp(min=0)
        logits = policy.network(input_ids=ids, attention_mask=real, position_ids=place, **spoken).logits[:, -1]
        scores = mask(ids, logits).view(16, CODEBOOKS, -1)
        log_probs = torch.log_softmax(scores / 0.7, -1)
        expected = log_probs.gather(-1, codes[:, step, :, None])[..., 0]
        torch.testing.assert_close(got[~over, step].sum(-1), expected[~over].sum(-1), rtol=0, atol=2e-5)
        assert torch.equal(free[~over, step], scores.isfinite().sum(-1)[~over] > 1)
        assert not free[over, step].any() and not got[over, step].any()
        marks = codes[:, step] == END
        delayed = marks.any(-1) | (ids[:, -1] == config.audio_delay_token_id)
        following = torch.where(delayed, config.audio_delay_token_id, config.audio_token_id)
        over = over | marks.all(-1)
        ids, real = torch.cat([ids, following[:, None]], 1), torch.cat([real, torch.ones(16, 1).bool()], 1)
    assert 0 < over.sum() < 16, "some utterances end, and some do not"


def test_frames_are_those_of_the_librarys_processor(folder):
    from transformers import HiggsAudioV2Processor

    model, undelayed = ours(folder).variant(9), HiggsAudioV2Processor.revert_delay_pattern
    processor: Any = None  # which the function does not read
    steps = torch.arange(9)[:, None] * 3 % CODES + torch.arange(CODEBOOKS)
    for book in range(CODEBOOKS):
        steps[: book + 1, book] = BEGIN
    for end in (8, 6, 5):
        steps[end:] = END
        steps[end - 2 : end, 0] = END
        theirs = undelayed(processor, steps[1:end]).clip(0, BEGIN - 1)
        assert torch.equal(model.frames(steps).T, theirs) and len(theirs) == end - CODEBOOKS
    steps[4:] = END
    assert model.frames(steps).shape == (CODEBOOKS, 0)
    [silent] = model.render(PROMPTS[:1], steps.view(1, -1))
    assert not silent.samples.any() and silent.samples.shape == (1, 160)


def test_marks_stand_where_the_steps_before_them_demand_it(folder):
    """-1: any code can stand there. The first end is drawn by codebook 2 at step 3; or all draw theirs at step 5."""
    model, steps = ours(folder), torch.zeros(2, 8, CODEBOOKS).long()
    steps[0, 3, 2], steps[1, 5] = END, END
    begun = [[BEGIN] * 4, [-1] + [BEGIN] * 3, [-1] * 2 + [BEGIN] * 2, [-1] * 3 + [BEGIN]]
    closing = [[END] * n + [-1] * (4 - n) for n in (1, 2, 3, 4)]
    expected = torch.tensor([begun + closing, [*begun, [-1] * 4, [-1] * 4, [END] * 4, [END] * 4]])
    assert torch.equal(model._only(steps), expected)


def test_what_the_codec_of_as_many_codebooks_decodes_reaches_rewards(folder, tmp_path):
    from transformers import DacConfig, DacModel

    sizes: Any = {
        "encoder_hidden_size": 4,
        "decoder_hidden_size": 16,
        "downsampling_ratios": [2],
        "upsampling_ratios": [2],
        "hidden_size": 8,
    }
    for books in (CODEBOOKS, 3):
        made = DacConfig(**sizes, n_codebooks=books, codebook_size=CODES, sampling_rate=8000)
        DacModel(made).eval().save_pretrained(tmp_path / str(books))
    path = str(tmp_path / str(CODEBOOKS))
    config = config_of("higgs_audio", folder, vocoder="codec", vocoder_path=path)
    policy: Any = families()["higgs_audio"].policy(config, "cpu", PROMPTS)
    rollout = policy.rollout(Request(PROMPTS, [0, 1], 2, seed=0))
    codec: Any = DacModel.from_pretrained(path).eval()
    for sound, tokens in zip(rollout.outputs, rollout.steps.tokens, strict=True):
        codes = policy.model.frames(tokens.view(-1, CODEBOOKS))
        with torch.no_grad():
            expected = codec.decode(audio_codes=codes[None]).audio_values.reshape(1, -1).clamp(-1, 1)
        assert sound.rate == 8000 and codes.shape[1] > 0
        torch.testing.assert_close(sound.samples, expected, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match=r"model\.vocoder_path.*3 codebooks, expected 4"):
        ours(folder, vocoder="codec", vocoder_path=str(tmp_path / "3"))


def test_the_prompt_is_what_the_library_writes_of_system_scene_and_user(folder):
    model = ours(folder)
    words = "".join(model.tokenizer.convert_ids_to_tokens(model.ids(Prompt(" a  red\nsquare "))))
    assert words.count("<|begin_of_text|>") == 1 and words.endswith("<|audio_out_bos|>") and "a red square" in words
    assert words.index("system") < words.index("<|scene_desc_start|>") < words.index("user")
    assert "<|scene_desc_start|>" not in model.tokenizer.decode(ours(folder, scene="").ids(Prompt("a")))
    for text, named in (("", "no text"), ("a <|AUDIO_OUT|>", "AUDIO_OUT")):
        with pytest.raises(ValueError, match=named):
            model.check(Prompt(text, "0"))
    with pytest.raises(ValueError, match="media"):
        model.check(Prompt("a", "0", turns=(Turn("user", (Media("audio", "a.wav"), "a")),)))
    model.tokenizer.chat_template = "{{ messages[-1].content[0].text }}"
    with pytest.raises(ValueError, match="audio_bos_token_id"):
        model.check(Prompt("a"))


def test_too_few_steps_for_a_frame_and_a_vocoder_of_too_few_codes_are_refused(folder, monkeypatch):
    with pytest.raises(ValueError, match=r"^sampling\.steps: got 4, expected more than 4"):
        policy_of(folder, steps=4)
    monkeypatch.setattr("pipelines.speech.vocoders.Tones.size", lambda voice: CODES - 1)
    with pytest.raises(ValueError, match=r"model\.vocoder: got one of 31 codes.*32"):
        ours(folder)


@pytest.mark.parametrize(
    "options", [{"dtype": "bfloat16"}, {"dtype": "bfloat16", "lora_rank": 2}, {"gradient_checkpointing": True}]
)
def test_half_precision_and_checkpointing_score_what_was_drawn(folder, options):
    config = config_of("higgs_audio", folder, **options)
    policy: Any = families()["higgs_audio"].policy(config, "cpu", PROMPTS)
    rollout = policy.rollout(Request(PROMPTS, [0, 1], 3, seed=0))
    [part] = rollout.steps.split(rollout.decisions.loss_mask, 100)
    again = policy.score(rollout, part, frozenset({"log_probs"}))["log_probs"]
    again.sum().backward()
    before = rollout.decisions.log_probs[part.rows, part.positions]
    torch.testing.assert_close(again.detach(), before, rtol=0, atol=0.1 if "dtype" in options else 1e-5)
    trained = [one for one in policy.network.parameters() if one.requires_grad]
    assert sum(one.grad is not None and bool(one.grad.any()) for one in trained) > 0.5 * len(trained) * (
        0.5 if "lora_rank" in options else 1
    )


def test_a_saved_model_is_one_of_transformers(folder, tmp_path):
    from transformers import AutoTokenizer, HiggsAudioV2ForConditionalGeneration

    policy = policy_of(folder)
    policy.save(Path(tmp_path) / "model")
    again = HiggsAudioV2ForConditionalGeneration.from_pretrained(tmp_path / "model").eval()
    ids = policy.model.encode(PROMPTS[:1])["ids"]
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids).logits, policy.network(input_ids=ids).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "model").chat_template == policy.model.tokenizer.chat_template
