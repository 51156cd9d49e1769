"""The policy judges its own samples in the round in which it drew them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.config.registry import bind
from mmgrpo.prompts.judging import (
    JUDGINGS,
    Judging,
    Question,
    agreement,
    answer_in,
    asking,
    points_of,
    proposing,
    questions,
    scores_in,
    scoring,
    verdict,
)
from mmgrpo.rollout import Round
from mmgrpo.rounds.judging import FIRST_JUDGED, Judges
from mmgrpo.rounds.rows import with_values
from mmgrpo.scoring import RewardScores, Scorer
from mmgrpo.trainer import Trainer
from mmgrpo.types import HINTED, OWN, REPLACED, Output, Prompt
from tests.building import algorithm_blocks, killed_and_whole, rounds_of, token_policy_over, trainer

pytest.importorskip("transformers")

from pipelines.text.causal_lm import toy

WORDS = ["say", "a", "b", "c", "is", "it", "right", "first", "second", "again", "yes", "no", "score"]
TEXTS = "point=' {sample} is it right', pair=' first {first} second {second}', reflection=' {sample} again'"


def rule(text: str = "verdicts") -> Judging:
    return bind(text, JUDGINGS, "algorithm.judging")({})


# ---- which questions


def of(*kinds: str) -> dict[int, list[tuple[int, bool]]]:
    """Groups of samples, r for right and w for wrong, with places in their order."""
    groups, place = dict[int, list[tuple[int, bool]]](), 0
    for key, letters in enumerate(kinds):
        groups[key] = [(place + at, letter == "r") for at, letter in enumerate(letters)]
        place += len(letters)
    return groups


def test_a_group_of_one_kind_is_asked_about_one_sample_and_a_mixed_one_about_two():
    made = questions(of("rr", "ww", "rw"), rule("verdicts(pairs=1)"), 0, 0)
    assert [(one.kind, one.key) for one in made] == [
        ("point", 0),
        ("point", 1),
        ("pair", 2),
        ("reflection", 1),
        ("reflection", 2),
    ]
    right, wrong, pair, *shown = made
    assert right.right and right.places[0] in (0, 1) and not wrong.right and wrong.places[0] in (2, 3)
    assert sorted(pair.places) == [4, 5] and pair.right == (pair.places[0] == 4)
    assert [one.places[0] for one in shown][1] == 5 and not any(one.right for one in shown)
    assert [one.whole for one in shown] == [True, False]  # groups 0 and 1 of 3 are the first half


def test_a_mixed_group_is_asked_about_a_pair_in_seven_of_ten_rounds_and_either_order_is_as_likely():
    groups, count = of("rw"), 2000
    made = [questions(groups, rule("verdicts(reflections=0)"), 0, number)[0] for number in range(count)]
    kinds = Counter((one.kind, one.right) for one in made)
    for kind, expected in {
        ("pair", True): 0.35,
        ("pair", False): 0.35,
        ("point", True): 0.15,
        ("point", False): 0.15,
    }.items():
        assert kinds[kind] / count == pytest.approx(expected, abs=0.04)


def test_64_prompts_of_which_20_are_mixed_are_64_questions_of_which_32_are_asked():
    groups = of(*["rw"] * 20, *["rr"] * 30, *["ww"] * 14)
    every = questions(groups, rule("verdicts(most=64, reflections=0)"), 0, 0)
    assert len(every) == 64 and 8 <= sum(one.kind == "pair" for one in every) <= 20
    some = questions(groups, rule(), 0, 0)
    judged = [one for one in some if one.kind != "reflection"]
    assert len(judged) == 32 and [*judged] == [one for one in every if one in judged]
    assert sum(one.kind == "reflection" for one in some) == 32  # of 34 groups with a wrong sample
    whole = [one.whole for one in questions(groups, rule("verdicts(most=0, reflections=64)"), 0, 0)]
    assert whole == [True] * 20 + [False] * 14  # keys 0 to 31 are the first half


def test_questions_depend_on_seed_round_and_group_alone():
    groups = of("rwr", "www", "rrw", "rrr")
    alone = questions({2: groups[2]}, rule("verdicts(reflections=0)"), 3, 5)
    assert alone == [one for one in questions(groups, rule("verdicts(reflections=0)"), 3, 5) if one.key == 2]
    assert questions(groups, rule(), 3, 5) != questions(groups, rule(), 3, 6)


def test_balanced_questions_have_as_many_of_either_answer():
    groups = of(*["rr"] * 9, *["ww"] * 2, "rw")
    made = questions(groups, rule("verdicts(pairs=1, balanced=True, reflections=0)"), 0, 0)
    assert Counter((one.kind, one.right) for one in made if one.kind == "point") == {
        ("point", True): 2,
        ("point", False): 2,
    }
    assert sum(one.kind == "pair" for one in made) == 1


# ---- how they are asked, and what the answers say


def test_a_question_has_the_label_as_its_answer():
    prompt = Prompt("say a", "0", answer="a", task="numeric")
    made = rule(f"verdicts({TEXTS})")
    point = asking(Question("point", 0, (3,), right=False), prompt, ["b"], made)
    assert (point.text, point.answer, point.task) == ("say a b is it right", "no", "exact")
    pair = asking(Question("pair", 0, (3, 4), right=True), prompt, ["a", "b"], made)
    assert (pair.text, pair.answer) == ("say a first a second b", "A")
    swapped = asking(Question("pair", 0, (4, 3), right=False), prompt, ["b", "a"], made)
    assert (swapped.text, swapped.answer) == ("say a first b second a", "B")
    again = asking(Question("reflection", 0, (3,)), prompt, ["b"], made)
    assert (again.text, again.answer, again.task) == ("say a b again", "a", "numeric")


def test_samples_are_numbered_in_the_order_in_which_they_are_scored():
    made = scoring(Prompt("say a"), ["x", "y"], rule("own(reward='r')"))
    assert made.text.startswith("say a\n\n2 proposed answers:\n1. x\n2. y\n\nScore each from 0 to 10.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yes", 0),
        ("No.", 1),
        ("It is not known, yes or no? No", 1),
        ("<answer>yes</answer> no", 0),
        ("\\boxed{no}, not yes", 1),
        ("yesterday", None),
        ("", None),
    ],
)
def test_a_verdict_is_the_last_of_its_words(text, expected):
    assert verdict(text, ("yes", "no")) == expected


def test_scores_are_as_many_numbers_as_samples_within_the_scale():
    assert scores_in("7, 3", 2, 0, 10) == [0.7, 0.3]
    assert scores_in("1. so <answer>10 0</answer>", 2, 0, 10) == [1.0, 0.0]
    assert scores_in("-1 1", 2, -1, 1) == [-1.0, 1.0]
    for text in ("7", "7 3 1", "7 11", "-1 3", "none"):
        assert scores_in(text, 2, 0, 10) is None
    assert answer_in("so \\boxed{1} or \\boxed{2}") == "2" and answer_in("plain") == "plain"


def test_judged_pairs_agree_with_what_is_known():
    """.7 > .3 as 1 > 0, and .3 = .3 is half of 1 > 0: 1.5 of 2."""
    assert agreement([0.7, 0.3, 0.3], [1, 0, 1]) == (1.5, 2)
    assert agreement([0.1, 0.9], [1, 1]) == (0.0, 0)


def test_a_score_of_the_judge_takes_the_place_of_all_rewards_but_watched_ones():
    scores = RewardScores(torch.tensor([[1.0, 2.0, 3.0]] * 3), torch.ones(3, 3, dtype=torch.bool))
    made = with_values(scores, [(0, 0.7), (2, float("nan"))], 1, [False, False, True])
    assert made.values[0].tolist() == [0.0, pytest.approx(0.7), 3.0] and made.values[1].tolist() == [1.0, 2.0, 3.0]
    assert made.valid.tolist() == [[False, True, True], [True] * 3, [False, False, True]]
    assert made.abstentions.tolist() == [[True, False, False], [False] * 3, [True, False, False]]
    assert made.failed.tolist() == [[False] * 3, [False] * 3, [False, True, False]]
    assert scores.values[0].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("verdicts(words=['yes', 'Yes'])", "words.*yes"),
        ("verdicts(letters=['A'])", "letters.*A"),
        ("own(reward='r', low=3, high=3)", "low.*3"),
    ],
)
def test_what_cannot_be_asked(text, message):
    with pytest.raises(ValueError, match=message):
        rule(text)


# ---- in a round


def named(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Reward: the text begins with the prompt's answer."""
    return [float(o.text.startswith(str(p.answer))) for p, o in zip(prompts, outputs, strict=True)]  # type: ignore[union-attr]


def prompts(task: str = "") -> list[Prompt]:
    return [Prompt(f"say {word}", word, answer=word, task=task) for word in "abc"]


def made(folder: Path, *judging: str, task: str = "", seed: int = 0, **settings: Any) -> Trainer:
    policy = token_policy_over(toy(WORDS, seed=3), max_tokens=2)
    blocks = algorithm_blocks("dr_grpo", aggregation="per_sample", judging=list(judging))
    more: dict[str, Any] = {"prompts_per_step": 3, "group_size": 8, "steps": 4, "lr": 1e-3, "seed": seed, **settings}
    return trainer(policy, folder, prompts(task), **{"reward": named, **more}, **blocks)


def one_round(run: Trainer) -> Round:
    rounds = rounds_of(run)
    run.run_round()
    return rounds[0]


def test_verdicts_are_rows_of_groups_of_their_own(tmp_path):
    """Each row is compared with those of its own question, whose samples are not cut off."""
    round_ = one_round(made(tmp_path, f"verdicts({TEXTS}, samples=4)"))
    decisions, rewards = round_.batch.decisions, round_.totals
    keys = decisions.keys["prompt"]
    answers, asked = keys < FIRST_JUDGED, keys >= FIRST_JUDGED
    assert int(answers.sum()) == 24 and bool((decisions.origin[answers] == OWN).all())
    groups = torch.unique(keys[asked])
    assert len(groups) > 2 and all(int((keys == key).sum()) == 4 for key in groups)
    assert bool((decisions.origin[asked] == HINTED).all()) and (decisions.fields["prompt_index"][asked] == -1).all()
    for key in groups:
        own = round_.batch.advantages[keys == key, 0]
        assert torch.allclose(own, rewards[keys == key] - rewards[keys == key].mean(), atol=1e-6)
    rollout = round_.rollouts[-1]
    assert {prompt.text.split()[-1] for prompt in rollout.prompts} <= {*"abc", "right", "again", *WORDS}
    for row, prompt in enumerate(rollout.prompts):
        output: Any = rollout.outputs[row]
        assert float(rewards[24 + row]) == float(output.text.startswith(str(prompt.answer)))
    metrics = round_.metrics
    assert sum(metrics[f"judging/{kind}s"] for kind in ("point", "pair", "reflection")) == len(groups)
    assert metrics["reward/reward/mean"] == pytest.approx(float(rewards[answers].mean()))
    assert 0 <= metrics["judging/unread_fraction"] <= 1


def test_verdicts_move_the_weights_and_are_no_evidence_of_prompts(tmp_path):
    with_judge, without = made(tmp_path / "with", f"verdicts({TEXTS})"), made(tmp_path / "without")
    for run in (with_judge, without):
        run.run_round()
    assert torch.equal(with_judge.ledger.columns["prompts"]["sum"], without.ledger.columns["prompts"]["sum"])
    pairs = zip(with_judge.trained.values(), without.trained.values(), strict=True)
    assert not all(torch.equal(one, other) for one, other in pairs)
    none = made(tmp_path / "none", "verdicts(most=0, reflections=0)")
    none.run_round()
    pairs = zip(none.trained.values(), without.trained.values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_in_turns_a_round_trains_answers_or_verdicts(tmp_path):
    run = made(tmp_path, f"verdicts({TEXTS}, turns=1)")
    rounds = rounds_of(run)
    for _ in range(2):
        run.run_round()
    first, second = (one.batch for one in rounds)
    assert bool((first.decisions.keys["prompt"] < FIRST_JUDGED).all()) and bool(first.loss_mask.any())
    answers = second.decisions.keys["prompt"] < FIRST_JUDGED
    assert bool((second.decisions.origin[answers] == REPLACED).all()) and not bool(second.loss_mask[answers].any())
    assert bool(second.loss_mask[~answers].any())
    assert float(run.ledger.columns["prompts"]["visits"].sum()) == 6  # what was drawn stays evidence


def echo(score: Callable[[str], str], asked: Callable[[], None] = lambda: None) -> Any:
    """A policy whose answers are its own, and whose judgements are what a function of the question says."""
    policy = token_policy_over(toy(WORDS, seed=3), max_tokens=2)
    drawn = policy.rollout

    def rollout(request: Any) -> Any:
        found = drawn(request)
        if min(request.slots) < FIRST_JUDGED and not request.prompts[0].text.startswith("Proposed"):
            return found
        asked()
        outputs = [replace(o, text=score(p.text)) for o, p in zip(found.outputs, found.prompts, strict=True)]  # type: ignore[type-var]
        return replace(found, outputs=outputs)

    policy.rollout = rollout  # type: ignore[method-assign]
    return policy


def nothing(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[None]:
    return [None] * len(outputs)


def judged(folder: Path, score: Callable[[str], str], text: str, **settings: Any) -> Round:
    scorers = [Scorer("own", nothing), Scorer("known", named, weight=0.0)]
    blocks = algorithm_blocks("dr_grpo", aggregation="per_sample", judging=[text])
    more: dict[str, Any] = {"prompts_per_step": 3, "group_size": 4, "steps": 4, "lr": 1e-3, **settings}
    return one_round(trainer(echo(score), folder, prompts("open"), scorers=scorers, **more, **blocks))


def test_open_rows_have_the_score_that_the_judge_gives_whatever_order_it_reads(tmp_path):
    shown: list[list[str]] = []

    def by_length(text: str) -> str:
        samples = text.split(":\n")[1].split("\n\nScore")[0].split("\n")
        shown.append([sample.partition(". ")[2] for sample in samples])
        return " ".join(str(min(10, len(sample))) for sample in shown[-1])

    round_ = judged(tmp_path, by_length, "own(reward='own', verifier='known')")
    outputs = [min(1.0, len(output.text) / 10) for output in round_.rollouts[0].outputs]  # type: ignore[union-attr]
    assert round_.totals.tolist() == pytest.approx(outputs)
    drawn = [output.text for output in round_.rollouts[0].outputs]  # type: ignore[union-attr]
    assert [sorted(one) for one in shown] == [sorted(drawn[at : at + 4]) for at in (0, 4, 8)]
    assert shown != [drawn[at : at + 4] for at in (0, 4, 8)], "the order says nothing"
    assert bool(round_.batch.loss_mask.any()) and round_.batch.decisions.rows == 12
    assert round_.metrics["judging/scored"] == 12 and round_.metrics["judging/unscored"] == 0
    known = round_.reward_scores.values[:, 1].tolist()
    pairs = [agreement(outputs[at : at + 4], known[at : at + 4]) for at in (0, 4, 8)]
    count = sum(count for _, count in pairs)
    assert count and round_.metrics["judging/agreement"] == pytest.approx(sum(right for right, _ in pairs) / count)


def test_what_cannot_be_read_is_no_verdict_and_its_samples_are_not_trained(tmp_path):
    round_ = judged(
        tmp_path,
        lambda text: "5 5 5 5" if text.startswith("say a") else "well",
        "own(reward='own')",
    )
    keys = round_.batch.decisions.keys["prompt"]
    read = torch.tensor([prompt.text == "say a" for prompt in round_.rollouts[0].prompts])
    assert round_.metrics["judging/unscored"] == 8 and bool(round_.totals[~read].isnan().all())
    assert not bool(round_.batch.loss_mask[~read].any()) and len(keys) == 12


def test_each_sample_by_itself_has_the_share_of_its_votes(tmp_path):
    votes = iter(["yes", "no", "what"] * 100)
    round_ = judged(tmp_path, lambda _: next(votes), "own(reward='own', together=False, votes=3)")
    assert round_.totals.tolist() == pytest.approx([0.5] * 12)


RUBRIC = "[2] named [3] short [5] true"
SCORED = f"own(reward='own', rubric='{RUBRIC}', every=2, read=5, meta='')"


def test_a_score_by_a_rubric_is_its_share_of_all_points():
    """Items of 2 and 3 and 1 points of 10 are .6; so are 12 points of 20 after the rubric was rewritten."""
    assert points_of(RUBRIC) == 10 and points_of("[20] all") == 20 and points_of("no points") == 0
    assert scores_in("6", 1, 0, 10) == [0.6] and scores_in("12", 1, 0, 20) == [0.6]
    asked = scoring(Prompt("say a"), ["x"], rule(SCORED), RUBRIC)
    assert asked.text.endswith(f"answer:\nx\n\nCriteria:\n{RUBRIC}\n\nWrite the sum of its points, from 0 to 10, only.")
    read = proposing(Prompt("say a"), "x", 0.6, RUBRIC).text
    assert RUBRIC in read and "given 6 of 10 points:\nx\n" in read and "say a" in read
    with pytest.raises(ValueError, match="rubric.*polite"):
        rule("own(reward='own', rubric='be polite')")


def meta(text: str) -> str:
    """A judge that gives 5 points, and a meta model that writes another rubric after every sample, and merges them."""
    if text.startswith("Proposed criteria"):
        return f"[20] of {text.count('[4] better')}"
    return "[4] better" if text.startswith("Criteria") else "5"


def test_a_rubric_is_rewritten_after_every_second_round(tmp_path):
    scorers = [Scorer("own", nothing)]
    blocks = algorithm_blocks("dr_grpo", aggregation="per_sample", judging=[SCORED])
    more: dict[str, Any] = {"prompts_per_step": 3, "group_size": 4, "steps": 4, "lr": 1e-3, "scorers": scorers}
    run = trainer(echo(meta), tmp_path, prompts("open"), **more, **blocks)
    rounds = rounds_of(run)
    for _ in range(4):
        run.run_round()
    [judges] = [one for one in run.callbacks if isinstance(one, Judges)]
    assert judges.rubrics == {0: [RUBRIC, "[20] of 5", "[20] of 5"]}  # each of five samples read had a proposal
    assert [float(one.totals.mean()) for one in rounds] == pytest.approx([0.5, 0.5, 0.25, 0.25])  # 5 of 10, then of 20
    assert [one.metrics["judging/rubrics"] for one in rounds] == [1, 2, 2, 3]
    again = Judges()
    again.load(json.loads(json.dumps(judges.state())), {}, 4)
    assert again.rubrics == judges.rubrics


def test_a_rubric_without_points_is_left_as_it_is(tmp_path):
    blocks = algorithm_blocks("dr_grpo", judging=[SCORED.replace("every=2", "every=1")])
    for number, said in enumerate(("5", "[0] nothing")):  # nothing is proposed, or merged
        policy = echo(lambda text, said=said: said if text.startswith(("Criteria", "Proposed")) else "5")
        run = trainer(policy, tmp_path / str(number), prompts("open"), scorers=[Scorer("own", nothing)], **blocks)
        run.run_round()
        [judges] = [one for one in run.callbacks if isinstance(one, Judges)]
        assert judges.rubrics == {0: [RUBRIC]}


@pytest.mark.parametrize("network", ["", "reference"])
def test_a_frozen_judge_is_the_network_before_training(network, tmp_path):
    seen: list[bool] = []
    policy = echo(lambda _: "yes", lambda: seen.append(any(bool(p.any()) for p in policy.network.parameters())))
    policy.keep_reference()
    blocks = algorithm_blocks("dr_grpo", judging=[f"own(reward='own', together=False, network='{network}')"])
    run = trainer(policy, tmp_path, prompts("open"), scorers=[Scorer("own", nothing)], **blocks)
    with torch.no_grad():
        for parameter in run.trained.values():
            parameter.zero_()
    run.run_round()
    assert seen == [network == "reference"]


@pytest.mark.parametrize(
    "text", ["own(reward='absent')", "own(reward='reward', verifier='absent')", "verdicts(by='absent')"]
)
def test_a_reward_that_is_none_of_the_run_is_named(text, tmp_path):
    with pytest.raises(ValueError, match=r"algorithm\.judging.*absent"):
        made(tmp_path, text)


def test_a_network_that_the_run_has_not_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"algorithm\.judging.*olden"):
        made(tmp_path, "own(reward='reward', network='olden')")


@pytest.mark.slow
@pytest.mark.rows
def test_a_run_with_a_judge_that_is_killed_goes_on_exactly(tmp_path):
    killed, whole = killed_and_whole(lambda folder: made(folder, f"verdicts({TEXTS}, turns=1)"), tmp_path)
    assert killed == whole and len(whole) == 4
    assert json.dumps(whole).count("judging/unread_fraction") == 2
