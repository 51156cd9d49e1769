"""Rows with decisions of two kinds: a choice of a word, by which a flow then draws; J words a prompt, K draws each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmgrpo.advantages.estimate import estimate
from mmgrpo.config.conflicts import refuse_values
from mmgrpo.config.settings import DECLARED, DEFAULTS
from mmgrpo.policies.categorical import CategoricalPolicy
from mmgrpo.policies.joint import JointPolicy
from mmgrpo.rollout import Round, sample_round
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.runtime.optimizers import groups_of
from mmgrpo.types import Joint, Policy, Request, part_field
from mmgrpo.update import LossRecipe, accumulate_gradients
from tests.building import algorithm_blocks, killed_and_whole, near_one, trainer
from tests.speaking import TableModel
from tests.toys import toy_policy, toy_prompts

PROMPTS = toy_prompts(3)
PARTS = (
    "text(objective='ppo(low=0.01, high=0.01)', per='trace', keys=['prompt'], scale='group_std(ddof=1, eps=0)')",
    "image(objective='grpo_guard(clip=1e-3)', coef=0.5)",
)


def joint(count: int = 2, trained=(), seed: int = 0, **settings) -> JointPolicy:
    first = CategoricalPolicy(TableModel(5, 5, seed))
    rewrite = lambda prompt, text: replace(prompt, answer=int(text.text) / 5)  # noqa: E731
    return JointPolicy(first, toy_policy(steps=4, **settings), count=count, rewrite=rewrite, trained=trained)


def parted(*texts: str, **changes):
    return algorithm_blocks("grpo", parts=[*(texts or PARTS)], **changes)


def round_of(made) -> Round:
    given = made.policy, made.scorers, made.recipe, made.prompts, made.order, made.rounds
    return sample_round(*given, cursor=0, number=0, seed=0, accelerator=made.accelerator)


def gradient(made, batch, loss: LossRecipe, limit: int = 1000) -> torch.Tensor:
    made.policy.network.zero_grad()
    rows, settings = torch.ones(batch.decisions.rows, dtype=torch.bool), {"micro_batch_size": limit}
    accumulate_gradients(made.policy, batch, rows, loss, accelerator=made.accelerator, on_policy=False, **settings)
    return flat(made)


def flat(made) -> torch.Tensor:
    """The gradients of all parameters."""
    return torch.cat(
        [
            one.grad.flatten() if one.grad is not None else torch.zeros(one.numel())
            for one in made.policy.network.parameters()
        ]
    )


def test_rows_are_those_of_the_texts_and_a_text_is_trained_once():
    policy = joint()
    rolled = policy.rollout(Request(PROMPTS[:2], [4, 7], 6, seed=1))
    decisions = rolled.decisions
    assert isinstance(policy, Policy) and isinstance(policy, Joint) and policy.kind == "joint"
    assert decisions.keys["prompt"].tolist() == [4] * 6 + [7] * 6
    assert decisions.keys["trace"].tolist() == [8] * 3 + [9] * 3 + [14] * 3 + [15] * 3
    assert decisions.loss_mask[:, -1].tolist() == [True, False, False] * 4
    assert decisions.decision_mask[:, -1].all() and torch.equal(decisions.owned, decisions.loss_mask)
    assert (
        len({*decisions.node[:, -1].tolist()}) == 4
        and decisions.node[decisions.decision_mask].unique().numel() == 4 + 12 * 3
    )
    assert decisions.fields[part_field("text")].sum(0).tolist() == [0] * 4 + [12]
    assert [prompt.id for prompt in rolled.prompts] == ["0"] * 6 + ["1"] * 6  # rewards see the user's prompts


@pytest.mark.parametrize("trained", [(), ("text",), ("image",)])
def test_scores_are_those_of_the_rollout_in_parts_of_any_size(trained):
    policy = joint(trained=trained)
    rolled = policy.rollout(Request(PROMPTS, [0, 1, 2], 4, seed=1))
    for limit in (1, 5, 1000):
        dense = torch.full_like(rolled.decisions.log_probs, torch.nan)
        for part in rolled.steps.split(rolled.decisions.loss_mask, limit):
            dense[part.rows, part.positions] = policy.score(rolled, part, frozenset({"log_probs"}))[
                "log_probs"
            ].detach()
        mask = rolled.decisions.loss_mask
        assert torch.equal(dense.isnan(), ~mask)
        torch.testing.assert_close(dense[mask], rolled.decisions.log_probs[mask], rtol=0, atol=1e-5)
    assert rolled.decisions.log_probs.shape[1] == {(): 5, ("text",): 1, ("image",): 4}[trained]
    frozen = [
        one
        for name in {"text", "image"} - {*(trained or ("text", "image"))}
        for one in policy.network[name].parameters()
    ]
    assert not any(one.requires_grad for one in frozen)


def test_a_prompt_does_not_depend_on_its_neighbours():
    policy = joint()
    together = policy.rollout(Request(PROMPTS, [0, 1, 2], 4, seed=1))
    alone = policy.rollout(Request(PROMPTS[1:2], [1], 4, seed=1))
    assert torch.equal(together.decisions.log_probs[4:8], alone.decisions.log_probs)


def test_the_gradient_of_a_row_is_that_of_its_two_losses(tmp_path):
    """(n0 g0 + n1 g1) / n of a mean over all decisions, and the sum of losses with coef n0 / n and n1 / n."""
    made = trainer(joint(), tmp_path, PROMPTS, reward=near_one, loss=LossRecipe.of("ppo", "per_decision"))
    batch = round_of(made).batch
    with torch.no_grad():
        for parameter in made.policy.network.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    whole = gradient(made, batch, made.loss)
    counts = {name: int(batch.of_part(name).loss_mask.sum()) for name in ("text", "image")}
    apart = sum(counts[name] * gradient(made, batch.of_part(name), made.loss) for name in counts)
    n = sum(counts.values())
    assert counts == {"text": 4, "image": 24} and whole.abs().max() > 1e-3
    torch.testing.assert_close(whole, apart / n, rtol=0, atol=1e-7)
    parts = [f"{name}(coef={count / n!r})" for name, count in counts.items()]
    loss = LossRecipe.of("ppo", "per_decision", parts=parts)
    for limit in (1000, 3):
        torch.testing.assert_close(gradient(made, batch, loss, limit), whole, rtol=0, atol=1e-7)
    # Each part by its own objective, also one that reads scores which the other has not.
    both = parted()["loss"]
    alone = {part.name: gradient(made, batch.of_part(part.name), part.loss) for part in both.parts}
    torch.testing.assert_close(gradient(made, batch, both), alone["text"] + 0.5 * alone["image"], rtol=0, atol=1e-7)


def test_texts_are_compared_with_texts_by_the_means_of_their_images():
    """J 2, K 3: means .1703 and -.1710, so the texts' advantages are +-1 / sqrt 2 in place of +-.3003."""
    decisions = joint().rollout(Request(PROMPTS[:1], [0], 6, seed=1)).decisions
    values, valid = torch.tensor([[-0.743, 0.752, 0.502, 0.099, -0.460, -0.152]]).T, torch.ones(6, 1, dtype=torch.bool)
    plain = algorithm_blocks("grpo")["advantages"]
    rows = estimate(values, valid, torch.ones(1), decisions, plain, ["r"]).advantages
    result = estimate(values, valid, torch.ones(1), decisions, parted()["advantages"], ["r"])
    assert rows[0, 4].item() == pytest.approx(0.3003, abs=1e-3)
    assert result.advantages[:, 4].tolist() == pytest.approx([2**-0.5] * 3 + [-(2**-0.5)] * 3, abs=1e-5)
    assert torch.equal(result.advantages[:, :4], rows[:, :4]) and torch.equal(result.loss_mask, decisions.loss_mask)
    # Nothing depends on the order of a text's images.
    turned = estimate(values[[2, 0, 1, 5, 3, 4]], valid, torch.ones(1), decisions, parted()["advantages"], ["r"])
    torch.testing.assert_close(turned.advantages[:, 4], result.advantages[:, 4], rtol=0, atol=1e-6)


def test_a_reward_of_one_part_leaves_the_advantages_of_the_other():
    decisions = joint().rollout(Request(PROMPTS[:1], [0], 6, seed=1)).decisions
    values, valid = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), torch.ones(6, 2, dtype=torch.bool)
    recipe = parted("text(per='trace', weights={'a': 1})", "image(weights={'b': 2})")["advantages"]
    changed = values + torch.tensor([0.0, 1.0]) * torch.randn(6, 1, generator=torch.Generator().manual_seed(1))
    before, after = (estimate(one, valid, torch.ones(2), decisions, recipe, "ab") for one in (values, changed))
    assert torch.equal(before.advantages[:, 4], after.advantages[:, 4])
    assert not torch.allclose(before.advantages[:, :4], after.advantages[:, :4])
    valid[0, 0] = False  # the first image of the first text has no reward: it is out, and its text has two
    lost = estimate(values, valid, torch.ones(2), decisions, parted("text(per='trace')", "image")["advantages"], "ab")
    assert not lost.loss_mask[0, :4].any() and lost.loss_mask[0, 4]


def test_a_run_has_ratio_one_and_metrics_of_each_part_and_learns(tmp_path):
    made = trainer(
        joint(), tmp_path, PROMPTS, reward=near_one, steps=30, epochs=2, group_size=6, rates=["text=3"], **parted()
    )
    before = [one.detach().clone() for one in made.policy.network.parameters()]
    made.fit()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert lines[0]["ratio/first_minus_one"] < 1e-5 and lines[0]["text/ratio/max_minus_one"] < 1e-5
    for name in ("text", "image"):
        assert {f"{name}/{metric}" for metric in ("loss", "clip/low", "clip/high", "advantage")} <= lines[0].keys()
    assert any(line["text/clip/high"] + line["text/clip/low"] > 0 for line in lines[1::2])
    assert lines[0]["text/entropy"] > 0 and "text/entries" not in lines[0]
    assert lines[0]["loss"] == pytest.approx(lines[0]["text/loss"] + lines[0]["image/loss"], abs=1e-6)
    assert all(not torch.equal(a, b) for a, b in zip(before, made.policy.network.parameters(), strict=True))
    assert sum(line["reward/reward/mean"] for line in lines[-10:]) > sum(
        line["reward/reward/mean"] for line in lines[:10]
    )


def test_a_killed_run_resumes_with_the_same_numbers(tmp_path):
    def fresh(folder):
        return trainer(joint(), folder, PROMPTS, reward=near_one, save_every=1, rates=["text=3"], **parted())

    killed, whole = killed_and_whole(fresh, tmp_path)
    assert killed == whole


def test_what_is_no_part_is_refused_by_its_name(tmp_path):
    for texts, match in {
        ("text(per='trace')",): "image",  # nothing would train it
        ("text", "video"): "'video'.*text, image",
        ("text(per='branch')", "image"): "per of text.*'branch'",
        ("text(objectve='ppo')", "image"): "objectve.*objective",
        ("text(coef=-1)", "image"): "coef of text.*-1",
        ("text(weights={'other': 1})", "image"): "'other'",
        ("text(objective='grpo_guard')", "image"): "shift",
        ("text", "text"): "'text' twice",
    }.items():
        with pytest.raises(ValueError, match=match):
            trainer(joint(), tmp_path, PROMPTS, reward=near_one, **parted(*texts))
    with pytest.raises(ValueError, match="'text'.*one kind"):
        trainer(toy_policy(), tmp_path, PROMPTS, reward=near_one, **parted())
    with pytest.raises(ValueError, match="algorithm.parts.*optim.step"):
        refuse_values({**DEFAULTS, "algorithm.parts": ["text"], "optim.step": "sfpo(fast=3, alpha=0.8)"}, DECLARED)
    with pytest.raises(ValueError, match="data.group_size: got 5"):
        joint().rollout(Request(PROMPTS, [0, 1, 2], 5, seed=1))


def test_rates_of_parameters_are_factors_of_the_learning_rate():
    trained = dict(joint().network.named_parameters())
    groups = groups_of(trained, ["image.*bias=0.5", "text=0"])
    assert [(group["rate"], len(group["params"])) for group in groups] == [(0.5, 2), (0, 1), (1, 2)]
    for text, match in {
        "texts=2": "'texts'.*text",
        "text": "got 'text'",
        "text=-1": "text=-1",
        "text=inf": "inf",
    }.items():
        with pytest.raises(ValueError, match=f"optim.rates.*{match}"):
            groups_of(trained, [text])


def test_a_preset_of_both_parts_has_the_losses_of_its_source(tmp_path):
    """UniGRPO: PPO of the thought at 1e-2, GRPO-Guard of the image at 1e-6, and 1.5e-5 mean((v - v_ref)^2), which is
    all that is left of the image's loss without advantages."""
    made = trainer(joint(), tmp_path, PROMPTS, reward=near_one, **algorithm_blocks("unigrpo"))
    made.policy.keep_reference()
    batch = round_of(made).batch
    with torch.no_grad():
        for parameter in made.policy.network.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    parts = {name: batch.of_part(name) for name in ("text", "image")}
    alone = {
        name: gradient(made, parts[name], LossRecipe.of(objective, "per_sample"))
        for name, objective in {"text": "ppo(low=1e-2, high=1e-2)", "image": "grpo_guard(clip=1e-6)"}.items()
    }
    still = replace(batch, advantages=torch.zeros_like(batch.advantages))
    penalty = gradient(made, still, made.loss)
    torch.testing.assert_close(gradient(made, batch, made.loss), alone["text"] + alone["image"] + penalty)
    made.policy.network.zero_grad()
    [rollout], names = batch.rollouts, frozenset({"reference.velocity_gap"})
    pieces = rollout.steps.split(parts["image"].loss_mask, 1000)
    gaps = [made.policy.score(rollout, piece, names)["reference.velocity_gap"] for piece in pieces]
    value = 1.5e-5 * torch.cat(gaps).mean()  # every row has as many transitions
    value.backward()
    by_hand = flat(made)
    assert by_hand.abs().max() > 1e-9 and alone["text"].abs().max() > 1e-4
    torch.testing.assert_close(penalty, by_hand, rtol=1e-4, atol=1e-12)
