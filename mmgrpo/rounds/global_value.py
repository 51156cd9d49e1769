"""A value of actions that is learned once and guides policies as it is (DVPO, arXiv:2502.16944): ``algorithm.networks:
action_value(...)`` with the credit ``action_value``.

    Q(tau, s_t, a_t)  ->  r_t + gamma Q(tau, s_(t+1), a_(t+1)),  r_T the reward of the sample, all others 0

It reads the state behind every token, and before the prompt tau: other prompts with what the policy answered, by which
it can tell whose values it gives. Its head begins as 0.

    on_draw   room for the field ``action_value``
    on_rows   its values; that of the last action is the sample's reward, where a run has no other
    learn     the squared error of the values, while it is trained
    move      no step of the policy while it is trained alone
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.advantages.gae import advantages, at_end, at_last
from mmgrpo.config.registry import Bound
from mmgrpo.data.messages import prepend_text
from mmgrpo.randomness import stream
from mmgrpo.rollout import Round, RoundRows
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.rounds.rows import apart, give_scores, refuse_unstoring, text_of
from mmgrpo.rounds.values import HIDDEN, Places, ValueNetwork, load_trained
from mmgrpo.runtime.distributed import gather_rows, gather_texts
from mmgrpo.types import OWN, Batch, Decisions, Prompt, Record, Rollout, Storing


def longer(record: Record) -> Record:
    """A row with a token behind its last one, which only marks the place of the state there."""
    return {name: torch.cat([value, value[-1:]]) if value.dim() else value for name, value in record.items()}


@dataclass(frozen=True)
class Trajectory:
    """A question of a round and what the policy answered, on whatever rank."""

    place: int
    """Among the gathered rows."""
    group: int
    text: str


def other_trajectories(
    every: Sequence[Trajectory], place: int, group: int, count: int, generator: torch.Generator
) -> str:
    """``count`` trajectories of other prompts, drawn, before the row at a place; of its own where there is no other."""
    others = [t for t in every if t.group != group] or [t for t in every if t.place != place]
    chosen = torch.randperm(len(others), generator=generator)[:count].tolist()
    return "".join(others[number].text for number in chosen)


class GlobalValue(Callback):
    """The value of actions of a run."""

    key: ClassVar[str] = "action_value"

    def __init__(self, rule: Bound) -> None:
        self.network = ValueNetwork(rule)
        self.rule, self.name, self.settings = rule, self.network.name, self.network.settings
        self.totals = torch.zeros(0)
        """The rewards of the round as one number."""
        self.trajectories: list[Trajectory] = []
        """Those of the round, of all ranks."""

    def attach(self, run: Run) -> None:
        refuse_unstoring(run.policy, "algorithm.networks", self.rule.text)
        if self.settings["start"]:
            values = run.policy.networks.values[self.name]
            trunk, head = load_trained(self.rule, self.name, self.key, values)
            for name, value in trunk.items():
                values[name].copy_(value)
            self.network.load(None, head)

    def on_draw(self, run: Run, rollout: Rollout) -> Rollout:
        """Room for the values, which are read once the whole round is there."""
        decisions = rollout.decisions
        room = {"action_value": torch.zeros_like(decisions.log_probs, dtype=torch.float32)}
        return rollout.with_decisions(replace(decisions, fields={**decisions.fields, **room}))

    def on_rows(self, run: Run, rows: RoundRows) -> None:
        self.trajectories = _trajectories(run, rows)
        width = max(part.loss_mask.shape[1] for part in rows.decisions)
        places, values = [torch.zeros(0, dtype=torch.long)], [torch.zeros(0, width)]
        given = list[tuple[int, float]]()
        for rollout, mine in zip(rows.rollouts, rows.places, strict=True):
            predicted, decisions = self._values(run, rollout, mine), rollout.decisions
            places.append(mine)
            values.append(torch.nn.functional.pad(predicted, (0, width - predicted.shape[1])))
            last = at_end(predicted, decisions.decision_mask.cpu()).tolist()
            given += [(int(mine[row]), last[row]) for row in (decisions.origin == OWN).nonzero()[:, 0].tolist()]
        order = gather_rows(torch.cat(places), run.accelerator).cpu().argsort()  # every row once
        table, first = gather_rows(torch.cat(values), run.accelerator).cpu()[order], 0
        for place, part in enumerate(rows.decisions):
            here = table[first : first + part.rows, : part.loss_mask.shape[1]]
            rows.decisions[place] = replace(part, fields={**part.fields, "action_value": here})
            first += part.rows
        if self.settings["reward"]:
            give_scores(rows, given, self.settings["reward"], [True] * len(rows.names))

    @torch.no_grad()
    def _values(self, run: Run, rollout: Rollout, places: Int[Tensor, "B"]) -> Float[Tensor, "B T"]:
        """Of the actions of a rollout, on the host."""
        read, mask = self._read(run, rollout, places), rollout.decisions.decision_mask
        values = torch.zeros(mask.shape, device=mask.device)
        with run.policy.networks(self.name):
            for part in read.steps.split(behind(mask), run.optim.micro_batch_size):
                state = run.policy.score(read, part, HIDDEN)["hidden_state"]
                values[part.rows, part.positions - 1] = self.network(state)[:, 0]
        return values.cpu()

    def on_rollout_end(self, run: Run, round_: Round) -> None:
        self.totals = round_.totals

    def move(self, run: Run, batch: Batch, rows: Bool[Tensor, " B"]) -> bool:
        return run.step < self.settings["warmup"]

    def learn(self, run: Run, batch: Batch) -> dict[str, float]:
        """Loss and gradient norm of the last update, and the mean value before it."""
        started, decisions = time.perf_counter(), batch.decisions
        target, entries = self.targets(decisions)
        if not self.settings["updates"] or not bool(entries.any()):
            return {}
        total, norm, count = 0.0, 0.0, entries.sum()
        pairs = zip(batch.rollouts, batch.host.places, strict=True)
        read = [self._read(run, rollout, places) for rollout, places in pairs]
        wide = replace(batch, rollouts=read, decisions=_wider(decisions), loss_mask=behind(batch.loss_mask))

        def error(at: Places, output: Tensor) -> Tensor:
            return (output[:, 0] - target[at[0], at[1] - 1]).square() / count

        for _ in range(self.settings["updates"]):
            total, norm = self.network.update(run, wide, behind(entries), error)
        return {
            "action_value/loss": total,
            "action_value/grad_norm": norm,
            "action_value/value": float(decisions.fields["action_value"][entries].mean()),
            "time/learners": time.perf_counter() - started,
        }

    def targets(self, decisions: Decisions) -> tuple[Float[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """r_t + gamma Q_(t+1), with a lambda above 0 the returns that go further, and the decisions that have one."""
        totals, mask = self.totals.to(decisions.log_probs.device), decisions.decision_mask
        value = decisions.fields["action_value"]
        rewards = at_last(totals.nan_to_num(0.0).to(value.dtype), mask)
        target = advantages(rewards, value, mask, self.settings["gamma"], self.settings["lam"]) + value
        return target, mask & (~totals.isnan() & (decisions.origin == OWN))[:, None]

    def _read(self, run: Run, rollout: Rollout, places: Int[Tensor, "B"]) -> Rollout:
        """The rows as the network reads them: behind other prompts and answers, and with a place behind the last token.
        The same for the same round."""
        policy, every = run.policy, range(rollout.decisions.rows)
        assert isinstance(policy, Storing)
        prompts = list[Prompt]()
        for row, place, group in zip(every, places.tolist(), rollout.decisions.keys["prompt"].tolist(), strict=True):
            generator = stream(run.seed, "trajectories", run.round, place)
            text = other_trajectories(self.trajectories, place, group, self.settings["contexts"], generator)
            prompts.append(prepend_text(rollout.prompts[row], text) if text else rollout.prompts[row])
        records = [longer(record) for record in policy.pack(rollout, every)]
        return apart(run, list(zip(prompts, records, strict=True)), self.name)

    def state(self) -> Any:
        return self.network.state()

    def tensors(self) -> Mapping[str, Tensor]:
        return self.network.tensors()

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        self.network.load(state, tensors)


def behind(mask: Bool[Tensor, "B T"]) -> Bool[Tensor, "B U"]:
    """The places behind those of a mask."""
    return torch.nn.functional.pad(mask, (1, 0))


def _wider(decisions: Decisions) -> Decisions:
    """Decisions whose mask has a place behind the last."""
    return replace(decisions, decision_mask=behind(decisions.decision_mask))


def _trajectories(run: Run, rows: RoundRows) -> list[Trajectory]:
    """Those of the policy in a round, in the order of its rows, so it does not matter which rank drew them."""
    heads, texts = list[tuple[int, int]](), list[str]()
    for rollout, places in zip(rows.rollouts, rows.places, strict=True):
        decisions = rollout.decisions
        for row in (decisions.origin == OWN).nonzero()[:, 0].tolist():
            heads.append((int(places[row]), int(decisions.keys["prompt"][row])))
            texts.append(f"{rollout.prompts[row].text}\n{text_of(rollout, row)}\n\n")
    table = gather_rows(torch.tensor(heads, dtype=torch.long).reshape(-1, 2), run.accelerator).tolist()
    pairs = zip(table, gather_texts(texts, run.accelerator), strict=True)
    return sorted(
        (Trajectory(place, group, text) for (place, group), text in pairs), key=lambda trajectory: trajectory.place
    )


def callbacks(choices: Choices) -> Sequence[Callback]:
    """What the settings ask for."""
    return [GlobalValue(rule) for rule in choices.rules("global_value")]
