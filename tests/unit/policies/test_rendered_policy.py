"""A token policy with a renderer behind it: what is rendered, what is scored, and what passes through."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmgrpo.policies.rendered import READ, Reading, RenderedTokenPolicy
from mmgrpo.types import Prompt, Request, Text
from tests.unit.policies.test_token_policy import PROMPTS, token_policy

pytest.importorskip("transformers")

REQUEST = Request(PROMPTS, [0, 1, 2], 4, 3)


def loud(prompt: Prompt, text: Text) -> Text:
    return Text(f"{prompt.id}: {text.text.upper()}", text.tokens)


class CountingReader:
    """Says how many tokens of a row are speech, and how long its text is."""

    def read(self, speech: Tensor, real: Tensor, texts) -> Tensor:
        return (speech.sum(2) * real).sum(1) + 100.0 * torch.tensor([len(text) for text in texts])


def rendered(**settings) -> RenderedTokenPolicy:
    return RenderedTokenPolicy(token_policy(keep_reference=True), loud, **settings)


@pytest.mark.parametrize("reading", [None, Reading(CountingReader(), torch.arange(2, 7))])
def test_every_completion_is_rendered_with_its_prompt_and_scored_as_tokens(reading):
    policy, plain = rendered(reading=reading), token_policy(keep_reference=True)
    made, tokens = policy.rollout(REQUEST), plain.rollout(REQUEST)
    assert [output.text for output in made.outputs] == [
        f"{prompt.id}: {output.text.upper()}" for prompt, output in zip(tokens.prompts, tokens.outputs, strict=True)
    ]
    assert torch.equal(made.decisions.log_probs, tokens.decisions.log_probs)
    names = frozenset({"log_probs", "entropy", "reference.log_probs"})
    [part], [other] = (list(one.steps.split(one.decisions.loss_mask, 100)) for one in (made, tokens))
    got, wanted = policy.score(made, part, names), plain.score(tokens, other, names)
    assert got.keys() == wanted.keys() == names
    for name in names:
        torch.testing.assert_close(got[name], wanted[name])
    assert [output.text for output in policy.sample(REQUEST)] == [
        f"{PROMPTS[row // 4].id}: {output.text.upper()}" for row, output in enumerate(plain.sample(REQUEST))
    ]


def test_a_reader_scores_every_decision_of_a_row_where_it_is_asked():
    policy = rendered(reading=Reading(CountingReader(), torch.arange(2, 7)))
    made = policy.rollout(REQUEST)
    parts = list(made.steps.split(made.decisions.loss_mask, 5))
    assert len(parts) == 3 and made.steps.seed == 3
    for part in parts:
        scores = policy.score(made, part, frozenset({"log_probs", READ}))
        assert scores.keys() == {"log_probs", READ}
        ids = made.steps.sequences.ids[part.rows]
        speech = (torch.isin(ids, torch.arange(2, 7)) & made.steps.sequences.real[part.rows]).sum(1)
        lengths = torch.tensor([len(made.prompts[row].text) for row in part.rows.tolist()])
        torch.testing.assert_close(scores[READ].detach(), speech + 100.0 * lengths)


def test_it_provides_a_readers_score_only_with_a_reader():
    with_reader, without = rendered(reading=Reading(CountingReader(), torch.arange(2))), rendered()
    assert with_reader.provides == without.provides | {READ} and READ not in without.provides
    assert without.provides == without.tokens.provides and without.reading is None
    assert (without.keys, without.fields) == (without.tokens.keys, without.tokens.fields)
    assert without.model is without.tokens.model and without.feature_cache is without.tokens.feature_cache
    assert without.settings is None


def test_network_temperature_reference_and_folder_are_those_of_the_tokens(tmp_path):
    policy = RenderedTokenPolicy(token_policy(), loud)
    assert policy.network is policy.tokens.network and policy.evaluation_temperature == 0
    other = torch.nn.Identity()
    policy.evaluation_temperature = 0.5
    assert policy.tokens.evaluation_temperature == policy.evaluation_temperature == 0.5
    policy.save(tmp_path)
    assert (tmp_path / "config.json").is_file()
    with torch.no_grad():
        policy.network.lm_head.weight += 1
    policy.keep_reference()
    with policy.model.reference() as reference:
        assert torch.equal(reference.lm_head.weight, policy.network.lm_head.weight)
    policy.network = other
    assert policy.tokens.network is policy.network is other


def test_a_completion_that_cannot_be_rendered_stops_the_run_and_is_told():
    def broken(prompt: Prompt, text: Text) -> Text:
        raise OSError("the vocoder is out")

    policy = RenderedTokenPolicy(token_policy(), broken)
    with pytest.raises(RuntimeError, match=r"'0' \('say a'\).*OSError: the"):
        policy.rollout(REQUEST)
