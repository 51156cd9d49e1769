"""MagicMirror's assessor of artifacts (arXiv:2509.10260) as a judge, and its judge of consistency.

    magic_assessor(judge="vlm(model='wj-inf/MagicAssessor-7B')")

The assessor, a Qwen2.5-VL-7B, thinks and then labels an image (``rules/artifact_labels.py``). The question is worded
here; the paper's own template, which the model was trained with, may be given as ``question``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt, Text
from reward_models.judges.named import judge_named
from reward_models.judges.pointwise import image_parts
from reward_models.judges.question import Question, ask
from reward_models.judges.unified import template
from reward_models.judges.verdicts import number_after
from reward_models.rules.artifact_labels import KINDS, boxed_labels

magic_assessor_reward = functools.partial(
    reward, source="MagicMirror, arXiv:2509.10260", check="reward_models.judges.named:check_judge"
)

LISTED = "\n".join(
    f'- "L2: {kind}"' + (": " + ", ".join(f'"L3: {name}"' for name in names) if names else "")
    for kind, names in KINDS.items()
)
FORM = (
    "Think first, inside of <think></think>. Then give the labels as \\boxed{...} around an object: "
    '{"Whether Normal": true} for a picture without artifacts, else {"Whether Normal": false, "Type of Deformity": '
    '{"<L2 label>": ["<L3 label>", ...]}}, with true in place of the list for an L2 label that has none below it.'
)
QUESTION = (
    "This picture was generated for the prompt: {prompt}\nDoes it contain artifacts: anything deformed, impossible or "
    f"inconsistent that the prompt did not ask for? The labels are:\n{LISTED}\n{FORM}"
)
AGREES = (
    "An assessor of pictures first thought, and then gave labels. Do the labels follow from the thought, with none "
    "that it denies and none missing that it claims?\nThought and labels:\n{answer}\nEnd with one line:\nScore: <1 for "
    "yes, 0 for no>"
)


@magic_assessor_reward("Image", scale="1 for no artifact", reads=("text",))
def magic_assessor(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    label: str = "",
    question: str = "",
    tokens: int = 2048,
    device: str = "cpu",
) -> list[float]:
    """1 for an image that the assessor finds normal and 0 for one with artifacts; with ``label``, one of the second
    level (e.g. "Abnormal Human Anatomy"), 0 only for that one. ``magic_bench`` of the values is MagicBench's score.

    NaN for an answer whose labels cannot be read, and for an image that is not finite.
    """
    kind = label.removeprefix("L2: ")
    if label and kind not in KINDS:
        raise ValueError(f"magic_assessor: label: got {label!r}, expected one of {', '.join(KINDS)}")

    def read(text: str | None) -> float | None:
        labels = boxed_labels((text or "").strip())
        return None if labels is None else float(kind not in labels[1] if label else labels[0])

    form = template(question, QUESTION, "magic_assessor")
    questions = []
    for prompt, output in zip(prompts, outputs, strict=True):
        parts = image_parts(output, "magic_assessor")
        questions.append(parts and Question((*parts[1:], form.replace("{prompt}", prompt.text))))
    return ask(judge_named(judge, device), questions, read, tokens, FORM)


@magic_assessor_reward("Text", scale="yes or no")
def thought_agrees(
    prompts: Sequence[Prompt], outputs: Sequence[Output], judge: str, tokens: int = 256, device: str = "cpu"
) -> list[float]:
    """1 where a judge finds that the labels of a completion follow from its thought, and 0 elsewhere: r_c of
    MagicMirror's equation 3, which multiplies the reward ``artifact_labels``:

        transform: gate(by='thought_agrees', least=1, floor=0, of='artifact_labels')

    A completion without readable labels is 0 and not asked about: its reward is 0 anyway.
    """
    questions: list[Question | None] = []
    for output in outputs:
        if not isinstance(output, Text):
            raise TypeError(f"thought_agrees: got an output of kind {type(output).__name__}, expected a Text")
        readable = boxed_labels(output.whole) is not None
        questions.append(Question((AGREES.replace("{answer}", output.text),)) if readable else None)

    def read(text: str | None) -> float | None:
        value = number_after(text, "Score", 0, 1)
        return value if value in (0, 1) else None

    values = ask(judge_named(judge, device), questions, read, tokens, "End with one line:\nScore: <1 or 0>")
    return [0.0 if question is None else value for question, value in zip(questions, values, strict=True)]
