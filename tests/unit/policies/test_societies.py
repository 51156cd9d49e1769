"""Several agents in one sample, against worked numbers: who reads what, and whose reward trains whom."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.advantages.estimate import estimate
from mmgrpo.policies.programs import Ask, Given
from mmgrpo.types import Batch, Prompt, Request, Text
from mmgrpo.update import accumulate_gradients
from pipelines.text.societies import AGENTS, answer_together, contribute, fares, public_goods, serve, staff
from tests.building import algorithm_blocks, recipe
from tests.unit.advantages.test_credit import near
from tests.unit.advantages.test_turn_credit import conversing, credited
from tests.unit.policies.test_programs import programmed, rolled, texts, words
from tests.unit.policies.test_token_policy import PROMPTS
from tests.unit.test_update import Leaf, slopes

pytest.importorskip("transformers")


def advantages_of(preset, made, rewards):
    values = torch.tensor(rewards)[:, None]
    known = torch.ones_like(values, dtype=torch.bool)
    return estimate(values, known, torch.ones(1), made.decisions, algorithm_blocks(preset)["advantages"])


def of_calls(made, table):
    """The one number that all tokens of each call have."""
    turn = made.decisions.fields["turn"]
    found = [[table[row][turn[row] == k].unique() for k in range(int(turn[row].max()) + 1)] for row in range(len(turn))]
    assert all(len(one) == 1 for row in found for one in row)
    return [[float(one) for one in row] for row in found]


# ---- MAGRPO


def test_agents_read_what_both_have_said():
    for output in texts(rolled(programmed(answer_together, 4), size=2)):
        asked, said = words(output, "user"), [*words(output, "assistant"), output.text.split("\n")[-1]]
        assert len(asked) == 4 and not any(agent + ":" in one for one in asked[:2] for agent in AGENTS)
        for one in asked[2:]:
            assert all(f"\n{agent}: {answer}" in one for agent, answer in zip(AGENTS, said[:2], strict=True))
        assert output.text == "\n".join(said[2:4])


def test_all_agents_have_the_advantage_of_their_joint_action():
    """MAGRPO: returns 2, 1, 0, 1 less their mean, without a divisor, are 1, 0, -1, 0 for every agent in every turn."""
    made = rolled(programmed(answer_together, 4), size=4, slots=(0,))
    found = advantages_of("magrpo", made, [2.0, 1.0, 0.0, 1.0])
    assert of_calls(made, found.advantages) == near([[1] * 4, [0] * 4, [-1] * 4, [0] * 4])


def test_of_one_agent_in_one_turn_it_is_the_centred_reward():
    made = rolled(programmed(answer_together, 1), size=4)
    rewards = torch.rand(12, generator=torch.Generator().manual_seed(1))
    found = advantages_of("magrpo", made, rewards.tolist())
    plain = estimate(rewards[:, None], rewards[:, None] >= 0, torch.ones(1), made.decisions, recipe(scale="none"))
    torch.testing.assert_close(found.advantages, plain.advantages)


def test_later_turns_earn_what_is_still_to_come():
    """Joint rewards 1 and 2 of two turns of two agents, against 0 and 0: returns 3, 3, 2, 2, centred 1.5, 1.5, 1, 1."""
    made = conversing([[0, 1, 2, 3]] * 2, [[0, 1, 0, 2], [0, 0, 0, 0]])
    found = credited("turn_return(scaled=False)", [0.0, 0.0], made)
    assert found.numpy() == near([[1.5, 1.5, 1, 1], [-1.5, -1.5, -1, -1]])


def test_the_gradient_reinforces_every_token_of_the_joint_action():
    """- sum of A log p over the tokens of all agents, a mean over samples, without a ratio."""
    policy = programmed(answer_together, 4)
    made = rolled(policy, size=4)
    rewards = [float(one.text.count("a")) for one in texts(made)]
    found, loss = advantages_of("magrpo", made, rewards), algorithm_blocks("magrpo")["loss"]
    mask = found.loss_mask
    policy.network.zero_grad()
    accumulate_gradients(
        policy,
        Batch([made], [torch.arange(12)], made.decisions, found.advantages, mask),
        torch.ones(12, dtype=torch.bool),
        loss,
        micro_batch_size=5,
        accelerator=Accelerator(cpu=True),
        on_policy=False,
    )
    got = torch.cat([one.grad.flatten() for one in policy.network.parameters() if one.grad is not None])
    policy.network.zero_grad()
    centred = torch.tensor(rewards).view(3, 4)
    centred = (centred - centred.mean(1, keepdim=True)).flatten()
    for part in made.steps.split(mask, 1000):
        log_probs = policy.score(made, cast(Any, part), frozenset({"log_probs"}))["log_probs"]
        (-(centred[part.rows] * log_probs).sum() / 12).backward()
    wanted = torch.cat([one.grad.flatten() for one in policy.network.parameters() if one.grad is not None])
    assert wanted.norm() > 0.1
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


# ---- MAC-SPGG


def test_a_public_good_pays_who_builds_on_others():
    """-.3 + .5 times the sum before + 1.8: 1.5, 2, 2.5. Without synergy all earn the same; below a threshold 4 less."""
    assert public_goods([1.0, 1.0, 1.0]) == near([1.5, 2.0, 2.5])
    assert public_goods([1.0, 1.0, 1.0], synergy=0.0) == near([1.5, 1.5, 1.5])
    assert public_goods([1.0, 0.0, 0.0], threshold=1.5, penalty=4.0) == near([0.3 - 4, 0.6 - 4, 0.6 - 4])
    assert public_goods([0.5, 1.0]) == near([-0.075 + 1.35, -0.3 + 0.25 + 1.35])


def test_each_agent_is_compared_with_itself_in_other_samples():
    """Its own earnings alone, whatever the others of its sample earn."""
    policy = programmed(contribute, 3)
    prompts = [Prompt("say a", "0", answer=["a", "b"]), Prompt("say b", "1", answer=["c", "d"])]
    made = policy.rollout(Request(prompts, [0, 1], 8, 3, records=frozenset({"turn"})))
    given = made.decisions.fields["step_rewards"]
    blocks = recipe(baseline="none", scale="none", credit="turn_return(gamma=0, outcome=0, scaled=False)")
    values = torch.zeros(16, 1)
    found = of_calls(made, estimate(values, values > -1, torch.ones(1), made.decisions, blocks).advantages)
    turn = made.decisions.fields["turn"]
    earned = torch.stack([torch.where(turn == k, given, 0.0).sum(1) for k in range(3)], 1)
    wanted = earned.view(2, 8, 3) - earned.view(2, 8, 3).mean(1, keepdim=True)
    assert earned.std() > 0.1 and torch.tensor(found).numpy() == near(wanted.flatten(0, 1).tolist())
    for output, own in zip(texts(made), earned.tolist(), strict=True):
        wanted_words = next(p for p in prompts if words(output)[0].startswith(p.text)).answer
        said = output.text.split("\n")
        qualities = [sum(w in one.split() for w in wanted_words) / 2 for one in said]
        assert own == near(public_goods(qualities)) and output.tool_reward == pytest.approx(sum(qualities))


# ---- OSPO


FLEET = Prompt("Go.", "0", meta={"vehicles": [0, 4, 5, 9], "orders": [[1, 5], [6, 4], [9, 2]]})


def test_vehicles_of_a_time_step_are_the_group():
    """Rewards 3, 1, 2, 2 are 1 / .7071 above, below, and at the mean, by the std of all."""
    made = rolled(programmed(serve, 1), size=4, slots=(0,), prompts=[FLEET])
    asked = [words(one)[0] for one in texts(made)]
    assert [f"You are at {place}." in one for one, place in zip(asked, (0, 4, 5, 9))] == [True] * 4
    root = 2**0.5
    for shift in (0.0, 7.0):
        found = advantages_of("ospo", made, [3.0 + shift, 1.0 + shift, 2.0 + shift, 2.0 + shift])
        assert of_calls(made, found.advantages) == near([[root], [-root], [0], [0]], 1e-5)
    alone = rolled(programmed(serve, 1), size=1, slots=(0,), prompts=[FLEET])
    assert not advantages_of("ospo", alone, [3.0]).advantages.any()


def test_ratios_of_vehicles_are_clipped_at_08_and_128():
    loss = algorithm_blocks("ospo", terms=[])["loss"]
    found = slopes(Leaf([[math.log(ratio)] for ratio in (1.25, 1.3, 0.85, 0.75)]), [1.0, 1.0, -1.0, -1.0], loss)
    assert torch.tensor(found).numpy() == near([[-1.25 / 4], [0], [0.85 / 4], [0]], 1e-6)


def test_an_order_pays_the_nearest_vehicle_that_chose_it():
    """Order 0 at 1 pays 5: the first vehicle is 1 away; order 1 at 6 pays 4: of 5 and 9, 5 is 1 away."""
    chosen = ["0", "I take 0", "1", "1"]
    assert fares([FLEET] * 4, [Text(one) for one in chosen]) == [4.0, 0.0, 3.0, 0.0]
    assert fares([FLEET] * 4, [Text(one) for one in ("none", "7", "2", "2")]) == [0.0, 0.0, 0.0, 2.0]
    with pytest.raises(ValueError, match=r"'1'.*\['x'\].*vehicles.*orders"):
        fares([Prompt("Go.", "1", meta={"x": 1})], [Text("0")])


# ---- MasHost


def said_by(*answers: str) -> tuple[list[Ask], Given]:
    """What a program asks when it is answered so, and what it returns."""
    steps: Any = staff(PROMPTS[0], 0, 0)
    asked = [next(steps)]
    for answer in answers[:-1]:
        asked.append(steps.send(answer))
    with pytest.raises(StopIteration) as end:
        steps.send(answers[-1])
    return asked, end.value.value


def test_a_system_is_built_step_by_step_and_then_works():
    asked, given = said_by("solver", "nobody", "writer", "stop", "seven", "it is seven")
    assert [one.module for one in asked] == ["host"] * 4 + ["solver", "writer"]
    assert "Team so far: solver, writer" in asked[3].text and "solver: seven" in asked[5].text
    assert given.text == "it is seven" and [*given.rewards] == [0.0, -0.1, 0.0, 0.0, 0.0, 0.0]
    asked, given = said_by("stop", "eight")
    assert [one.module for one in asked] == ["host", "writer"] and given.text == "eight"


def test_a_step_that_names_no_role_has_less_than_the_system():
    """Systems 1 and 0, the first with a poor second step: returns of actions -.1 from it on are subtracted once."""
    made = conversing([[0, 1, 2]] * 2, [[0, -0.1, 0], [0, 0, 0]])
    values = torch.tensor([1.0, 0.0]).double()
    found = credited("turn_return(gamma=0, outcome=0, scaled=False)", [0.0, 0.0], made, values=values)
    assert found.numpy() == near([[0, -0.05, 0], [0, 0.05, 0]])
