"""Benchmarks of clips, and of answers to questions about images and clips."""

from __future__ import annotations

from mmgrpo.types import Prompt, Text
from reward_models.evaluation.comparison import FIRST, SECOND, TIE, Comparison
from reward_models.evaluation.readers.rows import Row

VL_GROUPS = {
    **dict.fromkeys(("vlfeedback", "wildvision"), "general"),
    **dict.fromkeys(("povid", "rlhf", "rlaif", "hallucination"), "hallucination"),
    **dict.fromkeys(("mathverse", "mmmu", "reasoning"), "reasoning"),
}
"""Beginnings of VL-RewardBench's sources, and the group in which its ``cal.py`` counts them."""


def videogen(row: Row, dimension: str = "Overall") -> Comparison:
    """VideoGen-RewardBench (arXiv:2501.13918), CSV: {path_A, path_B, prompt, VQ, MQ, TA, Overall}, each A, B or same.

    ``dimension`` is the one that is compared.
    """
    if dimension not in ("VQ", "MQ", "TA", "Overall"):
        raise ValueError(f"videogen: got dimension {dimension!r}, expected VQ, MQ, TA or Overall")
    ranks = row.choice(dimension, {"A": FIRST, "B": SECOND, "same": TIE})
    return Comparison(Prompt(row.text("prompt"), row.place), (row.clip("path_A"), row.clip("path_B")), ranks, row.place)


def vlrewardbench(row: Row) -> Comparison:
    """VL-RewardBench (arXiv:2411.17451): {id, query, response[2], image, human_ranking[2]}, 0 is preferred.

    Its category is the group of ``cal.py``, general, hallucination or reasoning, from query_source or else the id.
    """
    key = "query_source" if row.values.get("query_source") else "id"
    name = row.text(key).lower()
    group = next((group for start, group in VL_GROUPS.items() if name.startswith(start)), None)
    if group is None:
        raise ValueError(f"{row.place}: {key}: got {name[:80]!r}, expected one that begins with {', '.join(VL_GROUPS)}")
    answers = tuple(map(Text, row.texts("response", 2)))
    ranks = row.numbers("human_ranking", 2)
    prompt = Prompt(row.text("query"), row.place)
    return Comparison(prompt, answers, ranks, row.place, group, about=(row.image("image"),))


def mmrewardbench(row: Row) -> Comparison:
    """Multimodal RewardBench (arXiv:2502.14191), ``all_data.json``: {ID, Text, Image, Output1, Output2, Better, Meta}.

    Its category is Meta.Category; safety and reasoning are parted by the id, as in its script.
    """
    name, category = row.text("ID").lower(), row.object("Meta").text("Category")
    if category == "safety":
        category += "/bias" if name.startswith("pairs") else "/toxicity"
    if category == "reasoning":
        category += "/math" if name.startswith("math") else "/coding"
    answers = (Text(row.text("Output1")), Text(row.text("Output2")))
    ranks = row.choice("Better", {"Output1": FIRST, "Output2": SECOND})
    prompt = Prompt(row.text("Text"), row.place)
    return Comparison(prompt, answers, ranks, row.place, category, about=(row.image("Image"),))


def videorewardbench(row: Row) -> Comparison:
    """VideoRewardBench (arXiv:2509.00484): {prompt, video, chosen, rejected, dimension}.

    Its category is the dimension: long-form and short-form perception, knowledge, reasoning, safety.
    """
    answers = (Text(row.text("chosen")), Text(row.text("rejected")))
    prompt = Prompt(row.text("prompt"), row.place)
    return Comparison(prompt, answers, FIRST, row.place, row.text("dimension"), about=(row.clip("video"),))


def rewardbench2(row: Row) -> Comparison:
    """RewardBench 2 (arXiv:2506.01937): {id, prompt, chosen[k], rejected[n - k], subset}; ids ``ref:n`` and ``tied:n``
    in the subset Ties. Chosen answers have rank 0, the others 1."""
    right, wrong = row.texts("chosen"), row.texts("rejected")
    subset = row.text("subset")
    name = row.text("id") if subset == "Ties" else row.place
    if subset == "Ties" and name.partition(":")[0] not in ("ref", "tied"):
        raise ValueError(f"{row.place}: id: got {name[:80]!r}, expected ref:<number> or tied:<number>")
    return Comparison(
        Prompt(row.text("prompt"), row.place, task=name),
        tuple(map(Text, [*right, *wrong])),
        (0.0,) * len(right) + (1.0,) * len(wrong),
        row.place,
        subset,
    )
