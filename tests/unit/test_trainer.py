import copy
import json
import math
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.rounds.interpolation import WeightInterpolation
from mmgrpo.types import Request
from mmgrpo.update import LossRecipe, accumulate_gradients, minibatches
from scripts.grpo_minimal import FlowPolicy, train
from tests.building import average_of, misses, near_one, recipe, trainer
from tests.toys import toy_policy, toy_prompts

OBJECTIVES = [
    "ppo(low=1e-3, high=1e-3)",
    "gspo(low=1e-3, high=1e-3)",
    "gmpo(clip=0.4)",
    "regression_group(beta=1.0)",
    "grpo_guard(clip=1e-3)",
    "flow_dppo(threshold=1e-5)",
]
PLANS = ["every_step", "random_subset(fraction=0.6)", "one_step_branch(draw='all')", "branch_tree(splits=[0,2])"]


def gradients(policy: DenoisingPolicy) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in policy.network.parameters()])


def judged_batch(made):
    """A round of the trainer, and the policy moved away from where it sampled, so ratios are not one."""
    from mmgrpo.rollout import sample_round

    batch = sample_round(
        made.policy,
        made.scorers,
        made.recipe,
        made.prompts,
        made.order,
        made.rounds,
        cursor=0,
        number=0,
        seed=0,
        accelerator=made.accelerator,
    ).batch
    with torch.no_grad():
        for parameter in made.policy.network.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return batch


def test_the_trainer_agrees_with_grpo_in_plain_loops(tmp_path):
    policy = toy_policy("every_step", steps=5)
    naive = copy.deepcopy(policy.network)
    made = trainer(
        policy,
        tmp_path,
        toy_prompts(3),
        reward=near_one,
        loss=LossRecipe.of("ppo(low=0.05, high=0.05)", "per_sample", terms=["kl_k3(coef=0.1)"]),
        steps=6,
        epochs=2,
    )
    rounds = [[made.prompts[i].answer for i in made.order.take(2 * r, 2)] for r in range(3)]
    made.fit()
    history = train(
        FlowPolicy((3, 1, 1), steps=5),
        naive,
        rounds,
        lambda prompt, pixels: -float((pixels - 1).square().mean()),
        group_size=4,
        epochs=2,
        lr=1e-2,
        clip=0.05,
        kl=0.1,
        seed=0,
    )
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["reward/reward/mean"] for line in lines[::2]] == pytest.approx(history, abs=1e-6)
    assert lines[1]["clip/low"] + lines[1]["clip/high"] > 0  # the second epoch is off-policy and clips
    for ours, theirs in zip(policy.network.parameters(), naive.parameters(), strict=True):
        # AdamW's first steps divide by |gradient|, which amplifies the last bits of small gradients.
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_cutting_a_step_into_parts_leaves_the_gradient_unchanged(objective, plan, tmp_path):
    made = trainer(
        toy_policy(plan, steps=6),
        tmp_path,
        toy_prompts(2),
        loss=LossRecipe.of(objective, "per_sample", terms=["kl_velocity(coef=0.1)"]),
    )
    batch = judged_batch(made)
    rows = torch.ones(len(batch.loss_mask), dtype=torch.bool)
    found = []
    for limit in (1000, 3):
        made.policy.network.zero_grad()
        accumulate_gradients(
            made.policy,
            batch,
            rows,
            made.loss,
            micro_batch_size=limit,
            accelerator=made.accelerator,
            on_policy=False,
        )
        found.append(gradients(made.policy))
    assert found[0].abs().max() > 1e-4
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-7 * float(found[0].abs().max()))


def test_a_coupled_objective_with_one_decision_a_row_has_the_gradient_of_the_elementwise_one(tmp_path):
    """The two ways through ``accumulate_gradients`` meet where a row has one decision: GSPO is PPO there."""
    found = []
    for objective in ("ppo(low=0.2, high=0.2)", "gspo(low=0.2, high=0.2)"):
        made = trainer(
            toy_policy("one_step_branch", steps=6),
            tmp_path,
            toy_prompts(2),
            loss=LossRecipe.of(objective, "per_sample"),
        )
        batch = judged_batch(made)
        made.policy.network.zero_grad()
        rows = torch.ones(len(batch.loss_mask), dtype=torch.bool)
        accumulate_gradients(
            made.policy, batch, rows, made.loss, micro_batch_size=100, accelerator=made.accelerator, on_policy=False
        )
        found.append(gradients(made.policy))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("plan", PLANS)
def test_the_ratio_is_one_before_the_first_update(plan, tmp_path):
    trainer(toy_policy(plan, steps=6), tmp_path, toy_prompts(2), steps=2).fit()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(line["ratio/first_minus_one"] <= 5e-7 for line in lines)


@pytest.mark.parametrize(
    ("objective", "gap", "warned"),
    [
        ("ppo(low=0.2, high=0.2)", 0.25, True),
        ("ppo(low=0.2, high=0.2)", -0.5, True),
        ("ppo(low=0.2, high=0.2)", 1.5e-3, False),
        ("ppo(low=1e-3, high=1e-3)", 1.5e-3, True),
        ("ppo(low=1e-3, high=1e-3)", 4e-4, False),
        ("policy_gradient", 1.5e-3, False),
        ("policy_gradient", 0.25, True),
    ],
)
def test_a_trainer_that_is_off_its_sampler_reports_by_how_much_and_warns(objective, gap, warned, tmp_path, monkeypatch):
    """Present log-probs that are log(1 + gap) above those of the rollout make every ratio 1 + gap. What that means is
    measured by the clip range in force."""
    policy = toy_policy(steps=6)
    score = DenoisingPolicy.score
    monkeypatch.setattr(
        DenoisingPolicy,
        "score",
        lambda self, *given: {
            name: value + math.log1p(gap) if name == "log_probs" else value
            for name, value in score(self, *given).items()
        },
    )
    made = trainer(policy, tmp_path, toy_prompts(2), steps=2, epochs=2, loss=LossRecipe.of(objective, "per_sample"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made.run_round()
    assert sum("ratio/first_minus_one" in str(one.message) for one in caught) == warned
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    # The second epoch has moved on, and repeats what was found before the first update.
    assert [line["ratio/first_minus_one"] for line in lines] == [pytest.approx(abs(gap), abs=1e-6)] * 2


@pytest.mark.parametrize("plan", ["every_step", "branch_tree(splits=[0,2])"])
@pytest.mark.parametrize("objective", ["ppo(low=1e-3, high=1e-3)", "gspo(low=1e-3, high=1e-3)"])
def test_further_updates_of_a_round_compare_with_log_probs_of_training(objective, plan, tmp_path, monkeypatch):
    """Training computes log-probs that are log(1.25) above those of sampling: no ratio of two of training's holds it,
    so four updates of a round leave the same weights as without it."""
    score, weights, gap = DenoisingPolicy.score, [], 0.0

    def shifted(self, *given):
        return {n: v + math.log1p(gap) if n == "log_probs" else v for n, v in score(self, *given).items()}

    monkeypatch.setattr(DenoisingPolicy, "score", shifted)
    for gap in (0.0, 0.25):
        made = trainer(
            toy_policy(plan, steps=6), tmp_path / str(gap), toy_prompts(2),
            steps=4, epochs=2, updates=2, loss=LossRecipe.of(objective, "per_sample"),
        )  # fmt: skip
        made.record.warned_of_gap = True
        made.run_round()
        weights.append(torch.cat([p.detach().flatten() for p in made.policy.network.parameters()]))
        lines = [json.loads(line) for line in (tmp_path / str(gap) / "metrics.jsonl").read_text().splitlines()]
        assert lines[-1]["clip/low"] + lines[-1]["clip/high"] > 0
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=1e-5)


def test_minibatches_hold_whole_groups_and_every_group_once(tmp_path):
    made = trainer(toy_policy(), tmp_path, toy_prompts(5), prompts_per_step=5, updates=2)
    batch = judged_batch(made)
    key = batch.decisions.keys["prompt"]
    parts = minibatches(key, 2, torch.Generator())
    assert sum(part.long() for part in parts).eq(1).all()
    for part in parts:
        assert all(part[key == group].all() or not part[key == group].any() for group in key.unique())


@pytest.mark.learning
def test_a_flow_learns_a_known_answer_in_seconds(tmp_path):
    made = trainer(
        toy_policy("every_step", steps=6),
        tmp_path,
        toy_prompts(4),
        reward=near_one,
        heldout=toy_prompts(4),
        loss=LossRecipe.of("ppo(low=1e-2, high=1e-2)", "per_sample"),
        prompts_per_step=4,
        group_size=8,
        steps=60,
        lr=1e-2,
    )
    result = made.fit()["eval"]
    # A perfect policy scores 0; the untrained one is more than a unit away.
    assert result["before"]["reward"]["mean"] < -1
    assert result["after"]["reward"]["mean"] > -0.45


def test_everything_that_cannot_work_is_refused_at_the_start(tmp_path):
    with pytest.raises(ValueError, match="group_size 1.*2"):
        trainer(toy_policy(), tmp_path, toy_prompts(2), group_size=1)
    with pytest.raises(ValueError, match="entropy"):
        trainer(
            toy_policy(),
            tmp_path,
            toy_prompts(2),
            loss=LossRecipe.of("ppo", "per_sample", terms=["entropy_bonus(coef=0.1)"]),
        )
    with pytest.raises(ValueError, match="record.*truncated|truncated.*record"):
        trainer(toy_policy(), tmp_path, toy_prompts(2), advantages=recipe(select=["drop_truncated"]))
    with pytest.raises(ValueError, match="round.*2.*optim.updates=3"):
        trainer(toy_policy(), tmp_path, toy_prompts(2), updates=3).fit()


def test_a_reward_that_returns_too_few_values_stops_the_run_by_name(tmp_path):
    with pytest.raises(ValueError, match="'reward'.*1.*8"):
        trainer(toy_policy(), tmp_path, toy_prompts(2), reward=lambda prompts, outputs: [1.0]).fit()


def test_a_reward_that_raises_stops_the_run_by_name(tmp_path):
    def broken(prompts, outputs):
        raise OSError("server gone")

    with pytest.raises(RuntimeError, match="'reward'.*batch.*8.*server gone"):
        trainer(toy_policy(), tmp_path, toy_prompts(2), reward=broken).fit()


def test_a_value_that_is_nan_is_counted_and_its_sample_is_not_trained(tmp_path):
    def sometimes(prompts, outputs):
        return [math.nan if i == 2 else float(output.pixels[0]) for i, output in enumerate(outputs)]

    made = trainer(toy_policy(), tmp_path, toy_prompts(2), reward=sometimes, steps=1)
    batch = judged_batch(made)
    assert not batch.loss_mask[2].any() and batch.loss_mask[[0, 1, 3]].any(1).all()
    made.fit()
    (line,) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert line["reward/reward/failed"] == 1


def test_a_reward_that_scores_nothing_stops_the_run(tmp_path):
    with pytest.raises(RuntimeError, match="8 outputs"):
        trainer(toy_policy(), tmp_path, toy_prompts(2), reward=lambda prompts, outputs: [math.nan] * len(outputs)).fit()


def test_rounds_without_spread_are_skipped_visibly_and_leave_the_weights_alone(tmp_path):
    policy = toy_policy()
    before = copy.deepcopy(policy.network.state_dict())
    made = trainer(
        policy,
        tmp_path,
        toy_prompts(2),
        reward=lambda prompts, outputs: [1.0] * len(outputs),
        advantages=recipe(select=["drop_zero_spread"]),
        steps=3,
    )
    score, asked = policy.score, []
    policy.score = lambda *arguments: asked.append(0) or score(*arguments)
    made.fit()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert (
        (made.skipped, made.nonfinite_steps) == (3, 0)
        and [line["skipped"] for line in lines] == [1, 1, 1]
        and asked == []
    )
    assert [parameter.grad for parameter in made.trained.values()] == [None] * len(made.trained)
    assert [line["group/zero_std_fraction"] for line in lines] == [1, 1, 1]
    assert all(torch.equal(value, before[name]) for name, value in policy.network.state_dict().items())


def test_groups_without_spread_are_replaced_by_fresh_prompts(tmp_path):
    """Prompts 0 and 1 give constant rewards, 2 and 3 do not; a round asks for two groups."""

    def half(prompts, outputs):
        return [float(o.pixels[0]) if p.id in "23" else 1.0 for p, o in zip(prompts, outputs, strict=True)]

    made = trainer(
        toy_policy(),
        tmp_path,
        toy_prompts(4),
        reward=half,
        advantages=recipe(select=["drop_zero_spread"]),
        redraws=5,
    )
    batch = judged_batch(made)
    groups = batch.decisions.keys["prompt"][batch.loss_mask.any(1)].unique()
    assert len(groups) == 2
    assert len(batch.rollouts) > 1 or made.order.take(0, 2) in ([2, 3], [3, 2])


def test_the_average_of_the_weights_is_what_evaluation_uses_and_training_does_not(tmp_path):
    policy = toy_policy()
    made = trainer(policy, tmp_path, toy_prompts(2), ema=0.9, steps=3)
    made.fit()
    trained = policy.network.outer.bias.detach().clone()
    with average_of(made).apply():
        assert not torch.equal(policy.network.outer.bias, trained)
    assert torch.equal(policy.network.outer.bias, trained)


@pytest.mark.parametrize("settings", [{"interpolation": 0.25}, {"interpolation": 0.25, "ema": 0.9}])
def test_a_share_of_the_change_is_what_is_evaluated_and_saved_and_not_what_is_trained(settings, tmp_path):
    policy = toy_policy()
    before = policy.network.outer.bias.detach().clone()
    made = trainer(policy, tmp_path, toy_prompts(2), steps=3, **settings)
    plain = trainer(toy_policy(), tmp_path / "plain", toy_prompts(2), steps=3, **{**settings, "interpolation": 1.0})
    made.fit(), plain.fit()
    trained = policy.network.outer.bias.detach().clone()
    assert torch.equal(trained, plain.policy.network.outer.bias)
    with plain.callbacks.evaluated_weights():
        whole = plain.policy.network.outer.bias - before
    with made.callbacks.evaluated_weights():
        assert torch.allclose(policy.network.outer.bias - before, whole / 4, atol=1e-7) and whole.abs().max() > 1e-3
    assert torch.equal(policy.network.outer.bias, trained)


def test_the_share_of_adapters_is_one_of_their_product():
    a, b = nn.Parameter(torch.tensor([[2.0, 0.0]])), nn.Parameter(torch.zeros(2, 1))
    interpolation = WeightInterpolation({"q.lora_A.default.weight": a, "q.lora_B.default.weight": b}, 0.5)
    with torch.no_grad():
        a.copy_(torch.tensor([[4.0, 1.0]]))
        b.copy_(torch.tensor([[1.0], [2.0]]))
    with interpolation.apply():
        assert (b @ a).tolist() == [[2, 0.5], [4, 1]]
    assert (b @ a).tolist() == [[4, 1], [8, 2]]


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_a_share_of_nothing_or_of_more_than_all_is_refused(share, tmp_path):
    with pytest.raises(ValueError, match=r"optim\.interpolation.*0, 1"):
        trainer(toy_policy(), tmp_path, toy_prompts(2), interpolation=share)


def test_a_resumed_run_writes_the_metrics_of_an_uninterrupted_one(tmp_path):
    def fresh(folder):
        return trainer(
            toy_policy("random_window(size=2)"),
            folder,
            toy_prompts(5),
            heldout=toy_prompts(2),
            extra={"further": toy_prompts(3)},
            error_rates=[misses()],
            steps=9,
            updates=2,
            ema=0.8,
            interpolation=0.5,
            save_every=2,
            warmup=3,
            decay="cosine",
        )

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = fresh(whole).fit()
    killed = fresh(broken)
    killed._evaluate_before()
    killed.run_round()
    killed.run_round()
    killed.save()
    killed.run_round()  # not saved: as if killed here, with metrics already written
    resumed = fresh(broken)
    assert resumed.resume() and resumed.step == 4
    assert resumed.fit() == expected
    assert (
        expected["extra"]["further"]["difference"]["reward"]["n"] == expected["miss"]["further"]["difference"]["n"] == 3
    )
    assert [told(line) for line in lines_of(broken)] == [told(line) for line in lines_of(whole)]


def test_rewards_are_reported_by_the_values_of_a_column(tmp_path):
    heldout = [replace(prompt, meta={"kind": "ab"[number % 2]}) for number, prompt in enumerate(toy_prompts(3))]
    made = trainer(toy_policy(), tmp_path, toy_prompts(2), heldout=heldout, columns=["kind", "voice"], steps=1)
    groups = made.fit()["groups"]
    assert groups.keys() == {"kind"}
    assert {kind: one["after"]["reward"]["n"] for kind, one in groups["kind"].items()} == {"a": 2, "b": 1}


def test_a_resumed_run_whose_first_evaluation_is_gone_is_refused(tmp_path):
    made = trainer(toy_policy(), tmp_path, toy_prompts(2), heldout=toy_prompts(1), extra={"b": toy_prompts(1)}, steps=1)
    made.fit()
    (tmp_path / "evaluations" / "before-b.json").unlink()
    assert made.resume()
    with pytest.raises(FileNotFoundError, match="before-b.json.*step 1"):
        made.fit()


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def told(line):
    """What must repeat: everything but times and memory."""
    return {k: v for k, v in line.items() if not k.startswith("time/") and k not in ("seconds", "memory")}


def test_a_checkpoint_of_another_seed_is_refused(tmp_path):
    made = trainer(toy_policy(), tmp_path, toy_prompts(2), steps=1)
    made.fit()
    with pytest.raises(ValueError, match="--seed 1.*0"):
        trainer(toy_policy(), tmp_path, toy_prompts(2), seed=1).resume()


def test_the_evaluation_seed_gives_the_same_noise_before_and_after(tmp_path):
    policy = toy_policy()
    request = Request(toy_prompts(2), [0, 1], 3, seed=7)
    first, second = policy.sample(request), policy.sample(request)
    assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(first, second, strict=True))
