"""The family of flow-matching text-to-speech models: what commands know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mmgrpo.config.plugins import locate
from mmgrpo.config.registry import parse
from mmgrpo.config.settings import Config, Sections
from mmgrpo.family import Arithmetic
from pipelines.denoising import (
    DECISIONS,
    check_decisions,
    check_sampling,
    cost_of_a_rollout,
    policy_over,
    read_whole,
    refuse_other_architectures,
)
from pipelines.options import check_trainable
from pipelines.speech.options import FlowSpeechData, FlowSpeechOptions, FlowSpeechSampling, SpeechEval
from pipelines.speech.spoken import Spoken

if TYPE_CHECKING:
    from mmgrpo.data.media import Skipped
    from mmgrpo.types import Policy, Prompt
    from pipelines.export import Elsewhere


@dataclass(frozen=True)
class FlowSpeechFamily(Spoken):
    """Text-to-speech models whose decisions are the denoising steps of a spectrogram."""

    name: str = "flow_speech"
    about: str = "F5-TTS: a text and a clip of a voice in, the text in that voice out"
    modality: str = "speech"
    blocks: tuple[str, ...] = ("Block",)
    """Class names of the parts of its network that are sharded."""
    in_step: bool = False
    module: str = "pipelines.speech.flow_speech"
    architectures: tuple[str, ...] = ("f5_tts",)

    @property
    def sections(self) -> Sections:
        return Sections(
            model=FlowSpeechOptions,
            sampling=FlowSpeechSampling,
            data=FlowSpeechData,
            eval=SpeechEval,
            rewards=("spoken_neg_wer", "dnsmos(weight=0)"),
            outputs="Audio",
        )

    @property
    def elsewhere(self) -> Elsewhere:
        """Adapters as peft names them."""
        from pipelines.export import Elsewhere

        return Elsewhere(("peft",), whole=True, reset={"folder": ""})

    def check(self, config: Config) -> None:
        """Raise ValueError for settings that no flow takes, and for a kernel that does not fit the network's head."""
        from mmgrpo.diffusion.kernels import DRAWN_KERNELS

        sampling, head = config.sampling, config.model.head
        check_trainable(config.model)
        check_sampling(self.name, "flow", sampling)
        check_decisions(config)
        if (parse(sampling.kernel)[0] in DRAWN_KERNELS) != (head == "drawn"):
            raise ValueError(
                f"sampling.kernel: got {sampling.kernel} with model.head={head}, expected drawn_velocity with "
                "model.head=drawn (F5R-TTS) and another kernel with model.head=velocity; change either"
            )
        if head == "drawn" and sampling.policy != "transitions":
            raise ValueError(
                f"sampling.policy: got {sampling.policy} with model.head=drawn, expected transitions, since the head "
                "has no matching error; take model.head=velocity"
            )

    def decisions(self, config: Config) -> str:
        """``gaussian`` transitions, or flow-``matching`` errors at sampled noise levels."""
        return DECISIONS[config.sampling.policy]

    def arithmetic(self, config: Config) -> Arithmetic:
        """Texts x samples x branch points -> samples, network evaluations and decisions."""
        return cost_of_a_rollout(config, 2 if config.model.guidance != 1 else 1)

    def policy(
        self, config: Config, device: str, prompts: Sequence[Prompt] = (), *, training: bool = True, weights: str = ""
    ) -> Policy:
        """Load the model as a policy over transitions or over sampled noise levels."""
        from pipelines.speech.flow_speech import load
        from pipelines.training import Training

        options = config.model
        path = locate(options.path)
        refuse_other_architectures(self.name, self.architectures, path)
        model = load(
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
        model.levels = config.sampling.grid
        return policy_over(model, self, config, device)

    def read(self, config: Config, path: str) -> tuple[Sequence[Prompt], list[Skipped]]:
        """The prompts of a file, and those whose clip cannot be read."""
        from pipelines.speech.voices import read_texts

        return self.readable(config, read_texts(config, path), path)

    def readable(self, config: Config, prompts: Sequence[Prompt], name: str) -> tuple[Sequence[Prompt], list[Skipped]]:
        """The prompts whose clips can be read, and the others."""
        from pipelines.readable import check_skip_limit, filter_readable
        from pipelines.speech.audio import read_audio

        usable, skipped = filter_readable(
            list(prompts),
            lambda media: read_audio(media, max_seconds=config.model.seconds, setting="model.seconds"),
            title=f"clips of {name}",
        )
        check_skip_limit(skipped, len(prompts), config.data.skip_limit, name, "clips cannot be read")
        return usable, skipped

    def accept(self, config: Config, policy: Policy, prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Skipped]]:
        """The prompts that the model can speak: within its duration, in its characters."""
        return read_whole(policy.model.check, config, prompts)  # type: ignore[attr-defined]
