"""A value of actions that is learned once and guides policies as it is (DVPO, arXiv:2502.16944): ``algorithm.networks:
action_value(...)`` with the credit ``action_value``.

    Q(tau, s_t, a_t)  ->  r_t + gamma Q(tau, s_(t+1), a_(t+1)),  r_T the reward of the sample, all others 0

It reads the state behind every token, and before the prompt tau: other prompts with what the policy answered, by which
it can tell whose values it gives. Its head begins as 0.

    on_draw   the field ``action_value``
    on_rows   the value of the last action is the sample's reward, where a run has no other
    learn     the squared error of the values, while it is trained
    move      no step of the policy while it is trained alone
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.advantages.gae import advantages, at_last
from mmgrpo.config.names import nearest
from mmgrpo.config.registry import Bound
from mmgrpo.data.messages import preceded
from mmgrpo.randomness import derive, stream
from mmgrpo.rollout import Round, RoundRows
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.rounds.judging import text_of, with_values
from mmgrpo.rounds.rows import refuse_unstoring, unpacked
from mmgrpo.rounds.values import HIDDEN, Places, ValueNetwork
from mmgrpo.runtime.checkpoint import load_checkpoint
from mmgrpo.runtime.distributed import gather_rows
from mmgrpo.runtime.networks import is_action_value
from mmgrpo.types import GIVEN, OWN, Batch, Decisions, Prompt, Record, Request, Rollout, Storing


def longer(record: Record) -> Record:
    """A row with a token behind its last one, which only marks the place of the state there."""
    return {name: torch.cat([value, value[-1:]]) if value.dim() else value for name, value in record.items()}


def shown(rollout: Rollout, row: int, count: int, generator: torch.Generator) -> str:
    """``count`` other prompts of a rollout with an answer to each, drawn; of the row's own where there is no other."""
    keys = rollout.decisions.keys["prompt"].tolist()
    others = [other for other, key in enumerate(keys) if key != keys[row]]
    others = others or [other for other in range(len(keys)) if other != row]
    chosen = torch.randperm(len(others), generator=generator)[:count].tolist()
    pairs = [(rollout.prompts[others[place]].text, text_of(rollout, others[place])) for place in chosen]
    return "".join(f"{question}\n{answer}\n\n" for question, answer in pairs)


class GlobalValue(Callback):
    """The value of actions of a run."""

    key: ClassVar[str] = "action_value"

    def __init__(self, rule: Bound) -> None:
        self.network = ValueNetwork(rule)
        self.rule, self.name, self.settings = rule, self.network.name, self.network.settings
        self.totals = torch.zeros(0)
        """The rewards of the round as one number."""

    def attach(self, run: Run) -> None:
        text, rewards = self.rule.text, {one.name for one in run.scorers}
        refuse_unstoring(run.policy, "algorithm.networks", text)
        if (reward := self.settings["reward"]) and reward not in rewards:
            raise ValueError(
                f"algorithm.networks: {text}: unknown reward '{reward}'.{nearest(reward, rewards)} Add it to rewards"
            )
        if reward and self.settings["updates"]:
            raise ValueError(
                f"algorithm.networks: {text}: got the reward '{reward}', which it gives itself, and updates "
                f"{self.settings['updates']}, which would learn from it; set updates=0, or leave reward out"
            )
        if not self.settings["start"]:
            if not self.settings["updates"]:
                raise ValueError(
                    f"algorithm.networks: {text}: got updates=0 without start, so that every value stays 0; name the "
                    "checkpoint of the run that trained it, or set updates"
                )
            return
        read, values = load_checkpoint(Path(self.settings["start"])), run.policy.networks.values[self.name]
        saved = read.tensors.get(f"network-{self.name}", {})
        if self.key not in read.tensors or saved.keys() != values.keys():
            raise ValueError(
                f"algorithm.networks: {text}: the checkpoint has no such network of the name '{self.name}' and of the "
                "weights that this run trains; name one of a run of the same model with it"
            )
        for name, value in saved.items():
            values[name].copy_(value)
        self.network.load(None, read.tensors[self.key])

    def on_draw(self, run: Run, rollout: Rollout) -> Rollout:
        decisions = rollout.decisions
        read, mask = self._read(run, rollout), decisions.decision_mask
        found = torch.zeros(mask.shape, device=mask.device)
        with torch.no_grad(), run.policy.networks(self.name):
            for part in read.steps.split(behind(mask), run.optim.micro_batch_size):
                state = run.policy.score(read, part, HIDDEN)["hidden_state"]
                found[part.rows, part.positions - 1] = self.network(state)[:, 0]
        return rollout.with_decisions(replace(decisions, fields={**decisions.fields, "action_value": found}))

    def on_rows(self, run: Run, rows: RoundRows) -> None:
        if not self.settings["reward"]:
            return
        given = list[tuple[int, float]]()
        for rollout, places in zip(rows.rollouts, rows.places, strict=True):
            decisions = rollout.decisions
            if "action_value" in decisions.fields:
                last = _at_end(decisions.fields["action_value"], decisions.decision_mask).tolist()
                own = [row for row, origin in enumerate(decisions.origin.tolist()) if origin == OWN]
                given += [(int(places[row]), last[row]) for row in own]
        table = gather_rows(torch.tensor(given, dtype=torch.float64).reshape(-1, 2), run.accelerator).cpu()
        column, first = rows.names.index(self.settings["reward"]), 0
        for place, part in enumerate(rows.scores):
            here = [(int(row) - first, v) for row, v in table.tolist() if first <= row < first + len(part.values)]
            rows.scores[place] = with_values(part, here, column, [True] * len(rows.names))
            first += len(part.values)

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
        read = [self._read(run, rollout) for rollout in batch.rollouts]
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

    def _read(self, run: Run, rollout: Rollout) -> Rollout:
        """The rows as the network reads them: behind other prompts and answers, and with a place behind the last token.
        The same for the same round."""
        policy = run.policy
        assert isinstance(policy, Storing)
        every = range(rollout.decisions.rows)
        keys = rollout.decisions.keys["prompt"].tolist()
        prompts = list[Prompt]()
        for row in every:
            generator = stream(run.seed, "trajectories", run.round, keys[row], row - keys.index(keys[row]))
            text = shown(rollout, row, self.settings["contexts"], generator) if self.settings["contexts"] else ""
            prompts.append(preceded(rollout.prompts[row], text) if text else rollout.prompts[row])
        records = [longer(record) for record in policy.pack(rollout, every)]
        request = Request((), (), 1, derive(run.seed, self.name, run.round))
        return unpacked(policy, list(zip(prompts, records, strict=True)), every, GIVEN, [-1] * len(every), request)

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


def _at_end(value: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B"]:
    last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    return torch.where(last, value, 0.0).sum(1)


def callbacks(choices: Choices) -> Sequence[Callback]:
    """What the settings ask for."""
    return [GlobalValue(rule) for rule in choices.loss.networks if is_action_value(rule)]
