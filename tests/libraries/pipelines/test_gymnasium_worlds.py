"""Environments with gymnasium's interface as tools: its five values, and whose fault is what."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mmgrpo.config.settings import Missing
from mmgrpo.policies.token_model import Query
from mmgrpo.policies.tool_calls import arguments_of
from mmgrpo.policies.tool_table import WorldFailed, load_tools, opens, reset_parameters, returning_images, tools_by_name
from mmgrpo.policies.tools import Episode, Tools
from mmgrpo.types import Prompt
from pipelines.text import gymnasium_worlds
from pipelines.text.gymnasium_worlds import gymnasium_world, world
from pipelines.tools import names_elsewhere, schemas
from tests.unit.policies.test_tool_process import called

PROMPT = Prompt("where?", "0")


class Line:
    """Four cells in a row: from the one that the seed chooses to the last, which is worth 1; others cost 0.1."""

    action_space = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        self.place = int(options["place"]) if options else int(seed or 0) % 3
        return self.place, {}

    def step(self, action: int, /) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.place = max(0, self.place + (1, -1)[action])
        return self.place, 1.0 if self.place == 3 else -0.1, self.place == 3, False, {}

    def render(self) -> str:
        return "." * self.place + "o" + "." * (3 - self.place)


WAYS = ("right", "left")


def acting(kind: type, actions: Sequence[Any], prompt: Prompt = PROMPT, seed: int = 1) -> tuple[str, list[str], Any]:
    one = kind()
    return one.reset(prompt, seed), [one.act(action) for action in actions], one


def test_five_values_are_what_is_read_and_what_is_earned():
    begun, seen, one = acting(world(Line, WAYS), ["left", "right"])
    assert (begun, seen, one.state()) == ("\n1", ["0", "1"], 1)
    # two steps at -0.1 in one turn, then a step at -0.1 and the last at 1
    assert one.turn_reward() == pytest.approx(-0.2) and one.turn_reward() == 0
    assert [one.act("right"), one.act("right")] == ["2", "3\nThe episode is terminated."]
    assert one.turn_reward() == pytest.approx(0.9) and one.reward() == pytest.approx(0.7)
    with pytest.raises(ValueError, match="ended.*terminated"):
        one.act("left")
    assert one.reward() == pytest.approx(0.7) and one.turn_reward() == 0
    assert acting(world(Line, WAYS, rendered=True), ["right"])[:2] == ("\n.o..", ["..o."])


def test_all_completions_of_a_prompt_begin_alike_and_a_row_may_say_where():
    for seed, begun in ((0, "\n0"), (5, "\n2")):
        assert acting(world(Line, WAYS), [], seed=seed)[0] == begun
    assert acting(world(Line, WAYS), [], Prompt("a", meta={"seed": 8}))[0] == "\n2"
    assert acting(world(Line, WAYS), [], Prompt("a", meta={"options": {"place": 2}}))[0] == "\n2"


def test_a_world_is_described_to_the_model_and_its_arguments_are_read():
    kind = world(Line, WAYS)
    (told,) = schemas([kind])
    assert told["function"]["name"] == "act" and set(tools_by_name([kind])) == {"act"}
    assert told["function"]["parameters"]["properties"]["action"] == {"type": "string", "description": "right, left."}
    assert arguments_of(told["function"]["parameters"], {"action": "left"}) == ({"action": "left"}, "")
    assert opens(kind) and reset_parameters(kind) == 2 and not returning_images([kind])


def broken(**does: Callable[..., Any]) -> type:
    """The line, of which some methods do something else."""
    methods = {name: lambda self, *given, one=one, **more: one() for name, one in does.items()}
    return world(type("Broken", (Line,), methods), WAYS)


@pytest.mark.parametrize(
    ("does", "says"),
    [
        (lambda: 1 / 0, "step.*ZeroDivisionError"),
        (lambda: (0, 1.0, True, {}), "step.*4"),  # of gym before 0.26
        (lambda: (0, math.nan, False, False, {}), "step.*nan"),
        (lambda: (0, "much", False, False, {}), "step.*much"),
        (lambda: None, "step.*None"),
    ],
)
def test_an_environment_that_fails_is_no_fault_of_the_policy(does, says):
    tools = Tools((broken(step=does),), lambda parts: "", 4, 8, 60.0)
    (query,) = tools.open_prompts([Query(PROMPT, 0, 1)], 3)
    one = Episode(query, 0)
    assert "expected one of right, left" in called(tools, "act", one, action="up").error and not one.fault
    called(tools, "act", one, action="left")
    assert re.search(says, one.fault)
    with pytest.raises(WorldFailed, match=says):
        acting(broken(step=does), ["left"])
    with pytest.raises(WorldFailed, match="reset.*ZeroDivisionError"):
        acting(broken(reset=lambda: 1 / 0), [])


def test_without_gymnasium_its_worlds_say_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    gymnasium_worlds.__getattr__.cache_clear()
    with pytest.raises(Missing, match=r"sampling\.tools.*FrozenLake-v1.*pip install.*worlds"):
        load_tools(["pipelines.text.gymnasium_worlds:FrozenLake-v1"])
    with pytest.raises(ValueError, match=r"sampling\.tools.*no 'Lake'"):
        load_tools(["pipelines.text.gymnasium_worlds:Lake"])


def test_environments_of_gymnasium_by_their_names():
    gymnasium = pytest.importorskip("gymnasium")
    names = ["pipelines.text.gymnasium_worlds:FrozenLake-v1"]
    (lake,) = load_tools(names)
    assert names_elsewhere(names) == names and lake.__name__ == "FrozenLake-v1" and load_tools(names) == [lake]
    assert schemas([lake])[0]["function"]["parameters"]["properties"]["action"]["type"] == "integer"
    twin = gymnasium.make("FrozenLake-v1")
    first, _ = twin.reset(seed=1)
    begun, seen, one = acting(lake, [2, 1])
    values = [twin.step(action) for action in (2, 1)]
    assert begun == f"\n{first}" and [text.partition("\n")[0] for text in seen] == [str(value[0]) for value in values]
    assert one.reward() == sum(value[1] for value in values)
    with pytest.raises(ValueError, match="4.*Discrete"):
        acting(lake, [4])
    with pytest.raises(ValueError, match=r"sampling\.tools.*'Frozenlake-v1'"):
        load_tools(["pipelines.text.gymnasium_worlds:Frozenlake-v1"])
    shown = gymnasium_world("FrozenLake-v1", ["left", "down", "right", "up"], {"is_slippery": False}, render="ansi")
    assert "FHFH" in acting(shown, [])[0]
    assert acting(shown, ["right", "left", "down"])[2].state() == 4


def test_actions_that_are_numbers_of_a_box():
    pytest.importorskip("gymnasium")
    car = gymnasium_world("MountainCarContinuous-v0")
    begun, _, one = acting(car, [[0.5]])
    assert len(json.loads(begun)) == 2 and one.reward() == pytest.approx(-0.1 * 0.25)
    with pytest.raises(ValueError, match="Box"):
        acting(car, [[7.0]])
    assert schemas([car])[0]["function"]["parameters"]["properties"]["action"]["type"] == "array"
