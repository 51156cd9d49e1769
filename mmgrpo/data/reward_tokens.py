"""Prompts that name the reward they are trained on (Parrot, arXiv:2401.05675, section 4.2).

    "a boat"  ->  "<reward 1> a boat" with task "aesthetic",  "<reward 2> a boat" with task "clip", ...

A row is trained on the reward that its task names (``by_task``), among the samples that no other dominates in all
rewards (``select: pareto_front``). After training, all tokens together ask for all rewards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mmgrpo.types import Prompt


def with_reward_tokens(prompts: Sequence[Prompt], rewards: Sequence[str]) -> list[Prompt]:
    """Each prompt once for each reward, with the reward's token before its text and the reward as its task.

    A run draws them at random, so about every reward is trained in each round. ValueError for a prompt that has a
    task already, or that is a conversation.
    """
    for prompt in prompts:
        if prompt.task or prompt.turns:
            problem = f"the task '{prompt.task}'" if prompt.task else "a conversation"
            raise ValueError(f"prompt '{prompt.id}': got {problem}, expected a plain text, whose task names a reward")
    return [
        replace(prompt, text=f"{token(place)} {prompt.text}", id=f"{prompt.id}#{name}", task=name)
        for prompt in prompts
        for place, name in enumerate(rewards, start=1)
    ]


def with_all_tokens(prompts: Sequence[Prompt], rewards: Sequence[str]) -> list[Prompt]:
    """Each prompt with the tokens of all rewards: for evaluation and use."""
    tokens = ",".join(token(place) for place in range(1, len(rewards) + 1))
    return [replace(prompt, text=f"{tokens} {prompt.text}") for prompt in prompts]


def token(place: int) -> str:
    """The token of a reward, counted from 1."""
    return f"<reward {place}>"
