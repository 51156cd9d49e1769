"""Runs on given answers: what is scored, what is learned, how they go on online, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.testing import assert_close

from mmgrpo.policies.flow_matching import FlowMatchingPolicy
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.prompts.drawing import Sampling
from mmgrpo.rounds.offline import Offline, select_comparable
from mmgrpo.trainer import Trainer
from mmgrpo.types import GIVEN, Answer, Image, Media, Output, Policy, Prompt, Request
from mmgrpo.update import Batch
from pipelines.text.causal_lm import toy
from tests.building import algorithm_blocks, attached, matching_policy_over, token_policy_over, trainer
from tests.toys import ToyModel, toy_policy, toy_prompts

WORDS = ["say", "a", "b", "c"]
PREFERENCES = [("tokens", name) for name in ("dpo", "simpo", "exo", "dno", "inpo", "rpo", "mpo", "trpa", "copg", "vpo")]
PREFERENCES += [("matching", name) for name in ("ipo", "mpo", "copg")]


def tokens(**settings: Any) -> TokenPolicy:
    policy = token_policy_over(toy(WORDS), max_tokens=4, **settings)
    policy.keep_reference()
    return policy


def matching() -> FlowMatchingPolicy:
    return matching_policy_over(
        ToyModel(), steps=4, draws=2, error="velocity", evaluation_steps=4, forward_batch_size=1024
    )


def texts(count: int = 4) -> list[Prompt]:
    """Prompts whose better answer is longer."""
    answers = (Answer("a b c", None, 1.0), Answer("c", None, 0.0))
    return [Prompt(f"say {WORDS[1 + n % 3]}", str(n), answers=answers) for n in range(count)]


def images(count: int = 4) -> list[Prompt]:
    answers = [Answer("", Media("image", Image(torch.full((3, 1, 1), value))), value) for value in (1.0, 0.0)]
    return [replace(prompt, answers=tuple(answers)) for prompt in toy_prompts(count)]


def made(policy: Policy, prompts: Sequence[Prompt], folder: Path, preset: str = "dpo", **more: Any) -> Trainer:
    settings: dict[str, Any] = {"steps": 4, "offline": 1.0, "lr": 1e-2, **more}
    return trainer(policy, folder, prompts, **settings, **algorithm_blocks(preset))


def unasked(prompts: Sequence[Prompt], outputs: Sequence[Any]) -> list[float]:
    """A reward of runs that know what they are given."""
    raise AssertionError("a given answer was scored")


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_given_texts_have_the_log_probs_of_the_same_samples():
    policy = tokens()
    prompts = texts(2)
    drawn = policy.rollout(Request(prompts, [0, 1], 6, 3))
    ended = [not output.truncated for output in drawn.outputs]  # type: ignore[union-attr]
    assert any(ended)
    for prompt, rows in zip(prompts, (range(6), range(6, 12)), strict=True):
        kept = [row for row in rows if ended[row]]
        answers = tuple(Answer(drawn.outputs[row].text, None, 0.0) for row in kept)  # type: ignore[union-attr]
        if not answers:
            continue
        given = policy.rollout_of_answers(Request([replace(prompt, answers=answers)], [7], 0, 0))
        width = given.decisions.log_probs.shape[1]
        assert_close(given.decisions.log_probs, drawn.decisions.log_probs[kept][:, :width], rtol=0, atol=1e-5)
        assert torch.equal(given.decisions.decision_mask, drawn.decisions.decision_mask[kept][:, :width])
        assert given.decisions.origin.tolist() == [GIVEN] * len(kept) and given.decisions.keys["prompt"].unique() == 7


def test_given_texts_are_cut_and_what_the_policy_never_says_is_no_decision():
    policy = tokens()
    given = policy.rollout_of_answers(
        Request([Prompt("say a", answers=(Answer("a b c a b", None, 1.0), Answer("", None, 0.0)))], [0], 0, 0)
    )
    assert given.decisions.decision_mask.sum(1).tolist() == [4, 1]
    assert given.decisions.fields["truncated"].tolist() == [1, 0]
    policy.suppressed = torch.tensor(policy.model.spell("b")[:1])
    given = policy.rollout_of_answers(Request([Prompt("say a", answers=(Answer("a b c", None, 1.0),))], [0], 0, 0))
    assert given.decisions.decision_mask.tolist() == [[True, False, True, True]]
    assert given.decisions.log_probs.isfinite().all()


def test_given_images_share_the_draws_of_their_prompt():
    policy = matching()
    drawn = policy.rollout(Request(toy_prompts(2), [0, 1], 3, 5))
    media = [Media("image", output) for output in drawn.outputs]  # type: ignore[arg-type]
    asked = [
        replace(prompt, answers=tuple(Answer("", medium, 0.0) for medium in media[3 * n : 3 * n + 3]))
        for n, prompt in enumerate(toy_prompts(2))
    ]
    given = policy.rollout_of_answers(Request(asked, [0, 1], 0, 5))
    assert torch.equal(given.decisions.log_probs, drawn.decisions.log_probs)
    assert torch.equal(given.decisions.node, drawn.decisions.node)
    assert policy.answer_kind == "image" and given.prompts[3] is asked[1]


@pytest.mark.parametrize(("kind", "preset"), PREFERENCES)
def test_every_preference_trains_on_given_answers_without_a_reward(kind, preset, tmp_path):
    policy, prompts = (tokens(), texts()) if kind == "tokens" else (matching(), images())
    run = made(policy, prompts, tmp_path, preset, steps=2, reward=unasked)
    run.scorers = []
    run.fit()
    for line in lines(tmp_path):
        assert line["grad_norm"] > 0 and line["decisions"] > 0 and math.isfinite(line["loss"])
        assert not any(name.startswith("reward/") for name in line)


@pytest.mark.parametrize("kind", ["tokens", "matching"])
def test_dpo_begins_at_ln_2_and_learns_the_order(kind, tmp_path):
    policy, prompts = (tokens(), texts()) if kind == "tokens" else (matching(), images())
    made(policy, prompts, tmp_path, steps=12, prompts_per_step=4).fit()
    first, *_, last = lines(tmp_path)
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6) and first["pairs/margin"] == pytest.approx(0, abs=1e-5)
    assert last["pairs/accuracy"] == 1 and last["pairs/margin"] > 0.1 and last["loss"] < first["loss"]
    assert last["rollout/rows"] == 8 and last["clip/low"] == 0


def rated(*grades: Sequence[float]) -> list[Prompt]:
    """Prompts with one or more answers of these grades."""
    return [
        Prompt(f"say {WORDS[1 + n % 3]}", str(n), answers=tuple(Answer("a b", None, one) for one in several))
        for n, several in enumerate(grades)
    ]


def test_answers_are_compared_with_what_the_policy_before_training_gets(tmp_path):
    prompts = rated([0.8], [0.9, 0.1], [0.3])
    measured = {0: [0.0, 1.0], 1: [0.4], 2: [0.5]}
    run = made(tokens(), prompts, tmp_path, "a_lol", steps=2, prompts_per_step=2, measured=measured)
    assert [one.id for one in attached(run, Offline).skipped] == ["2"]
    seen: list[Batch] = []
    run.record.groups = cast(Any, SimpleNamespace(write=lambda step, round_: seen.append(round_.batch)))
    run.fit()
    batch = seen[0]
    order = batch.decisions.fields["prompt_index"].argsort(stable=True)
    assert batch.advantages[order, 0].tolist() == pytest.approx(
        [0.8 - 0.5, 0.9 - 0.4, 0.0]
    )  # the worse one is left out
    assert batch.loss_mask.any(1)[order].tolist() == [True, True, False]
    first = lines(tmp_path)[0]
    # The ratio to the reference is 1 before the first step: A times the summed negative log-likelihood.
    nll = -torch.where(batch.decisions.decision_mask, batch.decisions.log_probs, 0.0).sum(1)[order]
    assert first["loss"] == pytest.approx(float(0.3 * nll[0] + 0.5 * nll[1]) / 2, rel=1e-4)
    assert first["pairs/trained"] == pytest.approx(2 / 3) and first["group/advantage"] == pytest.approx(0.4)
    assert run.ledger.read("measured_value").tolist() == [0.5, 0.4, 0.5]  # given answers are no samples


def test_a_shift_of_rewards_and_values_changes_nothing_and_a_resumed_run_repeats_it(tmp_path):
    def run(folder: str, shift: float = 0.0) -> Trainer:
        measured = {0: [0.5 + shift], 1: [0.25 + shift]}
        prompts = rated([0.75 + shift], [1.0 + shift, shift])
        return made(tokens(), prompts, tmp_path / folder, "a_lol", measured=measured, save_every=1)

    one, other, parts = run("one"), run("other", 2.0), run("parts")
    one.fit()
    other.fit()
    parts.run_round()
    parts.save()
    resumed = run("parts")
    assert resumed.resume()
    resumed.fit()
    for name, parameter in one.trained.items():
        assert torch.equal(parameter, other.trained[name]) and torch.equal(parameter, resumed.trained[name]), name


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ({0: [0.5]}, r"data\.ledger: prompt '1'.*evaluate"),
        ({0: [0.9], 1: [0.9]}, r"data\.offline: no prompt.*better"),
    ],
)
def test_answers_without_a_measured_value_and_worse_ones_are_refused(measured, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        made(tokens(), rated([0.8], [0.7]), tmp_path, "a_lol", measured=measured)


def short(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    return [-float(len(output.text)) for output in outputs]  # type: ignore[union-attr]


def test_a_run_begins_offline_and_goes_on_online(tmp_path):
    prompts = [*texts(3), Prompt("say c", "without")]
    made(tokens(), prompts, tmp_path, offline=0.5, reward=short).fit()
    names = [set(line) for line in lines(tmp_path)]
    assert ["pairs/accuracy" in one for one in names] == [True, True, False, False]
    assert ["reward/reward/mean" in one for one in names] == [False, False, True, True]


def test_online_from_the_start_is_the_run_without_answers(tmp_path):
    plain = [replace(prompt, answers=()) for prompt in texts()]
    for name, prompts in {"with": texts(), "without": plain}.items():
        made(tokens(), prompts, tmp_path / name, offline=0.0, reward=short).fit()
    timed = {"time/rollout", "time/reward", "time/update", "seconds", "memory"}
    one, other = (
        [{k: v for k, v in line.items() if k not in timed} for line in lines(tmp_path / n)] for n in ("with", "without")
    )
    assert one == other


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_resumed_run_repeats_the_numbers(stop, tmp_path):
    def run(folder: Path) -> Trainer:
        return made(tokens(), texts(), folder, offline=0.5, reward=short, save_every=1)

    whole, parts = run(tmp_path / "whole"), run(tmp_path / "parts")
    whole.fit()
    while parts.step < stop:
        parts.run_round()
    parts.save()
    resumed = run(tmp_path / "parts")
    assert resumed.resume() and resumed.step == stop
    resumed.fit()
    for name, parameter in whole.trained.items():
        assert torch.equal(parameter, resumed.trained[name]), name


def divided(sizes: Sequence[int] = (3, 1)) -> list[Prompt]:
    """Prompts of two groups of the data, in the second of which the order of the answers is the other way round."""
    turned = tuple(replace(one, grade=1 - one.grade) for one in texts(1)[0].answers)
    groups = [[replace(one, task="x") for one in texts(sizes[0])]]
    groups.append([replace(one, task="y", id=f"y{one.id}", answers=turned) for one in texts(sizes[1])])
    return [one for several in groups for one in several]


@pytest.mark.parametrize(("eta", "weights"), [(0.01, [0.502, 0.498]), (1.0, [0.68997, 0.31003]), (0.0, [0.5, 0.5])])
def test_weights_of_groups_follow_their_losses(eta, weights):
    """L = .502 * 1 + .498 * .2 = .6016; with eta 1 .752."""
    ledger = Sampling.of([], [f"worst_group(eta={eta})"]).ledger(divided((1, 1)))
    ledger.lose({0: 1.0, 1: 0.2})
    assert ledger.fields({"category_weight"}, torch.tensor([0, 1]))["category_weight"].tolist() == pytest.approx(
        weights, abs=1e-5
    )


@pytest.mark.slow
def test_weights_begin_balanced_move_with_the_losses_and_a_resumed_run_repeats_them(tmp_path):
    def run(folder: str, eta: float = 5.0) -> Trainer:
        change = {"trackers": [f"worst_group(eta={eta})"]}
        return trainer(
            tokens(), tmp_path / folder, divided(), offline=1.0, steps=6, prompts_per_step=4, lr=1e-2, save_every=1,
            **algorithm_blocks("gr_dpo", **change),
        )  # fmt: skip

    whole, parts = run("whole"), run("parts")
    seen: list[Batch] = []
    whole.record.groups = cast(Any, SimpleNamespace(write=lambda step, round_: seen.append(round_.batch)))
    whole.fit()
    for _ in range(2):
        parts.run_round()
    parts.save()
    resumed = run("parts")
    assert resumed.resume()
    resumed.fit()
    for name, parameter in whole.trained.items():
        assert torch.equal(parameter, resumed.trained[name]), name
    first = seen[0].decisions  # both losses are ln 2, so each group counts a half: 4 / 3 and 4 / 1 times it
    category = (first.fields["prompt_index"] == 3).long()
    assert first.fields["category_weight"].tolist() == pytest.approx([(2 / 3, 2.0)[one] for one in category.tolist()])
    shown = lines(tmp_path / "whole")
    for name in "xy":  # all prompts in each round: the mean loss of the group, times eta
        assert shown[0][f"category/{name}/log_weight"] == pytest.approx(5 * math.log(2), abs=1e-5)
    gaps = [line["category/x/log_weight"] - line["category/y/log_weight"] for line in shown]
    assert abs(gaps[-1]) > 0.01  # no longer the same
    assert shown[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)


def test_equal_weights_of_equal_groups_are_the_mean_over_prompts(tmp_path):
    for name, preset, change in (
        ("robust", "gr_dpo", {"trackers": ["worst_group(eta=0.0)"]}),
        ("plain", "dpo", {"aggregation": "per_prompt"}),
    ):
        blocks = algorithm_blocks(preset, **change)
        trainer(
            tokens(), tmp_path / name, divided((2, 2)), offline=1.0, steps=3, prompts_per_step=4, lr=1e-2, **blocks
        ).fit()
    one, other = ([line["loss"] for line in lines(tmp_path / name)] for name in ("robust", "plain"))
    assert one == pytest.approx(other, rel=1e-6)


def test_weights_of_groups_without_a_tracker_are_refused(tmp_path):
    blocks = algorithm_blocks("gr_ipo", trackers=[])
    with pytest.raises(ValueError, match="worst_group"):
        trainer(tokens(), tmp_path, divided(), reward=short, offline=1.0, steps=4, **blocks)


def test_groups_of_equivalent_answers_are_compared_by_their_means(tmp_path):
    """GEPO (arXiv:2505.12723): two right programs against one wrong: -log sigmoid(0) + variance 0 before training."""
    answers = (Answer("a b c", None, 1.0), Answer("b a c", None, 1.0), Answer("c", None, 0.0))
    prompts = [replace(one, answers=answers) for one in texts()]
    objective = "preference(link='means(variance=1.0)', pairs='right_wrong(threshold=0.5)', beta=1.0)"
    blocks = algorithm_blocks("dpo", objective=objective)
    trainer(tokens(), tmp_path, prompts, offline=1.0, steps=8, prompts_per_step=4, lr=1e-2, **blocks).fit()
    first, *_, last = lines(tmp_path)
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-5) and first["rollout/rows"] == 12
    assert last["loss"] < first["loss"] and last["pairs/accuracy"] == 1


def test_ties_and_rows_without_answers():
    better, equal = texts(1)[0].answers, (Answer("a", None, 1.0), Answer("b", None, 1.0))
    prompts = [Prompt("a", "0", answers=better), Prompt("b", "1", answers=equal), Prompt("c", "2")]
    usable, skipped = select_comparable(prompts, "text", 0.5)
    assert usable == [0] and [one.id for one in skipped] == ["1"]
    with pytest.raises(ValueError, match=r"data\.offline: prompt '2'.*chosen"):
        select_comparable(prompts, "text")
    with pytest.raises(ValueError, match=r"data\.offline: prompt '0'.*image"):
        select_comparable(prompts, "image", 0.5)
    with pytest.raises(ValueError, match=r"data\.offline: no prompt"):
        select_comparable(prompts[1:], "text", 0.5)


@pytest.mark.parametrize(
    ("policy", "prompts", "preset", "words"),
    [
        (tokens, texts, "grpo", "objective 'ppo"),
        (toy_policy, images, "dpo", "sampling.policy.matching"),
        (tokens, images, "dpo", "prompt '0' has an answer without text"),
        (matching, texts, "dpo", "prompt '0' has the answer the text .*expected an image"),
    ],
)
def test_what_cannot_train_offline_is_refused_before_anything_is_scored(policy, prompts, preset, words, tmp_path):
    with pytest.raises(ValueError, match=rf"data\.offline: .*{words}"):
        made(policy(), prompts(), tmp_path, preset)
    assert not (tmp_path / "metrics.jsonl").exists()
