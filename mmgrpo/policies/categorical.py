"""A policy that makes one choice a sample: one of a few classes, which something else then turns into an output.

A renderer behind the choice is a black box: nothing flows back through it but a reward. The choice has a likelihood,
and so it is trained like any other decision, with T = 1. The duration policy of DMOSpeech 2 (arXiv:2507.14988) is
one: it says how long an utterance is to be, and a synthesizer says it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.policies.generation import draw_tokens, entropy_of
from mmgrpo.runtime.randomness import stream
from mmgrpo.types import OWN, Decisions, Output, Prompt, Reference, Request, Rollout, Scores


@runtime_checkable
class CategoricalModel(Protocol):
    """What a policy asks of a network that chooses, and of what its choices become."""

    network: nn.Module
    reference: Reference

    def logits(self, network: nn.Module, prompts: Sequence[Prompt]) -> Float[Tensor, "P classes"]:
        """Unscaled scores of the classes. A prompt's do not depend on the other prompts."""
        ...

    def render(self, prompt: Prompt, choice: int) -> Output:
        """What the choice becomes: the same output for the same prompt and class, or an error."""
        ...

    def save(self, folder: Path, network: nn.Module) -> None:
        """Write the network in the family's own format."""
        ...


@dataclass(frozen=True)
class Choice:
    """Entries of a part: the decisions of some rows, all at position 0."""

    rows: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]


@dataclass(frozen=True)
class Choices:
    """What was asked and what was chosen."""

    prompts: Sequence[Prompt]
    """One a group."""
    prompt: Int[Tensor, "B"]
    """Which of them a row answers."""
    chosen: Int[Tensor, "B"]
    """The class of each row."""

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Choice]:
        """Parts of at most ``limit`` rows; those of one prompt share its forward pass."""
        rows = loss_mask[:, 0].nonzero()[:, 0]
        for start in range(0, len(rows), limit):
            chunk = rows[start : start + limit]
            yield Choice(chunk, torch.zeros_like(chunk))


class CategoricalPolicy:
    """Samples one class a row and scores the same class again.

    log_prob = log_softmax(logits / temperature)[class]
    """

    kind = "tokens"
    keys = frozenset({"prompt"})
    provides = frozenset({"log_probs", "entropy", "reference_log_probs"})
    fields = frozenset({"entropy", "choice"})

    def __init__(
        self, model: CategoricalModel, *, temperature: float = 1.0, device: torch.device | str = "cpu"
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0 to sample a group, got {temperature}")
        self.model = model
        self.network = model.network
        self.settings: Any = None
        self.temperature = temperature
        self.device = torch.device(device)

    @torch.no_grad()
    def rollout(self, request: Request) -> Rollout:
        """``group_size`` choices a prompt, each group from its own stream, and what they become."""
        spread = self._log_softmax(self.network, request.prompts)
        drawn = [torch.rand(request.group_size, generator=stream(request.seed, "choice", s)) for s in request.slots]
        prompt = torch.arange(len(request.prompts), device=self.device).repeat_interleave(request.group_size)
        spread = spread[prompt]
        chosen = draw_tokens(spread, torch.cat(drawn).to(self.device))
        kept = Choices(request.prompts, prompt, chosen)
        decided = torch.ones(len(chosen), 1, dtype=torch.bool, device=self.device)
        decisions = Decisions(
            log_probs=spread.gather(1, chosen[:, None]),
            loss_mask=decided,
            decision_mask=decided,
            node=torch.arange(len(chosen), device=self.device)[:, None],
            origin=torch.full_like(chosen, OWN),
            keys={"prompt": torch.tensor(request.slots, device=self.device)[prompt]},
            fields={"entropy": entropy_of(spread)[:, None], "choice": chosen.float()},
        )
        prompts = [request.prompts[place] for place in prompt.tolist()]
        return Rollout(prompts, self._rendered(prompts, chosen), decisions, kept, evaluations=len(request.prompts))

    def score(self, rollout: Rollout, part: Choice, names: frozenset[str]) -> Scores:
        """Score the part's choices again under the present parameters."""
        kept: Choices = rollout.steps  # type: ignore[assignment]
        groups, place = torch.unique(kept.prompt[part.rows], return_inverse=True)
        prompts = [kept.prompts[group] for group in groups.tolist()]
        chosen = kept.chosen[part.rows, None]
        spread = self._log_softmax(self.network, prompts)[place]
        scores: Scores = {"log_probs": spread.gather(1, chosen)[:, 0]}
        if "entropy" in names:
            scores["entropy"] = entropy_of(spread)
        if "reference_log_probs" in names:
            with torch.no_grad(), self.model.reference() as network:
                scores["reference_log_probs"] = self._log_softmax(network, prompts)[place].gather(1, chosen)[:, 0]
        return scores

    @torch.no_grad()
    def sample(self, request: Request) -> list[Output]:
        """What the most likely class of each prompt becomes, ``group_size`` times the same."""
        chosen = self._log_softmax(self.network, request.prompts).argmax(1).repeat_interleave(request.group_size)
        prompts = [prompt for prompt in request.prompts for _ in range(request.group_size)]
        return self._rendered(prompts, chosen)

    def keep_reference(self) -> None:
        """Keep the network as it is now, for terms that compare with it."""
        self.model.reference.keep()

    def save(self, folder: Path) -> None:
        """Write the network in its family's own format."""
        self.model.save(folder, self.network)

    def _log_softmax(self, network: nn.Module, prompts: Sequence[Prompt]) -> Float[Tensor, "P classes"]:
        return torch.log_softmax(self.model.logits(network, prompts).float() / self.temperature, -1)

    def _rendered(self, prompts: Sequence[Prompt], chosen: Int[Tensor, "B"]) -> list[Output]:
        """A choice that cannot be rendered stops the run: no number stands for what was never heard."""
        outputs = []
        for prompt, choice in zip(prompts, chosen.tolist(), strict=True):
            try:
                outputs.append(self.model.render(prompt, choice))
            except Exception as error:
                raise RuntimeError(
                    f"class {choice} of prompt '{prompt.id}' ({prompt.text!r}) could not be rendered: "
                    f"{type(error).__name__}: {error}"
                ) from error
        return outputs
