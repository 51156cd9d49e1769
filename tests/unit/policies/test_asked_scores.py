"""A policy returns the scores that it is asked for, and what it is told wrongly it refuses."""

from __future__ import annotations

import warnings

import pytest
import torch

from mmgrpo.config.registry import bind
from mmgrpo.diffusion.kernels import kernel, level_table, noise_table
from mmgrpo.objectives import OBJECTIVES, TERMS
from mmgrpo.policies.contrasts import shuffled_frames
from mmgrpo.policies.generation import draw_tokens
from mmgrpo.runtime.networks import bind_networks
from mmgrpo.types import Media, Prompt, Request, Turn
from mmgrpo.update import BATCH_NAMES, with_scores
from tests.building import matching_policy_over
from tests.toys import ToyModel, toy_policy, toy_prompts
from tests.unit.policies.test_token_policy import token_policy

EXTRA = ["shift", "std", "level", "dt"]


def test_a_denoising_policy_returns_each_score_that_it_is_asked_for_and_no_other():
    policy = toy_policy("random_window(size=2)", steps=6)
    policy.keep_reference()
    drawn = policy.rollout(Request(toy_prompts(2), [0, 1], 4, seed=0))
    [part] = drawn.steps.split(drawn.decisions.loss_mask, 1000)
    made = kernel("flow_sde(a=0.7)")
    grid = policy.grid
    expected = {
        "shift": torch.zeros(len(part.positions)),
        "std": noise_table(made, grid)[part.positions],
        "level": level_table(made, grid)[part.positions],
        "dt": grid.levels[part.positions] - grid.levels[part.positions + 1],
    }
    assert len(part.positions.unique()) == 2 and len(expected["std"].unique()) == 2
    for name in EXTRA:
        scores = policy.score(drawn, part, frozenset({"log_probs", name}))
        assert scores.keys() == {"log_probs", name, "velocity_norm"}  # which every update records
        torch.testing.assert_close(scores[name], expected[name], rtol=1e-6, atol=1e-9)
    assert "reference.kl" not in policy.score(drawn, part, frozenset({"reference.shift"}))
    everything = policy.score(drawn, part, policy.provides)
    assert everything.keys() >= {*EXTRA, "log_probs", "reference.log_probs", "reference.shift"}
    torch.testing.assert_close(everything["reference.log_probs"], everything["log_probs"], rtol=0, atol=1e-6)


def test_what_has_moved_since_the_rollout_is_measured_from_its_means():
    policy = toy_policy("every_step", steps=4)
    drawn = policy.rollout(Request(toy_prompts(1), [0], 2, seed=0))
    [part] = drawn.steps.split(drawn.decisions.loss_mask, 1000)
    with torch.no_grad():
        policy.network.outer.bias += 0.5  # every velocity, and by it the mean: v dt + level^2 / (2 s) (1 - s) v dt
    levels = policy.grid.levels
    now, dt = levels[part.positions], levels[part.positions] - levels[part.positions + 1]
    level = level_table(kernel("flow_sde(a=0.7)"), policy.grid)[part.positions]
    moved = 0.5 * dt * (1 + level.square() / (2 * now) * (1 - now))
    shift = policy.score(drawn, part, frozenset({"shift"}))["shift"]
    torch.testing.assert_close(shift, moved.square(), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", ["old", "sampler", "drawn"])
def test_no_score_of_a_network_has_the_name_of_a_record_of_the_batch(name):
    """A term that asks for a network named old leaves PPO its old log-probs: those of the rollout."""
    policy = toy_policy("every_step", steps=4)
    policy.networks.follow(bind_networks([f"average(name='{name}')"]))
    drawn = policy.rollout(Request(toy_prompts(1), [0], 2, seed=0))
    [part] = drawn.steps.split(drawn.decisions.loss_mask, 1000)
    with torch.no_grad():
        for values in policy.networks.values[name].values():
            values += 0.5
    scores = policy.score(drawn, part, frozenset({"log_probs", f"{name}.velocity_gap"}))
    assert f"{name}.log_probs" in scores and not BATCH_NAMES & scores.keys()
    assert not torch.equal(scores[f"{name}.log_probs"], scores["log_probs"])
    at = part.rows, part.positions
    inputs = with_scores({"old_log_probs": drawn.decisions.log_probs[at]}, scores)
    assert torch.equal(inputs["old_log_probs"], drawn.decisions.log_probs[at])
    with pytest.raises(ValueError, match="old_log_probs"):
        with_scores({}, {"old_log_probs": scores["log_probs"]})


def test_old_log_probs_are_of_the_rollout_and_a_term_of_the_network_old_asks_for_its_own():
    assert "old_log_probs" in bind("ppo", OBJECTIVES, "").needs
    assert "old.velocity_gap" in bind("kl_velocity_old(coef=0)", TERMS, "").needs


# What is refused


@pytest.mark.parametrize("top_p", [0.0, -0.5, 1.01])
def test_a_share_of_the_probability_that_is_none_is_refused(top_p):
    with pytest.raises(ValueError, match="top_p.*0 < top_p <= 1"):
        token_policy(top_p=top_p)


def test_a_truncated_distribution_is_warned_of_and_a_whole_one_is_not():
    with pytest.warns(UserWarning, match="top_p=0.9"):
        token_policy(top_p=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        token_policy(top_p=1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"search": "greedy"}, "'greedy'"),
        ({"search": "beam", "contrast": "shuffled_frames"}, "'shuffled_frames'.*beam"),
        ({"sampling_dtype": "float8"}, "sampling_dtype 'float8'"),
        ({"temperature": -1.0}, "temperature -1.0.*0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        token_policy(**settings)


# The nucleus


def drawn(top_p: float, uniform: float, probabilities: tuple[float, ...] = (0.1, 0.5, 0.25, 0.15)) -> int:
    distribution = torch.tensor([probabilities], dtype=torch.float64).log()
    return draw_tokens(distribution, torch.tensor([uniform], dtype=torch.float64), top_p).item()


def test_only_the_most_likely_tokens_that_together_reach_the_share_are_drawn():
    # 0.5 alone reaches 0.5; 0.5 + 0.25 reach 0.6 and 0.75; 0.15 is needed for 0.76
    for top_p, possible in ((0.5, {1}), (0.6, {1, 2}), (0.75, {1, 2}), (0.76, {1, 2, 3}), (1.0, {0, 1, 2, 3})):
        assert {drawn(top_p, (i + 0.5) / 200) for i in range(200)} == possible
    # within the nucleus of 0.75 token 1 has two thirds, and comes first
    assert drawn(0.75, 0.66) == 1 and drawn(0.75, 0.67) == 2


def test_a_token_is_drawn_where_the_cumulative_probability_exceeds_the_number():
    assert [drawn(1.0, u) for u in (0.0, 0.0999, 0.1001, 0.5999, 0.6001, 0.8499, 0.8501, 0.9999)] == [
        0, 0, 1, 1, 2, 2, 3, 3,
    ]  # fmt: skip
    assert drawn(1.0, 0.0, (0.0, 1.0, 0.0, 0.0)) == 1 and drawn(1.0, 0.999999, (0.0, 1.0, 0.0, 0.0)) == 1


@pytest.mark.parametrize("words", [255, 256, 257, 600])
def test_a_token_of_a_large_vocabulary_is_drawn_where_one_sum_over_it_says(words):
    probabilities = torch.rand(words, generator=torch.Generator().manual_seed(words), dtype=torch.float64)
    probabilities[1::3] = 0
    probabilities /= probabilities.sum()
    uniform = (torch.arange(700, dtype=torch.float64) + 0.5) / 700
    expected = torch.searchsorted(probabilities.cumsum(0), uniform, right=True)
    assert torch.equal(draw_tokens(probabilities.log().expand(700, -1), uniform), expected)


# Shuffled frames


@pytest.mark.parametrize(("fraction", "group_size", "samples"), [(0.5, 8, 4), (0.5, 3, 2), (0.01, 8, 1), (1.0, 8, 8)])
def test_a_share_of_the_group_answers_about_shuffled_frames(fraction, group_size, samples):
    clip, picture = Media("video", "a.mp4", options={"fps": 2}), Media("image", "a.png")
    prompt = Prompt("what", "a", turns=(Turn("user", (clip, picture, "what")),), meta={"size": 1})
    changed, count = shuffled_frames(prompt, group_size, 3, fraction=fraction)
    assert count == samples
    video, image, text = changed.turns[0].parts
    assert video.options["fps"] == 2 and "shuffle" in video.options and (image, text) == (picture, "what")
    assert changed.meta == {"size": 1, "contrast": "shuffled_frames"}
    again, half = shuffled_frames(prompt, group_size, 4)
    assert again.turns[0].parts[0].options != video.options and half == max(1, round(group_size / 2))
    still = Prompt("what", "a", turns=(Turn("user", (picture, "what")),))
    assert shuffled_frames(still, group_size, 3) == (still, 0)


@pytest.mark.parametrize("kind", ["matching", "denoising"])
def test_what_a_round_draws_depends_on_its_seed_and_slots_alone(kind):
    made = (
        matching_policy_over(ToyModel(), steps=4, evaluation_steps=4, forward_batch_size=64, draws=2, error="velocity")
        if kind == "matching"
        else toy_policy("random_subset(fraction=0.5)", steps=4)
    )
    prompts = toy_prompts(2)

    def drawn(other: int, slots: list[int], seed: int = 5) -> torch.Tensor:
        torch.manual_seed(other)  # of torch itself, which nothing may use
        rollout = made.rollout(Request([prompts[slot] for slot in slots], slots, 3, seed))
        entries = torch.where(rollout.decisions.decision_mask, rollout.decisions.log_probs, 0.0)
        return torch.cat(
            [entries, rollout.decisions.loss_mask.float(), torch.stack([o.pixels for o in rollout.outputs]).flatten(1)],
            1,
        )

    both = drawn(0, [0, 1])
    assert torch.equal(both, drawn(1, [0, 1])) and not torch.equal(both, drawn(0, [0, 1], seed=6))
    torch.testing.assert_close(drawn(2, [1]), both[3:], rtol=1e-5, atol=1e-5)
