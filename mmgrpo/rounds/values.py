"""A network of ``algorithm.networks`` that values hidden states: a trunk of the policy's own architecture, which the
named network holds and checkpoints, and a linear head that begins as 0 and is here, with an AdamW of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mmgrpo.advantages.gae import last_of
from mmgrpo.config.registry import Bound
from mmgrpo.randomness import stream
from mmgrpo.rounds.callback import Run
from mmgrpo.runtime.checkpoint import flatten_optimizer, load_checkpoint, restore_optimizer
from mmgrpo.runtime.distributed import DataRank, clip_gradients, sum_gradients, sum_over_ranks
from mmgrpo.runtime.finite import NotFinite
from mmgrpo.runtime.networks import name_of
from mmgrpo.types import Rollout
from mmgrpo.update import Batch, score_entries

HIDDEN = frozenset({"hidden_state"})
"""The hidden state before a decision, as a policy scores it."""

Places = tuple[Tensor, Tensor]
"""Rows and positions in a batch."""


def load_trained(
    rule: Bound, name: str, key: str, values: Mapping[str, Tensor]
) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """The trunk and the head of the network ``name`` of another run of the same model, from its checkpoint ``start``,
    by the ``key`` of its callback. ``values``: those of the trunk here."""
    read = load_checkpoint(Path(rule.settings["start"])).tensors
    trunk = read.get(f"network-{name}", {})
    if key not in read or trunk.keys() != values.keys():
        raise ValueError(
            f"algorithm.networks: {rule.text}: the checkpoint has no {key} of the name '{name}' and of the weights "
            "that this run trains; name one of a run of the same model with it"
        )
    return trunk, read[key]


class ValueNetwork:
    """The head of a network that learns values, and the updates of both. Of several ``outputs`` the first is the value;
    others begin at random, so a classifier does not begin where all classes are alike."""

    def __init__(self, rule: Bound, outputs: int = 1) -> None:
        self.rule, self.name, self.outputs = rule, name_of(rule), outputs
        self.settings = rule.settings
        if self.settings.get("start") == "" and not self.settings["updates"]:
            raise ValueError(
                f"algorithm.networks: {rule.text}: got updates=0 without start, so every value stays 0; name the "
                "checkpoint of the run that trained it, or set updates"
            )
        self.head: nn.Linear | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.saved: tuple[Mapping[str, Tensor], Any] | None = None

    def __call__(self, state: Float[Tensor, "N width"]) -> Float[Tensor, "N outputs"]:
        """The outputs for hidden states, whose width the first ones tell."""
        if self.head is None:
            width, others = state.shape[1], self.outputs - 1
            self.head = nn.Linear(width, self.outputs, device=state.device)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)
            drawn = torch.randn(others, width, generator=stream(0, "classes", self.name)) / width**0.5
            self.head.weight.data[1:] = drawn.to(state.device)
            betas = (self.settings["beta1"], self.settings["beta2"])
            parameters = self.head.parameters()
            self.optimizer = torch.optim.AdamW(parameters, lr=self.settings["lr"], betas=betas, weight_decay=0.0)
            if self.saved:
                tensors, moments = self.saved
                for name, parameter in self.head.named_parameters():  # a reward model has the first output alone
                    parameter.data[: len(tensors[f"head.{name}"])] = tensors[f"head.{name}"].to(parameter.device)
                if moments is not None:  # another run's network begins without its own
                    named = {n.removeprefix("optimizer."): v for n, v in tensors.items() if n.startswith("optimizer.")}
                    restore_optimizer(self.optimizer, named, moments)
                self.saved = None
        return self.head(state.float())

    @torch.no_grad()
    def of_rows(self, run: Run, rollout: Rollout) -> Float[Tensor, "N"]:
        """The first output for rows, before their last token; on the host."""
        values = torch.zeros(rollout.decisions.rows)
        with run.policy.networks(self.name):
            for part in rollout.steps.split(last_of(rollout.decisions.decision_mask), run.optim.micro_batch_size):
                state = run.policy.score(rollout, part, HIDDEN)["hidden_state"]
                values[part.rows.cpu()] = self(state)[:, 0].cpu()
        return values

    def update(
        self,
        run: Run,
        batch: Batch,
        entries: Bool[Tensor, "B T"],
        error: Callable[[Places, Float[Tensor, "N outputs"]], Float[Tensor, "N"]],
    ) -> tuple[float, float]:
        """One step of both optimizers on the sum of ``error`` (of places and their outputs) over the entries of all
        ranks: that loss, and the norm of its gradient. ``NotFinite`` where one of them is not."""
        assert self.head is not None and self.optimizer is not None
        networks = run.policy.networks
        trunk, trained = networks.optimizers[self.name], list(networks.trained.values())
        values, head = trunk.param_groups[0]["params"], list(self.head.parameters())
        for parameter in trained:
            parameter.grad = None
        loss = torch.zeros((), device=batch.decisions.log_probs.device)
        with networks(self.name):
            for at, scores in score_entries(run.policy, batch, entries, HIDDEN, run.optim.micro_batch_size):
                part = error(at, self(scores["hidden_state"])).sum()
                part.backward()
                loss += part.detach()
            for parameter in trained:  # of a tied table, whose whole gradient comes from the output layer elsewhere
                if parameter.grad is not None and parameter.grad.is_sparse:
                    parameter.grad = parameter.grad.to_dense()
            if not DataRank.of(run.accelerator).first:  # which computes of the head what the first does
                for parameter in head:
                    parameter.grad = None
            sum_gradients([*trained, *head], run.accelerator)
        for value, parameter in zip(values, trained, strict=True):
            value.grad, parameter.grad = parameter.grad, None
        norm = float(clip_gradients([*values, *head], run.optim.max_grad_norm))
        total = float(sum_over_ranks(loss, run.accelerator))
        if not (math.isfinite(norm) and math.isfinite(total)):
            raise NotFinite(
                f"algorithm.networks: {self.rule.text}: got a loss of {total:g} and a gradient of norm {norm:g}; "
                "lower its lr, and go back to a checkpoint before the divergence with --resume-from"
            )
        for optimizer in (trunk, self.optimizer):
            optimizer.step()
            optimizer.zero_grad()
        return total, norm

    def state(self) -> Any:
        if self.optimizer is None:  # also between a resumption and the first state that it values
            return self.saved[1] if self.saved else None
        return flatten_optimizer(self.optimizer)[1]

    def tensors(self) -> Mapping[str, Tensor]:
        if self.head is None or self.optimizer is None:
            return self.saved[0] if self.saved else {}
        moments = {f"optimizer.{name}": value for name, value in flatten_optimizer(self.optimizer)[0].items()}
        return {f"head.{name}": value.detach() for name, value in self.head.named_parameters()} | moments

    def load(self, state: Any, tensors: Mapping[str, Tensor]) -> None:
        self.head, self.optimizer = None, None
        self.saved = (tensors, state) if tensors else None
