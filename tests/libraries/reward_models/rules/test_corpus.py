"""Error rates of whole files, and aligned words, as the rewards that compare transcripts carry them."""

from __future__ import annotations

from mmgrpo.rewards import scorer
from mmgrpo.types import Prompt, Text
from reward_models.rules import corpus

PROMPTS = [Prompt("", answer="It's a colour, Tom."), Prompt("", answer="old words")]
OUTPUTS = [Text("it is a color"), Text("")]


def test_error_rates_are_counted_as_the_reward_normalizes():
    wer, cer, _ = scorer("one_minus_wer").rates
    # it is a color tom: one deletion of 5 words; "tom" and its space of 17 characters; two of two, nine of nine.
    assert (wer.name, wer.errors(PROMPTS, OUTPUTS), wer.units(PROMPTS, OUTPUTS)) == ("wer", [1, 2], [5, 2])
    assert (cer.name, cer.errors(PROMPTS, OUTPUTS), cer.units(PROMPTS, OUTPUTS)) == ("cer", [4, 9], [17, 9])
    raw, _ = scorer("neg_wer(normal='raw')").rates
    # It's -> it, a -> is, colour, -> a, Tom. -> color
    assert (raw.errors(PROMPTS[:1], OUTPUTS[:1]), raw.units(PROMPTS[:1], OUTPUTS[:1])) == ([4], [4])


def test_notes_and_rates_are_of_english_unless_another_rule_is_named():
    prompt, output = [Prompt("", answer="It's")], [Text("it is")]
    assert [rate.errors(prompt, output) for rate in corpus.rates()] == [[0], [0], [0]]
    assert [rate.errors(prompt, output) for rate in corpus.rates("raw")] == [[2], [3]]
    assert corpus.annotate()(prompt, output) == [{"aligned": [("equal", "it", "it"), ("equal", "is", "is")]}]


def test_other_rewards_have_no_error_rate():
    for name in ("sentence_bleu", "scene_all"):
        assert not scorer(name).rates


def test_words_are_aligned_for_people_where_there_is_one_reference():
    note = scorer("one_minus_wer").annotate
    assert note is not None
    one, several = note([PROMPTS[1], Prompt("", answer=["a", "b"])], [Text("old swords"), Text("a")])
    assert one["aligned"] == [("equal", "old", "old"), ("replace", "words", "swords")] and several == {}
    assert scorer("sentence_bleu").annotate is None
