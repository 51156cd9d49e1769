"""A token policy whose completions are rendered: a language model over the tokens of a speech codec speaks.

What is sampled, scored and trained are tokens. Rewards judge the rendered output alone; the renderer is a black box
through which no gradient passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from mmgrpo.policies.reading import READ, Reading, seeded
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.types import Output, Prompt, Request, Rollout, Scores, Text

Render = Callable[[Prompt, Text], Output]
"""From a prompt and the text of a completion to its output; raises where there is none."""


class RenderedTokenPolicy:
    """A token policy with ``render`` after it, and with ``reading`` the score of DiffRO (``reading.py``)."""

    kind = "tokens"

    def __init__(self, tokens: TokenPolicy, render: Render, reading: Reading | None = None) -> None:
        self.tokens = tokens
        self.render = render
        self.reading = reading
        self.model = tokens.model
        self.settings: Any = None
        self.keys, self.fields = tokens.keys, tokens.fields
        self.provides = tokens.provides | ({READ} if reading else set())
        self.feature_cache = tokens.feature_cache

    @property
    def network(self) -> nn.Module:
        """The trained network, which the trainer replaces by its prepared form."""
        return self.tokens.network

    @network.setter
    def network(self, network: nn.Module) -> None:
        self.tokens.network = network

    @property
    def evaluation_temperature(self) -> float:
        """Temperature of evaluation samples; 0 is greedy."""
        return self.tokens.evaluation_temperature

    @evaluation_temperature.setter
    def evaluation_temperature(self, temperature: float) -> None:
        self.tokens.evaluation_temperature = temperature

    def rollout(self, request: Request) -> Rollout:
        """``group_size`` completions per prompt, rendered."""
        rollout = self.tokens.rollout(request)
        rollout = replace(rollout, outputs=self._rendered(rollout.prompts, rollout.outputs))
        return seeded(rollout, request.seed) if self.reading else rollout

    def score(self, rollout: Rollout, part: Any, names: frozenset[str]) -> Scores:
        """Score the part's tokens again under the present parameters."""
        if self.reading is None:
            return self.tokens.score(rollout, part, names)
        steps: Any = rollout.steps
        scores = self.tokens.score(replace(rollout, steps=steps.sequences), part, names - {READ})
        if READ in names:
            scores[READ] = self.reading.score(self.tokens, rollout, part)
        return scores

    def sample(self, request: Request) -> list[Output]:
        """Completions at the evaluation temperature, rendered."""
        prompts = [prompt for prompt in request.prompts for _ in range(request.group_size)]
        return self._rendered(prompts, self.tokens.sample(request))

    def keep_reference(self) -> None:
        """Store the present network as the reference of KL terms."""
        self.tokens.keep_reference()

    def save(self, folder: Path) -> None:
        """Write the network in its family's own format."""
        self.tokens.save(folder)

    def _rendered(self, prompts: Any, texts: Any) -> list[Output]:
        """The outputs; a completion that cannot be rendered stops the run, since it has no reward."""
        outputs = []
        for prompt, text in zip(prompts, texts, strict=True):
            try:
                outputs.append(self.render(prompt, text))
            except Exception as error:
                raise RuntimeError(
                    f"a completion of {text.tokens} tokens of prompt '{prompt.id}' ({prompt.text[:80]!r}) could not be "
                    f"rendered: {type(error).__name__}: {error}"
                ) from error
        return outputs
