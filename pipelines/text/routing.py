"""A world for completions of several turns in which other models answer, at a price:

    sampling:
      tools: [pipelines.text.routing:Router]

The policy asks one of them, reads its answer, and asks another or answers itself, as in Router-R1 (arXiv:2506.09033).
What it has paid is the reward ``tool_reward``, of weight 0, and the transform ``saving`` takes it from right answers.
The models here are tables of facts; a class of your own calls services, and raises ``WorldFailed`` where one is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CAPITALS = {"Austria": "Vienna", "Egypt": "Cairo", "France": "Paris", "Hungary": "Budapest"}
RIVERS = {"Vienna": "Danube", "Cairo": "Nile", "Paris": "Seine", "Budapest": "Danube"}


@dataclass(frozen=True)
class Model:
    """A model that may be asked: its price per word of its answers, and what it knows."""

    price: float
    facts: Mapping[str, str]


MODELS = {
    "atlas": Model(0.2, CAPITALS),
    "hydra": Model(0.3, RIVERS),
    "sage": Model(1.8, {**CAPITALS, **RIVERS}),
}


class Router:
    """Questions of two steps, and the models that answer one step at a time."""

    def reset(self) -> None:
        self.paid = 0.0

    def ask(self, model: str, about: str) -> str:
        """Ask another model. atlas knows the capitals of countries and costs 0.2 a word, hydra the rivers of cities for
        0.3, sage both for 1.8.

        Args:
            model: atlas, hydra or sage.
            about: The country whose capital, or the city whose river is asked for.
        """
        if model not in MODELS:
            raise ValueError(f"got model '{model}', expected one of {', '.join(MODELS)}")
        fact = MODELS[model].facts.get(about)
        answer = f"{fact}." if fact else "I do not know."
        self.paid += MODELS[model].price * len(answer.split())
        return answer

    def reward(self) -> float:
        """What the answers cost."""
        return self.paid
