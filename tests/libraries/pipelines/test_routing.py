"""Other models as a world: who knows what, and what their answers cost."""

from __future__ import annotations

import pytest

from pipelines.text.routing import Router
from pipelines.tools import schemas


def test_a_question_of_two_steps_costs_what_was_asked():
    """One word for 0.2 and one for 0.3; the model that knows both takes 1.8 for each, and four words of ignorance."""
    cheap, dear, lost = Router(), Router(), Router()
    for one in (cheap, dear, lost):
        one.reset()
    assert cheap.ask("atlas", "Egypt") == "Cairo." and cheap.ask("hydra", "Cairo") == "Nile."
    assert dear.ask("sage", "Egypt") == "Cairo." and dear.ask("sage", "Cairo") == "Nile."
    assert lost.ask("hydra", "Egypt") == "I do not know."
    assert [one.reward() for one in (cheap, dear, lost)] == pytest.approx([0.5, 3.6, 1.2])
    with pytest.raises(ValueError, match="'oracle'.*atlas, hydra, sage"):
        cheap.ask("oracle", "Egypt")
    assert cheap.reward() == 0.5
    cheap.reset()
    assert cheap.reward() == 0


def test_the_policy_is_told_what_models_know_and_cost():
    (told,) = schemas([Router])
    said = " ".join(told["function"]["description"].split())
    assert told["function"]["name"] == "ask" and "hydra the rivers of cities for 0.3" in said
    assert sorted(told["function"]["parameters"]["properties"]) == ["about", "model"]
