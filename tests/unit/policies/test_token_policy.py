"""The second likelihood: decisions that are tokens, on a real Qwen2 of a few thousand parameters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mmgrpo.policies.token import Sequences, TokenPolicy
from mmgrpo.policies.token_model import FeatureCache
from mmgrpo.prompts.drawing import PromptOrder
from mmgrpo.report.idle import read_alarms
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.types import Media, Output, Prompt, Request, Rollout, Text, Turn
from mmgrpo.update import LossRecipe, accumulate_gradients
from pipelines.text.causal_lm import load, toy
from pipelines.vlm.options import TextOptions
from tests.building import algorithm_blocks, amplify, killed_and_whole, recipe, rescored, token_policy_over, trainer

pytest.importorskip("transformers")

WORDS = ["say", "a", "b", "c", "d"]
PROMPTS = [Prompt("say a", "0"), Prompt("say b c d a", "1"), Prompt("d", "2")]


def token_policy(max_tokens: int = 6, keep_reference: bool = False, **settings) -> TokenPolicy:
    """A policy that prefers some tokens to others and ends early now and then."""
    model = toy(WORDS)
    if keep_reference:
        model.reference.keep()
    with torch.no_grad():
        for i, parameter in enumerate(model.network.parameters()):
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i))
    return token_policy_over(model, max_tokens=max_tokens, **settings)


def rollout(policy: TokenPolicy, prompts: Sequence[Prompt] = PROMPTS, group_size: int = 8, seed: int = 3) -> Rollout:
    return policy.rollout(Request(prompts, list(range(len(prompts))), group_size, seed))


def kept(made: Rollout) -> Sequences:
    assert isinstance(made.steps, Sequences)
    return made.steps


def completions(made: Rollout) -> Tensor:
    return kept(made).ids


def row_by_row(policy: TokenPolicy, made: Rollout, rows: int) -> list[torch.distributions.Categorical]:
    """The oracle: each of the first rows on its own, without padding and without a cache."""
    found = []
    for row in range(rows):
        (prompt,) = policy.model.encode([made.prompts[row]]).ids
        own = completions(made)[row][made.decisions.decision_mask[row]]
        with torch.no_grad():
            logits = policy.network(torch.cat([prompt, own])[None]).logits[0]
        found.append(torch.distributions.Categorical(logits=logits[len(prompt) - 1 : -1] / policy.temperature))
    return found


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_log_probs_and_entropies_are_those_of_the_logits_over_the_temperature(temperature):
    policy = token_policy(temperature=temperature)
    made = rollout(policy)
    decision_mask = made.decisions.decision_mask
    lengths = decision_mask.sum(1)
    assert lengths.min() < lengths.max() == 6  # some rows end early
    for row, wanted in enumerate(row_by_row(policy, made, made.decisions.rows)):
        own = decision_mask[row]
        log_probs, entropy = made.decisions.log_probs[row][own], made.decisions.fields["entropy"][row][own]
        torch.testing.assert_close(log_probs, wanted.log_prob(completions(made)[row][own]), rtol=0, atol=1e-5)
        torch.testing.assert_close(entropy, wanted.entropy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["log_probs", "entropy"])
def test_numbers_scored_again_are_those_of_the_rollout(name):
    policy = token_policy(temperature=0.7)
    made = rollout(policy)
    wanted = {"log_probs": made.decisions.log_probs, "entropy": made.decisions.fields["entropy"]}[name]
    loss_mask = made.decisions.loss_mask
    assert wanted[loss_mask].std() > 0.1
    torch.testing.assert_close(rescored(policy, made, name)[loss_mask], wanted[loss_mask], rtol=0, atol=1e-5)


def test_a_rows_decisions_end_with_its_end_token():
    policy = token_policy()
    made = rollout(policy)
    end = policy.model.tokenizer.eos_token_id
    for tokens, decision_mask, truncated in zip(
        completions(made), made.decisions.decision_mask, made.decisions.fields["truncated"], strict=True
    ):
        length = int(decision_mask.sum())
        assert decision_mask[:length].all()  # decisions are the beginning of the row
        assert end not in tokens[: length - 1]
        assert (tokens[length - 1] == end) != bool(truncated)
        assert length == 6 or not truncated
        assert (tokens[length:] == policy.model.pad_id).all()
    assert 0 < made.decisions.fields["truncated"].sum() < made.decisions.rows
    assert not made.decisions.log_probs[~made.decisions.decision_mask].any()


def test_outputs_say_how_long_they_are_and_whether_they_were_cut_off():
    policy = token_policy()
    made = rollout(policy)
    for row, output in enumerate(made.outputs):
        assert isinstance(output, Text)
        assert output.tokens == made.decisions.decision_mask[row].sum()
        assert output.truncated == bool(made.decisions.fields["truncated"][row])
        assert "<" not in output.text


def test_rows_that_were_cut_off_are_trained_only_where_asked():
    every, ended = rollout(token_policy()), rollout(token_policy(train_truncated=False))
    truncated = ended.decisions.fields["truncated"].bool()
    assert torch.equal(every.decisions.loss_mask, every.decisions.decision_mask)
    assert torch.equal(ended.decisions.decision_mask, every.decisions.decision_mask)
    assert torch.equal(ended.decisions.loss_mask, ended.decisions.decision_mask & ~truncated[:, None])


@pytest.mark.parametrize("preset", ["dapo", "grpo", "dr_grpo"])
def test_a_round_of_which_all_is_cut_off_and_masked_has_no_loss_and_is_skipped(preset, tmp_path):
    """No mean over nothing, no NaN, and an alarm that names the length."""
    policy = token_policy(train_truncated=False, max_tokens=3, keep_reference=True)
    policy.ends = policy.ends[:0]  # it never ends
    made = trainer(policy, tmp_path, [Prompt("say a", "a"), Prompt("say b", "b")], reward=says_letters, steps=2,
                   **algorithm_blocks(preset))  # fmt: skip
    before = [parameter.detach().clone() for parameter in policy.network.parameters()]
    with pytest.warns(UserWarning, match="sampling.max_tokens"):
        made.fit()
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [(r["loss"], r["grad_norm"], r["decisions"], r["skipped"]) for r in rows] == [(0, 0, 0, 1)] * 2
    assert made.skipped == 2
    assert all(torch.equal(old, new) for old, new in zip(before, policy.network.parameters(), strict=True))
    assert [alarm.cause for alarm in read_alarms(tmp_path)] == ["truncated"]


def says_letters(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    return [float(sum(map(ord, output.text))) if isinstance(output, Text) else 0.0 for output in outputs]


def test_rows_that_have_ended_are_not_read_on_for_long(monkeypatch):
    policy = token_policy(max_tokens=12)
    read, hidden = [], policy.model.hidden

    def counted(network, ids, *rest):
        read.append(len(ids))
        return hidden(network, ids, *rest)

    monkeypatch.setattr(policy.model, "hidden", counted)
    real = rollout(policy, group_size=16).decisions.decision_mask
    alive = real.sum(0).tolist()  # rows that said a token at each position
    assert alive[0] == 48 and alive[-1] < 12
    for rows, going in zip(read[1:], alive[1:], strict=True):  # the first forward pass is that of the prompts
        assert going <= rows < 2 * going


def test_tokens_are_drawn_with_their_probabilities():
    policy = token_policy(max_tokens=1, temperature=1.5)
    made = rollout(policy, [PROMPTS[0]], group_size=4000)
    (wanted,) = row_by_row(policy, made, 1)
    share = torch.bincount(completions(made)[:, 0], minlength=7) / 4000
    probabilities = wanted.probs[0]
    # The std of a share is sqrt(p (1 - p) / 4000).
    assert ((share - probabilities).abs() < 4.5 * (probabilities * (1 - probabilities) / 4000).sqrt()).all()


def test_positions_are_counted_over_real_tokens_only():
    """What a model with relative positions cannot tell apart, one with learned positions can."""
    policy, seen = token_policy(), []
    policy.network.base_model.register_forward_pre_hook(
        lambda module, given, named: seen.append(named["position_ids"]), with_kwargs=True
    )
    policy.rollout(Request(PROMPTS, [0, 1, 2], 1, seed=3))
    # "say a" has two tokens, "say b c d a" five, "d" one.
    assert seen[0].tolist() == [[0, 0, 0, 0, 1], [0, 1, 2, 3, 4], [0, 0, 0, 0, 0]]
    assert seen[1].tolist() == [[2], [5], [1]]
    assert seen[2].tolist() == [[2]]  # the two others have ended


def gradient(policy: TokenPolicy, made: Rollout, limit: int) -> Tensor:
    policy.network.zero_grad()
    coefficients = torch.sin(torch.arange(made.decisions.loss_mask.numel())).view_as(made.decisions.loss_mask)
    for part in made.steps.split(made.decisions.loss_mask, limit):
        scores = policy.score(made, part, frozenset({"log_probs", "entropy"}))
        (coefficients[part.rows, part.positions] * (scores["log_probs"] + scores["entropy"])).sum().backward()
    return torch.cat([p.grad.flatten() for p in policy.network.parameters() if p.grad is not None])


def test_logits_made_in_chunks_give_the_same_scores_and_the_same_gradient():
    whole, chunked = token_policy(), token_policy(logits_chunk_size=5)
    made = rollout(whole)
    torch.testing.assert_close(rescored(chunked, made), rescored(whole, made), rtol=0, atol=1e-6)
    expected = gradient(whole, made, 1000)
    torch.testing.assert_close(gradient(chunked, made, 1000), expected, rtol=0, atol=1e-6 * float(expected.abs().max()))


def test_no_more_logits_than_allowed_exist_at_once(monkeypatch):
    policy = token_policy(logits_chunk_size=5)
    made = rollout(policy)
    sizes = []
    logits = policy.model.logits

    def counted(network, hidden):
        sizes.append(len(hidden))
        return logits(network, hidden)

    monkeypatch.setattr(policy.model, "logits", counted)
    gradient(policy, made, 1000)
    assert max(sizes) == 5 and sum(sizes) == 2 * made.decisions.loss_mask.sum()  # once forward, once backward


def test_the_reference_is_the_network_as_it_was_when_it_was_kept():
    policy = token_policy()
    policy.keep_reference()
    made = rollout(policy)
    loss_mask = made.decisions.loss_mask
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter *= 1.5
    reference = rescored(policy, made, "reference.log_probs")[loss_mask]
    torch.testing.assert_close(reference, made.decisions.log_probs[loss_mask], rtol=0, atol=1e-5)
    assert (rescored(policy, made)[loss_mask] - reference).abs().max() > 0.01


def test_a_model_without_a_reference_says_how_to_keep_one():
    policy = token_policy()
    made = rollout(policy)
    with pytest.raises(ValueError, match="keep_reference"):
        rescored(policy, made, "reference.log_probs")


def test_features_are_kept_of_the_newest_prompts_that_may_come_again():
    seen = [Prompt("", str(n), turns=(Turn("user", (Media("image", f"{n}.png"),)),)) for n in range(3)]
    asked: list[str] = []
    cache = FeatureCache(2)

    def features(*numbers: int, changed: int = -1) -> list[float]:
        prompts = [seen[n] for n in numbers]

        def compute(missing: list[int]) -> list[Tensor]:
            asked.extend(prompts[place].id for place in missing)
            return [torch.full((1, 1), float(prompts[place].id)) for place in missing]

        return [float(one) for one in cache.features(prompts, compute, [n != changed for n in numbers])]

    assert features(0, 1) == [0, 1] and asked == ["0", "1"]
    assert features(1, 2, changed=2) == [1, 2] and asked == ["0", "1", "2"]
    assert features(0, 2) == [0, 2] and asked == ["0", "1", "2", "2"]  # 0 is still there, 2 was not kept
    assert features(1, 0) == [1, 0] and asked[4:] == ["0"] and len(cache.entries) == 2  # 2 has pushed the oldest out


def test_evaluation_is_greedy_and_the_same_for_every_seed():
    policy = token_policy()
    first, second = (policy.sample(Request(PROMPTS, [0, 1, 2], 2, seed)) for seed in (0, 1))
    assert first == second
    assert first[0] == first[1]  # two samples of a prompt
    ids = policy.model.encode(PROMPTS[:1]).ids
    greedy = []
    while len(greedy) < 6 and policy.model.tokenizer.eos_token_id not in greedy:
        with torch.no_grad():
            token = policy.network(ids).logits[0, -1].argmax()
        greedy.append(int(token))
        ids = torch.cat([ids, token.view(1, 1)], 1)
    assert first[0].text == policy.model.tokenizer.decode(greedy, skip_special_tokens=True)


def test_a_saved_policy_is_an_ordinary_folder_with_equal_logits(tmp_path):
    policy = token_policy()
    policy.save(tmp_path)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in tmp_path.iterdir()}
    again = load(TextOptions(path=str(tmp_path)))
    ids = policy.model.encode(PROMPTS[1:2]).ids
    assert torch.equal(again.encode(PROMPTS[1:2]).ids, ids)
    assert again.end_ids == policy.model.end_ids and again.pad_id == policy.model.pad_id
    with torch.no_grad():
        assert torch.equal(again.network(ids).logits, policy.network(ids).logits)


def test_what_a_user_can_get_wrong_is_said():
    with pytest.raises(ValueError, match="temperature 0.0.*0"):
        token_policy(temperature=0.0)
    with pytest.raises(ValueError, match="'empty'"):
        rollout(token_policy(), [Prompt("", "empty")])


@pytest.mark.parametrize("objective", ["ppo(low=0.2, high=0.2)", "gspo(low=0.2, high=0.2)"])
def test_a_round_of_which_nothing_of_one_rollout_is_trained_still_trains_the_rest(objective, tmp_path):
    """Fresh prompts in place of groups without spread leave rollouts behind that hold nothing to train."""
    from tests.unit.test_trainer import judged_batch

    def only_b(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        return [float(len(o.text)) if p.id == "b" else 1.0 for p, o in zip(prompts, outputs, strict=True)]

    made = trainer(
        token_policy(),
        tmp_path,
        [Prompt(f"say {word}", word) for word in "ab"],
        reward=only_b,
        loss=LossRecipe.of(objective, "per_decision"),
        prompts_per_step=1,
        redraws=3,
        advantages=recipe(select=["drop_zero_spread"]),
    )
    made.order = next(order for order in (PromptOrder(2, seed) for seed in range(9)) if order.take(0, 1) == [0])
    batch = judged_batch(made)
    trained = [bool(batch.loss_mask[place].any()) for place in batch.places]
    assert trained == [False, True]
    accumulate_gradients(
        made.policy,
        batch,
        torch.ones(len(batch.loss_mask), dtype=torch.bool),
        made.loss,
        micro_batch_size=4,
        accelerator=made.accelerator,
        on_policy=False,
    )
    assert any(p.grad is not None and bool(p.grad.abs().max() > 0) for p in made.policy.network.parameters())


def says_it(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Reward: the answer and nothing else."""
    return [float(output.text == prompt.answer) for prompt, output in zip(prompts, outputs, strict=True)]


SAY = [Prompt(f"say {word}", word, answer=word) for word in "abcd"]


@pytest.mark.learning
@pytest.mark.parametrize(
    ("preset", "changes", "count"),
    [pytest.param("grpo", {"terms": []}, 4, marks=pytest.mark.nightly), ("dr_grpo", {}, 2)],
)
def test_a_language_model_learns_to_say_what_it_is_told(preset, changes, count, tmp_path):
    # Rewards of the last steps with seeds 0 to 3: 0.66 to 0.89 (grpo, four words), 0.88 to 0.96 (dr_grpo, two words).
    prompts = SAY[:count]
    model = toy(WORDS[: count + 1])
    amplify(model.network, 4)
    made = trainer(
        TokenPolicy(model, max_tokens=2),
        tmp_path,
        prompts,
        reward=says_it,
        heldout=prompts,
        prompts_per_step=count,
        group_size=32,
        steps=48,
        lr=4e-3,
        max_grad_norm=1.0,
        **algorithm_blocks(preset, **changes),
    )
    result = made.fit()["eval"]
    assert result["before"]["reward"]["mean"] < 0.4
    assert result["after"]["reward"]["mean"] > 0.6
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 48 and all(line["ratio/first_minus_one"] < 1e-4 for line in lines)
    rewards = [line["reward/reward/mean"] for line in lines]
    assert sum(rewards[:8]) / 8 < 0.3 and sum(rewards[-8:]) / 8 > 0.5
    assert (tmp_path / "evaluations" / "after.json").is_file() and list((tmp_path / "checkpoints").iterdir())


def test_a_killed_language_run_resumes_with_the_same_numbers(tmp_path):
    def fresh(folder: Path):
        return trainer(token_policy(), folder, SAY, reward=says_it, steps=4, save_every=2)

    killed, whole = killed_and_whole(fresh, tmp_path)
    assert len(whole) == 4 and killed == whole


def test_a_completion_that_ends_in_any_of_several_ends_has_ended():
    model = toy(WORDS)
    model.end_ids = frozenset({1, 2, 3})
    made = rollout(TokenPolicy(model, max_tokens=8), group_size=32)
    seen = set()
    for output, ids, real in zip(made.outputs, completions(made), made.decisions.decision_mask, strict=True):
        last = int(ids[real][-1])
        assert output.truncated == (last not in model.end_ids)
        seen.add(last)
        assert not set(ids[real][:-1].tolist()) & model.end_ids
    assert {1, 2, 3} <= seen


def test_an_end_that_pads_as_well_is_trained_once_and_its_filling_never():
    model = toy(WORDS)
    assert model.pad_id in model.end_ids
    made = rollout(TokenPolicy(model, max_tokens=8), group_size=16)
    for ids, real, trained in zip(
        completions(made), made.decisions.decision_mask, made.decisions.loss_mask, strict=True
    ):
        ended = int((ids[real] == model.pad_id).sum())
        assert torch.equal(real, trained) and ended in (0, 1)
        assert (ids[~real] == model.pad_id).all()
