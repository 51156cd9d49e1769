"""What a token policy records on request, against its own distributions; nothing is recorded unasked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from mmgrpo.advantages.credit import CREDITS
from mmgrpo.config.registry import bind
from mmgrpo.policies.generation import certainty_of
from mmgrpo.policies.records import (
    answer_start,
    characters,
    reference_text,
    segments,
    text_ends,
    thought_length,
    visual_dependency,
)
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.rewards import scorer
from mmgrpo.types import Prompt, Request, Text
from pipelines.text.causal_lm import toy
from tests.building import token_policy_over, trainer
from tests.toys import toy_policy, toy_prompts

WORDS = ["say", "a", "b", "c", "d", "<answer>", "</answer>"]
PROMPTS = [Prompt("say a", "0", answer="a b"), Prompt("say b", "1", answer="c")]


def policy(**options) -> TokenPolicy:
    return token_policy_over(toy(WORDS), max_tokens=5, **options)


def rolled(*records, group=6):
    one = policy()
    return one, one.rollout(Request(PROMPTS, [0, 1], group, 3, records=frozenset(records)))


def test_certainty_is_the_mean_logit_below_their_sum():
    logits = torch.tensor([[2.0, 0.0, 0.0], [5.0, 5.0, 5.0]])
    assert certainty_of(logits.log_softmax(-1)).tolist() == pytest.approx([1.57288, 1.098612], abs=1e-5)
    shifted = certainty_of((logits + 7).log_softmax(-1))
    torch.testing.assert_close(shifted, certainty_of(logits.log_softmax(-1)))
    never = torch.tensor([[2.0, 0.0, 0.0, -torch.inf]])  # a suppressed token has no logit
    assert certainty_of(never.log_softmax(-1)).item() == pytest.approx(1.57288, abs=1e-5)


def test_nothing_is_recorded_unasked_and_samples_are_the_same():
    _, plain = rolled()
    _, more = rolled("certainty", "gradient_feature", "answer_probability", "answer_prior")
    assert plain.outputs == more.outputs
    assert more.decisions.fields.keys() - plain.decisions.fields.keys() == {
        "certainty", "gradient_feature", "answer_probability", "answer_prior",
    }  # fmt: skip
    torch.testing.assert_close(plain.decisions.log_probs, more.decisions.log_probs, rtol=0, atol=0)


def distribution(one: TokenPolicy, prompt: str, ids: list[int]) -> torch.Tensor:
    """Log-probs after the prompt and the ids, by a plain forward pass."""
    tokens = one.model.spell(prompt)[:-1] + ids
    logits = one.network(torch.tensor([tokens])).logits[0, -1]
    logits[sorted(one.model.suppress_tokens)] = -torch.inf
    return logits.log_softmax(-1)


def test_certainty_and_likelihood_against_single_forward_passes():
    one, made = rolled("certainty", "answer_probability", "answer_prior")
    fields, opening = made.decisions.fields, one.model.spell("<answer>")[:-1]
    found = 0
    for row, (prompt, output) in enumerate(zip(made.prompts, made.outputs, strict=True)):
        assert isinstance(output, Text)
        ids = list(output.ids)
        with torch.no_grad():
            wanted = [certainty_of(distribution(one, prompt.text, ids[:t])[None]).item() for t in range(len(ids))]
            assert fields["certainty"][row, : len(ids)].tolist() == pytest.approx(wanted, abs=1e-4)
            answer = one.model.spell(prompt.answer)[:-1]
            length = thought_length(ids, one.model.decode)
            found += length >= 0
            for name, before in (("answer_probability", ids[: max(length, 0)]), ("answer_prior", opening)):
                steps = [distribution(one, prompt.text, before + answer[:t])[answer[t]] for t in range(len(answer))]
                wanted_probability = float(torch.stack(steps).exp().mean())
                if name == "answer_probability" and length < 0:
                    wanted_probability = 0.0
                assert fields[name][row].item() == pytest.approx(wanted_probability, abs=1e-5)
    assert 0 < found < len(made.outputs)


def test_the_gradient_feature_is_that_of_the_log_prob_by_the_head():
    one, made = rolled("gradient_feature", group=2)
    feature = made.decisions.fields["gradient_feature"]
    network: Any = one.network
    head = network.get_output_embeddings().weight.detach()
    for row, (prompt, output) in enumerate(zip(made.prompts, made.outputs, strict=True)):
        assert isinstance(output, Text)
        ids = list(output.ids)
        with torch.no_grad():
            p = torch.stack([distribution(one, prompt.text, ids[:t]).exp() for t in range(len(ids))])
        wanted = (head[ids] - p @ head).mean(0)
        torch.testing.assert_close(feature[row, 0], wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "start"),
    [("<think>x</think> <answer>y", 25), ("<answer>no</answer> <answer>y", 28), ("x</think>y", 9), ("x y", -1)],
)
def test_the_answer_begins_behind_the_thought(text, start):
    assert answer_start(text) == start


def test_a_row_without_an_answer_has_no_likelihood():
    assert reference_text([3, "three"], "0", "it") == "3"
    with pytest.raises(ValueError, match="'7'.*None"):
        reference_text(None, "7", "it")


def certain(prompts, outputs, *, certainty):
    return certainty.tolist()


def test_a_reward_declares_what_it_reads_and_a_policy_that_cannot_is_refused(tmp_path):
    scorers = [scorer(certain)]
    run = trainer(policy(), tmp_path / "a", PROMPTS, scorers=scorers, prompts_per_step=2, group_size=4, steps=2)
    run.run_round()
    assert run.step == 1
    with pytest.raises(ValueError, match="certain.*certainty"):
        trainer(toy_policy(), tmp_path / "b", toy_prompts(2), scorers=scorers)
    for number, walk in enumerate(({"search": "beam"}, {"tree": "text_tree(children=2, depth=2, tokens=2)"})):
        with pytest.raises(ValueError, match="certain.*certainty"):
            trainer(policy(**walk), tmp_path / f"c{number}", PROMPTS, scorers=scorers, group_size=4)


def credited(text, dependency):
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    inputs = {"advantages": torch.tensor([1.0, -2.0]), "keep": torch.ones(2).bool(), "decision_mask": mask}
    inputs |= {"node": torch.arange(8).view(2, 4), "visual_dependency": torch.tensor(dependency)}
    return bind(text, CREDITS, "credit")(inputs)


def test_what_is_seen_is_credited_more_at_a_constant_sum_over_the_row():
    made = credited("looking(threshold=1, gain=1)", [[2.0, 0, 0, 0], [0, 0, 9, 9]])
    torch.testing.assert_close(made, torch.tensor([[1.6, 0.8, 0.8, 0.8], [-2, -2, 0, 0]]))
    plain = credited("looking(threshold=1, gain=0)", [[2.0, 0, 0, 0]] * 2)
    torch.testing.assert_close(plain, torch.tensor([[1.0] * 4, [-2, -2, 0, 0]]))


def test_dependency_is_the_divergence_from_what_the_changed_prompt_says():
    one = policy()
    plain, other = ([Prompt(text, name)] for text, name in (("say a", "0"), ("say b", "0")))
    made = one.rollout(Request(plain, [0], 3, 3))
    context, features = one.encode(other)
    steps: Any = made.steps
    changed = replace(steps, context=context, features=features)  # type: ignore[type-var]
    found = visual_dependency(
        steps, changed, torch.tensor([True, True, False]), lambda s, rows: one.states(one.network, s, rows),
        lambda hidden, first: one._log_softmax(one.network, hidden, first, 1.0), 100,
    )  # fmt: skip
    for row in range(3):
        ids = list(made.outputs[row].ids)  # type: ignore[union-attr]
        for t in range(len(ids)):
            with torch.no_grad():
                p, q = (distribution(one, text, ids[:t]) for text in ("say a", "say b"))
            finite = torch.isfinite(p)
            wanted = float((p.exp()[finite] * (p - q)[finite]).sum()) if row < 2 else 0.0
            assert found[row, t].item() == pytest.approx(wanted, abs=1e-5)
    texts = one.rollout(Request(plain, [0], 3, 3, records=frozenset({"visual_dependency"})))
    assert not texts.decisions.fields["visual_dependency"].any()  # a prompt without media


def test_a_token_belongs_to_the_step_in_which_it_begins():
    pieces = ["a", "b\n", "\n", "\n", "c", "\n\nd", "\n", "\n"]

    def decode(ids):
        return "".join(pieces[number] for number in ids)

    ids = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [2, 3, 0, 4, 0, 0, 0, 0]])
    real = torch.tensor([[True] * 8, [True] * 4 + [False] * 4])
    steps: Any = policy().rollout(Request([Prompt("say a", "0")], [0], 2, 3)).steps
    made = segments(replace(steps, ids=ids, real=real), decode)
    assert made.tolist() == [[0, 0, 0, 0, 1, 1, 2, 2], [0] * 8]  # "ab", "c", "d": the token of the gap begins before it
    one = policy().rollout(Request([Prompt("say a", "0")], [0], 3, 3, records=frozenset({"segment"})))
    assert one.decisions.fields["segment"].shape == one.decisions.decision_mask.shape


@pytest.mark.parametrize("pieces", [["ab", " cd", " e", "f", " ", " g"], ["ab", " cd", " e", "f", " g", ""]])
def test_a_word_begins_with_the_space_before_it(pieces):
    """ab, cd, ef and g: a token of a word has the space before it, and spaces alone and the end to their neighbour."""

    def decode(ids):
        return "".join(pieces[number] for number in ids)

    steps: Any = policy().rollout(Request([Prompt("say a", "0")], [0], 1, 3)).steps
    ids, real = torch.arange(6)[None], torch.ones(1, 6, dtype=torch.bool)
    wanted = [[0, 1, 2, 2, 3, 3]]
    assert segments(replace(steps, ids=ids, real=real), decode, "word").tolist() == wanted


def test_the_place_of_a_token_is_that_of_its_first_character_that_is_no_space():
    pieces = ["ab", " cd", "\n\n", "  e", ""]  # the last is an end token

    def decode(ids):
        return "".join(pieces[number] for number in ids)

    ids = torch.tensor([[0, 1, 2, 3, 4], [3, 0, 0, 0, 0]])
    real = torch.tensor([[True] * 5, [True] + [False] * 4])
    steps: Any = policy().rollout(Request([Prompt("say a", "0")], [0], 2, 3)).steps
    made = characters(replace(steps, ids=ids, real=real), decode)
    assert made.tolist() == [[0, 3, 5, 9, 10], [2, 0, 0, 0, 0]]  # "ab cd\n\n  e"
    one = policy().rollout(Request([Prompt("say a", "0")], [0], 3, 3, records=frozenset({"character"})))
    for row, output in enumerate(one.outputs):
        places = one.decisions.fields["character"][row][one.decisions.decision_mask[row]].tolist()
        assert places == sorted(places) and all(0 <= place <= len(output.text) for place in places)


@pytest.mark.parametrize("strips", [False, True])
def test_texts_are_measured_window_by_window(strips):
    """Also letters of several tokens, and a decoder that leaves out the space of the first token."""
    spelled = ("day \u00e9\u4e2d x " * 40).encode()

    def decode(ids):
        text = bytes(ids).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if strips else text

    ids = list(b" " + spelled)
    asked = []

    def counted(some):
        asked.append(len(some))
        return decode(some)

    assert text_ends(ids, counted) == [len(decode(ids[:count])) for count in range(1, len(ids) + 1)]
    assert max(asked[:-1]) <= 48 and not text_ends([], decode)
