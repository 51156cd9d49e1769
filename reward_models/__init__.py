"""Rewards: functions of prompts and outputs to one number each, looked up by name.

    def brightness(prompts, outputs):
        return [float(output.pixels.mean()) for output in outputs]

A reward of your own is named as ``package.module:function`` wherever a known name could stand. NaN
says "could not be scored"; raising stops the run. No reward returns a plausible number on failure.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from mmgrpo.registry import nearest, parse
from mmgrpo.scoring import Scorer

TASKS = (
    *("exact", "classification", "choice", "choices", "yes_no", "numeric", "numeric_video_r1", "regression"),
    *(
        "relative_accuracy",
        "count_fuzzy",
        "jaccard",
        "edit",
        "edit_ratio",
        "ocr_wer",
        "rouge",
        "math",
        "vlm_r1",
        "teds",
    ),
    *("box_iou", "box_giou", "box_gui_g1", "point_in_box", "segmentation_points", "ui_r1", "gui_r1"),
    *("detection_visual_rft", "detection_ap", "detection_ap50", "detection_od_length", "detection_weighted"),
    *("temporal_iou", "temporal_time_r1", "temporal_multi", "tracking_iou", "tracking_frames", "spatio_temporal"),
)
"""Verifiable answers: each is a reward of its own, and what the reward ``task`` looks up for a row of that task."""

SPEECH = (
    *("neg_wer", "one_minus_wer", "neg_errors", "exact_transcript", "one_minus_cer", "cer_wer_blend", "exp_wer"),
    *("tanh_cer", "hallucination", "keywords", "transcript_length"),
)
"""Transcripts against what was said."""

REWARDS: dict[str, str] = {
    "scene_count": "reward_models.rules.scenes:scene_count",
    "scene_colour": "reward_models.rules.scenes:scene_colour",
    "scene_shape": "reward_models.rules.scenes:scene_shape",
    "scene_position": "reward_models.rules.scenes:scene_position",
    "scene_all": "reward_models.rules.scenes:scene_all",
    "scene_score": "reward_models.rules.scenes:scene_score",
    "scene_fit": "reward_models.rules.scenes:scene_fit",
    "scene_clean": "reward_models.rules.scenes:scene_clean",
    "ocr": "reward_models.ocr:ocr",
    "jpeg_compressibility": "reward_models.rules.jpeg:jpeg_compressibility",
    "jpeg_incompressibility": "reward_models.rules.jpeg:jpeg_incompressibility",
    "task": "reward_models.rules.tasks:task",
    **{name: f"reward_models.rules.single:{name}" for name in TASKS},
    **{name: f"reward_models.rules.speech:{name}" for name in SPEECH},
    "spoken_neg_wer": "reward_models.speech.recognizer:spoken_neg_wer",
    "spoken_neg_cer": "reward_models.speech.recognizer:spoken_neg_cer",
    "spoken_log_prob": "reward_models.speech.recognizer:spoken_log_prob",
    "speaker_similarity": "reward_models.speech.speaker:speaker_similarity",
    "dnsmos": "reward_models.speech.dnsmos:dnsmos",
    "speaking_rate": "reward_models.speech.rate:speaking_rate",
    "words_a_second": "reward_models.speech.rate:words_a_second",
    "seconds": "reward_models.speech.rate:seconds",
    "sentence_bleu": "reward_models.rules.translation:sentence_bleu",
    "sentence_chrf": "reward_models.rules.translation:sentence_chrf",
    "format": "reward_models.rules.tags:format",
    "soft_overlong": "reward_models.rules.lengths:soft_overlong",
    "cosine_length": "reward_models.rules.lengths:cosine_length",
    "repetition": "reward_models.rules.lengths:repetition",
    "key_steps": "reward_models.rules.steps:key_steps",
    "step_order": "reward_models.rules.steps:step_order",
    "length_bonus": "reward_models.rules.groups:length_bonus",
    "temporal_bonus": "reward_models.rules.groups:temporal_bonus",
}
"""Name to ``module:function``."""


def scorer(text: str) -> Scorer:
    """The reward that ``name(weight=1.0, parameter=value)`` names; weight 0 is logged, not trained on.

    Unknown names, modules, functions and parameters are errors that say what is known.
    """
    name, parameters = parse(text)
    weight = parameters.pop("weight", 1.0)
    if not isinstance(weight, int | float):
        raise ValueError(f"rewards: '{name}' needs a number as weight, got {weight!r}")
    path = REWARDS.get(name, name)
    if ":" not in path:
        raise ValueError(
            f"rewards: there is no '{name}'.{nearest(name, REWARDS)} "
            "A function of your own is written package.module:function."
        )
    module_name, function_name = path.split(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"rewards: '{name}' needs the module '{error.name}', which cannot be imported; a module of "
            "your own must be on PYTHONPATH, the packages of the known rewards come with pip install 'mmgrpo[rewards]'"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        functions = [n for n, f in vars(module).items() if inspect.isfunction(f) and not n.startswith("_")]
        raise ValueError(
            f"rewards: module '{module_name}' has no function '{function_name}'.{nearest(function_name, functions)}"
        )
    accepted = list(inspect.signature(function).parameters)[2:]
    for parameter in parameters:
        if parameter not in accepted:
            raise ValueError(
                f"rewards: '{name}' has no parameter '{parameter}'.{nearest(parameter, [*accepted, 'weight'])}"
            )
    short = name.split(":")[-1]
    fn: Any = functools.partial(function, **parameters)
    return Scorer(short, fn, float(weight))


def scorers(texts: Sequence[str]) -> list[Scorer]:
    """Several rewards; their names must differ."""
    if not texts:
        raise ValueError(f"rewards: none is named; give at least one of {', '.join(sorted(REWARDS))}")
    made = [scorer(text) for text in texts]
    names = [one.name for one in made]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"rewards: '{name}' is named twice; metrics could not tell the two apart")
    return made
