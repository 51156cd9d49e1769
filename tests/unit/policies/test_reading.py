"""DiffRO: noise under which a sampled token wins, its relaxation, and a tiny reader's gradient through the update."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from mmgrpo.objectives.divergences import diffro
from mmgrpo.policies.rendered import Reading, gumbel_given_argmax, straight_through
from mmgrpo.randomness import stream
from mmgrpo.types import Prompt, Request
from mmgrpo.update import Batch, LossRecipe, accumulate_gradients
from pipelines import speech
from pipelines.speech import codec_speech
from tests.building import load
from tests.tiny import maker

PROMPTS = [Prompt("12", "0"), Prompt("3", "1")]
CODES = 8


class Bag:
    """Digit d has the logit W[d] x (mean of the speech tokens), so code d speaks for it; order does not count."""

    weight = 4 * torch.eye(10, CODES) + torch.linspace(-2, 2, 10 * CODES).sin().view(10, CODES)

    def read(self, speech: Tensor, real: Tensor, texts: Sequence[str]) -> Tensor:
        mean = (speech * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        digits = (mean @ self.weight.T).log_softmax(-1)
        return torch.stack([row[[int(digit) for digit in text]].mean() for row, text in zip(digits, texts)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return maker("codec_speech")(tmp_path_factory.mktemp("codec") / "tiny", codes=CODES)


def test_the_sampled_token_wins_under_the_noise_and_the_noise_is_gumbel():
    log_probs = torch.tensor([0.6, 0.3, 0.1]).log().repeat(20_000, 1)
    random = torch.Generator().manual_seed(0)
    code = torch.multinomial(log_probs[0].exp(), 20_000, replacement=True, generator=random)
    noise = gumbel_given_argmax(log_probs, code, random)
    assert torch.equal((log_probs + noise).argmax(1), code)
    # Over the sampled tokens the noise is standard Gumbel, independent of the probability: mean .5772, variance 1.645.
    assert noise.mean(0).tolist() == pytest.approx([0.5772] * 3, abs=0.04)
    assert noise.var(0).tolist() == pytest.approx([1.645] * 3, abs=0.1)
    assert torch.corrcoef(noise.T).triu(1).abs().max() < 0.03


def test_what_is_read_is_one_token_with_the_gradient_of_the_softmax():
    perturbed = torch.tensor([[[0.0, 1.0]]], requires_grad=True)
    speech = straight_through(perturbed, torch.tensor([[0]]), temperature=0.5)
    assert speech.tolist() == [[[1.0, 0.0]]]
    speech[0, 0, 1].backward()
    # softmax([0, 2])[1] = .8808; its derivative by the second value is .8808 x .1192 / .5
    assert perturbed.grad is not None and perturbed.grad[0, 0].tolist() == pytest.approx([-0.20999, 0.20999], abs=1e-5)
    assert Reading(Bag(), torch.arange(2)).temperature == 1


def test_the_term_is_for_samples_of_positive_advantage():
    read, advantages = torch.tensor([[-2.0, -2.0], [-4.0, -4.0]]), torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    assert diffro(read, advantages, coef=0.5).tolist() == [[1, 1], [0, 0]]
    assert diffro(read, advantages, coef=0.5, every=True).tolist() == [[1, 1], [2, 2]]
    assert diffro(read, 0 * advantages, coef=0.5).abs().max() == 0


def gradients(policy, rollout, advantages: Tensor, limit: int, *terms: str) -> dict[str, Tensor]:
    policy.network.zero_grad(set_to_none=True)
    decisions = rollout.decisions
    rows = len(decisions.loss_mask)
    accumulate_gradients(
        policy,
        Batch([rollout], [torch.arange(rows)], decisions, advantages, decisions.loss_mask),
        torch.ones(rows, dtype=torch.bool),
        LossRecipe.of("ppo(low=0.2, high=0.2)", "per_sample", terms=terms),
        micro_batch_size=limit,
        accelerator=Accelerator(cpu=True),
        on_policy=True,
    )
    return {name: p.grad.clone() for name, p in policy.network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("limit", [100, 1])
def test_the_gradient_of_the_update_is_that_of_the_formula(limit, folder):
    """The formula is written out sample by sample, on whole sequences, with the network's own logits."""
    policy = speech.policy(
        folder, vocoder="tones", reader="tests.unit.policies.test_reading:Bag", reader_temperature=0.7, device="cpu",
        max_tokens=6, temperature=1.3,
    )  # fmt: skip
    rollout = policy.rollout(Request(PROMPTS, [5, 6], 4, seed=11))
    sequences, decisions = rollout.steps.sequences, rollout.decisions
    rows = len(rollout.prompts)
    signs = torch.tensor([1.0, -1.0] * (rows // 2))
    advantages = signs[:, None].expand_as(decisions.log_probs).contiguous()
    plain = gradients(policy, rollout, advantages, limit)
    both = gradients(policy, rollout, advantages, limit, "diffro(coef=0.3)")

    model, total = policy.model, torch.zeros(())
    order = sorted(model.codes, key=model.codes.get)
    policy.network.zero_grad(set_to_none=True)
    for row in range(rows):
        if signs[row] < 0:
            continue
        ids = sequences.ids[row][sequences.real[row]]
        start = model.encode([rollout.prompts[row]]).ids[0]
        logits = policy.network(torch.cat([start, ids])[None]).logits[0, len(start) - 1 : -1]
        log_probs = (logits[:, order] / 1.3).log_softmax(-1)
        width = sequences.ids.shape[1]  # noise is drawn for padding too
        padded = torch.zeros(width, CODES)
        padded[: len(ids)] = log_probs.detach()
        code = torch.tensor([model.codes.get(token, 0) for token in sequences.ids[row].tolist()])
        random = stream(11, "gumbel", 5 + row // 4, row)
        noise = gumbel_given_argmax(padded, code, random)[: len(ids)]
        spoken = [place for place, token in enumerate(ids.tolist()) if token in model.codes]
        soft = ((log_probs + noise) / 0.7).softmax(-1)[spoken]
        hard = torch.eye(CODES)[code[spoken]]
        mean = (hard + (soft - soft.detach())).mean(0)
        digits = (Bag.weight @ mean).log_softmax(0)
        total = total - 0.3 * torch.stack([digits[int(digit)] for digit in rollout.prompts[row].text]).mean() / rows
    total.backward()
    wanted = {name: p.grad for name, p in policy.network.named_parameters() if p.grad is not None}
    assert any(len(row[real]) < width for row, real in zip(sequences.ids, sequences.real))
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    assert largest > 1e-3
    for name, gradient in wanted.items():
        torch.testing.assert_close(both[name] - plain[name], gradient, rtol=1e-3, atol=1e-4 * largest, msg=name)


@pytest.mark.learning
def test_steps_with_the_term_raise_what_the_reader_reads(folder):
    policy = speech.policy(
        folder, vocoder="tones", reader="tests.unit.policies.test_reading:Bag", device="cpu", max_tokens=6
    )
    optimizer = torch.optim.Adam(policy.network.parameters(), lr=1e-2)

    def read(seed: int) -> tuple[Tensor, Tensor]:
        rollout = policy.rollout(Request(PROMPTS, [0, 1], 16, seed=seed))
        part = next(rollout.steps.split(rollout.decisions.loss_mask, 100))
        value = policy.score(rollout, part, frozenset({"log_probs", "read_log_probs"}))["read_log_probs"]
        return value, value.mean()

    before = float(read(100)[1].detach())
    for step in range(20):
        optimizer.zero_grad()
        (-read(step)[1]).backward()
        optimizer.step()
    assert float(read(100)[1].detach()) > before + 1.5


def test_a_policy_without_a_reader_does_not_offer_the_score(folder):
    assert "read_log_probs" not in speech.policy(folder, vocoder="tones", device="cpu").provides
    with pytest.raises(ValueError, match="model.reader.*'pipelines.speech.vocoders:Tones'"):
        load(codec_speech, folder, vocoder="tones", reader="pipelines.speech.vocoders:Tones")
