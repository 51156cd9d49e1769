"""Rewards of sets on both sides of their limits, against naive ones."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import save_file

from mmgrpo.types import Audio, Decisions, Image, Prompt, Text, Video
from reward_models.sets import audio, embeddings, motion, neural_map, rewards, rollout
from reward_models.sets.distances import frechet_distance, transport_plan

HERE = "tests.libraries.reward_models.sets.test_limits_of_sets"


@pytest.mark.parametrize("exponent", [1.0, 0.7])
def test_a_plan_is_that_of_scaling_rows_and_columns(exponent):
    cost = torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel, u, v = (-cost / 0.3).exp(), torch.ones(3, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    for _ in range(5):
        u = (1 / 3 / (kernel @ v)) ** exponent
        v = (1 / 4 / (kernel.T @ u)) ** exponent
    made = transport_plan(cost, epsilon=0.3, exponent=exponent, iterations=5)
    torch.testing.assert_close(made, u[:, None] * kernel * v)
    assert torch.equal(transport_plan(cost), transport_plan(cost, 0.05, 0.9, 200))
    torch.testing.assert_close(transport_plan(cost, epsilon=0.3, iterations=0), kernel)


def test_a_set_has_more_rows_than_are_subtracted():
    two, one = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0]])
    assert frechet_distance(two, two, ddof=1) == 0
    for pair in ((two, one), (one, two)):
        assert frechet_distance(*pair) == pytest.approx(1)
        with pytest.raises(ValueError, match="ddof=1"):
            frechet_distance(*pair, ddof=1)


def lengths(things, factor=1.0, device="none"):
    """The number of letters of texts and of outputs that are texts."""
    texts = [one if isinstance(one, str) else one.text for one in things]
    return torch.tensor([factor * len(one) + (device == "cpu") for one in texts]).reshape(-1, 1)


def loudness(outputs):
    return torch.stack([one.samples.mean()[None] for one in outputs])


def test_the_first_of_two_equally_good_halves_is_positive():
    def alike(rows: torch.Tensor) -> float:
        return float(len(rows.unique()) == 1)

    for numbers, positive in (((1, 1, 5, 5), [True, True, False, False]), ((1, 2, 5, 5), [False, False, True, True])):
        assert rewards.contrast(torch.tensor(numbers, dtype=torch.float64)[:, None], alike) == positive


def test_the_fields_of_a_policy_without_entropies_are_named():
    mask = torch.ones(1, 1, dtype=torch.bool)
    made = {"loss_mask": mask, "decision_mask": mask, "node": torch.zeros(1, 1, dtype=torch.long)}
    more = {"origin": torch.zeros(1, dtype=torch.long), "keys": {"prompt": torch.zeros(1, dtype=torch.long)}}
    fields = {"noise": torch.ones(1, 1), "cost": torch.ones(1, 1)}
    given = Decisions(log_probs=torch.full((1, 1), -2.0), **made, **more, fields=fields)
    with pytest.raises(ValueError, match="entropy.*cost, noise"):
        rollout.decision_statistic([Prompt("")], [Text("")], of="entropy_mean", rollout=given)
    with pytest.raises(ValueError, match="of='mean.*log_prob_mean"):
        rollout.decision_statistic([Prompt("")], [Text("")], of="mean", rollout=given)
    assert rollout.decision_statistic([Prompt("")], [Text("")], rollout=given) == [-2]


def test_a_song_has_more_windows_than_are_subtracted_and_all_of_them_are_finite(tmp_path):
    save_file({"embeddings": torch.tensor([[0.0], [2.0]])}, tmp_path / "e.safetensors")
    one, two = torch.zeros(1, 10), torch.cat([torch.zeros(1, 10), torch.full((1, 10), 2.0)], 1)
    broken = two.clone()
    broken[0, 0] = math.nan
    songs = [Audio(samples, 10) for samples in (one, two, broken)]

    def values(ddof: int) -> list[float]:
        given = [Prompt("a")] * 3, songs, str(tmp_path / "e.safetensors")
        return rewards.frechet(*given, embed=f"{HERE}:loudness", over="output", ddof=ddof)

    # (0 - 1)^2 + (0 - 1)^2 of one window; two are the exemplars
    assert values(0) == pytest.approx([-2, 0, math.nan], nan_ok=True, abs=1e-9)
    assert values(1) == pytest.approx([math.nan, 0, math.nan], nan_ok=True, abs=1e-9)


def test_texts_are_embedded_by_the_one_that_reads_them(monkeypatch, tmp_path):
    monkeypatch.setitem(embeddings.OF_TEXTS, f"{HERE}:lengths", f"{HERE}:lengths")
    spec = f"{HERE}:lengths(factor=2)"
    assert embeddings.embedded_texts(["a", "abc"], spec, "cpu", "frechet").tolist() == [[3.0], [7.0]]
    (tmp_path / "texts.txt").write_text("a\n\n  abc \n")
    assert rewards._exemplars(str(tmp_path / "texts.txt"), spec, "cpu").tolist() == [[3.0], [7.0]]
    found = rewards.frechet([Prompt("a")] * 2, [Text("a"), Text("abc")], str(tmp_path / "texts.txt"), embed=spec)
    # a set like the exemplars, without either (5 - 3)^2 + 2^2 away
    assert found == pytest.approx([8, 8])
    (tmp_path / "none.txt").write_text("\n")
    monkeypatch.setattr(rewards, "embedded_texts", None)  # an embedding need not take nothing
    with pytest.raises(ValueError, match="none.txt.*0"):
        rewards._exemplars(str(tmp_path / "none.txt"), spec, "cpu")


def levels(*values: float) -> Video:
    return Video(torch.tensor(values, dtype=torch.float32)[:, None, None, None].expand(-1, 3, 2, 2), 8.0)


def test_changes_between_half_a_hundredth_and_fifteen_are_right():
    clips = [levels(0, change) for change in (0.0025, 0.005, 0.1, 0.149, 0.24, 0.34)]
    values = motion.frame_change([Prompt("")] * 6, clips)
    assert values == pytest.approx([0.5, 1, 1, 1, (1 / 3 - 0.24) / (1 / 3 - 0.15), 0], abs=1e-5)
    for least, most in ((0, 0.1), (0.1, 0.1), (0.1, 0.34)):
        with pytest.raises(ValueError, match="0.*1/3"):
            motion.frame_change([], [], least, most)
    assert motion.frame_change([Prompt("")], [levels(0, 0.1)], 0.01, 0.33) == [1]
    two, three = motion.frame_smoothness([Prompt("")] * 2, [levels(0, 0.5), levels(0, 0.5, 0)])
    assert math.isnan(two) and three == 0.5


def test_cells_are_an_eighth_of_a_picture():
    picture = torch.rand(3, 16, 32, generator=torch.Generator().manual_seed(0))
    expected = [
        float(picture[c, 2 * y : 2 * y + 2, 4 * x : 4 * x + 4].mean()) - 0.5
        for c in range(3)
        for y in range(8)
        for x in range(8)
    ]
    assert embeddings.layout([Image(picture)])[0].tolist() == pytest.approx([*expected, 1.0], abs=1e-6)


def whole_prompts(prompts):
    return [torch.eye(2)] * len(prompts)


def whole_outputs(outputs):
    return [torch.tensor([[1.0, 0.0], [1.0, 1.0]])] * len(outputs)


@pytest.mark.parametrize(("epsilon", "exponent"), [(0, 0.9), (-1, 0.9), (0.1, 0), (0.1, 1.1)])
def test_a_plan_needs_a_temperature_and_a_relaxation(epsilon, exponent):
    given = [Prompt("")], [Text("")], f"{HERE}:whole_prompts", f"{HERE}:whole_outputs"
    with pytest.raises(ValueError, match=f"epsilon={epsilon}.*exponent={exponent}"):
        rewards.transport(*given, epsilon=epsilon, exponent=exponent)
    # costs 0, 1 - 1/sqrt(2), 1 and again, scaled to [0, 1]
    cosine = torch.tensor([[1.0, 0.5**0.5], [0.0, 0.5**0.5]], dtype=torch.float64)
    for pair in ((0.05, 0.9), (0.3, 1.0)):
        plan = transport_plan(1 - cosine, *pair)
        assert rewards.transport(*given, *pair) == pytest.approx([float((plan * cosine).sum() / plan.sum())])
    assert rewards.transport(*given) == rewards.transport(*given, epsilon=0.05, exponent=0.9)


def test_sets_are_large_enough_for_what_is_measured(tmp_path):
    save_file({"embeddings": torch.tensor([[1.0], [3.0]])}, tmp_path / "e.safetensors")
    embed, file = f"{HERE}:lengths", str(tmp_path / "e.safetensors")

    def known(count: int, **parameters) -> int:
        texts = [Text("a" * (number + 1)) for number in range(count)]
        values = rewards.frechet([Prompt("")] * count, texts, file, embed=embed, device="cuda", **parameters)
        return sum(map(math.isfinite, values))

    for ddof in (0, 1):
        least = 1 + ddof
        assert [known(n, ddof=ddof, credit="shared") for n in (least - 1, least)] == [0, least]
        assert [known(n, ddof=ddof) for n in (least, least + 1)] == [0, least + 1]
        assert [known(n, ddof=ddof, credit="contrast") for n in (2 * least - 1, 2 * least)] == [0, 2 * least]
    assert known(5, credit="contrast") == 4


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"rows": torch.ones(2, 1)}, r"\[2, 1\]"),
        ({"embeddings": torch.ones(2)}, r"\[2\]"),
        ({"embeddings": torch.ones(1, 1)}, "1 rows"),
        ({"embeddings": torch.tensor([[1.0], [math.nan]])}, "2 rows"),
    ],
)
def test_exemplars_are_two_finite_rows(tmp_path, tensors, message):
    save_file(tensors, tmp_path / "e.safetensors")
    with pytest.raises(ValueError, match=message):
        rewards._exemplars(str(tmp_path / "e.safetensors"), embeddings.LAYOUT, "cpu")


@pytest.mark.parametrize("rate", [8_000, 5_000, 5_120])
def test_bands_are_half_octaves_of_the_power_of_frames(rate):
    """Frames of the power of two above 0.1 s, every half of one; in each the power of the bins of a band. At 5,120 Hz
    bins lie on the edges of bands."""
    size = 1024 if rate == 8_000 else 512
    samples = 0.1 * torch.randn(2, 3 * size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mono, window = samples.mean(0), torch.hann_window(size, dtype=torch.float64)
    levels = []
    for start in range(0, 2 * size + 1, size // 2):
        power = (torch.fft.rfft(mono[start : start + size] * window).abs() / window.sum()) ** 2
        sums = [1e-9] * 16
        for number in range(1, len(power)):
            band = math.floor(2 * math.log2(number * rate / size / 50))
            if 0 <= band < 16:
                sums[band] += float(power[number])
        levels.append([math.log10(one) for one in sums])
    expected = torch.tensor(levels, dtype=torch.float64)
    made = audio.bands([Audio(samples, rate)])[0]
    torch.testing.assert_close(made[:16], expected.mean(0))
    torch.testing.assert_close(made[16:], expected.std(0, correction=0))


def test_a_map_is_trained_by_ten_steps_for_one_of_the_potential():
    texts, outputs = (torch.randn(9, 2, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    made = neural_map.train_map(texts, outputs, steps=2, hidden=3, rate=0.01, batch=4, seed=5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        mapping, potential = neural_map.network(2, 3, 2), neural_map.network(2, 3, 1)
        move, judge = (torch.optim.Adam(net.parameters(), 0.01, (0.5, 0.9)) for net in (mapping, potential))
        for _ in range(2):
            for _ in range(10):
                y = texts[torch.randint(9, (4,))]
                cost = sum((mapping(y)[i] - y[i]).square().sum() - potential(mapping(y))[i, 0] for i in range(4)) / 4
                for parameter, slope in zip(mapping.parameters(), torch.autograd.grad(cost, [*mapping.parameters()])):
                    parameter.grad = slope
                move.step()
            x, y = outputs[torch.randint(9, (4,))], texts[torch.randint(9, (4,))]
            loss = (potential(mapping(y).detach()) - potential(x)).mean()
            for parameter, slope in zip(potential.parameters(), torch.autograd.grad(loss, [*potential.parameters()])):
                parameter.grad = slope
            judge.step()
    for one, other in zip(made.parameters(), mapping.parameters(), strict=True):
        torch.testing.assert_close(one, other.detach(), atol=1e-5, rtol=1e-4)
