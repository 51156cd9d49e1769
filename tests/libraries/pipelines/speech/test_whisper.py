"""A real Whisper of a hundred thousand parameters: sampled as scored, and as the library computes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmgrpo.config.settings import config_class
from mmgrpo.family import family
from mmgrpo.policies.token import Sequences, TokenPolicy
from mmgrpo.types import Audio, Image, Media, Prompt, Request, Rollout, Turn
from pipelines.speech import whisper
from pipelines.training import Training
from tests.building import load, token_policy_over
from tests.tiny import tiny_checkpoint

RATE = 16_000


def clip(number: int, seconds: float = 1.0, rate: int = RATE) -> Prompt:
    """A hum, each number's a third higher than the last."""
    samples = torch.sin(torch.arange(int(seconds * rate)) * 0.02 * 1.3**number * RATE / rate) / 2
    return Prompt("", str(number), turns=(Turn("user", (Media("audio", Audio(samples[None], rate)),)),))


PROMPTS = [clip(number, seconds=1.0 + number) for number in range(3)]


@pytest.fixture(scope="module")
def folder() -> str:
    return tiny_checkpoint(whisper.tiny)


def rollout(policy: TokenPolicy, group_size: int = 4) -> Rollout:
    return policy.rollout(Request(PROMPTS, [0, 1, 2], group_size, 0))


def rescored(policy: TokenPolicy, made: Rollout, limit: int = 5) -> Tensor:
    dense = torch.zeros_like(made.decisions.log_probs)
    for part in made.steps.split(made.decisions.loss_mask, limit):
        dense[part.rows, part.positions] = policy.score(made, part, frozenset({"log_probs"}))["log_probs"].detach()
    return dense


def kept(made: Rollout) -> Sequences:
    assert isinstance(made.steps, Sequences)
    return made.steps


def test_scores_are_those_of_the_librarys_forward_pass_of_a_single_row(folder):
    from transformers.modeling_outputs import BaseModelOutput

    family = load(whisper, folder)
    network: Any = family.network
    made = rollout(TokenPolicy(family, max_tokens=12))
    silent, at_first = (torch.tensor(sorted(ids)) for ids in (family.suppress_tokens, family.begin_suppress_tokens))
    for row in range(0, made.decisions.rows, 4):
        context = family.encode([made.prompts[row]])
        own = kept(made).real[row]
        ids = torch.cat([context.ids[0], kept(made).ids[row][own]])[None]
        with torch.no_grad():
            states = network.model.encoder(torch.stack(list(context.media))).last_hidden_state
            logits = network(decoder_input_ids=ids, encoder_outputs=BaseModelOutput(states)).logits[0]
        logits = logits[context.ids.shape[1] - 1 : -1].index_fill(1, silent, -torch.inf)
        logits[0, at_first] = -torch.inf
        wanted = logits.log_softmax(-1).gather(1, kept(made).ids[row][own][:, None])[:, 0]
        torch.testing.assert_close(made.decisions.log_probs[row][own], wanted, rtol=0, atol=1e-5)


def test_suppressed_tokens_are_never_said_and_stay_impossible_in_scoring(folder):
    family = load(whisper, folder, seconds=4)
    policy = TokenPolicy(family, max_tokens=12)
    made = rollout(policy, group_size=64)
    said = kept(made).ids[kept(made).real]
    assert not torch.isin(said, torch.tensor(sorted(family.suppress_tokens))).any()
    assert not torch.isin(kept(made).ids[:, 0], torch.tensor(sorted(family.begin_suppress_tokens))).any()
    hidden = torch.zeros(2, 32)
    spread = policy._log_softmax(family.network, hidden, torch.tensor([True, False]), 1.0)
    at_first = sorted(family.begin_suppress_tokens)
    assert torch.isneginf(spread[0, at_first]).all() and torch.isfinite(spread[1, at_first]).all()
    torch.testing.assert_close(spread.exp().sum(1), torch.ones(2))


def test_a_checkpoint_may_suppress_nothing(folder):
    family = load(whisper, folder)
    config = family.network.generation_config
    own, at_first = set(config.suppress_tokens), set(config.begin_suppress_tokens)
    special = set(family.tokenizer.all_special_ids)
    assert own - special and at_first and family.begin_suppress_tokens == at_first
    config.suppress_tokens = config.begin_suppress_tokens = None
    silent = replace(family)
    assert silent.begin_suppress_tokens == frozenset()
    assert silent.suppress_tokens == family.suppress_tokens - (own - special)


def test_what_trains_is_the_decoder_and_what_is_asked_for(folder):
    names = ("model.encoder", "model.decoder.embed_tokens", "model.decoder.layers")

    def trained(**options):
        network = load(whisper, folder, **options).network
        return tuple({p.requires_grad for n, p in network.named_parameters() if n.startswith(name)} for name in names)

    assert trained() == ({False}, {False}, {True})
    assert trained(freeze_encoder=False) == ({True}, {False}, {True})
    assert trained(freeze_embeddings=False) == ({False}, {True}, {True})


def test_a_clip_is_encoded_once_for_its_group_and_once_for_the_run_where_features_are_kept(folder):
    family = load(whisper, folder, seconds=4)
    heard: list[int] = []
    family.network.model.encoder.register_forward_pre_hook(  # type: ignore[union-attr]
        lambda module, given: heard.append(len(given[0]))
    )
    policy = token_policy_over(family, max_tokens=3, features_kept=8)
    made = rollout(policy)
    rescored(policy, made)
    again = rollout(policy)
    assert heard == [3]
    assert torch.equal(made.decisions.log_probs, again.decisions.log_probs)


def test_the_frozen_encoder_gets_no_gradient_and_a_trained_one_does(folder):
    for frozen in (True, False):
        family = load(whisper, folder, seconds=4, freeze_encoder=frozen)
        policy = TokenPolicy(family, max_tokens=3)
        made = rollout(policy)
        part = next(made.steps.split(made.decisions.loss_mask, 100))
        policy.score(made, part, frozenset({"log_probs"}))["log_probs"].sum().backward()
        network: Any = family.network
        assert (network.model.encoder.layers[0].fc1.weight.grad is None) == frozen
        assert network.model.decoder.layers[0].fc1.weight.grad.abs().max() > 0
        assert network.get_input_embeddings().weight.grad is None


def test_any_rate_is_heard_and_what_is_no_clip_is_refused_by_name(folder):
    family = load(whisper, folder, seconds=2)
    slow, fast = (family.encode([clip(1, rate=rate)]).media[0] for rate in (8_000, 44_100))
    assert slow.shape == fast.shape == (80, 3000)
    with pytest.raises(ValueError, match=r"'5'.*3\.0.*model\.seconds"):
        family.encode([clip(5, seconds=3)])
    picture = Media("image", Image(torch.zeros(3, 4, 4)))
    with pytest.raises(ValueError, match="'p'.*image"):
        family.encode([Prompt("", "p", turns=(Turn("user", (picture,)),))])
    with pytest.raises(ValueError, match=r"'q'.*what \?"):
        family.encode([Prompt("what ?", "q", turns=(Turn("user", (*clip(1).media, "what ?")),))])
    with pytest.raises(ValueError, match="seconds.*31"):
        load(whisper, folder, seconds=31)


def test_a_transcript_is_spelled_with_a_space_before_it_and_its_end_behind(folder):
    family = load(whisper, folder)
    [*ids, end] = family.spell("ab c")
    assert family.tokenizer.convert_ids_to_tokens(ids)[0].startswith("\u0120") and end in family.end_ids
    assert ids == family.tokenizer(" ab c", add_special_tokens=False)["input_ids"] and family.decode(ids) == "ab c"
    assert not family.checkpointing


def test_checkpointing_is_refused_before_anything_is_read():
    with pytest.raises(ValueError, match="gradient_checkpointing.*True.*False"):
        load(whisper, "nowhere", Training(gradient_checkpointing=True))


def test_an_extractor_of_another_rate_is_no_whispers(folder):
    family = load(whisper, folder)
    family.extractor.sampling_rate = 8_000
    with pytest.raises(ValueError, match="8000"):
        family.encode([clip(1)])


# --- language and task ------------------------------------------------------------------------------------------------

TRANSLATED = ["<|startoftranscript|>", "<|de|>", "<|translate|>", "<|notimestamps|>"]
PREFIXES = {
    "english": ["<|startoftranscript|>", "<|notimestamps|>"],
    "multilingual": TRANSLATED,
    "large_v3": TRANSLATED,
    "fine_tune": TRANSLATED,
}


@pytest.fixture(scope="module")
def folders() -> dict[str, str]:
    return {kind: tiny_checkpoint(whisper.tiny, kind=kind) for kind in PREFIXES}


@pytest.mark.parametrize("kind", PREFIXES)
def test_the_prefix_states_language_and_task_of_a_multilingual_model(kind, folders):
    asked: dict[str, Any] = {} if kind == "english" else {"language": "German", "task": "translate"}
    family = load(whisper, folders[kind], seconds=4, **asked)
    [ids] = family.encode([clip(0)]).ids.tolist()
    assert family.tokenizer.convert_ids_to_tokens(ids) == PREFIXES[kind]
    assert family.encode([clip(0)]).media[0].shape[0] == (128 if kind == "large_v3" else 80)
    made = rollout(TokenPolicy(family, max_tokens=6))
    assert not torch.isin(kept(made).ids, torch.tensor(ids)).any()


def test_a_row_chooses_its_language_and_task(folders):
    family = load(whisper, folders["multilingual"], seconds=4)
    rows = [
        clip(0),
        replace(clip(1), meta={"language": "zh"}),
        replace(clip(2), meta={"language": "Mandarin"}),
        replace(clip(3), task="translate", meta={"language": None}),
    ]
    start, english, transcribe, plain = family.encode(rows[:1]).ids[0].tolist()
    ids = dict(family.tokenizer.get_vocab())
    assert family.encode(rows).ids.tolist() == [
        [start, english, transcribe, plain],
        [start, ids["<|zh|>"], transcribe, plain],
        [start, ids["<|zh|>"], transcribe, plain],
        [start, english, ids["<|translate|>"], plain],
    ]
    policy = TokenPolicy(family, max_tokens=6)
    made = policy.rollout(Request(rows, range(4), 2, 0))
    loss_mask = made.decisions.loss_mask
    torch.testing.assert_close(
        rescored(policy, made)[loss_mask], made.decisions.log_probs[loss_mask], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    ("kind", "row", "named"),
    [
        ("multilingual", {"meta": {"language": "chines"}}, "chines.*chinese"),
        ("multilingual", {"meta": {"language": "fr"}}, "fr"),
        ("multilingual", {"meta": {"language": 5}}, "language.*5"),
        ("multilingual", {"task": "translat"}, "translat.*translate"),
        ("english", {"meta": {"language": "zh"}}, "zh.*English-only"),
        ("english", {"task": "translate"}, "translate.*English-only"),
    ],
)
def test_a_language_or_task_that_the_model_lacks_is_an_error_of_its_row(kind, row, named, folders):
    family = load(whisper, folders[kind], seconds=4)
    with pytest.raises(ValueError, match=f"'7'.*{named}"):
        family.encode([replace(clip(7), **row)])


@pytest.mark.parametrize(("option", "value"), [("language", "klingon"), ("language", "fr"), ("task", "translate")])
def test_a_language_or_task_of_a_run_that_the_model_lacks_is_an_error_of_the_option(option, value, folders):
    kind = "english" if option == "task" else "multilingual"
    with pytest.raises(ValueError, match=f"model.{option}.*{value}"):
        asked: dict[str, Any] = {option: value}
        load(whisper, folders[kind], **asked)


class Vocabulary:
    """The ids of a published tokenizer."""

    unk_token_id = 50256

    def __init__(self, start: int, large: int = 0) -> None:
        languages = start + 100 + large
        self.ids = {"<|startoftranscript|>": start, "<|en|>": start + 1, "<|hi|>": start + 18}
        self.ids |= {"<|translate|>": languages, "<|transcribe|>": languages + 1, "<|notimestamps|>": languages + 5}

    def convert_tokens_to_ids(self, token: str) -> int:
        return self.ids.get(token, self.unk_token_id)

    def convert_ids_to_tokens(self, number: int) -> str:
        return next(token for token, own in self.ids.items() if own == number)


@pytest.mark.parametrize(
    ("start", "large", "generation", "prefix"),
    [
        (50258, 0, {"is_multilingual": True}, (50258, 50259, 50359, 50363)),
        (50258, 0, {}, (50258, 50259, 50359, 50363)),  # a fine-tune
        (50258, 1, {}, (50258, 50259, 50360, 50364)),  # of large-v3
        (50257, 0, {"is_multilingual": False}, (50257, 50362)),
        (50257, 0, {}, (50257, 50362)),  # a fine-tune of an English-only one, whose vocabulary names languages too
        (50257, 0, {"forced_decoder_ids": [[1, 50362]]}, (50257, 50362)),
        (50257, 0, {"forced_decoder_ids": [[1, 50258], [2, 50358], [3, 50362]]}, (50257, 50258, 50358, 50362)),
    ],
)
def test_a_checkpoint_that_does_not_say_whether_it_is_multilingual_is_known_by_its_vocabulary(
    start, large, generation, prefix
):
    vocabulary = Vocabulary(start, large)
    several = whisper.is_multilingual(vocabulary, SimpleNamespace(**generation), SimpleNamespace())
    assert whisper.prefix_ids(vocabulary, several, "en", "transcribe") == prefix


@pytest.mark.parametrize(
    ("generation", "own"),
    [
        ({"language": "hindi"}, "hi"),
        ({"language": "<|hi|>"}, "hi"),
        ({"forced_decoder_ids": [[1, 50276], [2, 50359]]}, "hi"),
        ({"forced_decoder_ids": [[1, None], [2, 50359]]}, ""),
        ({}, ""),
    ],
)
def test_a_fine_tune_to_one_language_names_it(generation, own):
    assert whisper.declared_language(Vocabulary(50258), SimpleNamespace(**generation), SimpleNamespace()) == own


def test_a_checkpoint_of_another_language_than_that_of_the_run_is_warned_of(folders, tmp_path, capsys):
    shutil.copytree(folders["fine_tune"], tmp_path / "hindi")
    path = tmp_path / "hindi" / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"language": "hindi"}))
    load(whisper, tmp_path / "hindi", language="hi")
    assert capsys.readouterr().out == ""
    load(whisper, tmp_path / "hindi")
    assert "model.language to hi" in capsys.readouterr().out


# --- rows and settings, before a model is loaded ----------------------------------------------------------------------


def whisper_config(path: str, language: str = "en", **sampling: Any) -> Any:
    config = config_class(family("whisper").sections)()
    model = replace(config.model, family="whisper", path=path, language=language)
    return replace(config, model=model, sampling=replace(config.sampling, **sampling))


def rows_of(tmp_path: Path, *rows: dict[str, Any]) -> str:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.wav", np.sin(np.arange(8_000) * 0.1) / 2, 16_000)
    lines = [json.dumps({"id": str(number), "audio": "a.wav", "answer": "a"} | row) for number, row in enumerate(rows)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    return str(tmp_path / "rows.jsonl")


@pytest.mark.parametrize("stream", [False, True])
def test_rows_without_a_language_have_that_of_the_model_by_which_rewards_compare(stream, folders, tmp_path):
    file = rows_of(tmp_path, {}, {"language": "de"}, {"language": ""})
    for language, wanted in (("Chinese", ["zh", "de", "zh"]), ("en", [None, "de", ""])):
        config = whisper_config(folders["multilingual"], language)
        config = replace(config, data=replace(config.data, stream=stream))
        prompts, skipped = family("whisper").read(config, file)
        assert [prompt.meta.get("language") for prompt in prompts] == wanted and not skipped
        assert [prompt.id for prompt in prompts[1:]] == ["1", "2"]


@pytest.mark.parametrize(("row", "named"), [({"language": "englsh"}, "englsh.*english"), ({"task": "math"}, "math")])
def test_an_unknown_language_or_task_is_an_error_of_its_row_when_rows_are_read(row, named, folders, tmp_path):
    with pytest.raises(ValueError, match=f"'1'.*{named}"):
        family("whisper").read(whisper_config(folders["multilingual"]), rows_of(tmp_path, {}, row))
    with pytest.raises(ValueError, match="model.language"):
        family("whisper").read(whisper_config(folders["multilingual"], "klingon"), rows_of(tmp_path, {}))


@pytest.mark.parametrize("name", ["whisper", "ctc"])
@pytest.mark.parametrize(("row", "hint"), [({"answer": None}, "--data.columns text=answer"), ({}, "leave it empty")])
def test_a_text_is_refused_when_rows_are_read_and_a_transcript_gets_its_column(name, row, hint, tmp_path):
    config = config_class(family(name).sections)()
    path = rows_of(tmp_path, {}, {"text": "good morning"} | row)
    with pytest.raises(ValueError, match=f"prompt '1': .*'good morning'.*{hint}"):
        family(name).read(config, path)


@pytest.mark.parametrize(("kind", "most"), [("english", 62), ("multilingual", 60), ("fine_tune", 60)])
def test_transcripts_longer_than_the_decoder_has_positions_are_refused_before_it_is_loaded(kind, most, folders):
    """64 positions, of which the prompt takes two or four."""
    family("whisper").check(whisper_config(folders[kind], max_tokens=most))
    with pytest.raises(ValueError, match=f"sampling.max_tokens.*{most + 1}.*{most}"):
        family("whisper").check(whisper_config(folders[kind], max_tokens=most + 1))
    model = load(whisper, folders[kind], seconds=4)
    model.end_ids = frozenset()
    made = TokenPolicy(model, max_tokens=most).rollout(Request(PROMPTS[:1], [0], 2, 0))
    assert made.decisions.log_probs.shape == (2, most)


# --- recordings of more than 30 s -------------------------------------------------------------------------------------


def test_a_long_recording_is_read_in_windows_of_30_s(folder):
    model = load(whisper, folder, windows=2)
    short, long = clip(0, 2.0), clip(1, 31.5)
    context = model.encode([short, long])
    assert [tuple(mel.shape) for mel in context.media] == [(2, 80, 3000)] * 2
    one = load(whisper, folder)
    samples = long.media[0].source.samples  # type: ignore[union-attr]
    parts = [
        replace(long, turns=(Turn("user", (Media("audio", Audio(part, RATE)),)),))
        for part in samples.split(30 * RATE, 1)
    ]
    states = model.features(model.network, context)
    alone = one.features(one.network, one.encode(parts))
    torch.testing.assert_close(states[1], torch.cat(alone), rtol=0, atol=1e-5)
    policy = TokenPolicy(model, max_tokens=5)
    made = policy.rollout(Request([short, long], [0, 1], 3, 0))
    loss_mask = made.decisions.loss_mask
    torch.testing.assert_close(
        rescored(policy, made)[loss_mask], made.decisions.log_probs[loss_mask], rtol=0, atol=1e-5
    )
    changed = samples.clone()
    changed[:, 30 * RATE :] *= 0.1
    other = replace(long, turns=(Turn("user", (Media("audio", Audio(changed, RATE)),)),))
    assert not torch.equal(model.encode([other]).media[0][1], context.media[1][1])  # the end is read
    with pytest.raises(ValueError, match="60 s"):
        model.encode([clip(0, 61.0)])


@pytest.mark.parametrize(("seconds", "windows"), [(20.0, 2), (30.0, 0), (31.0, 1), (31.0, 2)])
def test_windows_are_of_30_s(seconds, windows, folder):
    with pytest.raises(ValueError, match="windows|seconds"):
        load(whisper, folder, seconds=seconds, windows=windows)


def test_english_rows_in_other_letters_are_warned_of_at_the_start(folders, tmp_path, capsys):
    rows = rows_of(tmp_path, {}, {"answer": "今天天气很好"}, {"answer": "नमस्ते", "language": "hi"})
    family("whisper").read(whisper_config(folders["multilingual"]), rows)
    out = capsys.readouterr().out
    assert "1 rows" in out and "'1'" in out and "model.language" in out
    family("whisper").read(whisper_config(folders["multilingual"], "zh"), rows)
    assert "model.language" not in capsys.readouterr().out
