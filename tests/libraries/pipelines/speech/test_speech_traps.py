"""Mistakes that recipes for speech were seen to make without an error: each would be found out here.

What concerns audio language models is in test_qwen_audio.py, what rewards can get wrong in test_rules_speech.py.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.objectives.divergences import kl_k3
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.types import Request, Rollout
from pipelines.speech import whisper
from tests.building import load, rescored
from tests.libraries.pipelines.speech.test_qwen_audio import hum
from tests.seeing import asked, kept
from tests.tiny import tiny_checkpoint

CLIPS = [asked("low", hum(0)), asked("high", hum(5)), asked("long", hum(2, 2.0))]
LOG_PROBS = frozenset({"log_probs"})


@pytest.fixture(scope="module")
def folder() -> str:
    return tiny_checkpoint(whisper.tiny)


def rollout(policy: TokenPolicy, group_size: int = 4) -> Rollout:
    return policy.rollout(Request(CLIPS, [0, 1, 2], group_size, 0))


# --- the sampler ----------------------------------------------------------------------------------


def test_a_clip_has_exactly_as_many_transcripts_as_were_asked_for_and_none_holds_a_time_stamp(folder):
    """The library's generate returns fewer rows when a stamp is drawn: it takes the window for unfinished."""
    family = load(whisper, folder, seconds=4)
    family.end_ids |= frozenset(range(100, 140))
    made = rollout(TokenPolicy(family, max_tokens=20, temperature=1.5), group_size=8)
    assert made.decisions.keys["prompt"].tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert len(made.outputs) == 24 and made.decisions.decision_mask[:, 0].all()
    stamps = [family.tokenizer.convert_tokens_to_ids(f"<|{step / 50:.2f}|>") for step in range(4)]
    assert set(stamps) <= family.suppress_tokens
    assert not torch.isin(kept(made).ids, torch.tensor(stamps)).any()


def test_the_beginning_is_given_the_end_is_decided_and_the_padding_after_it_is_neither(folder):
    """Whisper pads with its end token, so no mask can be made of the tokens."""
    family = load(whisper, folder, seconds=4)
    assert family.pad_id in family.end_ids
    family.logits = lambda network, hidden: network.proj_out(hidden).index_fill(  # type: ignore[method-assign]
        1, torch.tensor(family.pad_id), 4.0
    )
    made = rollout(TokenPolicy(family, max_tokens=12), group_size=8)
    ids, decision_mask = kept(made).ids, made.decisions.decision_mask
    assert decision_mask.sum(1).min() < decision_mask.sum(1).max() and not made.decisions.fields["truncated"].all()
    for row, real in zip(ids.tolist(), decision_mask, strict=True):
        length = int(real.sum())
        assert real[:length].all() and family.pad_id not in row[: length - 1]
        assert row[length - 1] == family.pad_id or length == 12
        assert set(row[length:]) <= {family.pad_id}
    beginning = torch.tensor(family.prefix)
    assert not torch.isin(ids, beginning).any() and torch.equal(kept(made).context.ids[0], beginning)


def test_what_was_sampled_is_scored_and_not_what_its_text_would_be_cut_into(folder):
    family = load(whisper, folder, seconds=4)
    policy = TokenPolicy(family, max_tokens=12)
    made = rollout(policy)
    again = [family.tokenizer(text.text, add_special_tokens=False)["input_ids"] for text in made.outputs]
    sampled = [ids[real].tolist() for ids, real in zip(kept(made).ids, made.decisions.decision_mask, strict=True)]
    assert sum(one != other for one, other in zip(again, sampled, strict=True)) == 12  # bytes that are no text
    torch.testing.assert_close(rescored(policy, made), made.decisions.log_probs, rtol=0, atol=1e-5)


# --- the sound ------------------------------------------------------------------------------------


def test_encoder_states_are_interleaved_over_the_group_and_tiled_ones_are_found_out(folder):
    """The order 0 0 1 1 and not 0 1 0 1."""
    from transformers.modeling_outputs import BaseModelOutput

    family: Any = load(whisper, folder)
    family.end_ids = frozenset()
    made = TokenPolicy(family, max_tokens=6).rollout(Request(CLIPS[:2], [0, 1], 2, 0))
    context = family.encode(CLIPS[:2])
    silent, at_first = (torch.tensor(sorted(ids)) for ids in (family.suppress_tokens, family.begin_suppress_tokens))
    ids = torch.cat([context.ids.repeat_interleave(2, 0), kept(made).ids], 1)

    def library(states: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            logits = family.network(decoder_input_ids=ids, encoder_outputs=BaseModelOutput(states)).logits
        logits = logits[:, context.ids.shape[1] - 1 : -1].index_fill(2, silent, -torch.inf)
        logits[:, 0, at_first] = -torch.inf
        return logits.log_softmax(-1).gather(2, kept(made).ids[..., None])[..., 0]

    with torch.no_grad():
        states = family.network.model.encoder(torch.stack(list(context.media))).last_hidden_state
    found = made.decisions.log_probs
    torch.testing.assert_close(found, library(states.repeat_interleave(2, 0)), rtol=0, atol=1e-5)
    gap = (found - library(states.repeat(2, 1, 1))).abs().amax(1)
    assert gap[[0, 3]].max() < 1e-5 and gap[[1, 2]].min() > 1e-3


# --- the update -----------------------------------------------------------------------------------


def test_the_ratio_begins_at_one_though_the_config_asks_for_dropout_layerdrop_and_masked_sound(folder, tmp_path: Path):
    shutil.copytree(folder, tmp_path / "wet")
    path = tmp_path / "wet" / "config.json"
    wet = {"dropout": 0.5, "attention_dropout": 0.5, "activation_dropout": 0.5, "apply_spec_augment": True}
    wet |= {"encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5, "mask_time_prob": 0.5, "mask_feature_prob": 0.5}
    path.write_text(json.dumps(json.loads(path.read_text()) | wet))
    family = load(whisper, tmp_path / "wet", seconds=4, freeze_encoder=False)
    assert family.network.config.dropout == 0.5  # type: ignore[union-attr]
    policy = TokenPolicy(family, max_tokens=6)
    family.network.train()  # as a trainer might
    made = rollout(policy)
    for part in made.steps.split(made.decisions.loss_mask, 5):
        scored = policy.score(made, part, LOG_PROBS)["log_probs"].detach()
        torch.testing.assert_close(scored, made.decisions.log_probs[part.rows, part.positions], rtol=0, atol=1e-5)


def test_a_kl_of_tokens_stays_small_where_one_of_the_whole_row_would_burst():
    """20 tokens, each 1 nat less likely than in the reference: e - 2 = 0.718 a token, e^20 - 21 = 4.85e8 of the sum."""
    now, before = torch.full((1, 20), -3.0), torch.full((1, 20), -2.0)
    assert kl_k3(now, before, coef=1.0).mean().item() == pytest.approx(math.e - 2, abs=1e-5)
    summed = kl_k3(now.sum(1), before.sum(1), coef=1.0).item()
    assert summed == pytest.approx(math.exp(20) - 21, rel=1e-5) and summed > 4.8e8


# --- advantages -----------------------------------------------------------------------------------
