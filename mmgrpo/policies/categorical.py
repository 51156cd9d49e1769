"""A policy with one decision per sample: one of a few classes, which a renderer turns into an output.

The renderer is a black box: no gradient flows through it, only its reward counts. The choice has a likelihood, so
it is trained like any other decision, with T = 1. The duration policy of DMOSpeech 2 (arXiv:2507.14988) is one: it
predicts the length of an utterance, which a synthesizer then speaks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.config.registry import networks_of
from mmgrpo.files import share
from mmgrpo.policies.generation import draw_tokens, entropy_of
from mmgrpo.randomness import stream
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.finite import refuse_nan
from mmgrpo.runtime.networks import Networks
from mmgrpo.types import OWN, Decisions, Output, Prompt, Reference, Request, Rollout, Scores


@runtime_checkable
class CategoricalModel(Protocol):
    """The interface of a classifier and its renderer to the policy."""

    network: nn.Module
    reference: Reference

    def logits(self, network: nn.Module, prompts: Sequence[Prompt]) -> Float[Tensor, "P classes"]:
        """Logits of the classes; those of a prompt do not depend on the other prompts."""
        ...

    def render(self, prompt: Prompt, choice: int) -> Output:
        """The output of a choice: always the same for the same prompt and class; raises if it cannot be rendered."""
        ...

    def save(self, folder: Path, network: nn.Module) -> None:
        """Write the network in the family's own format."""
        ...


@dataclass(frozen=True)
class Choice:
    """Entries of a part: the decisions of some rows, all at position 0."""

    rows: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]
    on_host: Int[Tensor, "N"]
    """``rows`` on the host."""

    @staticmethod
    def of(rows: Int[Tensor, "N"], device: torch.device) -> Choice:
        """The decisions of rows on the host, for a device."""
        return Choice(put(rows, device), torch.zeros(len(rows), dtype=torch.long, device=device), rows)


@dataclass(frozen=True)
class Choices:
    """Prompts and the sampled classes."""

    prompts: Sequence[Prompt]
    """One per group."""
    prompt: Int[Tensor, "B"]
    """Index of each row's prompt, on the host."""
    classes: Int[Tensor, "B"]
    """The class of each row."""

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Choice]:
        """Parts of at most ``limit`` rows; within a part, the rows of one prompt share its forward pass."""
        for rows in loss_mask[:, 0].cpu().nonzero()[:, 0].split(limit):
            if len(rows):
                yield Choice.of(rows, self.classes.device)


class CategoricalPolicy:
    """Samples one class per row and scores the same class again.

    log_prob = log_softmax(logits / temperature)[class]
    """

    kind = "tokens"
    keys = frozenset({"prompt"})
    provides = frozenset({"log_probs", "entropy", "reference.log_probs"})
    fields = frozenset({"entropy", "choice"})

    def __init__(
        self, model: CategoricalModel, *, temperature: float = 1.0, device: torch.device | str = "cpu"
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"got temperature {temperature}, expected above 0: the samples of a group must differ")
        self.model = model
        self.network, self.networks = model.network, Networks(model)
        self.settings: Any = None
        self.temperature = temperature
        self.device = torch.device(device)

    @torch.no_grad()
    def rollout(self, request: Request) -> Rollout:
        """``group_size`` choices per prompt, each group from its own random stream, and their outputs."""
        uniform = [torch.rand(request.group_size, generator=stream(request.seed, "choice", s)) for s in request.slots]
        prompt = torch.arange(len(request.prompts)).repeat_interleave(request.group_size)
        distribution = refuse_nan(self._log_softmax(self.network, request.prompts), "the probabilities of classes")
        distribution = distribution[put(prompt, self.device)]
        classes = draw_tokens(distribution, put(torch.cat(uniform), self.device))
        mask = torch.ones(len(classes), 1, dtype=torch.bool, device=self.device)
        decisions = Decisions(
            log_probs=distribution.gather(1, classes[:, None]),
            loss_mask=mask,
            decision_mask=mask,
            node=torch.arange(len(classes), device=self.device)[:, None],
            origin=torch.full_like(classes, OWN),
            keys={"prompt": put(torch.tensor(request.slots)[prompt], self.device)},
            fields={"entropy": entropy_of(distribution)[:, None], "choice": classes.float()},
        )
        prompts = [request.prompts[index] for index in prompt.tolist()]
        return Rollout(
            prompts,
            self._render(prompts, classes),
            decisions,
            Choices(request.prompts, prompt, classes),
            evaluations=len(request.prompts),
        )

    def score(self, rollout: Rollout, part: Choice, names: frozenset[str]) -> Scores:
        """Score the part's choices again under the present parameters."""
        choices: Choices = rollout.steps  # type: ignore[assignment]
        groups, place = torch.unique(choices.prompt[part.on_host], return_inverse=True)
        prompts, index = [choices.prompts[group] for group in groups.tolist()], put(place, self.device)
        classes = choices.classes[part.rows, None]
        distribution = self._log_softmax(self.network, prompts)[index]
        scores: Scores = {"log_probs": distribution.gather(1, classes)[:, 0]}
        if "entropy" in names:
            scores["entropy"] = entropy_of(distribution)
        for other in networks_of(names):
            with torch.no_grad(), self.networks(other) as network:
                scores[f"{other}.log_probs"] = self._log_softmax(network, prompts)[index].gather(1, classes)[:, 0]
        return scores

    @torch.no_grad()
    def sample(self, request: Request) -> list[Output]:
        """The output of each prompt's most likely class, ``group_size`` times the same."""
        distribution = refuse_nan(self._log_softmax(self.network, request.prompts), "the probabilities of classes")
        classes = distribution.argmax(1).repeat_interleave(request.group_size)
        prompts = [prompt for prompt in request.prompts for _ in range(request.group_size)]
        return self._render(prompts, classes)

    def keep_reference(self) -> None:
        """Store the present network as the reference of KL terms."""
        self.model.reference.keep()

    def save(self, folder: Path) -> None:
        """Write the network in its family's own format."""
        self.model.save(folder, self.network)
        share(folder)

    def _log_softmax(self, network: nn.Module, prompts: Sequence[Prompt]) -> Float[Tensor, "P classes"]:
        return torch.log_softmax(self.model.logits(network, prompts).float() / self.temperature, -1)

    def _render(self, prompts: Sequence[Prompt], classes: Int[Tensor, "B"]) -> list[Output]:
        """The outputs of the choices; one that cannot be rendered stops the run, since it has no reward."""
        outputs = []
        for prompt, choice in zip(prompts, classes.tolist(), strict=True):
            try:
                outputs.append(self.model.render(prompt, choice))
            except Exception as error:
                raise RuntimeError(
                    f"class {choice} of prompt '{prompt.id}' ({prompt.text!r}) could not be rendered: "
                    f"{type(error).__name__}: {error}"
                ) from error
        return outputs
