"""Several engines share the prompts of a round, and one that dies loses none."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmgrpo.config.settings import config_class
from mmgrpo.engines.balanced import Balanced, balanced_shares
from mmgrpo.engines.engine import Drawn, EngineFailure, Synchronized, Unanswered, parameters
from mmgrpo.engines.sampler import OwnSampler
from mmgrpo.family import family
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.types import Request
from pipelines.engines import draw_with_engine
from tests.building import trainer
from tests.unit.engines.test_engine import PROMPTS, Faulty, client, policy, rolled, shift
from tests.unit.test_ahead import short


class Counting:
    """Our own sampler, which notes the prompts that it draws and may fail."""

    def __init__(self, seed: int = 9) -> None:
        self.inner = OwnSampler(policy(seed=seed))
        self.name, self.whole, self.form = f"engine {seed}", False, "own"
        self.drawn: list[list[str]] = []
        self.dead = False

    def fingerprints(self) -> Any:
        self.refuse()
        return self.inner.fingerprints()

    def load(self, tensors: Any, version: int) -> None:
        self.refuse()
        self.inner.load(tensors, version)

    def generate(self, asked: Any, rules: Any, drawing: Any) -> list[list[Drawn]]:
        self.drawn.append([one.query.prompt.id for one in asked])
        self.refuse()
        return self.inner.generate(asked, rules, drawing)

    def refuse(self) -> None:
        if self.dead:
            raise Unanswered(f"rollout.engine: {self.name} does not answer")

    def rest(self) -> None:
        self.refuse()

    def close(self) -> None: ...


def balanced(trained: TokenPolicy, *engines: Any, patience: float = 0.0, overlaps: bool = False) -> Balanced:
    made = [
        Synchronized(one, lambda: parameters(trained.network), trained.model, max_gap=1e-4, overlaps=overlaps)
        for one in engines
    ]
    several = Balanced(made, patience=patience, pause=0.01)
    trained.draw_with(several)
    return several


@pytest.mark.parametrize(("urls", "patience"), [(["a"], [60.0]), (["a", "b"], [0.0, 0.0])])
def test_a_server_is_waited_for_unless_another_can_draw_in_its_place(urls, patience, monkeypatch):
    made, trained, config = [], policy(), config_class(family("causal_lm").sections)()

    def begun(url, token, timeout, patience, run, title):
        made.append(Counting())
        made[-1].name, made[-1].patience = url, patience
        return made[-1]

    monkeypatch.setattr("mmgrpo.engines.served.Client", begun)
    config.rollout = replace(config.rollout, engine="served", url=urls, patience=60.0)
    draw_with_engine(family("causal_lm"), config, trained, "cpu", 1, 0)
    assert [(client.name, client.patience) for client in made] == [*zip(urls, patience, strict=True)]
    assert len(urls) == 1 or trained.engine.patience == 60.0, "for which all together are waited for"


@pytest.mark.parametrize(
    ("work", "count", "expected"),
    [
        ({0: 3, 1: 5, 2: 4, 3: 3}, 2, [[1, 3], [0, 2]]),  # 5 + 3 and 4 + 3
        ({0: 1, 1: 1, 2: 1}, 3, [[0], [1], [2]]),
        ({4: 2}, 2, [[4], []]),
        ({0: 1}, 0, []),
    ],
)
def test_the_largest_work_goes_to_the_share_with_the_least(work, count, expected):
    assert balanced_shares(work, count) == expected


def test_a_round_is_divided_and_has_the_samples_of_one_engine():
    alone, trained, engines = policy(), policy(), [Counting(9), Counting(8)]
    balanced(trained, *engines)
    for number in range(2):
        one, other = rolled(alone, number), rolled(trained, number)
        assert torch.equal(one.steps.ids, other.steps.ids) and torch.equal(one.steps.real, other.steps.real)
        torch.testing.assert_close(
            other.decisions.fields["sampler_log_probs"], one.decisions.log_probs, rtol=0, atol=1e-5
        )
        for several in (alone, trained):
            shift(several.network, 50)
    # The longest prompt is the share of one of them, the two shorter ones of the other.
    assert [engine.drawn for engine in engines] == [[["1"]] * 2, [["0", "2"]] * 2]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("when", ["sync", "drawing"])
def test_what_an_engine_no_longer_draws_the_others_draw(which, when, capsys):
    alone, trained, engines = policy(), policy(), [Counting(9), Counting(8)]
    balanced(trained, *engines)
    rolled(alone), rolled(trained)
    for several in (alone, trained):
        shift(several.network, 50)
    if when == "sync":
        engines[which].dead = True
    else:
        generate = engines[which].generate

        def dies(*asked: Any) -> Any:
            engines[which].dead = True
            return generate(*asked)

        engines[which].generate = dies  # type: ignore[method-assign]
    assert torch.equal(rolled(alone, 1).steps.ids, rolled(trained, 1).steps.ids)
    assert sorted(engines[1 - which].drawn[-1]) == (["0", "1", "2"] if when == "sync" else [["1"], ["0", "2"]][which])
    assert ("does not answer; the other engines draw for its" in capsys.readouterr().err) == (when == "drawing")
    engines[which].dead = False
    if when == "drawing":
        engines[which].generate = generate  # type: ignore[method-assign]
    for several in (alone, trained):
        shift(several.network, 50)
    assert torch.equal(rolled(alone, 2).steps.ids, rolled(trained, 2).steps.ids)
    assert engines[which].drawn[-1] == [["1"], ["0", "2"]][which], "it is asked again"


def test_a_round_waits_where_none_answers_and_stops_after_the_patience():
    alone, trained, engines = policy(), policy(), [Counting(9), Counting(8)]
    balanced(trained, *engines, patience=0.1)
    for one in engines:
        one.dead = True
    with pytest.raises(EngineFailure, match="does not answer"):
        rolled(trained)
    several = balanced(trained, *engines, patience=60.0)
    ready, failures = several.engines[0].ready, [3]

    def comes_back(drawing: Any) -> Any:
        failures[0] -= 1
        engines[0].dead = failures[0] > 0
        return ready(drawing)

    several.engines[0].ready = comes_back  # type: ignore[method-assign]
    assert torch.equal(rolled(alone).steps.ids, rolled(trained).steps.ids) and failures[0] <= 0


def test_what_was_begun_by_an_engine_that_died_is_drawn_with_the_weights_of_then():
    alone, trained, engines = policy(), policy(), [Counting(9), Counting(8)]
    several = balanced(trained, *engines, overlaps=True)
    request = Request(PROMPTS, [0, 1, 2], 4, seed=3, round=0)
    wanted = rolled(alone)
    several.holds(0)
    trained.begin(request)
    several.settle(0)
    assert [engine.drawn for engine in engines] == [[["1"]], [["0", "2"]]]
    several.engines[1].begun = {key: failed() for key in several.engines[1].begun}
    assert torch.equal(trained.rollout(request).steps.ids, wanted.steps.ids)
    assert engines[0].drawn[-1] == ["0", "2"]


def failed() -> Any:
    """What was begun by an engine that has died since."""
    from concurrent.futures import Future

    one: Any = Future()
    one.set_exception(Unanswered("rollout.engine: it does not answer"))
    return one


def test_a_run_on_two_servers_of_which_one_is_killed_loses_no_round(serve, tmp_path):
    """Its metrics and weights are those of a run whose servers live."""
    found = []
    for killed in (False, True):
        urls = [serve(OwnSampler(policy(seed=seed))) for seed in (9, 8)]
        trained = policy()
        clients = [client(url) for url in urls]
        balanced(trained, *clients)
        for one in clients:
            one.patience = 0.0
        run = trainer(trained, tmp_path / str(killed), PROMPTS, reward=short, steps=4, prompts_per_step=3, lr=1e-2)
        for number in range(4):
            if killed and number == 2:
                serve.stop()  # the second
            run.run_round()
        for one in clients:
            one.close()
        found.append(dict(trained.network.named_parameters()))
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name


def test_the_cost_of_8_bits_is_printed_once(capsys):
    trained, engine = policy(), Faulty(OwnSampler(policy(seed=9)))
    made = Synchronized(
        engine, lambda: parameters(trained.network), trained.model, max_gap=0.2, note="rollout.quantization fp8"
    )
    trained.draw_with(made)
    engine.answer = lambda one: Drawn(one.ids, [value - 0.125 for value in one.log_probs], one.version)
    for number in range(2):
        rolled(trained, number)
    [line] = [line for line in capsys.readouterr().out.splitlines() if "fp8" in line]
    assert "0.12 nats per token" in line or "0.13 nats per token" in line


def test_a_mixture_model_is_known_by_its_configuration():
    from pipelines.engines import experts_of

    for name, count in (("num_experts", 8), ("num_local_experts", 4), ("n_routed_experts", 64), ("hidden_size", 0)):
        config = SimpleNamespace(**{name: count})
        network = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda config=config: config))
        assert experts_of(network) == count
