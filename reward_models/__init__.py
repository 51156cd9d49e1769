"""Rewards by name: one scorer per file, ``rules`` for verifiers without weights, ``speech`` for generated speech.

``mmgrpo.rewards`` documents how a reward is named, bound and called; this table is what the package contributes.
"""

from __future__ import annotations

from mmgrpo.rewards import RewardEntry

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
"""Verifiers of answers: each is a reward by itself, and the one that ``task`` applies to rows that name it."""

SPEECH = (
    *("neg_wer", "one_minus_wer", "neg_errors", "exact_transcript", "one_minus_cer", "cer_wer_blend", "exp_wer"),
    *("tanh_cer", "hallucination", "keywords", "transcript_length"),
)
"""Rewards of transcripts against the reference."""

FILMS = (
    *("film_count", "film_things", "film_same", "film_direction", "film_speed", "film_all", "film_score", "film_clean"),
)
"""Verifiers of clips of moving shapes."""

BOXES = "reward_models.rules.drawn_boxes:annotate"

REWARDS: dict[str, RewardEntry] = {
    "scene_count": RewardEntry("reward_models.rules.scenes:scene_count"),
    "scene_colour": RewardEntry("reward_models.rules.scenes:scene_colour"),
    "scene_shape": RewardEntry("reward_models.rules.scenes:scene_shape"),
    "scene_position": RewardEntry("reward_models.rules.scenes:scene_position"),
    "scene_relation": RewardEntry("reward_models.rules.scenes:scene_relation"),
    "scene_all": RewardEntry("reward_models.rules.scenes:scene_all"),
    "scene_score": RewardEntry("reward_models.rules.scenes:scene_score"),
    "scene_fit": RewardEntry("reward_models.rules.scenes:scene_fit"),
    "scene_clean": RewardEntry("reward_models.rules.scenes:scene_clean"),
    **{name: RewardEntry(f"reward_models.rules.films:{name}") for name in FILMS},
    "frames": RewardEntry("reward_models.frames:frames", check="reward_models.frames:check"),
    "ocr": RewardEntry("reward_models.ocr:ocr"),
    "jpeg_compressibility": RewardEntry("reward_models.rules.jpeg:jpeg_compressibility"),
    "jpeg_incompressibility": RewardEntry("reward_models.rules.jpeg:jpeg_incompressibility"),
    "task": RewardEntry("reward_models.rules.tasks:task", annotate=BOXES),
    **{name: RewardEntry(f"reward_models.rules.single:{name}", annotate=BOXES) for name in TASKS},
    **{
        name: RewardEntry(
            f"reward_models.rules.speech:{name}",
            rates="reward_models.rules.corpus:rates",
            annotate="reward_models.rules.corpus:annotate",
        )
        for name in SPEECH
    },
    **{
        name: RewardEntry(
            f"reward_models.speech.recognizer:{name}",
            rates="reward_models.speech.recognizer:rates",
            annotate="reward_models.speech.recognizer:annotate",
        )
        for name in ("spoken_neg_wer", "spoken_neg_cer", "spoken_log_prob")
    },
    "speaker_similarity": RewardEntry("reward_models.speech.speaker:speaker_similarity"),
    "dnsmos": RewardEntry("reward_models.speech.dnsmos:dnsmos"),
    "speaking_rate": RewardEntry("reward_models.speech.rate:speaking_rate"),
    "words_a_second": RewardEntry("reward_models.speech.rate:words_a_second"),
    "seconds": RewardEntry("reward_models.speech.rate:seconds"),
    "sentence_bleu": RewardEntry("reward_models.rules.translation:sentence_bleu"),
    "sentence_chrf": RewardEntry("reward_models.rules.translation:sentence_chrf"),
    "format": RewardEntry("reward_models.rules.tags:format"),
    "soft_overlong": RewardEntry("reward_models.rules.lengths:soft_overlong"),
    "cosine_length": RewardEntry("reward_models.rules.lengths:cosine_length"),
    "repetition": RewardEntry("reward_models.rules.lengths:repetition"),
    "key_steps": RewardEntry("reward_models.rules.steps:key_steps"),
    "step_order": RewardEntry("reward_models.rules.steps:step_order"),
    "length_bonus": RewardEntry("reward_models.rules.groups:length_bonus"),
    "temporal_bonus": RewardEntry("reward_models.rules.groups:temporal_bonus"),
}
"""Name to the reward's function, corpus rates and annotations."""
