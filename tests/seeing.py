"""Small models that see, prompts that show them something, and the library's own forward pass as the oracle."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmgrpo.policies.token import Sequences, TokenPolicy
from mmgrpo.types import Image, Media, Prompt, Request, Rollout, Turn, Video
from pipelines.library import inputs_of
from pipelines.vlm import smolvlm
from tests.building import load
from tests.tiny import maker

NAMES = ("qwen_vl", "smolvlm")


def write_model(name: str, folder: Path) -> str:
    """The family's tiny model, but one that prefers some words to others and looks at what it is shown."""
    loaded = load(name, maker(name)(folder))
    with torch.no_grad():
        for i, (which, parameter) in enumerate(loaded.network.named_parameters()):
            size = 0.3 if "embed_tokens" in which else 0.2
            parameter += size * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i))
    loaded.save(folder, loaded.network)
    return str(folder)


def tower(network: Any) -> Any:
    """The part that sees."""
    return network.model.visual if network.config.model_type == "qwen2_5_vl" else network.model.vision_model


def pixels(shown: Any) -> Tensor:
    """What the tower is given of a medium."""
    return shown.tiles if isinstance(shown, smolvlm.Tiles) else shown.patches


def noise(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def image(height: int, width: int, seed: int, **options: Any) -> Media:
    return Media("image", Image(noise(3, height, width, seed=seed)), options)


def video(count: int, seed: int, fps: float = 4.0, **options: Any) -> Media:
    return Media("video", Video(noise(count, 3, 16, 24, seed=seed), fps), {"fps": 2.0, **options})


def asked(id: str, *parts: str | Media) -> Prompt:
    return Prompt(" ".join(part for part in parts if isinstance(part, str)), id, turns=(Turn("user", parts),))


PICTURE = asked("picture", image(16, 16, 0), "what is it ?")
PICTURES = asked("pictures", image(32, 16, 1), "which of", image(16, 24, 2), "is red ?")
CLIP = asked("clip", video(16, 3), "where is the circle ?")
WORDS = Prompt("yes or no ?", "words")
BOTH = asked("both", image(16, 16, 5), video(12, 4), "is it left ?")
EVERY = [PICTURE, PICTURES, CLIP, WORDS, BOTH]
"""One picture, two, a clip, none, and a picture with a clip."""


def rollout(policy: TokenPolicy, prompts: Sequence[Prompt] = EVERY, group_size: int = 3, seed: int = 3) -> Rollout:
    return policy.rollout(Request(prompts, list(range(len(prompts))), group_size, seed))


def kept(made: Rollout) -> Sequences:
    assert isinstance(made.steps, Sequences)
    return made.steps


def gradient(policy: TokenPolicy, made: Rollout, limit: int = 100) -> dict[str, Tensor]:
    """Gradients, by parameter, of a sum of the decisions' log-probs in which no two have the same factor."""
    policy.network.zero_grad()
    factors = torch.sin(torch.arange(made.decisions.loss_mask.numel()) + 1.0).view_as(made.decisions.log_probs)
    for part in made.steps.split(made.decisions.loss_mask, limit):
        scores = policy.score(made, part, frozenset({"log_probs"}))["log_probs"]
        (factors[part.rows, part.positions] * scores).sum().backward()
    return {name: p.grad.clone() for name, p in policy.network.named_parameters() if p.grad is not None}


def distance(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """|found - wanted| / |wanted| over all parameters, which must be the same ones."""
    assert found.keys() == wanted.keys() and wanted
    gap = sum(float((found[name] - wanted[name]).square().sum()) for name in wanted)
    return (gap / sum(float(value.square().sum()) for value in wanted.values())) ** 0.5


def released_positions(model: Any) -> Any:
    """``get_rope_index`` of Qwen2.5-VL as in transformers 5.2: a text begins behind all axes of what is before it.

    Later versions count on by the larger side of a grid, so text stands inside of a long clip's time.
    """

    def rope(input_ids, mm_token_type_ids, image_grid_thw=None, video_grid_thw=None, second_per_grid_ts=None, **_):
        [kinds], axes = mm_token_type_ids.tolist(), torch.zeros(3, 0, dtype=torch.long)
        grids = {1: iter(() if image_grid_thw is None else image_grid_thw.tolist())}
        grids[2] = iter(() if video_grid_thw is None else video_grid_thw.tolist())
        seconds, speed = iter(() if video_grid_thw is None else second_per_grid_ts.tolist()), 0.0
        for kind, several in itertools.groupby(kinds):
            start, count = int(axes.max()) + 1 if axes.numel() else 0, len(list(several))
            part = torch.arange(count).expand(3, -1)
            if kind:
                time, height, width = next(grids[kind])
                speed = next(seconds) * model.config.vision_config.tokens_per_second if kind == 2 else 1.0
                places = itertools.product(range(time), range(height // 2), range(width // 2))
                part = torch.tensor([(int(at * speed), row, column) for at, row, column in places]).T
            axes = torch.cat([axes, part + start], 1)
        return axes[:, None], axes.max()[None, None] + 1 - len(kinds)

    return rope


plain_inputs = inputs_of
"""What the library's forward pass takes of one prompt and its completion."""


def plain_log_probs(loaded: Any, prompt: Prompt, completion: Tensor) -> Tensor:
    """Log-probs of a completion's tokens by the library's forward pass, over the tokens that are ever said."""
    with torch.no_grad():
        logits = loaded.network(**plain_inputs(loaded, prompt, completion)).logits[0, -len(completion) - 1 : -1].clone()
    logits[:, sorted(loaded.suppress_tokens)] = -torch.inf
    return logits.log_softmax(-1).gather(1, completion[:, None])[:, 0]
