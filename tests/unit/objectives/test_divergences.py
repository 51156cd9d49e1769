"""KL estimators: worked numbers, and exact sums over three actions."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from mmgrpo.objectives import divergences

LOGITS = torch.tensor([0.3, -0.5, 1.0], dtype=torch.float64)
OLD = torch.tensor([-0.4, 0.2, 0.7], dtype=torch.float64).log_softmax(0)
REFERENCE = torch.tensor([1.0, 0.0, -0.2], dtype=torch.float64).log_softmax(0)


def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p.exp() * (p - q)).sum()


def value_and_gradient(function) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a function of the policy's log-probs, by its logits."""
    logits = LOGITS.clone().requires_grad_()
    value = function(logits.log_softmax(0))
    return value.detach(), torch.autograd.grad(value, logits)[0]


def on_policy(term):
    """The exact expectation of a term as a loss: actions are drawn, so their probability has no gradient."""
    return lambda log_probs: (log_probs.detach().exp() * term(log_probs, REFERENCE, coef=1.0)).sum()


@pytest.mark.parametrize(
    ("term", "value"),
    [
        (divergences.kl_k1, 0.2),
        (divergences.kl_k2, 0.02),
        (divergences.kl_k3, 0.01873),  # e^-.2 + .2 - 1
        (divergences.kl_forward, 0.01752),  # x = e^-.2: -.2 x - x + 1 = 1 - 1.2 * .81873
    ],
)
def test_estimators_for_a_log_ratio_of_one_fifth(term, value):
    got = term(torch.tensor([-1.0]), torch.tensor([-1.2]), coef=1.0)
    assert got.item() == pytest.approx(value, abs=5e-6)
    assert term(torch.tensor([-1.0]), torch.tensor([-1.2]), coef=0.04).item() == pytest.approx(0.04 * value, abs=2e-7)


@pytest.mark.parametrize("term", [divergences.kl_k1, divergences.kl_k3])
def test_k1_and_k3_estimate_the_reverse_kl_without_bias(term):
    assert_close(value_and_gradient(on_policy(term))[0], kl(LOGITS.log_softmax(0), REFERENCE))


def test_forward_estimates_the_forward_kl_without_bias():
    got, _ = value_and_gradient(on_policy(divergences.kl_forward))
    assert_close(got, kl(REFERENCE, LOGITS.log_softmax(0)))


def test_k1_as_a_loss_has_no_gradient_on_average():
    assert_close(value_and_gradient(on_policy(divergences.kl_k1))[1], torch.zeros(3).double())


def test_k2_as_a_loss_has_the_gradient_of_the_reverse_kl():
    _, expected = value_and_gradient(lambda log_probs: kl(log_probs, REFERENCE))
    assert_close(value_and_gradient(on_policy(divergences.kl_k2))[1], expected)


def test_k3_as_a_loss_has_the_gradient_of_the_forward_kl():
    _, expected = value_and_gradient(lambda log_probs: kl(REFERENCE, log_probs))
    assert_close(value_and_gradient(on_policy(divergences.kl_k3))[1], expected)


def test_the_unbiased_kl_is_the_reverse_kl_in_value_and_gradient_off_policy_too():
    def batch(log_probs):
        return (OLD.exp() * divergences.kl_unbiased(log_probs, OLD, REFERENCE, coef=1.0)).sum()

    expected = value_and_gradient(lambda log_probs: kl(log_probs, REFERENCE))
    for got, want in zip(value_and_gradient(batch), expected, strict=True):
        assert_close(got, want)


@pytest.mark.parametrize("name", ["kl_k1", "kl_k2", "kl_k3", "kl_forward"])
def test_a_policy_that_equals_its_reference_pays_nothing(name):
    value, gradient = value_and_gradient(
        lambda log_probs: getattr(divergences, name)(log_probs, LOGITS.log_softmax(0), coef=1.0).sum()
    )
    assert_close(value, torch.tensor(0.0).double())
    assert name == "kl_k1" or gradient.abs().max() < 1e-12


def test_gaussian_kl_is_that_of_torch_distributions():
    old, new = torch.distributions.Normal(0.2, 0.3), torch.distributions.Normal(0.25, 0.3)
    shift = torch.tensor([0.05**2])
    expected = torch.distributions.kl_divergence(new, old)[None]
    assert_close(divergences.kl_gaussian_exact(shift, torch.tensor([0.3]), coef=1.0), expected)
    # dt 0.2: level = std / sqrt(dt), and the dt-free form is the exact one times dt
    level = torch.tensor([0.3 / 0.2**0.5])
    assert_close(divergences.kl_gaussian_dt_free(shift, level, coef=1.0), 0.2 * expected)


def test_entropy_bonus_lowers_the_loss():
    assert divergences.entropy_bonus(torch.tensor([2.0]), coef=0.01).item() == pytest.approx(-0.02)


def test_the_hinge_rests_below_delta_and_pulls_back_above_it():
    old, loss_mask = torch.zeros(1, 4), torch.tensor([[True, True, False, False]])
    near = torch.tensor([[-5e-5, -5e-5, -1.0, -1.0]], requires_grad=True)
    assert (divergences.kl_hinge(near, old, loss_mask) == 0).all()
    far = torch.tensor([[-0.3, -0.1, -9.0, -9.0]], requires_grad=True)
    # K = .2: force 10 * (.2 - .1) = 1 on (old - new), masked entries out of it
    values = divergences.kl_hinge(far, old, loss_mask, coef=10.0, delta=0.1)
    assert_close(values.detach(), torch.tensor([[0.3, 0.1, 0.0, 0.0]]))
    values.sum().backward()
    assert_close(far.grad, torch.tensor([[-1.0, -1.0, 0.0, 0.0]]))


@pytest.mark.parametrize("term", [divergences.kl_velocity, divergences.kl_transition, divergences.reference_divergence])
def test_what_a_policy_measures_is_only_multiplied(term):
    assert term(torch.tensor([4.0]), coef=0.25).item() == 1.0


def test_the_hinge_of_one_decision():
    # K = .3: 10 * (.3 - .1) * .3
    one = torch.zeros(1, 1)
    assert divergences.kl_hinge(one - 0.3, one, one == 0, coef=10.0, delta=0.1).item() == pytest.approx(0.6)
