"""Tokens drawn several at a time, on tables small enough to enumerate: likelihoods, orders, gradients, learning."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmgrpo.objectives import surrogates
from mmgrpo.policies.parallel_tokens import ParallelModel, ParallelTokenPolicy, Remasking, Reveals, Singles
from mmgrpo.types import Output, Policy, Prompt, Reference, Request, Text
from pipelines.training import FrozenCopy
from tests.building import algorithm_blocks, killed_and_whole, trainer

CODES, PLACES = 4, 4
PROMPTS = [Prompt(f"prompt {number}", str(number), answer=number) for number in range(2)]


class Grid(nn.Module):
    """Logits of each place from the tokens of all places that it sees; ``tied``: what two places add is the same for
    both, so the probabilities of places given all others are those of one distribution (``log_likelihood``)."""

    def __init__(self, prompts: int, seed: int = 0, tied: bool = False) -> None:
        super().__init__()
        self.tied = tied
        random = torch.Generator().manual_seed(seed)
        self.place = nn.Parameter(torch.randn(prompts, PLACES, CODES, generator=random))
        self.seen = nn.Parameter(torch.randn(PLACES, PLACES, CODES, CODES, generator=random))

    def forward(self, prompt: Tensor, tokens: Tensor, sees: Tensor) -> Tensor:
        """[N, T, K] of prompts [N], tokens [N, T], and whether place t sees place u, [N, T, U]."""
        place = torch.arange(PLACES)
        terms = self.pairs()[place[:, None], place, tokens[:, None, :]]  # [N, T, U, K]
        return self.place[prompt] + (terms * sees[..., None]).sum(2)

    def pairs(self) -> Tensor:
        """[T, U, K of U, K of T]."""
        return (self.seen + self.seen.permute(1, 0, 3, 2)) / 2 if self.tied else self.seen


class GridModel:
    """Masked: a pass reveals two of four places, in a drawn order. Causal: one place, then the other three."""

    evaluations_per_row, passes = 1, 2

    def __init__(self, *, causal: bool = False, prompts: int = 2, seed: int = 0, tied: bool = False) -> None:
        self.network: nn.Module = Grid(prompts, seed, tied)
        self.reference: Reference = FrozenCopy(self.network)
        self.reference.keep()
        self.causal = causal

    def order(self, generator: torch.Generator) -> Tensor:
        return torch.tensor([0, 1, 1, 1]) if self.causal else torch.randperm(PLACES, generator=generator) // 2

    def encode(self, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        return {"prompt": torch.tensor([int(prompt.id) for prompt in prompts])}

    def logits(
        self, network: nn.Module, conditions: Mapping[str, Tensor], tokens: Tensor, order: Tensor, number: Tensor
    ) -> Tensor:
        at = order[:, :, None] if self.causal else number[:, None, None].expand(-1, PLACES, 1)
        return network(conditions["prompt"], tokens, order[:, None, :] < at)

    def render(self, prompts: Sequence[Prompt], tokens: Tensor) -> list[Output]:
        return [Text("".join(map(str, row))) for row in tokens.tolist()]

    def save(self, folder: Path, network: nn.Module) -> None:
        folder.mkdir(parents=True, exist_ok=True)


def policy(*, causal: bool = False, **settings) -> ParallelTokenPolicy:
    return ParallelTokenPolicy(GridModel(causal=causal), **settings)


def rescored(made: ParallelTokenPolicy, rolled, name: str = "log_probs", limit: int = 1000) -> Tensor:
    dense = torch.zeros_like(rolled.decisions.log_probs)
    for part in rolled.steps.split(rolled.decisions.loss_mask, limit):
        assert len(part.samples) <= limit
        dense[part.rows, part.positions] = made.score(rolled, part, frozenset({name}))[name].detach()
    return dense


def by_hand(network: Grid, prompt: int, tokens: Sequence[int], order: Sequence[int]) -> list[float]:
    """The log-prob of each token, one place at a time."""
    values = []
    for t in range(PLACES):
        logits = network.place[prompt, t].clone()
        for u in range(PLACES):
            if order[u] < order[t]:
                logits = logits + network.seen[t, u, tokens[u]]
        values.append(float(torch.log_softmax(logits, 0)[tokens[t]]))
    return values


@pytest.fixture(params=[False, True], ids=["masked", "causal"])
def causal(request) -> bool:
    return request.param


@torch.no_grad()
def test_log_probs_are_those_of_a_loop_over_places_and_sum_to_one(causal):
    made = policy(causal=causal)
    assert isinstance(made, Policy) and isinstance(made.model, ParallelModel)
    rolled = made.rollout(Request(PROMPTS, [0, 1], 5, 3))
    steps: Reveals = rolled.steps  # type: ignore[assignment]
    rows = zip(steps.prompt.tolist(), steps.tokens.tolist(), steps.order[:, 0].tolist(), strict=True)
    wanted = torch.tensor([by_hand(made.network, *row) for row in rows])  # type: ignore[arg-type]
    torch.testing.assert_close(rolled.decisions.log_probs, wanted, rtol=0, atol=1e-6)
    order, every = steps.order[0, 0], torch.tensor(list(itertools.product(range(CODES), repeat=PLACES)))
    total = torch.zeros(len(every))
    for number in range(2):
        orders, numbers = order.expand(len(every), -1), torch.full((len(every),), number)
        logits = made.model.logits(made.network, {"prompt": torch.zeros(len(every)).long()}, every, orders, numbers)
        distribution = torch.log_softmax(logits, -1).gather(2, every[..., None])[..., 0]
        total += (distribution * (order == number)).sum(1)
    assert float(total.exp().sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_sequences_are_drawn_with_their_probabilities(causal):
    """Of 40,000 samples of a prompt, each token of each place as often as the sum over whole sequences says."""
    made = policy(causal=causal)
    rolled = made.rollout(Request(PROMPTS[:1], [0], 40_000, 0))
    steps: Reveals = rolled.steps  # type: ignore[assignment]
    first = steps.order[:, 0] == 0
    for place in range(PLACES):  # a place that is drawn first sees none: its table is its distribution
        drawn = steps.tokens[first[:, place], place]
        if len(drawn):
            wanted = torch.softmax(made.network.place[0, place].detach(), 0)
            assert (torch.bincount(drawn, minlength=CODES) / len(drawn) - wanted).abs().max() < 0.02  # > 5 sigmas


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_the_ratio_is_one_and_parts_are_whole_passes(causal, limit):
    made = policy(causal=causal, temperature=0.7)
    rolled = made.rollout(Request(PROMPTS, [0, 1], 5, 3))
    for name in ("log_probs", "reference.log_probs"):
        torch.testing.assert_close(rescored(made, rolled, name, limit), rolled.decisions.log_probs, rtol=0, atol=1e-6)
    torch.testing.assert_close(
        rescored(made, rolled, "entropy", limit), rolled.decisions.fields["entropy"], rtol=0, atol=1e-6
    )
    passes = sum(len(part.samples) for part in rolled.steps.split(rolled.decisions.loss_mask, limit))
    assert passes == (10 if causal else 20) and rolled.evaluations == 20
    assert list(rolled.steps.split(torch.zeros(10, PLACES, dtype=torch.bool), 5)) == []


def test_parts_leave_the_gradient_unchanged(causal):
    gradients = []
    for limit in (1, 3, 1000):
        made = policy(causal=causal)
        rolled = made.rollout(Request(PROMPTS, [0, 1], 5, 3))
        mask, loss = rolled.decisions.loss_mask.clone(), torch.tensor(0.0)
        mask[3], mask[:, 1] = False, False
        for part in rolled.steps.split(mask, limit):
            scores = made.score(rolled, part, frozenset({"log_probs"}))["log_probs"]
            loss = loss + (scores * (part.rows + 1.0) * (part.positions + 1.0)).sum()
        gradients.append(torch.autograd.grad(loss, [made.network.seen])[0])
    for gradient in gradients[:2]:
        torch.testing.assert_close(gradient, gradients[2], rtol=1e-5, atol=1e-5)


def test_a_group_depends_on_slot_and_seed_alone(causal):
    made = policy(causal=causal)

    def tokens(prompts, slots, seed=3, batch=64):
        made.batch_size = batch
        return made.rollout(Request(prompts, slots, 6, seed)).steps.tokens  # type: ignore[union-attr]

    together = tokens(PROMPTS, [0, 1])
    assert torch.equal(together[6:], tokens(PROMPTS[1:], [1]))
    assert torch.equal(together, tokens(PROMPTS, [0, 1], batch=5))
    assert not torch.equal(together[6:], tokens(PROMPTS[1:], [1], seed=4))
    assert not torch.equal(together[6:], tokens(PROMPTS[1:], [0]))


def test_at_temperature_zero_each_place_has_its_most_likely_token(causal):
    made = policy(causal=causal, evaluation_temperature=0.0)
    with torch.no_grad():
        made.network.seen.zero_()
    outputs = made.sample(Request(PROMPTS, [0, 1], 2, 5))
    wanted = made.network.place.argmax(-1).repeat_interleave(2, 0).tolist()
    assert [output.text for output in outputs] == ["".join(map(str, row)) for row in wanted]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"temperature 0\.0"):
        policy(temperature=0.0)


def test_masks_of_their_own_score_finished_samples():
    """Each masked token given the visible ones, as a loop over places has it; the shares rise to all but none."""
    made = policy(remasking=Remasking(count=3, least=0.4), temperature=0.7)
    rolled = made.rollout(Request(PROMPTS, [0, 1], 5, 3))
    steps: Reveals = rolled.steps  # type: ignore[assignment]
    masks, log_probs = steps.order, rolled.decisions.log_probs.view(10, 3, PLACES)
    assert set(masks.unique().tolist()) <= {0, 1} and masks.sum(2).min() >= 1
    assert torch.equal(rolled.decisions.loss_mask, masks.flatten(1) > 0)
    for row, mask, place in masks.nonzero().tolist():
        logits = made.network.place[steps.prompt[row], place].detach().clone()
        for other in range(PLACES):
            if not masks[row, mask, other]:
                logits += made.network.seen[place, other, steps.tokens[row, other]].detach()
        wanted = torch.log_softmax(logits / 0.7, 0)[steps.tokens[row, place]]
        assert float(log_probs[row, mask, place]) == pytest.approx(float(wanted), abs=1e-5)
    for limit in (1, 4, 1000):
        torch.testing.assert_close(rescored(made, rolled, limit=limit), rolled.decisions.log_probs, rtol=0, atol=1e-6)
    plain = policy(temperature=0.7).rollout(Request(PROMPTS, [0, 1], 5, 3))
    assert torch.equal(steps.tokens, plain.steps.tokens)  # type: ignore[union-attr]
    assert rolled.evaluations == plain.evaluations + 30
    shares = torch.stack([Remasking().draw(4000, torch.Generator().manual_seed(n)).float().mean(1) for n in range(3)])
    wanted = torch.tensor([2 / 3, 0.7333, 0.8, 0.8667, 0.9333, 0.999])  # c = .6, six updates
    assert (shares.mean(0) - wanted).abs().max() < 0.02
    with pytest.raises(ValueError, match="remasking"):
        policy(causal=True, remasking=Remasking())


EVERY = torch.tensor(list(itertools.product(range(CODES), repeat=PLACES)))
"""All 256 samples of a grid of 2 x 2."""


def enumerated(made: ParallelTokenPolicy, orders: Tensor, name: str = "log_probs") -> Tensor:
    """A score of all samples of prompt 0 at all decisions of the same orders or masks [M, T], with gradient."""
    rows, every = torch.zeros(len(EVERY)).long(), orders.expand(len(EVERY), -1, -1)
    steps = Reveals({"prompt": torch.zeros(1).long()}, rows, EVERY, every, every, None)
    [part] = steps.split(torch.ones(len(EVERY), orders.numel(), dtype=torch.bool), 10**6)
    rolled = replace(made.rollout(Request(PROMPTS[:1], [0], 1, 0)), steps=steps)
    return made.score(rolled, part, frozenset({name}))[name].view(every.shape)


def consistent(seed: int) -> ParallelTokenPolicy:
    return ParallelTokenPolicy(GridModel(seed=seed, tied=True), remasking=Singles(PLACES))


def log_likelihood(network: Any) -> Tensor:
    """log p(x) of all samples of prompt 0: the logits of their places, and each pair of places once."""
    places = torch.arange(PLACES)
    pairs = network.pairs()[places[:, None], places, EVERY[:, None, :], EVERY[:, :, None]]  # [256, T, U]
    return torch.log_softmax(network.place[0][places, EVERY].sum(1) + pairs.tril(-1).sum((1, 2)), 0)


def slope(value: Tensor, made: ParallelTokenPolicy) -> Tensor:
    parameters = list(made.network.parameters())
    return torch.cat([one.flatten() for one in torch.autograd.grad(value, parameters, retain_graph=True)])


def test_the_concrete_scores_of_all_jumps_give_the_gradient_of_the_log_likelihood():
    """SEPO's theorem: sum over y of pi(y) grad log s(x)_y = -grad log pi(x), where s(x)_y = pi(y) / pi(x)."""
    made, x = consistent(0), 77
    logs = log_likelihood(made.network)
    found = slope((logs.detach().exp() * (logs - logs[x])).sum(), made)
    torch.testing.assert_close(found, slope(-log_likelihood(made.network)[x], made), rtol=0, atol=1e-6)


@pytest.mark.parametrize("advantage", [1.5, -0.5])
def test_sepo_is_the_sum_over_the_jumps_of_each_place(advantage):
    """Value and gradient by enumeration: for each place of each of 256 samples, the sum over the three other tokens of
    sg[pi(y | x_-i) min(r A, clip(r) A)] log s_y, r = (pi / pi_old)(y) (s_old / s)_y, s of whole samples."""
    new, old, masks = consistent(1), consistent(2), torch.eye(PLACES).long()
    logs, before = log_likelihood(new.network), log_likelihood(old.network).detach()
    number, wanted, ratios = torch.arange(len(EVERY)), [], []
    for place in range(PLACES):
        stride = CODES ** (PLACES - 1 - place)
        jumps = number[:, None] + (torch.arange(CODES) - EVERY[:, place, None]) * stride  # [256, v]
        given, given_before = (torch.log_softmax(one[jumps], 1) for one in (logs, before))
        score, score_before = (one[jumps] - one[:, None] for one in (logs, before))
        ratios.append((given - given_before + score_before - score).exp())
        gain = torch.minimum(ratios[-1] * advantage, ratios[-1].clamp(0.8, 1.2) * advantage)
        wanted.append(((given.exp() * gain).detach() * score).sum(1))  # nothing for v = x_i, whose score is 1
    own = torch.eye(PLACES).bool().expand(len(EVERY), -1, -1)
    found, entropy = (enumerated(new, masks, name)[own] for name in ("log_probs", "conditional_entropy"))
    then = enumerated(old, masks)[own].detach()
    loss = surrogates.sepo(found, then, torch.full_like(found, advantage), entropy)
    assert 0 < (loss.high if advantage > 0 else loss.low).float().mean() < 1
    torch.testing.assert_close(loss.values, torch.stack(wanted, 1).flatten(), rtol=1e-4, atol=1e-3)
    wanted = slope(torch.stack(wanted).sum(), new)
    torch.testing.assert_close(slope(loss.values.sum(), new), wanted, rtol=1e-3, atol=1e-2)
    assert wanted.abs().max() > 10


def test_estimators_against_the_exact_policy_gradient():
    """Of the mean reward of samples in all six orders of two and two places, by enumeration of samples and masks: what
    was drawn gives it exactly; the masks of MaskGRPO (97.5 %), one mask of everything (d1, 93 %) and single ones (SEPO,
    71 % here) give its direction about."""
    made = policy()
    orders = torch.tensor([order for order in itertools.product((0, 1), repeat=PLACES) if sum(order) == 2])
    reward = (EVERY[:, :1] == EVERY).float().mean(1) + (EVERY[:, 3] == 2)
    logs = torch.stack([enumerated(made, order[None])[:, 0].sum(1) for order in orders], 1)  # [256, orders]
    exact = slope((logs.exp().mean(1) * reward).sum(), made)
    chance = logs.detach().exp() / len(orders)
    advantage = (reward - (chance.sum(1) * reward).sum())[:, None]
    torch.testing.assert_close(slope((chance * advantage * logs).sum(), made), exact, rtol=1e-4, atol=1e-6)
    random = torch.Generator().manual_seed(0)
    several = torch.cat([Remasking().draw(PLACES, random) for _ in range(300)])
    cosines = {}
    for name, masks in {"several": several, "all": torch.ones(1, PLACES), "single": torch.eye(PLACES)}.items():
        unique, times = masks.long().unique(dim=0, return_counts=True)
        shares = times[:, None] / times.sum() * unique
        value = ((enumerated(made, unique) * shares).sum(2) * chance.sum(1, keepdim=True) * advantage).sum()
        cosines[name] = float(torch.cosine_similarity(slope(value, made), exact, dim=0))
    assert cosines["several"] > cosines["all"] > cosines["single"] > 0.5, cosines


def equal_neighbours(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Reward: the share of places that have the same token as the first, which is not the prompt's number."""
    rows = zip(prompts, (output.text for output in outputs), strict=True)  # type: ignore[union-attr]
    return [sum(token == text[0] for token in text) / PLACES * (text[0] != prompt.id) for prompt, text in rows]


def run(folder: Path, preset: str = "grpo", *, causal: bool, remasking: Remasking | Singles | None = None, **settings):
    settings = {"prompts_per_step": 2, "group_size": 16, "steps": 5, **settings, **algorithm_blocks(preset)}
    made = policy(causal=causal, remasking=remasking)
    return trainer(made, folder, PROMPTS, reward=equal_neighbours, **settings)


@pytest.mark.learning
@pytest.mark.parametrize(
    ("preset", "causal", "remasking"),
    [("grpo", False, None), ("grpo", True, None), ("grpo", False, Remasking()), ("sepo", False, Singles(PLACES))],
)
def test_places_learn_to_agree(preset, causal, remasking, tmp_path):
    result = run(tmp_path, preset, causal=causal, remasking=remasking, heldout=PROMPTS, steps=60, lr=0.1).fit()["eval"]
    assert result["before"]["reward"]["mean"] < 0.5
    assert result["after"]["reward"]["mean"] > 0.8


def test_a_killed_run_resumes_with_the_same_numbers(causal, tmp_path):
    killed, whole = killed_and_whole(lambda folder: run(folder, causal=causal, save_every=2), tmp_path)
    assert len(whole) == 5 and killed == whole
