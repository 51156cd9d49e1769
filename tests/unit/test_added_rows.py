"""Stored and given rows of denoising policies, and rows that join a group in a second stage."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mmgrpo.advantages.estimate import estimate
from mmgrpo.config.registry import bind
from mmgrpo.diffusion.kernels import diffusion_estimates, estimates, output_towards
from mmgrpo.diffusion.schedules import Grid
from mmgrpo.objectives.origins import Replay
from mmgrpo.policies.flow_matching import FlowMatchingPolicy
from mmgrpo.prompts.added import ADDITIONS, fill_text, missing_names, refining, sources, way, worst
from mmgrpo.prompts.replay import named_files
from mmgrpo.randomness import stream
from mmgrpo.rounds.replay import ReplayedRows
from mmgrpo.runtime.checkpoint import checkpoints
from mmgrpo.scoring import Scorer
from mmgrpo.trainer import Trainer
from mmgrpo.types import (
    DROPPED,
    GIVEN,
    HINT,
    HINTED,
    OWN,
    REFERENCE,
    REPLACED,
    REPLAYED,
    SUPERVISED,
    Answer,
    Image,
    Media,
    Policy,
    Prompt,
    Request,
    Rollout,
    Text,
)
from tests.building import algorithm_blocks, attached, matching_policy_over, near_one, recipe, rounds_of, trainer
from tests.journeys.cli.running import metrics
from tests.toys import ToyModel, toy_policy, toy_prompts
from tests.trees import plain
from tests.unit.policies.test_beam_search import log_prob_of
from tests.unit.policies.test_token_policy import token_policy

pytest.importorskip("transformers")

ONES = Media("image", Image(torch.ones(3, 1, 1)))
ZEROS = Media("image", Image(torch.zeros(3, 1, 1)))
PICTURED = [replace(one, answers=(Answer("", ONES, 1.0), Answer("", ZEROS, 0.0))) for one in toy_prompts(3)]
WORDS = [Prompt("say a", "0", "a b"), Prompt("say b", "1", "b")]


def matching() -> FlowMatchingPolicy:
    return matching_policy_over(
        ToyModel(), steps=5, draws=3, error="velocity", evaluation_steps=5, forward_batch_size=1024
    )


POLICIES = {
    "matching": matching,
    "gaussian": lambda: toy_policy("every_step", steps=5),
    "tree": lambda: toy_policy("branch_tree(splits=[0,1])", steps=5),
    "jump": lambda: toy_policy("one_step_branch(draw='all')", steps=5),
}
EVERY = Request((), (), 0, 77)


def rescored(policy: Policy, made: Rollout) -> torch.Tensor:
    found = torch.zeros_like(made.decisions.log_probs)
    for part in made.steps.split(made.decisions.decision_mask, 3):
        with torch.no_grad():
            scores = policy.score(made, part, frozenset({"log_probs"}))
        found[part.rows, part.positions] = scores["log_probs"]
    return found


# ---- rows of denoising policies


@pytest.mark.parametrize("kind", POLICIES)
def test_a_stored_image_scores_as_in_its_round(kind):
    policy: Any = POLICIES[kind]()
    made = policy.rollout(Request(PICTURED, [0, 1, 2], 4, 3))
    rows = [6, 1, 11]
    again = policy.unpack([made.prompts[row] for row in rows], policy.pack(made, rows), [7, 8, 8], REPLAYED, EVERY)
    for place, row in enumerate(rows):
        torch.testing.assert_close(again.outputs[place].pixels, made.outputs[row].pixels, rtol=0, atol=0)
    assert again.decisions.keys["prompt"].tolist() == [7, 8, 8] and again.decisions.origin.tolist() == [REPLAYED] * 3
    for name in ("log_probs", "decision_mask"):
        assert torch.equal(getattr(again.decisions, name), getattr(made.decisions, name)[rows])
    for name, value in again.decisions.fields.items():
        assert torch.equal(value, made.decisions.fields[name][rows]), name
    mask = again.decisions.loss_mask
    assert bool(mask.any(1).all()) and not bool((mask & ~again.decisions.decision_mask).any())
    torch.testing.assert_close(rescored(policy, again)[mask], again.decisions.log_probs[mask], rtol=1e-5, atol=1e-6)


def test_without_log_probs_stored_images_share_the_draws_of_their_group():
    policy = matching()
    made = policy.rollout(Request(PICTURED, [0, 1, 2], 4, 3))
    records = [{name: value for name, value in one.items() if name != "log_probs"} for one in policy.pack(made, [0, 1])]
    later = policy.rollout(Request(PICTURED, [0, 1, 2], 4, 9))
    again = policy.unpack([PICTURED[1]] * 2, records, [1, 1], REPLAYED, Request((), (), 0, 9))
    own: Any = later.steps
    stored: Any = again.steps
    assert torch.equal(own.noise[1], stored.noise[0]) and torch.equal(own.step[1], stored.step[0])
    assert len(stored.noise) == 1


@pytest.mark.parametrize("prediction", ["flow", "epsilon", "v", "sample"])
def test_the_output_towards_an_image_estimates_it(prediction):
    levels = torch.tensor([1.0, 0.6, 0.3, 0.0]) if prediction == "flow" else torch.tensor([0.01, 0.3, 0.7, 1.0])
    grid = Grid(levels, levels[:-1], "flow" if prediction == "flow" else "diffusion", 0.6)
    clean, x, step = torch.full((2, 3), 2.0), torch.tensor([[1.0, -1.0, 0.5]] * 2), torch.tensor([1, 2])
    output = output_towards(clean, x, step, grid, prediction)
    now = levels[step][:, None]
    found = estimates(x, output, now)[0] if prediction == "flow" else diffusion_estimates(x, output, now, prediction)[0]
    torch.testing.assert_close(found, clean)


def test_a_given_image_ends_a_trajectory_whose_likelihood_is_the_error_of_the_network():
    """-log p differs between networks as the squared distance of their means from the transition's, over 2 std^2."""
    policy: Any = toy_policy("every_step", steps=5)
    [[best]] = policy.answers(PICTURED[:1])
    given: Any = policy.unpack(PICTURED[:1] * 2, [best, best], [0, 1], SUPERVISED, EVERY)
    torch.testing.assert_close(given.outputs[0].pixels, torch.ones(3, 1, 1))
    walk = given.steps.walks[0]
    assert not torch.equal(walk.states[0], walk.states[len(walk.states) // 2]), "each row has its own noise"
    mask, found = given.decisions.loss_mask, rescored(policy, given)
    assert mask.sum(1).tolist() == [4, 4]
    with torch.no_grad():
        policy.network.outer.bias += 0.3
    other = rescored(policy, given)
    for row, place in mask.nonzero().tolist():
        state, after = walk.states[walk.source[row, place]], walk.states[walk.target[row, place]]
        step = torch.tensor([place])
        means = []
        for shift in (0.0, 0.3):
            with torch.no_grad():
                out = policy.network(state[None], walk.grid.times[step], torch.zeros(1)) - 0.3 + shift
            means.append(policy.kernel(state[None], out, step, walk.grid).mean[0])
        gap = [float((after - mean).square().mean() / (2 * walk.std[place] ** 2)) for mean in means]
        assert float(found[row, place] - other[row, place]) == pytest.approx(gap[1] - gap[0], rel=1e-3, abs=1e-4)


def test_the_likelihood_of_a_given_image_is_the_matching_error():
    policy = matching()
    [[best, second]] = policy.answers(PICTURED[:1], 2)
    given: Any = policy.unpack([PICTURED[0]] * 2, [best, second], [0, 0], SUPERVISED, EVERY)
    assert torch.equal(best["clean"], torch.ones(3, 1, 1)) and torch.equal(second["clean"], torch.zeros(3, 1, 1))
    step, noise = given.steps.step[0], given.steps.noise[0]
    time = policy.grid.levels[step].view(-1, 1, 1, 1)
    with torch.no_grad():
        velocity = policy.network((1 - time) + time * noise, time.flatten(), torch.zeros(3))
    expected = -(velocity - (noise - 1)).square().flatten(1).mean(1)
    torch.testing.assert_close(rescored(policy, given)[0], expected)


# ---- runs


def run(kind: str, folder: Path, steps: int = 6, prompts=PICTURED, data=(), **changes) -> Trainer:
    preset = "dgpo" if kind == "matching" and changes.get("objective") == "dgpo" else "dr_grpo"
    blocks = algorithm_blocks(preset, aggregation="per_sample", **changes)
    return trainer(
        POLICIES[kind](), folder, prompts, reward=near_one, steps=steps, group_size=4, lr=1e-2, save_every=2,
        given=data, **blocks,
    )  # fmt: skip


def same(one: Trainer, other: Trainer) -> bool:
    return all(torch.equal(one.trained[name], other.trained[name]) for name in one.trained)


VISUAL = [
    {"replay": "replay(count=2, strategy='highest')"},
    {"replay": "replay(count=2, statistics='with', old='recomputed', apart=False)"},
    {"replay": "replay(count=1, statistics='own')"},
    {"supervised": "nll(coef=linear(0.5, 0.1), count=2)", "data": PICTURED},
    {"added": "answers(count=0, counted=True)"},
    {"added": "answers(replaces=True, scale=0.8)", "shape": ["anchor"]},
    {"added": "drawn(count=2)", "objective": "preference(pairs='other_origin')", "baseline": "none", "scale": "none"},
]


@pytest.fixture(scope="module")
def plain_run(kind, tmp_path_factory) -> Trainer:
    """A run without such rows."""
    made = run(kind, tmp_path_factory.mktemp("plain"))
    made.fit()
    return made


@pytest.mark.slow
@pytest.mark.rows
@pytest.mark.parametrize("changes", VISUAL, ids=lambda one: next(iter(one.values())))
@pytest.mark.parametrize("kind", ["gaussian", pytest.param("matching", marks=pytest.mark.nightly)], scope="module")
def test_a_run_of_images_with_rows_of_other_origins_resumes_exactly(kind, changes, tmp_path, plain_run):
    whole = run(kind, tmp_path / "whole", **changes)
    whole.fit()
    first = run(kind, tmp_path / "part", **changes)
    for _ in range(4):
        first.run_round()
    first.save()
    part = run(kind, tmp_path / "part", **changes)
    assert part.resume() and part.step == 4
    part.fit()
    assert same(part, whole) and metrics(tmp_path / "part") == metrics(tmp_path / "whole")
    assert not same(plain_run, whole), "it had no effect"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["matching", "gaussian"])
def test_replayed_images_are_files_of_the_run(kind, tmp_path):
    """The run is that with a buffer in memory; checkpoints name the files, and what none of them names is removed."""
    changes = {"replay": "replay(count=2, strategy='highest', capacity=10)"}
    disk, memory = run(kind, tmp_path / "disk", **changes), run(kind, tmp_path / "memory", **changes)
    attached(memory, ReplayedRows).buffer.folder = None
    disk.fit()
    memory.fit()
    assert same(disk, memory) and metrics(tmp_path / "disk") == metrics(tmp_path / "memory")
    assert not (tmp_path / "memory" / "replay").exists()
    attached(disk, ReplayedRows).tensors()  # what only a checkpoint named that is gone
    files = {path.stem for path in (tmp_path / "disk" / "replay").iterdir()}
    tables = [load_file(path / "replay.safetensors") for path in checkpoints(tmp_path / "disk" / "checkpoints")]
    assert files == {name for table in tables for name in named_files(table)}
    assert all(table.keys() == {"places", "rewards", "scores", "files"} for table in tables)
    buffer = attached(disk, ReplayedRows).buffer
    path = tmp_path / "disk" / "replay" / f"{buffer.rows[0].digest}.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=f"{path.name}.*damaged.*algorithm.replay"):
        buffer.draw(buffer.rows[0].prompt, Replay(10, strategy="all"), 6, stream(0))


def test_a_damaged_older_checkpoint_stops_no_run_and_costs_no_sample(tmp_path, capsys):
    """Which samples it names is not known, so all are kept until it is gone."""
    changes = {"replay": "replay(count=2, strategy='highest', capacity=10)", "steps": 7}
    first = run("matching", tmp_path / "run", **changes)
    for _ in range(2):
        first.run_round()
        first.save()
    older, newest = checkpoints(tmp_path / "run" / "checkpoints")
    path = older / "replay.safetensors"
    orphan = tmp_path / "run" / "replay" / f"{'0' * 32}.safetensors"
    orphan.write_bytes(b"")
    path.write_bytes(path.read_bytes()[:40])
    again = run("matching", tmp_path / "run", **changes)
    assert again.resume() and again.step == int(newest.name[5:])
    attached(again, ReplayedRows).tensors()
    assert orphan.exists() and str(path) in capsys.readouterr().out
    again.fit()
    assert again.step == 7 and not older.exists() and not orphan.exists()


@pytest.mark.learning
@pytest.mark.parametrize("kind", ["matching", "gaussian"])
def test_given_images_are_learned(kind, tmp_path):
    """By their likelihood alone; the ones are 1 from the mean of samples before."""
    made = run(kind, tmp_path, steps=60, supervised="nll(coef=1.0, count=2)", data=PICTURED)
    before = near_one(PICTURED, made.policy.sample(Request(PICTURED, [0, 1, 2], 1, 5)))
    made.fit()
    after = near_one(PICTURED, made.policy.sample(Request(PICTURED, [0, 1, 2], 1, 5)))
    assert sum(after) > 0.6 * sum(before), (before, after)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("matching", {"replay": "replay(old='one')"}, r"algorithm\.replay.*matching"),
        ("gaussian", {"supervised": "nll(coef=0.1, phi=True)"}, r"algorithm\.supervised.*gaussian"),
        ("gaussian", {"added": "refined"}, r"algorithm\.added.*gaussian"),
        ("matching", {"hint": "staged"}, r"algorithm\.hint.*matching"),
        ("matching", {"added": "answers", "prompts": toy_prompts(2)}, r"algorithm\.added.*'0'"),
        ("gaussian", {"supervised": "nll(coef=0.1)", "data": toy_prompts(2)}, r"algorithm\.supervised.*'0'"),
        ("matching", {"added": "answers", "baseline": "greedy"}, r"algorithm\.added.*greedy"),
    ],
)
def test_what_images_have_no_place_for_is_refused(kind, changes, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        run(kind, tmp_path, **changes)


def test_added_rows_with_previews_that_they_do_not_have_are_refused(tmp_path):
    policy = toy_policy("one_step_branch(intervals=[1,2])", steps=5)
    blocks = algorithm_blocks("grpo", added="answers")
    made = trainer(policy, tmp_path, PICTURED, reward=near_one, group_size=4, steps=2, **blocks)
    with pytest.raises(ValueError, match=r"algorithm\.added.*sampling\.plan"):
        made.fit()


# ---- what joins a group


def test_numbers_of_the_papers():
    """Critique-GRPO: seven wrong rows and a right refinement, without std; EDGE-GRPO: two of four corrected to 2."""
    values = torch.tensor([[0.0]] * 7 + [[1.0]])
    rows = replace(plain([1] * 8), origin=torch.tensor([OWN] * 7 + [REFERENCE]))
    made = estimate(values, values >= 0, torch.ones(1), rows, recipe(scale="none"), counted_origins=(OWN, REFERENCE))
    assert made.samples.tolist() == pytest.approx([-0.125] * 7 + [0.875])
    values = torch.tensor([[0.0], [0.0], [2.0], [2.0]])
    rows = replace(plain([1] * 4), origin=torch.tensor([OWN, OWN, HINTED, HINTED]))
    made = estimate(values, values >= 0, torch.ones(1), rows, recipe())
    assert made.samples.tolist() == pytest.approx([-0.86595] * 2 + [0.86595] * 2, abs=1e-4)
    # AR3PO, option II: the stored right answer counts in mean and std.
    values = torch.tensor([[0.0], [0.0], [0.0], [1.0]])
    rows = replace(plain([1] * 4), origin=torch.tensor([OWN] * 3 + [REPLAYED]))
    made = estimate(values, values >= 0, torch.ones(1), rows, recipe(), counted_origins=(OWN, REPLAYED))
    assert made.samples.tolist() == pytest.approx([-0.5] * 3 + [1.5], abs=1e-3)


def test_which_samples_are_refined_and_which_give_way():
    rewards = [0.5, 0.0, 1.0, 0.0]
    assert [sources(rewards, bind(text, ADDITIONS, "")({})) for text in ("refined", "refined(of='best')")] == [
        [0, 1, 2, 3], [2]
    ]  # fmt: skip
    assert sources(rewards, bind("refined(of='wrong', above=0.5)", ADDITIONS, "")({})) == [0, 1, 3]
    assert worst(rewards, 1) == [1] and worst(rewards, 3) == [0, 1, 3]


def test_the_text_of_a_critique_names_columns_of_the_row():
    prompt = Prompt("1+1?", "p", "2", columns={"criteria": "be brief"})
    given = bind("refined(text=' [{sample}|{verdict}|{answer}|{criteria}]')", ADDITIONS, "")({})
    asked = refining(prompt, given, "3", False)
    assert asked.text == "1+1? [3|wrong|2|be brief]" and HINT in asked.meta
    with pytest.raises(ValueError, match="'p'.*'missing'"):
        fill_text("{missing}", prompt)
    assert missing_names("{sample} {verdict} {answer} {criteria} {failed}", prompt) == {"failed"}
    asked = refining(prompt, replace(given, text=" [{failed}]"), "3", False, {"failed": "- be brief"})
    assert asked.text == "1+1? [- be brief]"


def test_corrections_are_drawn_by_their_shares():
    given = bind("corrected", ADDITIONS, "")({})
    drawn = [way(given, stream(0, number)) for number in range(400)]
    counts = [drawn.count(name) / 400 for name in ("continued", "answered", "replaced")]
    assert counts == pytest.approx([0.5, 0.25, 0.25], abs=4 * (0.25 / 400) ** 0.5)
    with pytest.raises(ValueError, match="continued 0.8"):
        bind("corrected(continued=0.8)", ADDITIONS, "")({})


def says_b(prompts, outputs) -> list[float]:
    """Reward: the last word is b, whatever the prompt says of an attempt."""
    assert not any(HINT in prompt.meta for prompt in prompts), "a reward sees the prompt as it is"
    return [float(output.text.split()[-1:] == ["b"]) for output in outputs]


def round_of(folder: Path, reward=says_b, group_size: int = 4, prompts=WORDS, max_tokens: int = 6, **changes) -> Any:
    """A round of a token policy: the trainer, and the batch that it trained."""
    blocks = algorithm_blocks("dr_grpo", aggregation="per_sample", **changes)
    made: Any = trainer(
        token_policy(max_tokens, keep_reference=True),
        folder,
        prompts,
        reward=reward,
        group_size=group_size,
        steps=3,
        **blocks,
    )
    rounds = rounds_of(made)
    made.run_round()
    return made, rounds[0].batch, rounds[0].totals


def test_an_answer_joins_its_group_and_is_no_evidence(tmp_path):
    made, batch, totals = round_of(tmp_path, added="answers(replaces=True)")
    origin, index = batch.decisions.origin, batch.decisions.fields["prompt_index"]
    assert [int((origin == kind).sum()) for kind in (OWN, REPLACED, GIVEN)] == [6, 2, 2]
    for number in (0, 1):
        here = index == number
        gone, left = totals[here & (origin == REPLACED)], totals[here & (origin == OWN)]
        assert float(gone) <= float(left.min())
        row = next(one for one in made.ledger.entries(WORDS) if one["id"] == str(number))
        assert row["draws"] == 4
        assert row["mean"] == pytest.approx(float(totals[here & (origin != GIVEN)].mean()))
    assert totals[origin == GIVEN].tolist() == [1.0, 1.0]
    [given] = [one for one in batch.rollouts if int(one.decisions.origin[0]) == GIVEN]
    assert sorted(output.text for output in given.outputs) == ["a b", "b"]
    line = metrics(tmp_path)[0]
    assert line["added/rows"] == 2 and line["added/reward"] == 1 and line["ratio/first_minus_one"] < 1e-5
    mask = given.decisions.loss_mask
    assert torch.equal(mask, given.decisions.decision_mask) and bool((given.decisions.log_probs[mask] < 0).all())


def test_only_groups_without_success_are_given_an_answer(tmp_path):
    _, batch, totals = round_of(tmp_path, added="answers(when='failed')", group_size=6)
    origin, index = batch.decisions.origin, batch.decisions.fields["prompt_index"]
    for number in (0, 1):
        solved = bool((totals[(index == number) & (origin == OWN)] > 0).any())
        assert int(((index == number) & (origin == GIVEN)).sum()) == (0 if solved else 1)


def test_a_refinement_is_scored_under_the_prompt_as_it_is(tmp_path):
    """Critique-GRPO, arXiv:2506.03106: the best of the refinements takes the place of a wrong row."""
    _, batch, totals = round_of(tmp_path, added="refined(text=' {sample}')", off_policy="luffy(gamma=0.1)")
    origin, key = batch.decisions.origin, batch.decisions.keys["prompt"]
    assert [int((origin == kind).sum()) for kind in (OWN, REPLACED, REFERENCE)] == [6, 2, 2]
    assert sorted(key[origin == REFERENCE].tolist()) == sorted({*key.tolist()})
    [given] = [one for one in batch.rollouts if int(one.decisions.origin[0]) == REFERENCE]
    assert not any(HINT in prompt.meta for prompt in given.prompts)
    assert float(given.decisions.log_probs.abs().sum()) == 0
    for place in (origin == REFERENCE).nonzero()[:, 0].tolist():
        rest = (key == key[place]) & (origin == OWN)
        mean = (totals[rest].sum() + totals[place]) / (rest.sum() + 1)
        assert float(batch.advantages[place][batch.loss_mask[place]].max()) == pytest.approx(
            float(totals[place] - mean), abs=1e-5
        )
    again, _, _ = round_of(tmp_path / "again", added="refined(text=' {sample}', network='reference')")
    assert again.loss.needs_reference and metrics(tmp_path / "again")[-1]["added/rows"] == 2


def test_a_refinement_reads_the_criteria_that_its_sample_fails(tmp_path):
    """RGR-GRPO, arXiv:2511.12344: the best sample of a group, refined by what it fails."""
    asked = []

    def remarks(prompts, outputs):
        asked.extend(output.text for output in outputs)
        return [{"failed": "c"} if not output.text.startswith("a") else {} for output in outputs]

    rewards = [Scorer("says", says_b, remarks=remarks)]
    blocks = algorithm_blocks("dr_grpo", aggregation="per_sample", added="refined(of='best', text=' {failed}')")
    made: Any = trainer(
        token_policy(6, keep_reference=True), tmp_path, WORDS, scorers=rewards, group_size=4, steps=1, **blocks
    )
    rounds = rounds_of(made)
    made.run_round()
    [drawn, *given] = rounds[0].batch.rollouts
    best = [max(drawn.outputs[first : first + 4], key=lambda one: says_b([], [one])) for first in (0, 4)]
    assert sorted(asked) == sorted(one.text for one in best)  # of the best samples alone, and once
    refined = sum(not text.startswith("a") for text in asked)
    assert sum(len(one.outputs) for one in given) == refined  # a sample of which nothing could be said is not refined
    # with its condition that of the group alone which fails
    asked.clear()
    first = drawn.prompts[0].text
    rewards = [Scorer("says", lambda ps, outputs: [float(p.text == first) for p in ps], remarks=remarks)]
    blocks = algorithm_blocks("dr_grpo", added="refined(of='best', when='failed', above=0.999, text=' {failed}')")
    made = trainer(
        token_policy(6, keep_reference=True), tmp_path / "b", WORDS, scorers=rewards, group_size=4, steps=1, **blocks
    )
    made.run_round()
    assert asked == [drawn.outputs[4].text]  # the first of equals


def test_samples_of_the_reference_are_drawn_by_it_and_are_no_evidence(tmp_path):
    """XPO, arXiv:2405.21046."""
    policy: Any = token_policy()
    request = Request(WORDS, [0, 1], 4, 7)
    policy.keep_reference()
    before = policy.rollout(request)
    for parameter in policy.network.parameters():
        parameter.data.add_(5 * torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    after = policy.rollout(request)
    with policy.networks.drawing("reference"):
        again = policy.rollout(request)
    texts = [[output.text for output in one.outputs] for one in (before, after, again, policy.rollout(request))]
    assert texts[0] == texts[2] != texts[1] == texts[3]

    made, batch, totals = round_of(tmp_path, added="drawn(count=2)", objective="preference(pairs='other_origin')")
    origin = batch.decisions.origin
    assert [int((origin == kind).sum()) for kind in (OWN, GIVEN)] == [8, 4]
    assert made.ledger.entries(WORDS)[0]["draws"] == 4 and bool((totals[origin == GIVEN] >= 0).all())


def test_an_experts_action_is_preferred_to_the_policys_own_where_they_differ(tmp_path):
    """StepAgent, arXiv:2411.03817: it becomes likelier, and nothing changes where the policy does as the expert."""
    blocks = algorithm_blocks("stepagent")

    def gain(name: str, reward: Any) -> float:
        policy: Any = token_policy(6, keep_reference=True)
        (ids,) = [policy.model.spell("b")]
        before = log_prob_of(policy, WORDS[1], tuple(ids)).item()
        made = trainer(
            policy, tmp_path / name, WORDS[1:], reward=reward, steps=2, lr=1e-3, prompts_per_step=1, **blocks
        )
        made.fit()
        return log_prob_of(policy, WORDS[1], tuple(ids)).item() - before

    assert gain("other", says_b) > 0.01
    assert gain("same", lambda prompts, outputs: [1.0] * len(outputs)) == 0


def test_a_corrected_sample_goes_on_or_gives_way(tmp_path):
    """EDGE-GRPO, arXiv:2507.21848: all wrong rows are corrected, and their tokens trained with a ratio of 1."""
    prompts = [replace(one, columns={"solution": "c b"}) for one in WORDS]
    text = "corrected(text=' c', answer=' {answer}', tokens=3)"
    made, batch, totals = round_of(tmp_path, added=text, prompts=prompts, group_size=8)
    origin = batch.decisions.origin
    wrong = int(((origin == OWN) | (origin == REPLACED)).sum()) - int((totals[origin == OWN] > 0).sum())
    assert int((origin == REPLACED).sum()) == int((origin == HINTED).sum()) == wrong > 4
    assert not bool(batch.loss_mask[origin == REPLACED].any()) and not bool((origin == DROPPED).any())
    [corrected] = [one for one in batch.rollouts if int(one.decisions.origin[0]) == HINTED]
    texts = [output.text for output in corrected.outputs]
    assert "c b" in texts and sum(" c" in one for one in texts) > 2
    mask = corrected.decisions.loss_mask
    assert torch.equal(mask, corrected.decisions.decision_mask)
    assert bool((corrected.decisions.log_probs[mask] < 0).all()) and bool(
        (corrected.decisions.fields["entropy"][mask] > 0).all()
    )
    assert all(isinstance(one, Text) for one in corrected.outputs)
    assert metrics(tmp_path)[0]["ratio/first_minus_one"] < 1e-5
    own = totals[(origin == OWN) | (origin == REPLACED)]
    assert sum(row["mean"] * row["draws"] for row in made.ledger.entries(prompts)) == pytest.approx(float(own.sum()))


def test_a_group_that_fails_takes_an_earlier_success_into_its_statistics(tmp_path):
    """AR3PO, arXiv:2509.25808, option II: of four wrong rows one gives way, the others are compared with the stored."""
    calls: list[int] = []

    def only_at_first(prompts, outputs) -> list[float]:
        calls.append(0)
        return [float(len(calls) == 1 and place % 4 == 0) for place in range(len(outputs))]

    text = "replay(count=1, strategy='random', above=0.0, statistics='with', coef=0.0, when='failed', replaces=True)"
    made, _, _ = round_of(tmp_path, reward=only_at_first, replay=text)
    buffer, rounds = attached(made, ReplayedRows).buffer, rounds_of(made)
    assert len(buffer.rows) == 2
    made.run_round()
    batch = rounds[0].batch
    origin, advantages = batch.decisions.origin, batch.advantages.amin(1)
    assert [int((origin == kind).sum()) for kind in (OWN, REPLACED, REPLAYED)] == [6, 2, 2]
    assert advantages[origin == OWN].tolist() == pytest.approx([-0.25] * 6)
    made.run_round()  # a group with a success again is left alone
    assert len(buffer.rows) == 2


def test_a_thought_that_is_cut_off_is_ended_by_given_tokens(tmp_path):
    """ScaleRL, arXiv:2510.13786: the phrase is no decision, what comes before and behind it is trained."""

    def any_reward(prompts, outputs) -> list[float]:
        return [float(len(output.text)) for output in outputs]

    text = "interrupted(least=2, tokens=3, text=' d d', marker='d d')"
    made, batch, _ = round_of(tmp_path, reward=any_reward, added=text, group_size=8, max_tokens=2)
    origin = batch.decisions.origin
    own = [
        output for one in batch.rollouts for output, kind in zip(one.outputs, one.decisions.origin.tolist())
        if kind != HINTED
    ]  # fmt: skip
    cut = sum(output.truncated and "d d" not in output.text for output in own)
    assert int((origin == HINTED).sum()) == int((origin == REPLACED).sum()) == cut > 0
    [ended] = [one for one in batch.rollouts if int(one.decisions.origin[0]) == HINTED]
    phrase = made.policy.model.spell(" d d")[:-1]
    for row, ids in enumerate(ended.steps.ids.tolist()):
        given = (ended.decisions.decision_mask[row] & ~ended.decisions.loss_mask[row]).nonzero()[:, 0].tolist()
        assert [ids[place] for place in given] == phrase and given[0] == 2
        assert int(ended.decisions.loss_mask[row].sum()) > given[0]
    assert metrics(tmp_path)[0]["ratio/first_minus_one"] < 1e-5


def test_a_thought_is_left_early_at_several_places(tmp_path):
    """S-GRPO, arXiv:2505.07686: of one sample a group; the phrase is no decision, and earlier right exits get more."""
    more = {"added": "exits(count=5, tokens=3, text=' d d', marker='d d')", "transform": ["serial"]}
    made, batch, totals = round_of(tmp_path, reward=lambda _, outputs: [1.0] * len(outputs), group_size=1, **more)
    origin, key = batch.decisions.origin, batch.decisions.keys["prompt"]
    assert [int((origin == kind).sum()) for kind in (OWN, HINTED)] == [2, 10]
    [left] = [one for one in batch.rollouts if int(one.decisions.origin[0]) == HINTED]
    phrase = made.policy.model.spell(" d d")[:-1]
    text = made.policy.record_of("a b d d c")
    assert [made.policy.before(text, one) for one in ("d d", "a", "say", "c")] == [2, 0, 5, 4]
    [whole] = [one for one in batch.rollouts if int(one.decisions.origin[0]) == OWN]
    for row, ids in enumerate(left.steps.ids.tolist()):
        given = (left.decisions.decision_mask[row] & ~left.decisions.loss_mask[row]).nonzero()[:, 0].tolist()
        source = whole.decisions.keys["prompt"].tolist().index(int(left.decisions.keys["prompt"][row]))
        assert [ids[place] for place in given] == phrase
        assert ids[: given[0]] == whole.steps.ids[source].tolist()[: given[0]]
    for group in key.unique().tolist():
        assert sorted(totals[key == group].tolist()) == [2.0**-n for n in range(5, -1, -1)]
    assert metrics(tmp_path)[0]["ratio/first_minus_one"] < 1e-5


def test_right_groups_are_left_as_they_are(tmp_path):
    def right(prompts, outputs) -> list[float]:
        return [1.0 + output.tokens for output in outputs]

    weights = []
    for number, given in enumerate(("none", "corrected", "answers(when='failed')", "refined(when='failed')")):
        made, _, _ = round_of(tmp_path / str(number), reward=right, added=given)
        weights.append(torch.cat([one.detach().flatten() for one in made.trained.values()]))
    assert all(torch.equal(weights[0], other) for other in weights[1:])


def test_an_unknown_network_that_refines_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"algorithm\.added.*'referense'.*'reference'"):
        round_of(tmp_path, added="refined(network='referense')")


RARE: dict[str, dict[str, str]] = {
    "alone": {},
    "replay": {"replay": "replay(count=2, strategy='random', above=0.0, statistics='with', old='recomputed')"},
    "hint staged": {"hint": "staged(phrase=' ')"},
    "hint staged, 75 %": {"hint": "staged(shares=[0.75], phrase=' ')"},
    "hint forced, stages": {"hint": "forced(members=4, tokens=stages(2, (60, 1)))"},
    "hint forced, guidance": {"hint": "forced(members=4, tokens=guidance(2, 'reward/reward/mean', most=2))"},
    "answers": {"added": "answers(when='failed')"},
}
"""What may help where the answer is one of 250 samples; ``python -m tests.unit.test_added_rows`` prints the table of
docs/prompts.md."""


def last_rewards(help_: str, folder: Path) -> list[float]:
    """The mean reward of the last 10 of 90 steps of three prompts, under the seeds 0, 1 and 2."""
    words = [("say a c", "c b a"), ("say b c", "d c a"), ("say b d", "b b c")]
    prompts = [Prompt(text, str(number), answer) for number, (text, answer) in enumerate(words)]

    def exact(prompts, outputs) -> list[float]:
        return [float(output.text.strip() == prompt.answer) for prompt, output in zip(prompts, outputs, strict=True)]

    means = []
    for seed in range(3):
        blocks = algorithm_blocks("dr_grpo", aggregation="per_sample", **RARE[help_])
        more: dict[str, Any] = {"group_size": 8, "prompts_per_step": 3, "steps": 90, "lr": 1e-2, "seed": seed}
        trainer(token_policy(5), folder / str(seed), prompts, reward=exact, **more, **blocks).fit()
        means.append(sum(line["reward/reward/mean"] for line in metrics(folder / str(seed))[-10:]) / 10)
    return means


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize(
    ("help_", "least", "most"),
    [
        pytest.param("alone", 0.0, 0.05, marks=pytest.mark.nightly),
        pytest.param("replay", 0.1, 1.0, marks=pytest.mark.nightly),
        pytest.param("answers", 0.3, 1.0, marks=pytest.mark.nightly),
    ],
)
def test_what_was_found_once_is_learned(help_, least, most, tmp_path):
    """Over three seeds: 0 without any help, .2 with replay, .7 with the answers."""
    assert least <= sum(last_rewards(help_, tmp_path)) / 3 <= most


@pytest.mark.parametrize(("margin", "trained"), [(0.5, True), (1.5, False)])
def test_a_teachers_answer_is_preferred_by_a_large_margin_only(margin, trained, tmp_path):
    """DNO as it is run (arXiv:2404.03715): given answers among the samples, and pairs that differ by enough."""
    blocks = algorithm_blocks(
        "dno",
        added="answers(counted=True)",
        objective=f"preference(link='logistic', pairs='all(margin={margin})', anchor='old', beta=0.1)",
    )

    def taught(prompts, outputs):
        return [float(one.text == prompt.answer) for prompt, one in zip(prompts, outputs, strict=True)]

    made = trainer(token_policy(), tmp_path, WORDS, reward=taught, steps=2, lr=1e-3, **blocks)
    made.fit()
    [first, _] = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert first["added/reward"] == 1 and (first["grad_norm"] > 0) is trained


if __name__ == "__main__":
    for name in RARE:
        with tempfile.TemporaryDirectory() as made, contextlib.redirect_stdout(io.StringIO()):
            found = last_rewards(name, Path(made))
        print(f"{name:24}" + "  ".join(f"{value:.3f}" for value in found), flush=True)
