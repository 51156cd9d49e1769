"""Training-free GRPO: a list of experiences changes where samples of a group differ, and only then."""

from __future__ import annotations

import json

import pytest

from mmgrpo.prompts.experience import LONGEST, Library, learn, operations
from mmgrpo.scoring import Scorer
from mmgrpo.types import Media, Prompt, Text, Turn


class Scripted:
    """A policy that answers right as often as its prompt has experiences, and keeps what it was asked."""

    network = provides = fields = keys = kind = settings = None

    def __init__(self, right: int = 0, reply: str = "") -> None:
        self.right, self.reply, self.seen, self.questions = right, reply, [], []

    def sample(self, request):
        if request.group_size == 1:
            self.questions.append(request.prompts[0])
            return [Text(self.reply)]
        self.seen += [prompt.text for prompt in request.prompts]
        return [Text("yes" if n < self.right else "no") for _ in request.prompts for n in range(request.group_size)]


def is_yes(prompts, outputs):
    return [float(output.text == "yes") for output in outputs]


YES = [Scorer("yes", is_yes)]
PROMPTS = [Prompt(f"question {n}", str(n)) for n in range(4)]
ADD = json.dumps([{"do": "add", "text": "look twice"}])


def run(right, ask=None, **options):
    policy = Scripted(right)
    return policy, learn(policy, PROMPTS, YES, ask=ask, group_size=4, batch=2, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("right", [0, 4])
def test_a_group_that_agrees_changes_nothing_and_nobody_is_asked(right):
    def ask(question, prompt):
        raise AssertionError

    policy, made = run(right, ask)
    assert made.library == Library() and [one.asked for one in made.rounds] == [0, 0]
    assert [one.mean for one in made.rounds] == [right / 4] * 2 and sorted(policy.seen) == [p.text for p in PROMPTS]


def test_what_made_the_difference_is_in_the_prompts_of_the_next_batch():
    asked = []

    def ask(question, prompt):
        asked.append((question, prompt.id))
        return f"the right one counted: {ADD}"

    policy, made = run(1, ask)
    assert made.library.experiences == ("look twice",) and len(asked) == 4  # the same experience is there once
    assert "Right attempt: yes" in asked[0][0] and "Wrong attempt: no" in asked[0][0]
    assert [("1. look twice" in text) for text in policy.seen] == [False, False, True, True]
    again = run(1, lambda question, prompt: ADD)[1]
    assert again.library == made.library and [r.mean for r in again.rounds] == [r.mean for r in made.rounds]
    other = run(1, lambda question, prompt: ADD, seed=7)[0]
    assert other.seen != policy.seen  # another order


def test_the_policy_itself_is_asked_about_the_media_of_the_prompt():
    policy = Scripted(1, ADD)
    picture = Media("image", "a.png")
    prompt = Prompt("q", "0", turns=(Turn("system", ("s",)), Turn("user", (picture, "q"))))
    made = learn(policy, [prompt], YES, group_size=2)  # type: ignore[arg-type]
    assert made.library.experiences == ("look twice",)
    [turn] = policy.questions[0].turns
    assert turn.parts[0] is picture and "Right attempt" in turn.parts[1]
    assert made.library.prompt(prompt).turns[1].parts[0].endswith("1. look twice\n\n")


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ('[{"do": "modify", "number": 1, "text": "c"}, {"do": "delete", "number": 2}]', ("c",)),
        ('so: [{"do": "keep"}, {"do": "add", "text": " d "}]', ("a", "b", "d")),
        ('[{"do": "add", "text": "a"}]', ("a", "b")),
        ('[{"do": "delete", "number": 3}, {"do": "modify", "number": true, "text": "x"}]', ("a", "b")),
        ('[{"do": "add", "text": "%s"}]' % ("x" * (LONGEST + 1)), ("a", "b")),
        ("[[]]", ("a", "b")),
        ('{"do": "add"}', ("a", "b")),
        ("[" * 5000, ("a", "b")),
        ("nothing", ("a", "b")),
    ],
)  # fmt: skip
def test_operations_that_are_none_are_ignored(answer, wanted):
    assert Library(("a", "b")).apply_operations(answer, 5).experiences == wanted


def test_a_library_is_bounded_and_is_read_as_it_was_written(tmp_path):
    many = json.dumps([{"do": "add", "text": str(n)} for n in range(9)])
    assert Library(("a",), largest=3).apply_operations(many, 9).experiences == ("a", "0", "1")
    assert Library().apply_operations(many, 2).experiences == ("0", "1") and len(operations(many)) == 9
    path = tmp_path / "library.json"
    Library(("a", "b")).write(path)
    assert Library.read(path) == Library(("a", "b"))
    path.write_text('{"experiences": [1]}')
    with pytest.raises(ValueError, match="library.json.*experiences"):
        Library.read(path)
