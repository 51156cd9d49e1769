"""Words of a thought: those that connect its steps, and the thing that it must name (Fact-R1, arXiv:2505.16836).

The reward of Fact-R1 for a video with a false claim is 0.7 answer + 0.1 form + 0.1 words + 0.1 entity, for a true one
0.8 answer + 0.1 form + 0.1 words: ``[task(weight=0.7), format(style='think_answer_loose', weight=0.1),
reasoning_words(weight=0.1), entity_named(weight=0.1)]``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.rules.parsing import malformed, texts, words
from reward_models.rules.tasks import task

CONNECTIVES = (
    *("however", "in conclusion", "therefore", "thus", "as a result", "consequently", "first", "second", "finally"),
    *("in summary", "on the other hand", "moreover", "furthermore", "additionally"),
)
"""The words that Fact-R1 counts."""

_CONNECTIVE = re.compile(rf"\b(?:{'|'.join(CONNECTIVES)})\b")


@reward("Text")
def reasoning_words(prompts: Sequence[Prompt], outputs: Sequence[Output], enough: int = 2) -> list[float]:
    """min(1, ``CONNECTIVES`` in the completion / ``enough``); whole words, which "enthusiastic" is not one of."""
    if enough < 1:
        raise ValueError(f"enough: got {enough}, expected a number of at least 1")
    counts = [len(_CONNECTIVE.findall(text.text.casefold())) for text in texts(outputs, "reasoning_words")]
    return [min(1.0, count / enough) for count in counts]


@reward("Text", reads=("answer", "meta.entity"), version=2)
def entity_named(prompts: Sequence[Prompt], outputs: Sequence[Output], tags: bool | str = True) -> list[float]:
    """1 where the completion names ``meta.entity``, e.g. the forged place; of a row without one, the value of its task.

    The paper asks a language model whether the thought describes the entity; here its words must occur.
    """
    values = []
    for prompt, text in zip(prompts, texts(outputs, "entity_named"), strict=True):
        entity = prompt.meta.get("entity", "")
        if not isinstance(entity, str):
            malformed(prompt, "a text", "meta.entity")
        if words(entity):
            values.append(float(re.search(rf"(?<!\w){re.escape(words(entity))}(?!\w)", words(text.text)) is not None))
        else:
            values += task([prompt], [text], tags)
    return values
