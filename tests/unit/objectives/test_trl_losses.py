"""The same numbers through TRL's own code and through ours: losses, their gradients, and advantages.

TRL's formulas stand inside two methods of its GRPOTrainer; they are called here with a stand-in that holds what they
read. Where a name means two things, ``PAIRS`` says which of ours is TRL's.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.testing import assert_close
from trl.trainer.grpo_trainer import GRPOTrainer

from mmgrpo.advantages.estimate import estimate
from mmgrpo.types import Decisions, Output, Request, Rollout
from mmgrpo.update import Batch, LossRecipe, accumulate_gradients
from tests.building import algorithm_blocks, recipe

ROWS, WIDTH = 12, 9
LIMIT = 11
"""TRL's max_completion_length."""

LENGTHS = torch.tensor([9, 1, 4, 7, 9, 2, 3, 8, 5, 6, 1, 9])

PAIRS: dict[str, tuple[dict[str, Any], tuple[str, str], float]] = {
    "grpo": ({"loss_type": "grpo"}, ("ppo(low=0.2, high=0.2)", "per_sample"), 0.4),
    "dapo": ({"loss_type": "dapo", "epsilon_high": 0.28}, ("ppo(low=0.2, high=0.28)", "per_decision"), 0.4),
    "dr_grpo": ({"loss_type": "dr_grpo"}, ("ppo(low=0.2, high=0.2)", f"constant_horizon(length={LIMIT})"), 0.4),
    # TRL's bnpo is the mean over the batch's tokens; our preset of that name is the paper's division by a Beta
    # density (arXiv:2506.02864), which TRL does not have.
    "bnpo": ({"loss_type": "bnpo"}, ("ppo(low=0.2, high=0.2)", "per_decision"), 0.4),
    # Neither library has a loss "gspo": in TRL it is the sequence level under "grpo".
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
        ("gspo(low=3e-4, high=4e-4)", "per_sample"),
        2e-3,
    ),
    # TRL's epsilon_high is the largest ratio itself (ScaleRL's form), not its distance from one.
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1.5}, ("cispo_cap(cap=1.5)", "per_decision"), 0.4),
    "sapo": ({"loss_type": "sapo"}, ("sapo(tau_positive=1.0, tau_negative=1.05)", "per_sample"), 0.4),
    # TRL's delta holds the ratio where the advantage is negative.
    "two_sided": ({"loss_type": "grpo", "delta": 1.4}, ("two_sided_clip(ceiling=1.4)", "per_sample"), 0.4),
    # A sequence ratio without the division by the length (LUSPO).
    "luspo": (
        {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
        ("gspo(low=3e-4, high=4e-4)", "sample_sum"),
        2e-3,
    ),
}
"""By TRL's name: its settings, our objective and weights, and how far ratios stray (std of their logarithms)."""

CLIPPED = {"cispo": (False, True), "sapo": (False, False)}
"""Whether a loss has a clip below and above; both, where it is not said."""


@dataclass
class Numbers:
    """One batch of two groups, off policy; ``now`` and ``reference`` are those of the network being trained."""

    now: Tensor
    old: Tensor
    reference: Tensor
    advantages: Tensor
    loss_mask: Tensor


def numbers(stray: float) -> Numbers:
    generator = torch.Generator().manual_seed(5)
    old = -3 * torch.rand(ROWS, WIDTH, generator=generator).double()
    now = old + stray * torch.randn(ROWS, WIDTH, generator=generator).double()
    reference = old + 0.3 * torch.randn(ROWS, WIDTH, generator=generator).double()
    advantages = torch.randn(ROWS, generator=generator)
    return Numbers(now, old, reference, advantages, torch.arange(WIDTH) < LENGTHS[:, None])


def stand_in(**settings: Any) -> SimpleNamespace:
    """What ``GRPOTrainer._compute_loss`` reads of its trainer, with TRL's defaults."""
    read = {
        "loss_type": "grpo",
        "importance_sampling_level": "token",
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "delta": None,
        "beta": 0.0,
        "use_bias_correction_kl": False,
        "off_policy_mask_threshold": None,
        **settings,
    }
    of_config = ("delta", "use_bias_correction_kl")
    return SimpleNamespace(
        args=SimpleNamespace(
            **{name: read.pop(name) for name in of_config},
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
            vespo_k_pos=2.0,
            vespo_lambda_pos=3.0,
            vespo_k_neg=3.0,
            vespo_lambda_neg=2.0,
            steps_per_generation=1,
        ),
        model=SimpleNamespace(training=True),
        accelerator=Accelerator(cpu=True),
        max_completion_length=LIMIT,
        current_gradient_accumulation_steps=1,
        top_entropy_quantile=1.0,
        use_vllm=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        **read,
    )


def by_trl(batch: Numbers, **settings: Any) -> tuple[Tensor, Tensor]:
    """TRL's loss and its gradient by the present log-probabilities."""
    trainer = stand_in(**settings)
    leaf = batch.now.clone().requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (leaf, torch.zeros_like(leaf), None)
    ids = torch.zeros(ROWS, WIDTH, dtype=torch.long)
    loss = GRPOTrainer._compute_loss(
        trainer,
        None,
        {
            "prompt_ids": ids[:, :1],
            "prompt_mask": ids[:, :1] + 1,
            "completion_ids": ids,
            "completion_mask": batch.loss_mask.long(),
            "advantages": batch.advantages,
            "old_per_token_logps": batch.old,
            "ref_per_token_logps": batch.reference,
            "num_items_in_batch": batch.loss_mask.sum(),
        },
    )
    loss.backward()
    return loss.detach(), leaf.grad


@dataclass(frozen=True)
class Entries:
    rows: Tensor
    positions: Tensor


class Given:
    """A policy, and the steps that it scores, whose log-probabilities are a leaf."""

    kind = "tokens"
    provides = frozenset({"log_probs", "reference.log_probs"})
    fields: frozenset[str] = frozenset()
    keys = frozenset({"prompt"})
    settings = None
    networks = None

    def __init__(self, batch: Numbers) -> None:
        self.batch, self.leaf, self.network = batch, batch.now.clone().requires_grad_(), nn.Identity()

    def rollout(self, request: Request) -> Rollout:
        raise AssertionError("nothing is sampled here")

    def keep_reference(self) -> None:
        raise AssertionError("what it is compared with is given")

    def sample(self, request: Request) -> Sequence[Output]:
        raise AssertionError("nothing is sampled here")

    def save(self, folder: Path) -> None:
        raise AssertionError("nothing is saved here")

    def split(self, loss_mask: Tensor, limit: int) -> Iterator[Entries]:
        for rows in loss_mask.any(1).nonzero()[:, 0].split(limit):
            chosen = torch.zeros_like(loss_mask)
            chosen[rows] = loss_mask[rows]
            yield Entries(*chosen.nonzero(as_tuple=True))

    def score(self, rollout: Rollout, part: Entries, names: frozenset[str]) -> dict[str, Tensor]:
        scores = {"log_probs": self.leaf, "reference.log_probs": self.batch.reference}
        return {name: scores[name][part.rows, part.positions] for name in names}


def by_us(batch: Numbers, loss: LossRecipe) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Our loss, cut into parts of five rows, its gradient, and what is logged of it."""
    policy = Given(batch)
    rows = torch.arange(ROWS)
    decisions = Decisions(
        log_probs=batch.old,
        loss_mask=batch.loss_mask,
        decision_mask=batch.loss_mask,
        node=torch.arange(ROWS * WIDTH).view(ROWS, WIDTH),
        origin=torch.zeros(ROWS, dtype=torch.long),
        keys={"prompt": rows // (ROWS // 2)},
    )
    rollout = Rollout([], [], decisions, policy)
    advantages = batch.advantages[:, None].expand(-1, WIDTH)
    tally = accumulate_gradients(
        policy,
        Batch([rollout], [rows], decisions, advantages, batch.loss_mask),
        torch.ones(ROWS, dtype=torch.bool),
        loss,
        micro_batch_size=5,
        accelerator=Accelerator(cpu=True),
        on_policy=False,
    )
    assert policy.leaf.grad is not None
    return torch.tensor(tally.sums["loss"], dtype=torch.float64), policy.leaf.grad, tally.sums


@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("name", PAIRS)
def test_the_loss_and_its_gradient_are_those_of_trl(name: str, beta: float) -> None:
    settings, (objective, weights), stray = PAIRS[name]
    batch = numbers(stray)
    wanted, gradient = by_trl(batch, beta=beta, **settings)
    terms = [f"kl_k3(coef={beta})"] if beta else []
    loss, mine, told = by_us(batch, LossRecipe.of(objective, weights, terms=terms))
    assert_close(loss, wanted.double(), rtol=0, atol=1e-6)
    assert_close(mine, gradient, rtol=0, atol=1e-6)
    # The numbers reach the clips, so the comparison is one of clips too; and not everything is clipped.
    low, high = CLIPPED.get(name, (True, True))
    assert (told["clip/low"] > 0, told["clip/high"] > 0) == (low, high)
    assert gradient.abs().max() > 1e-3 and (gradient[batch.loss_mask] != 0).float().mean() > 0.3


def test_the_bias_corrected_kl_is_that_of_trl() -> None:
    batch = numbers(0.4)
    wanted, gradient = by_trl(batch, beta=0.04, use_bias_correction_kl=True)
    loss, mine, _ = by_us(batch, LossRecipe.of("ppo", "per_sample", terms=["kl_unbiased(coef=0.04)"]))
    assert_close(loss, wanted, rtol=0, atol=1e-6)
    assert_close(mine, gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize("threshold", [0.0, 0.1])
def test_the_off_policy_mask_is_that_of_trl_and_leaves_the_kl_alone(threshold: float) -> None:
    batch = numbers(0.4)
    wanted, gradient = by_trl(batch, beta=0.04, off_policy_mask_threshold=threshold)
    mismatch = f"off_policy_mask(delta={threshold})"
    loss, mine, _ = by_us(batch, LossRecipe.of("ppo", "per_sample", mismatch, terms=["kl_k3(coef=0.04)"]))
    assert_close(loss, wanted, rtol=0, atol=1e-6)
    assert_close(mine, gradient, rtol=0, atol=1e-6)
    gap = ((batch.old - batch.now) * batch.loss_mask).sum(1) / LENGTHS
    masked = (gap > threshold) & (batch.advantages < 0)
    assert 1 <= int(masked.sum()) < ROWS


def test_vespo_is_that_of_trl() -> None:
    batch = numbers(0.1)
    wanted, gradient = by_trl(batch, loss_type="vespo")
    loss, mine, _ = by_us(batch, LossRecipe.of("vespo", "per_decision"))
    assert_close(loss, wanted, rtol=0, atol=1e-6)
    assert_close(mine, gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["gspo", "sapo"])
def test_presets_with_trls_constants_are_trls_losses(name: str) -> None:
    settings, _, stray = PAIRS[name]
    batch = numbers(stray)
    wanted, gradient = by_trl(batch, **settings)
    loss, mine, _ = by_us(batch, algorithm_blocks(name)["loss"])
    assert_close(loss, wanted, rtol=0, atol=1e-6)
    assert_close(mine, gradient, rtol=0, atol=1e-6)


REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.3, 0.9, 0.4, 0.4], [0.5, 0.5, 0.5, 0.5]])


def advantages_by_trl(rewards: Tensor, scale: str) -> Tensor:
    """The advantages of TRL's trainer for rewards [groups, members], its sampler and reward function replaced."""
    count = rewards.numel()
    metrics = defaultdict(list)
    trainer = SimpleNamespace(
        accelerator=Accelerator(cpu=True),
        model=SimpleNamespace(training=True, is_gradient_checkpointing=False),
        args=SimpleNamespace(
            per_device_train_batch_size=count,
            gradient_accumulation_steps=1,
            steps_per_generation=1,
            gradient_checkpointing_kwargs=None,
        ),
        environment_factories=None,
        environments=None,
        tools=[],
        _tokenizer=SimpleNamespace(pad_token_id=0),
        pad_to_multiple_of=None,
        mask_truncated_completions=False,
        num_iterations=1,
        num_generations=rewards.shape[1],
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        beta=0.0,
        multi_objective_aggregation="sum_then_normalize",
        reward_weights=torch.ones(1),
        reward_funcs=[None],
        reward_func_names=["reward"],
        scale_rewards=scale,
        log_multimodal=False,
        _metrics={"train": metrics},
        _logs=defaultdict(lambda: deque(), rewards=defaultdict(deque), extra=defaultdict(deque)),
        _pending_extra_logs={},
        _pending_metrics={},
        _generate=lambda prompts: ([[1]] * count, [[1, 2]] * count, None, ["a b"] * count, None, {}, None, []),
        _calculate_rewards=lambda *_: rewards.reshape(-1, 1),
    )
    made = GRPOTrainer._generate_and_score_completions(trainer, [{"prompt": "say"}] * count)
    return made["advantages"]


@pytest.mark.parametrize(
    ("scale", "ours"),
    [("group", "group_std(ddof=1, eps=1e-4)"), ("batch", "batch_std(ddof=1, eps=1e-4)"), ("none", "none")],
)
def test_advantages_are_those_of_trl(scale: str, ours: str) -> None:
    rows, length = REWARDS.numel(), 2
    full = torch.ones(rows, length, dtype=torch.bool)
    decisions = Decisions(
        log_probs=torch.zeros(rows, length),
        loss_mask=full,
        decision_mask=full,
        node=torch.arange(rows * length).view(rows, length),
        origin=torch.zeros(rows, dtype=torch.long),
        keys={"prompt": torch.arange(rows) // REWARDS.shape[1]},
    )
    values = REWARDS.reshape(-1, 1)
    made = estimate(values, torch.ones_like(values, dtype=torch.bool), torch.ones(1), decisions, recipe(scale=ours))
    wanted = advantages_by_trl(REWARDS, scale)
    assert_close(made.samples, wanted, rtol=0, atol=1e-6)
    assert_close(made.advantages, wanted[:, None].expand(-1, length), rtol=0, atol=1e-6)
    if scale == "group":
        assert made.samples[0].item() == pytest.approx(0.5 / (3**-0.5 + 1e-4), abs=1e-6)  # std of [1, 0, 0, 1]
