"""Judges of speech with networks whose answers are known: a Whisper of random weights, and stand-ins."""

from __future__ import annotations

import copy
import hashlib
import io
import math
import pickle
import zipfile
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mmgrpo.types import Audio, Prompt
from pipelines.speech import whisper
from reward_models.speech import recognizer, speaker
from reward_models.speech.recognizer import RATE, Recognizer
from tests.tiny import tiny_checkpoint

pytest.importorskip("transformers")


def tone(seconds: float, pitch: float = 0.3, loud: float = 0.5) -> Audio:
    return Audio(torch.sin(torch.arange(int(seconds * RATE)) * pitch)[None] * loud, RATE)


# A recognizer with random weights


@pytest.fixture(scope="module")
def random_whisper() -> Recognizer:
    return recognizer.recognizer(tiny_checkpoint(whisper.tiny))


def test_the_log_probability_of_a_text_is_that_of_its_tokens_and_end_without_the_forced_prefix(random_whisper):
    samples = tone(0.5).samples[0].numpy()
    tokenizer, network = random_whisper.processor.tokenizer, random_whisper.network
    ids = torch.tensor([tokenizer(" one two").input_ids])
    features = random_whisper.processor(audio=samples, sampling_rate=RATE, return_tensors="pt").input_features
    with torch.no_grad():
        log_probs = network(features, decoder_input_ids=ids).logits.log_softmax(-1)[0]
    prefix = len(tokenizer.prefix_tokens)
    assert prefix >= 2 and ids[0, -1] == tokenizer.eos_token_id
    # The logits at one place are those of the next token.
    wanted = [log_probs[place - 1, ids[0, place]].item() for place in range(prefix, ids.shape[1])]
    assert len(wanted) == len(" one two") + 1
    found = random_whisper.log_prob(samples, " one   two ")  # spaces do not count
    assert found == pytest.approx(sum(wanted) / len(wanted), abs=1e-5) and found < 0


def test_a_transcript_is_at_most_three_times_as_long_as_the_text_and_made_once(random_whisper, monkeypatch):
    lengths = []
    generate = random_whisper.network.generate

    def counted(**given):
        ids = generate(**given)
        lengths.append((given["max_length"], ids.shape[1]))
        return ids

    monkeypatch.setattr(random_whisper.network, "generate", counted)
    samples, other = tone(0.5).samples[0].numpy(), tone(0.5, 0.4).samples[0].numpy()
    first = random_whisper.transcribe(samples, "ab")
    assert random_whisper.transcribe(samples, "ab") == first and first == first.strip()
    limit = 3 * len(random_whisper.processor.tokenizer("ab").input_ids)
    assert lengths == [(limit, lengths[0][1])] and lengths[0][1] <= limit
    random_whisper.transcribe(other, "ab")
    random_whisper.transcribe(samples, "abc")
    assert [length for length, _ in lengths] == [limit, limit, limit + 3]


def test_a_text_may_be_as_long_as_the_longest_transcript(random_whisper):
    tokenizer, longest = random_whisper.processor.tokenizer, random_whisper.network.config.max_target_positions
    text = "a" * (longest - len(tokenizer(" ").input_ids))
    samples = tone(0.5).samples[0].numpy()
    assert len(tokenizer(f" {text}").input_ids) == longest and random_whisper.log_prob(samples, text) < 0
    with pytest.raises(ValueError, match=f"{longest + 1}.*{longest}"):
        random_whisper.log_prob(samples, f"{text}a")


def test_a_recognizer_is_frozen_and_of_full_precision(random_whisper):
    parameters = list(random_whisper.network.parameters())
    assert not any(one.requires_grad for one in parameters) and {one.dtype for one in parameters} == {torch.float32}
    assert not random_whisper.network.training and random_whisper.network.generation_config.max_new_tokens is None


def test_a_transcript_has_no_marks(random_whisper, monkeypatch):
    ids = random_whisper.processor.tokenizer(" ab").input_ids  # with those of the start and the end
    monkeypatch.setattr(random_whisper.network, "generate", lambda **_: torch.tensor([ids]))
    assert random_whisper.transcribe(tone(0.5, 0.7).samples[0].numpy(), "ab") == "ab"


def test_a_checkpoint_in_half_precision_and_with_a_limit_of_its_own_is_read_without_them(random_whisper, tmp_path):
    halved = copy.deepcopy(random_whisper.network).half()
    halved.generation_config.max_new_tokens = 7
    halved.save_pretrained(tmp_path)
    random_whisper.processor.save_pretrained(tmp_path)
    network = recognizer.recognizer.__wrapped__(str(tmp_path)).network
    assert {one.dtype for one in network.parameters()} == {torch.float32}
    assert network.generation_config.max_new_tokens is None


# What rewards make of transcripts


class Hears:
    """A recognizer that hears what it is told, and counts."""

    def __init__(self, text: str) -> None:
        self.text, self.asked = text, []

    def transcribe(self, samples: np.ndarray, text: str) -> str:
        self.asked.append((len(samples), text))
        return self.text

    def log_prob(self, samples: np.ndarray, text: str) -> float:
        return -float(len(text))


@pytest.fixture
def hears(monkeypatch, request) -> Hears:
    made = Hears("Red bark, loud!")
    monkeypatch.setattr(recognizer, "recognizer", lambda path: made)
    monkeypatch.setattr("reward_models.speech.audio._cache", {})
    return made


def test_word_and_character_errors_are_counted_after_normalization_up_to_the_cap(hears):
    prompts = [Prompt("red dogs bark loud", "a"), Prompt("red", "b"), Prompt("RED BARK LOUD", "c")]
    sounds = [tone(0.1, 0.1 + 0.01 * number) for number in range(3)]
    # one of four words is missing; of one word the two others are too many: 2, capped at 1.5
    assert recognizer.spoken_neg_wer(prompts, sounds) == [-0.25, -1.5, 0.0]
    assert recognizer.spoken_neg_wer(prompts, sounds, cap=3.0) == [-0.25, -2.0, 0.0]
    # "dogs " is 5 of 18 characters; " bark loud" are 10 more than the 3 of "red"
    assert recognizer.spoken_neg_cer(prompts, sounds, cap=9.0) == pytest.approx([-5 / 18, -10 / 3, 0.0])
    assert recognizer.spoken_neg_cer(prompts, sounds)[1] == -1.5
    assert math.copysign(1, recognizer.spoken_neg_wer(prompts, sounds)[2]) == 1  # 0, not -0


@pytest.mark.parametrize("reward", [recognizer.spoken_neg_wer, recognizer.spoken_neg_cer])
def test_a_sound_longer_than_the_window_is_not_scored(hears, reward):
    prompt = Prompt("red bark loud", "a")
    short, long = tone(30.0), Audio(torch.cat([tone(30.0).samples, torch.full((1, 1), 0.1)], 1), RATE)
    assert reward([prompt], [short]) == [0.0] and math.isnan(reward([prompt], [long])[0])
    assert [length for length, _ in hears.asked] == [30 * RATE]


def test_the_likelihood_of_a_text_is_the_recognizers_and_of_a_sound_beyond_the_window_none(hears):
    prompts, long = [Prompt("red", "a"), Prompt("green", "b")], torch.cat([tone(30.0).samples, torch.ones(1, 1) / 9], 1)
    assert recognizer.spoken_log_prob(prompts, [tone(0.1), tone(30.0)]) == [-3.0, -5.0]
    assert math.isnan(recognizer.spoken_log_prob(prompts[:1], [Audio(long, RATE)])[0])


def test_transcripts_of_what_cannot_be_heard_are_empty(hears):
    prompt = Prompt("red dogs", "a")
    sounds = [
        tone(0.1),
        Audio(torch.zeros(1, 800), RATE),
        tone(30.0),
        Audio(torch.cat([tone(30.0).samples, torch.full((1, 1), 0.1)], 1), RATE),
    ]
    assert recognizer.transcripts([prompt] * 4, sounds) == ["Red bark, loud!", "", "Red bark, loud!", ""]


def test_error_rates_are_word_errors_and_words(hears):
    [rate] = recognizer.rates()
    prompts = [Prompt("red dogs bark loud", "a"), Prompt("five", "b")]
    sounds = [tone(0.1), Audio(torch.zeros(1, 800), RATE)]
    # "dogs" is missing; nothing was heard of "five"
    assert rate.name == "wer" and rate.errors(prompts, sounds) == [1.0, 1.0]
    assert rate.units(prompts, sounds) == [4.0, 1.0]


def test_notes_hold_what_was_heard_beside_what_was_to_be_said(hears):
    [note] = recognizer.annotate()([Prompt("red dogs bark loud", "a")], [tone(0.1)])
    assert note["heard"] == "Red bark, loud!"
    assert note["aligned"] == [
        ("equal", "red", "red"), ("delete", "dogs", ""), ("equal", "bark", "bark"), ("equal", "loud", "loud"),
    ]  # fmt: skip


# The speaker encoder


def random_speaker() -> speaker.SpeakerEncoder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return speaker.SpeakerEncoder().eval().requires_grad_(False)


def test_the_embedding_of_a_sound_is_the_mean_of_those_of_its_parts_and_of_norm_one():
    encoder, samples = random_speaker(), 0.5 * np.cos(np.arange(44_800, dtype=np.float32) * 0.3)
    # 44,800 samples are parts from frames 0, 77 and 154 on, and the last of them ends in silence
    starts = speaker.part_starts(len(samples))
    assert starts == [0, 77, 154]
    wave = torch.zeros((154 + 160) * 160)
    wave[: len(samples)] = torch.from_numpy(samples)
    window = torch.hann_window(400)
    spectrum = torch.stft(wave, 400, 160, window=window, pad_mode="constant", return_complex=True)
    mel = spectrum.abs().square().T @ encoder.bank
    parts = [encoder(mel[None, start : start + 160])[0] for start in starts]
    assert all(part.norm().item() == pytest.approx(1, abs=1e-5) for part in parts)
    mean = sum(parts) / 3
    embedding, seen = encoder.embed(samples), []
    encoder.forward = lambda mels: seen.append(mels) or torch.ones(len(mels), 4)
    encoder.embed(samples)
    torch.testing.assert_close(seen[0], torch.stack([mel[start : start + 160] for start in starts]))
    assert embedding == pytest.approx((mean / mean.norm()).numpy(), abs=1e-5)
    assert encoder.bank.shape == (201, 40)


def test_mel_bands_are_slaneys_from_0_to_8000_hertz():
    """40 triangles at equal distances in mel, which up to 1 kHz is linear (200/3 Hz), and of area 1."""
    bank = random_speaker().bank
    width = (15 + 27 * math.log(8) / math.log(6.4)) / 41 * 200 / 3  # 73.6 Hz
    assert bank[1, 0].item() == pytest.approx(40 / width / width, rel=1e-4)  # 40 Hz, on the way to 1 / width
    assert bank[:, 39].nonzero().max() == 199


def test_a_voice_of_one_sample_is_padded_with_silence(monkeypatch):
    encoder = random_speaker()
    monkeypatch.setattr(speaker, "encoder_of", lambda *given: encoder)
    monkeypatch.setattr(speaker, "reference_embedding", lambda *given: encoder.embed(np.ones(1, np.float32)))
    monkeypatch.setattr("reward_models.speech.audio._cache", {})
    one = Audio(torch.full((1, 1), 0.5), RATE)
    assert speaker.speaker_similarity([Prompt("a", "a")], [one], reference="a.wav") == [pytest.approx(1.0)]


def test_a_quiet_sound_is_amplified_and_a_loud_one_left_as_it_is():
    encoder = random_speaker()
    heard = []
    encoder.forward = lambda mels: heard.append(mels) or torch.ones(len(mels), 4)
    for loud in (0.001, 0.01, 0.5):  # a tone's root mean square is its height / sqrt(2); the floor is 0.0316
        encoder.embed(tone(1.0, loud=loud).samples[0].numpy())
    torch.testing.assert_close(heard[0], heard[1], rtol=1e-4, atol=1e-9)
    assert (heard[2].sum() / heard[1].sum()).item() == pytest.approx((0.5 / math.sqrt(2) / 10**-1.5) ** 2, rel=1e-3)


def test_a_voice_is_compared_by_the_cosine_of_embeddings(monkeypatch, tmp_path):
    import soundfile

    class Louder:
        rate, shortest = RATE, 800

        def embed(self, samples: np.ndarray) -> np.ndarray:
            return np.array([0.6, 0.8]) if samples.max() > 0.3 else np.array([1.0, 0.0])

    monkeypatch.setattr(speaker, "encoder_of", lambda *given: Louder())
    monkeypatch.setattr("reward_models.speech.audio._cache", {})
    speaker.reference_embedding.cache_clear()
    loud, quiet = tmp_path / "loud.wav", tmp_path / "quiet.wav"
    soundfile.write(loud, tone(0.1).samples[0].numpy(), RATE)
    soundfile.write(quiet, tone(0.1, loud=0.1).samples[0].numpy(), RATE)
    sounds = [tone(0.1), tone(0.1, loud=0.1), tone(0.05), tone(0.0499375)]
    prompt = Prompt("a", "a")
    values = speaker.speaker_similarity([prompt] * 4, sounds, reference=str(loud))
    assert values[:3] == pytest.approx([1.0, 0.6, 1.0]) and math.isnan(values[3])  # 799 samples are too few
    assert speaker.speaker_similarity([prompt], sounds[:1], reference=str(quiet)) == pytest.approx([0.6])
    with pytest.raises(ValueError, match="encoder='a.*weights='b"):
        speaker.speaker_similarity([prompt], sounds[:1], encoder="a", weights="b")
    for name, content, message in (
        ("silent.wav", np.zeros(1600), "silent.wav"),
        ("short.wav", np.full(799, 0.5), "short.wav.*799"),
    ):
        soundfile.write(tmp_path / name, content, RATE)
        with pytest.raises(ValueError, match=message):
            speaker.speaker_similarity([prompt], sounds[:1], reference=str(tmp_path / name))
    speaker.reference_embedding.cache_clear()


def test_weights_of_a_wheel_are_converted_once_and_are_those_that_the_encoder_loads(monkeypatch, tmp_path):
    state = random_speaker().state_dict()
    content = io.BytesIO()
    with monkeypatch.context() as on_a_gpu:  # where these weights were trained, whatever machine reads them
        on_a_gpu.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save({"model_state": {**state, "similarity_weight": torch.ones(1)}}, content)
    wheel = tmp_path / "Resemblyzer-0.1.4-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("resemblyzer/pretrained.pt", content.getvalue())
    monkeypatch.setattr(speaker, "SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    checked = []
    monkeypatch.setattr(speaker, "check_tensors", lambda file, sha256: checked.append(file) or file)
    monkeypatch.setattr(speaker, "CACHE", tmp_path / "new" / "cache")
    speaker.speaker_encoder.cache_clear()
    loaded = speaker.speaker_encoder(str(wheel))
    speaker.speaker_encoder.cache_clear()
    assert all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())
    assert not loaded.training and not any(one.requires_grad for one in loaded.parameters())
    assert checked[0].is_relative_to(tmp_path / "new" / "cache"), "where it can be renamed"
    wheel.unlink()  # no longer needed
    file = speaker.encoder_file(tmp_path / "new" / "cache")
    assert [one.name for one in file.parent.iterdir()] == ["speaker_encoder.safetensors"]


def test_weights_of_a_wheel_are_tensors_and_no_program(monkeypatch, tmp_path):
    content, wheel = io.BytesIO(), tmp_path / "Resemblyzer-0.1.4-py3-none-any.whl"
    torch.save({"model_state": SimpleNamespace()}, content)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("resemblyzer/pretrained.pt", content.getvalue())
    monkeypatch.setattr(speaker, "SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    (tmp_path / "cache").mkdir()  # of an earlier attempt
    monkeypatch.setattr(torch, "load", partial(torch.load, weights_only=False))  # the default before torch 2.6
    with pytest.raises(pickle.UnpicklingError, match="SimpleNamespace"):
        speaker.encoder_file(tmp_path / "cache", wheel)


# What a recognizer is


@pytest.mark.parametrize("path", ["nowhere", "a/b/c"])
def test_a_recognizer_is_a_folder_or_a_hub_id(path, tmp_path, monkeypatch):
    class Reached(Exception):
        pass

    def reached(*given):
        raise Reached

    monkeypatch.setattr(recognizer, "check_weight_files", reached)
    with pytest.raises(FileNotFoundError, match=f"'{path}'"):
        recognizer.recognizer.__wrapped__(path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    for there in ("owner/name", str(tmp_path / "a" / "b")):
        with pytest.raises(Reached):
            recognizer.recognizer.__wrapped__(there)
