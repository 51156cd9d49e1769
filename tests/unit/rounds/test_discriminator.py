"""Rewards that are learned from demonstrations: what they pay, what they learn, and that a run resumes with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.advantages.gae import last_of
from mmgrpo.rounds.discriminator import Discriminator, discriminator_loss, reward_of
from mmgrpo.rounds.rows import apart
from mmgrpo.rounds.values import HIDDEN
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.scoring import Scorer
from mmgrpo.trainer import Trainer
from mmgrpo.types import Output, Prompt
from pipelines.text.causal_lm import toy
from tests.building import algorithm_blocks, attached, killed_and_whole, rounds_of, token_policy_over, trainer

pytest.importorskip("transformers")

WORDS = ["say", "a", "b", "c", "is", "again"]
PROMPTS = [Prompt(f"say {word}", f"{word}{n}", answer=word, task=word) for n in range(4) for word in "abc"]
RULE = "discriminator(lr=0.01, reward='learned')"


def nothing(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[None]:
    return [None] * len(outputs)


def made(folder: Path, *rules: str, **settings: Any) -> Trainer:
    policy = token_policy_over(toy(WORDS, seed=3), max_tokens=3)
    changes, prompts = settings.pop("blocks", {}), settings.pop("prompts", PROMPTS)
    blocks = algorithm_blocks("dr_grpo", aggregation="per_sample", networks=[*rules] or [RULE], **changes)
    more: dict[str, Any] = {"prompts_per_step": 12, "group_size": 4, "steps": 4, "lr": 1e-3, **settings}
    return trainer(policy, folder, prompts, scorers=[Scorer("learned", nothing)], **more, **blocks)


def test_a_sample_earns_what_the_discriminator_fails_to_see():
    """D .8 and .5: -log D = .223144 and .693147 (StepAgent); the score itself (irl)."""
    score = torch.tensor([0.8, 0.5]).logit()
    assert reward_of(score, "gail").tolist() == pytest.approx([0.223144, 0.693147], abs=1e-6)
    assert reward_of(torch.tensor([2.0, -1.0]), "irl").tolist() == [2.0, -1.0]


def test_what_it_learns_and_the_slope():
    """gail: -log .8 and -log .2, slopes -(1 - .8) and .8; irl with beta .5: +-s / .5."""
    score = torch.tensor([0.8, 0.8]).logit().requires_grad_()
    own = torch.tensor([True, False])
    loss = discriminator_loss(score, own, "gail", 1.0)
    assert loss.tolist() == pytest.approx([0.223144, 1.609438], abs=1e-6)
    (slope,) = torch.autograd.grad(loss.sum(), score)
    assert slope.tolist() == pytest.approx([-0.2, 0.8])
    score = torch.tensor([2.0, 1.0], requires_grad=True)
    loss = discriminator_loss(score, own, "irl", 0.5)
    assert loss.tolist() == [4.0, -2.0] and torch.autograd.grad(loss.sum(), score)[0].tolist() == [2.0, -2.0]


@pytest.mark.parametrize("form", ["gail", "irl"])
def test_its_update_follows_the_gradient_over_samples_and_answers(form, tmp_path):
    run = made(tmp_path, f"discriminator(lr=0.01, reward='learned', form='{form}', beta=0.5)")
    run.run_round()
    model, kept = attached(run, Discriminator), list[Any]()
    learn = model.on_round_end
    model.on_round_end = lambda *given: kept.append(([*model.pairs], given))  # type: ignore[method-assign]
    rounds = rounds_of(run)
    run.run_round()
    [(pairs, given)] = kept
    rollout = rounds[0].rollouts[0]
    same = sum(output.text == prompt.answer for prompt, output in zip(rollout.prompts, rollout.outputs, strict=True))  # type: ignore[union-attr]
    assert len(pairs) == 2 * (48 - same) and [own for _, _, own in pairs] == [True, False] * (48 - same)
    assert 0 < same < 24  # what is the answer itself teaches nothing
    spelled = run.policy.model.spell  # type: ignore[attr-defined]
    assert all(record["ids"].tolist() == spelled(prompt.answer) for prompt, record, own in pairs if not own)
    unpacked = apart(run, [(prompt, record) for prompt, record, _ in pairs], model.network.name)
    networks, head = run.policy.networks, model.network.head
    assert head is not None
    with networks("discriminator"):
        total = torch.zeros(())
        for part in unpacked.steps.split(last_of(unpacked.decisions.decision_mask), 99):
            scores = head(run.policy.score(unpacked, part, HIDDEN)["hidden_state"].float())[:, 0]
            for row, score in zip(part.rows.tolist(), scores, strict=True):
                own = pairs[row][2]
                if form == "gail":
                    one = -(score.sigmoid() if own else 1 - score.sigmoid()).log()
                else:
                    one = (score if own else -score) / 0.5
                total = total + one / (len(pairs) / 2)
        total.backward()
        wanted = [p.grad.to_dense().clone() for p in networks.trained.values() if p.grad is not None]
    wanted += [p.grad.clone() for p in head.parameters() if p.grad is not None]
    for parameter in (*networks.trained.values(), *head.parameters()):
        parameter.grad = None
    found: list[torch.Tensor] = []
    for optimizer in (networks.optimizers["discriminator"], model.network.optimizer):
        assert optimizer is not None

        def step(optimizer: Any = optimizer) -> None:
            found.extend(p.grad.clone() for p in optimizer.param_groups[0]["params"] if p.grad.any())

        optimizer.step = step  # type: ignore[method-assign, assignment]
    model.pairs = pairs
    learn(*given)
    wanted = [one for one in wanted if one.any()]
    assert len(found) == len(wanted) and model.loss == pytest.approx(float(total.detach()), abs=1e-5)
    scale = torch.cat([one.flatten() for one in wanted]).norm() / torch.cat([one.flatten() for one in found]).norm()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one * scale, other, rtol=1e-3, atol=1e-5)


def test_rewards_are_by_the_discriminator_of_the_last_round(tmp_path):
    run = made(tmp_path)
    rounds = rounds_of(run)
    run.run_round()
    assert rounds[0].totals.tolist() == pytest.approx([0.693147] * 48)  # the head begins as 0
    run.run_round()
    assert float(rounds[1].totals.std()) > 0 and rounds[1].metrics["discriminator/loss"] == pytest.approx(2 * 0.693147)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["gail", "irl"])
def test_it_learns_to_tell_samples_from_answers(form, tmp_path):
    run = made(tmp_path, f"discriminator(lr=0.01, reward='learned', form='{form}', updates=4)", lr=0.0, steps=12)
    run.fit()
    fractions = [line["discriminator/right_fraction"] for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert fractions[0] == 0.5 and fractions[-1] > 0.6  # samples that are the answer look like it


def test_each_task_has_a_discriminator_of_its_own(tmp_path):
    rules = [f"discriminator(lr=0.01, reward='learned', form='irl', tasks=['{one}'], name='of_{one}')" for one in "abc"]
    run = made(tmp_path, *rules)
    seen: dict[str, set[str]] = {}
    for callback in run.callbacks:
        if isinstance(callback, Discriminator):
            learn = callback.on_round_end

            def watched(*given: Any, one: Any = callback, learn: Any = learn) -> None:
                seen[one.name] = {prompt.task for prompt, _, _ in one.pairs}
                learn(*given)

            callback.on_round_end = watched  # type: ignore[method-assign]
    rounds = rounds_of(run)
    for _ in range(2):
        run.run_round()
    assert seen == {f"of_{one}": {one} for one in "abc"}
    assert not bool(rounds[1].totals.isnan().any()) and float(rounds[1].totals.std()) > 0


def test_the_policy_waits_while_it_is_trained_before(tmp_path):
    run = made(tmp_path, "discriminator(lr=0.01, reward='learned', form='irl', warmup=2)")
    before, model = {name: one.detach().clone() for name, one in run.trained.items()}, attached(run, Discriminator)
    losses = []
    for moved in (False, False, True, True):
        run.run_round()
        losses.append(model.loss)
        assert any(not torch.equal(before[name], one) for name, one in run.trained.items()) is moved
    assert losses[0] != losses[1] == losses[2] == losses[3]


def test_the_answer_of_a_prompt_is_worth_what_it_says_of_it(tmp_path):
    """DR-IRL's gap to the demonstration: the column of the data set gives way to the learned reward."""
    prompts = [replace(one, meta={"reference_value": 0.0}) for one in PROMPTS]
    shape = ["dynamic_scaling(by='learned')"]
    run = made(
        tmp_path, "discriminator(lr=0.01, reward='learned', form='irl')", prompts=prompts, blocks={"shape": shape}
    )
    run.run_round()
    model = attached(run, Discriminator)
    records = [one[0] for one in run.policy.answers(PROMPTS)]  # type: ignore[attr-defined]
    answers = apart(run, list(zip(PROMPTS, records, strict=True)), model.network.name)
    wanted = model.network.of_rows(run, answers).tolist()
    rounds = rounds_of(run)
    run.run_round()
    decisions = rounds[0].batch.decisions
    number = decisions.fields["prompt_index"].long().tolist()
    found = decisions.fields["reference_value"].tolist()
    assert found == pytest.approx([wanted[one] for one in number], abs=1e-5) and len({*wanted}) > 1


@pytest.mark.slow
def test_a_killed_run_goes_on_with_it(tmp_path):
    killed, whole = killed_and_whole(lambda folder: made(folder, save_every=1), tmp_path)
    assert killed == whole and "discriminator/loss" in whole[-1]


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ("discriminator(lr=0.01, reward='no')", "'no'"),
        ("discriminator(lr=0.01, reward='learned', tasks=['d'])", "'d'"),
    ],
)
def test_what_it_cannot_do_is_refused(rule, named, tmp_path):
    with pytest.raises(ValueError, match=f"algorithm.networks.*discriminator.*{named}"):
        made(tmp_path, rule)
