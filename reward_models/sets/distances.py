"""How diverse a set of vectors is, how far two sets are apart, how one is transported to the other: pure functions."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


def vendi_score(rows: Float[Tensor, "n width"]) -> float:
    """exp(-sum_k l_k log l_k) over the eigenvalues l of K / n, K_ij = cos(x_i, x_j): the effective number of different
    rows, from 1 (all alike) to n (all orthogonal). Vendi score, arXiv:2210.02410, equation 1."""
    unit = functional.normalize(rows.double())
    kernel = (unit @ unit.T).fill_diagonal_(1.0)
    values = torch.linalg.eigvalsh(kernel / len(rows)).clamp(min=0)
    return math.exp(float(torch.special.entr(values).sum()))


def frechet_distance(rows: Float[Tensor, "n width"], others: Float[Tensor, "m width"], ddof: int = 0) -> float:
    """|mu_1 - mu_2|^2 + tr(S_1 + S_2 - 2 (S_1 S_2)^(1/2)), covariances with ``ddof`` subtracted from the numbers.

    With centred rows A_1 and A_2, tr (S_1 S_2)^(1/2) is the sum of the singular values of A_1 A_2^T over
    sqrt((n - ddof) (m - ddof)): exact for fewer rows than dimensions, where both covariances are singular.
    Fréchet distance of Gaussians (FID, arXiv:1706.08500; FAD, arXiv:1812.08466).
    """
    if min(len(rows), len(others)) <= ddof:
        raise ValueError(f"got sets of {len(rows)} and {len(others)} rows, expected more than ddof={ddof}")
    means = [side.double().mean(0) for side in (rows, others)]
    first, second = (
        (side.double() - mean) / math.sqrt(len(side) - ddof) for side, mean in zip((rows, others), means, strict=True)
    )
    shared = torch.linalg.matrix_norm(first @ second.T, "nuc")
    total = (means[0] - means[1]).square().sum() + first.square().sum() + second.square().sum() - 2 * shared
    return max(0.0, float(total))


def transport_plan(
    cost: Float[Tensor, "n m"],
    epsilon: float = 0.05,
    exponent: float = 0.9,
    iterations: int = 200,
) -> Float[Tensor, "n m"]:
    """The unbalanced entropic transport plan between uniform marginals, by Sinkhorn's iterations in the log domain.

        f <- q epsilon (log a - logsumexp_j((g_j - C_ij) / epsilon)),   P = exp((f_i + g_j - C_ij) / epsilon)

    and g in turn, with the relaxation ``exponent`` q = rho / (rho + epsilon); q = 1 is balanced transport, whose
    marginals are exact. PISCES, arXiv:2602.01624: epsilon 0.05, q 0.9. The total of P is not one.
    """
    cost = cost.double()
    log_a, log_b = (-math.log(count) for count in cost.shape)
    f, g = cost.new_zeros(cost.shape[0]), cost.new_zeros(cost.shape[1])
    for _ in range(iterations):
        f = exponent * epsilon * (log_a - ((g - cost) / epsilon).logsumexp(1))
        g = exponent * epsilon * (log_b - ((f[:, None] - cost) / epsilon).logsumexp(0))
    return ((f[:, None] + g - cost) / epsilon).exp()
