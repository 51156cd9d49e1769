"""Each benchmark's own number on a file in its own format, which can be checked in the head; ties included.

The reward is the grey level of a picture, or the length of a text (``benchmarks.py``).
"""

from __future__ import annotations

import math

import pytest

from reward_models.evaluation.evaluate import evaluate, score
from reward_models.evaluation.protocols import PROTOCOLS, read_benchmark
from tests.libraries.reward_models.evaluation.benchmarks import (
    LEVEL,
    clips,
    embedded,
    grey,
    pictures,
    png,
    write_csv,
    write_json,
    write_jsonl,
    write_parquet,
)


@pytest.fixture
def folder(tmp_path):
    pictures(tmp_path)
    return tmp_path


def result(spec):
    """All numbers of the reward on a benchmark."""
    benchmark = read_benchmark(str(spec))
    return evaluate(benchmark, score([LEVEL], benchmark.comparisons)["level"])


def test_hpdv2_is_the_mean_over_prompts_and_equal_scores_are_half_an_inversion(folder):
    """30 > 20 > 10 but people put 20 first: one of three pairs is inverted, 2/3. The second prompt is a tie: 1/2."""
    rows = [
        {"prompt": "a", "image_path": grey(10, 20, 30), "rank": [3, 1, 2], "raw_annotations": []},
        {"prompt": "b", "image_path": grey(20, 20), "rank": [1, 2], "raw_annotations": []},
    ]
    made = result(f"hpdv2:{write_json(folder / 'test.json', rows)}")
    assert made["headline"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert made["without_ties"] == {"wrong": 0.5, "half": 0.625, "right": 0.75}  # of four pairs
    # Of the first prompt's three pairs one selects the best (win rate 1) and two the second (1/2); a tie is a coin.
    assert made["selection"]["best_of"] == {"1": 0.5, "2": pytest.approx((2 / 3 + 1 / 2) / 2)}


def test_hpdv3_prefers_path1(folder):
    rows = [
        {"prompt": "a", "path1": "grey/30.png", "path2": "grey/20.png", "confidence": 0.9},
        {"prompt": "a", "path1": "grey/10.png", "path2": "grey/20.png", "confidence": 0.9},
        {"prompt": "b", "path1": "grey/10.png", "path2": "grey/10.png", "confidence": 0.9},
    ]
    made = result(f"hpdv3:{write_json(folder / 'test.json', rows)}")
    assert made["headline"] == 0.5 and made["reward_ties"] == 1 and made["prompts"] == 2  # (1 + 0 + 1/2) / 3


def test_imagereward_drops_ties_of_people_and_counts_those_of_the_reward_as_wrong(folder):
    """Ranks 1, 2, 2 of 40, 20, 20: two pairs are right, the third is a tie of people. Then 20, 20: wrong."""
    rows = [
        {"id": "0", "prompt": "a", "generations": grey(40, 20, 20), "ranking": [1, 2, 2]},
        {"id": "1", "prompt": "b", "generations": grey(20, 20), "ranking": [1, 2]},
    ]
    made = result(f"imagereward:{write_json(folder / 'test.json', rows)}")
    assert made["headline"] == pytest.approx(2 / 3) and made["human_ties"] == 1
    assert made["without_ties"]["half"] == pytest.approx(2.5 / 3)
    assert made["with_ties"]["tuned_on_the_same_pairs"] == 0.75


def test_pickapic_is_read_from_parquet(folder):
    light, dark = png(30), png(20)
    rows = [
        {"caption": "a", "jpg_0": light, "jpg_1": dark, "label_0": 1.0, "label_1": 0.0},
        {"caption": "b", "jpg_0": light, "jpg_1": dark, "label_0": 0.0, "label_1": 1.0},
        {"caption": "c", "jpg_0": dark, "jpg_1": light, "label_0": 0.5, "label_1": 0.5},
    ]
    made = result(f"pickapic:{write_parquet(folder / 'test.parquet', rows)}")
    assert made["headline"] == 0.5 and made["human_ties"] == 1
    # All differences are 10: without a tie one of three is right; where all are ties, one of three too.
    assert made["with_ties"]["tuned_on_the_same_pairs"] == pytest.approx(1 / 3)


def test_genai_counts_both_bad_as_a_tie(folder):
    """Differences 20, 10, 10, 10; ties below 10 are two of three, and the strict one is right: 3 of 4."""
    pair = {"left_image": embedded(40), "right_image": embedded(20)}
    near = {"left_image": embedded(20), "right_image": embedded(10)}
    votes = ["leftvote", "tievote", "bothbad_vote", "rightvote"]
    rows = [{"prompt": "a", "vote_type": vote, **(near if n else pair)} for n, vote in enumerate(votes)]
    made = result(f"genai:{write_parquet(folder / 'test.parquet', rows)}")
    assert made["headline"] == 0.75 and made["with_ties"]["best_threshold"] == 10
    assert made["without_ties"]["wrong"] == 0.5


def test_genai_has_clips_and_edits_too(folder):
    clips(folder)
    rows = [{"prompt": "a", "left_video": "grey/40.mp4", "right_video": "grey/10.mp4", "vote_type": "leftvote"}]
    assert result(f"genai:{write_jsonl(folder / 'clips.jsonl', rows)}")["headline"] == 1
    row = {"instruct_prompt": "lighter", "source_image": "grey/10.png", "vote_type": "rightvote"}
    edits = write_jsonl(
        folder / "e.jsonl", [row | {"left_output_image": grey(20)[0], "right_output_image": grey(30)[0]}]
    )
    assert result(f"genai:{edits}")["headline"] == 1
    (one,) = read_benchmark(f"genai:{edits}").comparisons
    assert [medium.kind for medium in one.to_prompt().media] == ["image"]


def test_mjbench_counts_equal_scores_as_wrong(folder):
    rows = [
        {"caption": "a", "image0": embedded(30), "image1": embedded(20), "label": 0, "info": "object"},
        {"caption": "b", "image0": embedded(30), "image1": embedded(30), "label": 1, "info": "count"},
    ]
    made = result(f"mjbench:{write_parquet(folder / 'alignment.parquet', rows)}")
    assert made["headline"] == 0.5 and made["categories"] == {"object": 1, "count": 0} and made["macro"] == 0.5


def test_videogen_has_four_dimensions(folder):
    """Differences 30, -20, -10 and Overall A, B, same: with ties up to 10 all are right. VQ prefers what is darker."""
    clips(folder)
    rows = [
        {"path_A": "grey/40.mp4", "path_B": "grey/10.mp4", "prompt": "a", "VQ": "B", "Overall": "A"},
        {"path_A": "grey/10.mp4", "path_B": "grey/30.mp4", "prompt": "b", "VQ": "A", "Overall": "B"},
        {"path_A": "grey/20.mp4", "path_B": "grey/30.mp4", "prompt": "c", "VQ": "same", "Overall": "same"},
    ]
    file = write_csv(folder / "bench.csv", rows)
    assert result(f"videogen:{file}")["headline"] == 1
    darker = result(f"videogen(dimension='VQ'):{file}")
    assert darker["without_ties"]["wrong"] == 0 and darker["headline"] == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="dimension.*'XQ'.*VQ"):
        read_benchmark(f"videogen(dimension='XQ'):{file}")


def test_vlrewardbench_has_three_groups(folder):
    """The reward prefers the longer answer. General 1/2, hallucination 1/1, reasoning 1/2 (a tie): all 2.5/4."""

    def row(id, first, second, better):
        ranking = [0, 1] if better == 0 else [1, 0]
        return {
            "id": id,
            "query": "what?",
            "response": [first, second],
            "image": embedded(10),
            "human_ranking": ranking,
        }

    rows = [row("vlfeedback-1", "long", "a", 0), row("wildvision-2", "long", "a", 1)]
    rows += [row("RLAIF-V-3", "a", "long", 1), row("mathverse_4", "a", "b", 0)]
    made = result(f"vlrewardbench:{write_parquet(folder / 'test.parquet', rows)}")
    assert made["headline"] == 0.625 and made["macro"] == pytest.approx(2 / 3)
    assert made["categories"] == {"general": 0.5, "hallucination": 1, "reasoning": 0.5}


def test_mmrewardbench_parts_safety_and_reasoning_by_the_id(folder):
    def row(id, category, first, second, better):
        asked = {"ID": id, "Text": "what?", "Image": "grey/10.png", "Meta": {"Category": category}}
        return asked | {"Output1": first, "Output2": second, "Better": better}

    rows = [
        row("pairs-1", "safety", "long", "a", "Output1"),
        row("hateful-1", "safety", "long", "a", "Output2"),
        row("mathvista-1", "reasoning", "a", "b", "Output2"),
    ]
    made = result(f"mmrewardbench:{write_json(folder / 'all_data.json', rows)}")
    assert made["categories"] == {"safety/bias": 1, "safety/toxicity": 0, "reasoning/math": 0.5}
    assert made["headline"] == 0.5


def test_videorewardbench_prefers_the_chosen_answer(folder):
    clips(folder)
    row = {"prompt": "what?", "video": "grey/10.mp4", "dimension": "safety"}
    rows = [row | {"chosen": "long", "rejected": "a"}, row | {"chosen": "a", "rejected": "b", "dimension": "knowledge"}]
    made = result(f"videorewardbench:{write_jsonl(folder / 'test.jsonl', rows)}")
    assert made["headline"] == 0.75 and made["categories"] == {"safety": 1, "knowledge": 0.5}


def test_rewardbench2_is_the_mean_of_its_subsets(folder):
    """Math: the chosen answer shares the highest score with one other, 1/2. Ties, all right: margin 3 over spread 1."""
    rows = [
        {"id": "0", "prompt": "a", "subset": "Math", "chosen": ["xxx"], "rejected": ["yyy", "z", "z"]},
        {"id": "ref:7", "prompt": "b", "subset": "Ties", "chosen": ["xxxxx"], "rejected": ["x", "y"]},
        {"id": "tied:7", "prompt": "c", "subset": "Ties", "chosen": ["xxxxx", "xxxx"], "rejected": ["x"]},
    ]
    made = result(f"rewardbench2:{write_parquet(folder / 'test.parquet', rows)}")
    ties = 1 + 0.01 * math.tanh(2)
    assert made["categories"] == {"Math": 0.5, "Ties": pytest.approx(ties)}
    assert made["headline"] == pytest.approx((0.5 + ties) / 2)


def test_votes_of_the_demo_are_of_pictures_clips_or_texts(folder):
    """Right, wrong, and a tie of the reward, which counts half; a tie of people does not count."""
    rows = [
        {"prompt": "a", "left": "grey/30.png", "right": "grey/20.png", "vote_type": "leftvote", "who": "somebody"},
        {"prompt": "a", "left": {"text": "long"}, "right": {"text": "a"}, "vote_type": "rightvote"},
        {"prompt": "b", "left": "grey/20.png", "right": "grey/20.png", "vote_type": "leftvote", "answer": {"n": 1}},
        {"prompt": "b", "left": "grey/20.png", "right": "grey/30.png", "vote_type": "bothbad_vote"},
    ]
    made = result(f"votes:{write_jsonl(folder / 'votes.jsonl', rows)}")
    assert made["headline"] == 0.5 and made["prompts"] == 2
    assert read_benchmark(f"votes:{folder / 'votes.jsonl'}").comparisons[2].prompt.answer == {"n": 1}


def test_ratings_are_correlated_with_scores(folder):
    """Scores 10, 20, 40 of ratings 1, 2, 3: rank correlation 1, and Pearson's that of these numbers."""
    rows = [{"prompt": "a", "outputs": grey(10, 20, 40), "ratings": [1, 2, 3]}]
    made = result(f"ratings:{write_jsonl(folder / 'r.jsonl', rows)}")
    assert made["srcc"] == pytest.approx(1) and made["srcc_within_prompts"] == pytest.approx(1)
    assert made["plcc"] == pytest.approx(30 / (2 * 1400 / 3) ** 0.5) and made["headline"] == 1


def test_what_could_not_be_scored_is_counted_apart(folder):
    """Black is NaN: one of the three pairs is left, and it is right."""
    rows = [{"id": "0", "prompt": "a", "generations": grey(0, 30, 20), "ranking": [1, 2, 3]}]
    made = result(f"imagereward:{write_json(folder / 'test.json', rows)}")
    assert made["headline"] == 1 and made["failed"] == 1 and made["failed_pairs"] == 2
    made = result(
        f"hpdv2:{write_json(folder / 'h.json', [{'prompt': 'a', 'image_path': grey(0, 30), 'rank': [1, 2]}])}"
    )
    assert made["headline"] is None and made["interval"] is None and made["failed"] == 1


def test_every_benchmark_says_what_it_counts():
    assert all(one.note and one.read.__doc__ for one in PROTOCOLS.values())
