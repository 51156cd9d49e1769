"""A reward model that is trained beside the policy (Cooper, arXiv:2508.05613): a named network with a head that says
how good an answer is, by which the policy is rewarded, and which learns from pairs of the same rounds.

    on_rows        sigma(s) of every sample is its reward; pairs are made: the first sample of a group that a rule calls
                   right, and the same rewritten by a network of the run so that the rule calls it wrong
    on_round_end   the pairs are learned, after the policy's steps: the reward of a round is by the model of the last

Samples are read with the right answer behind their question, by the hidden state before their last token. Rewritten
ones are never rows of the round.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import softplus

from mmgrpo.advantages.gae import last_of
from mmgrpo.data.messages import append_text
from mmgrpo.prompts.added import fill_text
from mmgrpo.randomness import derive
from mmgrpo.rollout import Round, RoundRows
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.rounds.rows import apart, column_of, give_scores, groups_of, refuse_unstoring, text_of, without_log_probs
from mmgrpo.rounds.values import Places, ValueNetwork
from mmgrpo.runtime.distributed import sum_by_name
from mmgrpo.types import OWN, Batch, Decisions, Prompt, Record, Rollout, Storing, select_rows

FIRST_REWRITTEN = 1 << 35
"""First slot of rewritten samples."""

SUMS: tuple[str, ...] = ("pairs", "agreeing", "judged")


def pair_loss(gap: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    """-ln sigma(gap) of s+ - s- (Bradley and Terry): .313262 for 1, .693147 for 0."""
    return softplus(-gap)


class RewardModel(Callback):
    """The reward model of a run."""

    key: ClassVar[str] = "reward_model"

    def __init__(self, network: ValueNetwork) -> None:
        self.network, self.settings = network, network.settings
        self.pairs: list[tuple[Prompt, Record, Record]] = []
        """Of the present round: the prompt as it is read, and a right and a wrong answer."""
        self.loss = 0.0
        """Of the last update."""

    def attach(self, run: Run) -> None:
        refuse_unstoring(run.policy, "algorithm.networks", self.network.rule.text)

    def on_rows(self, run: Run, rows: RoundRows) -> dict[str, float]:
        policy, names = run.policy, rows.names
        assert isinstance(policy, Storing)
        rule = names.index(self.settings["rule"])
        sums, scored = dict.fromkeys(SUMS, 0.0), list[tuple[int, float]]()
        right: dict[int, tuple[Rollout, int, Prompt]] = {}
        keys = {group.key: group for group in groups_of(rows.rollouts)}
        verdicts = column_of(rows, rule)
        for rollout, places in zip(rows.rollouts, rows.places, strict=True):
            drawn = [row for row, origin in enumerate(rollout.decisions.origin.tolist()) if origin == OWN]
            if not drawn:
                continue
            read = [self._read(rollout.prompts[row]) for row in drawn]
            given = [without_log_probs(record) for record in policy.pack(rollout, drawn)]
            judged = apart(run, list(zip(read, given, strict=True)), self.network.name)
            values = self.network.of_rows(run, judged).sigmoid()
            for row, value in zip(drawn, values.tolist(), strict=True):
                place, key = int(places[row]), int(rollout.decisions.keys["prompt"][row])
                scored.append((place, float(value > 0.5) if self.settings["hard"] else value))
                if place in verdicts:
                    is_right = verdicts[place] > self.settings["above"]
                    sums["judged"] += 1
                    sums["agreeing"] += is_right == (value > 0.5)
                    if is_right and key in keys:
                        right.setdefault(key, (rollout, row, keys[key].prompt))
        give_scores(rows, scored, self.settings["reward"], [True] * len(names))
        self.pairs = self._make_pairs(run, rows, right, rule)
        sums["pairs"] = float(len(self.pairs))
        sums = sum_by_name(sums, SUMS, run.accelerator)
        metrics = {"reward_model/pairs": sums["pairs"], "reward_model/loss": self.loss}
        return metrics | ({"reward_model/right_fraction": sums["agreeing"] / sums["judged"]} if sums["judged"] else {})

    def _make_pairs(
        self, run: Run, rows: RoundRows, right: Mapping[int, tuple[Rollout, int, Prompt]], rule: int
    ) -> list[tuple[Prompt, Record, Record]]:
        """The pairs of this rank: right samples, and the same rewritten as far as the rule calls that wrong."""
        policy = run.policy
        assert isinstance(policy, Storing)
        if not right:
            return []
        prompts = [
            replace(append_text(prompt, fill_text(self.settings["rewrite"], prompt, text_of(rollout, row))), answers=())
            for rollout, row, prompt in right.values()
        ]
        slots = [FIRST_REWRITTEN + key for key in right]
        seed = derive(run.seed, "rewritten", run.round)
        request = replace(rows.request, prompts=prompts, slots=slots, group_size=1, seed=seed)
        with ExitStack() as stack:
            if self.settings["by"]:
                stack.enter_context(policy.networks.drawing(self.settings["by"]))
            rewritten = policy.rollout(request)
        by_slot = dict(zip(slots, right.values(), strict=True))
        keys, origins = rewritten.decisions.keys["prompt"].tolist(), rewritten.decisions.origin.tolist()
        # Scored as answers to the prompt itself, which knows nothing of rewriting.
        as_it_is = replace(rewritten, prompts=[by_slot[key][2] for key in keys])
        _, scores = rows.judge(replace(request, prompts=as_it_is.prompts), as_it_is)()
        cut = rewritten.decisions.fields.get("truncated", torch.zeros(len(keys))).tolist()
        wrong = [
            row
            for row in range(len(keys))
            if origins[row] == OWN
            and not cut[row]
            and bool(scores.valid[row, rule])
            and float(scores.values[row, rule]) <= self.settings["above"]
        ]
        pairs = []
        for row, record in zip(wrong, policy.pack(rewritten, wrong), strict=True):
            rollout, first, prompt = by_slot[keys[row]]
            [positive] = policy.pack(rollout, [first])
            pairs.append((self._read(prompt), without_log_probs(positive), without_log_probs(record)))
        return pairs

    def on_round_end(self, run: Run, round_: Round) -> None:
        """Learn the pairs of the round."""
        pairs, self.pairs = self.pairs, []
        count = int(sum_by_name({"pairs": float(len(pairs))}, ["pairs"], run.accelerator)["pairs"])
        if not count:
            return
        given = [(prompt, record) for prompt, *both in pairs for record in both]
        rollout = apart(run, given, self.network.name) if given else None
        for _ in range(self.settings["updates"]):
            gap = self._gaps(self.network.of_rows(run, rollout)) if rollout else torch.zeros(0)
            self.loss = sum_by_name({"loss": float(pair_loss(gap).sum())}, ["loss"], run.accelerator)["loss"] / count
            # The loss is of pairs, and a part may hold one half of them: its gradient to the scores is known before.
            slope = -(-gap).sigmoid()
            slopes = torch.stack([slope, -slope], 1).reshape(-1) / count

            def error(at: Places, outputs: Tensor, slopes: Tensor = slopes) -> Tensor:
                return slopes.to(outputs.device)[at[0]] * outputs[:, 0]

            batch, entries = batch_of(rollout, round_.batch.decisions)
            self.network.update(run, batch, entries, error)

    @staticmethod
    def _gaps(scores: Float[Tensor, "N"]) -> Float[Tensor, "M"]:
        """s+ - s- of scores that stand by turns."""
        return scores[0::2] - scores[1::2]

    def _read(self, prompt: Prompt) -> Prompt:
        """A question with the right answer behind it."""
        return append_text(prompt, fill_text(self.settings["text"], prompt)) if self.settings["text"] else prompt

    def state(self) -> Any:
        return {"network": self.network.state(), "loss": self.loss}

    def tensors(self) -> Mapping[str, Tensor]:
        return self.network.tensors()

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        self.network.load(state["network"] if state else None, tensors)
        self.loss = state["loss"] if state else 0.0


def batch_of(rollout: Rollout | None, others: Decisions) -> tuple[Batch, Bool[Tensor, "B T"]]:
    """Rows of this rank as a batch of their own, which may be none, and the places at which they are read."""
    decisions = rollout.decisions if rollout else select_rows(others, slice(0))
    entries = last_of(decisions.decision_mask)
    places = [torch.arange(decisions.rows, device=entries.device)] if rollout else []
    advantages = torch.zeros_like(decisions.log_probs)
    return Batch([rollout] if rollout else [], places, decisions, advantages, entries), entries


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [RewardModel(ValueNetwork(rule)) for rule in choices.rules("reward_network")]
