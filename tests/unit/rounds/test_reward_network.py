"""A reward model beside the policy: what it pays, which pairs it learns, and that a run resumes with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.advantages.gae import last_of
from mmgrpo.rounds.reward_network import RewardModel, pair_loss
from mmgrpo.rounds.rows import apart, without_log_probs
from mmgrpo.rounds.values import HIDDEN
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.scoring import Scorer
from mmgrpo.trainer import Trainer
from mmgrpo.types import Output, Prompt
from pipelines.text.causal_lm import toy
from tests.building import algorithm_blocks, attached, killed_and_whole, rounds_of, token_policy_over, trainer

pytest.importorskip("transformers")

PROMPTS = [Prompt(f"say {word}", f"{word}{n}", answer=word) for n in range(8) for word in "abc"]
WORDS = ["say", "a", "b", "c", "is", "again"]
RULE = "reward_model(lr=0.01, reward='learned', rule='rule', text=' is {answer}', rewrite=' {sample} again')"


def nothing(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[None]:
    return [None] * len(outputs)


def begins(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Reward: the text begins with the prompt's answer."""
    return [float(o.text.startswith(str(p.answer))) for p, o in zip(prompts, outputs, strict=True)]  # type: ignore[union-attr]


def made(folder: Path, rule: str = RULE, **settings: Any) -> Trainer:
    policy = token_policy_over(toy(WORDS, seed=3), max_tokens=3)
    scorers = [Scorer("learned", nothing), Scorer("rule", begins, weight=0.0)]
    blocks = algorithm_blocks("dr_grpo", aggregation="per_sample", networks=[rule])
    more: dict[str, Any] = {"prompts_per_step": 24, "group_size": 8, "steps": 4, "lr": 1e-3, **settings}
    return trainer(policy, folder, PROMPTS, scorers=scorers, **more, **blocks)


def test_the_loss_of_a_pair_is_that_of_bradley_and_terry():
    """-ln sigma(1) = ln(1 + 1/e) = .313262, -ln sigma(0) = ln 2; its slope is -sigma(-gap): -.268941 and -.5."""
    gap = torch.tensor([1.0, 0.0], requires_grad=True)
    loss = pair_loss(gap)
    torch.testing.assert_close(loss, torch.tensor([0.313262, 0.693147]), rtol=0, atol=1e-6)
    loss.sum().backward()
    torch.testing.assert_close(gap.grad, torch.tensor([-0.268941, -0.5]), rtol=0, atol=1e-6)


def test_a_row_is_read_at_its_last_decision():
    mask = torch.tensor([[True, True, False], [False, True, True], [False, False, False]])
    assert last_of(mask).nonzero().tolist() == [[0, 1], [1, 2]]


def test_pairs_are_the_first_right_sample_and_a_wrong_rewrite(tmp_path):
    run = made(tmp_path)
    model, pairs = attached(run, RewardModel), list[Any]()
    learn = model.on_round_end

    def seen(*given: Any) -> None:
        pairs.extend(model.pairs)
        learn(*given)

    model.on_round_end = seen  # type: ignore[method-assign]
    rounds = rounds_of(run)
    run.run_round()
    rollout, policy = rounds[0].rollouts[0], run.policy
    rights = {}
    for row, (prompt, output) in enumerate(zip(rollout.prompts, rollout.outputs, strict=True)):
        if begins([prompt], [output]) == [1.0]:
            rights.setdefault(prompt.id, row)
    assert pairs and {prompt.id for prompt, _, _ in pairs} <= rights.keys()
    for prompt, positive, negative in pairs:
        assert prompt.text == f"say {prompt.answer} is {prompt.answer}"
        [first] = policy.pack(rollout, [rights[prompt.id]])  # type: ignore[attr-defined]
        assert torch.equal(positive["ids"], first["ids"]) and "log_probs" not in positive
        said = policy.model.tokenizer.decode(negative["ids"].tolist())  # type: ignore[attr-defined]
        assert not said.startswith(str(prompt.answer)) and not bool(negative["truncated"])
    metrics = rounds[0].metrics
    assert metrics["reward_model/pairs"] == len(pairs) and not model.pairs
    assert rounds[0].totals.tolist() == [0.5] * 192  # the head begins as 0
    assert model.loss == pytest.approx(math.log(2))
    assert rounds[0].batch.decisions.rows == 192, "rewritten samples are no rows"


def test_the_update_follows_the_gradient_of_the_mean_loss_over_pairs(tmp_path):
    run = made(tmp_path)
    run.run_round()
    model, kept = attached(run, RewardModel), list[Any]()
    learn = model.on_round_end
    model.on_round_end = lambda *given: kept.append((list(model.pairs), given))  # type: ignore[method-assign]
    run.run_round()
    [(pairs, given)] = kept
    assert len(pairs) > 1
    rollout = apart(run, [(prompt, record) for prompt, *both in pairs for record in both], model.network.name)  # type: ignore[arg-type]
    networks, head = run.policy.networks, model.network.head
    assert head is not None
    scores = torch.zeros(rollout.decisions.rows)
    with networks("reward_model") as network:
        for part in rollout.steps.split(last_of(rollout.decisions.decision_mask), 64):
            state = run.policy.score(rollout, part, HIDDEN)["hidden_state"]
            scores = scores.index_put((part.rows,), head(state.float())[:, 0])
        loss = pair_loss(scores[0::2] - scores[1::2]).mean()
        loss.backward()
        wanted = [p.grad.to_dense().clone() for p in networks.trained.values() if p.grad is not None]
        assert network is not None and wanted
    of_head = [p.grad.clone() for p in head.parameters() if p.grad is not None]
    for parameter in (*networks.trained.values(), *head.parameters()):
        parameter.grad = None
    found: list[torch.Tensor] = []
    optimizers = (networks.optimizers["reward_model"], model.network.optimizer)
    for optimizer in optimizers:
        assert optimizer is not None

        def step(optimizer: Any = optimizer) -> None:
            found.extend(p.grad.clone() for p in optimizer.param_groups[0]["params"] if p.grad.any())

        optimizer.step = step  # type: ignore[method-assign, assignment]
    model.pairs = pairs
    learn(*given)
    wanted = [one for one in (*wanted, *of_head) if one.any()]
    assert len(found) == len(wanted) and model.loss == pytest.approx(float(loss.detach()), abs=1e-6)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_reward_of_a_round_is_by_the_model_of_the_last(tmp_path):
    run = made(tmp_path)
    model, rounds = attached(run, RewardModel), rounds_of(run)
    run.run_round()
    rows = rounds[0].rollouts[0]
    records = run.policy.pack(rows, range(8))  # type: ignore[attr-defined]
    read = [(model._read(rows.prompts[row]), without_log_probs(record)) for row, record in enumerate(records)]
    before = model.network.of_rows(run, apart(run, read, model.network.name))
    assert rounds[0].metrics["reward_model/loss"] == 0 and bool((before != 0).any())  # it has learned since
    for _ in range(2):
        own, kept = [run.policy.rollout], list[torch.Tensor]()

        def drawn(request: Any, own: Any = own, kept: Any = kept) -> Any:
            made_now = own[0](request)
            if not kept:
                made_rows = range(made_now.decisions.rows)
                packed = zip(made_rows, run.policy.pack(made_now, made_rows), strict=True)  # type: ignore[attr-defined]
                pairs = [(model._read(made_now.prompts[row]), without_log_probs(record)) for row, record in packed]
                kept.append(model.network.of_rows(run, apart(run, pairs, model.network.name)).sigmoid())
            return made_now

        run.policy.rollout = drawn  # type: ignore[method-assign]
        run.run_round()
        run.policy.rollout = own[0]  # type: ignore[method-assign]
        torch.testing.assert_close(rounds[-1].totals, kept[0], rtol=0, atol=1e-5)
    assert rounds[1].metrics["reward_model/loss"] == pytest.approx(math.log(2))
    assert rounds[1].totals.unique().numel() > 1 and bool(rounds[1].batch.loss_mask.any())


def test_pairs_that_are_learned_again_and_again_are_told_apart(tmp_path):
    run = made(tmp_path, RULE.replace("text=", "updates=25, text="))
    model = attached(run, RewardModel)
    run.run_round()
    assert 0 < model.loss < 0.2


def test_a_hard_reward_is_one_or_none(tmp_path):
    run = made(tmp_path, RULE.replace("text=", "hard=True, text="))
    rounds = rounds_of(run)
    for _ in range(2):
        run.run_round()
    assert {*rounds[1].totals.tolist()} <= {0.0, 1.0}


def test_without_a_right_sample_there_is_no_pair_and_nothing_is_learned(tmp_path):
    run = made(tmp_path, RULE.replace("text=", "above=2, text="))
    before = {name: value.clone() for name, value in run.policy.networks.values["reward_model"].items()}
    rounds = rounds_of(run)
    run.run_round()
    assert rounds[0].metrics["reward_model/pairs"] == 0
    after = run.policy.networks.values["reward_model"]
    assert all(torch.equal(value, after[name]) for name, value in before.items())


@pytest.mark.parametrize(("change", "named"), [("learned", "absent"), ("rule", "absent")])
def test_a_reward_that_is_none_of_the_run_is_named(change, named, tmp_path):
    with pytest.raises(ValueError, match=rf"algorithm\.networks.*{named}"):
        made(tmp_path, RULE.replace(f"='{change}'", f"='{named}'"))


def test_a_network_that_the_run_has_not_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"algorithm\.networks.*olden"):
        made(tmp_path, RULE.replace("text=", "by='olden', text="))


@pytest.mark.slow
@pytest.mark.rows
def test_a_run_with_a_reward_model_that_is_killed_goes_on_exactly(tmp_path):
    killed, whole = killed_and_whole(lambda folder: made(folder), tmp_path)
    assert killed == whole and len(whole) == 4
    assert whole[-1]["reward_model/loss"] != whole[1]["reward_model/loss"]
    assert read_metrics(tmp_path / "whole" / "metrics.jsonl")
