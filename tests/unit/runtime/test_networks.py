"""The networks of a policy by name: they move as their rules say, and resume exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from mmgrpo.config.presets import CATALOGUE, PRESETS
from mmgrpo.config.registry import bind
from mmgrpo.requirements.blocks import refuse_unread
from mmgrpo.requirements.policies import refuse_mismatch, refuse_tasks
from mmgrpo.runtime.networks import NETWORKS, Move, Networks, bind_networks
from mmgrpo.types import Request
from mmgrpo.update import LossRecipe
from pipelines.training import FrozenCopy
from tests.building import algorithm_blocks, matching_policy_over, near_one, recipe, trainer
from tests.journeys.cli.running import metrics
from tests.toys import ToyModel, toy_policy, toy_prompts
from tests.unit.policies.test_every_policy import MADE


class Scalar:
    """One weight."""

    def __init__(self, value: float = 0.0) -> None:
        self.network = nn.Linear(1, 1, bias=False)
        self.reference = FrozenCopy(self.network)
        self.set(value)

    def set(self, value: float) -> None:
        with torch.no_grad():
            self.network.weight.fill_(value)


def weight(networks: Networks, name: str) -> float:
    with networks(name) as network:
        return float(network.weight.detach())  # type: ignore[operator,arg-type]


@pytest.mark.parametrize(
    ("rule", "decays"),
    [
        # DiffusionNFT, type 1 and 2
        ("average(slope=0.001, most=0.5)", {0: 0, 1: 0.001, 100: 0.1, 500: 0.5, 900: 0.5}),
        (
            "average(after=75, slope=0.0075, most=0.999)",
            {74: 0, 75: 0, 76: 0.0075, 100: 0.1875, 200: 0.9375, 208: 0.9975, 209: 0.999},
        ),
        # CRD reaches its cap at 150; TDM-R1 starts at .001
        ("average(start=0.25, slope=0.005, most=0.999)", {0: 0.25, 149: 0.995, 150: 0.999}),
        ("average(start=0.001, slope=0.001, most=0.3)", {0: 0.001, 299: 0.3, 400: 0.3}),
    ],
)
def test_the_decay_of_an_average_is_a_ramp(rule, decays):
    bound = bind(rule, NETWORKS, "networks")
    assert {n: bound({"step": n}).decay for n in decays} == pytest.approx(decays)


def test_a_renewal_comes_with_age_or_with_a_kl_above_its_threshold():
    rule = bind("renewal(every=3, above=0.1)", NETWORKS, "networks")
    cases = {(2, 0.1): 1, (3, 0.0): 0, (0, 0.11): 0}
    inputs = {case: {"age": case[0], "kl": case[1], "stalled": {}} for case in cases}
    assert {case: rule(inputs[case]) for case in cases} == {c: Move(d) for c, d in cases.items()}


def test_an_average_moves_by_its_decay_and_a_reference_when_it_is_renewed():
    model = Scalar(1.0)
    networks = Networks(model)
    networks.follow(bind_networks(["average(start=0.75, most=0.75)", "renewal(every=4)"]))
    model.set(5.0)
    networks.advance(2)
    # .75 * 1 + .25 * 5
    assert (weight(networks, "old"), weight(networks, "reference"), weight(networks, "")) == (2.0, 1.0, 5.0)
    model.set(6.0)
    networks.advance(4)
    assert (weight(networks, "old"), weight(networks, "reference")) == (3.0, 6.0)
    model.set(7.0)
    networks.advance(6)
    assert weight(networks, "reference") == 6.0, "two steps old, renewed after four"


def test_a_loaded_network_is_no_part_of_the_file_it_was_read_from():
    """Where a mapped file has a matrix, its product may round otherwise than before."""
    networks = Networks(Scalar())
    networks.follow(bind_networks(["average(start=0.5)"]))
    mapped = torch.arange(3.0)[1:2].view(1, 1)
    networks.load({"network-old": {"weight": mapped}}, networks.state(), 1)
    assert weight(networks, "old") == 1.0 and networks.values["old"]["weight"].data_ptr() != mapped.data_ptr()


def test_of_the_earlier_networks_every_round_draws_one():
    model = Scalar()
    networks = Networks(model)
    networks.follow(bind_networks(["earlier(every=2, kept=3)"]), seed=1)
    assert weight(networks, "earlier") == 0
    drawn = set()
    for step in range(1, 41):
        model.set(float(step))
        networks.advance(step)
        drawn.add(step - weight(networks, "earlier"))
        assert weight(networks, "earlier") == weight(networks, "earlier")
    assert [*networks.values] == ["earlier@36", "earlier@38", "earlier@40"] and drawn == {0, 1, 2, 3, 4, 5}


def test_a_network_that_is_evaluated_leaves_the_gradient_of_the_present_one_as_it_is():
    model = Scalar(3.0)
    networks = Networks(model)
    networks.follow(bind_networks(["average"]))
    model.set(4.0)
    x = torch.tensor([[2.0]], requires_grad=True)
    loss = model.network(x).square().sum()  # (w x)^2
    with networks("old") as network, torch.no_grad():
        assert float(network(x)) == 6.0
    with pytest.raises(RuntimeError, match="inside"), networks("old"):
        raise RuntimeError("inside")
    loss.backward()
    assert float(model.network.weight.grad) == 32.0 and float(x.grad) == 64.0  # 2 w x^2 and 2 w^2 x at w = 4


@pytest.mark.parametrize("kind", MADE)
def test_every_policy_scores_under_any_network_what_it_did_while_that_was_the_present_one(kind):
    policy, prompts = MADE[kind]()
    policy.networks.follow(bind_networks(["earlier(name='past')"]))
    made = policy.rollout(Request(prompts, [0, 1], 4, 3))
    [part] = made.steps.split(made.decisions.loss_mask, 1000)
    before = policy.score(made, part, frozenset({"log_probs"}))["log_probs"].detach()
    with torch.no_grad():
        for parameter in policy.networks.trained.values():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    got = policy.score(made, part, frozenset({"log_probs", "past.log_probs"}))
    assert torch.equal(got["past.log_probs"], before)
    assert not torch.equal(got["past.log_probs"], got["log_probs"]) and not got["past.log_probs"].requires_grad


LOSS = LossRecipe.of(
    "ppo(low=0.2, high=0.2)",
    "per_sample",
    terms=["kl_k3(coef=0.1)"],
    networks=["average(slope=0.1, most=0.5, samples=True)", "renewal(every=4)"],
)


def made(folder: Path, steps: int, **settings):
    # A decay of the learning rate would depend on the number of steps.
    return trainer(
        toy_policy(steps=4),
        folder,
        toy_prompts(4),
        reward=near_one,
        loss=LOSS,
        steps=steps,
        updates=2,
        save_every=2,
        lr=3e-2,
        **settings,
    )


def test_a_run_that_resumes_has_the_networks_of_one_that_never_stopped(tmp_path):
    whole = made(tmp_path / "whole", 10)
    whole.fit()
    for steps in (6, 10):
        part = made(tmp_path / "part", steps)
        assert part.resume() == (steps == 10)
        part.fit()
    assert metrics(tmp_path / "part") == metrics(tmp_path / "whole")
    assert part.policy.networks.state() == whole.policy.networks.state()
    assert part.policy.networks.values.keys() == whole.policy.networks.values.keys() == {"old", "reference"}
    for name, values in whole.policy.networks.values.items():
        assert all(torch.equal(part.policy.networks.values[name][key], value) for key, value in values.items())
        assert any(not torch.equal(values[key], parameter) for key, parameter in whole.trained.items())


WITH_NETWORKS = sorted(n for n, one in CATALOGUE.items() if one.policies == "matching" and one.blocks["networks"])


@pytest.mark.parametrize("preset", WITH_NETWORKS)
def test_a_run_of_a_preset_resumes_with_all_of_its_networks(preset, tmp_path):
    """Also with rules faster than the preset's, so each has moved, was renewed or stored within six rounds."""
    rules = [one.replace("every=30", "every=2").replace("every=15", "every=2") for one in PRESETS[preset]["networks"]]

    def run(folder: str, steps: int):
        policy = matching_policy_over(
            ToyModel(), steps=4, draws=2, error="velocity", evaluation_steps=4, forward_batch_size=99,
            boundaries=preset == "tdm_r1",
        )  # fmt: skip
        blocks = algorithm_blocks(preset, networks=rules)
        more = {"reward": near_one, "steps": steps, "save_every": 1, "lr": 3e-2, "updates": 2}
        return trainer(policy, tmp_path / folder, toy_prompts(4), **more, **blocks)

    whole = run("whole", 6)
    whole.fit()
    run("part", 4).fit()
    part = run("part", 6)
    assert part.resume()
    part.fit()
    assert metrics(tmp_path / "part") == metrics(tmp_path / "whole")
    assert part.policy.networks.values.keys() == whole.policy.networks.values.keys() != set()
    for name, values in whole.policy.networks.values.items():
        assert all(torch.equal(part.policy.networks.values[name][key], value) for key, value in values.items()), name
    assert all(torch.equal(part.trained[key], value) for key, value in whole.trained.items())


def test_a_sampler_draws_the_rollouts_in_place_of_the_present_network(tmp_path):
    run = made(tmp_path, 2)
    with torch.no_grad():
        run.policy.network.outer.bias += 0.5
    drawn = {name: run.policy.networks(name) for name in ("", "old")}
    request = Request(toy_prompts(1), [0], 2, seed=0)
    samples = {}
    for name, network in drawn.items():
        with network:
            samples[name] = run.policy.rollout(request).outputs[0].pixels
    seen = []
    rollout = run.policy.rollout
    run.policy.rollout = lambda request: (seen.append(float(run.policy.network.outer.bias[0])), rollout(request))[1]
    bias = float(run.policy.network.outer.bias[0].detach())
    run.run_round()
    assert not torch.equal(samples[""], samples["old"])
    assert seen == [pytest.approx(bias - 0.5)]
    first = metrics(tmp_path)[0]
    assert first["ratio/first_minus_one"] == 0 and run.policy.networks.step == 2


@pytest.mark.parametrize(
    ("networks", "objective", "words"),
    [
        (["average"], "ppo", "old.*ask nothing"),
        (["renewal(every=5)"], "ppo", "reference.*ask nothing"),
        (["average(name='log', samples=True)"], "ppo", None),
        ([], "codpo(coef=0.0)", None),
    ],
)
def test_a_network_that_nothing_reads_or_that_has_the_name_of_a_score_is_refused(networks, objective, words):
    loss = LossRecipe.of(objective, "per_sample", networks=networks)
    if words is None:
        refuse_unread(recipe(), loss)
        return refuse_mismatch(toy_policy(), recipe(), loss)
    with pytest.raises(ValueError, match=f"algorithm.networks.*{words}"):
        refuse_unread(recipe(), loss)


@pytest.mark.parametrize(
    ("networks", "words"),
    [
        (["average", "average(slope=0.1)"], "'old' twice"),
        (["average(samples=True)", "average(name='b', samples=True)"], "expected one"),
        (["average(name='two words')"], "two words"),
        (["averag"], "average"),
        (["average(most=1.5)"], "most.*1.5"),
    ],
)
def test_rules_that_contradict_are_refused(networks, words):
    with pytest.raises(ValueError, match=f"algorithm.networks.*{words}"):
        bind_networks(networks)


def test_a_teacher_is_read_from_a_checkpoint_and_is_not_in_those_of_the_run(tmp_path):
    first = made(tmp_path / "first", 2)
    first.fit()
    path = tmp_path / "first" / "checkpoints" / "step-000002"
    policy = toy_policy(seed=5)
    policy.networks.follow(bind_networks([f"frozen(path={str(path)!r})", f"frozen(path={str(path)!r}, task='b')"]))
    with policy.networks("teacher") as network:
        assert all(torch.equal(a, b) for a, b in zip(network.parameters(), first.policy.network.parameters()))
    assert policy.networks.tensors() == {} and policy.networks.tasks("teacher") == ["b"]
    with pytest.raises(FileNotFoundError, match="algorithm.networks.*nowhere"):
        policy.networks.follow(bind_networks(["frozen(path='/nowhere')"]))


def test_a_prompt_whose_task_has_no_teacher_is_refused_by_its_id():
    loss = LossRecipe.of("distillation_step", "per_sample", networks=["frozen(path='a', task='count')"])
    prompts = [replace(prompt, task="count") for prompt in toy_prompts(2)]
    refuse_tasks(loss, prompts)
    with pytest.raises(ValueError, match="algorithm.networks.*count.*'1'.*'colour'"):
        refuse_tasks(loss, [prompts[0], replace(prompts[1], task="colour")])
