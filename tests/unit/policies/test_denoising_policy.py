import itertools

import pytest
import torch
from torch.testing import assert_close

from mmgrpo.diffusion.schedules import Grid
from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.runtime.finite import NotFinite, TooLarge
from mmgrpo.types import Request, Rollout
from tests.building import denoising_policy_over, rescored
from tests.toys import ToyModel, toy_policy, toy_prompts

PLANS = {
    "every_step": 4,
    "every_step(shared_noise=True)": 4,
    "random_subset(fraction=0.6)": 4,
    "random_window(size=2)": 4,
    "sliding_window(size=2)": 4,
    "one_step_branch": 4,
    "one_step_branch(draw='all')": 4,
    "one_step_branch(roots=2)": 4,
    "branch_tree(splits=[0,2])": 4,
    "branch_mix(splits=[0,2])": 4,
    "tree_window(children=2,depth=2)": 4,
}
KERNELS = ["flow_sde(a=0.7)", "dance(eta=0.3)", "cps(a=0.8)", "cps(a=0.8, scaled=True)", "flow_ddim(eta=0.7)"]


def rollout(policy: DenoisingPolicy, group_size: int = 4, prompts: int = 3, seed: int = 5) -> Rollout:
    return policy.rollout(Request(toy_prompts(prompts), list(range(prompts)), group_size, seed))


def test_the_noise_of_every_step_is_that_of_the_slot_and_the_sample():
    made = rollout(toy_policy("every_step"), group_size=2, prompts=2)
    (walk,) = made.steps.walks
    noise = (walk.states - walk.means)[walk.target][made.decisions.loss_mask].view(4, -1, 3)  # times the step's std
    assert noise.shape[1] > 1
    for one, other in itertools.combinations(noise, 2):
        assert ((one - other).abs().amax(1) > 1e-3).all()


def test_decisions_of_several_plans_are_numbered_apart():
    made = rollout(toy_policy("one_step_branch(draw='all')"), prompts=2).decisions
    assert (made.node >= 0).all()
    owners = made.node[made.loss_mask]
    assert len(owners.unique()) == len(owners)


def test_trees_are_numbered_from_0_on_over_all_groups():
    assert rollout(toy_policy(), prompts=2).decisions.keys["tree"].tolist() == [*range(8)]
    two_roots = rollout(toy_policy("one_step_branch(roots=2)"), prompts=2).decisions.keys["tree"]
    assert sorted({*two_roots.tolist()}) == [0, 1, 2, 3]


@pytest.mark.parametrize("plan", PLANS)
def test_log_probs_scored_again_are_those_of_the_rollout_for_every_plan(plan):
    policy = toy_policy(plan, steps=8)
    made = rollout(policy, PLANS[plan])
    gap = (rescored(policy, made) - made.decisions.log_probs)[made.decisions.loss_mask]
    assert len(gap) > 0
    # A batch of another size may round the last bit of fp32 differently.
    assert gap.abs().max() <= 5e-7


@pytest.mark.parametrize("kernel", KERNELS)
def test_log_probs_scored_again_are_bitwise_those_of_the_rollout_when_batches_have_the_same_shape(kernel):
    policy = toy_policy("every_step", steps=6, kernel=kernel)
    made = rollout(policy, prompts=2)
    for t in range(5):
        only = torch.zeros_like(made.decisions.loss_mask)
        only[:, t] = True
        (part,) = made.steps.split(only, 1000)
        again = policy.score(made, part, frozenset({"log_probs"}))["log_probs"]
        assert torch.equal(again, made.decisions.log_probs[part.rows, part.positions])


@pytest.mark.parametrize("plan", PLANS)
def test_every_trained_decision_is_in_exactly_one_part_and_no_part_exceeds_the_limit(plan):
    made = rollout(toy_policy(plan, steps=8), PLANS[plan])
    seen = torch.zeros_like(made.decisions.node)
    for part in made.steps.split(made.decisions.loss_mask, 3):
        walk = made.steps.walks[part.walk]
        assert len(walk.source[part.rows - walk.first_row, part.positions].unique()) <= 3
        seen[part.rows, part.positions] += 1
    assert torch.equal(seen, made.decisions.loss_mask.long())


@pytest.mark.parametrize("plan", PLANS)
def test_the_counted_evaluations_are_those_that_the_network_did(plan):
    policy = toy_policy(plan, steps=8)
    made = rollout(policy, PLANS[plan])
    assert policy.model.forwards == made.evaluations


def test_a_one_step_branch_trains_its_whole_group_with_one_evaluation():
    policy = toy_policy("one_step_branch", steps=8)
    made = rollout(policy, group_size=16, prompts=2)
    policy.model.forwards = 0
    rescored(policy, made)
    assert made.decisions.loss_mask.sum() == 32 and policy.model.forwards == 2


def test_shared_decisions_have_one_owner_and_equal_numbers():
    made = rollout(toy_policy("branch_tree(splits=[0,2])", steps=8))
    decisions = made.decisions
    owners = decisions.owned
    # Per group: 2 decisions at steps 0 and 1, then 4 at steps 2 to 6; the last step is deterministic.
    assert owners.sum(0).tolist() == [6, 6, 12, 12, 12, 12, 12, 0]
    assert torch.equal(owners, decisions.loss_mask)
    first_half = decisions.node[:2, 1]
    assert first_half[0] == first_half[1] != decisions.node[2, 1]


def test_shift_and_reference_distances_are_zero_before_training_and_grow_after():
    policy = toy_policy("every_step")
    made = rollout(policy)
    assert rescored(policy, made, name="shift").abs().max() <= 1e-12
    assert rescored(policy, made, name="reference.shift").max() == 0
    with torch.no_grad():
        policy.network.outer.bias += 0.1
    velocity = rescored(policy, made, name="reference.velocity_gap")[made.decisions.loss_mask]
    # The bias moves every velocity by 0.1, so the mean squared difference is 0.01.
    torch.testing.assert_close(velocity, torch.full_like(velocity, 0.01), rtol=1e-4, atol=0)


@pytest.mark.parametrize("plan", ["every_step", "branch_mix(splits=[0,2],window=1)", "one_step_branch(draw='all')"])
def test_the_place_of_a_decision_is_counted_among_those_of_its_row(plan):
    policy = toy_policy(plan, steps=8)
    made = rollout(policy)
    mask = made.decisions.decision_mask
    place, progress = (rescored(policy, made, name=name) for name in ("place", "progress"))
    owned_only = made.decisions.loss_mask
    expected = (mask.cumsum(1) - 1).float()
    assert torch.equal(place[owned_only], expected[owned_only])
    last = (mask.sum(1, keepdim=True) - 1).clamp(min=1)
    whole = torch.where(mask.sum(1, keepdim=True) > 1, expected / last, 1.0)
    torch.testing.assert_close(progress[owned_only], whole[owned_only])


def test_a_step_along_the_gradient_makes_the_sample_more_likely():
    policy = toy_policy("every_step")
    made = rollout(policy)
    (part,) = made.steps.split(made.decisions.loss_mask & (torch.arange(12) == 0)[:, None], 1000)
    before = policy.score(made, part, frozenset())["log_probs"].sum()
    before.backward()
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter += 1e-3 * parameter.grad
    assert policy.score(made, part, frozenset())["log_probs"].sum() > before


def test_coarser_completions_become_previews_and_the_finest_is_the_output():
    policy = toy_policy("one_step_branch(intervals=[1,2])", steps=8)
    made = rollout(policy)
    assert list(made.previews) == ["interval2"] and len(made.previews["interval2"]) == 12
    assert not torch.equal(made.previews["interval2"][0].pixels, made.outputs[0].pixels)


def test_a_decision_is_a_draw_from_the_stated_gaussian():
    policy = toy_policy("one_step_branch(first=0.125)", steps=8)
    made = rollout(policy, group_size=4000, prompts=1)
    walk = made.steps.walks[0]
    drawn = walk.states[walk.target[:, 0]]
    # 12,000 numbers: the std of their mean is std / sqrt(12000), of their std std / sqrt(24000).
    std = float(walk.std[0])
    assert abs(float((drawn - walk.means[walk.target[:, 0]]).mean())) < 4 * std / 12_000**0.5
    assert abs(float((drawn - walk.means[walk.target[:, 0]]).std()) - std) < 4 * std / 24_000**0.5


def test_memory_chunks_of_a_rollout_do_not_change_it():
    small, large = (
        denoising_policy_over(ToyModel(), kernel="cps", steps=6, evaluation_steps=6, forward_batch_size=n)
        for n in (5, 1000)
    )
    for a, b in zip(rollout(small).outputs, rollout(large).outputs, strict=True):
        torch.testing.assert_close(a.pixels, b.pixels, rtol=0, atol=1e-6)


@pytest.mark.parametrize("plan", PLANS)
def test_a_request_draws_the_same_samples_whatever_was_drawn_before(plan):
    policy, request = toy_policy(plan, steps=8), Request(toy_prompts(2), [0, 1], 4, seed=0)
    first = policy.rollout(request)
    torch.rand(1)  # of the global generator
    again = policy.rollout(request)
    torch.testing.assert_close(again.decisions.log_probs, first.decisions.log_probs, rtol=0, atol=0, equal_nan=True)
    for one, other in zip(first.outputs, again.outputs, strict=True):
        assert torch.equal(one.pixels, other.pixels)


def test_groups_are_numbered_by_slot_and_plan_and_trees_by_their_root():
    policy = toy_policy("one_step_branch(draw='all', roots=2)", steps=4)
    made = policy.rollout(Request(toy_prompts(2), [3, 5], 4, seed=5))
    # two plans: groups 2 slot + plan; two roots: trees 2 group + root
    assert made.decisions.keys["prompt"].tolist() == [6] * 4 + [10] * 4 + [7] * 4 + [11] * 4
    assert made.decisions.keys["tree"].tolist() == [
        *[12, 12, 13, 13, 20, 20, 21, 21],
        *[14, 14, 15, 15, 22, 22, 23, 23],
    ]
    assert [prompt.id for prompt in made.prompts] == [toy_prompts(2)[i].id for i in (0, 1, 0, 1) for _ in range(4)]
    assert made.decisions.node.min() == 0
    # no decision of one plan is one of the other
    assert torch.equal(made.decisions.owned, made.decisions.loss_mask) and made.decisions.loss_mask.sum() == 16


def test_evaluations_are_counted_with_guidance():
    policy = toy_policy("one_step_branch(intervals=[1,2])", steps=8)
    once = rollout(policy).evaluations
    policy.model.evaluations_per_row = 2
    assert rollout(policy).evaluations == 2 * once


def test_a_preview_is_the_ode_on_the_coarser_grid():
    """From the state after the branch at step 0: points 1, 3, 5, 7 and 8 of the grid, by Euler's steps."""
    policy = toy_policy("one_step_branch(first=0.125, intervals=[1,2])", steps=8)
    made = rollout(policy, prompts=1)
    [walk] = made.steps.walks
    x, number = walk.states[walk.target[:, 0]], policy.model.encode(made.prompts).number
    points = policy.grid.levels[[1, 3, 5, 7, 8]]
    for now, then in itertools.pairwise(points):
        with torch.no_grad():
            x = x + policy.network(x, now.expand(4), number) * (then - now)
    got = torch.stack([output.pixels for output in made.previews["interval2"]])
    torch.testing.assert_close(got, x, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("limit", "sizes"), [(5, [5, 5, 2]), (4, [4, 4, 4]), (12, [12]), (11, [11, 1])])
def test_parts_hold_as_many_states_as_the_limit_and_the_rest(limit, sizes):
    made = rollout(toy_policy("every_step", steps=4), prompts=1)  # 3 decisions of 4 rows, each from a state of its own
    assert [len(part.rows) for part in made.steps.split(made.decisions.loss_mask, limit)] == sizes
    assert list(made.steps.split(torch.zeros_like(made.decisions.loss_mask), limit)) == []


def test_a_walk_of_which_nothing_is_trained_hides_none_behind_it():
    made = rollout(toy_policy("one_step_branch(draw='all')", steps=6), prompts=1)  # three plans of four rows
    only = made.decisions.loss_mask & (torch.arange(12) >= 4)[:, None]
    parts = list(made.steps.split(only, 1000))
    assert [part.walk for part in parts] == [1, 2]
    assert [part.rows.tolist() for part in parts] == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert [part.positions.tolist() for part in parts] == [[1] * 4, [2] * 4]
    # stored are the noise, the state before the branch where it is another one, and the four behind it
    assert [len(walk.states) for walk in made.steps.walks] == [1 + 4, 1 + 1 + 4, 1 + 1 + 4]


def test_a_kernels_own_std_is_one_a_step():
    assert toy_policy().fields == {"std", "level", "dt", "rectifier"}
    assert toy_policy().provides >= {"std", "level", "dt"}


@pytest.mark.parametrize(
    ("plan", "round", "states"),
    [("every_step", 0, 4 + 3 * 4), ("sliding_window(size=2, interval=1)", 1, 1 + 1 + 4 + 4)],
)
def test_a_state_between_two_decisions_is_stored_once(plan, round, states):
    made = toy_policy(plan, steps=4).rollout(Request(toy_prompts(1), [0], 4, 5, round=round))
    assert [len(walk.states) for walk in made.steps.walks] == [states]


class Diffuses(ToyModel):
    """The toy as a network that predicts the noise of a diffusion process."""

    prediction = "epsilon"

    def grid(self, steps: int) -> Grid:
        return Grid(torch.linspace(0.2, 0.9, steps + 1), torch.arange(steps), "diffusion", 0.5)


@pytest.mark.parametrize("plan", ["every_step", "one_step_branch"])
def test_a_diffusion_process_is_sampled_and_scored_as_a_flow_is(plan):
    policy = denoising_policy_over(Diffuses(), plan, kernel="ddim", evaluation_steps=4)
    made = rollout(policy)
    gap = (rescored(policy, made) - made.decisions.log_probs)[made.decisions.loss_mask]
    assert len(gap) > 0 and gap.abs().max() <= 1e-6
    assert len(policy.sample(Request(toy_prompts(2), [0, 1], 2, 5))) == 4


def test_too_much_noise_is_refused_before_anything_is_sampled():
    policy = toy_policy(kernel="flow_sde(a=3.0)")
    with pytest.raises(ValueError, match=r"sampling\.kernel.*flow_sde\(a=3\.0\).*3.*step 1.*6"):
        rollout(policy)
    assert policy.model.forwards == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("plan", "by"),
    [
        ("every_step", r"sampling\.kernel flow_sde\(a=0\.7\)"),
        ("sliding_window(size=1, tail='dpmpp_2m')", r"sampling\.kernel flow_sde\(a=0\.7\)"),
        ("one_step_branch(first=0.2)", r"sampling\.kernel flow_sde\(a=0\.7\)"),
    ],
)
def test_a_network_whose_predictions_are_far_too_large_ends_the_rollout(plan, by):
    policy = toy_policy(plan)
    with torch.no_grad():
        policy.network.outer.bias += 1000  # type: ignore[attr-defined]
    with pytest.raises(TooLarge, match=f"{by}.*1.*6"):
        rollout(policy)
    with pytest.raises(TooLarge, match="solver.*1.*6"):
        policy.sample(Request(toy_prompts(2), [0, 1], 2, 5))
    policy.network.outer.bias.data.fill_(torch.nan)  # type: ignore[attr-defined]
    with pytest.raises(NotFinite, match="sampled"):
        policy.sample(Request(toy_prompts(2), [0, 1], 2, 5))


@pytest.mark.parametrize(("tail", "by"), [("euler", "deterministic"), ("dpmpp_2m", "dpmpp_2m")])
def test_the_steps_after_the_window_are_guarded_too(tail, by, monkeypatch):
    policy = toy_policy(f"sliding_window(size=1, tail='{tail}')")
    predict = policy.model.predict  # type: ignore[attr-defined]
    late = lambda network, x, time, words: predict(network, x, time, words) + 1000 * (time < 0.6)[:, None, None, None]  # noqa: E731
    monkeypatch.setattr(policy.model, "predict", late)
    with pytest.raises(TooLarge, match=rf"{by}.*4.*6.*0\.5"):
        rollout(policy)


def test_the_displacement_of_a_step_is_along_the_difference_of_the_pair():
    made = toy_policy("every_step(shared_noise=True)", steps=4, kernel="edm_churn(gamma=0.3)")
    drawn = made.rollout(Request(toy_prompts(2), [0, 1], 2, seed=5))
    final, names = drawn.steps.walks[0].final, ("displacement", "drift")  # type: ignore
    assert max(float(rescored(made, drawn, name=name).abs().max()) for name in names) < 1e-4  # nothing has moved yet
    with torch.no_grad():
        made.network.outer.bias += torch.tensor([0.1, -0.2, 0.3])  # type: ignore
    displacement, drift = (rescored(made, drawn, name=name) for name in names)
    trained = drawn.decisions.loss_mask
    assert_close(drift[trained], torch.full_like(drift[trained], 0.14 / 3), rtol=1e-3, atol=1e-5)
    for row in range(4):
        away = (final[row] - final[row ^ 1]).flatten() / 2
        wanted = (torch.tensor([0.1, -0.2, 0.3]) * away / away.square().mean()).mean()
        assert_close(displacement[row][trained[row]], wanted.expand(3), rtol=1e-2, atol=1e-3)
