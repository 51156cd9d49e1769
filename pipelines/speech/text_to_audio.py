"""The family of models that make recordings and music of texts: what commands know of it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mmgrpo.config.plugins import locate
from mmgrpo.config.settings import Config, Sections
from mmgrpo.family import Arithmetic
from pipelines.denoising import (
    DECISIONS,
    Process,
    check_decisions,
    check_sampling,
    cost_of_a_rollout,
    policy_over,
    read_whole,
    refuse_other_architectures,
)
from pipelines.options import check_trainable
from pipelines.speech.options import CaptionData, SoundSampling, SpeechEval
from pipelines.speech.spoken import Spoken

if TYPE_CHECKING:
    from mmgrpo.data.media import Skipped
    from mmgrpo.evaluation import Shown
    from mmgrpo.types import Policy, Prompt
    from pipelines.export import Elsewhere


@dataclass(frozen=True)
class TextToAudioFamily(Spoken):
    """A family of denoising models of recordings; ``module`` has its ``load`` and ``tiny``."""

    name: str
    about: str
    module: str
    architectures: tuple[str, ...]
    options: type
    process: Process = "diffusion"
    modality: str = "speech"
    blocks: tuple[str, ...] = ("*Block", "*TransformerBlock")
    """Class names of the parts of its network that are sharded."""
    in_step: bool = False

    @property
    def sections(self) -> Sections:
        return Sections(
            model=self.options,
            sampling=SoundSampling,
            data=CaptionData,
            eval=SpeechEval,
            rewards=("clap",),
            outputs="Audio",
        )

    @property
    def elsewhere(self) -> Elsewhere:
        """Adapters as diffusers and peft name them."""
        from pipelines.export import Elsewhere

        return Elsewhere(("diffusers", "peft"))

    def check(self, config: Config) -> None:
        """Raise ValueError for settings that no denoising model takes, and for those of another process."""
        check_trainable(config.model)
        check_sampling(self.name, self.process, config.sampling)
        check_decisions(config)

    def decisions(self, config: Config) -> str:
        """``gaussian`` transitions."""
        return DECISIONS[config.sampling.policy]

    def arithmetic(self, config: Config) -> Arithmetic:
        """Prompts x samples -> samples, network evaluations and decisions."""
        return cost_of_a_rollout(config, 1 if config.model.guidance == 1 else 2)

    def policy(
        self, config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
    ) -> Policy:
        """Load the model as a policy over transitions."""
        from pipelines.training import Training

        options, path = config.model, locate(config.model.path)
        refuse_other_architectures(self.name, self.architectures, path)
        model = importlib.import_module(self.module).load(
            replace(options, path=path),
            Training.of(
                options,
                seed=config.seed,
                device=device,
                weights=weights,
                training=training,
                shard=config.distributed.shard,
            ),
        )
        return policy_over(model, self, config, device)

    def read(self, config: Config, path: str) -> tuple[list[Prompt], list[Skipped]]:
        """The captions of a file; ``accept`` skips those that the model does not take."""
        from mmgrpo.data.columns import columns_for
        from pipelines.speech.captions import load_captions

        return self.readable(config, load_captions(locate(path), columns_for(path, config.data.columns)), path)

    def readable(self, config: Config, prompts: Sequence[Prompt], name: str) -> tuple[list[Prompt], list[Skipped]]:
        """Every prompt; ValueError for media, which no model here takes."""
        from pipelines.conditions import refuse_media

        for prompt in prompts:
            refuse_media(prompt)
        return list(prompts), []

    def accept(self, config: Config, policy: Policy, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Skipped]]:
        """The captions that the text encoder reads whole and whose duration the model can make, and the skipped."""
        return read_whole(policy.model.check, config, prompts)  # type: ignore[attr-defined]

    def write_page(self, folder: Path, sets: Mapping[str, Shown], samples: int, columns: int) -> Path:
        """``completions.html`` with players, its content as JSON lines, and every recording as a 16-bit wav file."""
        from pipelines.samples import write_waves

        for title, shown in sets.items():
            write_waves(folder / (title or "after"), shown)
        return super().write_page(folder, sets, samples, columns)
