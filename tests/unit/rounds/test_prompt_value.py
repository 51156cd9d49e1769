"""A value network of prompts: what it predicts and learns, whom it chooses, and that a run resumes with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmgrpo.prompts.drawing import Drawing, PromptOrder, Sampling
from mmgrpo.rollout import RoundSettings
from mmgrpo.rounds.prompt_value import PromptValues
from mmgrpo.rounds.values import ValueNetwork
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.types import Prompt
from tests.building import algorithm_blocks, attached, killed_and_whole, rounds_of, trainer
from tests.unit.policies.test_token_policy import token_policy

pytest.importorskip("transformers")

WORDS = ("a", "b", "c", "d")
PROMPTS = [Prompt(f"say {one} {two}", f"{one}{two}") for one in WORDS for two in WORDS]
EASY = "b"


def first_word(prompts, outputs) -> list[float]:
    """1 for prompts whose first word is the easy one, whatever is said."""
    return [float(prompt.id[0] == EASY) for prompt in prompts]


def says_a(prompts, outputs) -> list[float]:
    return [float("a" in output.text.split()) for output in outputs]


def run(folder, rule: str = "prompt_value(lr=0.01)", sampler: str = "nearest_predicted", **more: Any):
    networks, samplers = [rule] if rule else [], [sampler] if sampler else []
    blocks = algorithm_blocks("pcl", networks=networks, sampler=samplers, trackers=[])
    settings = {"reward": says_a, "steps": 4, "group_size": 4, "prompts_per_step": 2, "lr": 1e-2, **blocks, **more}
    return trainer(token_policy(), folder, PROMPTS, **settings)


def states_of(policy, prompts) -> torch.Tensor:
    """The last hidden states of prompts, each by itself, of the weights that the network has."""
    context = policy.model.encode(prompts)
    texts = [ids[real] for ids, real in zip(context.ids, context.real, strict=True)]
    return torch.stack([policy.network.model(text[None]).last_hidden_state[0, -1] for text in texts])


def test_the_nearest_of_the_candidates_are_drawn_and_nothing_else_is_predicted():
    """Values .9, .45, .1, .6, .52 of the next five, of which two are drawn: those of .45 and .52."""
    order, asked = PromptOrder(8, 0), list[list[int]]()
    some = order.take(3, 5)
    values = dict(zip(some, (0.9, 0.45, 0.1, 0.6, 0.52), strict=True))
    samplers = Sampling.of(["nearest_predicted(candidates=5)"])
    ledger = samplers.ledger([Prompt(str(number), str(number)) for number in range(8)])

    def predict(numbers):
        asked.append(list(numbers))
        return torch.tensor([values[number] for number in numbers], dtype=torch.float64)

    ledger.predict = predict
    one = Drawing(RoundSettings(1, 4, samplers=samplers), ledger, order, 3, 0, 0, 1)
    assert one.first().indices == (some[4],)
    two = Drawing(
        RoundSettings(2, 4, samplers=Sampling.of(["nearest_predicted(candidates=2)"])), ledger, order, 3, 0, 0, 1
    )
    assert two.first().indices == (some[1], some[3]) and two.cursor == 7
    assert asked == [sorted(some), sorted(some[:4])]


def test_what_it_predicts_is_its_head_at_the_end_of_the_prompt(tmp_path):
    made = run(tmp_path)
    for _ in range(3):
        made.run_round()
    callback, policy = attached(made, PromptValues), made.policy
    found = callback.predict(made, [5, 0, 11])
    with torch.no_grad(), policy.networks("prompt_value"):
        wanted = callback.network(states_of(policy, [PROMPTS[5], PROMPTS[0], PROMPTS[11]]))[:, 0]
    torch.testing.assert_close(found, wanted.double(), rtol=0, atol=1e-5)
    assert found.abs().min() > 1e-4


def test_its_first_update_has_the_gradient_of_the_squared_errors(tmp_path):
    """V = 0: the loss is the sum of m^2 over the groups' mean rewards m, and the gradient -2 sum m (state, 1), of the
    head alone."""
    made = run(tmp_path, reward=lambda prompts, outputs: [0.5 + one for one in says_a(prompts, outputs)])
    rounds = rounds_of(made)
    made.run_round()
    [round_] = rounds
    key, index = round_.batch.decisions.keys["prompt"], round_.batch.decisions.fields["prompt_index"]
    means = {int(index[key == one][0]): round_.totals[key == one].mean() for one in torch.unique(key)}
    policy = token_policy()
    with torch.no_grad():
        states = states_of(policy, [PROMPTS[number] for number in means])
    values = torch.stack([*means.values()])
    gradient = torch.cat([-2 * (values[:, None] * states).sum(0), -2 * values.sum()[None]])
    [line] = read_metrics(tmp_path / "metrics.jsonl")
    assert len(means) == 2 and values.min() > 0
    assert line["prompt_value/loss"] == pytest.approx(float(values.square().sum()), abs=1e-6)
    assert line["prompt_value/grad_norm"] == pytest.approx(float(gradient.norm()), rel=1e-4)
    assert line["prompt_value/explained_variance"] == pytest.approx(0.0, abs=1e-6)


def test_it_ranks_prompts_that_were_never_drawn(tmp_path):
    """A table knows nothing of them: their averages are NaN."""
    rule = "prompt_value(lr=0.02, updates=4)"
    made = run(tmp_path, rule, "nearest_predicted(candidates=1)", reward=first_word, steps=5, lr=0.0)
    made.fit()
    unseen = (made.ledger.columns["prompts"]["visits"] == 0).nonzero()[:, 0].tolist()
    values = attached(made, PromptValues).predict(made, unseen)
    easy = torch.tensor([PROMPTS[number].id[0] == EASY for number in unseen])
    assert 0 < int(easy.sum()) < len(unseen) == 6
    assert values[easy].min() > values[~easy].max() + 0.3
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["prompt_value/explained_variance"] > 0.3


def test_a_killed_run_goes_on_with_its_values(tmp_path):
    killed, whole = killed_and_whole(lambda folder: run(folder, save_every=1), tmp_path)
    assert killed == whole and "prompt_value/loss" in whole[-1]


def test_a_checkpoint_right_after_a_resumption_has_the_head_that_was_read(tmp_path):
    made = run(tmp_path)
    made.run_round()
    first = attached(made, PromptValues).network
    again = ValueNetwork(first.rule)
    again.load(first.state(), first.tensors())
    assert again.state() == first.state() and again.tensors().keys() == first.tensors().keys()
    assert all(torch.equal(again.tensors()[name], value) for name, value in first.tensors().items())


def test_a_run_may_have_both_value_networks(tmp_path):
    networks = ["critic(lr=0.01)", "prompt_value(lr=0.01)"]
    blocks = algorithm_blocks("ppo", networks=networks, sampler=["nearest_predicted"])
    made = trainer(token_policy(), tmp_path, PROMPTS, reward=says_a, steps=1, **blocks)
    made.fit()
    [line] = read_metrics(tmp_path / "metrics.jsonl")
    assert {"critic/loss", "prompt_value/loss", "time/learners"} <= line.keys()


@pytest.mark.parametrize(
    ("rule", "sampler", "named"),
    [
        ("", "nearest_predicted", "sampler.*nearest_predicted.*prompt_value"),
        ("prompt_value(lr=1)", "", "networks.*prompt_value.*nearest_predicted"),
    ],
)
def test_values_that_nothing_predicts_and_values_that_nothing_reads_are_refused(rule, sampler, named, tmp_path):
    with pytest.raises(ValueError, match=named):
        run(tmp_path, rule, sampler)
