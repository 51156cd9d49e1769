"""A choice among tools, judged by what a frozen model answers with their outputs and without them (VisTA,
arXiv:2505.20289).

    {"text": "How many bars are red?", "images": ["chart.png"], "answer": "3",
     "tool_outputs": {"captioner": "a bar chart", "table": "red | 3"}}

The policy writes the names of tools in ``<answer>``, with commas; what the tools say of each row was computed
beforehand, so nothing runs while the policy is trained but the frozen model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt, Text
from reward_models.judges.named import judge_named
from reward_models.judges.question import Question, check_source, readings, sources_of
from reward_models.rules.answers import exact
from reward_models.rules.parsing import answer_of, answer_or_whole, gold_texts, malformed, texts

FORM = "Answer the question. Write the answer alone, between <answer> and </answer>."


def check_row(prompt: Prompt, **_: object) -> None:
    """ValueError for a row without a question, an answer, or texts that its tools gave."""
    check_source(prompt)
    gold_texts(prompt)
    said = prompt.meta.get("tool_outputs")
    if not isinstance(said, Mapping) or not said or not all(isinstance(text, str) for text in [*said, *said.values()]):
        malformed(prompt, "texts by the names of tools", "meta.tool_outputs")


@reward(
    "Text",
    range=(-math.inf, math.inf),
    reads=("text", "media", "answer", "meta.tool_outputs"),
    source="VisTA, arXiv:2505.20289",
    check="reward_models.judges.named:check_judge",
    row="reward_models.judges.tool_choice:check_row",
)
def tool_choice(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    both: float = 1.0,
    gained: float = 1.0,
    lost: float = -0.5,
    neither: float = 0.0,
    tokens: int = 256,
    device: str = "cpu",
) -> list[float]:
    """What a frozen model, the ``judge``, makes of the chosen tools' outputs: ``gained`` where it is right with them
    alone, ``lost`` where it was right without them, ``both`` and ``neither``; NaN where it gives no answer.

    Names that no tool of the row has choose nothing. With no tool, or a judge that ignores them, all samples of a
    group are worth the same, and nothing is learned. Groups of 4 in the paper.
    """
    chosen = [
        [name for name in prompt.meta["tool_outputs"] if name in tool_names(text.text)]
        for prompt, text in zip(prompts, texts(outputs, "tool_choice"), strict=True)
    ]
    media, model = sources_of(prompts, outputs), judge_named(judge, device)
    right = []
    for used in (chosen, [[] for _ in prompts]):
        questions = [
            None if shown is None else Question((*shown, _with_tools(prompt, names)))
            for prompt, shown, names in zip(prompts, media, used, strict=True)
        ]
        said = readings(model, questions, _answer, tokens, FORM)
        right.append(
            [None if a is None else exact(a, prompt, Text(a)) for prompt, a in zip(prompts, said, strict=True)]
        )
    values = {(1.0, 1.0): both, (1.0, 0.0): gained, (0.0, 1.0): lost, (0.0, 0.0): neither}
    return [values.get(pair, math.nan) for pair in zip(*right, strict=True)]


def _with_tools(prompt: Prompt, names: Sequence[str]) -> str:
    """The question of a row, after what these tools say of it."""
    said = "".join(f"{name}: {prompt.meta['tool_outputs'][name]}\n" for name in names)
    return f"{said}{prompt.text}\n{FORM}"


def _answer(text: str | None) -> str | None:
    return answer_of(text or "") or None


def tool_names(completion: str) -> set[str]:
    """The names in the last ``<answer>``, or in the whole completion, separated by commas."""
    return {name.strip() for name in answer_or_whole(completion).split(",")}
