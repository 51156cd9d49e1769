"""From the marks of a judge to the advantages of single tokens: a round of a token policy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmgrpo.scoring import Scorer
from mmgrpo.scoring.remarks import marks_at, shares_at
from mmgrpo.types import Prompt
from pipelines.text.causal_lm import toy
from tests.building import algorithm_blocks, rounds_of, token_policy_over, trainer

WORDS = [Prompt("say a", "0", "a"), Prompt("say b", "1", "b")]


def long(prompts, outputs):
    return [float(len(output.text) > 6) for output in outputs]


def marked(prompts, outputs):
    """-1 for the second word of each text; the judge cannot judge a text that begins with b."""
    said: list[dict[str, Any]] = []
    for output in outputs:
        first, _, rest = output.text.partition(" ")
        behind = len(first) + 1 + len(rest.partition(" ")[0])
        said.append({} if output.text.startswith("b") else {"marks": [(len(first) + 1, behind, -1.0)] if rest else []})
    return said


def judge(prompts, outputs):
    return [1.0] * len(outputs)


def shared(prompts, outputs):
    """Three quarters for the first letter of each text, a quarter for its last; nothing known of those with b first."""
    parts = [[(0, 1, 0.75), (len(one.text) - 1, len(one.text), 0.25)] for one in outputs]
    return [{} if one.text.startswith("b") else {"shares": own} for one, own in zip(outputs, parts, strict=True)]


def round_of(folder, credit="marked_steps(by='judge', eps=0)", remarks=marked, **changes):
    rewards = [Scorer("long", long), Scorer("judge", judge, weight=0.0, remarks=remarks)]
    policy = token_policy_over(toy(["say", "a", "b", "c", "d"]), max_tokens=5)
    blocks = algorithm_blocks(
        "dr_grpo", credit=credit, baseline="none", scale="none", aggregation="per_sample", **changes
    )
    made: Any = trainer(policy, folder, WORDS, scorers=rewards, group_size=8, steps=1, **blocks)
    rounds = rounds_of(made)
    made.run_round()
    return rounds[0].batch


def test_tokens_of_marked_steps_are_blamed_and_texts_that_could_not_be_judged_are_left_out(tmp_path):
    """CAPO, arXiv:2508.02298: 2 for a right text, minus 1 in marked tokens, standardized over all of the group."""
    batch = round_of(tmp_path)
    [rollout] = batch.rollouts
    decisions, texts = batch.decisions, [output.text for output in rollout.outputs]
    mask = decisions.decision_mask
    left = torch.tensor([text.startswith("b") for text in texts])
    assert 0 < int(left.sum()) < len(texts) - 2
    rewards = torch.zeros_like(batch.advantages)
    for row, text in enumerate(texts):
        words = text.split(" ")
        for place in mask[row].nonzero()[:, 0].tolist():  # a token is a word, or the end
            rewards[row, place] = 2.0 * (len(text) > 6) - float(place == 1 and len(words) > 1)
    for name in (0, 1):
        rows = (decisions.keys["prompt"] == name) & ~left
        own = rewards[rows][mask[rows]]
        wanted = (rewards[rows] - own.mean()) / own.std()
        assert batch.advantages[rows][mask[rows]].tolist() == pytest.approx(wanted[mask[rows]].tolist(), abs=1e-5)
    assert not batch.loss_mask[left].any()


def test_a_credit_of_marks_asks_for_a_reward_that_makes_some(tmp_path):
    with pytest.raises(ValueError, match="credit.*'judge'"):
        round_of(tmp_path, remarks=None)
    with pytest.raises(ValueError, match="'jugde'"):
        round_of(tmp_path, credit="marked_steps(by='jugde')")


def test_marks_beside_a_critic_train_both(tmp_path):
    """Text2Grad, arXiv:2505.22338."""
    batch = round_of(tmp_path, credit="mark_gae(by='judge', whiten=False)", networks=["critic(lr=1e-2)"])
    marks, mask = batch.decisions.fields["marks"], batch.decisions.decision_mask
    assert set(marks[mask].tolist()) == {0.0, -1.0} and bool((marks[~mask] == 0).all())
    # V begins at 0: with lambda .95 a token before the marked one has -.95 per token between them
    row = int((marks.sum(1) < 0).nonzero()[0])
    assert batch.advantages[row, :2].tolist() == pytest.approx([-0.95, -1.0], abs=1e-5)


def test_marks_are_summed_without_a_critic(tmp_path):
    batch = round_of(tmp_path, credit="mark_return(by='judge', gamma=0)")
    marks, trained = batch.decisions.fields["marks"], batch.loss_mask
    own = marks[trained]
    wanted = (own - own.mean()) / own.std(correction=0)
    assert batch.advantages[trained].tolist() == pytest.approx(wanted.tolist(), abs=1e-5)


def test_a_share_is_spread_over_its_characters_whatever_the_tokens_of_the_judge_are():
    """Judge: un|done with .25 and .75; policy: und|one and an end: .25 + .75 / 4, 3 of 4 of .75, and nothing."""
    parts = [(0, 2, 0.25), (2, 6, 0.75)]
    assert shares_at(parts, torch.tensor([0, 3, 6])).tolist() == pytest.approx([0.4375, 0.5625, 0])
    # a judge of whole words, and a policy of letters whose first is given
    assert shares_at([(0, 4, 1.0)], torch.tensor([1, 2, 3])).tolist() == pytest.approx([1 / 3] * 3)
    assert shares_at([], torch.tensor([0, 3])).tolist() == [0, 1]
    assert marks_at([(0, 3, 1.0), (2, 6, -1.0)], torch.tensor([0, 2, 3, 6])).tolist() == [1, 1, -1, 0]


def test_a_shared_reward_trains_beside_a_critic(tmp_path):
    """ABC, arXiv:2402.00782: V begins at 0, so with lambda 0 the advantage is what a token earned."""
    credit = "share_gae(by='judge', beta=.5, lam=0, whiten=False)"
    batch = round_of(tmp_path, credit=credit, remarks=shared, networks=["critic(lr=1e-2)"])
    [rollout] = batch.rollouts
    rows = [row for row, output in enumerate(rollout.outputs) if len(output.text) > 6 and output.text[0] != "b"]
    assert rows
    for row in rows:
        own = batch.advantages[row][batch.decisions.decision_mask[row]].tolist()
        ends = rollout.outputs[row].text.endswith(" ")
        assert sum(own) == pytest.approx(1.0) and own[0] == pytest.approx(0.375) and not ends
        assert own[-1] >= 0.5 and not any(own[1:-2])
    left = torch.tensor([output.text.startswith("b") for output in rollout.outputs])
    assert not batch.loss_mask[left].any()
