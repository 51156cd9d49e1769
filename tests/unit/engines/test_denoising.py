"""An engine of a denoising policy draws with the trainer's weights, and what it draws is scored again."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pytest
import torch

from mmgrpo.config.settings import Config, Distributed, Engine, config_class
from mmgrpo.engines.denoising import OwnDenoiser, SynchronizedDenoiser
from mmgrpo.engines.engine import Drift, EngineFailure, Forgotten, parameters
from mmgrpo.family import families
from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.policies.trajectories import Trajectories
from mmgrpo.types import Request
from tests.building import matching_policy_over, near_one, trainer
from tests.toys import ToyModel, toy_policy, toy_prompts

PLANS = ["every_step", "branch_tree(splits=[0,2])", "one_step_branch(draw='all')", "random_window(size=2)"]


def drawn_by(trained: DenoisingPolicy, engine: Any, max_gap: float = 1e-5) -> DenoisingPolicy:
    trained.draw_with(SynchronizedDenoiser(engine, lambda: parameters(trained.network), max_gap=max_gap))
    return trained


def rolled(one: DenoisingPolicy, number: int = 0) -> Any:
    return one.rollout(Request(toy_prompts(3), [0, 1, 2], 4, seed=3 + number, round=number))


@torch.no_grad()
def shift(network: Any, by: float) -> None:
    for one in network.parameters():
        one += by


@pytest.mark.parametrize("plan_per", ["round", "prompt"])
@pytest.mark.parametrize("plan", PLANS)
def test_an_engine_draws_what_the_policy_itself_draws(plan, plan_per):
    """The same outputs, trees and means; log-probs of another forward pass."""
    alone, served = toy_policy(plan, plan_per=plan_per), toy_policy(plan, plan_per=plan_per)
    drawn_by(served, OwnDenoiser(toy_policy(plan, seed=9, plan_per=plan_per)))
    for number in range(2):
        one, other = rolled(alone, number), rolled(served, number)
        for output, again in zip(one.outputs, other.outputs, strict=True):
            assert torch.equal(output.pixels, again.pixels)
        for name in ("loss_mask", "decision_mask", "node"):
            assert torch.equal(getattr(one.decisions, name), getattr(other.decisions, name))
        assert torch.equal(one.decisions.keys["tree"], other.decisions.keys["tree"])
        assert torch.equal(one.decisions.log_probs, other.decisions.fields["sampler_log_probs"])
        torch.testing.assert_close(other.decisions.log_probs, one.decisions.log_probs, rtol=0, atol=1e-5)
        for walk, again in zip(one.steps.walks, other.steps.walks, strict=True):
            torch.testing.assert_close(again.means, walk.means, rtol=0, atol=1e-5)
        for policy in (alone, served):
            shift(policy.network, 0.1)


@dataclass
class Faulty(OwnDenoiser):
    """An engine whose weights or answers are changed."""

    policy: DenoisingPolicy
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = dict
    answer: Callable[[Trajectories], Trajectories] = lambda one: one

    def __post_init__(self) -> None:
        OwnDenoiser.__init__(self, self.policy)

    def load(self, tensors: Any, version: int) -> None:
        OwnDenoiser.load(self, self.change(dict(tensors)).items(), version)

    def trajectories(self, request: Request) -> list[Trajectories]:
        return [self.answer(one) for one in OwnDenoiser.trajectories(self, request)]


@pytest.mark.parametrize(
    "change",
    [
        lambda given: {name: one for name, one in given.items() if name != "inner.bias"},
        lambda given: {name: one - 1e-3 * (name == "outer.weight") for name, one in given.items()},
    ],
    ids=["forgotten", "stale"],
)
def test_a_wrong_sync_is_caught_before_anything_is_trained(change):
    engine, trained = Faulty(toy_policy()), toy_policy()
    drawn_by(trained, engine)
    rolled(trained)
    shift(trained.network, 0.1)
    engine.change = change
    with pytest.raises(Drift, match="nothing was trained"):
        rolled(trained, 1)
    engine.change = dict
    assert rolled(trained, 2).decisions.rows == 12


def changed(one: Trajectories, **fields: Any) -> Trajectories:
    """Also into what no trajectories are: an answer may be anything."""
    made = copy.copy(one)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda one: changed(one, log_probs=one.log_probs - 0.1), "nats per decision"),
        (lambda one: changed(one, states=one.states + 0.01), "nats per decision"),
        (lambda one: changed(one, version=7), "round 7"),
        (lambda one: changed(one, version=-1), "round -1"),
        (lambda one: changed(one, log_probs=one.log_probs * torch.nan), "not finite"),
        (lambda one: changed(one, final=one.final[:-1]), "11 outputs, expected 12"),
        (lambda one: changed(one, source=one.source[:, :-1]), "source"),
        (lambda one: changed(one, target=one.target.clamp(min=len(one.states))), "between states"),
        (lambda one: changed(one, source=one.source.clamp(max=-1)), "between states"),
        (lambda one: changed(one, final=one.final[:, :2]), r"final of shape \[2, 1, 1\]"),
    ],
)
def test_an_answer_that_cannot_be_trained_on_is_one_line(answer, words):
    with pytest.raises(EngineFailure, match=rf"rollout.engine: .*{words}") as caught:
        rolled(drawn_by(toy_policy(), Faulty(toy_policy(), answer=answer)))
    assert "\n" not in str(caught.value)


def test_an_engine_that_has_forgotten_its_weights_is_sent_them_again():
    alone, served, engine = toy_policy(), toy_policy(), OwnDenoiser(toy_policy(seed=9))
    drawn_by(served, engine)
    for _ in range(2):  # the same round, whose weights the engine had
        assert torch.equal(rolled(alone).outputs[0].pixels, rolled(served).outputs[0].pixels)
        engine.weights.version = None
        shift(engine.policy.network, 0.1)


def test_another_model_is_named():
    other = toy_policy()
    other.network.inner = torch.nn.Linear(5, 7)
    with pytest.raises(EngineFailure, match="another model"):
        rolled(drawn_by(toy_policy(), OwnDenoiser(other)))
    with pytest.raises(Forgotten):
        OwnDenoiser(toy_policy()).trajectories(Request(toy_prompts(1), [0], 2, 0))


def test_a_run_with_an_engine_is_the_run_without(tmp_path):
    """Two updates a round, of which the first is on policy; the gap is logged."""
    found = []
    for name in ("alone", "served"):
        policy = toy_policy()
        if name == "served":
            drawn_by(policy, OwnDenoiser(toy_policy(seed=9)))
        settings: dict[str, Any] = {"steps": 6, "updates": 2, "prompts_per_step": 4, "lr": 1e-2}
        made = trainer(policy, tmp_path / name, toy_prompts(5), reward=near_one, **settings)
        made.fit()
        found.append(made)
    alone, served = ([*one.policy.network.parameters()] for one in found)
    for one, other in zip(alone, served, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_behind_http_it_draws_the_same():
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    from mmgrpo.engines.served import Client, application
    from mmgrpo.scoring.server import Running

    server = Running(application(OwnDenoiser(toy_policy("branch_tree(splits=[0,2])", seed=9))), "127.0.0.1", 0, 1.0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    alone, served = (toy_policy("branch_tree(splits=[0,2])") for _ in range(2))
    client: Any = Client(f"http://127.0.0.1:{server.port}", patience=0.3, pause=0.1)
    drawn_by(served, client)
    one, other = rolled(alone), rolled(served)
    assert torch.equal(one.decisions.log_probs, other.decisions.fields["sampler_log_probs"])
    with pytest.raises(EngineFailure, match="draws trajectories"):
        client._send("POST", "/generate", {})
    server.stop()
    thread.join()


def test_samples_without_likelihood_come_behind_http_and_what_is_none_is_refused():
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    from mmgrpo.engines.served import Client, application
    from mmgrpo.scoring.server import Running

    def matching(seed: int = 0, **settings: Any) -> Any:
        return matching_policy_over(cast(Any, ToyModel(seed=seed)), steps=4, evaluation_steps=4, **settings)

    server = Running(application(OwnDenoiser(matching(9))), "127.0.0.1", 0, 1.0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    alone, served = matching(), matching()
    client: Any = Client(f"http://127.0.0.1:{server.port}", patience=0.3, pause=0.1)
    drawn_by(served, client)
    for number in range(2):
        one, other = rolled(alone, number), rolled(served, number)
        assert torch.equal(one.steps.clean, other.steps.clean) and len(one.outputs) == len(other.outputs) == 12
        assert torch.equal(one.decisions.log_probs, other.decisions.log_probs)
        assert other.decisions.fields["age"].tolist() == [0.0] * 12 and "age" not in one.decisions.fields
        for policy in (alone, served):
            shift(policy.network, 0.1)
    client.close()
    server.stop()
    thread.join()
    for change, words in (({"final": torch.full((12, 3, 1, 1), torch.nan)}, "not finite"), ({"version": 5}, "round 5")):
        answer = partial(changed, **change)
        with pytest.raises(EngineFailure, match=rf"rollout.engine: .*{words}"):
            rolled(drawn_by(matching(), Faulty(matching(9), answer=answer)))
    for name, settings in (("explore_steps", {"explore_steps": 2}), ("boundaries", {"boundaries": True})):
        with pytest.raises(ValueError, match=rf"rollout\.engine.*sampling\.{name}"):
            drawn_by(matching(**settings), OwnDenoiser(matching(9)))


def config_with(sampling: dict[str, Any], engine: str = "sampler") -> Config:
    config = config_class(families()["sd3"].sections)()
    config = replace(config, model=replace(config.model, path="x", guidance=4.0), rollout=Engine(engine=engine))
    return replace(config, sampling=replace(config.sampling, **sampling))


def test_an_engine_is_sent_whole_weights():
    config = replace(config_with({}), distributed=Distributed("full"))
    config.check()  # auto, which is whole where an engine draws
    with pytest.raises(ValueError, match="distributed.rollout_weights.*blocks.*rollout.engine=sampler"):
        replace(config, distributed=Distributed("full", 1, "blocks")).check()
    replace(config, distributed=Distributed("full", 1, "whole")).check()
