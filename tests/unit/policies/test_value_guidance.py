"""Value-augmented sampling: a critic of another run changes which of the likely tokens is drawn, and nothing else."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch

from mmgrpo.policies.generation import Drawing
from mmgrpo.policies.token_model import Query, Sequences
from mmgrpo.policies.value_guidance import Guidance, Guide, guide_log_probs
from mmgrpo.rounds.guidance import ValueGuidance, linear
from mmgrpo.runtime.networks import bind_networks
from mmgrpo.types import Request
from tests.building import algorithm_blocks, attached, trainer
from tests.unit.policies.test_token_policy import PROMPTS, token_policy

pytest.importorskip("transformers")


def test_two_equal_tokens_are_drawn_by_their_values():
    equal = torch.log(torch.tensor([[0.4, 0.4, 0.2, 0.0]]))
    made = guide_log_probs(equal, torch.tensor([[0, 1]]), torch.tensor([[1.0, 0.0]]), 1.0)
    assert torch.softmax(made[0, :2], 0).tolist() == pytest.approx([0.731059, 0.268941], abs=1e-6)
    assert made[0, 2:].tolist() == equal[0, 2:].tolist()  # others keep theirs
    never = guide_log_probs(equal, torch.tensor([[3, 0]]), torch.tensor([[9.0, 1.0]]), 1.0)
    assert never.tolist() == equal.tolist()  # a suppressed one has no value, and alone is its mean


def head(width, seed):
    weight = torch.randn(1, width, generator=torch.Generator().manual_seed(seed))
    return partial(linear, weight=weight, bias=torch.zeros(1))


QUERIES = [Query(prompt, slot, 6) for slot, prompt in enumerate(PROMPTS)]


def generated(policy, *guides, temperature=1.0):
    policy.guide = Guidance(guides) if guides else None
    return policy.generate(QUERIES, Drawing(3, temperature, 4))


def states_of(policy, sequences, row, ids):
    """The hidden state before each token of some ids behind the prompt of a row, and behind the last."""
    device = sequences.ids.device
    text = torch.tensor([[*ids, policy.model.pad_id]], device=device)
    real, prompt = torch.ones_like(text, dtype=torch.bool), sequences.prompt[row : row + 1]
    alone = Sequences(sequences.context, sequences.features, prompt, text, real)
    return policy.states(policy.network, alone, torch.tensor([0]))[0]


@pytest.mark.parametrize(("top", "temperature"), [(3, 1.0), (1000, 1.0), (3, 0.0)])
def test_every_drawn_token_has_the_probability_of_an_enumeration(top, temperature):
    """Two guides of the present network: every candidate's text is scored by itself, without a cache."""
    policy = token_policy(max_tokens=4)
    width = policy.states(policy.network, *_first(policy)).shape[-1]
    guides = [Guide(nullcontext, head(width, seed), beta, top) for seed, beta in ((0, 2.0), (1, -1.0))]
    sequences, made = generated(policy, *guides, temperature=temperature)
    assert made.real.sum(1).min() < made.real.sum(1).max() or temperature == 0
    ends = set(policy.ends.tolist())
    with torch.no_grad():
        for row in range(0, len(made.ids), 9):
            own = made.ids[row][made.real[row]].tolist()
            for place, token in enumerate(own):
                before = states_of(policy, sequences, row, own[:place])[place]
                plain = policy._log_softmax(policy.network, before[None], torch.tensor([place == 0]), 1.0)[0]
                likely = plain.topk(min(top, len(plain))).indices.tolist()
                total = plain.clone()
                for guide in guides:
                    behind = {
                        one: before
                        if one in ends
                        else states_of(policy, sequences, row, [*own[:place], one])[place + 1]
                        for one in likely
                        if plain[one].isfinite()
                    }
                    values = {one: float(guide.value(state[None])[0]) for one, state in behind.items()}
                    mean = sum(values.values()) / len(values)
                    for one, value in values.items():
                        total[one] += guide.beta * (value - mean)
                wanted = torch.log_softmax(total, 0)
                assert float(made.log_probs[row, place]) == pytest.approx(float(wanted[token]), abs=2e-4)
                assert temperature or token == int(wanted.argmax())


def _first(policy):
    sequences, _ = generated(policy)
    return sequences, torch.tensor([0])


def test_a_guide_of_weight_0_draws_what_is_drawn_without():
    policy = token_policy(max_tokens=4)
    _, plain = generated(policy)
    _, made = generated(policy, Guide(nullcontext, lambda state: state[:, 0], 0.0, 3))
    width = made.ids.shape[1]
    assert torch.equal(made.ids, plain.ids[:, :width]) and torch.equal(made.real, plain.real[:, :width])
    torch.testing.assert_close(made.log_probs, plain.log_probs[:, :width], rtol=0, atol=1e-5)


def has_a(prompts, outputs) -> list[float]:
    return [float("a" in output.text.split()) for output in outputs]


@pytest.mark.slow
def test_a_critic_of_a_frozen_policy_guides_the_evaluations_of_another_run(tmp_path):
    """The critic alone learns for all steps; evaluations of a run that has it as a guide find more rewards, with the
    weights as they are, and rollouts are not guided."""
    learning: Any = {"reward": has_a, "group_size": 16, "prompts_per_step": 3, "lr": 1e-2}
    rule = "critic(lr=0.02, lam=0.95, updates=4, warmup=12)"
    with pytest.warns(UserWarning, match="warmup"):
        first = trainer(
            token_policy(), tmp_path / "a", PROMPTS, steps=12, save_every=12, **learning,
            **algorithm_blocks("ppo", networks=[rule]),
        )  # fmt: skip
    first.fit()
    start = next((tmp_path / "a").rglob("step-000012"))
    found = {}
    for beta in (0.0, 20.0, -20.0):
        networks = [f"guide(start='{start}', beta={beta}, name='values')"]
        policy = token_policy(evaluation_temperature=1.0)
        made = trainer(
            policy, tmp_path / str(beta), PROMPTS, heldout=PROMPTS, steps=1, **learning,
            **algorithm_blocks("grpo", networks=networks, terms=[]),
        )  # fmt: skip
        request = Request(PROMPTS, [0, 1, 2], 64, 5)
        plain = policy.sample(request)
        with made.callbacks.evaluated_weights():
            guided = policy.sample(request)
        assert policy.guide is None
        found[beta] = sum(has_a(PROMPTS, guided)) / len(guided)
        assert beta or [one.text for one in guided] == [one.text for one in plain]
        assert len(attached(made, ValueGuidance).guides) == 1
    assert found[20.0] > found[0.0] + 0.1 > found[-20.0] + 0.2, found


def test_a_guide_is_a_critic_of_the_same_model(tmp_path):
    rules = ["guide(start='a', beta=1.0)", "guide(start='b', beta=-1.0, name='other')"]
    assert len(bind_networks(rules)) == 2  # several are added
    with pytest.raises(ValueError, match="'guide' twice"):
        bind_networks([rules[0], rules[0]])
    plain = trainer(
        token_policy(), tmp_path, PROMPTS, reward=has_a, steps=1, save_every=1, **algorithm_blocks("grpo", terms=[])
    )
    plain.fit()
    start = next(tmp_path.rglob("step-000001"))
    blocks = algorithm_blocks("grpo", networks=[f"guide(start='{start}', beta=1.0)"], terms=[])
    with pytest.raises(ValueError, match="guide.*no critic of the name 'critic'"):
        trainer(token_policy(), tmp_path / "b", PROMPTS, reward=has_a, **blocks)
    with pytest.raises(ValueError, match="search=sample"):
        trainer(token_policy(search="beam"), tmp_path / "c", PROMPTS, reward=has_a, **blocks)
