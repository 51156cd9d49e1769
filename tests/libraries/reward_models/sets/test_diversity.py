"""How much a sample differs from the others of its prompt: worked numbers."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.rewards import scorer
from mmgrpo.scoring import Scorer, begin_scoring
from mmgrpo.types import Image, Prompt, Text
from reward_models.sets import diversity
from reward_models.sets.diversity import (
    bag_of_words,
    bleu,
    cluster_rarity,
    coverage,
    crowding,
    distinct_ngrams,
    formula_novelty,
    formulas,
    log_volume,
    nearest_distance,
    reference_distance,
    text_diversity,
    text_novelty,
)

HERE = "tests.libraries.reward_models.sets.test_diversity"
VECTORS = {"a": (1.0, 0.0), "b": (1.0, 0.0), "c": (0.0, 1.0), "d": (0.6, 0.8)}
CALLS = []


def table(outputs):
    CALLS.append(len(outputs))
    return torch.tensor([VECTORS.get(one.text, (math.nan, 0.0)) for one in outputs])


def of(texts, prompt="0"):
    return [Prompt("q", prompt)] * len(texts), [Text(text) for text in texts]


def test_the_nearest_distance_is_that_to_the_most_alike_sample_of_the_prompt():
    assert nearest_distance(*of("abcd"), embed=f"{HERE}:table") == pytest.approx([0, 0, 0.2, 0.2], abs=1e-6)
    assert nearest_distance(*of("ax"), embed=f"{HERE}:table") == pytest.approx([math.nan] * 2, nan_ok=True)


def test_distinct_sequences_of_words_are_counted_over_the_samples_of_a_prompt():
    """abc, bcd and abc: two of three; of another prompt one of one; of pairs ab, bc, cd, ab, bc three of five."""
    prompts = [Prompt("q", "0"), Prompt("q", "0"), Prompt("q", "1"), Prompt("q", "2")]
    said = [Text("a b c d"), Text("a b c"), Text("x y z"), Text("x")]
    assert distinct_ngrams(prompts, said) == pytest.approx([2 / 3, 2 / 3, 1.0, 0.0])
    assert distinct_ngrams(prompts, said, n=2)[:2] == pytest.approx([3 / 5] * 2)


def test_crowding_sums_cosines_with_the_sample_itself():
    assert crowding(*of("abcd"), embed=f"{HERE}:table") == pytest.approx([2.6, 2.6, 1.8, 3.0], abs=1e-6)
    alone = crowding([Prompt("q", "0"), Prompt("q", "1")], [Text("a"), Text("b")], embed=f"{HERE}:table")
    assert alone == pytest.approx([1.0, 1.0])
    assert crowding(*of("ax"), embed=f"{HERE}:table") == pytest.approx([1.0, math.nan], nan_ok=True)


def test_a_sample_of_a_small_cluster_is_rare():
    """Angles 0, 4, 8 and 12 degrees, and 90 and 94: 4 and 2 of 6."""
    angles = torch.tensor([0.0, 90, 4, 8, 94, 12]).deg2rad()
    rows = torch.stack([angles.cos(), angles.sin()], 1)
    VECTORS.update({letter: tuple(row) for letter, row in zip("123456", rows.tolist(), strict=True)})
    got = cluster_rarity(*of("123456"), clusters=2, sigma=0.3, embed=f"{HERE}:table")
    few, many = math.sqrt(3), math.sqrt(1.5)
    assert got == pytest.approx([many, few, many, many, few, many])
    assert cluster_rarity(*of("123456"), clusters=1, sigma=0.3, embed=f"{HERE}:table") == [1.0] * 6
    unknown = cluster_rarity(*of("1?"), clusters=2, sigma=0.3, embed=f"{HERE}:table")
    assert unknown == pytest.approx([1.0, math.nan], nan_ok=True)


def test_coverage_is_the_marginal_gain_of_a_submodular_volume():
    assert log_volume(torch.eye(3)) == pytest.approx(3 * math.log(2))
    assert log_volume(torch.ones(2, 2)) == pytest.approx(math.log(3))
    gains = coverage(*of("abc"), embed=f"{HERE}:table")
    assert gains == pytest.approx([math.log(3 / 2), math.log(3 / 2), math.log(2)])  # a twin adds less


def test_embeddings_are_computed_once_for_all_rewards_that_ask():
    CALLS.clear()
    options = {"embed": f"{HERE}:table"}
    scorers = [Scorer(f.__name__, lambda p, o, f=f: f(p, o, **options), trusted=True) for f in (crowding, coverage)]
    begin_scoring(scorers, *of("abcd"))()
    assert CALLS == [4]


def test_a_bag_of_words_needs_no_model():
    rows = torch.nn.functional.normalize(bag_of_words([Text(t) for t in ("red ball", "Red  ball", "blue sky")]), dim=1)
    assert float(rows[0] @ rows[1]) == pytest.approx(1) and float(rows[0] @ rows[2]) == pytest.approx(0)
    with pytest.raises(TypeError, match="Image.*Text"):
        bag_of_words([Image(torch.zeros(3, 2, 2))])


def test_formulas_that_nobody_else_has():
    assert formula_novelty(*of(["$x$ $y$", "$y$, $z$.", "$y$", "none"])) == [0.5, 0.5, 0.0, 0.0]
    assert formulas(r"\(a+b\) and \[ c \] and 2x = 4.") == {"a+b", "c", "2x=4"}
    assert formula_novelty(*of(["$x$", "$x$"])) == [0.0, 0.0]


def test_text_novelty_is_one_minus_the_mean_bleu_of_both_directions():
    same, other = ["one", "two", "three", "four", "five", "six"], ["a", "b", "c", "d", "e", "f"]
    assert bleu(same, same) == pytest.approx(1.0)
    # no n-gram in common: p_n = 1 / (7 - n + 1), n = 1 to 5
    wanted = math.exp(sum(w * math.log(1 / (8 - n)) for n, w in enumerate(diversity.BLEU, 1)))
    assert bleu(same, other) == pytest.approx(wanted)
    assert text_novelty(*of([" ".join(same)])) == [0.0]
    made = text_novelty(*of([" ".join(same), " ".join(same), " ".join(other)]))
    assert made == pytest.approx([(1 - wanted) / 2, (1 - wanted) / 2, 1 - wanted])
    # the first three words: all of theirs are there, at the brevity of 3 for 6; else 4/7, 3/6, 2/5, 1/4 and 1/3
    way = math.exp(
        sum(w * math.log(p) for w, p in zip(diversity.BLEU, (4 / 7, 3 / 6, 2 / 5, 1 / 4, 1 / 3), strict=True))
    )
    assert text_novelty(*of([" ".join(same), "one two three"])) == pytest.approx([1 - (math.exp(-1) + way) / 2] * 2)


LOOP, VARIED = "same same. same same", "You see the red one. We do not"


@pytest.mark.parametrize(
    ("measure", "loop", "varied"),
    [
        ("lexical", 1 / 4, 1.0),
        ("entropy", 0.0, 1.0),
        ("sentence_lengths", 0.0, 0.25),  # 5 and 3 words: std 1, mean 4
        ("sentence_patterns", 1 / 2, 1.0),
        ("neighbours", 0.0, 1.0),
        ("yule", 1 - (16 - 4) / 16, 1.0),
        ("bigrams", 1 / 3, 1.0),
        ("function_words", 0.0, 1.0),  # none; you, the, we, do, not
    ],
)
def test_measures_of_the_diversity_of_a_text(measure, loop, varied):
    assert text_diversity(*of([LOOP, VARIED, ""]), of=[measure]) == pytest.approx([loop, varied, 0.0])


def test_the_diversity_of_a_text_is_the_mean_of_its_measures():
    loop, varied = text_diversity(*of([LOOP, VARIED]))
    assert (loop, varied) == pytest.approx(((1 / 4 + 1 / 2 + 1 / 4 + 1 / 3) / 8, (7 + 0.25) / 8))
    with pytest.raises(ValueError, match="text_diversity.*'lexica'.*lexical"):
        scorer("text_diversity(of=['lexica'])")


def test_the_distance_to_a_demonstration_is_by_its_sentences():
    prompts = [Prompt("q", "0", answer="Red ball. Blue sky.")] * 4
    texts = ["Blue sky. Red ball. More.", "Red ball.", "nothing alike", ""]
    made = reference_distance(prompts, [Text(text) for text in texts])
    assert made[0] == pytest.approx(0, abs=1e-6) and made[2:] == pytest.approx([1, 1], abs=1e-6)
    assert 0.4 < made[1] <= 0.5 + 1e-6  # one of two sentences is there
    with pytest.raises(ValueError, match="'7'.*None"):
        reference_distance([Prompt("q", "7")], [Text("a")])
