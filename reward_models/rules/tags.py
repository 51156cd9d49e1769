"""Does a completion have the form that was asked for? 1 or 0, by named styles.

Each style is the check of a public repository, exactly, under a name that says what it checks. They differ in
what slips through; ``think_answer`` (R1-Track) is the one that lets nothing through and the default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from mmgrpo.registry import nearest
from mmgrpo.types import Output, Prompt, Text
from reward_models.rules.reading import literal, meta_number, numbers

Check = Callable[[str, Prompt], bool]

THOUGHT_THEN_ANSWER = r"<think>.*?</think>\s*<answer>.*?</answer>"

_NO_THINK = r"(?:(?!</?think>).)*"
_NO_ANSWER = r"(?:(?!</?answer>).)*"
_NO_TAG = r"(?:(?!</?think>|</?answer>).)*"
_ANSWER = re.compile(rf"<answer>({_NO_ANSWER})</answer>", re.DOTALL)
_FINAL_ANSWER = re.compile(r"### The final answer is:\s*(?!#)(.*)")
_BOX = r"\[\d+,\s*\d+,\s*\d+,\s*\d+\]"


def answer_of(completion: str) -> str:
    """What stands in the last ``<answer>`` after the thought, without spaces around it; "" where there is none.

    Sources differ: VLM-R1 takes the first answer for boxes and the last for detection, Time-R1 and VideoChat-R1 the
    last. A model that corrects itself means the last; what looks like an answer inside the thought is not one.
    """
    found = _ANSWER.findall(completion.rpartition("</think>")[2])
    return found[-1].strip() if found else ""


def final_answer_of(completion: str) -> str:
    """The line that follows the last heading "### The final answer is:"; "" where there is none.

    The output format of R1-VL (arXiv:2503.12937). Its released code reads the first such heading; a completion of the
    required form has exactly one.
    """
    lines = _FINAL_ANSWER.findall(completion)
    return lines[-1].strip() if lines else ""


def format(prompts: Sequence[Prompt], outputs: Sequence[Output], style: str = "think_answer") -> list[float]:
    """1 where the completion has the form of ``style``, otherwise 0; the styles are the names of ``STYLES``."""
    if style not in STYLES:
        raise ValueError(f"format: there is no style '{style}'.{nearest(style, STYLES)}")
    check = STYLES[style]
    return [float(check(text.text, prompt)) for prompt, text in zip(prompts, texts(outputs, "format"), strict=True)]


def texts(outputs: Sequence[Output], reward: str) -> list[Text]:
    """The outputs, all of which must be texts; ``reward`` is who asks."""
    for output in outputs:
        if not isinstance(output, Text):
            raise TypeError(f"'{reward}' scores texts, but an output is of kind {type(output).__name__}")
    return [output for output in outputs if isinstance(output, Text)]


def in_order(text: str, *patterns: str) -> bool:
    """Do matches of the patterns follow each other in the text? As ``a.*b.*c`` would say, without backtracking."""
    place = 0
    for pattern in patterns:
        found = re.compile(pattern, re.DOTALL).search(text, place)
        if found is None:
            return False
        place = found.end()
    return True


def _whole(pattern: str) -> Check:
    compiled = re.compile(pattern, re.DOTALL)
    return lambda text, prompt: compiled.fullmatch(text) is not None


def _start(pattern: str, flags: re.RegexFlag = re.DOTALL) -> Check:
    compiled = re.compile(pattern, flags)
    return lambda text, prompt: compiled.match(text) is not None


def _single_pair(text: str, prompt: Prompt) -> bool:
    once = text.count("<think>") <= 1 and text.count("<answer>") <= 1
    return once and re.search(THOUGHT_THEN_ANSWER + r"[\s!]*$", text, re.DOTALL) is not None


def _one_of_each(text: str, prompt: Prompt) -> bool:
    tags = ("<think>", "</think>", "<answer>", "</answer>")
    return text.startswith(tags[0]) and text.endswith(tags[3]) and all(text.count(tag) == 1 for tag in tags)


def _boxed(text: str, prompt: Prompt) -> bool:
    joined = re.sub(r"\s*([<>/])\s*", r"\1", text)
    return joined.startswith("<think>") and in_order(joined, "<think>", "</think>", r"\\boxed\{", r"\}")


def _box(text: str, prompt: Prompt) -> bool:
    return in_order(text, r"<think>.*?</think>\s*<answer>", r"\{", _BOX, r"\}", "</answer>")


def _glue(text: str, prompt: Prompt) -> bool:
    found = re.fullmatch(THOUGHT_THEN_ANSWER + r"\s*<glue>(.*?)</glue>", text.strip(), re.DOTALL)
    spans = literal(found[1]) if found else None
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
    read = isinstance(boxes, list) and all(isinstance(b, dict) and numbers(b.get("bbox_2d"), 4) for b in boxes)
    return read != (prompt.answer == [])


def _actions(text: str, prompt: Prompt) -> bool:
    actions = literal(_content(text))
    return isinstance(actions, list) and len(actions) > 0 and all(_action(action) for action in actions)


def _action(action: object) -> bool:
    if not isinstance(action, dict):
        return False
    kind, point, typed = (action.get(key) for key in ("action", "point", "input_text"))
    if not isinstance(kind, str) or not isinstance(typed, str):
        return False
    if not isinstance(point, list | tuple) or numbers(point, 2) is None or not all(isinstance(x, int) for x in point):
        return False
    if kind in ("type", "select", "open_app"):
        return bool(typed.strip())
    return kind != "scroll" or typed in ("left", "right", "up", "down")


def _content(text: str) -> str:
    """The answer of a completion that is a thought and an answer; "" of any other."""
    return answer_of(text) if re.fullmatch(THOUGHT_THEN_ANSWER, text, re.DOTALL) else ""


STYLES: Mapping[str, Check] = {
    # One thought, then one answer; nothing before or after, and neither inside itself (R1-Track).
    "think_answer": _whole(rf"<think>{_NO_THINK}</think>{_NO_TAG}<answer>{_NO_ANSWER}</answer>"),
    # No tag inside another, white space only between and around thought and answer. Ours.
    "think_answer_strict": _whole(rf"\s*<think>{_NO_TAG}</think>\s*<answer>{_NO_TAG}</answer>\s*"),
    # Starts with a thought, ends with an answer; further tags may hide between (R1-V, VLM-R1, Video-R1, EasyR1, ...).
    "think_answer_loose": _whole(THOUGHT_THEN_ANSWER),
    # As loose, and white space around it is allowed (OneThinker).
    "think_answer_stripped": _whole(rf"\s*{THOUGHT_THEN_ANSWER}\s*"),
    # As loose, and anything may follow (UnifiedReward-Think).
    "think_answer_prefix": _start(THOUGHT_THEN_ANSWER),
    # As loose, ends exactly there (ms-swift).
    "think_answer_end": _start(THOUGHT_THEN_ANSWER + r"(?![\s\S])", re.DOTALL | re.MULTILINE),
    # Anything may precede it, exclamation marks may follow, no second opening tag (TW-GRPO).
    "think_answer_once": _single_pair,
    # Starts with <think>, ends with </answer>, each tag exactly once, anything between (R1-Reward).
    "think_answer_counted": _one_of_each,
    # A thought, then whatever follows is the answer (TRL).
    "think": _start(r"^<think>(?!.*<think>)(.*?)</think>.*$", re.DOTALL | re.MULTILINE),
    # An answer and nothing else: no thinking (No-Thinking-RL, GUI-G1). Ours is strict.
    "answer": _whole(rf"\s*<answer>{_NO_TAG}</answer>\s*"),
    # A thought, then \boxed{}; spaces around <, > and / do not count (EasyR1, verl).
    "boxed": _boxed,
    # Thought and answer; in the answer four whole numbers in brackets, in braces (VLM-R1).
    "box": _box,
    # Thought, and an answer of digits only (CrowdVLM-R1).
    "count": _whole(r"<think>.*?</think>\s*<answer>(\d+)</answer>"),
    # Thought, answer, and <glue> with a list of (start, end), start <= end (VideoChat-R1).
    "glue": _glue,
    # Thought, and an answer that is a list of as many boxes as meta.frames says, 8 otherwise (VideoChat-R1).
    "tracking": _tracking,
    # Thought, and an answer of JSON with start_time and end_time (Temporal-R1).
    "span_json": _span_json,
    # JSON of objects each with a bbox_2d of four; the other way round where the gold answer is [] (Griffon Vision-R1).
    "boxes_json": _boxes_json,
    # Thought, and an answer that is a list of actions with point and input_text (GUI-R1).
    "actions": _actions,
    # Thought, perhaps an empty one, and an action (TON).
    "think_action": _whole(r"<think>.*?</think>\s*<action>.*?</action>"),
    # <class>label</class> somewhere (TimeMaster).
    "class": lambda text, prompt: re.search(r"<class>\s*[^<\s][^<]*</class>", text) is not None,
}
"""Name to check of a completion and its prompt."""
