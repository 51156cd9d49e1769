"""Rows that the policy did not draw from its prompts as they are: replayed, given, hinted."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.advantages.estimate import estimate
from mmgrpo.config.registry import bind
from mmgrpo.objectives import AGGREGATIONS
from mmgrpo.objectives.origins import REPLAYS, Replay, Supervision, likelihood, weights_by_origin
from mmgrpo.policies.categorical import CategoricalPolicy
from mmgrpo.prompts.hints import characters, hint_of_stage, with_hint
from mmgrpo.prompts.replay import Buffer, Stored, choose
from mmgrpo.randomness import stream
from mmgrpo.rounds import replay as replaying
from mmgrpo.rounds.replay import SPLIT
from mmgrpo.rounds.supervised import SupervisedRows
from mmgrpo.runtime import distributed
from mmgrpo.trainer import Trainer
from mmgrpo.types import HINT, HINTED, OWN, REPLACED, REPLAYED, SUPERVISED, Prompt, Request, Turn
from mmgrpo.update import LossRecipe
from reward_models.rules.lengths import triangle_length
from tests.building import algorithm_blocks, attached, recipe, rescored, rounds_of, trainer
from tests.journeys.cli.running import metrics
from tests.speaking import TableModel
from tests.toys import toy_prompts
from tests.trees import plain
from tests.unit.policies.test_beam_search import log_prob_of
from tests.unit.policies.test_token_policy import completions, kept, token_policy

pytest.importorskip("transformers")

PROMPTS = [
    Prompt("say a", "0", "a b c d", meta={"hint": "a column of the user's own"}),
    Prompt("say b c d a", "1", "d c b a"),
]


def stored(prompt: int, reward: float, step: int = 0) -> Stored:
    return Stored(prompt, step, reward, torch.tensor([[reward], [1.0], [0.0]]), {"ids": torch.tensor([step])})


# ---- the buffer


def test_the_buffer_is_bounded_by_prompt_in_all_and_by_age_and_drops_the_oldest():
    def left(settings: Replay, step: int = 3) -> list[tuple[int, int]]:
        buffer = Buffer()
        for round_ in range(3):
            buffer.insert([stored(prompt, 0.0, round_) for prompt in (0, 1)], settings, step)
        return [(row.prompt, row.step) for row in buffer.rows]

    everything = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert left(Replay(1)) == everything
    assert left(Replay(1, per_prompt=2)) == everything[2:]
    assert left(Replay(1, capacity=3)) == everything[3:]
    assert left(Replay(1, age=1)) == everything[4:]
    assert left(Replay(1, above=0.0)) == []


def test_each_tier_of_prompts_has_its_share_of_the_buffer():
    """AVATAR, arXiv:2508.03100: 25, 35 and 40 % of a buffer of 20, here of 20 prompts of average 0, .05, ..., .95."""
    settings = bind("replay(capacity=20, tiers=[0.25, 0.35, 0.4])", REPLAYS, "")({})
    averages = {prompt: prompt / 20 for prompt in range(20)}
    buffer = Buffer()
    for round_ in range(4):
        buffer.insert([stored(prompt, 0.0, round_) for prompt in range(20)], settings, round_, averages)
    prompts = [row.prompt for row in buffer.rows]
    assert (sum(one < 8 for one in prompts), sum(one >= 15 for one in prompts)) == (8, 5) and len(prompts) == 20
    assert {row.step for row in buffer.rows} == {3}, "the newest of each"
    # Without tiers many rows of one prompt may drive out those of all others.
    buffer.insert([stored(19, 1.0, 9)] * 16, settings, 9, averages)
    assert [row.prompt for row in buffer.rows].count(19) == 5 and len(buffer.rows) == 20
    with pytest.raises(ValueError, match=r"algorithm\.replay.*tiers.*0\.4"):
        bind("replay(tiers=[0.5, 0.4])", REPLAYS, "")({})


def test_replay_starts_where_enough_rows_of_a_prompt_are_there():
    """RePO, arXiv:2506.09340: with groups of 8 and at least 16, at the third visit."""
    settings, buffer, drawn = bind("replay(count=8, least=16)", REPLAYS, "")({}), Buffer(), []
    for visit in range(3):
        drawn.append(len(buffer.draw(0, settings, visit, stream(0))))
        buffer.insert([stored(0, 0.0, visit)] * 8, settings, visit)
    assert drawn == [0, 0, 8] and len(buffer.rows) == 16


@pytest.mark.parametrize(
    ("strategy", "places"),
    [("recent", [2, 3]), ("highest", [0, 1]), ("max_variance", [0, 2]), ("all", [0, 1, 2, 3])],
)
def test_a_strategy_chooses_rows_by_their_rewards(strategy, places):
    assert sorted(choose([1.0, 0.5, 0.0, 0.0], Replay(2, strategy=strategy), stream(0))) == places


def test_a_random_choice_is_that_of_its_stream():
    first, again, other = (choose([0.0] * 9, Replay(3, strategy="random"), stream(seed)) for seed in (1, 1, 2))
    assert first == again != other and len({*first}) == 3


def test_a_buffer_is_the_same_after_a_checkpoint():
    buffer, loaded = Buffer([stored(3, 0.5, 2), stored(1, 1.0, 4)]), Buffer()
    loaded.load(buffer.tensors())
    assert [(row.prompt, row.step, row.reward) for row in loaded.rows] == [(3, 2, 0.5), (1, 4, 1.0)]
    assert [row.record["ids"].item() for row in loaded.rows] == [2, 4]
    loaded.load({})
    assert loaded.rows == []


def test_rewards_of_a_buffer_keep_their_precision():
    """0.1 + 2^-40 and 0.1 are one number in single precision: the better row would be another one after a resume."""
    buffer, loaded = Buffer([stored(0, 0.1 + 2**-40, 1), stored(0, 0.1, 2)]), Buffer()
    loaded.load(buffer.tensors())
    settings = Replay(1, strategy="highest")
    best = [one.draw(0, settings, 3, stream(0))[0].step for one in (buffer, loaded)]
    assert best == [1, 1] and [row.reward for row in loaded.rows] == [0.1 + 2**-40, 0.1]


def test_stored_rows_travel_between_processes_as_they_are(monkeypatch):
    """Of two processes, the second of which has no row that the first has not: both get those of both, exactly."""
    monkeypatch.setattr(distributed, "gather_rows", lambda value, accelerator: torch.cat([value, value]))
    monkeypatch.setattr(distributed, "largest", lambda value, accelerator: value)
    record = {"ids": torch.arange(3), "log_probs": torch.tensor([0.1, -2.5, -1e-7]), "loss_mask": torch.ones(3) > 0}
    rows = [(4, 9, replace(stored(2, 1 / 3, 7), record=record)), (5, 1, stored(0, 0.0))]
    accelerator = SimpleNamespace(num_processes=2, device=torch.device("cpu"))
    found = replaying.gather_stored(rows, accelerator)  # type: ignore[arg-type]
    assert [(key, place, row.prompt, row.step, row.reward) for key, place, row in found] == [
        (4, 9, 2, 7, 1 / 3), (5, 1, 0, 0, 0.0)
    ] * 2  # fmt: skip
    for name, value in record.items():
        assert torch.equal(found[0][2].record[name], value) and found[0][2].record[name].dtype == value.dtype
    assert torch.equal(found[0][2].scores, rows[0][2].scores)


# ---- what they count


def advantages(statistics: str, last: float = 0.0) -> list[float]:
    """Of own rows of rewards 0, 0, 0 and ``last``, and replayed ones of 1, 1, 0, 0."""
    key = torch.tensor([0] * 4 + [SPLIT * (statistics == "split")] * 4)
    rows = replace(plain([1] * 8, keys={"prompt": key}), origin=torch.tensor([OWN] * 4 + [REPLAYED] * 4))
    values = torch.tensor([0.0, 0.0, 0.0, last, 1.0, 1.0, 0.0, 0.0])[:, None]
    counted = (OWN,) if statistics == "own" else (OWN, REPLAYED)
    one = torch.ones(1)
    return estimate(values, values >= 0, one, rows, recipe(), counted_origins=counted).samples.tolist()


def test_replayed_rows_are_compared_among_themselves_or_with_the_group():
    assert advantages("split") == pytest.approx([0] * 4 + [0.86588] * 2 + [-0.86588] * 2, abs=1e-4)
    assert advantages("with") == pytest.approx([-0.53995] * 4 + [1.61984] * 2 + [-0.53995] * 2, abs=1e-4)
    # Against the own rows' mean .25 and std .5.
    assert advantages("own", 1.0) == pytest.approx([-0.5] * 3 + [1.5] * 3 + [-0.5] * 2, abs=1e-3)


def test_replayed_rows_may_be_compared_with_the_last_rewards_of_their_prompt():
    """AVATAR, arXiv:2508.03100: (1 - .25) / .57735; own rows are compared with their group."""
    key = torch.tensor([0] * 2 + [SPLIT] * 4)
    rows = replace(plain([1] * 6, keys={"prompt": key}), origin=torch.tensor([OWN] * 2 + [REPLAYED] * 4))
    rows = replace(rows, fields={**rows.fields, "window_mean": torch.full((6,), 0.25)})
    values = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])[:, None]
    blocks = recipe(baseline="replayed_by_window")
    made = estimate(values, values >= 0, torch.ones(1), rows, blocks, counted_origins=(OWN, REPLAYED))
    own, replayed = [-0.7071, 0.7071], [1.29904, -0.43301]
    assert made.samples.tolist() == pytest.approx([*own, *replayed, *replayed], abs=1e-3)


def test_of_equal_replayed_rewards_nothing_is_learned_where_they_are_compared_among_themselves():
    """The strategy highest of a prompt that is often solved."""
    key = torch.tensor([0, 0, SPLIT, SPLIT])
    rows = replace(plain([1] * 4, keys={"prompt": key}), origin=torch.tensor([OWN] * 2 + [REPLAYED] * 2))
    values = torch.tensor([[0.0], [1.0], [1.0], [1.0]])
    made = estimate(values, values >= 0, torch.ones(1), rows, recipe(), counted_origins=(OWN, REPLAYED))
    assert made.samples.tolist()[2:] == [0, 0]


def test_each_kind_of_rows_is_normalized_by_itself():
    """CHORD, arXiv:2508.11408: (1 - mu) 1 + mu 2 = 1.1 at mu = .1; RePO: L + alpha L_replayed."""
    origin = torch.tensor([OWN, OWN, SUPERVISED, REPLAYED])
    mask = torch.tensor([[True, True], [True, False], [True, True], [True, True]])
    mean = bind("per_decision", AGGREGATIONS, "")
    values = torch.tensor([1.0, 1.0, 2.0, 10.0])[:, None].expand(4, 2)

    def total(replay: Replay, supervision: Supervision) -> float:
        return float((weights_by_origin(mean, {"loss_mask": mask}, origin, replay, supervision) * values).sum())

    nothing, chord = Replay(), Supervision(0.1, complement=True, count=1)
    own = mask & (origin == OWN)[:, None]
    assert torch.equal(
        weights_by_origin(mean, {"loss_mask": own}, origin, Replay(8), chord)[:2], 0.9 * mean({"loss_mask": own})[:2]
    )
    assert total(Replay(8, coef=0.0), chord) == pytest.approx(1.1)
    assert total(Replay(8, coef=0.5), replace(chord, complement=False)) == pytest.approx(1 + 0.2 + 5)
    assert total(nothing, Supervision()) == pytest.approx((3 + 4 + 20) / 7)  # all in one mean


def test_phi_is_a_constant_that_fades_for_sure_and_for_unlikely_tokens():
    p = torch.tensor([0.9, 0.5, 0.1])
    log_probs = p.log().requires_grad_()
    loss = likelihood({"log_probs": log_probs}, Supervision(phi=True))
    assert loss.tolist() == pytest.approx([0.00948, 0.17329, 0.20723], abs=1e-5)
    (slope,) = torch.autograd.grad(loss.sum(), log_probs)
    assert slope.tolist() == pytest.approx([-0.09, -0.25, -0.09])


# ---- stored and given rows of a token policy


def test_a_stored_row_scores_as_in_its_round():
    policy = token_policy()
    made: Any = policy.rollout(Request(PROMPTS, [0, 1], 4, 3))
    rows = [6, 1, 3]
    again = policy.unpack(
        [made.prompts[row] for row in rows], policy.pack(made, rows), [7, 8, 8], REPLAYED, Request((), (), 0, 0)
    )
    assert [again.outputs[place] for place in range(3)] == [made.outputs[row] for row in rows]
    assert again.decisions.keys["prompt"].tolist() == [7, 8, 8] and again.decisions.origin.tolist() == [REPLAYED] * 3
    width = again.decisions.log_probs.shape[1]
    for name in ("log_probs", "loss_mask"):
        assert torch.equal(getattr(again.decisions, name), getattr(made.decisions, name)[rows, :width])
    for name, value in made.decisions.fields.items():
        assert torch.equal(again.decisions.fields[name], value[rows] if value.dim() == 1 else value[rows, :width])
    mask = again.decisions.loss_mask
    torch.testing.assert_close(rescored(policy, again)[mask], again.decisions.log_probs[mask], rtol=1e-4, atol=1e-5)


def test_the_likelihood_of_an_answer_is_that_of_its_tokens():
    policy = token_policy()
    given: Any = policy.unpack(
        PROMPTS, [one for [one] in policy.answers(PROMPTS)], [0, 1], SUPERVISED, Request((), (), 0, 0)
    )
    assert [output.text for output in given.outputs] == ["a b c d", "d c b a"]
    for row, prompt in enumerate(PROMPTS):
        ids = tuple(completions(given)[row][given.decisions.loss_mask[row]].tolist())
        with torch.no_grad():
            expected = float(log_prob_of(policy, prompt, ids))
        assert float(rescored(policy, given)[row].sum()) == pytest.approx(expected, abs=1e-4)


# ---- in a run


def length(prompts, outputs) -> list[float]:
    """Reward: short answers, of several values."""
    return [1.0 / (1 + output.tokens) for output in outputs]


def run(folder: Path, steps: int = 6, data=(), prompts=PROMPTS, reward=length, preset="dr_grpo", **changes) -> Any:
    blocks = algorithm_blocks(preset, aggregation="per_sample", **changes)
    return trainer(
        token_policy(), folder, prompts, reward=reward, steps=steps, group_size=4, lr=1e-2, save_every=2, given=data,
        **blocks,
    )  # fmt: skip


def weights(made: Trainer) -> list[Tensor]:
    return [parameter.detach() for parameter in made.trained.values()]


def same(one: Trainer, other: Trainer) -> bool:
    return all(map(torch.equal, weights(one), weights(other)))


GIVEN = [Prompt("say a", "g0", "b b"), Prompt("say d", "g1", "c")]
FOREIGN = [
    {"replay": "replay(count=2, strategy='random')"},
    {"replay": "replay(count=2, statistics='with', old='recomputed', apart=False)"},
    {"replay": "replay(count=2, statistics='own', old='one', capacity=5)"},
    {"replay": "replay(count=2, capacity=6, tiers=[0.5, 0.5])", "baseline": "replayed_by_window"}
    | {"trackers": ["window(count=20)"]},
    {"added": "answers(count=0, counted=True)"},
    {"added": "answers(old='one', when='failed', above=0.49, scale=0.5)", "off_policy": "luffy"},
    {"added": "refined(above=0.3)"},
    {"added": "corrected(above=0.3, tokens=3)"},
    {"supervised": "nll(coef=linear(0.5, 0.1), count=2)", "data": GIVEN},
    {"supervised": "nll(coef=0.5, count=1, source='failed')"},
    {"judging": ["verdicts(point=' {sample} a', pair=' {first} b {second}', reflection=' {sample}', above=0.3)"]},
    {"hint": "staged(above=0.6)"},
    {"hint": "forced(members=2, tokens=2)"},
    {"hint": "budget(tokens=power(4, 0.25), text=' b {tokens}')"},
]


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory) -> Trainer:
    """A run without such rows."""
    made = run(tmp_path_factory.mktemp("plain"))
    made.fit()
    return made


@pytest.mark.slow
@pytest.mark.rows
@pytest.mark.parametrize("changes", FOREIGN, ids=lambda one: str(next(iter(one.values()))))
def test_a_run_with_rows_of_other_origins_resumes_exactly(changes, tmp_path, plain_run):
    whole = run(tmp_path / "whole", **changes)
    whole.fit()
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "checkpoints" / "step-000006")
    part = run(tmp_path / "part", **changes)
    assert part.resume() and part.step == 4
    part.fit()
    assert same(part, whole) and metrics(tmp_path / "part") == metrics(tmp_path / "whole")
    assert not same(plain_run, whole), "it had no effect"


@pytest.mark.slow
def test_a_replay_of_weight_zero_and_a_likelihood_of_weight_zero_change_nothing(tmp_path):
    base = run(tmp_path / "a")
    base.fit()
    replayed = run(tmp_path / "b", replay="replay(count=2, coef=0.0)")
    replayed.fit()
    for one, other in zip(weights(base), weights(replayed), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    given = run(tmp_path / "c", supervised="nll(coef=0.0, count=2)", data=GIVEN)
    given.fit()
    assert same(base, given)
    late = run(tmp_path / "d", replay="replay(count=2, least=1000)")
    late.fit()
    assert same(base, late)


def test_at_weight_one_only_the_answers_are_learned(tmp_path, monkeypatch):
    """CHORD at mu = 1 is supervised training: the gradient of the mean of -log pi over the tokens of both answers."""
    other = run(tmp_path / "b", supervised="nll(coef=1.0, count=2)", data=GIVEN)
    given = other.policy.unpack(
        GIVEN, [one for [one] in other.policy.answers(GIVEN)], [0, 1], SUPERVISED, Request((), (), 0, 0)
    )
    mask = given.decisions.loss_mask
    [part] = given.steps.split(mask, 100)
    (-other.policy.score(given, part, frozenset({"log_probs"}))["log_probs"].mean()).backward()
    expected = {name: p.grad.clone() for name, p in other.trained.items() if p.grad is not None}
    other.optimizer.zero_grad()
    monkeypatch.setattr(other.optimizer, "zero_grad", lambda: None)
    other.optim.lr = 0.0
    other.run_round()
    for name, gradient in expected.items():
        torch.testing.assert_close(other.trained[name].grad, gradient, rtol=1e-4, atol=1e-6)


def test_prompts_that_all_failed_wait_until_enough_of_them_are_there(tmp_path):
    """ReLIFT, arXiv:2506.07527: 26 a round and 64 at once are 26, 52, 14; here 2 a round, 3 at once."""
    prompts = [Prompt("say a", str(i), "a") for i in range(6)]
    made = run(
        tmp_path, prompts=prompts, reward=lambda prompts, outputs: [0.0] * len(outputs), preset="dr_grpo",
        supervised="nll(coef=1.0, count=3, source='failed')",
    )  # fmt: skip
    waiting, learned = [], []
    for _ in range(3):
        made.run_round()
        waiting.append(len(attached(made, SupervisedRows).waiting))
        learned.append(metrics(tmp_path)[-1].get("supervised/rows", 0))
    assert (waiting, learned) == ([2, 4, 3], [0, 0, 3])  # 4 - 3 + 2, one entry a prompt


# ---- hints


def test_a_hint_is_a_share_of_the_characters_after_the_last_user_turn():
    assert [len(characters("0123456789", share)) for share in (0.25, 0.5, 0.75)] == [2, 5, 8]
    turns = (Turn("system", ("s",)), Turn("user", ("question",)))
    hinted = with_hint(Prompt("question", turns=turns), "so", " H: ")
    assert hinted.turns[1].parts == ("question", " H: so") and hinted.text == "question H: so"
    assert with_hint(PROMPTS[0], "", "x") is PROMPTS[0]
    hint = LossRecipe.of("ppo", "per_sample", hint="staged").hint({})
    assert hint_of_stage(Prompt("a", answer=3), hint, 0) is None  # no solution in words


def needs_a_hint(prompts, outputs) -> list[float]:
    """Reward: 0 without a hint of half of the solution, which for the second prompt even that does not help."""
    enough = [len(prompt.meta.get(HINT, "")) >= 4 and prompt.id == "0" for prompt in prompts]
    return [float(one) / (1 + output.tokens) for one, output in zip(enough, outputs, strict=True)]


def test_groups_without_success_are_sampled_again_with_a_hint_and_their_own_rows_stay_evidence(tmp_path):
    """GHPO, arXiv:2507.10628: wrong plain and at 25 %, right at 50 %: the last group is trained."""
    made = run(tmp_path, reward=needs_a_hint, hint="staged")
    rounds = rounds_of(made)
    made.run_round()
    batch = rounds[0].batch
    origin, key = batch.decisions.origin, batch.decisions.keys["prompt"]
    of = {number: int(key[batch.decisions.fields["prompt_index"] == number][0]) for number in (0, 1)}
    assert [(origin[key == of[0]] == kind).sum() for kind in (REPLACED, HINTED)] == [4, 4]
    assert len(origin[key == of[0]]) == 12 and len(origin[key == of[1]]) == 16  # 3 and 4 samplings
    trained = batch.loss_mask.any(1)
    assert {*origin[trained].tolist()} == {HINTED}
    hints = {len(batch.rollouts[-2].prompts[row].meta[HINT]) for row in range(4)}
    assert hints == {4}  # of 7 characters, round(3.5)
    line = metrics(tmp_path)[0]
    assert line["ratio/first_minus_one"] < 1e-3 and line["hint/groups"] == 1
    assert line["reward/reward/mean"] == 0  # of the prompts as they are
    assert {(row["draws"], row["mean"]) for row in made.ledger.entries(PROMPTS)} == {(4, 0.0)}


def test_a_budget_that_falls_stands_in_the_prompt_and_its_rows_are_evidence(tmp_path):
    """Of 4 tokens down to 1 over 6 steps: 4 (1/4)^(s/6) is 4, 3.2, 2.5, 2, 1.6, 1.3."""
    seen: list[tuple[str, int]] = []

    def under_budget(prompts, outputs) -> list[float]:
        seen.append((prompts[0].text, prompts[0].meta["budget"]))
        return triangle_length(prompts, outputs)

    made = run(tmp_path, reward=under_budget, hint="budget(tokens=power(4, 0.25), text=' b {tokens}')")
    made.fit()
    assert seen[0][0].endswith(" b 4") and [budget for _, budget in seen] == [4, 3, 2, 2, 1, 1]
    assert made.ledger.columns["prompts"]["draws"].tolist() == [24, 24]
    assert [row["schedule/budget.tokens"] for row in metrics(tmp_path)][:1] == [4]
    assert max(row["ratio/first_minus_one"] for row in metrics(tmp_path)) < 1e-3


def test_the_first_steps_of_a_solution_stand_in_the_prompt_and_their_number_is_drawn(tmp_path):
    """HC-GRPO, arXiv:2509.16889: 0, 1 or 2 of 3 steps; alike in a group, which is evidence without a hint alone."""
    written = ["b", "c", "d"]
    prompts = [Prompt("say a", name, "a", columns={"steps": written}) for name in "01"]
    seen: list[tuple[str, str]] = []

    def watched(prompts, outputs) -> list[float]:
        seen.extend((prompt.text, prompt.meta.get(HINT, "")) for prompt in prompts)
        return length(prompts, outputs)

    made = run(tmp_path, steps=12, prompts=prompts, reward=watched, hint="steps(phrase=' ')")
    made.fit()
    hints = [hint for _, hint in seen]
    assert set(hints) == {"", "b", "b\nc"} and all(text == f"say a {hint}".rstrip() for text, hint in seen)
    groups = [{*hints[place : place + 4]} for place in range(0, len(hints), 4)]
    assert len(groups) == 24 and all(len(group) == 1 for group in groups)
    assert made.ledger.columns["prompts"]["draws"].sum() == hints.count("")
    with pytest.raises(ValueError, match=r"prompt '[01]'.*steps.*algorithm\.hint"):
        run(tmp_path / "without", hint="steps").fit()


def test_a_group_with_success_is_left_as_it_is(tmp_path):
    plainly, hinted = run(tmp_path / "a"), run(tmp_path / "b", hint="staged")
    plainly.fit()
    hinted.fit()
    assert same(plainly, hinted)


def test_a_forced_beginning_is_given_and_no_decision():
    policy = token_policy()
    sampling = {"forced_members": 2.0, "forced_tokens": 2.0}
    request = Request(PROMPTS, [0, 1], 4, 3, sampling=sampling, solutions=["a b c d", "d"])
    made: Any = policy.rollout(request)
    # The solution of the second prompt has nothing to force without its last token.
    assert made.decisions.origin.tolist() == [OWN] * 2 + [OWN] * 4 + [HINTED] * 2
    assert made.decisions.keys["prompt"].tolist() == [0, 0, 1, 1, 1, 1, 0, 0]
    forced = policy.model.spell("a b")[:2]
    for row in (6, 7):
        assert made.outputs[row].text.split()[:2] == ["a", "b"]
        ids = tuple(kept(made).ids[row][made.decisions.decision_mask[row]].tolist())
        with torch.no_grad():
            both = float(log_prob_of(policy, PROMPTS[0], (*forced, *ids)))
            alone = float(log_prob_of(policy, PROMPTS[0], tuple(forced)))
        assert float(rescored(policy, made)[row].sum()) == pytest.approx(both - alone, abs=1e-3)
    nothing = policy.rollout(replace(request, sampling={**sampling, "forced_tokens": 0.0}))
    ordinary = policy.rollout(Request(PROMPTS, [0, 1], 4, 3))
    assert torch.equal(nothing.decisions.log_probs, ordinary.decisions.log_probs)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"supervised": "nll(coef=0.5)"}, r"data\.supervised"),
        ({"replay": "replay(count=2)", "weighting": ["gradient(rate=1.0)"]}, "gradient"),
        ({"replay": "replay(count=2, strategy='rcent')"}, "recent"),
        ({"supervised": "nll(coef=0.5, aggregation='per_decison')", "data": GIVEN}, "per_decision"),
    ],
)
def test_what_has_no_effect_or_no_place_is_refused(changes, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        run(tmp_path, **changes)


def test_a_policy_that_stores_no_rows_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"algorithm\.replay.*policy of tokens"):
        policy = CategoricalPolicy(TableModel(2, 5))
        trainer(policy, tmp_path, toy_prompts(2), loss=LossRecipe.of("ppo", "per_sample", replay="replay"))
