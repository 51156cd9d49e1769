"""Lines of an algorithm for one of several kinds of decisions in a row (``algorithm.parts``).

    text(objective='ppo(low=0.01, high=0.01)', per='trace')     a name, and what differs from the section
    image(preset='flow_grpo', coef=0.5, weights={'pickscore': 1})

Lines that a part does not state are those of its ``preset``, or, without one, of the section ``algorithm``. ``per``
names the key of the rows that share the decisions of the part: their rewards count once, as their mean. ``weights`` are
those of the rewards in its advantages (a reward that is not named has 0), and ``coef`` its share in the sum of losses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from mmgrpo.config.names import nearest
from mmgrpo.config.ranges import ANY_NUMBER, within
from mmgrpo.config.registry import check_scheduled, parse
from mmgrpo.config.schedules import Schedule

LINES = ("transform", "combine", "keys", "baseline", "scale", "shape", "credit", "select")
LINES_OF_LOSS = ("objective", "aggregation", "terms")
SEVERAL = ("transform", "keys", "shape", "select", "terms")
"""Lines that are lists."""


@dataclass(frozen=True)
class PartLines:
    """What ``algorithm.parts`` states of one part."""

    name: str
    coef: Annotated[float, within("[0, inf)")] = 1.0
    per: str = ""
    weights: dict[str, float] = field(default_factory=dict)
    preset: str = ""
    lines: Mapping[str, Any] = field(default_factory=dict)

    def get(self, line: str, otherwise: Any) -> Any:
        """The text of a line, or of the section."""
        return self.lines.get(line, otherwise)


def read_parts(texts: Sequence[str]) -> list[PartLines]:
    """The parts of a section; ValueError for what is none, and for one that stands twice."""
    parts = [_read(text) for text in texts]
    names = [part.name for part in parts]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"algorithm.parts: got '{twice[0]}' twice; state each part once")
    return parts


def _read(text: str) -> PartLines:
    what = "algorithm.parts"
    name, given = parse(text, what)
    lines: dict[str, Any] = {}
    if preset := given.get("preset", ""):
        from mmgrpo.config.reading import preset_values

        lines = {line: value for line, value in preset_values(preset, what).items() if line in LINES + LINES_OF_LOSS}
    known = ("coef", "per", "weights", "preset", *LINES, *LINES_OF_LOSS)
    for line, value in given.items():
        place = f"{what}: {line} of {name}"
        if line not in known:
            raise ValueError(f"{what}: '{name}' has no line '{line}'.{nearest(line, known)}")
        if line in LINES + LINES_OF_LOSS:
            texts = value if isinstance(value, list) else [value]
            if isinstance(value, list) is not (line in SEVERAL) or not all(isinstance(text, str) for text in texts):
                expected = "a list of texts" if line in SEVERAL else "a text"
                raise ValueError(f"{place}: got {value!r}, expected {expected}, e.g. {name}({line}=...)")
            lines[line] = value
        elif line != "weights":
            given[line] = check_scheduled(PartLines, line, value, place)
        elif not isinstance(value, dict) or not value or not all(weight in ANY_NUMBER for weight in value.values()):
            raise ValueError(f"{place}: got {value!r}, expected the weights of rewards by their names, e.g. {{'a': 1}}")
        else:
            given[line] = {reward: float(weight) for reward, weight in value.items()}
    stated = {line: given[line] for line in ("coef", "per", "weights", "preset") if line in given}
    if isinstance(stated.get("preset"), Schedule):
        raise ValueError(f"{what}: preset of {name}: got {stated['preset'].text}, expected a name")
    return PartLines(name, **stated, lines=lines)
