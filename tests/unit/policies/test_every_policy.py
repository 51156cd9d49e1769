"""What holds for every kind of policy: it scores what it is asked, counts what it computes, keeps and saves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmgrpo.policies.categorical import CategoricalPolicy
from mmgrpo.policies.ctc import CtcPolicy
from mmgrpo.policies.token_passes import Memory
from mmgrpo.types import Prompt, Request
from tests.building import matching_policy_over
from tests.speaking import TableModel
from tests.toys import ToyModel, toy_policy
from tests.unit.policies.test_ctc_policy import Spelling
from tests.unit.policies.test_parallel_tokens import policy as parallel_policy
from tests.unit.policies.test_token_policy import token_policy

PROMPTS = [Prompt("say a", "0", "a"), Prompt("say b c d a", "1", "b")]
TOYS = [Prompt("", "0", "0"), Prompt("", "1", "1")]
MADE: dict[str, Any] = {
    "categorical": lambda: (CategoricalPolicy(TableModel(2, 7)), PROMPTS),  # type: ignore
    "ctc": lambda: (CtcPolicy(Spelling()), PROMPTS),  # type: ignore
    "denoising": lambda: (toy_policy(steps=3), TOYS),
    "matching": lambda: (
        matching_policy_over(ToyModel(), steps=3, draws=2, error="velocity", evaluation_steps=3, forward_batch_size=64),  # type: ignore
        TOYS,
    ),
    "parallel": lambda: (parallel_policy(), PROMPTS),
    "token": lambda: (token_policy(keep_reference=True), PROMPTS),
}
WITH_ENTROPY = ("categorical", "parallel", "token")


@pytest.fixture(params=MADE)
def kind(request) -> str:
    return request.param


def test_it_scores_what_it_is_asked(kind):
    policy, prompts = MADE[kind]()
    made = policy.rollout(Request(prompts, [0, 1], 4, 3))
    [part] = made.steps.split(made.decisions.loss_mask, 1000)
    asked = [set(), {"log_probs"}, {"log_probs", "reference.log_probs"}]
    asked += [{"log_probs", "entropy"}] if kind in WITH_ENTROPY else []
    for names in asked:
        more = (
            {*("reference.velocity_gap", "reference.shift", "reference.velocity_norm")}
            if "reference.log_probs" in names
            else set()
        ) | {"velocity_norm"}
        got = policy.score(made, part, frozenset(names))
        assert names | {"log_probs"} <= got.keys() <= names | {"log_probs"} | more
        assert got["log_probs"].requires_grad
        assert all(not value.requires_grad for name, value in got.items() if name == "reference.log_probs")


def test_its_decisions_are_its_own_one_after_the_other(kind):
    policy, prompts = MADE[kind]()
    made = policy.rollout(Request(prompts, [7, 4], 4, 3))
    own = made.decisions
    assert own.origin.tolist() == [0] * 8 and own.keys["prompt"].tolist() == [7] * 4 + [4] * 4
    assert [prompt.id for prompt in made.prompts] == ["0"] * 4 + ["1"] * 4
    assert len(own.node[own.decision_mask].unique()) == own.decision_mask.sum()
    assert torch.equal(own.loss_mask, own.decision_mask)
    assert own.fields.keys() == policy.fields
    assert own.keys.keys() == policy.keys and policy.settings is None


def test_it_counts_the_evaluations_of_its_network(kind):
    policy, prompts = MADE[kind]()
    made = policy.rollout(Request(prompts, [0, 1], 4, 3))
    rows, width = made.decisions.log_probs.shape
    # a class and a transcript take one pass a prompt; a sample one a step, and one for each draw; a token one a place,
    # and where tokens are drawn several at a time, one for these
    wanted = {"categorical": 2, "ctc": 2, "denoising": 8 * 3, "matching": 8 * (3 + 2), "token": rows * width}
    wanted["parallel"] = 8 * 2
    assert made.evaluations == wanted[kind]


def test_the_reference_and_the_folder_are_the_models(kind):
    policy, _ = MADE[kind]()
    kept, saved = [], []
    policy.model.reference = SimpleNamespace(keep=lambda: kept.append(True))
    policy.model.save = lambda folder, network: saved.append((folder, network))
    policy.keep_reference()
    policy.save(Path("here"))
    assert kept == [True] and saved == [(Path("here"), policy.network)] and policy.network is policy.model.network


def test_evaluation_has_as_many_outputs_as_it_is_asked_for(kind):
    policy, prompts = MADE[kind]()
    request = Request(prompts, [0, 1], 3, 3)
    outputs = policy.sample(request)
    assert len(outputs) == 6 and len(policy.sample(Request(prompts[1:], [1], 3, 3))) == 3
    again = policy.sample(request)
    for one, other in zip(outputs, again, strict=True):
        assert type(one) is type(other)
        assert torch.equal(one.pixels, other.pixels) if hasattr(one, "pixels") else one == other


def alike(one: Any, other: Any) -> bool:
    """Whether two outputs are the same but for rounding."""
    return torch.allclose(one.pixels, other.pixels, atol=1e-5) if hasattr(one, "pixels") else one == other


def test_a_group_depends_on_its_slot_and_the_seed_alone(kind):
    policy, prompts = MADE[kind]()
    together = policy.rollout(Request(prompts, [0, 1], 8, 3)).outputs[8:]
    alone, moved, other = (
        policy.rollout(Request(prompts[1:], [s], 8, seed)).outputs for s, seed in ((1, 3), (5, 3), (1, 4))
    )
    assert all(map(alike, together, alone))
    assert not all(map(alike, alone, moved)) and not all(map(alike, alone, other))


@pytest.mark.parametrize("limit", [1, 5, 1000])
def test_every_decision_is_in_one_part_and_scored_as_it_was_drawn(kind, limit):
    """Under the reference too, which is the network before the first update, but for tokens."""
    policy, prompts = MADE[kind]()
    policy.keep_reference()
    made = policy.rollout(Request(prompts, [0, 1], 4, 3))
    for name in ("log_probs", "reference.log_probs")[: 1 if kind == "token" else 2]:
        scored, times = torch.zeros_like(made.decisions.log_probs), torch.zeros_like(made.decisions.log_probs)
        for part in made.steps.split(made.decisions.loss_mask, limit):
            scored[part.rows, part.positions] = policy.score(made, part, frozenset({name}))[name].detach()
            times[part.rows, part.positions] += 1
        assert torch.equal(times > 0, made.decisions.loss_mask) and times.max() == 1
        assert list(made.steps.split(torch.zeros_like(made.decisions.loss_mask), limit)) == []
        mask = made.decisions.loss_mask
        torch.testing.assert_close(scored[mask], made.decisions.log_probs[mask], rtol=0, atol=1e-5)


def test_parts_leave_the_gradient_unchanged(kind):
    policy, prompts = MADE[kind]()
    made = policy.rollout(Request(prompts, [0, 1], 4, 3))
    gradients = []
    for limit in (1, 5, 1000):
        policy.network.zero_grad()
        for part in made.steps.split(made.decisions.loss_mask, limit):
            scores = policy.score(made, part, frozenset({"log_probs"}))["log_probs"]
            (scores * (part.rows + 1.0)).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.network.parameters() if p.grad is not None]))
    assert gradients[2].abs().max() > 0
    for gradient in gradients[:2]:
        torch.testing.assert_close(gradient, gradients[2], rtol=1e-4, atol=1e-5)


DEFAULTS = {
    "categorical": {"temperature": 1},
    "ctc": {"temperature": 1, "search": "sample", "evaluation_temperature": 0},
    "parallel": {"temperature": 1, "evaluation_temperature": 1, "batch_size": 64},
    "token": {
        **{"temperature": 1, "top_p": 1, "evaluation_temperature": 0, "memory": Memory()},
        **{"train_truncated": True, "share_prefix": True, "sampling_dtype": ""},
        **{"logits_chunk_size": 4096, "fields": {"truncated", "entropy"}},
    },
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_by_default_it_samples_from_the_distribution_of_the_network(kind):
    policy, _ = MADE[kind]()
    assert {name: getattr(policy, name) for name in DEFAULTS[kind]} == DEFAULTS[kind]
    assert policy.device == torch.device("cpu")
    assert kind != "token" or policy.feature_cache.capacity == 0


def test_a_contrast_that_suits_no_prompt_adds_no_rows():
    (plain, _), request = MADE["token"](), Request(PROMPTS, [0, 1], 4, 3)
    with_contrast = token_policy(keep_reference=True, contrast="shuffled_frames")
    made, wanted = with_contrast.rollout(request), plain.rollout(request)
    assert made.outputs == wanted.outputs and torch.equal(made.decisions.origin, wanted.decisions.origin)
