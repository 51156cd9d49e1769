"""Where the answer of a completion begins, behind its thought."""

from __future__ import annotations

from typing import Any

OPENING = "<answer>"


def answer_start(text: str) -> int:
    """The place behind the last ``<answer>`` after the thought, or behind the thought; -1 where there is neither."""
    thought = text.rfind("</think>")
    behind = thought + len("</think>") if thought >= 0 else 0
    opening = text.rfind(OPENING, behind)
    if opening >= 0:
        return opening + len(OPENING)
    return behind if thought >= 0 else -1


def reference_text(answer: Any, prompt_id: str, reader: str) -> str:
    """A reference answer as text; of several accepted ones the first."""
    one = answer[0] if isinstance(answer, list | tuple) and answer else answer
    text = str(one).strip() if isinstance(one, str | int | float) and not isinstance(one, bool) else ""
    if not text:
        raise ValueError(
            f"prompt '{prompt_id}': got answer {answer!r:.200}, expected a text or number, whose likelihood {reader} "
            "is; add the column answer"
        )
    return text
