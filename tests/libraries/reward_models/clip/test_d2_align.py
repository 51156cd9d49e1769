"""D2-Align by its formula, and a direction that is learned from pictures with a known bias."""

from __future__ import annotations

import inspect
import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmgrpo.cli import learn_direction as script
from mmgrpo.types import Image, Prompt
from reward_models.clip.clip_score import clip_score
from reward_models.clip.d2_align import d2_align, guide, learn_direction, load_match, save_direction
from reward_models.clip.match import Match, score
from reward_models.clip.pickscore import pickscore
from reward_models.clip.towers import Towers
from reward_models.pixels import to_pil
from tests.libraries.reward_models.clip.tiny import PROMPTS, clip_folder, pictures


def test_the_corrected_text_in_the_plane():
    """e = (1, 0) and b = (0, 1): e+ and e- lie 45 degrees above and below; omega = 1.5 adds half their distance."""
    e, b, half = torch.tensor([[1.0, 0.0]]), torch.tensor([0.0, 1.0]), math.sqrt(0.5)
    assert torch.allclose(guide(e, b, 1.5), torch.tensor([[half, 2 * half]]))
    assert torch.allclose(guide(e, b, 1.0), torch.tensor([[half, half]])), "e+"
    assert torch.allclose(guide(e, b, 0.0), torch.tensor([[half, -half]])), "e-"
    assert torch.equal(guide(e, torch.zeros(2), 1.5), e), "no direction, no correction"
    assert torch.allclose(guide(e, 3 * e[0], 1.5), torch.tensor([[2.0, 0.0]])), "e+ = e, e- = -e: longer, not turned"


@pytest.fixture
def folder(tmp_path):
    clip_folder(tmp_path)
    return str(tmp_path)


def direction_file(tmp_path, width=32, scale=1.0):
    direction = scale * torch.sin(torch.arange(width).float())
    save_direction(direction, tmp_path / f"direction{scale}.safetensors", "clip_score")
    return str(tmp_path / f"direction{scale}.safetensors"), direction


@pytest.mark.parametrize("name", ["clip_score", "pickscore"])
def test_rewards_are_those_of_corrected_texts(tmp_path, folder, name):
    file, direction = direction_file(tmp_path)
    parameters = {
        "clip_score": f'weights="{folder}", scale="percent"',
        "pickscore": f'weights="{folder}", tokenizer="{folder}"',
    }
    reward = f"{name}({parameters[name]})"
    match = load_match(reward)
    seen, told = match.images(pictures()), match.texts(PROMPTS)
    plus, minus = ((told + s * direction) / (told + s * direction).norm(dim=-1, keepdim=True) for s in (1, -1))
    expected = match.value((seen * (minus + 1.5 * (plus - minus))).sum(-1))
    values = d2_align(PROMPTS, pictures(), file, reward)
    assert values == pytest.approx(expected.tolist(), abs=1e-4)
    plain = {
        "clip_score": lambda: clip_score(PROMPTS, pictures(), folder, "percent"),
        "pickscore": lambda: pickscore(PROMPTS, pictures(), folder, tokenizer=folder),
    }
    zero = direction_file(tmp_path, scale=0.0)[0]
    assert d2_align(PROMPTS, pictures(), zero, reward) == pytest.approx(plain[name](), abs=1e-4)
    assert max(abs(a - b) for a, b in zip(values, plain[name]())) > 1


def test_a_broken_picture_is_nan(tmp_path, folder):
    file, _ = direction_file(tmp_path)
    images = [Image(torch.full((3, 4, 4), float("nan"))), *pictures()[:1]]
    values = d2_align(PROMPTS[:2], images, file, f'clip_score(weights="{folder}", scale="cosine")')
    assert math.isnan(values[0]) and math.isfinite(values[1])


def biased(bias, rows=200, width=8):
    """Pictures whose features are those of their text and, all of them, something that no text says."""
    generator = torch.Generator().manual_seed(0)
    texts = torch.nn.functional.normalize(torch.randn(rows, width, generator=generator), dim=-1)
    texts[:, 0] = 0
    images = texts.clone()
    images[:, 0] = bias
    features = {str(row): text for row, text in enumerate(texts)}
    towers = Towers(
        lambda pixels: torch.stack([images[int(p[0, 0, 0] * rows + 0.5)] for p in pixels]),
        lambda words: torch.stack([features[word] for word in words]),
        lambda image: image.pixels,
        1,
        1.0,
    )
    outputs = [Image(torch.full((3, 1, 1), row / rows)) for row in range(rows)]
    return Match("test", towers, lambda cosine: cosine), [Prompt(str(row)) for row in range(rows)], outputs


def test_the_learned_direction_is_what_pictures_share_and_texts_do_not():
    match, prompts, images = biased(0.8)
    direction = learn_direction(match, prompts, images, steps=300, rate=0.02)
    assert direction[0] / direction.norm() > 0.99
    before = score(match, prompts, images)
    after = score(match, prompts, images, lambda texts: guide(texts, direction))
    assert sum(after) > 1.1 * sum(before), "it maximizes the corrected reward"
    opposite = learn_direction(*biased(-0.8), steps=300, rate=0.02)
    assert opposite[0] / opposite.norm() < -0.99
    again = learn_direction(match, prompts, images, steps=300, rate=0.02)
    assert torch.equal(direction, again)


def test_the_direction_goes_by_adam_from_zero():
    """Three steps of the mean of -100 cosine by Adam's formula, with gradients by differences."""
    generator = torch.Generator().manual_seed(0)
    seen, told = torch.nn.functional.normalize(torch.randn(2, 3, 4, generator=generator).double(), dim=-1)
    match: Any = SimpleNamespace(images=lambda _: seen.float(), texts=lambda _: told.float(), value=lambda c: 100 * c)

    def loss(direction):
        return -float(100 * (seen * guide(told, direction, 2.0)).sum(1).mean())

    b, mean, square = torch.zeros(4).double(), torch.zeros(4).double(), torch.zeros(4).double()
    for step in range(3):
        each = [1e-5 * row for row in torch.eye(4).double()]
        gradient = torch.tensor([loss(b + one) - loss(b - one) for one in each]).double() / 2e-5
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        b = b - 0.05 * (mean / (1 - 0.9 ** (step + 1))) / ((square / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8)
    found = learn_direction(match, PROMPTS[:3], pictures()[:3], omega=2.0, steps=3, rate=0.05)
    torch.testing.assert_close(found.double(), b, rtol=1e-3, atol=1e-5)
    assert not found.requires_grad


def test_what_is_not_said_is_as_for_the_script(tmp_path, folder, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "reward_models.clip.d2_align.learn_direction", lambda *given: asked.append(given[3:]) or torch.zeros(32)
    )
    (tmp_path / "none.jsonl").touch()
    reward = f'clip_score(weights="{folder}")'
    script.main(["--pictures", str(tmp_path / "none.jsonl"), "--reward", reward, "--out", str(tmp_path / "out")])
    defaults = [one.default for one in inspect.signature(learn_direction).parameters.values()]
    assert asked == [tuple(defaults[3:])]


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("clip_scores", "d2_align.*reward.*clip_scores"),
        ("clip_score(loud=1)", "loud"),
        ("clip_score(", "d2_align.*reward.*clip_score."),
    ],
)
def test_a_reward_that_cannot_be_corrected_is_named(tmp_path, reward, message):
    with pytest.raises(ValueError, match=message):
        d2_align(PROMPTS, pictures(), direction_file(tmp_path)[0], reward)


def test_a_direction_that_does_not_fit_is_named(tmp_path, folder):
    reward = f'clip_score(weights="{folder}")'
    with pytest.raises(ValueError, match="direction.*16.*clip_score"):
        d2_align(PROMPTS, pictures(), direction_file(tmp_path, 16)[0], reward)
    save_file({"vector": torch.ones(32)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"other.safetensors.*\['vector'\]"):
        d2_align(PROMPTS, pictures(), str(tmp_path / "other.safetensors"), reward)
    save_file({"direction": torch.ones(1, 32)}, tmp_path / "matrix.safetensors")
    with pytest.raises(ValueError, match=r"matrix.safetensors.*\['direction'\]"):
        d2_align(PROMPTS, pictures(), str(tmp_path / "matrix.safetensors"), reward)
    for prompts, images in ((PROMPTS, []), (PROMPTS[:1], pictures()[:2]), ([], [])):
        with pytest.raises(ValueError, match=f"{len(images)}.*{len(prompts)}"):
            learn_direction(load_match(reward), prompts, images)


def test_the_script_learns_from_pictures_on_disk(tmp_path, folder, capsys):
    rows = []
    for number, image in enumerate(pictures()):
        to_pil(image).save(tmp_path / f"{number}.png")
        rows.append(json.dumps({"text": PROMPTS[number].text, "image": f"{number}.png"}))
    (tmp_path / "drawn.jsonl").write_text("\n".join(rows) + "\n")
    reward, out = f'clip_score(weights="{folder}", scale="cosine")', tmp_path / "direction.safetensors"
    script.main(["--pictures", str(tmp_path / "drawn.jsonl"), "--reward", reward, "--out", str(out), "--steps", "20"])
    assert "learned from 5 images" in capsys.readouterr().out
    expected = learn_direction(load_match(reward), PROMPTS, pictures(), steps=20)
    assert torch.allclose(load_file(out)["direction"], expected, atol=1e-6)
    plain = clip_score(PROMPTS, pictures(), folder, "cosine")
    assert sum(d2_align(PROMPTS, pictures(), str(out), reward)) > sum(plain)
