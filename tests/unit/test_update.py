"""One optimizer step: what is summed, and that the way through the network does not matter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from mmgrpo.rollout import sample_round
from mmgrpo.runtime.distributed import join_decisions, sum_gradients
from mmgrpo.types import OWN, REFERENCE, REPLAYED, Decisions, Output, Request, Rollout
from mmgrpo.update import Batch, LossRecipe, accumulate_gradients, rescore
from tests.building import trainer
from tests.toys import toy_policy, toy_prompts
from tests.trees import plain

ALONE = Accelerator(cpu=True)
CLIPS = ["ppo", "gspo", "gspo_token", "sequence_sum"]


@pytest.mark.parametrize("plan", ["every_step", "branch_tree(splits=[0,2])"])
@pytest.mark.parametrize("objective", CLIPS)
def test_a_step_in_which_everything_is_clipped_is_one_with_a_gradient_of_zero(objective, plan, tmp_path):
    made = trainer(toy_policy(plan), tmp_path, toy_prompts(2))
    batch = sample_round(
        made.policy, made.scorers, made.recipe, made.prompts, made.order, made.rounds,
        cursor=0, number=0, seed=0, accelerator=ALONE,
    ).batch  # fmt: skip
    network = made.policy.network
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=0.1)
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # away from the policy that sampled, and a moment of 0.1 and of 0.001
    # Each decision (of a row: each row) has gone the way of its advantage.
    gone = present(made.policy, batch) - batch.decisions.log_probs
    gone = torch.where(batch.decisions.decision_mask, gone, 0.0)
    sign = (gone if objective == "ppo" else gone.sum(1, keepdim=True).expand_as(gone)).sign()
    assert (sign[batch.loss_mask] != 0).all()
    before = [parameter.detach().clone() for parameter in network.parameters()]
    optimizer.zero_grad(set_to_none=True)
    loss = LossRecipe.of(f"{objective}(low=1e-9, high=1e-9)", "per_decision")
    tally = accumulate_gradients(
        made.policy, replace(batch, advantages=sign), torch.ones(len(gone), dtype=torch.bool), loss,
        micro_batch_size=8, accelerator=ALONE, on_policy=False,
    )  # fmt: skip
    sum_gradients(network.parameters(), ALONE)
    assert tally.sums["clip/low"] + tally.sums["clip/high"] == tally.sums["entries"] == batch.loss_mask.sum()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in network.parameters())
    optimizer.step()
    # AdamW: (0.9 * 0.1 / (1 - 0.9^2)) / sqrt(0.999 * 0.001 / (1 - 0.999^2)) = 0.47368 / 0.70693 = 0.67005
    for parameter, old in zip(network.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), old * (1 - 1e-2 * 0.1) - 1e-2 * 0.67005, rtol=0, atol=1e-6)


def present(policy, batch: Batch) -> Tensor:
    """Log-probabilities of all decisions of the only rollout, now."""
    [rollout], scored = batch.rollouts, torch.zeros_like(batch.decisions.log_probs)
    with torch.no_grad():
        for part in rollout.steps.split(batch.decisions.decision_mask, 1000):
            scored[part.rows, part.positions] = policy.score(rollout, part, frozenset({"log_probs"}))["log_probs"]
    return scored


@dataclass(frozen=True)
class Entries:
    """A part."""

    rows: Tensor
    positions: Tensor


class Leaf:
    """A policy, and the steps that it scores, whose log-probabilities are the parameters."""

    kind = "tokens"
    provides = frozenset({"log_probs", "reference.log_probs"})
    fields = frozenset({"sampler_log_probs"})
    keys = frozenset({"prompt"})
    settings = None
    networks = None

    def __init__(self, present: Sequence[Sequence[float]]) -> None:
        self.log_probs, self.network = nn.Parameter(torch.tensor(present)), nn.Identity()
        self.passes = 0

    def rollout(self, request: Request) -> Rollout:
        raise AssertionError("nothing is sampled here")

    def keep_reference(self) -> None:
        raise AssertionError("what it is compared with is given")

    def sample(self, request: Request) -> Sequence[Output]:
        raise AssertionError("nothing is sampled here")

    def save(self, folder: Path) -> None:
        raise AssertionError("nothing is saved here")

    def split(self, loss_mask: Tensor, limit: int) -> Iterator[Entries]:
        """Entry by entry, so no part ever holds a whole row."""
        for entry in loss_mask.nonzero().split(limit):
            if len(entry):
                yield Entries(entry[:, 0], entry[:, 1])

    def score(self, rollout: Rollout, part: Entries, names: frozenset[str]) -> dict[str, Tensor]:
        self.passes += 1
        now = self.log_probs[part.rows, part.positions]
        return {"log_probs": now, "reference.log_probs": torch.zeros_like(now)}


def slopes(
    policy: Leaf, advantages: Sequence[float], loss: LossRecipe, *, on_policy: bool = False, **given: Tensor
) -> list[list[float]]:
    """The loss's gradient by the present log-probabilities; those of the sampler, the old ones, are 0."""
    shape = policy.log_probs.shape
    everywhere, rows = torch.ones(shape, dtype=torch.bool), torch.arange(shape[0])
    decisions = Decisions(
        log_probs=given.pop("old", torch.zeros(shape)),
        loss_mask=everywhere,
        decision_mask=everywhere,
        node=torch.arange(everywhere.numel()).view(shape),
        origin=given.pop("origin", torch.full_like(rows, OWN)),
        keys={"prompt": torch.zeros_like(rows)},
        fields=given,
    )
    batch = Batch(
        [Rollout([], [], decisions, policy)],
        [rows],
        decisions,
        torch.tensor(advantages)[:, None].expand(shape),
        everywhere,
    )
    policy.log_probs.grad = None
    accumulate_gradients(
        policy, batch, torch.ones_like(rows, dtype=torch.bool), loss,  # type: ignore
        micro_batch_size=1, accelerator=ALONE, on_policy=on_policy,
    )  # fmt: skip
    grad = policy.log_probs.grad
    return (torch.zeros(shape) if grad is None else grad).tolist()


# Mean log-ratios to the sampler: -.5, -.5, -.1 and +.5; the present policy has left rows 0 and 1 behind.
PRESENT = [[-1.0, 0.0], [-1.0, 0.0], [-0.2, 0.0], [1.0, 0.0]]


def test_the_off_policy_mask_drops_bad_rows_that_were_left_behind_however_the_step_is_cut():
    loss = LossRecipe.of("policy_gradient", "per_decision", "off_policy_mask(delta=0.3)")
    # -A / 8 at each of 8 decisions; row 0 is bad and was left behind, row 1 good, row 2 still near, row 3 came nearer
    found = slopes(Leaf(PRESENT), [-1.0, 1.0, -1.0, -1.0], loss)
    assert found == [[0, 0], [-0.125, -0.125], [0.125, 0.125], [0.125, 0.125]]


def test_the_off_policy_mask_measures_from_the_sampler_where_that_is_another():
    loss = LossRecipe.of("policy_gradient", "per_decision", "off_policy_mask(delta=0.3)")
    near = torch.tensor(PRESENT)  # the sampler would do as the present policy does
    assert slopes(Leaf(PRESENT), [-1.0] * 4, loss, sampler_log_probs=near) == [[0.125, 0.125]] * 4


def test_a_mismatch_factor_is_one_of_the_objective_and_leaves_the_terms_alone():
    """As in DeepSeek-V3.2's eq. of the masked loss: the KL pulls a masked row back too."""
    masked = LossRecipe.of(
        "policy_gradient", "per_decision", "off_policy_mask(delta=0.3)", terms=["kl_k2(coef=1.0)"]
    )  # (log p)^2 / 2 with the slope log p
    assert slopes(Leaf([[-1.0, 0.0], [-0.2, 0.0]]), [-1.0, -1.0], masked) == [
        [pytest.approx(-0.25), 0.0],
        [pytest.approx(0.25 - 0.05), 0.25],
    ]
    # tis(cap=2): w = e^(log 3) = 3, cut at 2, at the first decision and 1 at the second
    truncated = LossRecipe.of("policy_gradient", "per_decision", "tis(cap=2.0)", terms=["kl_k2(coef=1.0)"])
    old = torch.tensor([[3.0, 1.0]]).log()
    found = slopes(Leaf([[-1.0, 0.0]]), [1.0], truncated, old=old, sampler_log_probs=torch.zeros(1, 2))
    assert found == [[pytest.approx((-2 - 1) / 2), -0.5]]


def test_a_mismatch_factor_leaves_what_a_data_set_supplied_alone():
    """No sampler drew the answer; its old log-probs, and the "sampler's", are 0, and the policy is far below them."""
    loss = LossRecipe.of("policy_gradient", "per_decision", "off_policy_mask(delta=0.3)")
    origin = torch.tensor([OWN, REFERENCE])
    [own, answer] = slopes(Leaf([[-1.0, 0.0], [-1.0, 0.0]]), [-1.0, -1.0], loss, origin=origin)
    assert own == [0, 0]
    # importance: -A p / 4 with p = e^-1 and 1
    assert answer == [pytest.approx(0.36788 / 4, abs=1e-6), 0.25]


def test_before_the_first_update_a_coupled_objective_takes_its_scores_from_the_rollout():
    """One pass over the 4 decisions instead of two, and the same gradient."""
    loss, old = LossRecipe.of("gspo(low=0.1, high=0.1)", "per_decision"), torch.tensor([[-1.0, -2.0], [-3.0, -0.5]])
    first, later = Leaf(old.tolist()), Leaf(old.tolist())
    assert slopes(first, [1.0, -1.0], loss, old=old, on_policy=True) == slopes(later, [1.0, -1.0], loss, old=old)
    assert (first.passes, later.passes) == (4, 8)
    assert slopes(Leaf(old.tolist()), [1.0, -1.0], loss, old=old) == [[-0.25, -0.25], [0.25, 0.25]]


class Transitions(Leaf):
    """A policy of Gaussian decisions whose means are off those of the rollout by rounding."""

    def score(self, rollout: Rollout, part: Entries, names: frozenset[str]) -> dict[str, Tensor]:
        scores = super().score(rollout, part, names)
        now = scores["log_probs"]
        return {**scores, "shift": now.square(), "std": torch.full_like(now, 0.1), "dt": torch.ones_like(now)}


@pytest.mark.parametrize(
    "objective",
    [*(f"{name}(low=1e-6, high=1e-6)" for name in CLIPS), "gmpo(clip=1e-6)", "cispo_cap(cap=1.000001)",
     "mini_rl(low=1e-6, high=1e-6)", "grpo_guard(clip=2e-6)", "flow_dppo(threshold=1e-9)", "sapo"],
)  # fmt: skip
def test_while_the_weights_are_those_of_the_rollout_the_ratio_is_one_in_any_precision(objective):
    """Stored log-probs are 0, present ones are off by a rounding of 1 %, each its own way: 10,000 clip ranges."""
    loss = LossRecipe.of(objective, "per_decision")
    rounded = [[0.01, 0.01], [-0.01, 0.01], [-0.01, -0.01], [0.01, -0.01]]
    exact = slopes(Transitions([[0.0, 0.0]] * 4), [1.0, -1.0, 1.0, -1.0], loss, on_policy=True)
    for present in (rounded, [[-x for x in row] for row in rounded]):
        found = slopes(Transitions(present), [1.0, -1.0, 1.0, -1.0], loss, on_policy=True)
        torch.testing.assert_close(torch.tensor(found), torch.tensor(exact), rtol=1e-6, atol=0)
    assert all(abs(x) > 0 for row in exact for x in row)
    later = slopes(Transitions(rounded), [1.0, -1.0, 1.0, -1.0], loss)
    assert later != exact, "afterwards the stored log-probs are the old ones"


@pytest.mark.parametrize("term", ["kl_k2(coef=1.0)", "kl_hinge(coef=1.0)"])
def test_a_ratio_of_one_leaves_the_terms_alone(term):
    """kl_k2 to the reference, whose log-probs are 0: slope .01 a decision; a hinge on the ratio has none at one."""
    loss = LossRecipe.of("policy_gradient", "per_decision", terms=[term])
    [[found]] = slopes(Leaf([[0.01]]), [0.0], loss, on_policy=True)
    assert found == pytest.approx(0.01 if term.startswith("kl_k2") else 0.0)


@pytest.mark.parametrize("origin", [REPLAYED, REFERENCE])
@pytest.mark.parametrize("objective", ["ppo(low=0.2, high=0.2)", "gspo(low=0.2, high=0.2)"])
def test_rows_that_the_policy_did_not_draw_keep_their_own_old_log_probs(objective, origin):
    """Ratios e^.1: replayed, 1.105 within the clip range; a reference answer is weighed without a clip. The drawn row
    has the ratio one. -A r / 2 rows."""
    loss = LossRecipe.of(objective, "per_decision")
    origins = torch.tensor([OWN, origin])
    [[own], [other]] = slopes(Leaf([[0.1], [0.1]]), [1.0, 1.0], loss, origin=origins, on_policy=True)
    assert own == pytest.approx(-0.5) and other == pytest.approx(-1.105171 / 2)


@pytest.mark.parametrize(("origin", "held"), [(OWN, True), (REFERENCE, True), (REPLAYED, False)])
def test_terms_hold_the_policy_where_it_drew_or_was_given_an_answer_and_not_on_replayed_rows(origin, held):
    """(log p)^2 / 2 has the slope log p = -1, of two rows each half."""
    loss = LossRecipe.of("policy_gradient", "per_decision", terms=["kl_k2(coef=1.0)"])
    origins = torch.tensor([OWN, origin])
    [[own], [other]] = slopes(Leaf([[-1.0], [-1.0]]), [0.0, 0.0], loss, origin=origins)
    assert (own, other) == (-0.5, -0.5 if held else 0.0)


def test_a_shared_decision_of_a_tree_has_the_ratio_one_in_all_its_rows():
    node, mask = torch.tensor([[0, 1], [0, 2]]), torch.tensor([[True, True], [False, True]])
    loss = LossRecipe.of("gspo(low=1e-6, high=1e-6)", "per_decision")
    policy = Leaf([[0.02, -0.01], [0.03, 0.01]])
    decisions = Decisions(
        torch.zeros(2, 2), mask, torch.ones(2, 2).bool(), node, torch.zeros(2).long(), {"prompt": torch.zeros(2).long()}
    )
    batch = Batch([Rollout([], [], decisions, policy)], [torch.arange(2)], decisions, torch.ones(2, 2), mask)
    tally = accumulate_gradients(
        policy,  # type: ignore
        batch,
        torch.ones(2).bool(),
        loss,
        micro_batch_size=1,
        accelerator=ALONE,
        on_policy=True,  # type: ignore
    )
    assert tally.sums["clip/low"] + tally.sums["clip/high"] == 0
    assert tally.ratio_gap == pytest.approx(math.exp(0.02) - 1)


@pytest.mark.parametrize("objective", ["ppo", "gspo"])
def test_the_difference_to_the_stored_log_probs_is_measured_all_the_same(objective):
    loss = LossRecipe.of(f"{objective}(low=0.1, high=0.1)", "per_decision")
    decisions = plain([2, 2])
    policy = Leaf([[0.3, 0.0], [0.0, -0.1]])
    batch = Batch(
        [Rollout([], [], decisions, policy)], [torch.arange(2)], decisions, torch.ones(2, 2), decisions.loss_mask
    )
    batch = replace(batch, decisions=replace(decisions, log_probs=torch.zeros(2, 2)))
    tally = accumulate_gradients(
        policy,  # type: ignore
        batch,
        torch.ones(2).bool(),
        loss,
        micro_batch_size=1,
        accelerator=ALONE,
        on_policy=True,  # type: ignore
    )
    assert tally.ratio_gap == pytest.approx(math.exp(0.3) - 1)


@pytest.mark.parametrize(("objective", "more"), [("ppo", 2), ("gspo", 2), ("gspo_token", 2)])
def test_what_the_first_update_scored_is_kept_and_only_the_rest_is_scored_again(objective, more):
    """Two rows of the round are drawn, the third is replayed. The first update is on row 0; row 1 has two decisions."""
    present = [[0.3, 0.1], [-0.2, 0.2], [0.5, 0.5]]
    loss = LossRecipe.of(f"{objective}(low=0.1, high=0.1)", "per_decision", terms=["kl_k2(coef=1.0)"])
    policy, decisions = Leaf(present), plain([2, 2, 2], origin=[OWN, OWN, REPLAYED])
    ones = torch.ones(3, 2)
    batch = Batch([Rollout([], [], decisions, policy)], [torch.arange(3)], decisions, ones, decisions.loss_mask)
    settings = {"micro_batch_size": 1, "accelerator": ALONE}
    tally = accumulate_gradients(policy, batch, torch.tensor([True, False, False]), loss, on_policy=True, **settings)  # type: ignore
    before = policy.passes
    found = rescore(policy, batch, loss, tally, **settings)  # type: ignore
    assert policy.passes == before + more
    torch.testing.assert_close(found.decisions.log_probs, torch.tensor([*present[:2], [0.0, 0.0]]))
    assert not found.decisions.log_probs.requires_grad and batch.decisions.log_probs.eq(0).all()
    with torch.no_grad():
        policy.log_probs += torch.tensor([[0.05], [0.05], [0.0]])  # an update that raises both rows by 0.05  # type: ignore
    policy.log_probs.grad = None
    accumulate_gradients(policy, found, torch.tensor([False, True, False]), loss, on_policy=False, **settings)  # type: ignore
    kl = torch.tensor([-0.15, 0.25]) / 2
    # -A r / 2 with r = e^0.05, of a decision and of a row's mean alike; stored log-probs would give e^-0.15 and e^0.25.
    torch.testing.assert_close(policy.log_probs.grad[1] - kl, torch.tensor([-1.051271, -1.051271]) / 2)  # type: ignore


@pytest.mark.parametrize(
    ("objective", "limit"),
    [
        ("ppo", 0.2), ("ppo(low=0.2, high=0.28)", 0.2), ("ppo(low=1e-4, high=1e-3)", 1e-4), ("gspo", 3e-4),
        ("gmpo", 0.4), ("grpo_guard", 2e-6), ("cispo_cap", 4.0), ("cispo_band(low=1.0, high=3.0)", 3.0),
        ("regression_proximal(beta=1.0, clip=1e-4)", 1e-4), ("policy_gradient", math.inf), ("sapo", math.inf),
    ],
)  # fmt: skip
def test_the_clip_range_in_force_is_the_smaller_bound_of_the_objective(objective, limit):
    assert LossRecipe.of(objective, "per_decision").clip_range == pytest.approx(limit)


def tallied(present, advantages, loss: LossRecipe, origin: Tensor | None = None) -> tuple[dict[str, float], float]:
    """The sums of one step over rows whose old log-probabilities are 0, and the largest gap of a ratio from 1."""
    policy = Leaf(present)
    shape = policy.log_probs.shape
    everywhere, rows = torch.ones(shape, dtype=torch.bool), torch.arange(shape[0])
    numbers = torch.arange(everywhere.numel()).view(shape)
    origin = torch.full_like(rows, OWN) if origin is None else origin
    decisions = Decisions(torch.zeros(shape), everywhere, everywhere, numbers, origin, {"prompt": 0 * rows})
    wanted = torch.tensor(advantages)[:, None].expand(shape)
    batch = Batch([Rollout([], [], decisions, policy)], [rows], decisions, wanted, everywhere)
    tally = accumulate_gradients(
        policy, batch, torch.ones_like(rows, dtype=torch.bool), loss,  # type: ignore
        micro_batch_size=1, accelerator=ALONE, on_policy=False,
    )  # fmt: skip
    return dict(tally.sums), tally.ratio_gap


@pytest.mark.parametrize("objective", ["ppo", "gspo"])
def test_the_loss_its_terms_and_its_clips_are_summed_over_all_parts(objective):
    """Ratios 1.5, 0.5, 1.5 and 0.5 of rows with the advantages 1, -1, -1 and 1; clip range 0.2."""
    loss = LossRecipe.of(f"{objective}(low=0.2, high=0.2)", "per_decision", terms=["kl_k2(coef=2.0)"])
    up, down = torch.tensor([1.5, 0.5]).log().tolist()
    sums, gap = tallied([[up], [down], [up], [down]], [1.0, -1.0, -1.0, 1.0], loss)
    kl = 2.0 * (2 * up**2 / 2 + 2 * down**2 / 2) / 4
    # -1.2, 0.8, 1.5 and -0.5
    assert sums == {
        "loss": pytest.approx((-1.2 + 0.8 + 1.5 - 0.5) / 4 + kl),
        "term/kl_k2": pytest.approx(kl),
        "entries": 4,
        "clip/low": 1,
        "clip/high": 1,
    }
    assert gap == pytest.approx(0.5)


def test_reference_answers_count_neither_as_clipped_nor_as_off_the_sampler():
    loss, answers = LossRecipe.of("ppo(low=0.2, high=0.2)", "per_decision"), torch.tensor([OWN, REFERENCE])
    sums, gap = tallied([[0.0], [3.0]], [1.0, 1.0], loss, answers)
    assert (sums["entries"], sums["clip/high"], gap) == (1, 0, 0)
    assert tallied([[3.0]], [1.0], loss, answers[1:])[1] == 0, "nobody's own"


def test_only_decisions_with_a_gradient_are_scored_again_by_a_coupled_objective():
    loss = LossRecipe.of("gspo(low=0.1, high=0.1)", "per_decision")
    policy = Leaf([[0.5, 0.5], [0.0, 0.0]])
    [clipped, free] = slopes(policy, [1.0, 1.0], loss)
    assert clipped == [0, 0] and free == [-0.25, -0.25]
    assert policy.passes == 4 + 2


def test_what_a_loss_needs_is_known_before_a_run():
    def of(objective="ppo", aggregation="per_sample", **more) -> LossRecipe:
        return LossRecipe.of(objective, aggregation, **more)

    assert of().scores == {"log_probs"} and of().fields == frozenset() and not of().needs_reference
    assert of(terms=["kl_k3(coef=1)"]).needs_reference
    assert of(terms=["kl_k3(coef=1)"]).tallied[:4] == of().tallied[:4]
    assert of().tallied[:4] == ["loss", "entries", "clip/low", "clip/high"]
    assert "term/kl_k3" in of(terms=["kl_k3(coef=1)"]).tallied
    assert not of().coupled and of("gspo").coupled and of(terms=["kl_hinge(coef=1.0)"]).coupled
    assert not of(mismatch="tis(cap=2)").coupled and not of(mismatch="tis(cap=2)").factor_follows_policy
    masked = of(mismatch="off_policy_mask(delta=0.3)")
    assert masked.factor_follows_policy and masked.coupled
    plain = of()
    assert (plain.mismatch.text, plain.terms, plain.off_policy.text) == ("none", (), "importance")


@pytest.mark.parametrize("term", [[], ["kl_k2(coef=1.0)"]])
@pytest.mark.parametrize("answers", [False, True])
def test_before_the_first_update_nothing_is_taken_from_the_rollout_that_it_does_not_have(term, answers):
    """A score by another name, and the log-probabilities of reference answers, whose old ones are no policy's."""
    loss, old = LossRecipe.of("gspo(low=0.1, high=0.1)", "per_decision", terms=term), torch.zeros(2, 2)
    present = [[0.0, 0.0], [-1.0 * answers, -2.0 * answers]]
    origin = torch.tensor([OWN, REFERENCE if answers else OWN])
    first = slopes(Leaf(present), [1.0, -1.0], loss, old=old, origin=origin, on_policy=True)
    assert first == slopes(Leaf(present), [1.0, -1.0], loss, old=old, origin=origin)


class Narrow(Leaf):
    """Steps that are asked about their own decisions only, however many others of the step have."""

    def split(self, loss_mask: Tensor, limit: int) -> Iterator[Entries]:
        assert loss_mask.shape == self.log_probs.shape
        return super().split(loss_mask, limit)


def test_a_rollout_of_fewer_decisions_is_asked_about_its_own():
    wide, narrow = Narrow([[0.0, 0.0]]), Narrow([[0.0]])
    first, second = plain([2]), plain([1])
    second = replace(second, node=second.node + 2)
    whole = join_decisions([first, second])
    rollouts = [Rollout([], [], first, wide), Rollout([], [], second, narrow)]
    places = [torch.tensor([0]), torch.tensor([1])]
    batch = Batch(rollouts, places, whole, torch.ones(2, 2), whole.loss_mask)
    steps = {id(one): one for one in (wide, narrow)}

    class Both(Leaf):
        def score(self, rollout: Rollout, part: Entries, names: frozenset[str]) -> dict[str, Tensor]:
            return steps[id(rollout.steps)].score(rollout, part, names)

    for objective in ("policy_gradient", "gspo"):
        tally = accumulate_gradients(
            Both([[0.0]]), batch, torch.tensor([True, True]), LossRecipe.of(objective, "per_decision"),  # type: ignore
            micro_batch_size=1, accelerator=ALONE, on_policy=False,
        )  # fmt: skip
        assert tally.sums["entries"] == 3


def test_a_term_that_is_no_kl_counts_once_and_no_factor_of_the_kl_reaches_it():
    class Entropic(Leaf):
        def score(self, rollout: Rollout, part: Entries, names: frozenset[str]) -> dict[str, Tensor]:
            scores = super().score(rollout, part, names)
            return {**scores, "entropy": torch.full_like(scores["log_probs"], 2.0)}

    loss = LossRecipe.of("ppo", "per_decision", terms=["entropy_bonus(coef=0.5)"])
    decisions = replace(plain([1]), fields={"kl_weight": torch.full((1, 1), 7.0)})
    policy = Entropic([[0.0]])
    batch = Batch(
        [Rollout([], [], decisions, policy)], [torch.tensor([0])], decisions, torch.zeros(1, 1), decisions.loss_mask
    )
    tally = accumulate_gradients(
        policy,  # type: ignore
        batch,
        torch.tensor([True]),
        loss,
        micro_batch_size=1,
        accelerator=ALONE,
        on_policy=False,  # type: ignore
    )
    assert tally.sums["term/entropy_bonus"] == -1.0  # minus 0.5 times 2
