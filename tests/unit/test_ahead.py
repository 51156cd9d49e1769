"""Rounds drawn ahead of their updates: by which weights, on which prompts, at the same time, and again after a kill."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from mmgrpo.config.settings import Engine as Settings
from mmgrpo.engines.denoising import OwnDenoiser, SynchronizedDenoiser, lanes_of
from mmgrpo.engines.engine import Drawn, EngineFailure, Forgotten, Lanes, Synchronized, fingerprint, parameters
from mmgrpo.engines.sampler import OwnSampler
from mmgrpo.policies.flow_matching import FlowMatchingPolicy
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.report.run_record import display_form, write_group
from mmgrpo.rounds.ahead import Ahead
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.trainer import Trainer
from mmgrpo.types import Output, Prompt
from mmgrpo.update import LossRecipe
from pipelines.text.causal_lm import toy
from tests.building import algorithm_blocks, attached, matching_policy_over, near_one, trainer
from tests.toys import ToyModel, toy_policy, toy_prompts

pytest.importorskip("transformers")

PROMPTS = [Prompt(f"say {word}", word) for word in ("a", "b", "a b", "b a", "a a", "b b")]


def short(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    return [-float(len(output.text)) for output in outputs]  # type: ignore[union-attr]


def long(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    return [float(len(output.text) > 3) for output in outputs]  # type: ignore[union-attr]


def ends(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    return [-float(output.tokens % 3) for output in outputs]  # type: ignore[union-attr]


# Thoughts that are cut off after 4 tokens are ended by given words, and go on with the weights that drew them.
SCALE_RL = algorithm_blocks("scale_rl", added="interrupted(text=' b', marker='b b b', tokens=2, least=2)")


def slow(*values: Any, **named: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow, **named)


class Watched:
    """An engine with its own network, that notes what it draws with, and does what a test wants before it."""

    def __init__(self, before: Callable[[Any], None] = lambda drawing: None) -> None:
        self.inner, self.before = OwnSampler(TokenPolicy(toy(["say", "a", "b"]), max_tokens=5)), before
        self.name, self.whole, self.form = "the engine", False, "own"
        self.drawn: list[tuple[int, int, str]] = []
        self.fingerprints, self.load = self.inner.fingerprints, self.inner.load

    def generate(self, asked: Any, rules: Any, drawing: Any) -> list[list[Drawn]]:
        self.before(drawing)
        held = print_of(self.inner.policy.network)
        self.drawn.append((drawing.seed, drawing.round, held))
        assert self.inner.weights.version == drawing.round and held == print_of(self.inner.policy.network)
        return self.inner.generate(asked, rules, drawing)

    def rest(self) -> None: ...

    def close(self) -> None: ...


def print_of(network: Any) -> str:
    return "".join(fingerprint(one) for _, one in parameters(network))


def made(
    folder: Path, staleness: int, *engines: Any, overlaps: bool = True, steps: int = 5, **settings: Any
) -> Trainer:
    """A run whose rounds the engines draw, or the policy itself."""
    policy = TokenPolicy(toy(["say", "a", "b"]), max_tokens=5)
    lanes = [
        Synchronized(one, lambda: parameters(policy.network), policy.model, max_gap=1e-4, overlaps=overlaps)
        for one in engines
    ]
    if lanes:
        policy.draw_with(lanes[0] if len(lanes) == 1 else Lanes(lanes))
    blocks = {"loss": LossRecipe.of("cispo_cap(cap=5.0)", "per_prompt", "tis(cap=2.0)"), **settings}
    return trainer(policy, folder, PROMPTS, **{"reward": short, "steps": steps, **blocks}, staleness=staleness)


def lines(run: Trainer) -> list[dict[str, float]]:
    rows = read_metrics(run.folder / "metrics.jsonl")
    left_out = ("time/", "memory", "seconds", "run")
    return [{name: value for name, value in row.items() if not name.startswith(left_out)} for row in rows]


@pytest.mark.parametrize(
    ("k", "settings"),
    [
        pytest.param(1, {}, id="1"),
        slow(2, {}, id="2"),
        slow(3, {"updates": 2, "steps": 12}, id="3"),
        slow(1, {"sampler": ["dynamic_sampling(rounds=2)"], "reward": long}, id="redraws"),
        slow(2, {"sampler": ["retire(at=-2.5)"]}, id="filter"),
        slow(1, {**SCALE_RL, "reward": ends}, id="scale_rl"),
        slow(1, {"schedules": {"sampling.temperature": "linear(1.2, 0.7)", "data.group_size": "stages(4, (3, 6))"}}),
    ],
)
def test_engines_that_overlap_give_the_numbers_of_a_run_that_draws_one_round_after_the_other(tmp_path, k, settings):
    sequential = made(tmp_path / "sequential", k, Watched(), overlaps=False, **settings)
    engines = [Watched() for _ in range(k)]
    overlapped = made(tmp_path / "overlapped", k, *engines, **settings)
    alone = made(tmp_path / "alone", k, **settings)
    for run in (sequential, overlapped, alone):
        run.fit()
    assert lines(overlapped) == lines(sequential)
    assert settings.get("loss") is None or sum(line["added/rows"] for line in lines(overlapped)) > 0
    for one, other in zip(lines(alone), lines(sequential), strict=True):  # a sampler's log-probs differ in rounding
        assert one["reward/reward/mean"] == other["reward/reward/mean"]
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-5)
    for engine in engines:
        versions = [version for _, version, _ in engine.drawn]
        assert versions == sorted(versions) != [], "no weights are sent back for more rows of an earlier round"
    behind = [line["rollout/staleness"] for line in lines(overlapped)]
    per_round = overlapped.optim.steps_per_round
    assert behind[::per_round] == [float(min(k, number)) for number in range(len(behind) // per_round)]


def test_a_round_is_drawn_with_the_weights_of_k_rounds_before_and_its_old_log_probs_are_theirs(tmp_path, monkeypatch):
    engine, k = Watched(), 2
    run = made(tmp_path, k, engine, overlaps=False, steps=6)
    weights: list[str] = []
    batches: list[Any] = []
    round_, step = run.run_round, run._step

    def noted(bar: Any = None) -> None:
        weights.append(print_of(run.policy.network))
        kept.append({name: one.detach().clone() for name, one in run.trained.items()})
        round_(bar)

    def stepped(batch: Any, *rest: Any) -> Any:
        batches.append((batch, not run.moved))
        return step(batch, *rest)

    kept: list[dict[str, torch.Tensor]] = []
    monkeypatch.setattr(run, "run_round", noted)
    monkeypatch.setattr(run, "_step", stepped)
    run.fit()
    assert [held for *_, held in engine.drawn] == [weights[max(0, number - k)] for number in range(6)]
    assert [version for _, version, _ in engine.drawn] == [0, 0, 0, 1, 2, 3]
    for number, (batch, on_policy) in enumerate(batches):
        version = max(0, number - k)
        assert batch.decisions.fields["version"].tolist() == [version] * 8
        assert on_policy == (number == version)  # a ratio is against the weights that drew
        with torch.no_grad():
            for name, value in kept[version].items():
                run.trained[name].copy_(value)
            policy: Any = run.policy
            scored = policy._training_scores(batch.rollouts[0].steps)["log_probs"]
        mask = batch.decisions.decision_mask
        torch.testing.assert_close(scored[mask], batch.decisions.log_probs[mask], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_round_that_is_chosen_ahead_has_the_settings_of_its_own_first_step(tmp_path):
    """Two steps a round: from step 4, that is round 2, on groups of 6 and a lower temperature."""
    changes = {"data.group_size": "stages(4, (4, 6))", "sampling.temperature": "stages(1.2, (4, 0.7))"}
    engines = [Watched(), Watched()]
    run = made(tmp_path, 2, *engines, updates=2, steps=8, schedules=changes, save_every=2)
    run.run_round()

    def ahead(run: Trainer) -> dict[int, Any]:
        several = attached(run, Ahead).chosen.items()
        return {n: (one.settings.group_size, one.version, one.first()) for n, one in several if n >= run.round}

    assert [(n, size, version) for n, (size, version, _) in ahead(run).items()] == [(1, 4, 0), (2, 6, 0)]
    run.save()
    resumed = made(tmp_path, 2, Watched(), Watched(), updates=2, steps=8, schedules=changes)
    assert resumed.resume() and ahead(resumed) == ahead(run)
    run.fit()
    assert [line["rollout/rows"] for line in lines(run)[::2]] == [8, 8, 12, 12]
    assert sum(len(engine.drawn) for engine in engines) == 4, "what was begun is what is asked for"


def test_the_next_round_is_drawn_while_this_one_is_scored_and_trained(tmp_path):
    """The engine does not answer before the update that follows its begin is done: one after the other would stop."""
    trained, waited = threading.Event(), []

    def before(drawing: Any) -> None:
        if drawing.round and run.step < run.steps - 1:
            waited.append(trained.wait(20))
            trained.clear()

    run = made(tmp_path, 1, Watched(before), steps=5)
    step = run._step

    def stepped(*given: Any) -> Any:
        result = step(*given)
        if run.round:
            trained.set()
        return result

    run._step = stepped  # type: ignore[method-assign]
    run.fit()
    assert waited and all(waited)


@pytest.mark.parametrize(
    ("k", "settings"), [(2, {}), slow(1, {"sampler": ["retire(at=-2.5)"]}), slow(2, {"updates": 2})], ids=str
)
def test_a_run_that_is_stopped_draws_what_was_not_trained_again_and_ends_with_the_same_bits(tmp_path, k, settings):
    """Weights of the versions and chosen prompts are in the checkpoint; samples are not."""
    whole = made(tmp_path / "whole", k, *[Watched() for _ in range(k)], steps=6, **settings)
    whole.fit()
    stopped = made(tmp_path / "cut", k, *[Watched() for _ in range(k)], steps=6, save_every=1, **settings)
    for _ in range(2):
        stopped.run_round()
    stopped.save()
    resumed = made(tmp_path / "cut", k, *[Watched() for _ in range(k)], steps=6, **settings)
    assert resumed.resume() and attached(resumed, Ahead).chosen[resumed.round].version < resumed.round
    resumed.fit()
    assert lines(resumed) == lines(whole)
    for name, value in whole.trained.items():
        assert torch.equal(value, resumed.trained[name])


@pytest.mark.slow
def test_a_checkpoint_of_a_run_without_it_and_one_with_it_resume_either_way(tmp_path):
    first = made(tmp_path, 1, Watched(), save_every=1, steps=2)
    first.fit()
    without = made(tmp_path, 0, Watched(), save_every=1, steps=3)
    assert without.resume() and not any(isinstance(one, Ahead) for one in without.callbacks)
    without.fit()
    assert "rollout/staleness" not in lines(without)[-1]
    again = made(tmp_path, 2, Watched(), Watched(), steps=6)
    assert again.resume()
    again.fit()
    assert [line.get("rollout/staleness") for line in lines(again)] == [0, 1, None, 0, 1, 2]


def dies(drawing: Any) -> None:
    if drawing.round == 2:
        raise EngineFailure("rollout.engine: the engine does not answer")


def forgets() -> Callable[[Any], None]:
    left = [1]

    def before(drawing: Any) -> None:
        if drawing.round == 2 and left:
            left.clear()
            raise Forgotten

    return before


class NotFinite(Watched):
    def generate(self, asked: Any, rules: Any, drawing: Any) -> list[list[Drawn]]:
        rows = super().generate(asked, rules, drawing)
        if drawing.round != 2:
            return rows
        return [[Drawn(one.ids, [float("nan")] * len(one.ids), one.version) for one in row] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "reason"), [(Watched(dies), "does not answer"), (NotFinite(), "not finite")])
def test_an_engine_that_dies_or_answers_nan_while_the_trainer_computes_loses_no_step(tmp_path, engine, reason):
    """The update at the time goes on; the run stops where it would train on what failed, and goes on from there."""
    whole = made(tmp_path / "whole", 1, Watched())
    whole.fit()
    run = made(tmp_path / "run", 1, engine)
    with pytest.raises(EngineFailure, match=reason) as caught:
        run.fit()
    assert "\n" not in str(caught.value)
    assert run.step == 3 and run.checkpoints.saved == 3  # round 3 was to be drawn by the weights of round 2
    again = made(tmp_path / "run", 1, Watched())
    assert again.resume()
    again.fit()
    assert lines(again) == lines(whole)


@pytest.mark.slow
def test_an_engine_that_was_started_again_meanwhile_is_sent_the_earlier_weights_again(tmp_path):
    whole, run = made(tmp_path / "whole", 1, Watched()), made(tmp_path / "run", 1, Watched(forgets()))
    whole.fit()
    run.fit()
    assert lines(run) == lines(whole)


@pytest.mark.slow
def test_a_server_that_is_slow_while_the_trainer_computes_is_waited_for(tmp_path):
    def slow(drawing: Any) -> None:
        time.sleep(0.2)

    whole, run = made(tmp_path / "whole", 1, Watched()), made(tmp_path / "run", 1, Watched(slow))
    whole.fit()
    run.fit()
    assert lines(run) == lines(whole)


def test_every_policy_may_train_on_rounds_of_earlier_weights(tmp_path):
    """A denoising policy draws them itself, one after the other; with 0 the run is the one without."""
    found = []
    for name, staleness in (("none", None), ("zero", 0), ("one", 1)):
        given: dict[str, Any] = {} if staleness is None else {"staleness": staleness}
        run = trainer(toy_policy(), tmp_path / name, toy_prompts(4), steps=4, **given)
        run.fit()
        found.append([{n: v for n, v in line.items() if n != "rollout/staleness"} for line in lines(run)])
    assert found[0] == found[1] != found[2]
    assert found[0][0] == found[2][0]  # the first round is of the present weights


NFT = {
    **algorithm_blocks("diffusion_nft"),
    "reward": near_one,
    "group_size": 4,
    "prompts_per_step": 2,
    "lr": 1e-2,
    "steps": 6,
}


class Drawing(OwnDenoiser):
    """Our own denoising sampler, which notes the round and the weights with which it draws, and may wait."""

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        super().__init__(matching(seed=9), "the engine")
        self.wait, self.drawn = wait, list[tuple[int, str]]()

    def trajectories(self, request: Any) -> list[Any]:
        self.wait()
        self.drawn.append((request.round, print_of(self.policy.network)))
        return super().trajectories(request)


def matching(seed: int = 0) -> FlowMatchingPolicy:
    settings: dict[str, Any] = {"steps": 4, "draws": 2, "error": "self_normalized", "evaluation_steps": 4}
    return matching_policy_over(cast(Any, ToyModel(seed=seed)), draws_per="sample", **settings)


def drawn_ahead(folder: Path, k: int, *engines: Drawing, overlaps: bool = True, **settings: Any) -> Trainer:
    """A run of DiffusionNFT whose samples the engines draw, or the policy itself."""
    policy = matching()
    lanes = [
        SynchronizedDenoiser(one, lambda: parameters(policy.network), max_gap=1e-4, overlaps=overlaps)
        for one in engines
    ]
    if lanes:
        policy.draw_with(lanes_of(lanes))
    return trainer(policy, folder, toy_prompts(5), **{**NFT, **settings}, staleness=k)


@pytest.mark.parametrize("preset", ["diffusion_nft", "awm", "dgpo"])
@pytest.mark.parametrize("k", [1, slow(2)])
def test_samples_without_likelihood_that_overlap_give_the_bits_of_a_run_that_draws_them_in_turn(tmp_path, k, preset):
    """At equal age, whatever draws: the policy itself, one engine in turn, or k engines beside the trainer. A network
    that draws in place of the trained one is that of k rounds before, too."""
    blocks = algorithm_blocks(preset)
    engines = [Drawing() for _ in range(k)]
    runs = {
        "alone": drawn_ahead(tmp_path / "alone", k, **blocks),
        "sequential": drawn_ahead(tmp_path / "sequential", k, Drawing(), overlaps=False, **blocks),
        "overlapped": drawn_ahead(tmp_path / "overlapped", k, *engines, **blocks),
    }
    fresh = drawn_ahead(tmp_path / "fresh", 0, **blocks)
    ages = {name: list[float]() for name in runs}
    for name, run in runs.items():
        policy: Any = run.policy
        own = policy.rollout

        def noted(request: Any, own: Any = own, found: list[float] = ages[name]) -> Any:
            rollout = own(request)
            found += {*rollout.decisions.fields["age"].tolist()} if "age" in rollout.decisions.fields else ()
            return rollout

        policy.rollout = noted
        run.fit()
    fresh.fit()
    assert ages["sequential"] == ages["overlapped"] == [float(min(k, number)) for number in range(6)]
    of_none = [{n: v for n, v in line.items() if n != "rollout/staleness"} for line in lines(runs["alone"])]
    for name in ("sequential", "overlapped"):
        assert [{n: v for n, v in line.items() if n != "rollout/staleness"} for line in lines(runs[name])] == of_none
        assert all(map(torch.equal, *(run.policy.network.parameters() for run in (runs[name], runs["alone"]))))
    assert not all(map(torch.equal, *(run.policy.network.parameters() for run in (fresh, runs["alone"]))))
    assert sorted(number for engine in engines for number, _ in engine.drawn) == list(range(6))
    assert len({weights for engine in engines for _, weights in engine.drawn}) == 6 - k


def test_the_next_samples_are_drawn_while_the_trainer_computes(tmp_path):
    """The engine waits for the update of the round before: drawn in turn, the two would wait for each other."""
    updated = threading.Event()
    rounds = [0]

    def wait() -> None:
        rounds[0] += 1
        if rounds[0] == 2:
            assert updated.wait(60.0)

    run = drawn_ahead(tmp_path, 1, Drawing(wait), steps=2)
    step = run._step

    def noted(*given: Any) -> Any:
        updated.set()
        return step(*given)

    run._step = noted  # type: ignore[method-assign]
    run.fit()
    assert rounds[0] == 2 and updated.is_set()


def test_a_killed_run_draws_what_was_not_trained_again_with_the_same_bits(tmp_path):
    whole = drawn_ahead(tmp_path / "whole", 1, Drawing())
    whole.fit()
    half = drawn_ahead(tmp_path / "run", 1, Drawing(), steps=6)
    for _ in range(3):
        half.run_round()
    half.save()
    resumed = drawn_ahead(tmp_path / "run", 1, Drawing())
    assert resumed.resume() and attached(resumed, Ahead).chosen[3].version == 2
    resumed.fit()
    assert all(map(torch.equal, whole.policy.network.parameters(), resumed.policy.network.parameters()))


def test_the_group_that_is_kept_has_the_age_of_its_rows(tmp_path):
    run, ages = drawn_ahead(tmp_path, 1, Drawing(), steps=3), []
    begin = run.record.begin_round

    def written(round_: Any) -> None:
        place = tmp_path / "kept" / str(len(ages))
        write_group(place, run.step, round_, display_form)
        ages.append([member["age"] for member in json.loads((place / "group.json").read_text())["members"]])
        begin(round_)

    run.record.begin_round = written  # type: ignore[method-assign]
    run.fit()
    assert ages == [[0] * 4, [1] * 4, [1] * 4]


def test_prompts_of_rounds_in_flight_are_distinct_as_long_as_the_order_has_others(tmp_path):
    """Redraws take those after the rounds that are chosen: 6 prompts, rounds of 2, one redraw."""
    seen: list[str] = []

    def never(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        seen.extend(dict.fromkeys(prompt.id for prompt in prompts))
        return [0.0] * len(outputs)

    made(tmp_path, 1, Watched(), steps=1, reward=never, sampler=["dynamic_sampling(rounds=1)"]).fit()
    assert len(seen) == len({*seen}) == 4


def loss(**changes: Any) -> LossRecipe:
    return LossRecipe.of("ppo(low=0.2, high=0.2)", "per_sample", **changes)


@pytest.mark.parametrize(
    ("urls", "staleness", "processes", "expected"),
    [
        ("a", 0, 2, ["a", "a"]),
        ("ab", 0, 2, ["a", "b"]),
        ("ab", 1, 2, ["a", "b"]),
        ("ab", 2, 2, ["a b", "a b"]),
        ("abcd", 2, 2, ["a c", "b d"]),
        ("ab", 0, 1, ["ab"]),
        ("abc", 0, 2, ["ac", "b"]),
        ("abcd", 2, 1, ["ac bd"]),
        ("abc", 2, 1, None),
        ("a", 2, 1, None),
    ],
)
def test_every_server_is_used_and_none_is_asked_for_two_rounds_at_once(urls, staleness, processes, expected):
    """The servers of each round of a process, rounds apart."""
    settings = Settings(engine="served", url=[f"http://{one}" for one in urls], max_staleness=staleness)
    if expected is None:
        with pytest.raises(ValueError, match=rf"rollout.url.*{len(urls)} servers.*rollout.max_staleness"):
            settings.check(processes)
        return
    settings.check(processes)
    lanes = [settings.servers(processes, rank) for rank in range(processes)]
    assert [" ".join("".join(url[-1] for url in lane) for lane in several) for several in lanes] == expected
