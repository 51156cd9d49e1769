"""The questions of the recipe text/demo are those that their script writes, and no thing or review is in two files."""

from __future__ import annotations

import json
import random
import re

from scripts.pretrain import one_word


def test_the_stored_questions_are_those_of_the_script():
    for file, rows in one_word.rows(random.Random(0)).items():
        stored = (one_word.FOLDER / f"{file}.jsonl").read_text("utf-8").splitlines()
        assert [json.loads(line) for line in stored] == rows


def test_held_out_and_tuning_questions_name_nothing_that_training_rows_name():
    made = one_word.rows(random.Random(0))
    assert {file: len(rows) for file, rows in made.items()} == {"train": 164, "tune": 38, "heldout": 88}
    words = {}
    for file, rows in made.items():
        asked = [row["messages"][-1]["content"] for row in rows]
        things = {found[1] for text in asked if (found := re.match(r"Is an? (\w+) an animal", text))}
        reviews = [found.groups() for text in asked if (found := re.search(r'"The (\w+) (.*)\."', text))]
        words[file] = [things, *({one[part] for one in reviews} for part in (0, 1))]
        answers = [row["answer"] for row in rows if row["kind"] == "review"]
        assert answers.count("positive") == answers.count("negative") == len(reviews) / 2
    for one, other in (("train", "tune"), ("train", "heldout"), ("tune", "heldout")):
        assert not any(a & b for a, b in zip(words[one], words[other], strict=True))
