"""What is said of every reward before a run: what it takes and reads, its range, and what it needs.

Rewards of sets have a table of their own (``sets/test_limits_of_sets.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mmgrpo.scoring.manifest import Manifest
from reward_models import REWARDS, TASKS, clip, judges, objects, quality, sets, vlm

ENTRIES = {name: entry for name, entry in REWARDS.items() if name not in sets.REWARDS}
ROOMS = (clip, judges, objects, quality, vlm)

RANGES = [
    ("Image", "0 to 1", "", "brisque nsfw clip_iqa artifact artifact_free"),
    ("Image", "at most 0", "", "niqe jpeg_compressibility"),
    ("Image", "-1 to 1", "text", "conse hpsv2"),
    ("Image", "any number", "text", "conse_z pickscore mps d2_align image_reward hpsv3"),
    ("Image", "at most 1", "meta.include meta.exclude meta.tag", "geneval"),
    ("Image", "at most 1", "answer meta.include meta.exclude", "geneval_lite"),
    ("Image", "-100 to 100", "text", "clip_score"),
    ("Image", "any number", "", "aesthetic"),
    (
        "Image",
        "0 to 1",
        "answer",
        (
            "scene_count scene_colour scene_shape scene_position scene_relation scene_all scene_score scene_fit "
            "scene_clean"
        ),
    ),
    (
        "Video",
        "0 to 1",
        "answer",
        "film_count film_things film_same film_direction film_speed film_all film_score film_clean",
    ),
    ("Video", "any number", "", "frames"),
    ("Text Image Video Audio", "any number", "task", "by_task"),
    ("Image", "0 to 1", "answer meta.text", "ocr"),
    ("Image", "at least 0", "", "jpeg_incompressibility"),
    ("Text", "0 to 2", "answer meta.task", "task"),
    (
        "Text",
        "0 to 1",
        "answer",
        (
            "exact classification choice choices yes_no numeric numeric_video_r1 regression relative_accuracy jaccard "
            "edit edit_ratio ocr_wer rouge rouge_l math vlm_r1 teds latex_structure latex_picture maze box_iou "
            "point_in_box segmentation_points gui_r1 affordance trajectory detection_ap detection_ap50 "
            "detection_od_length detection_weighted temporal_iou temporal_time_r1 temporal_multi tracking_iou "
            "tracking_frames spatio_temporal exact_transcript exp_wer tanh_cer keywords sentence_bleu sentence_chrf "
            "box_precision box_recall bmas"
        ),
    ),
    ("Text", "0 to 1.5", "answer", "count_fuzzy"),
    ("Text", "0 to 2", "answer", "box_giou ui_r1 ton detection_visual_rft"),
    ("Text", "0 to 1.375", "answer", "box_gui_g1"),
    ("Text", "at most 0", "answer", "neg_wer neg_errors transcript_length"),
    ("Text", "at most 1", "answer", "one_minus_wer one_minus_cer"),
    ("Text", "-1 to 1", "answer", "cer_wer_blend"),
    ("Text", "-1 to 0", "answer", "hallucination"),
    ("Audio", "at most 0", "text", "spoken_neg_wer spoken_neg_cer spoken_log_prob speaking_rate"),
    ("Audio", "0 to 1", "text", "spoken_tanh_cer spoken_likelihood spoken_cer_nll length_window"),
    ("Audio", "at most 0", "", "group_length"),
    ("Audio", "at most 0", "rollout", "token_entropy"),
    ("Audio", "-1 to 1", "media", "speaker_similarity"),
    ("Audio", "1 to 5", "", "dnsmos distillmos"),
    ("Audio", "at least 0", "text", "words_a_second"),
    ("Audio", "at least 0", "", "seconds"),
    ("Text", "0 to 1", "", "format maze_moves reasoning_words step_order thought_agrees"),
    ("Text", "-1 to 0", "", "soft_overlong repetition"),
    ("Text", "any number", "answer", "cosine_length"),
    ("Text", "0 to 1", "meta.key_steps", "key_steps"),
    ("Text", "at least 0", "answer", "maze_steps length_bonus temporal_bonus"),
    ("Text", "0 to 1", "answer meta.entity", "entity_named"),
    ("Text", "0 to 15", "answer", "artifact_labels"),
    ("Text Image Video Audio", "any number", "", "served"),
    ("Image Video Text", "any number", "text media", "preference"),
    ("Text", "any number", "text answer", "regularized_relevance"),
    (
        "Text Image Video",
        "0 to 1",
        "text",
        "judge_score judge_rubric judge_pairs position_consistency unified_reward_pairs",
    ),
    ("Text Image Video Audio", "0 to 1", "", "win_rate"),
    ("Image", "0 to 1", "text", "unified_reward vqascore magic_assessor"),
    ("Image", "1 to 5", "", "deqa"),
    ("Video", "any number", "text", "videoalign videoscore"),
    ("Audio", "-1 to 1", "text", "clap"),
]
"""Kinds of outputs, range, what is read of a prompt, and the rewards of which that is true."""

PACKAGES = [
    ("rewards", "onnxruntime", "nsfw"),
    ("visual", "transformers", "conse conse_z clip_score hpsv2 pickscore mps aesthetic clip_iqa artifact d2_align"),
    ("rewards", "rapidocr onnxruntime rapidfuzz", "ocr"),
    ("rewards", "math_verify", "task math vlm_r1"),
    ("rewards", "rapidfuzz", "edit edit_ratio ocr_wer rouge rouge_l"),
    ("rewards", "apted", "teds latex_structure latex_picture"),
    (
        "speech",
        "rapidfuzz whisper_normalizer",
        (
            "neg_wer one_minus_wer neg_errors exact_transcript one_minus_cer cer_wer_blend exp_wer tanh_cer "
            "hallucination keywords transcript_length"
        ),
    ),
    (
        "speech",
        "transformers rapidfuzz whisper_normalizer",
        "spoken_neg_wer spoken_neg_cer spoken_log_prob spoken_tanh_cer spoken_likelihood spoken_cer_nll",
    ),
    ("voice", "onnxruntime speechmos", "dnsmos"),
    ("speech", "sacrebleu", "sentence_bleu sentence_chrf"),
    ("vlm", "tokenizers", "bmas"),
    ("serve", "httpx tenacity", "served"),
    ("vlm", "transformers", "image_reward hpsv3 videoalign videoscore"),
    ("speech", "transformers soxr", "clap"),
]
"""Extra of the package, modules that it installs, and rewards that need them; others need none."""

SOURCES = {
    "BRISQUE, Mittal et al., IEEE TIP 2012": "brisque",
    "NIQE, Mittal et al., IEEE SPL 2013, as in scikit-video": "niqe",
    "github.com/yahoo/open_nsfw": "nsfw",
    "ConSE, arXiv:1312.5650": "conse conse_z",
    "GenEval, arXiv:2310.11513": "geneval geneval_lite",
    "CLIPScore, arXiv:2104.08718": "clip_score",
    "HPSv2, arXiv:2306.09341": "hpsv2",
    "Pick-a-Pic, arXiv:2305.01569": "pickscore",
    "MPS, arXiv:2405.14705": "mps",
    "LAION-Aesthetics": "aesthetic",
    "CLIP-IQA, arXiv:2207.12396": "clip_iqa",
    "arXiv:2601.03468; arXiv:2509.10260": "artifact",
    "D2-Align, arXiv:2512.24146": "d2_align",
    "Flow-GRPO, arXiv:2505.05470": "ocr",
    "DDPO, arXiv:2305.13301": "jpeg_compressibility jpeg_incompressibility",
    "DNSMOS P.835, arXiv:2110.01763": "dnsmos",
    "DistillMOS, arXiv:2502.05356": "distillmos",
    "AlphaMaze, arXiv:2502.14669": "maze_steps",
    "Vision-R1, arXiv:2503.18013": "box_precision box_recall",
    "Mixed-R1, arXiv:2505.24164": "bmas",
    "MagicMirror, arXiv:2509.10260": "artifact_labels magic_assessor thought_agrees",
    "train-reward; head of BaseReward, arXiv:2509.16127": "preference",
    "R3, arXiv:2402.03469": "regularized_relevance",
    "Pref-GRPO, arXiv:2508.20751": "judge_pairs position_consistency win_rate",
    "UnifiedReward, arXiv:2503.05236": "unified_reward unified_reward_pairs",
    "DeQA-Score, arXiv:2501.11561": "deqa",
    "VQAScore, arXiv:2404.01291": "vqascore",
    "arXiv:2601.03468": "artifact_free",
    "ImageReward, arXiv:2304.05977": "image_reward",
    "HPSv3, arXiv:2508.03789": "hpsv3",
    "VideoAlign, arXiv:2501.13918": "videoalign",
    "VideoScore, arXiv:2406.15252": "videoscore",
    "CLAP, arXiv:2211.06687": "clap",
}
"""Papers and the rewards after them."""

LICENCES = {
    "Apache-2.0": "brisque image_reward clap",
    "BSD-3-Clause": "niqe",
    "BSD-2-Clause": "nsfw",
    "Apache-2.0, names MIT": "conse conse_z",
    "MIT": (
        "clip_score pickscore mps clip_iqa spoken_neg_wer spoken_neg_cer spoken_log_prob spoken_tanh_cer "
        "spoken_likelihood spoken_cer_nll distillmos videoscore"
    ),
    "Apache-2.0; tokenizer MIT": "hpsv2",
    "MIT; heads MIT (version 1) and Apache-2.0 (version 2)": "aesthetic",
    "MIT; its base Apache-2.0": "hpsv3 videoalign",
}
"""Licences of weights."""


JUDGES = "judge_score judge_rubric judge_pairs position_consistency unified_reward unified_reward_pairs"
TRANSCRIPTS = "neg_wer one_minus_wer neg_errors exact_transcript one_minus_cer cer_wer_blend exp_wer tanh_cer"
TRANSCRIPTS = f"{TRANSCRIPTS} hallucination keywords transcript_length"
SPOKEN = "spoken_neg_wer spoken_neg_cer spoken_log_prob spoken_tanh_cer spoken_likelihood spoken_cer_nll"
FUNCTIONS = {
    "check": {
        "reward_models.frames:check": "frames",
        "reward_models.by_task:check": "by_task",
        "mmgrpo.scoring.served:check": "served",
        "reward_models.judges.named:check_judge": (
            f"{JUDGES} deqa vqascore magic_assessor thought_agrees artifact_free"
        ),
        "reward_models.judges.pairwise:check_win_rate": "win_rate",
    },
    "rates": {"reward_models.rules.corpus:rates": TRANSCRIPTS, "reward_models.speech.recognizer:rates": SPOKEN},
    "annotate": {
        "reward_models.rules.corpus:annotate": TRANSCRIPTS,
        "reward_models.speech.recognizer:annotate": SPOKEN,
        "reward_models.rules.drawn_boxes:annotate": " ".join(["task", *TASKS]),
    },
}
"""Functions beside those of rewards: what checks parameters, counts errors of a corpus, and notes what was read."""

SCALED = (
    f"{JUDGES} deqa vqascore magic_assessor thought_agrees artifact_free win_rate brisque niqe nsfw conse conse_z "
    "clip_score hpsv2 pickscore mps aesthetic clip_iqa artifact d2_align image_reward hpsv3 videoalign videoscore clap "
    "frames by_task served preference jpeg_compressibility jpeg_incompressibility dnsmos distillmos bmas"
)
GROUPS = "group_length length_bonus temporal_bonus judge_pairs position_consistency win_rate unified_reward_pairs"


def told(what: Callable[[str], Any]) -> dict[Any, set[str]]:
    """Rewards by what is said of them, without those of which nothing is."""
    found: dict[Any, set[str]] = {}
    for name in ENTRIES:
        if said := what(name):
            found.setdefault(said, set()).add(name)
    return found


def table(rows: dict[str, str]) -> dict[str, set[str]]:
    return {said: set(names.split()) for said, names in rows.items()}


def manifest(name: str) -> Manifest:
    found = ENTRIES[name].read_manifest()
    assert found is not None
    return found


def test_what_rewards_take_and_how_large_they_are():
    rows = {name: tuple(facts) for *facts, names in RANGES for name in names.split()}
    ones = {name: manifest(name) for name in ENTRIES}
    assert {n: (" ".join(one.scores), one.range, " ".join(one.reads)) for n, one in ones.items()} == rows


def test_what_rewards_need():
    rows = {(extra, packages): set(names.split()) for extra, packages, names in PACKAGES}
    made = told(lambda name: (manifest(name).extra, " ".join(manifest(name).packages)) if needs(name) else None)
    assert made == rows


def needs(name: str) -> bool:
    return bool(manifest(name).extra or manifest(name).packages)


def test_where_rewards_are_from_and_what_licences_their_weights_have():
    assert told(lambda name: manifest(name).source) == table(SOURCES)
    assert told(lambda name: manifest(name).licence) == table(LICENCES)
    assert all(bool(manifest(name).weights) == bool(manifest(name).licence) for name in ENTRIES)


def test_which_rewards_have_a_scale_of_their_own_and_which_compare_a_group():
    assert {name for name in ENTRIES if manifest(name).scale} == set(SCALED.split())
    assert {name for name in ENTRIES if manifest(name).group} == set(GROUPS.split())
    assert all(manifest(name).deterministic for name in ENTRIES)
    assert [name for name, entry in ENTRIES.items() if entry.elsewhere] == ["served"]


def test_a_reward_of_a_room_is_one_of_all():
    assert all(REWARDS[name] is entry for room in (*ROOMS, sets) for name, entry in room.REWARDS.items())


@pytest.mark.parametrize("what", FUNCTIONS)
def test_what_stands_beside_rewards(what):
    assert told(lambda name: getattr(ENTRIES[name], what)) == table(FUNCTIONS[what])
