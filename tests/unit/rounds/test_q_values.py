"""B-Coder (arXiv:2310.03173): the policy as the advantages of a dueling Q, beside a value network."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmgrpo.advantages.gae import CREDITS, conservative_td, returns_of
from mmgrpo.config.registry import bind
from mmgrpo.objectives.origins import Supervision, likelihood
from mmgrpo.objectives.surrogates import advantage_regression
from mmgrpo.policies.token_passes import GREEDY_MARGIN
from mmgrpo.rounds.critic import Critic, recover_rewards
from mmgrpo.types import Prompt, Request
from tests.building import algorithm_blocks, attached, killed_and_whole, rounds_of, trainer
from tests.unit.policies.test_token_policy import PROMPTS, token_policy
from tests.unit.rounds.test_critic import MOVED, has_a

pytest.importorskip("transformers")

VALUE = torch.tensor([[0.5, 0.25, 0.75, 9.0]]).double()
AHEAD = torch.tensor([[0.0, -0.5, 0.0, 9.0]]).double()
OWN_GAP = torch.tensor([[-0.25, 0.0, -1.0, 9.0]]).double()
MASK = torch.tensor([[True, True, True, False]])
FIELDS = {"value": VALUE, "token_rewards": 0 * VALUE, "greedy_margin": AHEAD, "top_margin": OWN_GAP}


def run(folder, rule: str = "critic(lr=0.01, clip=inf, greedy=True)", **more: Any):
    blocks = algorithm_blocks("b_coder", networks=[rule], **more.pop("blocks", {}))
    policy = more.pop("policy", None) or token_policy(keep_reference=True)
    settings = {"reward": has_a, "steps": 4, "group_size": 4, "prompts_per_step": 3, "lr": 1e-2, **blocks, **more}
    return trainer(policy, folder, PROMPTS, **settings)


@pytest.mark.parametrize(
    ("alpha", "gamma", "wanted"),
    [
        (1.0, 1.0, [-0.75, 0.5, 0.25]),  # (.25 - .5) - .5, .75 - .25, 1 - .75
        (2.0, 0.5, [-0.875, 0.125, 0.25]),  # .5 (.25 - 1) - .5, .5 .75 - .25
    ],
)
def test_the_target_is_the_value_of_what_the_reference_would_do_next(alpha, gamma, wanted):
    given = {"stat": torch.tensor([True]), "node": torch.arange(4)[None], "decision_mask": MASK, **FIELDS}
    made = conservative_td(torch.tensor([1.0]).double(), **given, alpha=alpha, gamma=gamma)
    assert made[0].tolist() == pytest.approx([*wanted, 0.0])
    bound = bind(f"conservative_td(alpha={alpha}, gamma={gamma})", CREDITS, "c")
    target, where = returns_of(bound, torch.tensor([1.0]).double(), MASK, FIELDS, 1.0)
    learned = torch.tensor(wanted) + VALUE[0, :3] - alpha * OWN_GAP[0, :3]
    assert target[0, :3].tolist() == pytest.approx(learned.tolist()) and torch.equal(where, MASK)


def test_a_policy_learns_the_advantages_that_the_target_leaves_to_it():
    """z of two tokens: log p - max log p = z_y - max z, so the slope of the square is 2 (alpha gap - A) alpha."""
    logits = torch.tensor([[0.0, math.log(2.0)]], requires_grad=True)
    distribution = logits.log_softmax(-1)
    # with alpha 2: 2 (.5 - 2 ln 2) 2
    given = distribution[:, 0], distribution.max(-1).values, torch.tensor([-0.5])
    loss = advantage_regression(*given).values
    assert loss.tolist() == pytest.approx([(math.log(2) - 0.5) ** 2])
    (slope,) = torch.autograd.grad(loss.sum(), logits, retain_graph=True)
    assert slope[0].tolist() == pytest.approx([2 * (0.5 - math.log(2)), 2 * (math.log(2) - 0.5)])
    hot = advantage_regression(*given, alpha=2.0).values.sum()
    (slope,) = torch.autograd.grad(hot, logits, retain_graph=True)
    assert slope[0, 0].item() == pytest.approx(4 * (0.5 - 2 * math.log(2)))
    likeliest = advantage_regression(given[1], given[1], given[2]).values
    assert likeliest.tolist() == [0.25] and not torch.autograd.grad(likeliest.sum(), logits)[0].any()


def test_a_right_answer_is_to_have_the_advantage_0():
    inputs = {"log_probs": torch.tensor([0.25]).log(), "top_log_prob": torch.tensor([0.5]).log()}
    plain, gap = (float(likelihood(inputs, Supervision(0.5, gap=one))) for one in (0.0, 0.2))
    assert plain == pytest.approx(math.log(4)) and gap - plain == pytest.approx(0.2 * math.log(2))


def test_gaps_are_those_of_single_passes():
    """Below the present likeliest token: the token drawn, and the one that the reference finds likeliest."""
    policy = token_policy(keep_reference=True)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(MOVED * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    rollout = policy.rollout(Request(PROMPTS[:2], [0, 1], 4, 3))
    mask = rollout.decisions.decision_mask
    [part] = rollout.steps.split(mask, 99)
    found = policy.score(rollout, part, frozenset({"log_probs", "top_log_prob", GREEDY_MARGIN}))
    assert "reference.log_probs" not in found
    differing = 0
    for name in ("", "reference"):
        with policy.networks(name) as network, torch.no_grad():
            sequences: Any = rollout.steps
            states = policy.states(network, sequences, part.distinct)[part.inverse, part.positions]
            tables = policy._log_softmax(network, states, part.positions == 0, 1.0)
        if not name:
            present = tables
            assert torch.allclose(found["top_log_prob"], tables.max(-1).values)
    greedy = tables.argmax(-1)
    wanted = present.gather(1, greedy[:, None])[:, 0] - present.max(-1).values
    torch.testing.assert_close(found[GREEDY_MARGIN], wanted, rtol=0, atol=1e-6)
    differing = int((wanted < 0).sum())
    assert 0 < differing < len(wanted) and not found[GREEDY_MARGIN].requires_grad


def test_a_round_has_the_gradient_of_the_loss_and_its_critic_the_same_target(tmp_path):
    made = run(tmp_path, lr=0.0)
    seen: dict[str, torch.Tensor] = {}
    made.run_round()  # the head learns, so values are not 0
    rounds, critic = rounds_of(made), attached(made, Critic)
    made.optimizer.register_step_pre_hook(
        lambda *_: seen.update({name: one.grad.clone() for name, one in made.trained.items()})
    )
    made.run_round()
    [round_] = rounds
    decisions, [rollout] = round_.batch.decisions, round_.rollouts
    mask, policy = decisions.decision_mask, made.policy
    [part] = rollout.steps.split(mask, 99)
    scores = policy.score(rollout, part, frozenset({"log_probs", "top_log_prob", GREEDY_MARGIN}))
    gap, ahead, value = (torch.zeros(mask.shape) for _ in range(3))
    ahead[part.rows, part.positions] = scores[GREEDY_MARGIN]
    value[mask] = decisions.fields["value"][mask]
    assert value[mask].abs().min() > 0
    gap = gap.index_put((part.rows, part.positions), scores["log_probs"] - scores["top_log_prob"])
    total, targets = torch.zeros(()), torch.zeros(mask.shape)
    for row in range(len(mask)):
        length, own = int(mask[row].sum()), torch.zeros(())
        for t in range(length):
            last = t + 1 == length
            later = 0.0 if last else float(ahead[row, t + 1] + value[row, t + 1])
            target = float(round_.totals[row]) * last + later
            targets[row, t] = target - float(gap[row, t].detach())
            own = own + (target - gap[row, t] - value[row, t]).square() / length
        total = total + own / len(mask)
    total.backward()
    for name, one in made.trained.items():
        torch.testing.assert_close(seen[name], one.grad, rtol=0, atol=1e-5)
    _, learned, where = critic._targets(made, decisions)
    torch.testing.assert_close(learned[where], targets[mask], rtol=0, atol=1e-5)


def test_the_rewards_of_a_q_are_its_differences():
    mask = torch.tensor([[True, True, False]])
    advantage, value = torch.tensor([[0.0, -0.5, 9.0]]), torch.tensor([[0.5, 0.25, 9.0]])
    assert recover_rewards(advantage, value, mask, 1.0).tolist() == [0.0]
    assert recover_rewards(advantage, value, mask, 0.0).tolist() == [0.25]


def test_an_evaluation_keeps_the_candidates_of_the_largest_q(tmp_path):
    policy = token_policy(keep_reference=True)
    policy.evaluation_temperature = 1.0
    made = run(tmp_path, "critic(lr=0.05, clip=inf, greedy=True, candidates=3)", policy=policy)
    made.run_round()
    critic, request = attached(made, Critic), Request(PROMPTS[:2], [0, 1], 2, 5)
    drawn = policy.sample(replace(request, group_size=6))
    with critic.evaluated_weights():
        kept = policy.sample(request)
    assert policy.ranking is None and len(drawn) == 12 and len(kept) == 4
    assert critic.network.head is not None
    for place, prompt in enumerate(request.prompts):
        scores = []
        for output in drawn[place * 6 : place * 6 + 6]:
            record = {"ids": torch.tensor(output.ids), "loss_mask": torch.ones(len(output.ids)) > 0}
            rollout = policy.unpack([prompt], [record], [0], 0, replace(request, sampling={}))
            [part] = rollout.steps.split(rollout.decisions.decision_mask, 9)
            with torch.no_grad():
                of_policy = policy.score(rollout, part, frozenset({"log_probs", "top_log_prob"}))
                with policy.networks("critic"):
                    state = policy.score(rollout, part, frozenset({"hidden_state"}))["hidden_state"]
                first = float(critic.network.head(state)[0, 0])
            # with gamma 1 the values between cancel out
            scores.append(first + float((of_policy["log_probs"] - of_policy["top_log_prob"]).sum()))
        best = sorted(range(6), key=lambda n: -scores[n])[:2]
        assert [one.text for one in kept[place * 2 : place * 2 + 2]] == [drawn[place * 6 + n].text for n in best]


@pytest.mark.slow
def test_a_killed_run_goes_on_with_its_q(tmp_path):
    killed, whole = killed_and_whole(lambda folder: run(folder, save_every=1), tmp_path)
    assert killed == whole and "critic/loss" in whole[-1]


@pytest.mark.parametrize(
    ("rule", "blocks", "named"),
    [
        ("critic(lr=0.01)", {}, "conservative_td.*greedy="),
        ("critic(lr=0.01, greedy=True)", {"credit": "gae"}, "greedy=True.*conservative_td"),
        ("critic(lr=0.01, greedy=True, candidates=2)", {}, "candidates.*eval.temperature"),
    ],
)
def test_what_does_not_go_together_is_refused(rule, blocks, named, tmp_path):
    with pytest.raises(ValueError, match=named):
        run(tmp_path, rule, blocks=blocks)


def test_right_answers_join_by_their_likelihood_and_their_advantage(tmp_path):
    given = [Prompt("say d", "9", answer="d a b")]
    made = run(tmp_path, blocks={"supervised": "nll(coef=0.5, gap=0.2, count=1, complement=False)"}, given=given)
    assert "top_log_prob" in made.loss.scores
    made.run_round()
