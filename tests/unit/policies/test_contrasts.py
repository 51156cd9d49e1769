"""A second form of a prompt, whose samples label those of the first: a paraphrase, or another view of the image."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.config.registry import bind
from mmgrpo.policies.contrasts import CONTRASTS
from mmgrpo.scoring import Scorer, score_outputs
from mmgrpo.types import CONTRAST, OWN, Image, Media, Prompt, Request, Text, Turn
from pipelines.text.causal_lm import toy
from reward_models.rules.votes import majority
from tests.building import token_policy_over

PICTURE = Media("image", Image(torch.zeros(3, 28, 28)))


def changed(text, prompt, size=8):
    return bind(text, CONTRASTS, "contrast")({"prompt": prompt, "group_size": size, "seed": 3})


def test_a_paraphrase_asks_in_other_words_about_the_same_picture():
    turns = (Turn("system", ("brief",)), Turn("user", (PICTURE, "how many?")))
    prompt = Prompt("how many?", "7", turns=turns, meta={"paraphrase": "count them"})
    other, count = changed("paraphrase", prompt)
    assert (other.text, other.id, count) == ("count them", "7", 8)
    assert other.turns == (turns[0], Turn("user", (PICTURE, "count them"))) and other.meta["contrast"] == "paraphrase"
    assert changed("paraphrase(fraction=0.5)", prompt)[1] == 4
    assert changed("paraphrase", Prompt("a", "1")) == (Prompt("a", "1"), 0)


def test_another_view_hides_a_part_of_the_picture():
    prompt = Prompt("q", "7", turns=(Turn("user", (PICTURE, "q")),))
    other, count = changed("view(change='mask_patches(ratio=0.25)')", prompt)
    assert count == 8 and other.media[0].options["mask"].ratio == 0.25 and other.meta["contrast"] == "view"
    assert changed("view", Prompt("no picture", "1"))[1] == 0
    with pytest.raises(ValueError, match="blanc.*blank"):
        changed("view(change='blanc')", prompt)


def test_samples_of_the_paraphrase_are_scored_and_label_the_others():
    words = ["say", "tell", "a", "b", "<answer>", "</answer>"]
    policy = token_policy_over(toy(words), max_tokens=3, contrast="paraphrase")
    prompts = [Prompt("say a", "0", meta={"paraphrase": "tell a"}), Prompt("say b", "1")]
    made = policy.rollout(Request(prompts, [0, 1], 4, 0))
    assert made.decisions.origin.tolist() == [OWN] * 8 + [CONTRAST] * 4
    assert not made.decisions.loss_mask[8:].any()
    values = majority(made.prompts, made.outputs, by="contrast", tags=False)
    assert None not in values[:4] and values[4:] == [None] * 8  # the second question has no paraphrase
    label = max({one.text for one in made.outputs[8:]}, key=[one.text for one in made.outputs[8:]].count)
    assert [value > 0 for value in values[:4]] == [one.text == label for one in made.outputs[:4]] or len(
        set(values)
    ) > 2


def test_a_verifier_that_is_only_watched_abstains_from_questions_without_answers():
    from mmgrpo.rewards import scorer

    prompts, outputs = [Prompt("q", "0", task="exact")] * 2, [Text("<answer>a</answer>")] * 2
    watched = score_outputs([scorer("task(weight=0)")], prompts, outputs)
    assert watched.abstentions.all() and not watched.failed.any()
    answered = [Prompt("q", "0", answer="a", task="exact", meta={"task": "exact"})] * 2
    assert score_outputs([scorer("task(weight=0)")], answered, outputs).values[:, 0].tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="task.*None"):
        score_outputs([scorer("task")], prompts, outputs)
    own = Scorer("own", lambda p, o: [1.0] * len(o), weight=0.0)  # nothing is known of it
    assert score_outputs([own], prompts, outputs).valid.all()
