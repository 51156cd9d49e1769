"""A critic of turns that learns off-policy (ArCHer, arXiv:2402.19446): a hierarchy of turns, whose values it learns,
and of their tokens, which the policy learns from one advantage a turn.

    Q_i(s_k, a_k) -> r_k + gamma (1 - d) V'_i(s_(k+1))      turns of this and earlier rounds, drawn from a memory
    V_i(s_k)      -> Q'_i(s_k, a_k)                         turns of this round, which the present policy took
    A(s_k, a_k)   =  min(Q_1, Q_2) - min(V_1, V_2)          ``algorithm.credit: turn_advantage``
    X'            <- (1 - tau) X' + tau X                   after every update

s_k is read from the hidden state before the first token of turn k, (s_k, a_k) from that before its last, of the
reference network (``algorithm.networks: turn_critic(lr=...)``), which stays as it is; the four values are small
networks on these. What a turn earned is what its tools gave, and at the last one the reward of the sample.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.advantages.gae import turn_starts
from mmgrpo.advantages.turn_credit import turn_rewards
from mmgrpo.config.registry import Bound
from mmgrpo.randomness import derive, stream
from mmgrpo.rollout import Round
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.rounds.values import HIDDEN
from mmgrpo.runtime.checkpoint import flatten_optimizer, restore_optimizer
from mmgrpo.runtime.distributed import gather_rows, largest
from mmgrpo.runtime.networks import name_of
from mmgrpo.types import OWN, Rollout
from mmgrpo.update import Batch, score_entries

WIDTH = 256
"""Of the hidden layer of a value."""
COLUMNS = ("state", "action", "next", "reward", "done")
"""What the memory holds of a turn."""


class Values(nn.Module):
    """Two Q and two V, each a linear function, a GELU and another one that begins as 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.v = (nn.ModuleList(_value(width) for _ in range(2)) for _ in range(2))

    def of_actions(self, action: Float[Tensor, "N width"]) -> Float[Tensor, "2 N"]:
        """Q_1 and Q_2."""
        return torch.stack([q(action)[:, 0] for q in self.q])

    def of_states(self, state: Float[Tensor, "N width"]) -> Float[Tensor, "2 N"]:
        """V_1 and V_2."""
        return torch.stack([v(state)[:, 0] for v in self.v])


def _value(width: int) -> nn.Module:
    last = nn.Linear(WIDTH, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, WIDTH), nn.GELU(), last)


def advantage_of(q: Float[Tensor, "2 N"], v: Float[Tensor, "2 N"]) -> Float[Tensor, "N"]:
    """min(Q_1, Q_2) - min(V_1, V_2). Q .8 and .9, V .6 and .5: .3."""
    return q.amin(0) - v.amin(0)


def goal_of_actions(
    reward: Float[Tensor, "N"], done: Float[Tensor, "N"], after: Float[Tensor, "2 N"], gamma: float
) -> Float[Tensor, "2 N"]:
    """r + gamma (1 - d) V'. gamma .95, r 0, V' 1: .95; at the end, r 1: 1."""
    return reward + gamma * (1 - done) * after


def turn_ends(decision_mask: Bool[Tensor, "B T"], turn: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """The last decision of each turn."""
    beyond = int(turn.max()) + 1 if turn.numel() else 1
    number = torch.where(decision_mask, turn, beyond)
    later = torch.cat([number[:, 1:], torch.full_like(number[:, :1], beyond)], 1)
    return decision_mask & (later.flip(1).cummin(1).values.flip(1) > turn)


class TurnCritic(Callback):
    """The critic of the turns of a run."""

    key: ClassVar[str] = "turn_critic"

    def __init__(self, rule: Bound) -> None:
        self.rule, self.name, self.settings = rule, name_of(rule), rule.settings
        self.values: Values | None = None
        self.memory: dict[str, Tensor] = {}
        self.saved: tuple[Mapping[str, Tensor], Any] | None = None
        self.totals = torch.zeros(0)

    @torch.no_grad()
    def on_draw(self, run: Run, rollout: Rollout) -> Rollout:
        decisions = rollout.decisions
        starts, ends = self._borders(decisions.decision_mask, decisions.fields["turn"])
        advantages = torch.zeros_like(decisions.log_probs, dtype=torch.float32)
        tables = []
        for entries in (starts, ends):
            states: list[Tensor] = []
            with run.policy.networks(self.name):
                for part in rollout.steps.split(entries, run.optim.micro_batch_size):
                    states.append(run.policy.score(rollout, part, HIDDEN)["hidden_state"].float())
            tables.append(torch.cat(states) if states else None)
        state, action = tables
        if state is not None and action is not None:
            values = self._make_values(run, state)
            advantages[starts] = advantage_of(values.of_actions(action), values.of_states(state))
        return rollout.with_decisions(replace(decisions, fields={**decisions.fields, "turn_advantage": advantages}))

    @staticmethod
    def _borders(mask: Bool[Tensor, "B T"], turn: Tensor) -> tuple[Bool[Tensor, "B T"], Bool[Tensor, "B T"]]:
        return turn_starts(mask, turn.long()), turn_ends(mask, turn.long())

    def on_rollout_end(self, run: Run, round_: Round) -> None:
        self.totals = round_.totals

    def move(self, run: Run, batch: Batch, rows: Bool[Tensor, " B"]) -> bool:
        return run.step < self.settings["warmup"]

    def learn(self, run: Run, batch: Batch) -> dict[str, float]:
        """The mean losses of Q and V over the updates, and the mean of V before them."""
        started = time.perf_counter()
        fresh = self._turns(run, batch)
        if not len(fresh["reward"]):
            return {}
        values, most = self._make_values(run, fresh["state"]), self.settings["capacity"]
        joined = {name: torch.cat([self.memory[name], rows]) if self.memory else rows for name, rows in fresh.items()}
        self.memory = {name: rows[-most:] for name, rows in joined.items()}
        with torch.no_grad():
            before = float(values.of_states(fresh["state"]).mean())
        generator = stream(run.seed, "turn_critic", run.round)
        losses = torch.tensor([self._update(values, fresh, generator) for _ in range(self.settings["updates"])])
        return {
            "turn_critic/q_loss": float(losses[:, 0].mean()),
            "turn_critic/v_loss": float(losses[:, 1].mean()),
            "turn_critic/value": before,
            "time/learners": time.perf_counter() - started,
        }

    def _update(self, values: Values, fresh: Mapping[str, Tensor], generator: torch.Generator) -> tuple[float, float]:
        """One step of both values: Q on turns of the memory, V on those of the round."""

        def draw(table: Mapping[str, Tensor]) -> dict[str, Tensor]:
            device = table["reward"].device
            chosen = torch.randint(len(table["reward"]), (self.settings["batch"],), generator=generator).to(device)
            return {name: column[chosen] for name, column in table.items()}

        old, new = draw(self.memory), draw(fresh)
        with torch.no_grad():
            goal = goal_of_actions(
                old["reward"], old["done"], self.target.of_states(old["next"]), self.settings["gamma"]
            )
            q = self.target.of_actions(new["action"])
        of_q = (values.of_actions(old["action"]) - goal).square().mean(1).sum()
        of_v = (values.of_states(new["state"]) - q).square().mean(1).sum()
        self.optimizer.zero_grad()
        (of_q + of_v).backward()
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), values.parameters(), strict=True):
                slow.lerp_(fast, self.settings["tau"])
        return float(of_q.detach()), float(of_v.detach())

    @torch.no_grad()
    def _turns(self, run: Run, batch: Batch) -> dict[str, Tensor]:
        """The turns of a round's own scored samples, in the order of rows and turns."""
        decisions = batch.decisions
        totals = self.totals.to(decisions.log_probs.device)
        sampled = (~totals.isnan() & (decisions.origin == OWN))[:, None]
        turn, mask = decisions.fields["turn"].long(), decisions.decision_mask
        starts, ends = (border & sampled for border in self._borders(mask, turn))
        given = totals.nan_to_num(0.0).double(), mask, decisions.fields["step_rewards"].double(), turn
        earned, _, last = turn_rewards(*given, 1.0)
        rows, numbers = starts.nonzero()[:, 0], turn[starts]
        done = last[rows, numbers].float()
        state, action = (self._read(run, batch, entries) for entries in (starts, ends))
        after = torch.cat([state[1:], torch.zeros_like(state[:1])]) * (1 - done)[:, None]
        return dict(zip(COLUMNS, (state, action, after, earned[rows, numbers].float(), done), strict=True))

    def _read(self, run: Run, batch: Batch, entries: Bool[Tensor, "B T"]) -> Float[Tensor, "N width"]:
        """The hidden states before some decisions of a batch, those of all ranks on each of them."""
        place = (entries.flatten().cumsum(0).view(entries.shape) - 1).to(batch.decisions.log_probs.device)
        places, states = [place.new_zeros(0)], list[Tensor]()
        with run.policy.networks(self.name):
            for at, scores in score_entries(run.policy, batch, entries, HIDDEN, run.optim.micro_batch_size):
                places.append(place[at])
                states.append(scores["hidden_state"].float())
        width = int(largest(float(states[0].shape[1] if states else 0), run.accelerator))
        local = torch.cat(states) if states else torch.zeros(0, width, device=place.device)
        order = gather_rows(torch.cat(places), run.accelerator).argsort()
        return gather_rows(local, run.accelerator)[order]

    def _make_values(self, run: Run, state: Float[Tensor, "N width"]) -> Values:
        """The values, made for the width of the first hidden states."""
        if self.values is None:
            with torch.random.fork_rng():
                torch.manual_seed(derive(run.seed, "turn_critic"))
                self.values = Values(state.shape[1]).to(state.device)
            betas = (self.settings["beta1"], self.settings["beta2"])
            self.optimizer = torch.optim.AdamW(
                self.values.parameters(), lr=self.settings["lr"], betas=betas, weight_decay=0.0
            )
            self.target = copy.deepcopy(self.values).requires_grad_(False)
            if self.saved:
                tensors, moments = self.saved
                parts = {name: _under(tensors, name) for name in ("values", "target", "optimizer", "memory")}
                self.values.load_state_dict(parts["values"])
                self.target.load_state_dict(parts["target"])
                restore_optimizer(self.optimizer, parts["optimizer"], moments)
                self.memory = {name: tensor.to(state.device) for name, tensor in parts["memory"].items()}
                self.saved = None
        return self.values

    def state(self) -> Any:
        if self.values is None:  # also between a resumption and the first turns that it values
            return self.saved[1] if self.saved else None
        return flatten_optimizer(self.optimizer)[1]

    def tensors(self) -> Mapping[str, Tensor]:
        if self.values is None:
            return self.saved[0] if self.saved else {}
        parts = {"values": self.values.state_dict(), "target": self.target.state_dict(), "memory": self.memory}
        parts["optimizer"] = flatten_optimizer(self.optimizer)[0]
        return {f"{part}.{name}": tensor.detach() for part, table in parts.items() for name, tensor in table.items()}

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        self.values, self.memory = None, {}
        self.saved = (tensors, state) if tensors else None


def _under(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}."): tensor for name, tensor in tensors.items() if name.startswith(f"{part}.")}


def callbacks(choices: Choices) -> Sequence[Callback]:
    """What the settings ask for."""
    return [TurnCritic(rule) for rule in choices.rules("turn_critic")]
