"""SPELL (arXiv:2509.23863): the policy asks itself about documents, answers and verifies in one round."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.config.registry import bind
from mmgrpo.prompts.judging import JUDGINGS, SelfPlay
from mmgrpo.prompts.self_play import (
    Pair,
    answering,
    asking,
    choose_questions,
    choose_verdicts,
    draw_documents,
    pair_in,
    verdicts_of,
    verifying,
    worth_of_question,
)
from mmgrpo.rounds.self_play import FIRST_PLAYED, GROUPS, QUESTIONS, SelfPlaying
from mmgrpo.scoring import Scorer
from mmgrpo.types import HINTED, OWN, REPLACED, Output, Prompt, Request
from tests.building import algorithm_blocks, attached, killed_and_whole, rounds_of, token_policy_over, trainer

pytest.importorskip("transformers")

from pipelines.text.causal_lm import toy

WORDS = ["ask", "about", "a", "b", "c", "d", "yes", "no", "<question>", "</question>", "<answer>", "</answer>"]
PLAY = "self_play(reward='own', rule='known', documents=2)"
CLUSTER = Prompt("ask", "0", meta={"documents": ["a b", "b c", "c d"]})


def rule(text: str = PLAY) -> SelfPlay:
    return bind(text, JUDGINGS, "algorithm.judging")({})


def test_a_question_is_worth_most_where_half_of_its_answers_are_right():
    """Equation 7, mu .5 and sigma .5 / 3: .25 is 1.5 sigma away, exp(-1.125)."""
    values = [worth_of_question(mean) for mean in (0.5, 0.25, 0.75, 0.125, 0.0, 1.0)]
    assert values == pytest.approx([1, 0.324652, 0.324652, 0.079560, 0, 0], abs=1e-6)


def test_a_verdict_is_worth_what_the_majority_says():
    """Equations 4 and 5: five of eight say yes; what says neither agrees with nobody; four of eight are no majority."""
    assert verdicts_of(["yes"] * 5 + ["no", "no", "what"], ("yes", "no")) == (True, [1.0] * 5 + [0.0] * 3)
    assert verdicts_of(["yes", "no"] * 4, ("yes", "no")) == (False, [0.0, 1.0] * 4)


def test_a_pair_is_the_last_that_is_marked():
    assert pair_in("<question>x</question><answer>y</answer> <question> a </question><answer>b</answer>") == Pair(
        "a", "b"
    )
    for wrong in ("", "<question>a</question>", "<question> </question><answer>b</answer>"):
        assert pair_in(wrong) is None


def test_each_role_reads_what_it_is_to_read():
    """The questioner some documents, and those of earlier pairs; the responder all; the verifier none."""
    pair = Pair("what", "b", (2,))
    asked = asking(CLUSTER, (0,), [pair], rule())
    assert asked.text.startswith("a b\n\nc d\n\nEarlier question: what\nIts answer: b\n\nask\n\nAsk a question")
    assert asking(CLUSTER, (0,), [], rule()).text.startswith("a b\n\nask")
    every, without = answering(CLUSTER, pair, rule()), answering(CLUSTER, pair, rule(), grounded=False)
    assert every.text == "a b\n\nb c\n\nc d\n\nwhat" and every.answer == "b" and without.text == "what"
    said = verifying(CLUSTER, pair, "bee", rule()).text
    assert "Question: what\nReference answer: b\nProposed answer: bee" in said and "a b" not in said
    draws = [draw_documents(CLUSTER, rule(), 0, number, 0) for number in range(200)]
    assert {len(one) for one in draws} == {2} and {*draws} == {(0, 1), (0, 2), (1, 2)}
    with pytest.raises(ValueError, match="'7'.*documents"):
        draw_documents(Prompt("ask", "7"), rule(), 0, 0, 0)


def test_as_many_other_questions_are_trained_as_solvable_ones():
    rewards = {0: 0.3, 1: -1.0, 2: 0.0, 3: -0.5, 4: 1.0, 5: 0.0}
    chosen = [choose_questions(rewards, 0, number) for number in range(40)]
    assert all({0, 4} < one and len(one) == 4 for one in chosen)
    assert set[int]().union(*chosen) == {0, 1, 2, 3, 4, 5}
    assert choose_questions({0: -1.0, 1: 0.0}, 0, 0) == set()
    assert len(choose_verdicts([9, 8, 7], 2, 0, 0)) == 2 and choose_verdicts([9], 2, 0, 0) == {9}


# ---- a round


def nothing(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[None]:
    return [None] * len(outputs)


def known(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float | None]:
    """Whether the answer stands in the text (cover exact match); it abstains where there is no answer."""
    pairs = zip(prompts, outputs, strict=True)
    return [None if p.answer is None else float(str(p.answer) in o.text) for p, o in pairs]  # type: ignore[union-attr]


def says(score: Callable[[str], str]) -> Any:
    """A policy whose rows say what a function of the prompt gives, one after the other."""
    policy: Any = token_policy_over(toy(WORDS), max_tokens=4)
    draw = policy.rollout

    def rollout(request: Request) -> Any:
        found = draw(request)
        outputs = [
            replace(one, text=score(prompt.text)) for one, prompt in zip(found.outputs, found.prompts, strict=True)
        ]
        return replace(found, outputs=outputs)

    policy.rollout = rollout
    return policy


def scripted(answers: Sequence[str], votes: Sequence[str]) -> Callable[[str], str]:
    """Answers, in turn, to a question about b, and votes on them."""
    given: Iterator[str] = iter([*answers] * 99)
    voted: Iterator[str] = iter([*votes] * 99)

    def score(text: str) -> str:
        if "Ask a question" in text:
            return "<question>what</question><answer>b</answer>"
        if "Proposed answer" in text:
            return next(voted)
        return "x" if text == "what" else next(given)

    return score


def run(folder: Path, score: Callable[[str], str] | None, text: str = PLAY, clusters: int = 1, **more: Any):
    scorers = [Scorer("own", nothing), Scorer("known", known, weight=0.0)]
    blocks = algorithm_blocks("dr_grpo", aggregation="per_sample", judging=[text])
    prompts = [replace(CLUSTER, id=str(number)) for number in range(clusters)]
    settings = {"prompts_per_step": clusters, "group_size": 4, "steps": 4, "lr": 1e-3, **more}
    policy = says(score) if score else token_policy_over(toy(WORDS), max_tokens=4)
    return trainer(policy, folder, prompts, scorers=scorers, **settings, **blocks)


def played(folder: Path, score: Callable[[str], str], **more: Any):
    made = run(folder, score, **more)
    rounds = rounds_of(made)
    made.run_round()
    return made, rounds[0]


def test_a_round_has_rows_of_all_roles_with_their_rewards(tmp_path):
    """Answers b, b (but no by verdicts), x (yes by verdicts) and x: rewards 1 1 1 0, s .75. Of the verdicts those on
    the second and third answer contradict the rule; those on the first are alike; on the last one of four differs."""
    votes = ["yes"] * 4 + ["no"] * 4 + ["yes"] * 3 + ["no"] + ["no", "yes", "no", "no"]
    made, round_ = played(tmp_path, scripted(["b", "b b", "x", "xx"], votes))
    decisions, mask = round_.batch.decisions, round_.batch.loss_mask.any(1)
    keys, totals = decisions.keys["prompt"], round_.totals
    question, answers = keys == QUESTIONS, keys == FIRST_PLAYED
    assert decisions.rows == 1 + 4 + 16 and decisions.origin[question].tolist() == [OWN]
    assert totals[question].tolist() == pytest.approx([math.exp(-1.125)])
    assert totals[answers].tolist() == [1, 1, 1, 0] and (decisions.origin[answers] == HINTED).all()
    last = keys == FIRST_PLAYED + 4 * GROUPS
    assert totals[last].tolist() == [1, 0, 1, 1] and mask[last].all()
    others = ~(question | answers | last)
    assert int(others.sum()) == 12 and not mask[others].any()
    assert totals[keys == FIRST_PLAYED + 3 * GROUPS].tolist() == [1, 1, 1, 0]
    advantages = round_.batch.advantages[:, 0]
    assert advantages[answers].tolist() == pytest.approx([0.25, 0.25, 0.25, -0.75])
    assert advantages[last].tolist() == pytest.approx([0.25, -0.75, 0.25, 0.25])
    assert round_.metrics["self_play/questions"] == 1 and round_.metrics["self_play/verdict_groups"] == 1
    assert {number: [one.question for one in some] for number, some in attached(made, SelfPlaying).memory.items()} == {
        0: ["what"]
    }


def test_questions_are_compared_over_the_round(tmp_path):
    """Of four clusters one question is half solved, one has no pair, one needs no documents, one is never solved: the
    first is trained and one of the others."""
    number = iter(range(4))
    questions = ["<question>one</question><answer>b</answer>", "no pair", "<question>free</question><answer>b</answer>"]
    questions.append("<question>hard</question><answer>q</answer>")
    answers = iter(["b", "b", "x", "x"])

    def score(text: str) -> str:
        if "Ask a question" in text:
            return questions[next(number)]
        if "Proposed answer" in text:
            return "no"
        if text in ("one", "free", "hard"):
            return "b" if text == "free" else "x"
        return next(answers) if text.endswith("one") else "x"

    made, round_ = played(tmp_path, score, clusters=4)
    decisions = round_.batch.decisions
    own = decisions.keys["prompt"] == QUESTIONS
    assert sorted(round_.reward_scores.values[own, 0].tolist()) == [-1.0, -0.5, 0.0, 1.0]
    trained = own & round_.batch.loss_mask.any(1)
    assert int(trained.sum()) == 2 and int((decisions.origin[own] == REPLACED).sum()) == 2
    values = round_.reward_scores.values[trained, 0]
    assert values.max() == 1 and round_.batch.advantages[trained, 0].tolist() == pytest.approx(
        (values - values.mean()).tolist()
    )
    metrics = round_.metrics
    assert metrics["self_play/malformed_fraction"] == 0.25 and metrics["self_play/ungrounded_fraction"] == 0.25
    assert (
        metrics["self_play/question_reward"] == pytest.approx(-0.125) and len(attached(made, SelfPlaying).memory) == 1
    )


def test_what_was_solved_is_read_by_the_next_questioner(tmp_path):
    seen: list[str] = []
    inner = scripted(["b", "x", "b", "x"], ["no", "yes", "no", "no"])

    def score(text: str) -> str:
        seen.extend([text] if "Ask a question" in text else [])
        return inner(text)

    made = run(tmp_path, score, text="self_play(reward='own', rule='known', documents=1, memory=2)")
    for _ in range(4):
        made.run_round()
    assert [one.count("Earlier question") for one in seen] == [0, 1, 2, 2]
    [pairs] = attached(made, SelfPlaying).memory.values()
    again = SelfPlaying(rule())
    again.load(json.loads(json.dumps(attached(made, SelfPlaying).state())), {}, 4)
    assert [*again.memory.values()] == [pairs] and len(pairs) == 2


def test_the_gradient_is_that_of_all_roles_together(tmp_path):
    """-A log p of the tokens of trained rows, each row by the mean of its tokens and all rows by their mean."""
    votes = ["yes", "no", "no", "no"] * 4
    made = run(tmp_path, scripted(["b", "x", "b", "x"], votes), lr=0.0)
    seen: dict[str, torch.Tensor] = {}
    made.optimizer.register_step_pre_hook(
        lambda *_: seen.update({name: one.grad.clone() for name, one in made.trained.items() if one.grad is not None})
    )
    rounds = rounds_of(made)
    made.run_round()
    batch = rounds[0].batch
    rows, total = int(batch.loss_mask.any(1).sum()), torch.zeros(())
    for rollout, places in zip(batch.rollouts, batch.places, strict=True):
        mask = batch.loss_mask[places][:, : rollout.decisions.loss_mask.shape[1]]
        for part in rollout.steps.split(mask, 99):
            log_probs = made.policy.score(rollout, part, frozenset({"log_probs"}))["log_probs"]
            row = places[part.rows]
            length = batch.loss_mask[row].sum(1)
            total = total - (batch.advantages[row, part.positions] * log_probs / length).sum() / rows
    made.optimizer.zero_grad()
    total.backward()
    assert rows > 4
    for name, one in made.trained.items():
        if one.grad is not None:
            torch.testing.assert_close(seen[name], one.grad, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_killed_run_goes_on_with_its_memory(tmp_path):
    def fresh(folder: Path):
        return run(folder, scripted(["b", "x", "b", "x"], ["no", "yes", "no", "no"]), save_every=1)

    killed, whole = killed_and_whole(fresh, tmp_path)
    assert killed == whole and whole[-1]["self_play/questions"] == 1


def test_a_policy_that_says_anything_plays(tmp_path):
    made = run(tmp_path, None, clusters=3, steps=2)
    made.fit()


def test_what_it_cannot_do_is_refused(tmp_path):
    for text, named in (
        ("self_play(reward='no', rule='known')", "'no'"),
        ("self_play(reward='known', rule='own')", "weight"),
    ):
        with pytest.raises(ValueError, match=f"self_play.*{named}"):
            run(tmp_path, None, text=text)
