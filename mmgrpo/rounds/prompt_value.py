"""A value network of prompts (Prompt Curriculum Learning, arXiv:2510.01135), by which a round chooses among candidates.

    before a round   V of its candidate prompts, visited or not, which the sampler ``nearest_predicted`` compares
    learn            one or several steps on the sum over the round's groups of (V(prompt) - mean reward)^2

V is a linear function of the hidden state at the end of the prompt, of a network that begins as the reference
(``algorithm.networks: prompt_value(lr=...)``). The round that it learns from was chosen by its values of before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.rollout import Round
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.rounds.rows import refuse_unstoring, unpack_rows
from mmgrpo.rounds.values import HIDDEN, Places, ValueNetwork
from mmgrpo.runtime.distributed import total
from mmgrpo.types import GIVEN, OWN, Continuing, Request
from mmgrpo.update import Batch


class PromptValues(Callback):
    """The value network of a run's prompts."""

    key: ClassVar[str] = "prompt_value"

    def __init__(self, network: ValueNetwork) -> None:
        self.network = network
        self.totals = torch.zeros(0)

    def attach(self, run: Run) -> None:
        refuse_unstoring(run.policy, "algorithm.networks", self.network.rule.text)
        run.ledger.predict = lambda numbers: self.predict(run, numbers)

    @torch.no_grad()
    def predict(self, run: Run, numbers: Sequence[int]) -> Float[Tensor, "N"]:
        """The values of training prompts, on the host."""
        policy, size, predicted = run.policy, run.optim.micro_batch_size, list[Tensor]()
        assert isinstance(policy, Continuing)
        nothing = policy.record_of("")  # its first token, of which only the state before it is read
        for first in range(0, len(numbers), size):
            chunk = numbers[first : first + size]
            pairs, slots = [(run.prompts[number], nothing) for number in chunk], range(len(chunk))
            rollout = unpack_rows(policy, pairs, slots, GIVEN, chunk, Request((), (), 1, 0))
            start = torch.zeros_like(rollout.decisions.decision_mask)
            start[:, 0] = True
            values = torch.zeros(len(chunk), device=rollout.decisions.log_probs.device)
            with policy.networks(self.network.name):
                for part in rollout.steps.split(start, size):
                    values[part.rows] = self.network(policy.score(rollout, part, HIDDEN)["hidden_state"])[:, 0]
            predicted.append(values.double().cpu())
        return torch.cat(predicted)

    def on_rollout_end(self, run: Run, round_: Round) -> None:
        self.totals = round_.totals

    def learn(self, run: Run, batch: Batch) -> dict[str, float]:
        """The loss and gradient norm of the last update, and the share of the variance of the groups' mean rewards that
        the values before it explain."""
        started = time.perf_counter()
        target, entries = self._targets(batch)
        if not bool(entries.any()):
            return {}
        loss, norm, sums = 0.0, 0.0, torch.zeros(2, dtype=torch.float64)
        for update in range(self.network.settings["updates"]):

            def error(at: Places, output: Tensor, first: bool = update == 0) -> Tensor:
                gap = target[at] - output[:, 0]
                if first:
                    exact = gap.detach().double().cpu()  # their variance may be small beside their mean
                    sums.add_(torch.stack([exact.sum(), exact.square().sum()]))
                return gap.square()

            loss, norm = self.network.update(run, batch, entries, error)
        count, means = int(entries.sum()), target[entries].double()
        first, second = (total(moment, run.accelerator) / count for moment in sums.tolist())
        left, spread = second - first**2, float(means.var(correction=0))
        return {
            "prompt_value/loss": loss,
            "prompt_value/grad_norm": norm,
            "prompt_value/explained_variance": 1 - left / spread if spread else 0.0,
            "time/learners": time.perf_counter() - started,
        }

    def _targets(self, batch: Batch) -> tuple[Float[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """The mean reward of each group at the first decision of one of its rows, and where these are."""
        decisions = batch.decisions
        totals, mask, key = self.totals, decisions.decision_mask, decisions.keys["prompt"].cpu()
        drawn = ~totals.isnan() & (decisions.origin == OWN).cpu() & mask.any(1).cpu()
        target, entries = torch.zeros(mask.shape), torch.zeros(mask.shape, dtype=torch.bool)
        for group in torch.unique(key[drawn]):
            rows = (drawn & (key == group)).nonzero()[:, 0]
            place = int(mask[rows[0]].cpu().nonzero()[0])
            target[rows[0], place], entries[rows[0], place] = totals[rows].mean(), True
        return target.to(mask.device), entries.to(mask.device)

    def state(self) -> Any:
        return self.network.state()

    def tensors(self) -> Mapping[str, Tensor]:
        return self.network.tensors()

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        self.network.load(state, tensors)


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [PromptValues(ValueNetwork(rule)) for rule in choices.rules("prompt_value")]
