"""Supervised training (preset sft): what is learned of given answers, in epochs, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmgrpo.policies.flow_matching import FlowMatchingPolicy, Matches, logit_normal_steps
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.randomness import stream
from mmgrpo.rounds.offline import Offline
from mmgrpo.trainer import Trainer
from mmgrpo.types import Answer, Image, Media, Policy, Prompt
from pipelines.text.causal_lm import toy
from tests.building import (
    algorithm_blocks,
    attached,
    killed_and_whole,
    matching_policy_over,
    rounds_of,
    token_policy_over,
    trainer,
)
from tests.toys import ToyModel, toy_policy, toy_prompts

WORDS = ["say", "a", "b", "c"]


def tokens(**settings: Any) -> TokenPolicy:
    return token_policy_over(toy(WORDS), max_tokens=4, **settings)


def matching(times: str = "logit_normal") -> FlowMatchingPolicy:
    return matching_policy_over(
        ToyModel(), steps=100, draws=1, draws_per="sample", times=times, evaluation_steps=4, forward_batch_size=1024
    )


def texts(count: int = 4) -> list[Prompt]:
    return [Prompt(f"say {WORDS[1 + n % 3]}", str(n), answer=" ".join("abc"[: 1 + n % 3])) for n in range(count)]


def images(count: int = 4) -> list[Prompt]:
    answer = Answer("", Media("image", Image(torch.tensor([1.0, 0.5, -1.0])[:, None, None])), 0.0)
    return [replace(prompt, answers=(answer,)) for prompt in toy_prompts(count)]


def made(policy: Policy, prompts: Sequence[Prompt], folder: Path, **more: Any) -> Trainer:
    settings: dict[str, Any] = {"steps": 4, "offline": 1.0, **more}
    return trainer(policy, folder, prompts, **settings, **algorithm_blocks("sft"))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_loss_of_tokens_is_that_of_transformers(tmp_path):
    """The mean over all tokens of the answers of a step, prompts and padding without a label, whatever their split."""
    policy, prompts = tokens(), texts(3)
    run = made(policy, prompts, tmp_path, prompts_per_step=3, steps=1, micro_batch_size=1)
    network, model = policy.network, policy.model
    context = model.encode(prompts)
    rows = []
    for n, prompt in enumerate(prompts):
        ids = context.ids[n][context.real[n]].tolist()
        answer = model.spell(str(prompt.answer))
        rows.append((ids + answer, [-100] * len(ids) + answer))
    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([one + [0] * (width - len(one)) for one, _ in rows])
    labels = torch.tensor([one + [-100] * (width - len(one)) for _, one in rows])
    mask = torch.tensor([[1] * len(one) + [0] * (width - len(one)) for one, _ in rows])
    expected = network(input_ids=ids, attention_mask=mask, labels=labels).loss  # type: ignore[operator]
    expected.backward()
    norm = torch.stack([p.grad.norm() for p in network.parameters() if p.grad is not None]).norm()
    network.zero_grad()
    run.fit()
    [line] = lines(tmp_path)
    assert line["loss"] == pytest.approx(expected.item(), abs=1e-5)
    assert line["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert line["decisions"] == 2 + 3 + 4  # with their ends


def test_the_loss_of_a_flow_is_the_velocity_error_at_its_draws(tmp_path):
    policy, prompts = matching(), images(4)
    run = made(policy, prompts, tmp_path, prompts_per_step=4, steps=1)
    network, rounds = policy.network, rounds_of(run)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    run.fit()
    matches: Any = rounds[0].rollouts[0].steps
    assert isinstance(matches, Matches) and len(matches.noise) == 4  # each row has its own draw
    network.load_state_dict(before)
    number = policy.model.encode(rounds[0].rollouts[0].prompts).number
    level = policy.grid.levels[matches.step[:, 0]]
    clean, noise, t = matches.clean, matches.noise[:, 0], level[:, None, None, None]
    with torch.no_grad():
        velocity = network((1 - t) * clean + t * noise, level, number)
    assert lines(tmp_path)[0]["loss"] == pytest.approx(float((velocity - (noise - clean)).square().mean()), rel=1e-5)
    assert_close(clean, torch.tensor([1.0, 0.5, -1.0])[None, :, None, None].expand(4, 3, 1, 1))


def test_logit_normal_levels_have_the_quartiles_of_the_normal():
    """sigmoid(-.6745) = .3375: a quarter of the levels is below, a quarter above .6625."""
    level = 1 - logit_normal_steps(1000, 40_000, stream(0, "test")) / 1000
    quartiles = torch.tensor([0.25, 0.5, 0.75], dtype=level.dtype)
    assert_close(torch.quantile(level, quartiles), torch.tensor([0.3375, 0.5, 0.6625]), atol=0.01, rtol=0)
    uniform = matching("uniform")._steps(stream(0, "test"))
    assert uniform.shape == (1,) and torch.equal(uniform, torch.randperm(100, generator=stream(0, "test"))[:1])


@pytest.mark.parametrize("kind", ["tokens", "matching"])
def test_every_epoch_has_every_row_once_in_another_order_without_a_reward(kind, tmp_path):
    policy, prompts = (tokens(), texts(6)) if kind == "tokens" else (matching(), images(6))
    run = made(policy, prompts, tmp_path, steps=6)
    run.scorers = []
    rounds = rounds_of(run)
    run.fit()
    order = [index for one in rounds for index in one.batch.decisions.fields["prompt_index"].tolist()]
    assert Counter(order[:6]) == Counter(order[6:]) == Counter(range(6)) and order[:6] != order[6:]
    found = lines(tmp_path)
    assert [line["supervised/epoch"] for line in found] == pytest.approx([n / 3 for n in range(1, 7)])
    assert all(line["grad_norm"] > 0 for line in found)
    assert not any(name.startswith(("reward/", "pairs/")) for line in found for name in line)


@pytest.mark.parametrize("kind", ["tokens", "matching"])
def test_a_killed_run_resumes_as_one_that_was_not(kind, tmp_path):
    def fresh(folder: Path) -> Trainer:
        policy, prompts = (tokens(), texts(5)) if kind == "tokens" else (matching(), images(5))
        return made(policy, prompts, folder, steps=5)

    killed, whole = killed_and_whole(fresh, tmp_path)
    assert killed == whole and len(whole) == 5


@pytest.mark.slow
def test_what_is_taught_is_learned(tmp_path):
    run = made(tokens(), texts(3), tmp_path, steps=60, prompts_per_step=3)
    run.fit()
    found = lines(tmp_path)
    assert found[0]["loss"] > 1 and found[-1]["loss"] < 0.1


def test_an_answer_that_is_cut_is_counted_and_named_once(tmp_path, capsys):
    prompts = [*texts(2), Prompt("say c", "long", answer="a b c a b c")]
    made(tokens(), prompts, tmp_path, steps=2, prompts_per_step=3).fit()
    assert [line["supervised/truncated_fraction"] for line in lines(tmp_path)] == pytest.approx([1 / 3, 1 / 3])
    printed = capsys.readouterr().out
    assert printed.count("'long'") == 1 and "sampling.max_tokens" in printed


@pytest.mark.parametrize(
    ("policy", "prompts", "more", "words"),
    [
        (tokens, [Prompt("say a", "7")], {}, r"data\.train.*'7'"),
        (matching, toy_prompts(1), {}, r"data\.train.*'0'.*answer_image"),
        (toy_policy, images(1), {}, r"data\.offline"),
        (tokens, texts(2), {"offline": 0.5}, r"algorithm\.objective.*likelihood.*data\.offline"),
    ],
)
def test_what_cannot_be_taught_is_refused_before_the_run(policy, prompts, more, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        made(policy(), prompts, tmp_path, prompts_per_step=1, **more)


def test_the_better_answer_of_several_is_learned(tmp_path):
    answers = (Answer("a b", None, 1.0), Answer("c", None, 0.0))
    run = made(tokens(), [Prompt("say a", "0", answers=answers)], tmp_path, steps=1, prompts_per_step=1)
    assert attached(run, Offline).way == "learned"
    run.fit()
    assert lines(tmp_path)[0]["decisions"] == 3
