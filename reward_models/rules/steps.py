"""Rewards of reasoning in numbered steps: those of StepGRPO, R1-VL (arXiv:2503.12937)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.rules.parsing import final_answer_of, malformed, texts

PARTS = ("### Image Description:", "### Rationales:", "### Step 1:", "### The final answer is:")

_STEP = re.compile(r"### Step (\d+):")


@reward("Text", reads=("meta.key_steps",))
def key_steps(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Fraction of the key steps in ``meta.key_steps`` that the numbered steps of a completion mention, in [0, 1].

    ``key_steps`` is a list of lists of alternative phrases; one phrase suffices, whatever its case. A completion
    without a final answer gets 0. StepRAR is [correct answer] + 0.1 * this fraction, ``task(tags='final_answer')`` and
    ``key_steps(weight=0.1)``; the released code adds the fraction where there is no answer too.
    """
    rows = zip(prompts, texts(outputs, "key_steps"), strict=True)
    fractions = [(key_step_fraction(text.text, _gold(prompt)), final_answer_of(text.text)) for prompt, text in rows]
    return [fraction if answer else 0.0 for fraction, answer in fractions]


@reward("Text")
def step_order(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 for an image description, rationales, steps 1, 2, 3, ... in order and a final answer at the end (StepRVR)."""
    return [float(is_complete(text.text)) for text in texts(outputs, "step_order")]


def key_step_fraction(text: str, groups: Sequence[Sequence[str]]) -> float:
    """Fraction of the groups of which any phrase occurs in a block "### Step n: ..."."""
    blocks = [block for block in re.split(r"(?=###)", text) if _STEP.match(block)]
    steps = "\n".join(blocks).casefold()
    return sum(any(phrase.casefold() in steps for phrase in group) for group in groups) / len(groups)


def is_complete(text: str) -> bool:
    """Whether all parts are there, steps are numbered 1, 2, 3, ... and the final answer comes last."""
    if not all(part in text for part in PARTS):
        return False
    steps = list(_STEP.finditer(text))
    counted = [int(step[1]) for step in steps] == list(range(1, len(steps) + 1))
    return counted and text.rindex("###") == text.rindex(PARTS[-1])


def _gold(prompt: Prompt) -> list[list[str]]:
    groups = prompt.meta.get("key_steps")
    valid = isinstance(groups, list | tuple) and all(
        isinstance(g, list | tuple) and g and all(isinstance(w, str) and w for w in g) for g in groups
    )
    if not groups or not valid:
        malformed(prompt, "a list of non-empty lists of phrases", "meta.key_steps")
    return [list(group) for group in groups]
