"""What further rows and numbers a token policy's rollout records: another precision, contrasts, what is trained."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.types import CONTRAST, OWN, Request
from tests.building import rescored
from tests.unit.policies.test_token_policy import PROMPTS, kept, rollout, token_policy

pytest.importorskip("transformers")


def test_in_another_precision_both_log_probs_are_kept_and_training_takes_its_own():
    policy = token_policy(sampling_dtype="bfloat16")
    made = rollout(policy)
    mask, sampler = made.decisions.loss_mask, made.decisions.fields["sampler_log_probs"]
    assert policy.fields == {"truncated", "entropy", "sampler_log_probs"} == made.decisions.fields.keys()
    own = made.decisions.log_probs
    torch.testing.assert_close(rescored(policy, made)[mask], own[mask], rtol=0, atol=1e-5)
    gap = (sampler - own)[mask].abs().max()
    assert 1e-4 < gap < 0.3 and not own[~made.decisions.decision_mask].any()


def test_log_probs_as_training_computes_them_do_not_depend_on_the_batch():
    policy = token_policy()
    sequences = kept(rollout(policy))
    with torch.no_grad():
        whole, single = (policy._training_scores(sequences, eval_batch_size=size)["log_probs"] for size in (16, 1))
    torch.testing.assert_close(whole, single, rtol=0, atol=1e-5)


def test_contrasts_are_rows_behind_the_groups_which_nothing_trains(monkeypatch):
    """A change that suits one of three prompts, with two rows of it."""
    policy = token_policy(contrast="shuffled_frames")
    asked = []

    def contrast(inputs):
        asked.append((inputs["prompt"].id, inputs["group_size"], inputs["seed"]))
        return inputs["prompt"], 2 if inputs["prompt"].id == "1" else 0

    monkeypatch.setattr(policy.walk.additions[0], "change", contrast)
    made, plain = rollout(policy, group_size=4), rollout(token_policy(), group_size=4)
    assert asked == [("0", 4, 3), ("1", 4, 3), ("2", 4, 3)]
    assert made.decisions.origin.tolist() == [OWN] * 12 + [CONTRAST] * 2
    assert made.decisions.keys["prompt"].tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [1] * 2
    assert [prompt.id for prompt in made.prompts[12:]] == ["1", "1"]
    assert not made.decisions.loss_mask[12:].any() and made.decisions.decision_mask[12:, 0].all()
    # the groups are those without it, and the contrast draws from a stream of its own
    assert list(made.outputs[:12]) == list(plain.outputs)
    assert list(made.outputs[12:]) != list(made.outputs[4:6])


def test_suppressed_tokens_are_never_said_and_begin_suppressed_ones_not_first():
    policy = token_policy()
    (a,), (b,) = (policy.model.spell(word)[:-1] for word in "ab")
    policy.suppressed, policy.begin_suppressed = torch.tensor([a]), torch.tensor([b])
    made = rollout(policy, group_size=64)
    ids, real = kept(made).ids, made.decisions.decision_mask
    assert not (ids == a)[real].any()
    assert not (ids[:, 0] == b).any() and (ids[:, 1:] == b)[real[:, 1:]].any()
    gap = (rescored(policy, made) - made.decisions.log_probs)[made.decisions.loss_mask]
    assert gap.abs().max() < 1e-5 and torch.equal(made.decisions.loss_mask, real)


def test_a_prompt_passes_once_for_its_group_with_the_gradient_of_a_pass_for_each_row(monkeypatch):
    """Prefix Grouper: each of three prompts, padded to one length, is read once and not for each of its 8 rows."""
    found = {}
    for share in (True, False):
        policy, read = token_policy(share_prefix=share), []
        made, hidden = rollout(policy), policy.model.hidden

        def counted(network, ids, *others, hidden=hidden, read=read):
            read.append(ids.numel())
            return hidden(network, ids, *others)

        monkeypatch.setattr(policy.model, "hidden", counted)
        (part,) = made.steps.split(made.decisions.loss_mask, 1000)
        log_probs = policy.score(made, part, frozenset({"log_probs"}))["log_probs"]
        (log_probs * torch.linspace(-1, 1, len(log_probs))).mean().backward()
        found[share] = [parameter.grad for parameter in policy.network.parameters()], sum(read), kept(made).context.ids
    (shared, tokens, prompts), (alone, each, _) = found[True], found[False]
    torch.testing.assert_close(shared, alone, rtol=0, atol=1e-5)
    assert max(float(gradient.abs().max()) for gradient in alone) > 0.1
    assert each - tokens >= 7 * prompts.numel()


@pytest.mark.parametrize("share_prefix", [True, False])
@pytest.mark.parametrize("size", [1, 3, 5, 100])
def test_a_group_drawn_in_parts_is_the_group_drawn_at_once(size, share_prefix):
    """Infinite Sampling (arXiv:2506.22950): every row has its own random numbers, whatever is drawn next to it."""
    request = Request(PROMPTS[:2], [0, 1], 4, 5, records=frozenset({"certainty"}))
    whole = token_policy(share_prefix=share_prefix).rollout(request)
    parts = token_policy(share_prefix=share_prefix, draw_batch_size=size).rollout(request)
    assert [one.text for one in parts.outputs] == [one.text for one in whole.outputs]  # type: ignore[union-attr]
    assert torch.equal(parts.decisions.loss_mask, whole.decisions.loss_mask)
    for name in ("log_probs", "entropy", "certainty"):
        one, other = ({"log_probs": d.log_probs, **d.fields}[name] for d in (parts.decisions, whole.decisions))
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="draw_batch_size.*3"):
        token_policy(draw_batch_size=3, divergence=True)
