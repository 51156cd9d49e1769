"""A value network beside the policy: values of its decisions before a round is scored, and a regression on its returns.

    on_draw    V of every decision and what it earns by a KL penalty, which the credits ``gae`` and ``turn_gae`` read
    learn      mean of max((V - R)^2, (clip(V) - R)^2) / 2 over the decisions, R = A + V with the critic's own lambda
    move       no step of the policy while the critic warms up alone

Its network is a named one (``algorithm.networks: critic(lr=...)``) with a head on the last hidden state before a
decision (``mmgrpo.rounds.values``).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from safetensors.torch import load_file
from torch import Tensor

from mmgrpo.advantages.gae import at_last, last_of, returns_of
from mmgrpo.advantages.select import soft_means, variance_slope
from mmgrpo.config.registry import Bound
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.policies.token_passes import GREEDY_MARGIN, Ranking
from mmgrpo.rollout import Round
from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.rounds.values import HIDDEN, Places, ValueNetwork, load_trained
from mmgrpo.runtime.checkpoint import STATE
from mmgrpo.runtime.weight_files import check_weight_files
from mmgrpo.types import OWN, Batch, Decisions, Output, Request, Rollout, Text

HEADS = ("score", "reward_head")
"""The last layer of reward models: of transformers' sequence classification with one label, and of MOSS-RLHF."""


def value_error(
    value: Float[Tensor, "N"], old: Float[Tensor, "N"], target: Float[Tensor, "N"], clip: float
) -> Float[Tensor, "N"]:
    """max((V - R)^2, (old + clamp(V - old, +-clip) - R)^2) / 2 (PPO's clipped value loss).

    V = .5, old = 0, R = 1, clip .2: max(.25, .64) / 2 = .32, without a gradient; R = 0: .125.
    """
    clipped = old + (value - old).clamp(-clip, clip)
    return torch.maximum((value - target).square(), (clipped - target).square()) / 2


def recover_rewards(
    advantage: Float[Tensor, "B T"], value: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], gamma: float
) -> Float[Tensor, "B"]:
    """The sum of Q(s, a) - gamma V(s') over the decisions of each row, the rewards that a Q is the value of (B-Coder,
    arXiv:2310.03173, equation 19); V behind the last is 0.

    A 0 -.5, V .5 .25, gamma 1: .5 - .25 and .25 - .5, together 0 = V(s_0) + the sum of A; gamma 0: .25.
    """
    values = torch.where(mask, value, 0.0)
    before = mask & (mask.cumsum(1) == 1)
    return torch.where(mask, advantage + value, 0.0).sum(1) - gamma * torch.where(before, 0.0, values).sum(1)


class Critic(Callback):
    """The value network of a run."""

    key: ClassVar[str] = "critic"

    def __init__(self, rule: Bound) -> None:
        self.network = ValueNetwork(rule, 1 + bool(rule.parameters.get("classes")))
        self.rule, self.name, self.settings = rule, self.network.name, self.network.settings
        self.totals, self.scored = torch.zeros(0), torch.zeros(0)
        """The rewards of the round as one number, and the weighted sum of what was scored."""
        self.ranked: tuple[TokenPolicy, Callable[[Request, Sequence[Output]], list[Output]]] | None = None
        """The policy of which the best candidates are kept, and what keeps them."""

    def attach(self, run: Run) -> None:
        if self.settings["warmup"] >= run.steps:
            warnings.warn(
                f"algorithm.networks: {self.rule.text}: warmup is all {run.steps} steps of the run, which trains the "
                "critic alone",
                stacklevel=2,
            )
        if self.settings["candidates"] > 1:
            self._rank(run)
        if self.settings["start"]:
            place, values = Path(self.settings["start"]), run.policy.networks.values[self.name]
            of_rewards = any(place.glob("*.safetensors")) and not (place / STATE).is_file()
            build = partial(load_trained, self.rule, self.name, self.key)
            trunk, head = self._reward_model(place, values) if of_rewards else build(values)
            for name, value in trunk.items():
                values[name].copy_(value)
            self.network.load(None, head)

    def _reward_model(
        self, place: Path, values: Mapping[str, Tensor]
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """The trunk and the scalar head of a reward model, from a folder of transformers. Of the trained weights it may
        lack the last where that is a matrix: the output layer's, which no value reads."""
        check_weight_files(place, False, "")
        saved = {
            name: tensor for file in sorted(place.glob("*.safetensors")) for name, tensor in load_file(file).items()
        }
        heads = [name for name in HEADS if saved.get(f"{name}.weight", torch.zeros(0)).shape[:1] == (1,)]
        trunk = {name: saved[name] for name in values if name in saved and saved[name].shape == values[name].shape}
        output = [name for name in [*values][-1:] if values[name].dim() > 1]
        if not heads or [name for name in values if name not in trunk] not in ([], output):
            reason = "has no head of one number" if not heads else "has other weights than this run trains"
            raise ValueError(
                f"algorithm.networks: {self.rule.text}: '{place}' {reason}; name a reward model of the policy's own "
                "architecture whose last layer is called " + " or ".join(HEADS) + ", and train all weights"
            )
        weight = saved[f"{heads[0]}.weight"].float()
        return trunk, {"head.weight": weight, "head.bias": saved.get(f"{heads[0]}.bias", torch.zeros(1)).float()}

    def _rank(self, run: Run) -> None:
        """Prepare to keep the best candidates of evaluations."""
        policy, text = run.policy, self.rule.text
        if not (isinstance(policy, TokenPolicy) and policy.walk.search is None and policy.evaluation_temperature > 0):
            raise ValueError(
                f"algorithm.networks: {text}: got candidates of a policy whose evaluations draw one alone, expected a "
                "language model with eval.temperature above 0"
            )
        credit = run.recipe.credit
        self.ranked = policy, partial(self._keep_best, run, policy, credit.settings["alpha"], credit.settings["gamma"])

    @contextmanager
    def evaluated_weights(self) -> Iterator[None]:
        if self.ranked is None:
            yield
            return
        policy, kept = self.ranked
        policy.ranking = Ranking(self.settings["candidates"], kept)
        try:
            yield
        finally:
            policy.ranking = None

    @torch.no_grad()
    def _keep_best(
        self, run: Run, policy: TokenPolicy, alpha: float, gamma: float, request: Request, outputs: Sequence[Output]
    ) -> list[Output]:
        """The candidates of the largest ``recover_rewards`` sums, of equal ones the first drawn."""
        each = request.group_size * self.settings["candidates"]
        prompts = [prompt for prompt in request.prompts for _ in range(each)]
        slots = [slot for slot in request.slots for _ in range(each)]
        records = [
            {"ids": torch.tensor(output.ids), "loss_mask": torch.ones(len(output.ids)) > 0}
            for output in outputs
            if isinstance(output, Text)
        ]
        rollout = policy.unpack(prompts, records, slots, OWN, replace(request, sampling={}))
        mask = rollout.decisions.decision_mask
        value, margin = torch.zeros(mask.shape, device=mask.device), torch.zeros(mask.shape, device=mask.device)
        for part in rollout.steps.split(mask, run.optim.micro_batch_size):
            with policy.networks(self.name):
                state = run.policy.score(rollout, part, HIDDEN)["hidden_state"]
            value[part.rows, part.positions] = self.network(state)[:, 0]
            scored = run.policy.score(rollout, part, frozenset({"log_probs", "top_log_prob"}))
            margin[part.rows, part.positions] = scored["log_probs"] - scored["top_log_prob"]
        scores = recover_rewards(alpha * margin, value, mask, gamma).view(-1, each)
        order = torch.argsort(scores, dim=1, descending=True, stable=True)
        return [
            outputs[row * each + place]
            for row, places in enumerate(order[:, : request.group_size].tolist())
            for place in places
        ]

    def on_draw(self, run: Run, rollout: Rollout) -> Rollout:
        decisions = rollout.decisions
        mask, size = decisions.decision_mask, self.network.outputs
        outputs = torch.zeros(*mask.shape, size, device=mask.device)
        with torch.no_grad(), run.policy.networks(self.name):
            for part in rollout.steps.split(mask, run.optim.micro_batch_size):
                state = run.policy.score(rollout, part, HIDDEN)["hidden_state"]
                outputs[part.rows, part.positions] = self.network(state)
        added = {"value": outputs[..., 0], "token_rewards": self._penalty(run, rollout)}
        if size > 1:
            added["group_share"] = (outputs[..., 1].sigmoid() * last_of(mask)).sum(1)
        if self.settings["greedy"]:
            with torch.no_grad():
                added |= self._margins(run, rollout)
        return rollout.with_decisions(replace(decisions, fields={**decisions.fields, **added}))

    def _margins(self, run: Run, rollout: Rollout) -> dict[str, Float[Tensor, "B T"]]:
        """How far below the likeliest token's are the log-probs of each token, and of the reference's likeliest."""
        decisions = rollout.decisions
        drawn, greedy = (torch.zeros_like(decisions.log_probs, dtype=torch.float32) for _ in range(2))
        names = frozenset({"log_probs", "top_log_prob", GREEDY_MARGIN})
        for part in rollout.steps.split(decisions.decision_mask, run.optim.micro_batch_size):
            scores = run.policy.score(rollout, part, names)
            drawn[part.rows, part.positions] = scores["log_probs"] - scores["top_log_prob"]
            greedy[part.rows, part.positions] = scores[GREEDY_MARGIN]
        return {"top_margin": drawn, "greedy_margin": greedy}

    @torch.no_grad()
    def _penalty(self, run: Run, rollout: Rollout) -> Float[Tensor, "B T"]:
        """-kl (log pi - log pi_ref) of every decision; 0 without a coefficient."""
        decisions, coef = rollout.decisions, self.settings["kl"]
        penalty = torch.zeros_like(decisions.log_probs, dtype=torch.float32)
        for part in rollout.steps.split(decisions.decision_mask, run.optim.micro_batch_size) if coef else ():
            reference = run.policy.score(rollout, part, frozenset({"reference.log_probs"}))["reference.log_probs"]
            gap = decisions.log_probs[part.rows, part.positions] - reference
            penalty[part.rows, part.positions] = -coef * gap.float()
        return penalty

    def on_rollout_end(self, run: Run, round_: Round) -> dict[str, float]:
        self.totals, decisions, coef = round_.totals, round_.batch.decisions, self.settings["kl"]
        weights, scores = torch.tensor(run.reward_weights.values), round_.reward_scores.values
        self.scored = (scores[:, : len(weights)].nan_to_num(0.0) * weights.to(scores)).sum(1)
        earned = decisions.fields["token_rewards"][decisions.decision_mask]
        return {"critic/kl": -float(earned.mean()) / coef} if coef and len(earned) else {}

    def move(self, run: Run, batch: Batch, rows: Bool[Tensor, " B"]) -> bool:
        return run.step < self.settings["warmup"]

    def learn(self, run: Run, batch: Batch) -> dict[str, float]:
        """Loss and gradient norm of the last update (without one, the loss of the values as they are), and of values
        before it the mean and the share of the returns' variance that they explain. ``NotFinite`` where loss or norm
        is not."""
        started, decisions = time.perf_counter(), batch.decisions
        old, target, entries = self._targets(run, decisions)
        if not bool(entries.any()) or self.network.head is None:
            return {}
        returns, errors, count = target[entries], (target - old)[entries], entries.sum()
        slope, gap = self._slope(decisions) if self.settings["classes"] else (torch.zeros_like(old), 0.0)
        spread, total, norm = float(returns.var(correction=0)), float(errors.square().mean()) / 2, 0.0

        def error(at: Places, output: Tensor) -> Tensor:
            errors = value_error(output[:, 0], old[at], target[at], self.settings["clip"])
            classed = self.settings["classes"] * slope[at] * output[:, -1].sigmoid()
            return torch.where(entries[at], errors / count, 0.0) - classed

        for _ in range(self.settings["updates"]):
            total, norm = self.network.update(run, batch, entries | (slope != 0), error)
        explained = 1 - float(errors.var(correction=0)) / spread if spread else 0.0
        return {
            "critic/loss": total,
            "critic/grad_norm": norm,
            "critic/value": float(old[entries].mean()),
            "critic/explained_variance": explained,
            **({"critic/group_gap": gap} if self.settings["classes"] else {}),
            "time/learners": time.perf_counter() - started,
        }

    def _targets(self, run: Run, decisions: Decisions) -> tuple[Tensor, Tensor, Bool[Tensor, "B T"]]:
        """The values of the rollout, the returns, and the decisions that have one: those of scored rows of the policy
        where a unit of the credit begins."""
        old, totals = decisions.fields["value"], self.totals.to(decisions.log_probs.device)
        given = totals.nan_to_num(0.0), decisions.decision_mask, decisions.fields
        target, units = returns_of(run.recipe.credit, *given, self.settings["lam"])
        return old, target, units & (~totals.isnan() & (decisions.origin == OWN))[:, None]

    def _slope(self, decisions: Decisions) -> tuple[Float[Tensor, "B T"], float]:
        """What the variance between the mean rewards of both groups gains by the share of each sample, at its last
        decision, and the distance of the means."""
        counted = ~self.totals.isnan() & (decisions.origin == OWN).cpu()
        given = self.scored.double(), decisions.fields["group_share"].double().cpu(), counted
        slope = at_last(variance_slope(*given).to(decisions.log_probs.device), decisions.decision_mask)
        low, high = soft_means(*given).tolist()
        return slope.float(), abs(high - low)

    def state(self) -> Any:
        return self.network.state()

    def tensors(self) -> Mapping[str, Tensor]:
        return self.network.tensors()

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        self.network.load(state, tensors)


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [Critic(rule) for rule in choices.rules("critic")]
