"""Language models over speech tokens: what can be sampled, the prompt, the sound, and what is refused."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch

from mmgrpo.cli.train import check_model, read
from mmgrpo.config.settings import config_class
from mmgrpo.family import family
from mmgrpo.types import Audio, Prompt, Request, Text
from pipelines import speech
from pipelines.speech import codec_speech, vocoders
from tests.building import algorithm_blocks, load, trainer
from tests.tiny import maker, tiny_checkpoint
from tests.tiny.codec_speech import INSTRUCTION, SPEECH_START
from tests.tones import codes_of, heard, heard_neg_cer

PROMPTS = [Prompt("one 2", "0"), Prompt("3", "1")]


@pytest.fixture(scope="module")
def folder() -> str:
    return tiny_checkpoint(maker("codec_speech"))


def loaded(folder: str, **options) -> codec_speech.CodecSpeech:
    return load(codec_speech, folder, **{"vocoder": "tones", **options})


def policy(folder: str, **options):
    return speech.policy(folder, vocoder="tones", device="cpu", **options)


# What is sampled


def test_only_speech_tokens_and_the_end_have_a_probability_and_the_end_none_at_first(folder):
    made = policy(folder, max_tokens=40)
    model, hidden = made.model, torch.randn(2, 32)
    distribution = made.tokens._log_softmax(made.network, hidden, torch.tensor([True, False]), 1.0)
    possible = {token for token in range(distribution.shape[1]) if distribution[1, token] > -torch.inf}
    assert possible == set(model.codes) | model.end_ids and len(model.codes) == 32
    assert {t for t in possible if distribution[0, t] == -torch.inf} == model.end_ids
    assert distribution.exp().sum(1).tolist() == pytest.approx([1, 1], abs=1e-5)


def test_scores_are_those_of_the_networks_own_logits_over_the_tokens_that_can_be_sampled(folder):
    made = policy(folder, max_tokens=40)
    rollout = made.rollout(Request(PROMPTS, [0, 1], 4, seed=2))
    part = next(rollout.steps.split(rollout.decisions.loss_mask, 99))
    scores = made.score(rollout, part, frozenset({"log_probs"}))["log_probs"]
    for row, prompt in enumerate(rollout.prompts):
        ids = rollout.steps.ids[row][rollout.steps.real[row]]
        start = made.model.encode([prompt]).ids[0]
        logits = made.network(torch.cat([start, ids])[None]).logits[0, len(start) - 1 : -1]
        logits[:, sorted(made.model.suppress_tokens)] = -torch.inf
        logits[0, sorted(made.model.end_ids)] = -torch.inf
        wanted = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
        torch.testing.assert_close(scores[part.rows == row], wanted, rtol=0, atol=1e-5)
        torch.testing.assert_close(rollout.decisions.log_probs[row, : len(ids)], wanted, rtol=0, atol=1e-5)
    assert {len(output.samples[0]) // 160 for output in rollout.outputs} != {40}  # some have ended


def test_the_sound_of_a_completion_is_its_tokens_without_the_end(folder):
    made = policy(folder, max_tokens=40)
    rollout = made.rollout(Request(PROMPTS, [0, 1], 6, seed=1))
    for row, sound in enumerate(rollout.outputs):
        ids = rollout.steps.ids[row][rollout.steps.real[row]].tolist()
        assert codes_of(sound) == [made.model.codes[token] for token in ids if token not in made.model.end_ids]
    [greedy] = made.sample(Request(PROMPTS[:1], [0], 1, seed=0))
    assert isinstance(greedy, Audio) and greedy.samples.shape[1] > 0


def test_a_vocoder_that_fails_stops_the_run_and_names_the_prompt(folder, monkeypatch):
    made = policy(folder, max_tokens=3)

    def fails(prompt, text):
        raise ValueError("no voice")

    monkeypatch.setattr(made, "render", fails)
    with pytest.raises(RuntimeError, match="'0'.*2.*ValueError"):
        made.rollout(Request(PROMPTS, [0, 1], 2, seed=0))


# Prompts


def test_the_prompt_is_the_chat_template_around_the_instruction_and_the_beginning_of_the_answer(folder):
    model = loaded(folder, instruction="say {text}", begin="<|s_0|>")
    [ids] = model.encode([Prompt("hi 5", "0")]).ids.tolist()
    written = ["<|sos|>", *"say", " ", *"hi", " ", "5", "<|task_id|>", "<|s_0|>"]
    assert model.tokenizer.convert_ids_to_tokens(ids) == written
    model.tokenizer.chat_template = None
    [ids] = model.encode([Prompt("hi", "0")]).ids.tolist()
    assert model.tokenizer.convert_ids_to_tokens(ids) == ["s", "a", "y", " ", "h", "i", "<|s_0|>"]


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("hi <|s_3|>", "a text with <|s_{}|>"),
        ("hi <|eos1|>", "a text with <|eos1|>"),
        ("a <|sos|> b <|s_3|>", "a text with <|sos|>"),
        ("  ", "no text"),
    ],
)
def test_a_text_with_marks_of_the_model_or_without_words_is_refused(folder, text, got):
    with pytest.raises(ValueError, match=f"'7'.*{re.escape(got)}"):
        loaded(folder, begin="<|sos|>").encode([Prompt(text, "7")])


def test_padding_is_the_tokenizers_or_an_end(folder):
    model = loaded(folder)
    assert model.pad_id == model.tokenizer.pad_token_id not in model.end_ids
    assert (model.dtype, model.checkpointing, model.frozen_media) == (torch.float32, False, True)
    model.tokenizer.pad_token = None
    model.__post_init__()
    assert model.pad_id == min(model.end_ids)


# Checkpoints and vocoders


def test_a_checkpoint_that_cannot_speak_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"<\|speech_0\|>"):
        loaded(folder, speech_token="<|speech_{}|>")
    with pytest.raises(ValueError, match="model.end.*<end>"):
        loaded(folder, end="<end>")
    with pytest.raises(ValueError, match="64.*65"):
        loaded(maker("codec_speech")(tmp_path / "many", codes=65))
    assert loaded(folder, end="<|s_31|>").end_ids == {loaded(folder).tokenizer.convert_tokens_to_ids("<|s_31|>")}


def test_a_model_of_another_type_is_named_with_its_family(tmp_path):
    from pipelines.speech import whisper

    config = config_class(family("codec_speech").sections)()
    config.model.path, config.model.family = whisper.tiny(tmp_path / "w"), "codec_speech"
    with pytest.raises(ValueError, match="whisper.*model.family"):
        family("codec_speech").policy(config, "cpu")


def test_codes_with_a_gap_are_refused(folder, tmp_path):
    tokenizer = loaded(folder).tokenizer
    tokenizer.add_tokens(["<|s_40|>"])
    with pytest.raises(ValueError, match=r"33.*<\|s_\{\}\|>.*'x'"):
        codec_speech.code_table(tokenizer, "<|s_{}|>", "x")


SEMANTIC = {
    "model_type": "wav2vec2-bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "output_hidden_size": 16,
}  # fmt: skip
SIZES = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "encoder_hidden_size": 4, "semantic_model_config": SEMANTIC,
    "quantization_dim": 48, "quantization_levels": [4, 8],
}  # fmt: skip


@pytest.mark.parametrize(("name", "rate", "hop"), [("Xcodec2", 16_000, 320), ("NeuCodec", 24_000, 480)])
def test_a_codec_of_transformers_decodes_what_its_own_decoder_does(name, rate, hop, folder, tmp_path):
    import transformers

    torch.manual_seed(0)
    network = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**SIZES)).eval()
    network.save_pretrained(tmp_path / "codec")
    voice = vocoders.vocoder("codec", str(tmp_path / "codec"))
    codes = torch.tensor([3, 31, 0, 7, 7])
    sound = voice.render(PROMPTS[0], codes)
    assert (voice.size(), sound.rate, sound.samples.shape) == (32, rate, (1, 5 * hop))
    with torch.no_grad():
        wanted = network.decode(audio_codes=codes[None, None]).audio_values[0, 0]
    torch.testing.assert_close(sound.samples[0], wanted.clamp(-1, 1), rtol=0, atol=1e-6)
    assert torch.equal(voice.render(PROMPTS[0], codes).samples, sound.samples)
    assert not torch.equal(voice.render(PROMPTS[0], codes.flip(0)).samples, sound.samples)
    made = speech.policy(folder, vocoder_path=str(tmp_path / "codec"), device="cpu", max_tokens=4)
    [spoken] = made.sample(Request(PROMPTS[:1], [0], 1, seed=0))
    assert spoken.rate == rate and spoken.samples.shape[1] % hop == 0


def test_a_codec_of_several_codebooks_is_refused(tmp_path):
    from transformers import DacConfig, DacModel

    sizes = {"encoder_hidden_size": 4, "decoder_hidden_size": 16, "downsampling_ratios": [2], "upsampling_ratios": [2]}
    for books in (1, 2):
        config = DacConfig(**sizes, n_codebooks=books, codebook_size=16, hidden_size=8)
        DacModel(config).save_pretrained(tmp_path / str(books))
    assert vocoders.vocoder("codec", str(tmp_path / "1")).size() == 16
    with pytest.raises(ValueError, match="codec.*2"):
        vocoders.vocoder("codec", str(tmp_path / "2"))


@pytest.mark.parametrize("content", [None, {}, {"config.json": "{}"}, {"config.json": "["}])
def test_a_codec_that_is_not_there_is_named_by_its_setting(content, folder, tmp_path):
    """No folder, an empty one, and two whose files are none of a codec; a run looks before it loads anything."""
    path = tmp_path / "codec"
    if content is not None:
        path.mkdir()
        for name, text in content.items():
            (path / name).write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=f"^model.vocoder_path: .*{path}"):
        vocoders.vocoder("codec", str(path))
    if not content:
        options = ["--model.family", "codec_speech", "--model.path", str(folder), "--model.vocoder-path", str(path)]
        config = read(options, "")
        with pytest.raises(FileNotFoundError, match=f"^model.vocoder_path: .*{path}"):
            check_model(config)
        check_model(replace(config, model=replace(config.model, vocoder="tones")))


def test_a_vocoder_of_ones_own_is_named_by_its_module():
    assert isinstance(vocoders.vocoder("pipelines.speech.vocoders:Tones"), vocoders.Tones)
    with pytest.raises(ValueError, match="function.*Vocoder"):
        vocoders.vocoder("tests.tones:heard")
    with pytest.raises(ValueError, match="'tone'.*tones"):
        vocoders.vocoder("tone")


def test_the_tones_are_read_back_exactly_up_to_the_last():
    codes = torch.arange(64)
    sound = vocoders.Tones().render(PROMPTS[0], codes)
    assert codes_of(sound) == codes.tolist() and heard(sound)[:12] == "0123456789??"
    assert sound.samples.abs().max() <= 0.5


def test_a_completion_is_written_as_its_speech_tokens(folder):
    model = loaded(folder)
    tokens = {code: token for token, code in model.codes.items()}
    ids = [tokens[5], tokens[31], *model.end_ids]
    text = model.decode(ids)
    assert text == "<|s_5|><|s_31|>" and codes_of(model.render(PROMPTS[0], Text(text))) == [5, 31]


# Learning


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_tiny_model_learns_to_say_the_digits_of_its_prompt(seed, tmp_path):
    made = policy(maker("codec_speech")(tmp_path / "tiny", seed=seed, codes=6), max_tokens=3)
    texts = [Prompt(f"{first}{second}", f"{first}{second}") for first in range(4) for second in range(4)]
    run = trainer(
        made, tmp_path / "run", texts, reward=heard_neg_cer, heldout=texts, prompts_per_step=16, group_size=12,
        steps=100, seed=seed, lr=3e-3, **algorithm_blocks("grpo", terms=["entropy_bonus(coef=0.05)"]),
    )  # fmt: skip
    result = run.fit()["eval"]
    # The most that is heard of anyone who says the same whatever the prompt.
    codes = [torch.tensor(row) for length in (1, 2, 3) for row in itertools.product(range(4), repeat=length)]
    same = max(fmean(heard_neg_cer(texts, [vocoders.Tones().render(texts[0], row)] * 16)) for row in codes)
    assert same == -0.75
    assert result["before"]["reward"]["mean"] <= same
    assert result["after"]["reward"]["mean"] > same + 0.3


def test_samples_are_written_with_their_sounds(tmp_path):
    from mmgrpo.evaluation import Shown

    sound = vocoders.Tones().render(PROMPTS[0], torch.tensor([1, 2]))
    family("codec_speech").write_samples(
        Path(tmp_path) / "after", Shown([PROMPTS[0]], [sound], [{"seconds": 0.04}], [{}])
    )
    assert "one 2" in json.dumps([json.loads(line) for line in (tmp_path / "after.jsonl").read_text().splitlines()])
    assert list((tmp_path / "after").glob("*.ogg"))


# Llasa as it is published


@pytest.fixture(scope="module")
def llasa() -> str:
    return tiny_checkpoint(maker("codec_speech"), kind="llasa")


def test_llasa_is_asked_with_one_beginning_one_date_and_the_beginning_of_speech(llasa):
    model = loaded(llasa, instruction=INSTRUCTION, begin=SPEECH_START)
    tokens = model.tokenizer.convert_ids_to_tokens(model.encode([Prompt("one 2", "0")]).ids[0].tolist())
    assert tokens.count("<|begin_of_text|>") == 1 and tokens[0] == "<|begin_of_text|>"
    assert tokens[-1] == SPEECH_START and tokens.count(SPEECH_START) == 1
    said = "".join(token for token in tokens if len(token) == 1)
    assert "26 " in said and "2024" in said  # of the day that all runs have
    start, stop = tokens.index("<|TEXT_UNDERSTANDING_START|>"), tokens.index("<|TEXT_UNDERSTANDING_END|>")
    assert "".join(tokens[start + 1 : stop]) == "one 2" and "[" not in said


def test_sampling_stops_at_the_end_of_speech_that_llasa_does_not_declare(llasa, capsys):
    model = loaded(llasa, instruction=INSTRUCTION, begin=SPEECH_START)
    end = model.tokenizer.convert_tokens_to_ids("<|SPEECH_GENERATION_END|>")
    assert end not in model.network.generation_config.eos_token_id and model.end_ids == {end}  # type: ignore[union-attr]
    assert capsys.readouterr().out == ""
    assert loaded(llasa, begin=SPEECH_START, end="<|eot_id|>").end_ids != {end}  # what a run names counts
    loaded(llasa)
    assert "model.begin" in capsys.readouterr().out
    made = policy(llasa, max_tokens=60, begin=SPEECH_START)
    rollout = made.rollout(Request(PROMPTS, [0, 1], 8, seed=0))
    ended = ~rollout.decisions.fields["truncated"].bool()
    last = [row[real][-1] for row, real in zip(rollout.steps.ids, rollout.steps.real, strict=True)]
    assert ended.any() and all((one == end) == bool(finished) for one, finished in zip(last, ended, strict=True))
