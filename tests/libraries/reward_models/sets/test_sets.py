"""Rewards of sets: what each output adds to the set of its prompt or of the call."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import save_file

from mmgrpo.rewards import scorer
from mmgrpo.types import Image, Prompt, Text, Video
from reward_models.sets import rewards
from reward_models.sets.embeddings import embeddings_of, layout

NUMBERS = "tests.libraries.reward_models.sets.test_sets:numbers"
NAN = math.nan


def numbers(outputs):
    """A text of numbers is its own embedding; one without is NaN."""
    rows = [[float(word) for word in output.text.split()] for output in outputs]
    width = max(map(len, rows))
    return torch.tensor([row or [NAN] * width for row in rows])


def texts(*values):
    return [Text(value) for value in values]


def prompts(ids):
    return [Prompt("", name) for name in ids]


def approx(*values):
    return pytest.approx(list(values), nan_ok=True, abs=1e-9)


@pytest.fixture
def exemplars(tmp_path):
    save_file({"embeddings": torch.tensor([[0.0], [2.0]])}, tmp_path / "exemplars.safetensors")
    return str(tmp_path / "exemplars.safetensors")


def test_what_an_output_adds_to_the_diversity_of_its_prompt():
    given = texts("1 0 0", "1 0 0", "0 1 0", "0 0 1", "0 0 1")
    whole = math.exp(2 / 3 * math.log(1.5) + 1 / 3 * math.log(3))
    found = rewards.vendi(prompts("aaabb"), given, embed=NUMBERS)
    assert found == approx(whole - 2, whole - 2, whole - 1, 0, 0)
    shared = rewards.vendi(prompts("aaabb"), given, embed=NUMBERS, credit="shared")
    assert shared == approx(whole, whole, whole, 1, 1)
    together = rewards.vendi(prompts("aaabb"), given, embed=NUMBERS, over="call", credit="shared")
    assert len(set(together)) == 1 and 2 < together[0] < 3


def test_an_output_without_an_embedding_is_in_no_set():
    found = rewards.vendi(prompts("aaab"), texts("1 0", "", "0 1", "0 1"), embed=NUMBERS)
    assert found == approx(1, NAN, 1, NAN), "and one that is alone adds to nothing"


def test_one_number_that_is_not_finite_is_enough_to_be_in_no_set():
    found = rewards.vendi(prompts("aaa"), texts("1 0", "nan 1", "0 1"), embed=NUMBERS)
    assert found == approx(1, NAN, 1)


def test_words_are_transported_although_all_fit_almost_alike():
    """Cosines of 0.6 and 0.6 + 1e-9."""
    words = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    parts = torch.tensor([[0.6, 0.8], [0.6 + 1e-9, 0.8]], dtype=torch.float64)
    assert rewards._transport(words, parts, 0.05, 0.9) == pytest.approx(0.6)


def test_leaving_out_the_outlier_brings_a_set_nearer_to_its_exemplars(exemplars):
    found = rewards.frechet(prompts("abc"), texts("0", "2", "4"), exemplars, embed=NUMBERS)
    whole = 1 + (math.sqrt(8 / 3) - 1) ** 2
    assert found == approx(4 - whole, 2 - whole, 0 - whole)
    assert found == pytest.approx([2.599320, 0.599320, -1.400680], abs=1e-6)
    assert rewards.frechet(prompts("abc"), texts("0", "2", "4"), exemplars, embed=NUMBERS, credit="shared") == approx(
        *[-whole] * 3
    )
    one_prompt = rewards.frechet(prompts("aab"), texts("0", "2", "4"), exemplars, embed=NUMBERS, over="prompt")
    assert one_prompt[2:] == approx(NAN)
    with pytest.raises(ValueError, match="exemplars"):
        rewards.frechet(prompts("aa"), texts("0 1", "1 0"), exemplars, embed=NUMBERS)


def test_permuting_rows_permutes_values(exemplars):
    given, order = texts("0", "7", "4", "1"), [2, 0, 3, 1]
    values = rewards.frechet(prompts("aaaa"), given, exemplars, embed=NUMBERS)
    found = rewards.frechet(prompts("aaaa"), [given[i] for i in order], exemplars, embed=NUMBERS)
    assert found == approx(*[values[i] for i in order])


def test_exemplars_may_be_a_folder_of_pictures(tmp_path):
    from PIL import Image as Pil

    for level in (0, 200):
        Pil.new("RGB", (8, 8), (level,) * 3).save(tmp_path / f"{level}.png")
    grey = [Image(torch.full((3, 8, 8), level / 255)) for level in (0, 200, 250)]
    found = rewards.frechet(prompts("abc"), grey, str(tmp_path), over="call")
    assert found[2] == min(found) and found[2] < 0
    (tmp_path / "200.png").unlink()
    rewards._exemplars.cache_clear()
    with pytest.raises(ValueError, match="1 rows"):
        rewards.frechet(prompts("abc"), grey, str(tmp_path))


def test_the_default_embedding_is_the_colour_of_each_cell():
    pixels = torch.zeros(3, 16, 16)
    pixels[0, :2, 2:4] = 1
    row = layout([Image(pixels)])[0]
    assert row.shape == (193,) and row[-1] == 1 and row[1] == 0.5 and row[0] == -0.5 and (row[:-1] > 0).sum() == 1
    clip = Video(torch.stack([pixels, torch.zeros_like(pixels)]), 2.0)
    assert layout([clip])[0, 1] == 0.0
    broken = layout([Image(torch.full((3, 8, 8), NAN))])
    assert not broken[:, :-1].isfinite().any()
    with pytest.raises(TypeError, match="Text.*Image.*Video"):
        layout([Text("")])


def words(prompts):
    return [torch.eye(2)[:, :2] for _ in prompts]


def parts(outputs):
    return [numbers([output]).reshape(-1, 2) for output in outputs]


def test_transport_weighs_what_fits():
    where = "tests.libraries.reward_models.sets.test_sets"
    given = texts("1 0 0 1", "1 0 1 0", "-1 0 0 -1", "nan 1"), f"{where}:words", f"{where}:parts"
    balanced = rewards.transport(prompts("abcd"), *given, exponent=1.0)
    assert balanced == pytest.approx([1, 0.5, 0, NAN], nan_ok=True, abs=1e-6), (
        "of two words one, both, or none is shown"
    )
    relaxed = rewards.transport(prompts("abcd"), *given)
    assert balanced[1] + 0.1 < relaxed[1] < relaxed[0], "a word that is not shown counts less"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("vendi(over='batch')", "prompt or call"),
        ("vendi(credit='own')", "leave_one_out"),
        ("vendi(embed='layout')", "embed.*layout.*package.module:function"),
    ],
)
def test_wrong_parameters_are_refused_before_a_run(spec, message):
    with pytest.raises(ValueError, match=message):
        scorer(spec)


def one_number(outputs):
    return torch.ones(len(outputs))


def test_an_embedding_of_another_shape_is_an_error():
    with pytest.raises(ValueError, match=r"one_number.*\[2\].*\[2, D\]"):
        rewards.vendi(prompts("aa"), texts("1", "2"), embed="tests.libraries.reward_models.sets.test_sets:one_number")


def placed(outputs, device):
    return torch.full((len(outputs), 2), float(len(device)))


def test_an_embedding_that_takes_a_device_is_given_it():
    rows = embeddings_of(texts("1", "2"), "tests.libraries.reward_models.sets.test_sets:placed", "cuda:7", "vendi")
    assert rows.tolist() == [[6.0, 6.0]] * 2 and rows.dtype == torch.float64
    own = embeddings_of(
        texts("1"), "tests.libraries.reward_models.sets.test_sets:placed(device='cpu')", "cuda:7", "vendi"
    )
    assert own.tolist() == [[3.0, 3.0]]


@pytest.mark.parametrize("wrong", [{"over": "group"}, {"credit": "half"}])
def test_a_set_or_a_credit_that_there_is_not_is_an_error_of_the_reward(wrong):
    with pytest.raises(ValueError, match="vendi.*over=.*credit="):
        rewards.vendi(prompts("aa"), texts("1 0", "0 1"), embed=NUMBERS, **wrong)


def test_what_is_not_finite_or_empty_is_not_transported():
    whole, nothing = torch.ones(2, 3), torch.zeros(0, 3)
    broken = torch.tensor([[1.0, NAN, 0.0]])
    for pair in ((broken, whole), (whole, broken), (nothing, whole), (whole, nothing)):
        assert math.isnan(rewards._transport(*pair, 0.05, 1.0))
    assert rewards._transport(whole, whole, 0.05, 1.0) == pytest.approx(1.0)


def test_the_default_embedding_of_nothing_is_as_wide_as_of_a_picture():
    assert layout([]).shape == (0, layout([Image(torch.zeros(3, 8, 8))]).shape[1])
