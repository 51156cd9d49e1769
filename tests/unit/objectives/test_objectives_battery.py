"""What holds for every row of the tables of objectives, terms, weights and mismatch corrections."""

from __future__ import annotations

import inspect

import pytest
import torch

from mmgrpo.config.registry import Block, Bound, bind
from mmgrpo.objectives import AGGREGATIONS, MISMATCH, OBJECTIVES, OFF_POLICY_OBJECTIVES, TERMS
from mmgrpo.objectives.divergences import MASKED

TABLES = {
    **{"objective": OBJECTIVES, "off_policy": OFF_POLICY_OBJECTIVES, "term": TERMS},
    **{"weights": AGGREGATIONS, "mismatch": MISMATCH},
}
REQUIRED = {
    "regression_proximal": "regression_proximal(clip=0.05)",
    "drpo": "drpo(length=8)",
    "constant_horizon": "constant_horizon(length=8)",
    "off_policy_mask": "off_policy_mask(delta=0.1)",
    "kl_hinge": "kl_hinge",
    "codpo": "codpo(coef=0.1)",
    "early_shift": "early_shift(coef=0.5, first=2)",
    "perception": "perception(gamma=0.5)",
    "perception_k3": "perception_k3(gamma=0.5)",
    "double_entropy": "double_entropy(eta1=0.5, eta2=0.25)",
    "kl_velocity_rewarded": "kl_velocity_rewarded",
}
KEY = torch.tensor([0, 7, 0, 7, 0])  # two interleaved groups, of three rows and of two
PASSED = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 1, 1, 1], [1, 1, 1, 1], [0, 1, 0, 0]], dtype=torch.bool)
NAMES = [(what, name) for what, table in TABLES.items() for name in table]
ON_POLICY_GRADIENT = [
    "ppo", "dual_clip", "two_sided_clip", "log_preclip", "cispo_band", "cispo_cap", "sapo", "simple_policy",
    "policy_gradient", "mini_rl", "rec", "sepo", "flow_dppo", "gspo", "gspo_token", "gmpo", "vespo",
]  # fmt: skip
ABSOLUTE = ["n_best", "double_entropy", "kl_forward_rewarded", "advantage_regression"]
"""Of the probabilities themselves, not of ratios."""
OF_THE_STEP = ["kl_hinge", "chi_squared", "ppo_by_entropy", "surrogate_preference"]
"""With a mean or a quantile over all groups of the step."""
OTHERS = ["diffusion_nft", "crd", "gdro", "seppo", "distillation_step", "distillation_velocity", "distillation"]
OTHERS += ["visual_distillation", "ppo_by_entropy", "fake_score", "tdm_r1", "surrogate_preference", "finite_difference"]
OTHERS += ["likelihood", "reward_gradient", "srum", "advantage_regression"]
"""Objectives that compare the members of a group at one position, that are of a latent, that see no advantage, or that
leave the surest decisions without one."""
SUMS_TO_ONE = ["per_decision", "per_sample", "per_turn", "per_prompt", "noise_aware"]


def bound(what: str, name: str) -> Bound:
    text = REQUIRED.get(name, f"{name}(coef=0.5)" if what == "term" else name)
    return bind(text, TABLES[what], what)


def inputs(spread: float = 0.3, seed: int = 0) -> dict[str, torch.Tensor]:
    """One batch of everything that a block can need; log-ratios have the size of ``spread``."""
    random = torch.Generator().manual_seed(seed)

    def normal() -> torch.Tensor:
        return torch.randn(5, 4, generator=random)

    old = normal() - 2
    reward = torch.tensor([1.0, -0.5, -1.0, 0.5, 0.25])
    loss_mask = PASSED.clone()
    loss_mask[3, 0] = False  # a decision of row 3 that another row owns
    return {
        **errors_of(old + spread * normal()),
        "old_log_probs": old,
        "reference.log_probs": old + spread * normal(),
        "sampler_log_probs": old + spread * normal(),
        "teacher.log_probs": old + spread * normal(),
        f"log_probs@{MASKED}": old + spread * normal(),
        "advantages": reward[:, None].expand(5, 4).clone(),
        "turn": torch.tensor([0, 1, 1, 2]).expand(5, 4).clone(),
        "category_weight": torch.where(KEY == 0, 1.5, 0.5),
        "shift": normal().square() * 1e-5 * spread,
        "reference.shift": normal().square(),
        **{f"{name}.velocity_gap": normal().square() for name in ("reference", "old")},
        "read_log_probs": -normal().square(),
        **{name: torch.stack([normal(), normal()], 2) for name in ("gap", "old.gap")},
        "time": normal().square(),
        **{name: torch.stack([normal(), normal()], 2) for name in CLEAN},
        **{name: normal().square() for name in ("estimate_error", "drift")},
        "displacement": spread * normal(),
        "gradient_reward": spread * normal(),
        "boundary": torch.arange(4.0).expand(5, 4),
        "boundary_weight": (torch.arange(4.0).expand(5, 4) + 1) / 4,
        **{f"{name}.error": -old - spread * normal() for name in ("reference", "earlier")},
        **{f"old.{name}": -old for name in ERRORS},
        **{name: normal().square() + 0.1 for name in ("velocity_norm", "reference.velocity_norm")},
        **{name: normal().square() for name in ("teacher.shift", "teacher.velocity_gap")},
        **{name: normal().square() for name in ("reference.kl", "reference.divergence")},
        "entropy": normal().square(),
        "top_log_prob": -normal().square(),
        "drawn_certainty": (certainty := normal().square()),
        "certainty": certainty + spread * normal(),
        "std": normal().abs() + 0.1,
        "level": normal().abs() + 0.1,
        "dt": normal().abs() + 0.1,
        "loss_mask": loss_mask,
        "decision_mask": PASSED,
        "drawn": torch.ones_like(PASSED),
        "rectifier": normal().abs() + 0.1,
        "place": torch.arange(4.0).expand(5, 4),
        "progress": (torch.arange(4.0) / 3).expand(5, 4),
        "teacher.log_probs@pixelated(ratio=0.1)": old + spread * normal(),
        "conditional_entropy": normal().square(),
        "key": KEY,
    }


ERRORS = ("error", "normalized_error", "regional", "anchored")
"""Scores of clean samples, of which a log-prob is minus the error."""


CLEAN = ("clean", "fake.clean", "surrogate.guided_clean")
CLEAN += tuple(f"reference.{name}" for name in ("clean", "guided_clean", "direction"))


def errors_of(log_probs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Log-probs, and the errors that they would be minus."""
    return {"log_probs": log_probs, **{name: -log_probs for name in ERRORS}}


def _seen(values: torch.Tensor) -> torch.Tensor:
    """``PASSED`` with the axes of a latent."""
    return PASSED[:, :, None] if values.dim() == 3 else PASSED


def values_of(block: Bound, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    result = block(batch)
    return result if isinstance(result, torch.Tensor) else result.values


def gradient(block: Bound, batch: dict[str, torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
    """Of the weighted sum, with respect to the log-probs."""
    log_probs = batch["log_probs"].clone().requires_grad_()
    total = (weights * values_of(block, {**batch, **errors_of(log_probs)})).sum()
    if not total.requires_grad:
        return torch.zeros_like(log_probs)
    (grad,) = torch.autograd.grad(total, log_probs, allow_unused=True, materialize_grads=True)
    return grad


@pytest.mark.parametrize(("what", "name"), NAMES)
def test_needs_are_the_first_arguments_and_the_docstring_is_there(what, name):
    block: Block = TABLES[what][name]
    assert tuple(inspect.signature(block.fn).parameters)[: len(block.needs)] == block.needs
    assert block.fn.__doc__ and block.level in ("decision", "row", "group")


@pytest.mark.parametrize("spread", [0.0, 0.3, 20.0])
@pytest.mark.parametrize(("what", "name"), NAMES)
def test_values_and_gradients_are_finite_however_far_the_policy_moved(what, name, spread):
    batch = inputs(spread)
    block = bound(what, name)
    values = values_of(block, batch)
    assert values.shape == batch["loss_mask"].shape
    assert values.isfinite().all()
    assert gradient(block, batch, AGGREGATIONS["per_sample"].fn(batch["loss_mask"])).isfinite().all()


@pytest.mark.parametrize(("what", "name"), NAMES)
def test_positions_without_a_decision_do_not_matter(what, name):
    batch, block = inputs(), bound(what, name)
    of_decisions = {k for k, v in batch.items() if v.is_floating_point() and v.ndim > 1}
    other = {k: torch.where(_seen(v), v, v + 3.0) if k in of_decisions else v for k, v in batch.items()}
    loss_mask, weights = batch["loss_mask"], AGGREGATIONS["per_sample"].fn(batch["loss_mask"])
    torch.testing.assert_close(values_of(block, batch)[loss_mask], values_of(block, other)[loss_mask], rtol=0, atol=0)
    grad = gradient(block, other, weights)
    torch.testing.assert_close(grad, gradient(block, batch, weights), rtol=0, atol=0)
    assert (grad[~PASSED] == 0).all()


@pytest.mark.parametrize(("what", "name"), NAMES)
def test_permuting_rows_permutes_results(what, name):
    batch, block = inputs(), bound(what, name)
    order = torch.tensor([3, 0, 4, 1, 2])
    permuted = values_of(block, {k: v[order] for k, v in batch.items()})
    torch.testing.assert_close(permuted, values_of(block, batch)[order], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("what", "name"), [(w, n) for w, n in NAMES if TABLES[w][n].level == "decision"])
def test_decision_level_gives_the_same_for_any_subset(what, name):
    batch, block = inputs(), bound(what, name)
    some = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 1], [0, 1, 0, 0]], dtype=torch.bool)
    subset = {k: v[some] for k, v in batch.items() if v.shape[:2] == some.shape}
    torch.testing.assert_close(values_of(block, subset), values_of(block, batch)[some], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("what", "name"), [(w, n) for w, n in NAMES if w != "weights" and n not in OF_THE_STEP])
def test_a_group_alone_gives_what_it_gives_among_others(what, name):
    batch, block = inputs(), bound(what, name)
    for key in KEY.unique():
        rows = key == KEY
        alone = values_of(block, {k: v[rows] for k, v in batch.items()})
        torch.testing.assert_close(alone, values_of(block, batch)[rows], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", [n for n, b in OBJECTIVES.items() if b.level == "row"])
def test_a_row_alone_gives_what_it_gives_among_others(name):
    batch, block = inputs(), bound("objective", name)
    for row in range(5):
        alone = values_of(block, {k: v[row : row + 1] for k, v in batch.items()})
        torch.testing.assert_close(alone[0], values_of(block, batch)[row], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("what", "name"), [(w, n) for w, n in NAMES if n not in ABSOLUTE])
def test_only_differences_of_log_probs_count(what, name):
    """A number added to the log-probs of all models changes no ratio, no gap between rows and no mask."""
    batch, block = inputs(), bound(what, name)
    more = {k: v + 0.75 if "log_probs" in k and not k.startswith("read") else v for k, v in batch.items()}
    more |= {k: v - 0.75 for k, v in batch.items() if k.endswith("error")}
    weights = AGGREGATIONS["per_sample"].fn(batch["loss_mask"])
    of_both = [gradient(block, one, weights) for one in (batch, more)]
    torch.testing.assert_close(*of_both, rtol=1e-4, atol=1e-6)
    if what == "mismatch":
        torch.testing.assert_close(values_of(block, more), values_of(block, batch), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ON_POLICY_GRADIENT)
def test_at_ratio_one_the_gradient_is_minus_advantage_times_weight(name):
    batch = {**inputs(spread=0.0), "loss_mask": PASSED}
    weights = AGGREGATIONS["per_sample"].fn(PASSED)
    expected = -batch["advantages"] * weights
    torch.testing.assert_close(gradient(bound("objective", name), batch, weights), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name not in OTHERS])
def test_at_ratio_one_the_loss_raises_the_best_of_a_group_and_lowers_the_worst(name):
    batch = inputs(spread=0.0)
    grad = gradient(bound("objective", name), batch, AGGREGATIONS["per_sample"].fn(batch["loss_mask"]))
    assert (grad[0][batch["loss_mask"][0]] < 0).all()  # advantage 1.0, the best of its group
    assert (grad[2][batch["loss_mask"][2]] > 0).all()  # advantage -1.0, the worst


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_at_ratio_one_nothing_is_clipped(name):
    _, low, high = bound("objective", name)(inputs(spread=0.0))
    assert not low.any() and not high.any()


@pytest.mark.parametrize("name", [n for n in TERMS if n not in REQUIRED])
def test_terms_are_linear_in_their_coefficient(name):
    batch = inputs()
    once, thrice = (bind(f"{name}(coef={c})", TERMS, "term")(batch) for c in (1.0, 3.0))
    torch.testing.assert_close(thrice, 3 * once)
    assert (once != 0).any()


@pytest.mark.parametrize("name", list(AGGREGATIONS))
def test_weights_are_positive_on_the_mask_and_zero_elsewhere(name):
    batch = inputs()
    weights = bound("weights", name)(batch)
    assert torch.equal(weights > 0, batch["loss_mask"])


@pytest.mark.parametrize("name", SUMS_TO_ONE)
def test_weights_of_a_mean_sum_to_one(name):
    torch.testing.assert_close(bound("weights", name)(inputs()).sum(), torch.tensor(1.0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", [*SUMS_TO_ONE, "sample_sum"])
def test_the_only_decision_of_a_step_has_the_weight_one(name):
    only = torch.zeros_like(PASSED)
    only[2, 1] = True
    weights = bound("weights", name)({**inputs(), "loss_mask": only})
    torch.testing.assert_close(weights, only.float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", list(AGGREGATIONS))
def test_weights_of_nothing_are_zero(name):
    batch = inputs()
    assert (bound("weights", name)({**batch, "loss_mask": torch.zeros_like(PASSED)}) == 0).all()


@pytest.mark.parametrize("name", list(MISMATCH))
def test_equal_engines_need_no_correction_and_corrections_have_no_gradient(name):
    batch, block = inputs(spread=0.0), bound("mismatch", name)
    assert (block(batch)[PASSED] == 1).all()
    batch = {k: v.clone().requires_grad_() if v.is_floating_point() else v for k, v in inputs().items()}
    assert not block(batch).requires_grad
