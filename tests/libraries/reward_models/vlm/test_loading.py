"""What published models are loaded with when nothing else is said."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from mmgrpo.types import Prompt, Video
from reward_models.vlm import clap, hpsv3, imagereward, qwen2_vl, videoalign, videoscore


@pytest.fixture
def asked(monkeypatch) -> list[tuple[str, dict[str, Any]]]:
    """What classes of transformers are asked to read, each of which gives an empty tokenizer or configuration."""
    calls: list[tuple[str, dict[str, Any]]] = []

    class Words:
        text_config = SimpleNamespace(hidden_size=4)

        def __len__(self) -> int:
            return 3

        def add_tokens(self, *given: Any, **options: Any) -> None:
            pass

    transformers: Any = importlib.import_module("transformers")
    for name in ("AutoConfig", "AutoTokenizer", "AutoProcessor", "ClapFeatureExtractor", "ClapModel"):
        kind = getattr(transformers, name)

        def read(path: Any, name: str = name, **options: Any) -> Any:
            calls.append((name, options))
            if name in ("ClapModel", "AutoProcessor"):
                raise OSError("far enough")
            return Words()

        monkeypatch.setattr(kind, "from_pretrained", read)
    return calls


@pytest.mark.parametrize(
    ("module", "reward", "given"),
    [
        (videoalign, videoalign.videoalign, (videoalign.WEIGHTS, videoalign.BASE, "", False, "cpu", "")),
        (imagereward, imagereward.image_reward, (imagereward.WEIGHTS, imagereward.TOKENIZER, False, "cpu")),
        (hpsv3, hpsv3.hpsv3, (hpsv3.WEIGHTS, hpsv3.BASE, "cpu", "")),
        (clap, clap.clap, (clap.WEIGHTS, "cpu")),
    ],
)
def test_published_weights_are_read_on_the_cpu_and_pickles_only_where_allowed(module, reward, given, monkeypatch):
    calls: list[tuple] = []
    monkeypatch.setattr(module, "load", lambda *given: calls.append(given))
    monkeypatch.setattr(hpsv3, "_instruction", lambda source: calls.append((source,)))
    assert reward([], []) == []
    assert calls == [given, ("",)] if module is hpsv3 else calls == [given]


def test_a_clip_is_seen_at_the_rate_of_the_model_unless_another_is_given(monkeypatch):
    model: Any = SimpleNamespace(fps=2.5, scales=dict.fromkeys(videoalign.DIMENSIONS, (1.0, 2.0)))
    rates: list[float] = []

    def scored(model: Any, prompt: Prompt, output: Any, fps: float) -> dict[str, float]:
        rates.append(fps)
        return dict.fromkeys(videoalign.DIMENSIONS, 5.0)

    monkeypatch.setattr(videoalign, "load", lambda *given: model)
    monkeypatch.setattr(videoalign, "_score", scored)
    given = [Prompt("a")], [Video(torch.zeros(2, 3, 8, 8), 8.0)]
    assert videoalign.videoalign(*given) == [6.0] and videoalign.videoalign(*given, normalize=False, fps=8.0) == [15.0]
    assert rates == [2.5, 8.0]


def test_beside_the_cpu_videoscore_has_16_bits(tmp_path, monkeypatch):
    transformers: Any = importlib.import_module("transformers")
    config = SimpleNamespace(text_config=SimpleNamespace(hidden_size=4))
    for name in ("AutoConfig", "AutoProcessor"):
        monkeypatch.setattr(getattr(transformers, name), "from_pretrained", lambda *given, **options: config)
    monkeypatch.setattr(transformers, "Idefics2Model", lambda config: torch.nn.Linear(2, 2))
    monkeypatch.setattr(videoscore, "load_exactly", lambda network, *given: network)
    (tmp_path / "config.json").touch()
    save_file({"score.bias": torch.ones(5)}, tmp_path / "model.safetensors")
    for device, dtype in (("cpu", torch.float32), ("meta", torch.bfloat16)):
        made = videoscore.load.__wrapped__(str(tmp_path), device)
        assert {(one.device.type, one.dtype) for one in made.network.parameters()} == {(device, dtype)}
        assert made.device == torch.device(device) and made.network["score"].bias is not None


def test_frames_are_reduced_without_aliasing():
    frames = torch.rand(2, 3, 720, 1280, generator=torch.Generator().manual_seed(0))
    levels = functional.interpolate((frames * 255).round(), (336, 588), mode="bicubic", antialias=True)
    made = qwen2_vl.clip_pixels(frames, 128 * 784, 200_704)
    torch.testing.assert_close(made, levels.clamp(0, 255).round() / 255, atol=1e-6, rtol=0)
