"""The generic family of models that hear: whatever the architecture, its own forward pass is sampled and scored."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest
import torch

from mmgrpo.data.chat import DATE
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.types import Prompt, Turn
from pipelines import generic_lm, speech
from pipelines.speech import audio_text, qwen_audio, whisper
from pipelines.training import Training
from tests.building import load, rescored
from tests.libraries.families.examples import PICTURE, shown
from tests.libraries.pipelines.speech.test_qwen_audio import EVERY, LONG, ONE, OTHER, TWO, WORDS, hum
from tests.seeing import distance, gradient, kept, rollout
from tests.tiny import maker, tiny_checkpoint
from tests.tiny.audio_text import BEGINNINGS, BOS, KINDS

SINGLE = ("audioflamingo3", "glmasr", "qwen3_asr")
"""Kinds whose processor takes one clip of a prompt only."""


def prompts_of(kind: str) -> list[Prompt]:
    """One clip, none, one of another duration behind the text, and two where the model takes them."""
    return [ONE, WORDS, LONG] + [TWO] * (kind not in SINGLE)


@pytest.fixture(scope="module")
def folders() -> dict[str, str]:
    folders = {kind: tiny_checkpoint(maker("audio_text"), kind) for kind in KINDS}
    return folders | {"qwen2_audio": tiny_checkpoint(maker("qwen_audio"), dropout=0.1)}


@pytest.fixture(scope="module")
def models(folders) -> dict[str, Any]:
    """Never trained, so all tests may use them."""
    return {kind: load(audio_text, folder) for kind, folder in folders.items()}


EACH = pytest.mark.parametrize("kind", [*KINDS, "qwen2_audio"])


def library_logits(model: Any, prompt: Prompt, completion: torch.Tensor) -> torch.Tensor:
    """Logits before every token of a completion, by the library's processor and forward pass alone."""
    parts = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "audio"}
        for part in (prompt.turns[0].parts if prompt.turns else (prompt.text,))
    ]
    content: Any = parts
    if "granite" in model.network.config.model_type:  # whose template concatenates contents
        content = "".join(part.get("text", "<|audio|>") for part in parts)
    text = model.processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    text = text.replace(date.today().strftime("%B %d, %Y"), DATE.strftime("%B %d, %Y"))
    clips = [medium.source.samples[0].numpy() for medium in prompt.media]  # type: ignore[union-attr]
    inputs = model.processor(text=[text], audio=clips or None, sampling_rate=16_000, return_tensors="pt")
    ids = torch.cat([inputs["input_ids"], completion[None]], 1)
    with torch.no_grad():
        out = model.network(**dict(inputs) | {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    return out.logits[0, -len(completion) - 1 : -1]


@EACH
def test_log_probs_are_those_of_the_librarys_processor_and_forward_pass(kind, models):
    model, prompts = models[kind], prompts_of(kind)
    made = rollout(TokenPolicy(model, max_tokens=5), prompts)
    assert model.shared and made.decisions.log_probs[made.decisions.loss_mask].std() > 0.1
    for row, prompt in enumerate(made.prompts):
        said = kept(made).ids[row][kept(made).real[row]]
        logits = library_logits(model, prompt, said)
        own = logits.index_fill(1, torch.tensor(sorted(model.suppress_tokens)), -torch.inf).log_softmax(-1)
        wanted = own.gather(1, said[:, None])[:, 0]
        torch.testing.assert_close(made.decisions.log_probs[row, : len(said)], wanted, rtol=0, atol=1e-5)


@EACH
def test_what_is_heard_is_heard_in_scoring_too_and_belongs_to_its_own_prompt(kind, models):
    """Features of another prompt of the same form, as tiled ones are, or of no sound at all, change the log-probs."""
    policy = TokenPolicy(models[kind], max_tokens=5)
    made = rollout(policy, [ONE, OTHER])
    honest, features = rescored(policy, made), kept(made).features or kept(made).context.media
    silent = [
        {name: torch.zeros_like(value) if value.is_floating_point() else value for name, value in one.items()}
        for one in features
    ]
    for changed in ([features[1], features[0]], silent):
        object.__setattr__(kept(made), "features", changed)
        object.__setattr__(kept(made).context, "media", changed)
        assert (rescored(policy, made) - honest).abs().amax(1).min() > 5e-3


# --- prompts ----------------------------------------------------------------------------------------------------------


def written(model: Any, prompt: Prompt) -> str:
    """What a prompt's ids say, without the marks of its recordings."""
    ids = model.encode([prompt]).ids[0].tolist()
    marks = set(model.tokenizer.convert_tokens_to_ids(model.marks))
    return model.tokenizer.decode([one for one in ids if one not in marks], skip_special_tokens=False)


@EACH
def test_a_prompt_has_the_users_words_once_and_no_text_of_a_list(kind, models):
    said = written(models[kind], ONE)
    assert said.count(ONE.text) == 1 and "{'" not in said and "'type'" not in said


SYSTEMS = {
    "granite_speech": "Today's Date: July 26, 2024.",  # one day for all runs, so a resumed one has the same ids
    "qwen2_5_omni": "virtual human",
    "audioflamingo3": "helpful assistant",
}


@pytest.mark.parametrize("kind", SYSTEMS)
def test_the_default_system_prompt_stands_once_unless_the_row_has_its_own(kind, models):
    assert written(models[kind], ONE).count(SYSTEMS[kind]) == 1
    own = replace(ONE, turns=(Turn("system", ("Be brief.",)), *ONE.turns))
    said = written(models[kind], own)
    assert SYSTEMS[kind] not in said and said.count("Be brief.") == 1 == said.count("system")


@pytest.mark.parametrize("beginning", BEGINNINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_begins_once_whoever_writes_the_beginning(kind, beginning, tmp_path):
    """Of template and tokenizer, of which published checkpoints have neither, one, or both."""
    model = load(audio_text, maker("audio_text")(tmp_path, kind, beginning))
    ids = model.encode([ONE]).ids[0].tolist()
    tokens = model.tokenizer.convert_ids_to_tokens(ids)
    assert tokens.count(BOS) == bool(beginning)
    assert (tokens[0] == BOS) == bool(beginning)


DROPPED = ["voxtral", "audioflamingo3", "qwen2_5_omni", "qwen2_audio"]
"""Kinds whose towers call dropout as a function with a layer's own ``training``, by which the library checkpoints."""


@pytest.mark.parametrize("kind", [pytest.param(one, marks=pytest.mark.nightly) for one in DROPPED[:-1]] + DROPPED[-1:])
def test_dropout_of_a_file_changes_nothing_where_activations_are_computed_again(kind, folders):
    model = load(audio_text, folders[kind], Training(gradient_checkpointing=True), freeze_encoder=False)
    assert any(vars(layer).get("dropout") == 0.1 for layer in model.network.modules())
    policy = TokenPolicy(model, max_tokens=5)
    made = rollout(policy, prompts_of(kind))
    for _ in range(2):
        for part in made.steps.split(made.decisions.loss_mask, 5):
            scores = policy.score(made, part, frozenset({"log_probs"}))["log_probs"]
            wanted = made.decisions.log_probs[part.rows, part.positions]
            torch.testing.assert_close(scores.detach(), wanted, rtol=0, atol=1e-5)
    plain = load(audio_text, folders[kind], freeze_encoder=False)
    ours, theirs = gradient(policy, made), gradient(TokenPolicy(plain, max_tokens=5), made)
    assert distance(ours, theirs) < 1e-5 < max(float(one.abs().max()) for one in theirs.values())


def test_a_model_that_cannot_compute_activations_again_says_so(folders):
    with pytest.raises(ValueError, match="model.gradient_checkpointing.*true.*GraniteSpeech"):
        load(audio_text, folders["granite_speech"], Training(gradient_checkpointing=True))


def test_of_qwen2_audio_it_computes_what_its_own_family_computes(models, folders):
    one, two = (
        rollout(TokenPolicy(m, max_tokens=6), EVERY)
        for m in (models["qwen2_audio"], load(qwen_audio, folders["qwen2_audio"]))
    )
    assert torch.equal(kept(one).ids, kept(two).ids)
    torch.testing.assert_close(one.decisions.log_probs, two.decisions.log_probs, rtol=0, atol=1e-5)


def test_a_model_whose_keys_cannot_be_shared_is_replayed(folders, monkeypatch, capsys):
    monkeypatch.setattr(generic_lm, "spread_cache", lambda cache, rows: 1 / 0)
    assert not load(audio_text, folders["granite_speech"]).shared
    assert "(granite_speech)" in capsys.readouterr().out


def test_a_model_that_does_not_hear_is_refused(folders, tmp_path):
    deaf = load(audio_text, folders["voxtral"])
    torch.nn.init.zeros_(deaf.network.model.multi_modal_projector.linear_2.weight)
    deaf.save(tmp_path, deaf.network)
    with pytest.raises(ValueError, match="voxtral"):
        load(audio_text, tmp_path)


def test_a_clip_longer_than_the_model_hears_is_refused_and_chunks_are_all_heard(folders, models):
    """Whisper's spectrograms end at 30 s; Voxtral and Audio Flamingo read further chunks of 30 s."""
    with pytest.raises(ValueError, match="model.seconds=31"):
        load(audio_text, folders["qwen2_5_omni"], seconds=31)
    with pytest.raises(ValueError, match="31.0.*30"):
        models["voxtral"].encode([shown(0, hum(0, 31.0), "what ?")])
    for kind, chunk in (("voxtral", 100), ("audioflamingo3", 750)):
        model = load(audio_text, folders[kind], seconds=61)
        context = model.encode([shown(0, hum(0, seconds), "what ?") for seconds in (30.0, 60.0)])
        assert [len(media["input_features"]) for media in context.media] == [1, 2]
        (mark,) = (model.tokenizer.convert_tokens_to_ids(mark) for mark in model.marks)
        assert (context.ids == mark).sum(1).tolist() == [chunk, 2 * chunk]


@pytest.mark.parametrize(("kind", "seconds", "marks"), [
    ("voxtral", 1.0, 100),  # whatever the duration
    ("granite_speech", 1.0, 12),  # 101 frames of 10 ms, 50 of 20 ms, 4 windows of 15 with 3 features each
    ("qwen2_5_omni", 1.0, 25),
    ("audioflamingo3", 1.0, 25),
    ("glmasr", 1.0, 12),  # 50 frames of 20 ms, by four
    ("qwen3_asr", 1.0, 13),
])  # fmt: skip
@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_a_clip_of_any_rate_has_a_place_for_every_feature(kind, seconds, marks, rate, models):
    model = models[kind]
    ids = model.encode([shown(0, hum(0, seconds, rate=rate), "what ?")]).ids[0]
    mark = model.tokenizer.convert_tokens_to_ids(model.processor.audio_token)
    assert int((ids == mark).sum()) == marks
    assert mark in model.suppress_tokens


def test_what_no_model_hears_is_refused_by_the_name_of_its_prompt(models):
    with pytest.raises(ValueError, match="'0'.*image"):
        models["voxtral"].encode([shown(0, PICTURE, "what ?")])
    with pytest.raises(ValueError, match=r"'0'.*\[AUDIO\]"):
        models["voxtral"].encode([shown(0, hum(0), "what is [AUDIO] ?")])
    with pytest.raises(ValueError, match="'two'.*2"):
        models["glmasr"].encode([TWO])


def test_a_clip_without_a_question_is_asked_the_instruction(folders, models):
    asking = load(audio_text, folders["granite_speech"], instruction="what is said ?")
    alone = shown(0, hum(0))
    wanted = models["granite_speech"].encode([ONE]).ids
    assert torch.equal(asking.encode([alone]).ids, wanted) and torch.equal(asking.encode([ONE]).ids, wanted)
    assert models["granite_speech"].encode([alone]).ids.shape[1] < wanted.shape[1]


def test_a_template_without_a_place_for_sounds_is_refused(folders):
    model = load(audio_text, folders["granite_speech"])
    model.processor.chat_template = "{{ messages[0]['content'][-1]['text'] }}"
    with pytest.raises(ValueError, match="0.*placeholders.*1"):
        model.encode([ONE])


def test_the_encoder_is_frozen_and_adapters_stay_in_the_language_model(folders):
    for training in (Training(), Training(lora_rank=2)):
        network = load(audio_text, folders["qwen2_5_omni"], training).network
        trained = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
        assert trained and all("language_model" in name or name.startswith("lm_head") for name in trained)
    whole = load(audio_text, folders["glmasr"], freeze_encoder=False).network
    assert all(parameter.requires_grad for parameter in whole.parameters())


def test_the_checkpoint_names_its_family_and_families_name_one_another(folders, tmp_path):
    for kind, folder in folders.items():
        wanted = "qwen_audio" if kind == "qwen2_audio" else "audio_text"
        assert speech.policy(folder, max_tokens=3).settings.family.name == wanted
    assert speech.policy(folders["qwen2_audio"], family="audio_text").settings.family.name == "audio_text"
    heard = whisper.tiny(tmp_path)
    for family, folder, named in (
        ("whisper", folders["voxtral"], "audio_text"),
        ("qwen_audio", folders["granite_speech"], "audio_text"),
        ("audio_text", heard, "whisper"),
        ("whisper", folders["qwen2_audio"], "qwen_audio"),
    ):
        with pytest.raises(ValueError, match=f"'{family}'.*model.family.*{named}"):
            speech.policy(folder, family=family)
    with pytest.raises(ValueError, match="whisper"):
        load(audio_text, heard)
