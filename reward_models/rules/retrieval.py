"""Steps of retrieval, each a completion of its own: which retriever is asked what, and what is answered at last
(R1-Router, arXiv:2505.22095).

    {"text": "<question and the steps before>", "sub_question": "Who built the bridge?", "retriever": "Text Retriever"}
    {"text": "<question and the steps before>", "answer": "Gustave Eiffel"}

A completion asks ``<sub-question>...</sub-question>`` and ``<ret>...</ret>``, or answers in ``<answer>...</answer>``.
Rows are single steps of traces, as its released training data is, so a group has one beginning.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.rules.parsing import answer_or_whole, gold_text, malformed, texts
from reward_models.rules.relevance import embed_texts, tokens

SHORT = 5
"""Words of a gold answer up to which it must be whole."""
_QUESTION = re.compile(r"<sub-question>(.*?)</sub-question>", re.DOTALL)
_RETRIEVER = re.compile(r"<ret>(.*?)</ret>", re.DOTALL)


def check_row(prompt: Prompt, **_: object) -> None:
    """ValueError for a row that is neither a step of retrieval nor an answer."""
    if "retriever" not in prompt.meta:
        gold_text(prompt)
        return
    for key in ("retriever", "sub_question"):
        if not isinstance(prompt.meta.get(key), str) or not prompt.meta[key].strip():
            malformed(prompt, "a non-empty text", f"meta.{key}")


@reward(
    "Text",
    reads=("answer", "meta.sub_question", "meta.retriever"),
    row="reward_models.rules.retrieval:check_row",
    source="R1-Router, arXiv:2505.22095",
)
def routed_step(prompts: Sequence[Prompt], outputs: Sequence[Output], embed: str, device: str = "cpu") -> list[float]:
    """Of a row with a ``retriever``: half the cosine of the sub-question with the row's, and .5 if just this retriever
    is asked; of others the share of the gold answer's words that the answer has, which a gold answer of at most five
    words must have all. ``embed`` is a function ``module:function`` of a list of texts and ``device`` to vectors
    [N, width] (BGE-M3 in the paper's code).
    """
    written = [text.text for text in texts(outputs, "routed_step")]
    asking = [row for row, prompt in enumerate(prompts) if "retriever" in prompt.meta]
    queries = {row: question for row in asking if (question := _last(_QUESTION, written[row]))}
    similar = dict.fromkeys(asking, 0.0) | dict(zip(queries, _cosines(prompts, queries, embed, device), strict=True))
    values = []
    for row, (prompt, text) in enumerate(zip(prompts, written, strict=True)):
        check_row(prompt)
        if row in similar:
            chosen = [name.strip() for name in _RETRIEVER.findall(text)]
            values.append(0.5 * similar[row] + 0.5 * (chosen == [str(prompt.meta["retriever"]).strip()]))
        else:
            values.append(recall(answer_or_whole(text), gold_text(prompt)))
    return values


def recall(answer: str, gold: str) -> float:
    """The share of the gold answer's words, each as often as it stands there, in the answer; below 1 it is 0 for a gold
    answer of at most ``SHORT`` words."""
    wanted, there = (Counter(tokens(text.lower())) for text in (gold, answer))
    share = (wanted & there).total() / wanted.total()
    return share if wanted.total() > SHORT else float(share == 1)


def _last(pattern: re.Pattern[str], text: str) -> str:
    matches = pattern.findall(text)
    return matches[-1].strip() if matches else ""


def _cosines(prompts: Sequence[Prompt], questions: dict[int, str], embed: str, device: str) -> list[float]:
    """The cosine of each question that was asked with that of its row, none below 0."""
    if not questions:
        return []
    pairs = [*questions.values(), *(str(prompts[row].meta["sub_question"]) for row in questions)]
    vectors = embed_texts(pairs, embed, device, "routed_step")
    norm = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (norm > 0).all():
        raise ValueError(f"routed_step: embed '{embed}': got a vector of norm 0, which has no cosine")
    first, second = np.split(vectors / norm, 2)
    return (first * second).sum(1).clip(0.0, 1.0).tolist()
