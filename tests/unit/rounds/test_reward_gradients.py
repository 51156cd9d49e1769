"""Which rewards are differentiated, and what is refused of one that cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.config.settings import Optim
from mmgrpo.rewards import scorer
from mmgrpo.rounds import methods
from mmgrpo.rounds.reward_gradients import RewardGradients, weighted_sum
from mmgrpo.scoring import Scorer
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Prompt
from mmgrpo.update import LossRecipe
from tests.building import recipe, trainer
from tests.toys import toy_prompts
from tests.unit.policies.test_reward_gradients import LinearModel, made, near_half

LOSS = LossRecipe.of("reward_gradient", "per_sample")
PIXELS = torch.tensor([0.25, 0.5]).view(2, 1, 1, 1).expand(2, 3, 1, 1)
PROMPTS = [Prompt("a"), Prompt("b")]


def level(prompts: Any, pixels: Tensor) -> Tensor:
    return pixels.mean((1, 2, 3))


def loading() -> Any:
    return level


@reward("Image", gradient=f"{__name__}:loading")
def brightness(prompts: Any, outputs: Any) -> list[float]:
    """The mean of all pixels."""
    return [float(one.pixels.mean()) for one in outputs]


def test_a_reward_states_its_differentiable_form_which_a_weight_of_zero_does_not_need():
    [callback] = methods(LOSS, Optim(), [scorer(brightness), Scorer("watched", level, weight=0.0)])  # type: ignore
    assert isinstance(callback, RewardGradients) and callback.rewards == {"brightness": level}
    assert not methods(LossRecipe.of("ppo", "per_sample"), Optim(), [Scorer("plain", level)])  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scene_all", "brisque", "ocr", f"{__name__}:brightness"])
def test_a_reward_without_one_is_refused_by_name_before_anything_is_loaded(name):
    """One of the user's own runs in a process, which has no gradients."""
    one = scorer(name)
    with pytest.raises(ValueError, match=f"'{one.name}'.*scene_palette.*process=False"):
        methods(LOSS, Optim(), [one])
    if ":" in name:
        assert scorer(f"{name}(process=False)").gradient is not None


def test_the_gradient_is_that_of_the_weighted_sum():
    pixels = PIXELS.clone().requires_grad_()
    rewards = {"a": level, "b": lambda prompts, pixels: pixels.square().mean((1, 2, 3))}
    total = weighted_sum(rewards, {"a": 2.0, "b": -1.0}, PROMPTS, pixels)
    # 2 x - x^2, of which each of three pixels has a third: (2 - 2 x) / 3
    assert total.tolist() == [0.4375, 0.75]
    (found,) = torch.autograd.grad(total.sum(), pixels)
    torch.testing.assert_close(found, (2 - 2 * PIXELS) / 3)


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda prompts, pixels: pixels.mean(), "'a'.*2 scores"),
        (lambda prompts, pixels: [0.0, 1.0], "'a'.*list.*2 scores"),
        (lambda prompts, pixels: pixels.detach().mean((1, 2, 3)), "'a'.*detach"),
        (lambda prompts, pixels: pixels.mean((1, 2, 3)).log() * torch.inf, "'a'.*inf.*finite"),
    ],
)
def test_scores_without_a_gradient_or_a_finite_value_are_errors(function, match):
    with pytest.raises(ValueError, match=match):
        weighted_sum({"a": function}, {"a": 1.0}, PROMPTS, PIXELS.clone().requires_grad_())


def of_run(tmp_path: Any, **changes: Any) -> Any:
    def numbers(prompts: Any, outputs: Any) -> list[float]:
        return near_half(prompts, torch.stack([(one.pixels + 1) / 2 for one in outputs])).tolist()

    one = Scorer("near", numbers, gradient=lambda: near_half)
    given = {"group_size": 1, "steps": 20, "lr": 0.1, "heldout": toy_prompts(4)} | changes
    given = {"advantages": recipe(baseline="none", scale="none")} | given
    return trainer(made("draft(last=2)", LinearModel()), tmp_path, toy_prompts(4), scorers=[one], loss=LOSS, **given)


def test_a_run_raises_its_reward_with_one_sample_of_a_prompt(tmp_path):
    result = of_run(tmp_path).fit()["eval"]
    before, after = (result[when]["near"]["mean"] for when in ("before", "after"))
    assert after > before + 0.1


@pytest.mark.parametrize(
    ("blocks", "match"),
    [({"combine": "minimum"}, "combine.*minimum"), ({"transform": ["clip(low=0, high=1)"]}, "transform.*clip")],
)
def test_rewards_that_are_changed_before_they_are_compared_are_refused(tmp_path, blocks, match):
    with pytest.raises(ValueError, match=f"algorithm.{match}.*weighted sum"):
        of_run(tmp_path, advantages=recipe(baseline="none", scale="none", **blocks))
