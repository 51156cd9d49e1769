"""A toy run whose only reward is a comparison within the group."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.policies.categorical import CategoricalPolicy
from mmgrpo.rewards import scorer
from tests.building import trainer
from tests.libraries.reward_models.judges.served import chat_server
from tests.speaking import TableModel, table_prompts


def larger(body, number):
    """A server that prefers the larger of two numbers."""
    texts = [part["text"] for part in body["messages"][0]["content"]]
    first, second = (int(text.split("\n")[1]) for text in texts if text.startswith("Output "))
    return "Verdict: tie" if first == second else f"Verdict: {1 if first > second else 2}"


def expected_number(network):
    """The mean of what the policy draws for each prompt."""
    return (network.weight.detach().softmax(1) * torch.arange(5.0)).sum(1)


@pytest.mark.slow
def test_a_policy_learns_what_a_judge_prefers_and_the_judge_is_asked_each_pair_once(tmp_path):
    prompts, policy = table_prompts(2), CategoricalPolicy(TableModel(2, 5))
    before = expected_number(policy.network)
    with chat_server(larger) as server:
        judge = f"chat(url={server.url!r}, model='m')"
        scorers = [
            scorer(f'judge_pairs(judge="{judge}")'),
            scorer(f'position_consistency(weight=0, judge="{judge}")'),
        ]
        made = trainer(policy, tmp_path, prompts, steps=8, lr=0.2, group_size=8, scorers=scorers)
        made.fit()
        asked = [str(body["messages"]) for body in server.bodies]
    assert (expected_number(policy.network) > before + 0.5).all()
    assert len(asked) == len(set(asked)) <= 2 * 25, "two prompts, and 25 pairs of five numbers"
