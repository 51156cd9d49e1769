"""One categorical decision a sample, on a table of logits: likelihoods, streams, reference, learning, resuming."""

from __future__ import annotations

import json

import pytest
import torch

from mmgrpo.policies.categorical import CategoricalModel, CategoricalPolicy, Choices
from mmgrpo.types import Policy, Prompt, Request
from tests.building import algorithm_blocks, killed_and_whole, rescored, trainer
from tests.speaking import TableModel, near_answer, table_prompts

PROMPTS = table_prompts(3)


def policy(classes: int = 7, prompts: int = 3, **settings) -> CategoricalPolicy:
    return CategoricalPolicy(TableModel(prompts, classes), **settings)


def rollout(made: CategoricalPolicy, group_size: int = 8, seed: int = 3):
    return made.rollout(Request(PROMPTS, [0, 1, 2], group_size, seed))


def test_it_is_a_policy_and_its_table_a_family():
    made = policy()
    assert isinstance(made, Policy) and isinstance(made.model, CategoricalModel)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_log_probs_and_entropies_are_those_of_the_softmax(temperature):
    made = policy(temperature=temperature)
    rolled = rollout(made)
    kept = rolled.steps
    assert isinstance(kept, Choices)
    wanted = torch.distributions.Categorical(logits=made.network.weight[kept.prompt] / temperature)
    torch.testing.assert_close(rolled.decisions.log_probs[:, 0], wanted.log_prob(kept.classes), rtol=0, atol=1e-6)
    torch.testing.assert_close(rolled.decisions.fields["entropy"][:, 0], wanted.entropy(), rtol=0, atol=1e-6)
    torch.testing.assert_close(rescored(made, rolled, "entropy")[:, 0], wanted.entropy(), rtol=0, atol=1e-6)


def test_classes_are_drawn_with_their_probabilities():
    made = policy(classes=3, prompts=1)
    with torch.no_grad():
        made.network.weight.copy_(torch.tensor([[0.2, 0.5, 0.3]]).log())
    rolled = made.rollout(Request(PROMPTS[:1], [0], 20_000, 0))
    shares = torch.bincount(rolled.steps.classes, minlength=3) / 20_000
    assert (shares - torch.tensor([0.2, 0.5, 0.3])).abs().max() < 0.012  # three sigmas are 0.0106


def test_evaluation_takes_the_most_likely_class_whatever_the_seed():
    made = policy()
    first, other = (made.sample(Request(PROMPTS, [0, 1, 2], 2, seed)) for seed in (0, 1))
    modes = made.network.weight.argmax(1).repeat_interleave(2).tolist()
    assert [int(output.text) for output in first] == modes and first == other


def test_a_choice_that_cannot_be_rendered_stops_the_run_and_is_told():
    made = policy()

    def broken(prompt: Prompt, choice: int):
        raise OSError("the engine is out")

    made.model.render = broken
    with pytest.raises(RuntimeError, match=r"'0' \('prompt 0'\).*OSError: the"):
        rollout(made)
    with pytest.raises(ValueError, match="above 0"):
        policy(temperature=0.0)


@pytest.mark.learning
def test_a_table_learns_its_answers_in_seconds(tmp_path):
    made = trainer(
        policy(),
        tmp_path,
        PROMPTS,
        reward=near_answer,
        heldout=PROMPTS,
        prompts_per_step=3,
        group_size=16,
        steps=60,
        lr=0.2,
        **algorithm_blocks("dmospeech2"),
    )
    result = made.fit()["eval"]
    assert result["before"]["reward"]["mean"] < -0.5
    assert result["after"]["reward"]["mean"] == 0  # every mode is the answer
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["ratio/first_minus_one"] < 1e-6 and abs(lines[0]["kl"]) < 1e-6
    assert max(line["kl"] for line in lines) > 0.1


def test_a_killed_run_resumes_with_the_same_numbers(tmp_path):
    def fresh(folder):
        blocks = algorithm_blocks("dmospeech2")
        return trainer(policy(), folder, PROMPTS, reward=near_answer, steps=5, save_every=2, **blocks)

    killed, whole = killed_and_whole(fresh, tmp_path)
    assert len(whole) == 5 and killed == whole
