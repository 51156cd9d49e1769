"""No text keeps a reward busy: every reward and reader of texts takes a time that grows with the length alone."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from mmgrpo.policies.tool_calls import calls_of
from mmgrpo.rewards import scorer
from mmgrpo.scoring.manifest import Manifest, obstacle
from mmgrpo.types import Prompt, Text
from reward_models import REWARDS
from reward_models.judges.verdicts import flex_verdict, json_object, number_after, verdict
from reward_models.rules.artifact_labels import boxed_labels
from reward_models.rules.mathematics import _outside
from reward_models.rules.parsing import PLACES, literal, words
from reward_models.rules.tags import STYLES
from reward_models.rules.transcripts import NORMALIZERS, normalizer
from tests.libraries.reward_models.rules.test_tasks import APART, GOLD, ROW
from tests.libraries.reward_models.test_rewards import NEED_MODELS, NEEDED

for package in ("math_verify", "pycocotools", "apted", "rapidfuzz", "whisper_normalizer"):
    pytest.importorskip(package)

LENGTH, SECONDS = 20_000, 1
"""Characters of a text, and seconds of the processor that it may take: one that is read in linear time takes less than
a tenth of a second, and one in quadratic time, of which each step takes 5 ns, 2 s."""

UNITS = [
    *(" ", "\n", "9", "a ", "1/", "!", "not ", "[", "(", "{", "<", "$", "```\n", "**a ", "\\(", "\\[", "Score "),
    *("<think>", "</think><answer>", "</answer><glue>", "<answer>", "<tool_call>", "um "),
]
TEXTS = {
    **{unit: unit * (LENGTH // len(unit)) for unit in UNITS},
    **{f"{start}, blanks": f"{start}{' ' * LENGTH}x" for start in ("5", "-", "B -", "Score", "it's")},
}
"""Long runs of blanks, digits, open brackets and tags."""

GOLDS: dict[str, Any] = {
    "artifact_labels": {"Whether Normal": True},
    "strict_verdict": "A",
    **{name: [{"name": "a", "arguments": {}}] for name in ("tool_format", "tool_match")},
    **{name: GOLD["detection_ap"][0] for name in ("box_precision", "box_recall")},
    **{name: GOLD["maze"][0] for name in ("maze_moves", "maze_steps")},
    **{name: GOLD[name][0] for name in GOLD},
}
META = {**ROW, "entity": "red", "key_steps": [["a"]], "budget": 10, "keywords": ["red"], "rules": [{"contains": "a"}]}
NOT_THESE = {*APART, "code_levels", "code_weighted", "by_task", "win_rate", *NEED_MODELS}


def of_texts(name: str) -> bool:
    manifest = cast(Manifest, REWARDS[name].read_manifest())
    return "Text" in manifest.scores and name not in NOT_THESE and not obstacle(manifest)


SPECS = [f"{name}{NEEDED.get(name, '')}" for name in REWARDS if of_texts(name) and name != "format"]
SPECS += [f"format(style='{style}')" for style in STYLES]
READERS: dict[str, Callable[[str], object]] = {
    "score": functools.partial(number_after, label="Score", low=1, high=5),
    **{
        one.__name__: one
        for one in (verdict, flex_verdict, json_object, calls_of, boxed_labels, _outside, literal, words)
    },
    **PLACES,
    **{name: normalizer(name) for name in NORMALIZERS if name != "chinese"},
}


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


@pytest.mark.parametrize("spec", SPECS)
def test_no_text_keeps_a_reward_busy(spec):
    name = spec.partition("(")[0]
    prompt = Prompt("a question", "7", answer=GOLDS.get(name, "red"), task=name if name in GOLD else "exact", meta=META)
    made = scorer(spec)
    for unit, text in TEXTS.items():
        outputs = [Text(text), Text(f"<think>hm</think><answer>{text}</answer>")]
        assert seconds(lambda outputs=outputs: made.fn([prompt] * 2, outputs)) < SECONDS, unit


@pytest.mark.parametrize("name", READERS)
def test_no_text_keeps_a_reader_busy(name):
    for unit, text in TEXTS.items():
        assert seconds(lambda text=text: READERS[name](text)) < SECONDS, unit
