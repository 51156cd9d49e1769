"""A token policy whose completions are rendered: a language model over the tokens of a speech codec speaks.

What is sampled, scored and trained are tokens. Rewards judge the rendered output alone; the renderer is a black box
through which no gradient passes.

How well a frozen model reads sampled speech tokens, with a gradient to the policy: the reward of DiffRO.

DiffRO (arXiv:2507.05911) relaxes the choice of a speech token by Gumbel-softmax and passes it to a model from tokens
to text, so log P(text | tokens) has a gradient without a vocoder. Here the tokens are those of the rollout: with p
the policy's distribution over codes and k the sampled code,

    g        Gumbel noise under which k is the argmax of log p + g
    soft     softmax((log p + g) / temperature)
    speech   one_hot(k) + (soft - stop_gradient(soft))

so that the reader reads what was sampled, and the gradient is that of the relaxation (straight-through).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.policies.token import TokenPolicy
from mmgrpo.policies.token_model import Sequences, Tokens
from mmgrpo.randomness import stream
from mmgrpo.types import Output, Prompt, Request, Rollout, Scores, Text

READ = "read_log_probs"
"""The name of the score: log P(text | speech) of a row, the same at all its decisions."""


@runtime_checkable
class Reader(Protocol):
    """A frozen model from speech tokens to text."""

    def read(
        self, speech: Float[Tensor, "rows tokens codes"], real: Bool[Tensor, "rows tokens"], texts: Sequence[str]
    ) -> Float[Tensor, " rows"]:
        """Mean log-probability of a token of each text. ``speech`` holds a distribution over codes for every token that
        is ``real``, and the result is differentiable in it."""
        ...


@dataclass(frozen=True)
class Reading:
    """A reader, and what it takes of the policy's vocabulary."""

    reader: Reader
    ids: Int[Tensor, " codes"]
    """Id of each code."""
    temperature: float = 1.0
    """Of the Gumbel-softmax; low values have a gradient of less bias and more variance."""

    def score(self, tokens: TokenPolicy, rollout: Rollout, part: Tokens) -> Float[Tensor, " N"]:
        """``read_log_probs`` of the part's entries under the present parameters, from a forward pass of its own."""
        steps: SeededSequences = rollout.steps  # type: ignore[assignment]
        sequences, ids = steps.sequences, self.ids.to(part.rows.device)
        rows, inverse = part.distinct, part.inverse
        states = tokens.states(tokens.network, sequences, rows)
        sampled, real = sequences.ids[rows, : states.shape[1]], sequences.real[rows, : states.shape[1]]
        real = real & torch.isin(sampled, ids)  # the end is no speech
        code = (sampled[..., None] == ids).int().argmax(2)
        logits = tokens.model.logits(tokens.network, states)[..., ids].float() / tokens.temperature
        log_probs = torch.log_softmax(logits, -1)
        slots = rollout.decisions.keys["prompt"][rows].tolist()
        noise = torch.stack(
            [
                gumbel_given_argmax(row, choice, stream(steps.seed, "gumbel", slot, number))
                for row, choice, slot, number in zip(log_probs.detach(), code, slots, rows.tolist(), strict=True)
            ]
        )
        speech = straight_through(log_probs + noise, code, self.temperature)
        return self.reader.read(speech, real, [rollout.prompts[row].text for row in rows.tolist()])[inverse]


@dataclass(frozen=True)
class SeededSequences:
    """Completions with the seed of the noise of their relaxation."""

    sequences: Sequences
    seed: int

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Tokens]:
        """Parts of whole rows, at most ``limit`` of them."""
        return self.sequences.split(loss_mask, limit)


def with_seed(rollout: Rollout, seed: int) -> Rollout:
    """The rollout with ``SeededSequences`` as its steps."""
    steps: Any = rollout.steps
    return replace(rollout, steps=SeededSequences(steps, seed))


def gumbel_given_argmax(
    log_probs: Float[Tensor, "tokens codes"], code: Int[Tensor, " tokens"], generator: torch.Generator
) -> Float[Tensor, "tokens codes"]:
    """Gumbel noise g given that the argmax of log_probs + g is ``code``.

    The largest of log_probs + g has a standard Gumbel distribution, whichever it is, and the others are Gumbel
    distributed, truncated there (Maddison et al. 2014, A* sampling, section 3).
    """
    uniform = torch.rand(log_probs.shape, generator=generator, dtype=torch.double).to(log_probs.device)
    gumbel = -torch.log(-torch.log(uniform.clamp(min=1e-300)))
    top = gumbel.gather(1, code[:, None])
    others = -torch.logaddexp(-top, -(log_probs + gumbel))
    return (others.scatter(1, code[:, None], top) - log_probs).to(log_probs.dtype)


def straight_through(
    perturbed: Float[Tensor, "rows tokens codes"], code: Int[Tensor, "rows tokens"], temperature: float
) -> Float[Tensor, "rows tokens codes"]:
    """The one-hot vectors of ``code``, with the gradient of softmax(perturbed / temperature)."""
    soft = torch.softmax(perturbed / temperature, -1)
    return nn.functional.one_hot(code, perturbed.shape[-1]) + (soft - soft.detach())


Render = Callable[[Prompt, Text], Output]
"""From a prompt and the text of a completion to its output; raises where there is none."""


class RenderedTokenPolicy:
    """A token policy with ``render`` after it, and with ``reading`` the score of DiffRO (``readable.py``)."""

    kind = "tokens"

    def __init__(self, tokens: TokenPolicy, render: Render, reading: Reading | None = None) -> None:
        self.tokens = tokens
        self.render = render
        self.reading = reading
        self.model, self.networks = tokens.model, tokens.networks
        self.settings: Any = None
        self.keys, self.fields = tokens.keys, tokens.fields
        self.adjustable = tokens.adjustable - ({"temperature"} if reading else set())  # reading has its own
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
        rollout = replace(rollout, outputs=self._render(rollout.prompts, rollout.outputs))
        return with_seed(rollout, request.seed) if self.reading else rollout

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
        return self._render(prompts, self.tokens.sample(request))

    def keep_reference(self) -> None:
        """Store the present network as the reference of KL terms."""
        self.tokens.keep_reference()

    def save(self, folder: Path) -> None:
        """Write the network in its family's own format."""
        self.tokens.save(folder)

    def _render(self, prompts: Any, texts: Any) -> list[Output]:
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
