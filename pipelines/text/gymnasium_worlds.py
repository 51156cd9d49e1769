"""Environments of gymnasium as worlds for completions of several turns:

    sampling:
      tools: ["pipelines.text.gymnasium_worlds:FrozenLake-v1"]

Any name of gymnasium's registry may stand there, and ``my_worlds:Lake`` for one with choices of its own:

    from pipelines.text.gymnasium_worlds import gymnasium_world

    Lake = gymnasium_world("FrozenLake-v1", ["left", "down", "right", "up"], {"is_slippery": False}, render="ansi")

The policy acts by a call of the tool ``act`` and reads the next observation; the reward of each step is that of its
turn, their sum the reward ``tool_reward``. ``world`` makes the same of any object with gymnasium's interface of five
values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
from PIL import Image as Pil

from mmgrpo.config.extras import install
from mmgrpo.config.settings import Missing
from mmgrpo.policies.tool_table import WorldFailed
from mmgrpo.types import Prompt


class Environment(Protocol):
    """Gymnasium's interface."""

    action_space: Any

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first observation, and what is known besides."""
        ...

    def step(self, action: Any, /) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Observation, reward, terminated, truncated, and what is known besides."""
        ...

    def render(self) -> Any:
        """A text, or an image as an array of bytes [height, width, 3]."""
        ...


def gymnasium_world(
    name: str, actions: Sequence[str] = (), options: Mapping[str, Any] | None = None, render: str = ""
) -> type:
    """A class for ``sampling.tools`` of an environment of gymnasium's registry.

    ``actions`` are words for the numbers of a discrete space; ``options`` what ``gymnasium.make`` takes for it.
    ``render="ansi"`` shows its text in place of the observation, ``"rgb_array"`` an image.
    """
    arguments = {**(options or {}), **({"render_mode": render} if render else {})}
    return world(lambda: _gymnasium(name).make(name, **arguments), actions, render != "", render == "rgb_array")


def world(
    make: Callable[[], Environment], actions: Sequence[str] = (), rendered: bool = False, images: bool = False
) -> type:
    """A class for ``sampling.tools`` of what ``make`` returns, which has gymnasium's interface.

    Without ``actions`` its space must be one of gymnasium's, ``Discrete``, ``Box``, ``MultiDiscrete`` or
    ``MultiBinary``. ``rendered`` shows ``render()`` in place of the observation, a text or, with ``images``, an image.
    A row may have columns ``meta.seed`` and ``meta.options`` for ``reset``; else a prompt's completions share a seed.

    An action outside of the space is the policy's fault and an error that it reads. An environment that raises, or
    returns something else than five values with a finite reward, has failed (``WorldFailed``).
    """
    read, hint, words = (_action_reader(actions), str, ", ".join(actions)) if actions else _space(make().action_space)

    class World:
        """An episode of the environment."""

        def reset(self, prompt: Prompt, seed: int) -> str | None:
            self.environment, self.total, self.earned, self.ended = make(), 0.0, 0.0, ""
            seed, options = prompt.meta.get("seed", seed), prompt.meta.get("options")
            with _Failing("reset"):
                observation, _ = self.environment.reset(seed=int(seed), options=options)
            self.observed = _plain(observation)
            return None if images else f"\n{self._shown_state()}"

        def act(self, action: Any) -> Any:
            if self.ended:
                raise ValueError(f"the episode has ended: it was {self.ended}")
            taken = read(action)
            with _Failing("step"):
                observation, reward, terminated, truncated, _ = self.environment.step(taken)
                if not math.isfinite(reward := float(reward)):
                    raise ValueError(f"got the reward {reward}")
            self.observed, self.earned, self.total = _plain(observation), self.earned + reward, self.total + reward
            self.ended = "terminated" if terminated else "truncated" if truncated else ""
            state, end = self._shown_state(), f"The episode is {self.ended}." if self.ended else ""
            return [end, state] if images else f"{state}\n{end}".strip()

        def turn_reward(self) -> float:
            """The rewards of the turn's steps."""
            earned, self.earned = self.earned, 0.0
            return earned

        def reward(self) -> float:
            """The rewards of all steps."""
            return self.total

        def state(self) -> Any:
            """The observation, by which turns are compared."""
            return self.observed

        def _shown_state(self) -> Any:
            if not rendered:
                return self.observed if isinstance(self.observed, str) else json.dumps(self.observed)
            with _Failing("render"):
                shown = self.environment.render()
                return Pil.fromarray(np.asarray(shown, np.uint8)) if images else str(shown)

    World.act.__doc__ = f"Act, and see what follows.\n\nArgs:\n    action: {words}."
    World.act.__annotations__ = {"action": hint, "return": list[str | Pil.Image] if images else str}
    World.reset.__annotations__["return"] = None if images else str
    if images:
        World.look = _look  # type: ignore[attr-defined]
    return World


def _look(self: Any) -> Pil.Image:
    """Look, without acting."""
    return self._shown_state()


@cache
def __getattr__(name: str) -> type:
    """``pipelines.text.gymnasium_worlds:FrozenLake-v1`` for ``sampling.tools``; names of gymnasium have a version."""
    if not re.fullmatch(r".+-v\d+", name):
        raise AttributeError(name)
    world = gymnasium_world(name)
    world.__name__ = world.__qualname__ = name
    return world


class _Failing:
    """Makes of what the environment raises the failure of a world."""

    def __init__(self, method: str) -> None:
        self.method = method

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception):
            raise WorldFailed(f"{self.method} of the environment: {type(error).__name__}: {error}") from error


def _action_reader(actions: Sequence[str]) -> Callable[[Any], int]:
    def read(action: Any) -> int:
        if action not in actions:
            raise ValueError(f"got action '{action}', expected one of {', '.join(actions)}")
        return list(actions).index(action)

    return read


def _space(space: Any) -> tuple[Callable[[Any], Any], Any, str]:
    """What makes an action of a call's argument, its kind, and what it may be in words."""
    spaces = _gymnasium("").spaces

    def within(value: Any) -> Any:
        if not space.contains(value):
            raise ValueError(f"got action {value}, expected one of {space}")
        return value

    if isinstance(space, spaces.Discrete):
        return lambda action: within(int(action)), int, f"{space.start} to {space.start + space.n - 1}"
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        kind = list[float] if isinstance(space, spaces.Box) else list[int]
        return lambda action: within(np.asarray(action, space.dtype).reshape(space.shape)), kind, str(space)
    raise ValueError(
        f"sampling.tools: got an environment whose actions are {space}, expected Discrete, Box, MultiDiscrete or "
        "MultiBinary; name its actions, or write a class of your own"
    )


def _gymnasium(name: str) -> Any:
    """The library. ``Missing``, which says how to install it, and ValueError for a name that it does not have."""
    try:
        import gymnasium
    except ImportError as error:
        raise Missing(f"sampling.tools: {name or 'this world'} needs gymnasium: {install('worlds')}") from error
    if name and ":" not in name:
        try:
            gymnasium.spec(name)
        except gymnasium.error.Error as error:
            raise ValueError(f"sampling.tools: gymnasium has no environment '{name}' ({error})") from error
    return gymnasium


def _plain(value: Any) -> Any:
    """An observation as JSON can hold it; floats to 4 decimal places, since states are compared."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return round(value, 4) if isinstance(value, float) else value
