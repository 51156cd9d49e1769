"""Worlds that show what an action has led to: a phone and a robot arm."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.policies.tool_table import returning_images
from mmgrpo.toy.scenes import COLOURS
from mmgrpo.types import Prompt
from pipelines.tools import schemas
from pipelines.vlm.arm import PIXELS, WAYS, Arm
from pipelines.vlm.screens import BUTTONS, SIDE, Phone

TASK = Prompt("Press the last button of the red app.", "0", meta={"task": ["red", 2]})


def phone(seed: int = 3) -> Phone:
    one = Phone()
    one.reset(TASK, seed)
    return one


@pytest.mark.parametrize("seed", range(4))
def test_a_task_of_two_screens_is_done_by_what_is_seen(seed):
    one = phone(seed)
    seen, red = one.look().pixels, torch.tensor(COLOURS["red"]) / 255
    y, x = ((seen - red.view(3, 1, 1)).abs().amax(0) < 1e-6).nonzero().double().mean(0).long().tolist()
    shown = one.tap(x, y).pixels
    assert one.open == "red" and one.reward() == 0
    assert len({row for row, column in ((shown - red.view(3, 1, 1)).abs().amax(0) < 1e-6).nonzero().tolist()}) == 30
    one.tap(SIDE // 2, SIDE - 10)
    assert one.pressed == [("red", 2)] and one.reward() == 1
    one.tap(SIDE // 2, 5)
    one.tap(SIDE // 2, SIDE - 10)
    assert one.reward() == 0  # another button, too


def test_only_the_whole_task_is_rewarded():
    one = phone()
    other = next(place for place, name in enumerate(one.apps) if name != "red")
    one.tap(28 * (other % 2) + 10, 28 * (other // 2) + 10)
    one.tap(28, SIDE - 10)
    assert one.pressed[0][1] == 2 and one.reward() == 0
    one.home()
    assert one.state() == ["", one.pressed[-1:]]
    with pytest.raises(ValueError, match="56.*0 to 55"):
        one.tap(56, 0)
    assert [phone(seed).apps for seed in (1, 1)] == [phone(1).apps] * 2 and BUTTONS == 3


def arm(seed: int = 0) -> Arm:
    one = Arm()
    one.reset(Prompt("Put the red thing on the green place."), seed)
    return one


def towards(one: Arm, goal: tuple[int, int], grip: bool) -> list[float]:
    """The rewards of the turns on the way there, and of none where it is there."""
    earned = []
    while one.hand != goal:
        down, right = (there - here for there, here in zip(goal, one.hand, strict=True))
        step = ((down > 0) - (down < 0), 0) if down else (0, (right > 0) - (right < 0))
        one.move(next(way for way, move in WAYS.items() if move == step), grip)
        earned.append(one.turn_reward())
    return earned


@pytest.mark.parametrize("seed", range(4))
def test_each_step_of_the_arm_is_rewarded_once_and_the_task_at_its_end(seed):
    one = arm(seed)
    assert not any(towards(one, one.thing, grip=False))
    one.move("stay", True)
    assert one.turn_reward() == 1 and one.reward() == 0
    one.move("stay", False)
    one.move("stay", True)
    assert one.turn_reward() == 0  # grasped again
    carried = towards(one, one.goal, grip=True)
    assert carried[-1] == 1 and not any(carried[:-1]) and one.reward() == 0
    one.move("stay", False)
    assert one.turn_reward() == 1 and one.reward() == 1


def test_a_thing_that_is_not_held_stays_and_the_table_ends_at_its_edge():
    one = arm()
    thing = one.thing
    for _ in range(5):
        one.move("north", False)
    assert one.thing == thing and one.hand[0] == 0
    pixels = one.look().pixels[:, ::PIXELS, ::PIXELS]
    assert pixels[:, one.hand[0], one.hand[1]].tolist() == [0, 0, 1]
    assert pixels[:, thing[0], thing[1]].tolist() == [1, 0, 0]
    with pytest.raises(ValueError, match="'up'.*north"):
        one.move("up", True)


def test_screens_are_shown_to_the_model():
    assert set(returning_images([Phone])) == {"look", "tap", "home"} and len(schemas([Phone])) == 3
    assert set(returning_images([Arm])) == {"look", "move"} and len(schemas([Arm])) == 2
