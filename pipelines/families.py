"""What the records of families share, whatever their modality: engines, exports and what reports show. This file
imports no torch, so ``--help`` is fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mmgrpo.config.settings import Config
from mmgrpo.family import Engines, Family

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

    from mmgrpo.engines.denoising import Denoiser
    from mmgrpo.engines.engine import Engine
    from mmgrpo.evaluation import Shown
    from mmgrpo.report.audio_player import Sound
    from mmgrpo.types import Audio, Media, Policy
    from pipelines.export import Elsewhere


def make_denoiser(owner: Family, config: Config, device: str) -> Denoiser:
    """A network that draws trajectories."""
    from pipelines.engines import make_denoiser

    return make_denoiser(owner, config, device)


def make_engine(owner: Family, config: Config, device: str) -> Engine:
    """Our own sampler of completions, or vLLM."""
    from pipelines.engines import make_engine

    return make_engine(owner, config, device)


def draw(
    owner: Family, config: Config, policy: Policy, device: str, processes: int, process: int, run: str = ""
) -> None:
    """Let the engine of ``config.rollout`` draw the rollouts of a policy."""
    from pipelines.engines import draw_with_engine

    draw_with_engine(owner, config, policy, device, processes, process, run)


def end(policy: Policy) -> None:
    """End the engine, where there is one."""
    from pipelines.engines import end_engine

    end_engine(policy)


DENOISER = Engines(("sampler", "served"), make_denoiser, draw, end)
"""Our own sampler of trajectories, here or behind HTTP."""

SAMPLER = Engines(("sampler", "served"), make_engine, draw, end)
"""Our own sampler of completions, here or behind HTTP."""

WITH_VLLM = Engines((*SAMPLER.names, "vllm"), make_engine, draw, end)


def adapters() -> Elsewhere:
    """Adapters as peft names them."""
    from pipelines.export import Elsewhere

    return Elsewhere(("peft",))


def previewer() -> Callable[[Media | Audio], PilImage | Sound]:
    """What shows a thumbnail, a strip of frames, or a small audio file."""
    from pipelines.vlm.media import preview

    return preview


def write_texts(stem: Path, shown: Shown) -> None:
    """Completions with the media of their prompts, ``<stem>.jsonl``."""
    from pipelines.samples import write_texts

    write_texts(stem, shown)


def write_speech(stem: Path, shown: Shown) -> None:
    """Texts and their recordings, ``<stem>.jsonl`` and recordings next to it."""
    from pipelines.samples import write_speech

    write_speech(stem, shown)


def write_page(
    write: Callable[[Path, Shown], None], folder: Path, sets: Mapping[str, Shown], samples: int, columns: int
) -> Path:
    """``completions.html`` of what ``write`` writes, and its content as JSON lines."""
    from pipelines.samples import write_completions_page

    return write_completions_page(folder, sets, samples, write)
