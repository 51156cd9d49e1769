"""Reasoning written in numbered steps: the two rewards of R1-VL (arXiv:2503.12937)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mmgrpo.types import Output, Prompt
from reward_models.rules.reading import malformed
from reward_models.rules.tags import final_answer_of, texts

PARTS = ("### Image Description:", "### Rationales:", "### Step 1:", "### The final answer is:")

_STEP = re.compile(r"### Step (\d+):")


def key_steps(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Share of the key steps in ``meta.key_steps`` that the numbered steps of a completion mention, in [0, 1].

    ``key_steps`` is a list of lists of ways to say it; one way is enough, whatever the case. A completion without a
    final answer gets 0. StepRAR is 1 for a right answer plus 0.1 times this share:
    ``task(tags='final_answer')`` and ``key_steps(weight=0.1)``. The released code adds the share without an answer too.
    """
    rows = zip(prompts, texts(outputs, "key_steps"), strict=True)
    shares = [(mentioned(text.text, _gold(prompt)), final_answer_of(text.text)) for prompt, text in rows]
    return [share if answer else 0.0 for share, answer in shares]


def step_order(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if description, rationales, steps 1, 2, 3, ... in order, and last a final answer are there (StepRVR)."""
    return [float(in_steps(text.text)) for text in texts(outputs, "step_order")]


def mentioned(text: str, groups: Sequence[Sequence[str]]) -> float:
    """Share of the groups of which any string stands in a block "### Step n: ..."."""
    blocks = [block for block in re.split(r"(?=###)", text) if _STEP.match(block)]
    steps = "\n".join(blocks).casefold()
    return sum(any(way.casefold() in steps for way in group) for group in groups) / len(groups)


def in_steps(text: str) -> bool:
    """Are all parts there, the steps numbered from 1 without a gap, and the final answer after them?"""
    if not all(part in text for part in PARTS):
        return False
    steps = list(_STEP.finditer(text))
    counted = [int(step[1]) for step in steps] == list(range(1, len(steps) + 1))
    return counted and text.rindex("###") == text.rindex(PARTS[-1])


def _gold(prompt: Prompt) -> list[list[str]]:
    groups = prompt.meta.get("key_steps")
    fine = isinstance(groups, list | tuple) and len(groups) > 0
    if not fine or not all(
        isinstance(g, list | tuple) and g and all(isinstance(w, str) and w for w in g) for g in groups or ()
    ):
        malformed(prompt, "a list of lists of ways to say a step, none of them empty", "meta.key_steps")
    return [list(group) for group in groups or ()]
