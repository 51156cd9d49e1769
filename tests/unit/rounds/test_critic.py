"""A value network beside a policy: what it learns, when the policy waits for it, and that a run resumes with it."""

from __future__ import annotations

from copy import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mmgrpo.advantages.select import soft_means
from mmgrpo.rounds.critic import Critic, value_error
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.types import OWN, Prompt
from tests.building import algorithm_blocks, attached, killed_and_whole, rounds_of, trainer
from tests.unit.policies.test_token_policy import PROMPTS, token_policy

pytest.importorskip("transformers")


MOVED = 0.05
"""Added to a weight, so the policy is not its reference."""


def of_prompt(prompts, outputs) -> list[float]:
    """Reward: known from the prompt alone, so it is the value of every decision."""
    return [float(prompt.id) for prompt in prompts]


def has_a(prompts, outputs) -> list[float]:
    return [float("a" in output.text.split()) for output in outputs]


def run(folder, rule: str = "critic(lr=0.01)", preset: str = "ppo", **more):
    supervised = more.pop("supervised", "none")
    blocks = algorithm_blocks(preset, networks=[rule], supervised=supervised, **more.pop("blocks", {}))
    policy = more.pop("policy", None) or token_policy()
    settings = {"reward": has_a, "steps": 4, "group_size": 4, "prompts_per_step": 3, "lr": 1e-2, **blocks, **more}
    return trainer(policy, folder, PROMPTS, **settings)


def test_the_error_of_a_value_is_clipped_as_its_formula_says():
    value = torch.tensor([0.5, 0.5], requires_grad=True)
    error = value_error(value, torch.zeros(2), torch.tensor([1.0, 0.0]), 0.2)
    assert error.tolist() == pytest.approx([0.32, 0.125])
    error.sum().backward()
    assert value.grad.tolist() == pytest.approx([0.0, 0.5])  # the first pulls no further
    free = value_error(value, torch.zeros(2), torch.tensor([1.0, 0.0]), float("inf"))
    assert free.tolist() == pytest.approx([0.125, 0.125])


def test_values_are_those_before_a_rounds_learning_and_returns_its_rewards(tmp_path):
    made = run(tmp_path, "critic(lr=0.01, lam=1.0)", reward=of_prompt)
    rounds = rounds_of(made)
    made.run_round()
    made.run_round()
    first, second = rounds
    mask = first.batch.decisions.decision_mask
    assert not first.batch.decisions.fields["value"].any()  # the head begins as 0
    assert second.batch.decisions.fields["value"][second.batch.decisions.decision_mask].abs().min() > 0
    _, target, entries = attached(made, Critic)._targets(made, second.batch.decisions)
    wanted = second.totals[:, None].expand_as(target)
    assert torch.equal(entries, second.batch.decisions.decision_mask)
    assert target[entries].tolist() == pytest.approx(wanted[entries].tolist(), abs=1e-5)
    assert mask.any() and (first.batch.decisions.origin == OWN).all()


@pytest.mark.slow
def test_a_critic_learns_what_the_prompt_tells_and_the_variance_of_advantages_falls(tmp_path):
    """Rewards 0, 1 and 2 of three prompts: a perfect critic leaves no advantage."""
    made = run(tmp_path, "critic(lr=0.02, updates=8, clip=inf)", reward=of_prompt, steps=12, lr=0.0)
    rounds = rounds_of(made)
    made.fit()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert lines[0]["critic/explained_variance"] == 0 and lines[-1]["critic/explained_variance"] > 0.9
    errors = [
        float(
            (one.totals[:, None] - one.batch.decisions.fields["value"])[one.batch.decisions.decision_mask]
            .square()
            .mean()
        )
        for one in (rounds[0], rounds[-1])
    ]
    assert errors[1] < 0.1 * errors[0]


def test_its_first_update_is_a_naive_regression_of_its_head(tmp_path):
    """With a frozen trunk's states, one AdamW step of a zero head on the returns."""
    made = run(tmp_path, "critic(lr=0.01, lam=1.0)")
    rounds = rounds_of(made)
    made.run_round()
    [round_], critic = rounds, attached(made, Critic)
    rollout, decisions = round_.rollouts[0], round_.batch.decisions
    assert critic.network.head is not None
    untouched = token_policy()
    [part] = rollout.steps.split(decisions.decision_mask, 99)
    with torch.no_grad():
        states = untouched.score(rollout, part, frozenset({"hidden_state"}))["hidden_state"]
    head = nn.Linear(states.shape[1], 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.01, weight_decay=0.0)
    target = round_.totals[:, None].expand_as(decisions.log_probs)[part.rows, part.positions]
    ((head(states)[:, 0] - target).square().mean() / 2).backward()
    optimizer.step()
    torch.testing.assert_close(critic.network.head.weight, head.weight, rtol=0, atol=1e-5)
    torch.testing.assert_close(critic.network.head.bias, head.bias, rtol=0, atol=1e-5)


def test_a_critic_that_warms_up_leaves_the_policy_as_it_is(tmp_path):
    made = run(tmp_path, "critic(lr=0.01, warmup=2)")
    before = {name: one.detach().clone() for name, one in made.trained.items()}
    for moved in (False, False, True):
        made.run_round()
        assert any(not torch.equal(before[name], one) for name, one in made.trained.items()) is moved


def test_the_policy_and_the_critic_have_weights_of_their_own(tmp_path):
    made = run(tmp_path, lr=0.0)
    before = {name: one.detach().clone() for name, one in made.trained.items()}
    made.run_round()
    made.run_round()  # from the second on the head passes a gradient to its trunk
    values = made.policy.networks.values["critic"]
    assert all(torch.equal(before[name], one) for name, one in made.trained.items())
    assert any(not torch.equal(before[name], one) for name, one in values.items())


@pytest.mark.parametrize("preset", ["ppo", "ppo_max"])
def test_a_killed_run_goes_on_with_its_critic(preset, tmp_path):
    killed, whole = killed_and_whole(lambda folder: run(folder, preset=preset, save_every=1), tmp_path)
    assert killed == whole and "critic/loss" in whole[-1]


def test_a_critic_begins_as_that_of_a_checkpoint_and_may_stay_it(tmp_path):
    with pytest.warns(UserWarning, match="warmup"):
        first = run(tmp_path / "first", "critic(lr=0.02, warmup=9)", reward=of_prompt, steps=2, save_every=1)
    first.fit()
    place = sorted((tmp_path / "first" / "checkpoints").iterdir())[-1]
    made = run(tmp_path / "second", f"critic(lr=0.02, start='{place}', updates=0)", reward=of_prompt)
    rounds = rounds_of(made)
    made.run_round()
    made.run_round()
    kept, own = first.policy.networks.values["critic"], made.policy.networks.values["critic"]
    assert all(torch.equal(kept[name], value) for name, value in own.items())
    head, other = attached(first, Critic).network.head, attached(made, Critic).network.head
    assert head is not None and other is not None and torch.equal(head.weight, other.weight)
    assert rounds[0].batch.decisions.fields["value"].any()
    with pytest.raises(ValueError, match="critic"):
        run(tmp_path / "third", f"critic(lr=0.02, start='{place}', name='other')")


def test_a_critic_begins_as_a_reward_model(tmp_path):
    """Its value before a token is the reward of the text up to there, as transformers computes it."""
    from transformers import Qwen2ForSequenceClassification

    torch.manual_seed(3)
    config = copy(token_policy().network.config)
    config.num_labels = 1
    judge = Qwen2ForSequenceClassification(config)
    judge.save_pretrained(tmp_path / "judge")
    made = run(tmp_path / "run", f"critic(lr=0.01, start='{tmp_path / 'judge'}')", preset="ppo_max")
    rounds = rounds_of(made)
    made.run_round()
    [round_] = rounds
    [rollout], decisions = round_.rollouts, round_.batch.decisions
    for row in (0, 5):
        [prompt] = made.policy.model.encode([rollout.prompts[row]]).ids
        own = rollout.steps.ids[row][decisions.decision_mask[row]]
        texts = [torch.cat([prompt, own[:t]]) for t in range(len(own))]
        with torch.no_grad():
            wanted = [float(judge.score(judge.model(text[None]).last_hidden_state[0, -1])) for text in texts]
        assert decisions.fields["value"][row][decisions.decision_mask[row]].tolist() == pytest.approx(wanted, abs=1e-5)
    place = tmp_path / "judge" / "model.safetensors"
    weights = load_file(place)
    save_file({name: one for name, one in weights.items() if name != "model.norm.weight"}, place)
    with pytest.raises(ValueError, match="critic.*judge.*weights"):
        run(tmp_path / "no", f"critic(lr=0.01, start='{tmp_path / 'judge'}')")
    config.num_labels = 2
    Qwen2ForSequenceClassification(config).save_pretrained(tmp_path / "classes")
    with pytest.raises(ValueError, match="critic.*classes.*score"):
        run(tmp_path / "no", f"critic(lr=0.01, start='{tmp_path / 'classes'}')")
    config.num_labels, config.intermediate_size = 1, 8
    Qwen2ForSequenceClassification(config).save_pretrained(tmp_path / "narrow")
    with pytest.raises(ValueError, match="critic.*narrow.*weights"):
        run(tmp_path / "no", f"critic(lr=0.01, start='{tmp_path / 'narrow'}')")


def test_the_language_model_loss_is_added_to_that_of_ppo(tmp_path):
    """The gradient of a step is that of PPO and coef times that of the mean -log p of all tokens of the answers."""
    given, gradients = [Prompt("say d", "9", answer="d a b"), Prompt("d", "8", answer="c")], []
    for number, supervised in enumerate(("none", "nll(coef=0.5, count=2, complement=False)")):
        made = run(tmp_path / str(number), preset="ppo_max", supervised=supervised, given=given, lr=0.0, steps=1)
        seen: dict[str, torch.Tensor] = {}
        made.optimizer.register_step_pre_hook(
            lambda *_, m=made, s=seen: s.update({n: p.grad.clone() for n, p in m.trained.items() if p.grad is not None})
        )
        made.run_round()
        gradients.append(seen)
    policy = token_policy()
    model, losses = policy.model, []
    context = model.encode(given)
    for n, prompt in enumerate(given):
        ids, answer = context.ids[n][context.real[n]], torch.tensor(model.spell(str(prompt.answer)))
        logits = policy.network(torch.cat([ids, answer])[None]).logits[0, len(ids) - 1 : -1]
        losses.append(nn.functional.cross_entropy(logits, answer, reduction="none"))
    (0.5 * torch.cat(losses).mean()).backward()
    for name, parameter in policy.network.named_parameters():
        torch.testing.assert_close(gradients[1][name] - gradients[0][name], parameter.grad, rtol=0, atol=1e-5)


CLASSES = {"transform": ["classified_invariant(coef=0.5)"], "kl_weight": "classified_high"}


def classed(folder, classes: float = 2.0, **more):
    rule = f"critic(lr=0.01, classes={classes:g}, updates=1)"
    return run(
        folder, rule, blocks={**CLASSES, "terms": ["kl_k3(coef=0.1)"]}, policy=token_policy(keep_reference=True), **more
    )


def test_its_classifier_learns_groups_of_different_rewards(tmp_path):
    """The gradient of its first update is that of -classes times the variance between the soft groups, by sizes, of
    states at the ends of the texts."""
    made = classed(tmp_path)
    rounds, seen = rounds_of(made), list[torch.Tensor]()
    made.callbacks.call("on_train_begin", made)
    critic = attached(made, Critic)
    learn = critic.learn

    def watched(one, batch):
        assert critic.network.optimizer is not None and critic.network.head is not None
        head = critic.network.head.weight
        start = head.detach().clone()
        hook = critic.network.optimizer.register_step_pre_hook(lambda *_: seen.extend([start, head.grad.clone()]))
        try:
            return learn(one, batch)
        finally:
            hook.remove()

    critic.learn = watched  # type: ignore[method-assign]
    made.run_round()
    [round_], [start, gradient] = rounds, seen
    [rollout], decisions = round_.rollouts, round_.batch.decisions
    [part] = rollout.steps.split(decisions.decision_mask, 99)
    with torch.no_grad():
        states = token_policy().score(rollout, part, frozenset({"hidden_state"}))["hidden_state"]
    last = decisions.decision_mask.sum(1)[part.rows] - 1 == part.positions
    ends = torch.zeros(decisions.rows, states.shape[1])
    ends[part.rows[last]] = states[last]
    row = start[1].clone().requires_grad_()
    share = (ends @ row).sigmoid()
    totals, everything = round_.reward_scores.values[:, 0], torch.ones(decisions.rows, dtype=torch.bool)
    means, sizes = soft_means(totals, share, everything), torch.stack([1 - share, share]).sum(1)
    assert 0 < float(totals.mean()) < 1
    (-2.0 * (sizes / decisions.rows * (means - totals.mean()).square()).sum()).backward()
    torch.testing.assert_close(gradient[1], row.grad, rtol=0, atol=1e-6)
    torch.testing.assert_close(decisions.fields["group_share"], share.detach(), rtol=0, atol=1e-5)
    [line] = read_metrics(tmp_path / "metrics.jsonl")
    assert line["critic/group_gap"] == pytest.approx(float((means[1] - means[0]).detach().abs()), abs=1e-5)


def test_its_classifier_finds_the_group_of_the_larger_rewards(tmp_path):
    made = classed(tmp_path, 20.0, reward=of_prompt, steps=10, lr=0.0)
    made.fit()
    gaps = [line["critic/group_gap"] for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert gaps[-1] > 1 > gaps[0] + 0.5  # rewards 0, 1 and 2


def test_a_killed_run_goes_on_with_its_classifier(tmp_path):
    killed, whole = killed_and_whole(lambda folder: classed(folder, save_every=1), tmp_path)
    assert killed == whole and whole[-1]["critic/group_gap"] > 0


def test_groups_that_no_classifier_makes_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"classes"):
        classed(tmp_path / "a", 0.0)
    with pytest.raises(ValueError, match=r"classes"):
        run(tmp_path / "b", "critic(lr=0.01, classes=1)")


def test_a_token_earns_less_the_likelier_it_is_than_for_the_reference(tmp_path):
    blocks = algorithm_blocks("ppo", networks=["critic(lr=0.01, kl=0.5)"])
    policy = token_policy(keep_reference=True)
    assert blocks["loss"].needs_reference
    with torch.no_grad():
        next(policy.network.parameters()).add_(MOVED)
    made = trainer(policy, tmp_path, PROMPTS, reward=has_a, lr=0.0, **blocks)
    rounds = rounds_of(made)
    made.run_round()
    [round_] = rounds
    decisions, [rollout] = round_.batch.decisions, round_.rollouts
    [part] = rollout.steps.split(decisions.decision_mask, 99)
    reference = policy.score(rollout, part, frozenset({"reference.log_probs"}))["reference.log_probs"]
    gap = decisions.log_probs[part.rows, part.positions] - reference
    earned = decisions.fields["token_rewards"][part.rows, part.positions]
    torch.testing.assert_close(earned, -0.5 * gap, rtol=0, atol=1e-6)
    assert gap.abs().max() > 1e-3 and round_.metrics["critic/kl"] == pytest.approx(float(gap.mean()), abs=1e-6)


def test_a_group_of_one_is_enough(tmp_path):
    made = run(tmp_path, group_size=1, steps=2, reward=of_prompt)
    made.fit()
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["grad_norm"] > 0


@pytest.mark.parametrize(
    ("networks", "changes", "named"),
    [
        ([], {}, "critic"),
        (["critic(lr=0.01)"], {"credit": "broadcast", "baseline": "group_mean"}, "critic"),
        (["critic(lr=0.01)", "critic(lr=0.01, name='other')"], {}, "critic"),
        (["critic(lr=0.01, updates=0)"], {}, "updates=0"),
    ],
)
def test_a_credit_without_a_critic_and_a_critic_without_a_credit_are_refused(networks, changes, named, tmp_path):
    with pytest.raises(ValueError, match=named):
        trainer(token_policy(), tmp_path, PROMPTS, **algorithm_blocks("ppo", networks=networks, **changes))
