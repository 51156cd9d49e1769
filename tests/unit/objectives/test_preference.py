"""Preferences: worked numbers of every link and preset, TRL's losses, mining by brute force, and reductions."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmgrpo.config.presets import PRESETS
from mmgrpo.config.registry import bind
from mmgrpo.objectives import OBJECTIVES, TERMS, preference
from mmgrpo.objectives.preference import LINKS, PAIRS


def rows(sums: list[float], rewards: list[float], length: int = 2, **more: Any) -> dict[str, torch.Tensor]:
    """One group of equal steps whose log-ratios to a reference of zeros (and to the old policy) add up to ``sums``."""
    log_probs = (torch.tensor(sums).double()[:, None] / length).expand(-1, length).clone().requires_grad_()
    full, zeros = torch.ones_like(log_probs).bool(), torch.zeros_like(log_probs)
    return {
        "log_probs": log_probs,
        **dict.fromkeys(("old_log_probs", "reference.log_probs", "teacher.log_probs"), zeros),
        "advantages": torch.tensor(rewards).double()[:, None].expand(-1, length),
        **{"loss_mask": full, "decision_mask": full, "drawn": full},
        "key": torch.zeros(len(sums), dtype=torch.long),
        **more,
    }


def values(text: str, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return bind(text, OBJECTIVES, "objective")(batch).values


def loss(text: str, batch: dict[str, torch.Tensor]) -> float:
    """The loss of the batch's only group."""
    return values(text, batch)[0, 0].item()


def grad(text: str, batch: dict[str, torch.Tensor]) -> list[float]:
    """The gradient with respect to each row's sum of log-probs."""
    (found,) = torch.autograd.grad(values(text, batch)[:, 0].mean(), batch["log_probs"], materialize_grads=True)
    return found.mean(1).tolist()


TWO = ([1.0, -1.0], [1.0, 0.0])
"""A gap of log-ratios of 2: .2 at beta .1."""


@pytest.mark.parametrize(
    ("link", "value", "slope"),
    [
        ("logistic", 0.59814, -0.45017),
        ("logistic(smoothing=0.1)", 0.61814, -0.35017),  # .9 * .59814 + .1 * .79814
        ("logistic(margin=0.2)", 0.69315, -0.5),
        ("robust(flips=0.1)", 0.57314, -0.57521),  # (.9 * .59814 - .1 * .79814) / .8
        ("hinge", 0.8, -1.0),
        ("exponential", 0.81873, -0.81873),
        ("square(tau=0.5)", 0.64, -1.6),  # (.2 - 1)^2
        ("regression", 0.64, -1.6),
        ("reverse_kl(smoothing=0.001)", 2.42201, None),
        ("soft", 0.69315 - 0.1 * 0.46212, None),  # log(2 cosh .1) - tanh(.5) .1, with tanh(.5) = .46212
        ("means(variance=0.0)", 0.59814, -0.45017),
        ("sets", 0.59814, -0.45017),
        ("listwise(temperature=0.5, divergence='forward')", None, None),
    ],
)
def test_a_link_at_a_gap_of_a_fifth(link, value, slope):
    text = f"preference(link={link!r}, pairs='all', beta=0.1)"
    if value is not None:
        assert loss(text, rows(*TWO)) == pytest.approx(value, abs=6e-3 if link == "soft" else 1e-5)
    if slope is not None:
        assert grad(text, rows(*TWO)) == pytest.approx([0.1 * slope, -0.1 * slope], abs=1e-5)
    moved = rows([3.5, 1.5], [1.0, 0.0])
    assert loss(text, moved) == pytest.approx(loss(text, rows(*TWO))), "what a group has in common cancels"


def test_links_whose_numbers_are_of_other_gaps():
    """DNO: a difference of win rates of .4 at a gap of .2; IPO: gaps 2 and 5 at tau .1; EXO of a list of three."""
    assert loss("preference(link='soft', pairs='every')", rows([1, -1], [0.4, 0.0])) == pytest.approx(0.67840, abs=1e-5)
    assert loss(PRESETS["ipo"]["objective"], rows(*TWO)) == pytest.approx(9)
    assert loss(PRESETS["ipo"]["objective"], rows([2.0, -3.0], [1.0, 0.0])) == pytest.approx(0, abs=1e-9)
    three = rows([0.2, -0.2, 0.0], [1.0, 0.0, 0.0])
    assert loss(PRESETS["exo"]["objective"], three) == pytest.approx(0.40993, abs=1e-5)
    forward = "preference(link=\"listwise(divergence='forward')\", pairs='all', beta=0.5)"
    assert loss(forward, three) == pytest.approx(1.03389, abs=1e-5)
    solved = rows([4.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    assert loss(PRESETS["exo"]["objective"], solved) == pytest.approx(0, abs=1e-9)
    assert grad(PRESETS["exo"]["objective"], solved) == pytest.approx([0, 0, 0], abs=1e-9)


@pytest.mark.parametrize(
    ("preset", "batch", "changes", "expected"),
    [
        ("dpo", rows(*TWO), {}, 0.59814),
        ("rpo", rows([2.0, 0.0], [1.0, 0.0]), {"beta=0.05": "beta=0.1"}, 0.59814 - 0.005 * 1.0),
        ("slic", rows(*TWO), {}, 0.8),
        ("simpo", rows([1.0, 0.0], [1.0, 0.0]), {}, math.log(2)),  # 2 (.5 - 0) = the margin 1
        ("inpo", rows([2.0, 0.0], [1, 0]), {"tau=0.0075": "tau=0.5"}, 1.0),  # (2 - 1)^2: no distance of the others
        ("mpo", rows([10, 0, -10], [0.9, 0.6, 0.0]), {"alpha=1.0": "alpha=0.0"}, 0.09434),
        ("mpo", rows([10, 0, -10], [0.9, 0.6, 0.0]), {}, 0.11113),
        # gaps .2, .5, .3 of means, times .1, the first two 2.5 times: .05, .125, .03
        ("trpa", rows([0.6, 0.2, -0.4], [3.0, 2.0, 1.0]), {}, 0.65977),
        ("copg", rows([0.5, -0.5, 1.0], [1.0, 0.0, 0.0]), {}, 0.9675),  # (.9^2 + 1.05^2 + .15^2) / 2
        ("copg", rows([2.0, 0.0], [3.0, 0.0]), {}, 7.84),  # (.2 - 3)^2: how far apart the rewards are counts
        ("p3o", rows([0.0, 0.0], [1.0, 0.0]), {}, 0.0),
        ("vpo", rows([2.0, 0.0], [1.0, 0.0]), {}, 0.59814 - 0.01 * 2.0),
        ("robust_dpo", rows(*TWO), {}, 0.57314),
        ("semi_online_dpo", rows([1, -1, -1], [1.0, 0.0, 0.0]), {}, 0.59814),
    ],
)
def test_a_preset_is_its_papers_number(preset, batch, changes, expected):
    text = PRESETS[preset]["objective"]
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    assert loss(text, batch) == pytest.approx(expected, abs=1e-5)


def test_the_mixed_anchor_of_inpo():
    """eta .5 and tau .25: h = 2 - .5 * .4 - .5 * 1 = 1.3, and (1.3 - 1)^2 = .09."""
    batch = rows([2.0, 0.0], [1.0, 0.0])
    shift = torch.tensor([[0.1, 0.1], [0.0, 0.0]]).double()
    batch |= {"reference.log_probs": 2 * shift, "old_log_probs": 5 * shift}
    text = "preference(link='square(tau=0.5)', beta=1.0, anchor_weight=0.5)"
    assert loss(text, batch) == pytest.approx(0.09)


def test_tokens_count_by_a_guide_with_opposite_signs():
    """TGDPO: .1 (1.05 + .95) - .1 (.9 * -1 + 1 * 1) = .19, whose logistic loss is .60265."""
    batch = rows([2.0, 0.0], [1.0, 0.0])
    batch["log_probs"] = torch.tensor([[1.0, 1.0], [-1.0, 1.0]]).double()
    batch["teacher.log_probs"] = torch.tensor([[1.0, -1.0], [2.0, 0.0]]).double()
    assert loss("preference(guide='teacher', guidance=0.5)", batch) == pytest.approx(0.60265, abs=1e-5)
    assert loss("preference(guide='teacher', guidance=0.0)", batch) == loss("preference", batch)


def test_a_preference_beside_another_objective():
    """GEPO: .01 (.59814 + .0004), for h of the right .12 and .08 (mean .1, variance .0004) and of the wrong -.1."""
    text = PRESETS["gepo"]["terms"][0]
    found = bind(text, TERMS, "term")(rows([1.2, 0.8, -1.0], [1.0, 1.0, -2.0]))
    assert found[0, 0].item() == pytest.approx(0.01 * (0.59814 + 0.0004), abs=1e-7)
    whole = values("preference(link='means(variance=1.0)', pairs='all')", rows([1.2, 0.8, -1.0], [1.0, 1.0, -2.0]))
    assert_close(found, 0.01 * whole)


def test_every_step_is_a_pair_and_ratios_are_clipped():
    """D3PO: log-ratios .05 and .3 against 0, the second clipped to log 1.1: the losses of the steps are those of their
    gaps, and the clipped step has no gradient."""
    batch = rows([0.0, 0.0], [1.0, 0.0])
    batch["log_probs"] = torch.tensor([[0.05, 0.3], [0.0, 0.0]]).double().requires_grad_()
    text = PRESETS["d3po"]["objective"]
    result = bind(text, OBJECTIVES, "")(batch)
    wanted = [math.log1p(math.exp(-0.1 * gap)) for gap in (0.05, math.log(1.1))]
    assert result.values.tolist() == [pytest.approx(wanted)] * 2
    assert result.high.tolist() == [[False, True], [False, False]] and not result.low.any()
    (gradient,) = torch.autograd.grad(result.values.sum(), batch["log_probs"])
    assert gradient[0, 0] < 0 == gradient[0, 1] and gradient[1].gt(0).all()


def test_the_bonus_of_samples_that_the_policy_did_not_draw():
    """XPO: beta .1 and a gap of 2, plus alpha times the log-ratio of the other sample, whose gradient is alpha."""
    batch = rows(*TWO)
    batch["drawn"] = torch.tensor([[True, True], [False, False]])
    text = "preference(pairs='other_origin', beta=0.1, bonus=0.001)"
    assert loss(text, batch) == pytest.approx(0.59814 - 0.001, abs=1e-5)
    assert grad(text, batch)[1] == pytest.approx(0.04502 + 0.001, abs=1e-5)
    assert loss(text, rows(*TWO)) == 0, "no pair where the policy drew both"


def test_the_pair_gradient_of_p3o_and_its_clip():
    """On policy the coefficients are -+ half the difference of rewards. At ratios 1.3 and .9 and rewards 1, 0 the
    first has left the range upwards and has no gradient, the second has 1/2 * clip(1.3) * .9 = .54. At .9 and .7 it is
    the second that has left it, downwards: -1/2 * .9 * clip(.7) = -.36. What has left it the other way comes back."""
    text = PRESETS["p3o"]["objective"]
    assert grad(text, rows([0.0, 0.0], [1.0, 0.0])) == pytest.approx([-0.5, 0.5])
    off = rows([math.log(1.3), math.log(0.9)], [1.0, 0.0])
    assert grad(text, off) == pytest.approx([0, 0.54])
    assert grad(text, rows([math.log(0.9), math.log(0.7)], [1.0, 0.0])) == pytest.approx([-0.36, 0])
    assert grad(text, rows([math.log(0.7), math.log(1.3)], [1.0, 0.0])) == pytest.approx([-0.48, 0.48])
    for shift in (0.0, 7.0):
        assert grad(text, rows([0.1, 0.0], [1.0 + shift, shift])) == pytest.approx(grad(text, rows([0.1, 0.0], [1, 0])))


KINDS = {
    "best_worst": lambda r, i, j: i == r.index(max(r)) and j == r.index(min(r)) and r[i] > r[j],
    "best_worst(least=0.5)": lambda r, i, j: KINDS["best_worst"](r, i, j) and r[i] > 0.5,
    "all": lambda r, i, j: r[i] > r[j],
    "all(margin=0.3)": lambda r, i, j: r[i] > r[j] + 0.3,
    "every": lambda r, i, j: i < j,
    "best_rest": lambda r, i, j: r[i] == max(r) > r[j],
    "right_wrong": lambda r, i, j: r[i] > 0.5 >= r[j],
    "above_mean": lambda r, i, j: r[i] > sum(r) / len(r) >= r[j],
}
"""Whether i is preferred to j among the rewards r of a group, one pair at a time."""


@pytest.mark.parametrize("rule", [*KINDS, "other_origin"])
def test_pairs_are_those_of_brute_force(rule):
    """Ragged groups in any order, with equal rewards and a row without decisions."""
    random = torch.Generator().manual_seed(3)
    key = torch.randint(0, 4, (23,), generator=random)
    order = torch.randint(0, 5, (23,), generator=random) / 4
    own, members = torch.rand(23, generator=random) > 0.5, torch.arange(23) != 5
    same = (key[:, None] == key) & members & members[:, None]
    found = bind(rule, PAIRS, "pairs")({"order": order, "same": same, "own": own})
    for i in range(23):
        for j in range(23):
            group = [row for row in range(23) if members[row] and key[row] == key[i]]
            wanted = i in group and j in group and i != j
            if wanted and rule == "other_origin":
                wanted = bool(own[i] != own[j] and order[i] > order[j])
            elif wanted:
                rewards = [float(order[row]) for row in group]
                wanted = KINDS[rule](rewards, group.index(i), group.index(j))
            assert bool(found[i, j]) == wanted, (rule, i, j)
    assert set(PAIRS) == {one.partition("(")[0] for one in KINDS} | {"other_origin"}


def test_how_many_pairs():
    rewards = torch.tensor([1.0, 0.0, 0.5, 1.0])
    same = torch.ones(4, 4, dtype=torch.bool)
    inputs = {"order": rewards, "same": same, "own": same[0]}
    number = {rule: int(bind(rule, PAIRS, "")(inputs).sum()) for rule in ("all", "best_worst", "best_rest", "every")}
    assert number == {"all": 5, "best_worst": 1, "best_rest": 4, "every": 6}


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("reduce", ["sum", "mean", "step"])
def test_a_group_without_a_pair_has_no_loss_and_no_gradient(link, reduce):
    text = f"preference(link='{link}', pairs='all', reduce='{reduce}')"
    batch = rows([1.0, 2.0, -1.0], [0.5, 0.5, 0.5])
    assert loss(text, batch) == 0 and grad(text, batch) == [0, 0, 0]
    with_pair = rows([1.0, 2.0, -1.0, 0.3, 0.1], [0.5, 0.5, 0.5, 1.0, 0.0])
    with_pair["key"] = torch.tensor([0, 0, 0, 1, 1])
    found = values(text, with_pair)
    assert_close(found[3:], values(text, rows([0.3, 0.1], [1.0, 0.0])))
    assert (found[:3] == 0).all()


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("pairs", ["all", "best_worst", "above_mean"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "step"])
def test_order_of_rows_other_groups_and_padding_do_not_matter(link, pairs, reduce):
    random = torch.Generator().manual_seed(1)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 1, 1], [1, 1, 0], [1, 1, 1]]).bool()
    log_probs = torch.randn(5, 3, generator=random).double()
    batch = rows([0.0] * 5, [1.0, -0.5, -1.0, 0.5, 0.25], length=3)
    batch |= {"log_probs": log_probs, "loss_mask": mask, "decision_mask": mask, "key": torch.tensor([0, 7, 0, 7, 0])}
    text = f"preference(link='{link}', pairs='{pairs}', reduce='{reduce}', beta=0.7, likelihood=0.1)"
    whole = values(text, batch)
    order = torch.tensor([4, 0, 3, 2, 1])
    assert_close(values(text, {name: one[order] for name, one in batch.items()}), whole[order])
    for key in (0, 7):
        own = batch["key"] == key
        assert_close(values(text, {name: one[own] for name, one in batch.items()}), whole[own])
    padded = {**batch, "log_probs": torch.where(mask, log_probs, math.nan)}
    assert_close(values(text, padded), whole)


@pytest.mark.parametrize("link", ["logistic", "robust", "square", "hinge", "exponential"])
def test_at_the_anchor_the_gradient_is_that_of_wins_minus_losses(link):
    """Rewards 1, 0, .5, 1: wins minus losses are 2, -3, -1, 2."""
    found = grad(f"preference(link='{link}', pairs='all')", rows([0.0] * 4, [1.0, 0.0, 0.5, 1.0]))
    assert [one / found[0] for one in found] == pytest.approx([1, -1.5, -0.5, 1]) and found[0] < 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("preference(link='sets', pairs='all')", "preference(pairs='all')"),
        ("preference(link='reverse_kl(smoothing=0.2)')", None),
        ("preference(link='robust(flips=0.0)')", "preference"),
        ("preference(link='logistic(smoothing=0.0)', clip=inf)", "preference(top=1.0)"),
        ("preference(link='means(variance=0.0)', pairs='all')", "preference"),
        ("preference(anchor='old')", "preference"),
        ("preference(anchor_weight=0.3)", "preference"),
        ("preference(reduce='mean', beta=0.2)", "preference"),
        ("preference(pairs='right_wrong')", "preference"),
        ("preference(pairs='every', link='regression', anchor='old', beta=1.0)", "regression_pair"),
        ("preference(pairs='best_worst(least=0.0)', likelihood=0.3)", "codpo(coef=0.3, beta=0.1)"),
        ("preference(pairs='every', link='regression', average='samples')", "preference(link='regression')"),
    ],
)
def test_reductions_of_a_pair(one, other):
    if other is None:  # EXO of pairs is zero, with zero gradient, where the odds are those of the target: log(.8 / .2)
        solved = rows([10 * math.log(4), 0.0], [1.0, 0.0])
        assert loss(one, solved) == pytest.approx(0, abs=1e-9) and grad(one, solved) == pytest.approx([0, 0], abs=1e-9)
        return
    for sums in ([1.0, -1.0], [-0.4, 0.7]):
        assert loss(one, rows(sums, [1.0, 0.0])) == pytest.approx(loss(other, rows(sums, [1.0, 0.0])))
        assert grad(one, rows(sums, [1.0, 0.0])) == pytest.approx(grad(other, rows(sums, [1.0, 0.0])))


def test_wrong_parts_are_named_before_anything_runs():
    for text, words in {
        "preference(link='logit')": "objective: link of preference.*logit",
        "preference(link='hinge(wide=1)')": "objective: link of preference.*wide",
        "preference(pairs='best_worse')": "objective: pairs of preference.*best_worst",
        "preference(link='robust(flips=0.5)')": "flips.*0.5",
        "preference(reduce='max')": "reduce.*max",
    }.items():
        with pytest.raises(ValueError, match=words):
            bind(text, OBJECTIVES, "objective")
    assert bind("preference(anchor='moving')", OBJECTIVES, "").needs[2] == "moving.log_probs"


TRL = {
    "sigmoid": ("preference(beta=0.3)", 0.0),
    "ipo": ("preference(link='square(tau=0.3)', reduce='mean', beta=1.0)", 0.0),
    "hinge": ("preference(link='hinge', beta=0.3)", 0.0),
    "robust": ("preference(link='robust(flips=0.15)', beta=0.3)", 0.15),
    "exo_pair": ("preference(link='reverse_kl(smoothing=0.05)', beta=0.3)", 0.05),
    "sigmoid_norm": ("preference(reduce='mean', beta=0.3)", 0.0),
}
"""By TRL's name: our objective, and TRL's label_smoothing."""


@pytest.mark.parametrize("name", TRL)
def test_losses_and_gradients_are_those_of_trls_dpo_trainer(name):
    """Its formulas stand inside of a method, which is called with a stand-in that holds what it reads."""
    from collections import defaultdict

    from trl.trainer.dpo_trainer import DPOTrainer

    text, smoothing = TRL[name]
    random = torch.Generator().manual_seed(0)
    lengths = torch.tensor([5, 3, 4, 2, 6, 1])  # three chosen answers, then their rejected ones
    mask = torch.arange(6) < lengths[:, None]
    now, reference = (torch.where(mask, -2 * torch.rand(6, 6, generator=random), 0.0) for _ in range(2))
    now = now.requires_grad_()

    class Stand(torch.nn.Module):
        def __init__(self, log_probs: torch.Tensor) -> None:
            super().__init__()
            self.log_probs = log_probs

        def forward(self, **_: Any) -> Any:
            zeros = torch.zeros_like(self.log_probs)
            return SimpleNamespace(
                log_probs=self.log_probs, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool(), aux_loss=None
            )

    def gathered(value: torch.Tensor) -> torch.Tensor:
        return value

    settings = {"beta": 0.3, "label_smoothing": smoothing, "loss_types": [name], "loss_weights": [1.0]}
    holder = SimpleNamespace(
        **settings, model=SimpleNamespace(training=True), ld_alpha=None,
        accelerator=SimpleNamespace(device="cpu", gather_for_metrics=gathered, gather=gathered),
        aux_loss_enabled=False, precompute_ref_logps=True, f_divergence_type="reverse_kl", use_weighting=False,
        args=SimpleNamespace(gradient_checkpointing_kwargs=None), _metrics=defaultdict(lambda: defaultdict(list)),
        _total_train_tokens=0, _tp_size=1,
    )  # fmt: skip
    ids = torch.ones(6, 7, dtype=torch.long)
    inputs = {
        "input_ids": ids,
        "attention_mask": ids,
        "completion_mask": torch.cat([mask[:, :1] & False, mask], 1).long(),
    }
    inputs |= dict(zip(("ref_chosen_logps", "ref_rejected_logps"), reference.sum(1).chunk(2), strict=True))
    theirs = DPOTrainer._compute_loss(holder, Stand(now), inputs, False)  # type: ignore[arg-type]
    (their_gradient,) = torch.autograd.grad(theirs, now)

    batch = rows([0.0] * 6, [1.0, 1.0, 1.0, 0.0, 0.0, 0.0], length=6)
    batch |= {"log_probs": now, "reference.log_probs": reference, "loss_mask": mask, "decision_mask": mask}
    batch |= {"key": torch.tensor([0, 1, 2, 0, 1, 2]), "old_log_probs": reference, "teacher.log_probs": reference}
    found = values(text, {**batch, "advantages": batch["advantages"].float()})
    ours = found[:3, 0].mean()
    assert_close(ours, theirs, rtol=0, atol=1e-6)
    (gradient,) = torch.autograd.grad(ours, now)
    assert_close(gradient, their_gradient * mask, rtol=0, atol=1e-6)


def test_rows_of_the_table_are_the_functions_they_were():
    """GVPO is a quarter of the pair mean of (beta L - A), PRDP and Reg-GRPO take the same pairs."""
    batch = rows([0.2, -0.1, 0.4], [1.0, 0.0, 0.25])
    residual = 0.1 * torch.tensor([0.2, -0.1, 0.4]) - torch.tensor([1.0, 0.0, 0.25])
    gaps = [float(residual[i] - residual[j]) ** 2 for i in range(3) for j in range(i)]
    assert loss("regression_group(beta=0.1)", batch) == pytest.approx(sum(gaps) / 3 / 4, abs=1e-6)
    mean = preference.pair_mean(residual[None], torch.ones(3).bool(), torch.zeros(3).long())
    assert mean.tolist() == pytest.approx([sum(gaps) / 3] * 3, abs=1e-6)
