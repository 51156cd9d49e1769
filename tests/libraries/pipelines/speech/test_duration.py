"""The duration policy of DMOSpeech 2 and its renderers: classes and seconds, the network, sounds as long as asked."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from mmgrpo.policies.categorical import CategoricalPolicy
from mmgrpo.types import Prompt, Request
from pipelines import speech
from pipelines.speech import duration
from pipelines.speech.duration import Shape, encode
from pipelines.speech.renderers import renderer, stretch, tempos
from reward_models.speech.rate import speaking_rate
from tests.building import algorithm_blocks, load, trainer
from tests.speaking import RATE, hum, hummer
from tests.tiny import maker

SENTENCES = ["The kettle is on the stove.", "It rained all night in the valley.", "Where is he?"]
PROMPTS = [Prompt(text, str(number)) for number, text in enumerate(SENTENCES)]


def small(classes: int = 24, **sizes) -> duration.DurationNetwork:
    return duration.create(
        Shape(classes=classes, frames_a_class=40, width=32, layers=1, heads=2, inner=64, **sizes), seed=0
    )


def chosen(network: duration.DurationNetwork, texts: list[str]) -> list[int]:
    return network(encode(texts, network.shape.alphabet)).argmax(1).tolist()


def test_the_papers_classes_are_a_tenth_of_a_second_apart_and_reach_half_a_minute():
    paper = Shape()
    assert paper.seconds(1) == pytest.approx(0.10667, abs=1e-5)  # 10 x 256 / 24000
    assert paper.seconds(300) == pytest.approx(32.0)
    assert paper.seconds(0) == paper.seconds(5) == 50 * 256 / 24000
    assert [paper.choice(s) for s in (0.0, 0.1066, 0.1067, 2.0, 99.0)] == [0, 0, 1, 18, 300]  # 187.5 frames // 10


@pytest.mark.parametrize("sizes", [{"classes": 1}, {"width": 30}, {"frames_a_class": 0}])
def test_a_shape_that_cannot_be_is_refused(sizes):
    with pytest.raises(
        ValueError,
        match="classes.*width.*heads",
    ):
        Shape(**sizes)


def test_characters_are_numbered_in_small_letters_with_the_question_last():
    ids = encode(["Ab?", "  a  é"], duration.ALPHABET)
    a, b, mark, space = (duration.FIRST + duration.ALPHABET.index(c) for c in "ab? ")
    assert ids.tolist() == [[a, b, mark, duration.QUERY], [a, space, duration.UNKNOWN, duration.QUERY]]
    assert encode(["a", "abc"], duration.ALPHABET)[0].tolist() == [a, duration.QUERY, 0, 0]


def test_what_a_text_gets_does_not_depend_on_longer_neighbours():
    network = small()
    alone = network(encode(SENTENCES[2:], network.shape.alphabet))
    together = network(encode(SENTENCES, network.shape.alphabet))[2:]
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-5)
    assert not torch.allclose(together, network(encode(["Where is she?"], network.shape.alphabet)), atol=1e-2)


@pytest.mark.learning
def test_pretraining_teaches_the_pace_it_is_given():
    network = small()
    loss = duration.pretrain(network, SENTENCES, pace=10, spread=0.1, steps=120, batch=16, lr=5e-3, seed=1)
    assert loss < 2.0  # log 24 = 3.2 before
    # 27, 34 and 12 characters at 10 a second, 0.4267 s a class: 6.3, 8.0 and 2.8, rounded down to half a class less.
    # The mean class has no ties, unlike the most likely one.
    probabilities = network(encode(SENTENCES, network.shape.alphabet)).softmax(1)
    mean = (probabilities * torch.arange(24)).sum(1)
    assert (mean - torch.tensor([5.8, 7.5, 2.3])).abs().max() < 1.0
    with pytest.raises(ValueError, match="pace=0.*0"):
        duration.pretrain(network, SENTENCES, pace=0)


def test_a_new_network_is_pretrained_on_the_training_texts_alone(tmp_path):
    """So that it has seen no held-out text, and other commands can make it again."""
    path = tmp_path / "say.txt"
    path.write_text("\n".join(SENTENCES))
    networks = []
    for prompts in ([], [Prompt("A held-out text that is much longer than all of the others, by far.", "x")]):
        policy = speech.policy(
            family="duration", path="", renderer="tests.speaking:hummer", width=32, layers=1, heads=2, pretrain_steps=2
        )
        source = policy.settings
        config = replace(source.config, data=replace(source.config.data, train=str(path)))
        networks.append(source.family.policy(config, "cpu", prompts).network.state_dict())
    assert all(torch.equal(networks[0][name], networks[1][name]) for name in networks[0])


def test_pretraining_only_depends_on_its_seed():
    networks = small(), small(), small()
    loss = [
        duration.pretrain(network, SENTENCES, pace=10, steps=4, batch=4, lr=5e-3, seed=seed)
        for network, seed in zip(networks, (1, 1, 2))
    ]
    first, again, _ = (list(network.state_dict().values()) for network in networks)
    assert loss[0] == loss[1] != loss[2]
    assert all(torch.equal(a, b) for a, b in zip(first, again))


def test_a_saved_network_gives_equal_logits_and_a_damaged_folder_is_told(tmp_path):
    folder = maker("duration")(tmp_path / "tiny")
    loaded = load(duration, folder, renderer="tests.speaking:hummer")
    loaded.reference.keep()
    CategoricalPolicy(loaded).save(tmp_path / "saved")
    again = load(duration, tmp_path / "saved", renderer="tests.speaking:hummer")
    assert again.shape == loaded.shape
    with torch.no_grad():
        assert torch.equal(*(one.logits(one.network, PROMPTS) for one in (loaded, again)))
    with pytest.raises(ValueError, match="untrained"), again.reference():
        pass
    config = tmp_path / "saved" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "layer": 2}))
    with pytest.raises(ValueError, match="layer.*layers"):
        load(duration, tmp_path / "saved", renderer="tests.speaking:hummer")
    config.unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load(duration, tmp_path / "saved")


def test_the_reference_stays_as_it_was_when_the_network_moves():
    family = duration.family(small(), hummer())
    family.reference.keep()
    policy = CategoricalPolicy(family)
    made = policy.rollout(Request(PROMPTS, [0, 1, 2], 4, 0))
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    (part,) = made.steps.split(made.decisions.loss_mask, 100)
    scores = policy.score(made, part, frozenset({"reference.log_probs"}))
    torch.testing.assert_close(scores["reference.log_probs"], made.decisions.log_probs[:, 0], rtol=0, atol=1e-6)
    assert (scores["log_probs"] - scores["reference.log_probs"]).abs().max() > 0.05


def test_renderings_are_made_once_and_last_as_long_as_their_class():
    spoken = []

    def speak(text: str, speed: float) -> np.ndarray:
        spoken.append(speed)
        return hum(text, speed)

    voice = hummer()
    voice.speak = speak
    family = duration.family(small(), voice)
    first = family.render(PROMPTS[0], 5)
    count = len(spoken)
    assert family.render(PROMPTS[0], 5) is first and len(spoken) == count
    assert first.samples.shape == (1, round(5 * 40 * 256 / 24000 * RATE)) and first.rate == RATE


@pytest.mark.parametrize("seconds", [0.3, 1.0, 1.8, 2.5, 7.0])
def test_a_rendering_lasts_as_long_as_asked_and_is_speech_to_its_end(seconds):
    pytest.importorskip("av")
    voice = hummer()
    assert voice.natural(PROMPTS[0]) == pytest.approx(27 / 15, rel=0.01)  # silence at its ends does not count
    sound = voice.render(PROMPTS[0], seconds).samples[0].numpy()
    assert len(sound) == round(seconds * RATE)
    assert np.flatnonzero(np.abs(sound) > 0.05)[-1] / len(sound) > 0.95
    # the pitch is the engine's: 0.3 rad a sample
    peak = np.abs(np.fft.rfft(sound * np.hanning(len(sound)))).argmax() * 2 * np.pi / len(sound)
    assert peak == pytest.approx(0.3, abs=0.01)


def test_what_no_engine_can_say_is_told():
    voice = hummer()
    with pytest.raises(ValueError, match="silence.*''"):
        voice.render(Prompt(""), 1.0)
    with pytest.raises(ValueError, match="duration of 0"):
        voice.render(PROMPTS[0], 0.0)
    with pytest.raises(ValueError, match="espeek.*espeak"):
        renderer("espeek")
    with pytest.raises(ValueError, match=r"model\.renderer.*no_such_module:voice.*no_such_module"):
        renderer("no_such_module:voice")
    with pytest.raises(ValueError, match="tests.speaking.*hummmer.*hummer"):
        renderer("tests.speaking:hummmer")


def test_an_engine_that_is_not_there_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(FileNotFoundError, match="espeak-ng .* --model.renderer hibari"):
        renderer("espeak")


@pytest.mark.parametrize("tempo", [0.1, 0.5, 0.77, 1.0, 1.9, 2.0, 5.0, 40.0])
def test_a_tempo_is_cut_into_factors_that_the_filter_takes(tempo):
    parts = tempos(tempo)
    assert np.prod(parts) == pytest.approx(tempo) and all(0.5 - 1e-9 <= part <= 2 + 1e-9 for part in parts)


def test_a_stretched_sound_begins_as_it_began():
    pytest.importorskip("av")
    sound = np.linspace(-0.5, 0.5, RATE, dtype=np.float32)
    assert stretch(sound, RATE, 0.8)[0] == pytest.approx(-0.5, abs=1e-3)


def test_stretching_changes_the_length():
    pytest.importorskip("av")
    sound = hum("x" * 30, 1.0).astype(np.float32)
    for tempo in (0.4, 1.3, 3.0):
        assert len(stretch(sound, RATE, tempo)) == pytest.approx(len(sound) / tempo, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hibari", "espeak"])
def test_real_engines_speak_in_the_time_that_is_asked(name):
    if name == "espeak" and shutil.which("espeak-ng") is None:
        pytest.skip("espeak-ng is not installed: apt install espeak-ng")
    if name == "hibari":
        pytest.importorskip("hibari", reason="pip install 'mmgrpo[voice]'")
    voice = renderer(name)
    assert 1.0 < voice.natural(PROMPTS[0]) < 3.0
    for seconds in (0.5, 2.0, 5.0):
        sound = voice.render(PROMPTS[0], seconds)
        samples = sound.samples[0].numpy()
        assert len(samples) == round(seconds * sound.rate)
        assert np.flatnonzero(np.abs(samples) > 0.01 * np.abs(samples).max())[-1] / len(samples) > 0.97
    assert torch.equal(voice.render(PROMPTS[0], 2.0).samples, voice.render(PROMPTS[0], 2.0).samples)


@pytest.mark.learning
@pytest.mark.slow
def test_a_policy_that_hurries_learns_to_take_its_time(tmp_path):
    network = small()
    duration.pretrain(network, SENTENCES, pace=40, steps=60, batch=16, lr=5e-3)
    policy = CategoricalPolicy(duration.family(network, hummer()))
    policy.keep_reference()
    made = trainer(
        policy,
        tmp_path,
        PROMPTS,
        reward=lambda prompts, outputs: speaking_rate(prompts, outputs, low=2.0, high=3.5),
        heldout=PROMPTS,
        prompts_per_step=3,
        group_size=48,
        steps=50,
        lr=3e-3,
        **algorithm_blocks("dmospeech2"),
    )
    result = made.fit()["eval"]
    assert result["before"]["reward"]["mean"] < -0.6
    assert result["after"]["reward"]["mean"] > -0.3
