"""Format rewards: 1 where a completion has the form of a named style, otherwise 0.

Each style is the exact check of a public repository, under a name that says what it checks. They differ in what they
let through; the default, ``think_answer`` (R1-Track), excludes nested and repeated tags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from mmgrpo.config.names import nearest
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt, Text
from reward_models.rules.parsing import PLACES, answer_of, gold_text, literal, malformed, meta_number, numbers, texts

Check = Callable[[str, Prompt], bool]

_TURN = r"</think>\s*<answer>"
"""Where a thought ends and an answer begins."""
_NO_THINK = r"(?:(?!</?think>).)*"
_NO_ANSWER = r"(?:(?!</?answer>).)*"
_NO_TAG = r"(?:(?!</?think>|</?answer>).)*"
_BOX = r"\[\d+,\s*\d+,\s*\d+,\s*\d+\]"


@reward("Text")
def format(prompts: Sequence[Prompt], outputs: Sequence[Output], style: str = "think_answer") -> list[float]:
    """1 where the completion has the form of ``style``, one of ``STYLES``, otherwise 0.

    A thought that the chat template has opened at the end of the prompt belongs to the completion. One that it has
    closed again, as without thinking, may belong to it or not: ``answer`` asks for none, ``think_answer`` for one.
    """
    if style not in STYLES:
        raise ValueError(f"format: unknown style '{style}'.{nearest(style, STYLES)}")
    check = STYLES[style]
    rows = zip(prompts, texts(outputs, "format"), strict=True)
    return [float(any(check(form, prompt) for form in _forms(text))) for prompt, text in rows]


@reward("Text", range=(-1, 1), reads=("answer",), source="RM-R1, arXiv:2505.02387")
def strict_verdict(prompts: Sequence[Prompt], outputs: Sequence[Output], window: int = 80) -> list[float]:
    """1 if the last ``window`` characters hold the row's verdict in its tag, ``<answer>[[A]]</answer>`` or ``[[B]]``,
    and not the other one, else -1: judges that are trained by RM-R1 (arXiv:2505.02387), without a reward of form."""
    values = []
    for prompt, text in zip(prompts, texts(outputs, "strict_verdict"), strict=True):
        gold = gold_text(prompt).strip("[]")
        if gold not in ("A", "B"):
            malformed(prompt, "A or B")
        right, wrong = (
            f"<answer>[[{name}]]</answer>" in text.text[-window:] for name in (gold, "B" if gold == "A" else "A")
        )
        values.append(1.0 if right and not wrong else -1.0)
    return values


def _forms(text: Text) -> list[str]:
    """A completion with what the template has prefilled; also without, where that is a thought already closed."""
    return [text.whole, text.text] if "</think>" in text.prefilled else [text.whole]


def in_order(text: str, *patterns: str) -> bool:
    """Whether matches of the patterns follow each other, as in ``a.*b.*c``, but without backtracking."""
    position = 0
    for pattern in patterns:
        match = re.compile(pattern, re.DOTALL).search(text, position)
        if match is None:
            return False
        position = match.end()
    return True


def enclosed_text(text: str, first: str, *between: str, last: str) -> str | None:
    """What stands before ``last`` at the end of a text that begins with ``first``, behind the first matches of the
    patterns ``between`` in their order; None where one of them is missing.

    As the group of a match of ``first.*?a.*?b(.*?)last`` with the whole text, but in linear time: the earliest matches
    leave the most room, so no others need be tried.
    """
    place = len(first)
    if not text.startswith(first):
        return None
    for pattern in between:
        match = re.compile(pattern).search(text, place)
        if match is None:
            return None
        place = match.end()
    end = len(text) - len(last)
    return text[place:end] if end >= place and text.endswith(last) else None


def _whole(pattern: str) -> Check:
    compiled = re.compile(pattern, re.DOTALL)
    return lambda text, prompt: compiled.fullmatch(text) is not None


def _start(pattern: str, flags: re.RegexFlag = re.DOTALL) -> Check:
    compiled = re.compile(pattern, flags)
    return lambda text, prompt: compiled.match(text) is not None


def _encloses(first: str, *between: str, last: str) -> Check:
    return lambda text, prompt: enclosed_text(text, first, *between, last=last) is not None


def _loose(text: str, prompt: Prompt) -> bool:
    return enclosed_text(text, "<think>", _TURN, last="</answer>") is not None


def _prefix(text: str, prompt: Prompt) -> bool:
    return text.startswith("<think>") and in_order(text, "<think>", _TURN, "</answer>")


def _single_pair(text: str, prompt: Prompt) -> bool:
    once = text.count("<think>") <= 1 and text.count("<answer>") <= 1
    plain = text[: len(text.replace("!", " ").rstrip())]
    return once and _loose(plain[max(0, plain.find("<think>")) :], prompt)


def _one_of_each(text: str, prompt: Prompt) -> bool:
    tags = ("<think>", "</think>", "<answer>", "</answer>")
    return text.startswith(tags[0]) and text.endswith(tags[3]) and all(text.count(tag) == 1 for tag in tags)


def _has_box(text: str, prompt: Prompt) -> bool:
    joined = re.sub(r"(?<!\s)\s+(?=[<>/])", "", re.sub(r"([<>/])\s+", r"\1", text))
    return joined.startswith("<think>") and in_order(joined, "<think>", "</think>", r"\\boxed\{", r"\}")


def _box(text: str, prompt: Prompt) -> bool:
    return in_order(text, "<think>", _TURN, r"\{", _BOX, r"\}", "</answer>")


def _glue(text: str, prompt: Prompt) -> bool:
    content = enclosed_text(text.strip(), "<think>", _TURN, r"</answer>\s*<glue>", last="</glue>")
    spans = None if content is None else literal(content)
    if not isinstance(spans, list | tuple):
        return False
    pairs = [numbers(span, 2) for span in spans]
    return all(pair is not None and pair[0] <= pair[1] for pair in pairs)


def _tracking(text: str, prompt: Prompt) -> bool:
    boxes = literal(_content(text))
    frames = meta_number(prompt, "frames", 8)
    return isinstance(boxes, list) and len(boxes) == frames and all(numbers(box, 4) is not None for box in boxes)


def _span_json(text: str, prompt: Prompt) -> bool:
    span = literal(_content(text))
    return isinstance(span, dict) and {"start_time", "end_time"} <= span.keys()


def _boxes_json(text: str, prompt: Prompt) -> bool:
    boxes = literal(text)
    valid = isinstance(boxes, list) and all(isinstance(b, dict) and numbers(b.get("bbox_2d"), 4) for b in boxes)
    return valid != (prompt.answer == [])


def _actions(text: str, prompt: Prompt) -> bool:
    actions = literal(_content(text))
    return isinstance(actions, list) and bool(actions) and all(_action(action) for action in actions)


def _action(action: object) -> bool:
    if not isinstance(action, dict):
        return False
    kind, point, input_text = action.get("action"), action.get("point", ()), action.get("input_text")
    if not isinstance(kind, str) or not isinstance(input_text, str):
        return False
    if numbers(point, 2) is None or not all(isinstance(coordinate, int) for coordinate in point):
        return False
    if kind in ("type", "select", "open_app"):
        return bool(input_text.strip())
    return kind != "scroll" or input_text in ("left", "right", "up", "down")


def _output(text: str, prompt: Prompt) -> bool:
    return in_order(text, "<think>", "</think>") and isinstance(literal(PLACES["output"](text)), dict | list)


def _content(text: str) -> str:
    """The answer of a completion that consists of a thought and an answer; "" for any other."""
    return "" if enclosed_text(text, "<think>", _TURN, last="</answer>") is None else answer_of(text)


STYLES: Mapping[str, Check] = {
    # One thought, then one answer; nothing before or after, no tag repeated inside its own kind (R1-Track).
    "think_answer": _whole(rf"<think>{_NO_THINK}</think>{_NO_TAG}<answer>{_NO_ANSWER}</answer>"),
    # No tag inside another, only white space between and around thought and answer. Ours.
    "think_answer_strict": _whole(rf"\s*<think>{_NO_TAG}</think>\s*<answer>{_NO_TAG}</answer>\s*"),
    # Starts with a thought, ends with an answer; more tags may stand between (R1-V, VLM-R1, Video-R1, EasyR1, ...).
    "think_answer_loose": _loose,
    # As loose, with white space allowed around it (OneThinker).
    "think_answer_stripped": lambda text, prompt: _loose(text.strip(), prompt),
    # As loose, followed by anything (UnifiedReward-Think).
    "think_answer_prefix": _prefix,
    # As loose, with nothing after it (ms-swift).
    "think_answer_end": _loose,
    # Preceded by anything, followed by exclamation marks at most, no second opening tag (TW-GRPO).
    "think_answer_once": _single_pair,
    # Starts with <think>, ends with </answer>, each tag exactly once, anything between (R1-Reward).
    "think_answer_counted": _one_of_each,
    # A thought; whatever follows is the answer (TRL).
    "think": _start(r"^<think>(?!.*<think>)(.*?)</think>.*$", re.DOTALL | re.MULTILINE),
    # An answer and nothing else: no thinking (No-Thinking-RL, GUI-G1). Ours is strict.
    "answer": _whole(rf"\s*<answer>{_NO_TAG}</answer>\s*"),
    # A thought, then \boxed{}; spaces around <, > and / are ignored (EasyR1, verl).
    "boxed": _has_box,
    # Thought and answer; in the answer, inside braces, four whole numbers in brackets (VLM-R1).
    "box": _box,
    # Thought and an answer of digits only (CrowdVLM-R1).
    "count": _whole(r"<think>.*?</think>\s*<answer>(\d+)</answer>"),
    # Thought, answer, and <glue> with a list of (start, end), start <= end (VideoChat-R1).
    "glue": _glue,
    # Thought and an answer that is a list of meta.frames boxes, 8 by default (VideoChat-R1).
    "tracking": _tracking,
    # Thought and an answer of JSON with start_time and end_time (Temporal-R1).
    "span_json": _span_json,
    # JSON list of objects with a bbox_2d of four numbers; negated where the gold answer is [] (Griffon Vision-R1).
    "boxes_json": _boxes_json,
    # Thought and an answer that is a list of actions with point and input_text (GUI-R1).
    "actions": _actions,
    # Thought, which may be empty, and an action (TON).
    "think_action": _encloses("<think>", r"</think>\s*<action>", last="</action>"),
    # A thought and JSON in <output>, anywhere (VLA-R1).
    "think_output": _output,
    # <class>label</class> somewhere (TimeMaster).
    "class": lambda text, prompt: re.search(r"<class>\s*[^<\s][^<]*</class>", text) is not None,
}
"""Name to a check of a completion and its prompt."""
