"""Which prompts are changed, with which seeds and sizes, and which decisions are scored again under them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mmgrpo.data.perturbations import Mask
from mmgrpo.policies.perturbed_prompts import ChangedPrompts
from mmgrpo.policies.token_model import Context, Sequences, Tokens
from mmgrpo.randomness import derive
from mmgrpo.types import Media, Prompt, Rollout, Text, Turn
from tests.trees import plain

CHANGE = "mask_patches(ratio=0.5, patch=3)"
SIZES = [((6, 9),), (), ((12, 3),)]
ROWS = [0, 0, 1, 2, 2]
"""Of three prompts: a picture, words, and another picture."""


def shown(name: str) -> Prompt:
    return Prompt("", name, turns=(Turn("user", (Media("image", f"{name}.png"), "what")),))


PROMPTS = [shown("first"), Prompt("words", "words"), shown("second")]


def context_of(prompts: list[Prompt], seen=()) -> Context:
    ids = torch.arange(len(prompts))[:, None]
    return Context(ids, ids >= 0, ids[:, None], [prompt.media for prompt in prompts], seen)


def rollout(seen=SIZES, seed: int = 11, rows: list[int] = ROWS) -> Rollout:
    ids = torch.arange(2 * len(rows)).view(-1, 2)
    steps = Sequences(context_of(PROMPTS, seen), None, torch.tensor(rows), ids, ids >= 0, seed)
    slots = torch.tensor([4, 7, 9])[torch.tensor(rows)]
    made = plain([2] * len(rows), keys={"prompt": slots})
    return Rollout([PROMPTS[row] for row in rows], [Text("", 2)] * len(rows), made, steps)


class Encoder:
    """Keeps what it was asked to encode."""

    def __init__(self) -> None:
        self.asked: list[list[Prompt]] = []

    def __call__(self, prompts):
        self.asked.append(list(prompts))
        return context_of(list(prompts)), ["features"] * len(prompts)

    def masks(self) -> list[Mask]:
        return [prompt.media[0].options["mask"] for prompt in self.asked[-1]]


def test_a_prompt_is_changed_by_the_seed_of_its_slot_at_the_size_that_the_model_sees():
    encoder = Encoder()
    sequences, changed = ChangedPrompts(encoder).sequences(rollout(), CHANGE)
    assert [prompt.id for prompt in encoder.asked[0]] == ["first", "second"]
    assert encoder.masks() == [
        Mask(0.5, 0.0, derive(derive(11, "change", slot), "mask", 0), 3, size)
        for slot, size in ((4, (6, 9)), (9, (12, 3)))
    ]
    assert changed.tolist() == [True, True, False, True, True]
    assert sequences.prompt[changed].tolist() == [0, 0, 1, 1] and sequences.prompt[2] < 0
    assert torch.equal(sequences.ids, rollout().steps.ids) and sequences.features == ["features"] * 2
    assert len(sequences.context.ids) == 2 and sequences.seed == 11
    ChangedPrompts(encoder).sequences(rollout(seen=()), CHANGE)
    assert [mask.seen for mask in encoder.masks()] == [None, None]


def test_a_change_is_encoded_once_for_the_newest_rollout():
    encoder, first, second = Encoder(), rollout(), rollout(seed=12)
    changes = ChangedPrompts(encoder)
    for _ in range(2):
        assert changes.sequences(first, CHANGE) is changes.sequences(first, CHANGE)
    assert len(encoder.asked) == 1
    changes.sequences(first, "blank")
    changes.sequences(first, CHANGE)
    assert len(encoder.asked) == 2
    changes.sequences(second, CHANGE)
    assert len(encoder.asked) == 3 and list(changes.entries) == [CHANGE]
    changes.sequences(first, CHANGE)
    assert len(encoder.asked) == 4


def test_decisions_under_a_changed_prompt_are_scored_again_and_the_others_are_not():
    made, seen = rollout(), []

    def score(sequences: Sequences, part: Tokens) -> Tensor:
        seen.append((part.rows.tolist(), part.positions.tolist()))
        return 10.0 * part.rows + part.positions

    changes = ChangedPrompts(Encoder())
    part = Tokens.of(torch.tensor([1, 2, 2, 4]), torch.tensor([0, 0, 1, 1]))
    own = torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert changes.log_probs(made, part, CHANGE, own, score).tolist() == [10, own[1], own[2], 41]
    assert seen == [([1, 4], [0, 1])]
    every = Tokens.of(torch.tensor([0, 3]), torch.tensor([1, 0]))
    assert changes.log_probs(made, every, CHANGE, own[:2], score).tolist() == [1, 30]
    words = Tokens.of(torch.tensor([2]), torch.tensor([1]))
    one = own[:1]
    assert changes.log_probs(made, words, CHANGE, one, score) is one and len(seen) == 2


def test_where_nothing_changes_nothing_is_encoded():
    encoder, made = Encoder(), rollout(rows=[1, 1])
    changes = ChangedPrompts(encoder)
    steps, changed = changes.sequences(replace(made), CHANGE)
    assert steps is made.steps and not changed.any() and encoder.asked == []
    own = torch.tensor([0.5, 0.25])
    part = Tokens.of(torch.tensor([0, 1]), torch.tensor([0, 0]))
    assert changes.log_probs(made, part, CHANGE, own, lambda *given: own + 1) is own
