"""Rewards that are learned from demonstrations beside the policy (``algorithm.networks: discriminator(...)``): a named
network with a head that tells samples of the policy from the answers of the data set.

    on_request     where a block reads ``reference_value``, that of a prompt is what the answer earns
    on_rows        every sample has the reward that the head gives: -log D (gail), or its score (irl)
    on_round_end   samples and answers of the round are learned, after the policy's steps

    gail   max_D E_policy[log D] + E_answers[log(1 - D)], D = sigma(s)      StepAgent, arXiv:2411.03817
    irl    max_s E[(s(answer) - s(sample)) / beta]                         DR-IRL, arXiv:2503.18991

s is read from the hidden state before the last token. A sample that is the answer teaches nothing. Of several
discriminators each has the prompts of its tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import softplus

from mmgrpo.config.registry import Bound
from mmgrpo.rollout import Round, RoundRows
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.rounds.reward_network import batch_of
from mmgrpo.rounds.rows import apart, give_scores, refuse_unanswered, refuse_unstoring, without_log_probs
from mmgrpo.rounds.values import Places, ValueNetwork
from mmgrpo.runtime.distributed import sum_by_name
from mmgrpo.types import OWN, Batch, Prompt, Record, Request, Storing


def reward_of(score: Float[Tensor, "N"], form: str) -> Float[Tensor, "N"]:
    """-log sigma(s), or s. D .8 and .5: .223144 and .693147."""
    return softplus(-score) if form == "gail" else score


def discriminator_loss(
    score: Float[Tensor, "N"], is_sample: Bool[Tensor, "N"], form: str, beta: float
) -> Float[Tensor, "N"]:
    """What each row adds to the loss: -log D of samples and -log(1 - D) of answers, or (s of samples - s of answers) /
    beta. D .8 of both: .223144 and 1.609438; s 2 and 1, beta .5: 4 and -2."""
    if form == "gail":
        return torch.where(is_sample, softplus(-score), softplus(score))
    return torch.where(is_sample, score, -score) / beta


class Discriminator(Callback):
    """A discriminator of a run."""

    def __init__(self, rule: Bound) -> None:
        self.network = ValueNetwork(rule)
        self.settings, self.tasks = self.network.settings, frozenset(self.network.settings["tasks"])
        self.name = self.network.name
        self.pairs: list[tuple[Prompt, Record, bool]] = []
        """Samples and answers of the present round, and which are samples."""
        self.loss = 0.0
        """Of the last update."""

    def attach(self, run: Run) -> None:
        text = self.network.rule.text
        refuse_unstoring(run.policy, "algorithm.networks", text)
        if absent := self.tasks - {prompt.task for prompt in run.prompts}:
            raise ValueError(
                f"algorithm.networks: {text}: no prompt has the task '{min(absent)}', of which it is; correct it, or "
                "leave it out"
            )
        mine = [prompt for prompt in run.prompts if self._is_mine(prompt)]
        refuse_unanswered(run.policy, mine, "algorithm.networks")

    def on_request(self, run: Run, request: Request) -> Request:
        """Where a block compares with the reward of the answer (``reference_value``), that is what it says of it."""
        policy = run.policy
        mine = [place for place, prompt in enumerate(request.prompts) if self._is_mine(prompt)]
        if "reference_value" not in run.recipe.fields or not mine:
            return request
        assert isinstance(policy, Storing)
        prompts = [*request.prompts]
        answers = policy.answers([prompts[place] for place in mine])
        pairs = [(prompts[place], records[0]) for place, records in zip(mine, answers, strict=True)]
        values = reward_of(self.network.of_rows(run, apart(run, pairs, self.name)), self.settings["form"]).tolist()
        for place, value in zip(mine, values, strict=True):
            prompts[place] = replace(prompts[place], meta={**prompts[place].meta, "reference_value": value})
        return replace(request, prompts=prompts)

    def on_rows(self, run: Run, rows: RoundRows) -> dict[str, float]:
        policy, form = run.policy, self.settings["form"]
        assert isinstance(policy, Storing)
        scored, self.pairs, sums = list[tuple[int, float]](), [], {"samples": 0.0, "right": 0.0}
        for rollout, places in zip(rows.rollouts, rows.places, strict=True):
            drawn = [
                row
                for row, origin in enumerate(rollout.decisions.origin.tolist())
                if origin == OWN and self._is_mine(rollout.prompts[row])
            ]
            if not drawn:
                continue
            prompts = [rollout.prompts[row] for row in drawn]
            given = [without_log_probs(record) for record in policy.pack(rollout, drawn)]
            answers = [records[0] for records in policy.answers(prompts)]
            both = [*zip(prompts, given, strict=True), *zip(prompts, answers, strict=True)]
            values = self.network.of_rows(run, apart(run, both, self.name))
            of_own, of_answers = values[: len(drawn)], values[len(drawn) :]
            scored += zip([int(places[row]) for row in drawn], reward_of(of_own, form).tolist(), strict=True)
            for prompt, sample, answer in zip(prompts, given, answers, strict=True):
                if not torch.equal(sample["ids"], answer["ids"]):
                    self.pairs += [(prompt, sample, True), (prompt, answer, False)]
            right = (of_own > 0) == (form == "gail"), (of_answers > 0) == (form == "irl")
            sums["samples"] += len(drawn)
            sums["right"] += float(sum(verdicts.float().sum() for verdicts in right)) / 2
        give_scores(rows, scored, self.settings["reward"], [True] * len(rows.names))
        sums = sum_by_name(sums, [*sums], run.accelerator)
        metrics = {f"{self.name}/loss": self.loss}
        return metrics | ({f"{self.name}/right_fraction": sums["right"] / sums["samples"]} if sums["samples"] else {})

    def move(self, run: Run, batch: Batch, rows: Bool[Tensor, " B"]) -> bool:
        return run.step < self.settings["warmup"]

    def on_round_end(self, run: Run, round_: Round) -> None:
        """Learn the samples and answers of the round."""
        pairs, self.pairs = self.pairs, []
        count = sum_by_name({"rows": float(len(pairs)) / 2}, ["rows"], run.accelerator)["rows"]
        if not count or (self.settings["warmup"] and run.step > self.settings["warmup"]):
            return
        rollout = apart(run, [(prompt, record) for prompt, record, _ in pairs], self.name) if pairs else None
        is_sample = torch.tensor([is_own for _, _, is_own in pairs], dtype=torch.bool)
        form, beta = self.settings["form"], self.settings["beta"]

        def error(at: Places, outputs: Tensor) -> Tensor:
            return discriminator_loss(outputs[:, 0], is_sample.to(outputs.device)[at[0]], form, beta) / count

        batch, entries = batch_of(rollout, round_.batch.decisions)
        for _ in range(self.settings["updates"]):
            self.loss, _ = self.network.update(run, batch, entries, error)

    def _is_mine(self, prompt: Prompt) -> bool:
        return not self.tasks or prompt.task in self.tasks

    def state(self) -> Any:
        return {"network": self.network.state(), "loss": self.loss}

    def tensors(self) -> Mapping[str, Tensor]:
        return self.network.tensors()

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        self.network.load(state["network"] if state else None, tensors)
        self.loss = state["loss"] if state else 0.0


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [Discriminator(rule) for rule in choices.rules("discriminator")]
