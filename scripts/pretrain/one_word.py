"""Write the questions of the recipe text/demo: answers are one word of those that the question offers.

    python -m scripts.pretrain.one_word

Two kinds: what a thing is, and whether a review is positive. A row is a conversation that begins with another question
of its kind and its answer, from the training rows, which shows the form. Things, what is reviewed and what is said of
it are divided among the three files before questions are made, so held-out questions share their frame with those
for training, and nothing else.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "pipelines" / "text" / "assets" / "one_word"
SHARES = {"train": 0.55, "tune": 0.15, "heldout": 0.3}
"""File to its share of the words of each kind."""

THINGS = {
    "animal": (
        "dog cat horse cow pig goat lion tiger bear wolf fox deer rabbit mouse rat squirrel monkey elephant giraffe "
        "zebra camel donkey whale dolphin shark salmon eagle owl duck goose chicken turkey pigeon parrot crow snake "
        "lizard frog turtle spider ant bee butterfly crab lobster octopus penguin seal beaver hedgehog"
    ),
    "plant": (
        "rose tulip daisy lily orchid sunflower oak pine maple birch willow cedar palm bamboo ivy fern cactus clover "
        "wheat rice corn barley oat potato carrot onion garlic tomato lettuce cabbage spinach celery broccoli pea "
        "bean pumpkin cucumber radish turnip mint basil parsley thyme lavender moss vine dandelion poppy violet "
        "daffodil"
    ),
    "tool": (
        "hammer saw drill wrench chisel axe shovel rake hoe pliers screwdriver file plane clamp crowbar ladder knife "
        "scissors needle broom mop brush trowel spade pitchfork sickle scythe anvil vise level ruler tape compass "
        "mallet pickaxe wheelbarrow corkscrew tweezers stapler spanner hacksaw sander grater whisk ladle spatula "
        "tongs peeler"
    ),
}
SUBJECTS = (
    "food film hotel book service room concert game phone coffee staff lesson trip beach music story soup bed "
    "play museum driver garden shop show"
)
REVIEWS = {
    "positive": (
        "was wonderful|was excellent|made me very happy|was the best in years|could not be better|"
        "was a real joy|was perfect|was lovely|was fantastic|was a great surprise|was better than I hoped|"
        "was worth every penny|was amazing|was superb|was delightful|was a pleasure"
    ),
    "negative": (
        "was terrible|was awful|made me very sad|was the worst in years|could not be worse|was a real pain|"
        "was horrible|was nasty|was dreadful|was a great disappointment|was worse than I feared|"
        "was a waste of money|was disgusting|was poor|was boring|was a mess"
    ),
}


def article(word: str) -> str:
    """The word after ``a`` or ``an``."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def divide(words: Sequence[str], random_: random.Random) -> dict[str, list[str]]:
    """Words by file, in the ``SHARES``."""
    words = list(words)
    random_.shuffle(words)
    ends, total = [], 0.0
    for share in SHARES.values():
        total += share
        ends.append(round(total * len(words)))
    return {file: words[start:end] for file, start, end in zip(SHARES, [0, *ends], ends, strict=False)}


def questions(random_: random.Random) -> dict[str, dict[str, list[tuple[str, str]]]]:
    """File to kind to pairs of question and answer; of reviews equally many of both answers."""
    made: dict[str, dict[str, list[tuple[str, str]]]] = {file: {} for file in SHARES}
    for answer, words in THINGS.items():
        for file, chosen in divide(words.split(), random_).items():
            rows = [(f"Is {article(word)} an animal, a plant or a tool?", answer) for word in chosen]
            made[file].setdefault("thing", []).extend(rows)
    subjects = divide(SUBJECTS.split(), random_)
    for answer, words in REVIEWS.items():
        for file, chosen in divide(words.split("|"), random_).items():
            pairs = [(subject, said) for subject in subjects[file] for said in chosen]
            random_.shuffle(pairs)
            rows = [
                (f'Is this review positive or negative? "The {subject} {said}."', answer) for subject, said in pairs
            ]
            count = len(made[file]["thing"]) // 2
            made[file].setdefault("review", []).extend(rows[:count])
    return made


def rows(random_: random.Random) -> dict[str, list[dict[str, Any]]]:
    """File to its rows, in random order."""
    made = questions(random_)
    written: dict[str, list[dict[str, Any]]] = {}
    for file, kinds in made.items():
        written[file] = []
        for kind, pairs in kinds.items():
            for question, answer in pairs:
                example = random_.choice([pair for pair in made["train"][kind] if pair[0] != question])
                turns = [*zip(("user", "assistant"), example, strict=True), ("user", question)]
                messages = [{"role": role, "content": text} for role, text in turns]
                written[file].append({"messages": messages, "answer": answer, "task": "exact", "kind": kind})
        random_.shuffle(written[file])
    return written


def main() -> None:
    """Write the three files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, content in rows(random.Random(0)).items():
        (FOLDER / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content), "utf-8")


if __name__ == "__main__":
    main()
