"""A Qwen2-Audio of the real architecture: sampled as scored, and as the library's processor and network compute."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.policies.token import TokenPolicy
from mmgrpo.policies.token_model import TokenModel
from mmgrpo.types import Audio, Image, Media, Prompt, Request
from pipelines.speech import qwen_audio
from tests.building import load, rescored, token_policy_over
from tests.seeing import asked, gradient, kept, rollout
from tests.tiny import maker, tiny_checkpoint

RATE = 16_000
LOG_PROBS = frozenset({"log_probs"})


def hum(number: int, seconds: float = 1.0, rate: int = RATE, channels: int = 1) -> Media:
    """A tone, each number's a third higher than the last."""
    samples = torch.sin(torch.arange(int(seconds * rate)) * 0.02 * 1.3**number * RATE / rate) / 2
    return Media("audio", Audio(samples.expand(channels, -1), rate))


ONE = asked("one", hum(0), "what is said ?")
OTHER = asked("other", hum(5), "what is said ?")
TWO = asked("two", hum(1, 0.5), "is it", hum(2, 2.0), "or not ? Say it in a whole sentence .")
WORDS = Prompt("yes or no ?", "words")
LONG = asked("long", "listen :", hum(3, 3.3))
EVERY = [ONE, TWO, WORDS, LONG]
"""One clip, two, none, and one behind the text."""


@pytest.fixture(scope="module")
def folder() -> str:
    return tiny_checkpoint(maker("qwen_audio"))


@pytest.fixture(scope="module")
def loaded(folder) -> Any:
    """Never trained, so all tests may use it."""
    return load(qwen_audio, folder)


def library_inputs(folder: str, prompt: Prompt) -> dict[str, Any]:
    """What the library's own processor makes of one prompt."""
    from transformers import Qwen2AudioProcessor

    processor = Qwen2AudioProcessor.from_pretrained(folder)
    parts = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "audio"}
        for turn in prompt.turns
        for part in turn.parts
    ]
    said = [{"role": "user", "content": parts or [{"type": "text", "text": prompt.text}]}]
    text = processor.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
    clips = [medium.source.samples[0].numpy() for medium in prompt.media]
    return dict(processor(text=[text], audio=clips or None, sampling_rate=RATE, return_tensors="pt"))


def library_log_probs(loaded: Any, inputs: dict[str, Any], completions: Tensor) -> Tensor:
    """Log-probs of completions by the library's forward pass, over the tokens that are ever said."""
    ids = torch.cat([inputs["input_ids"], completions], 1)
    with torch.no_grad():
        out = loaded.network(**inputs | {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    logits = out.logits[:, -completions.shape[1] - 1 : -1].index_fill(
        2, torch.tensor(sorted(loaded.suppress_tokens)), -1e30
    )
    return logits.log_softmax(-1).gather(2, completions[..., None])[..., 0]


def test_the_family_answers_the_policys_questions(loaded):
    assert isinstance(loaded, TokenModel)


def test_scores_are_those_of_the_librarys_processor_and_forward_pass(loaded, folder):
    made = rollout(TokenPolicy(loaded, max_tokens=6), EVERY)
    for row in range(made.decisions.rows):
        inputs, real = library_inputs(folder, made.prompts[row]), made.decisions.decision_mask[row]
        own = loaded.encode([made.prompts[row]])
        assert torch.equal(own.ids, inputs["input_ids"])
        (wanted,) = library_log_probs(loaded, inputs, kept(made).ids[row][real][None])
        torch.testing.assert_close(made.decisions.log_probs[row][real], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("prompt", EVERY, ids=lambda prompt: prompt.id)
def test_greedy_completions_are_those_of_the_librarys_generate(prompt, loaded, folder):
    (found,) = TokenPolicy(loaded, max_tokens=6).sample(Request([prompt], [0], 1, 0))
    inputs = library_inputs(folder, prompt)
    made = loaded.network.generate(
        **inputs, max_new_tokens=6, do_sample=False, suppress_tokens=sorted(loaded.suppress_tokens)
    )[0, inputs["input_ids"].shape[1] :]
    assert (found.text, found.tokens) == (loaded.decode(made.tolist()), len(made))


def test_features_are_interleaved_over_the_group_and_tiled_ones_are_found_out(loaded, folder):
    """The order 0 0 1 1 and not 0 1 0 1: with two clips of one length nothing fails but the numbers."""
    endless = dataclasses.replace(loaded)
    endless.end_ids = frozenset()
    made = rollout(TokenPolicy(endless, max_tokens=6), [ONE, OTHER], group_size=2)
    ids, found = kept(made).ids, made.decisions.log_probs
    each = [library_inputs(folder, prompt) for prompt in (ONE, OTHER)]
    both = {name: torch.cat([one[name] for one in each]).repeat_interleave(2, 0) for name in each[0]}
    torch.testing.assert_close(found, library_log_probs(loaded, both, ids), rtol=0, atol=1e-5)
    both["input_features"] = torch.cat([one["input_features"] for one in each]).repeat(2, 1, 1)
    gap = (found - library_log_probs(loaded, both, ids)).abs().amax(1)
    assert gap[[0, 3]].max() < 1e-5 and gap[[1, 2]].min() > 0.01


def test_neither_padding_nor_neighbours_change_a_prompts_completions(loaded):
    policy = TokenPolicy(loaded, max_tokens=6)
    together = rollout(policy, EVERY)
    assert len({int(row.sum()) for row in kept(together).context.real}) == 4  # four lengths, padded on the left
    for place, prompt in enumerate(EVERY):
        alone = policy.rollout(Request([prompt], [place], 3, 3))
        rows = slice(3 * place, 3 * place + 3)
        width = alone.decisions.log_probs.shape[1]
        assert [one.text for one in alone.outputs] == [one.text for one in together.outputs[rows]]
        pair = alone.decisions.log_probs, together.decisions.log_probs[rows, :width]
        torch.testing.assert_close(*pair, rtol=0, atol=1e-5)


def test_a_clip_has_a_place_for_every_feature(loaded):
    """One second at 16 kHz is 100 frames: (100 - 1) // 2 + 1 = 50, then (50 - 2) // 2 + 1 = 25."""
    assert [qwen_audio.feature_count(frames) for frames in (100, 3000, 3, 2)] == [25, 750, 1, 0]
    lengths = torch.arange(3, 3001)
    _, wanted = loaded.network.model.audio_tower._get_feat_extract_output_lengths(lengths)
    assert [qwen_audio.feature_count(frames) for frames in lengths.tolist()] == wanted.tolist()
    context = loaded.encode([TWO, WORDS])
    (mark,) = loaded.media_tokens
    assert (context.ids == mark).sum(1).tolist() == [12 + 50, 0]  # 50 frames: 25, then 23 // 2 + 1 = 12
    assert [len(rows) for rows in loaded.features(loaded.network, context)] == [12 + 50, 0]


def test_any_rate_and_number_of_channels_is_heard(loaded):
    plain, fast, stereo = (
        loaded.encode([asked("one", medium)]).media[0][0]
        for medium in (hum(1), hum(1, rate=44_100), hum(1, channels=2))
    )
    assert plain.frames == fast.frames == stereo.frames == 100
    assert torch.equal(plain.mel, stereo.mel)
    # Away from the ends, where resampling meets the edge, the spectrograms are alike where there is sound.
    loud = plain.mel[:, 10:90] > plain.mel.max() - 0.5
    assert loud.any() and (plain.mel - fast.mel)[:, 10:90][loud].abs().max() < 0.05


def test_what_cannot_be_heard_is_refused_by_the_name_of_its_prompt(loaded, folder):
    assert loaded.encode([asked("most", hum(0, 30.0))]).ids.shape[1] > 750
    with pytest.raises(ValueError, match=r"'more'.*30\.1.*30"):
        loaded.encode([asked("more", hum(0, 30.1))])
    with pytest.raises(ValueError, match=r"'long'.*3\.3.*model\.seconds"):
        load(qwen_audio, folder, seconds=2).encode([LONG])
    with pytest.raises(ValueError, match="seconds.*31"):
        load(qwen_audio, folder, seconds=31)
    with pytest.raises(ValueError, match="short.*320"):
        loaded.encode([asked("short", hum(0, 0.02))])
    with pytest.raises(ValueError, match="'seen'.*image"):
        loaded.encode([asked("seen", Media("image", Image(torch.zeros(3, 4, 4))))])
    with pytest.raises(ValueError, match=r"forged.*<\|AUDIO\|>"):
        loaded.encode([asked("forged", hum(0), "what is <|AUDIO|> ?")])


def test_places_without_features_and_clips_without_places_are_errors(loaded, folder):
    short = dataclasses.replace(loaded)
    short.features = lambda network, context: [rows[:-1] for rows in loaded.features(network, context)]  # type: ignore
    with pytest.raises(ValueError, match="'one'.*24.*25"):
        rollout(TokenPolicy(short, max_tokens=2), [ONE])
    deaf = load(qwen_audio, folder)
    deaf.tokenizer.chat_template = "{% for message in messages %}{{ message['role'] }}{% endfor %}"
    with pytest.raises(ValueError, match="'two'.*0.*2"):
        deaf.encode([TWO])


def test_marks_of_clips_and_rows_without_a_token_are_never_said(loaded):
    marks = {loaded.tokenizer.convert_tokens_to_ids(mark) for mark in qwen_audio.MARKS}
    assert loaded.suppress_tokens == marks | {len(loaded.tokenizer), len(loaded.tokenizer) + 1}
    silent = torch.tensor(sorted(loaded.suppress_tokens))
    eager = dataclasses.replace(loaded)
    eager.logits = lambda network, hidden: loaded.logits(network, hidden).index_fill(1, silent, 50.0)  # type: ignore
    policy = TokenPolicy(eager, max_tokens=6)
    made = rollout(policy, EVERY)
    assert not torch.isin(kept(made).ids[made.decisions.decision_mask], silent).any()
    torch.testing.assert_close(rescored(policy, made), made.decisions.log_probs, rtol=0, atol=1e-5)
    for token in silent.tolist():
        kept(made).ids[0, 0] = token
        assert rescored(policy, made)[0, 0] == -torch.inf


def test_an_answer_is_spelled_with_its_end(loaded):
    ids = loaded.spell("yes, it is")
    assert loaded.decode(ids) == "yes, it is" and ids[-1] in loaded.end_ids and not loaded.end_ids & set(ids[:-1])


def test_a_frozen_tower_hears_a_clip_once_and_one_that_trains_hears_it_in_every_part(folder):
    for freeze, wanted in ((True, [3]), (False, [3, 1, 2, 3])):
        family = load(qwen_audio, folder, freeze_encoder=freeze)
        heard: list[int] = []
        family.network.model.audio_tower.register_forward_pre_hook(  # type: ignore[union-attr]
            lambda module, given, calls=heard: calls.append(len(given[0]))
        )
        policy = token_policy_over(family, max_tokens=3, features_kept=8)
        made = rollout(policy, [ONE, TWO], group_size=2)  # three clips, four rows
        list(map(lambda part: policy.score(made, part, LOG_PROBS), made.steps.split(made.decisions.loss_mask, 2)))
        again = rollout(policy, [ONE, TWO], group_size=2)
        assert heard == wanted
        assert torch.equal(made.decisions.log_probs, again.decisions.log_probs)


def test_language_model_and_projector_train_and_the_tower_where_it_is_not_frozen(folder):
    for freeze in (True, False):
        policy = TokenPolicy(load(qwen_audio, folder, freeze_encoder=freeze), max_tokens=3)
        found = gradient(policy, rollout(policy, [ONE, TWO]))
        assert found["model.multi_modal_projector.linear.weight"].abs().max() > 0
        assert found["model.language_model.layers.0.mlp.up_proj.weight"].abs().max() > 0
        assert ("model.audio_tower.layers.0.fc1.weight" in found) == (not freeze)


def test_a_base_in_lower_precision_is_sampled_as_it_is_scored(folder):
    """The mean gap of bfloat16 is rounding, which sampling with a cache does in another order."""
    policy = TokenPolicy(load(qwen_audio, folder, dtype="bfloat16", lora_rank=2), max_tokens=6)
    made = rollout(policy, EVERY)
    assert made.decisions.log_probs.dtype == torch.float32
    assert (rescored(policy, made) - made.decisions.log_probs)[made.decisions.loss_mask].abs().mean() < 0.02


def test_a_saved_model_is_an_ordinary_folder_with_its_processor(folder, tmp_path: Path):
    from transformers import Qwen2AudioProcessor

    policy = TokenPolicy(load(qwen_audio, folder), max_tokens=6)
    nudge(policy)
    policy.save(tmp_path / "saved")
    again = TokenPolicy(load(qwen_audio, tmp_path / "saved"), max_tokens=6)
    assert torch.equal(rollout(again, EVERY).decisions.log_probs, rollout(policy, EVERY).decisions.log_probs)
    processors = [Qwen2AudioProcessor.from_pretrained(path) for path in (folder, tmp_path / "saved")]
    assert processors[0].chat_template == processors[1].chat_template


def nudge(policy: TokenPolicy) -> None:
    """Every trained weight a little elsewhere."""
    with torch.no_grad():
        for number, parameter in enumerate(policy.network.parameters()):
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))


@pytest.mark.parametrize("where", ["beside", "nowhere"])
def test_the_processors_chat_template_is_used_where_the_tokenizers_own_knows_no_sound(where, loaded, folder, tmp_path):
    """As older checkpoints have it: one template in tokenizer_config.json, and chat_template.json or none at all."""
    shutil.copytree(folder, tmp_path / "old")
    (tmp_path / "old" / "chat_template.jinja").unlink()
    config = json.loads((tmp_path / "old" / "tokenizer_config.json").read_text())
    deaf = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    (tmp_path / "old" / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": deaf}))
    if where == "beside":
        template = {"chat_template": loaded.processor.chat_template}
        (tmp_path / "old" / "chat_template.json").write_text(json.dumps(template))
    old = load(qwen_audio, tmp_path / "old").encode(EVERY)
    assert torch.equal(old.ids, loaded.encode(EVERY).ids)


def test_a_long_recording_is_read_in_windows_of_30_s_whose_features_follow_each_other(folder):
    """750 features of the first 30 s, and 37 of 1.5 s."""
    model = load(qwen_audio, folder, windows=2)
    long = asked("long", hum(0, 31.5), "what ?", hum(1))
    context = model.encode([long, ONE])
    assert [len(clips) for clips in context.media] == [3, 1]
    marks = torch.isin(context.ids, torch.tensor(sorted(model.media_tokens))).sum(1)
    assert marks[0] == 750 + 37 + 25
    policy = TokenPolicy(model, max_tokens=4)
    made = rollout(policy, [long, ONE])
    torch.testing.assert_close(rescored(policy, made), made.decisions.log_probs, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="60 s"):
        model.encode([asked("longer", hum(0, 61.0), "what ?")])
    with pytest.raises(ValueError, match="30 s"):
        load(qwen_audio, folder).encode([long])
