"""Completions scored again under changed pictures and clips, on models that see."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from mmgrpo.objectives.divergences import MASKED
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.randomness import derive
from mmgrpo.types import Image, Media, Prompt, Rollout
from mmgrpo.update import Batch, LossRecipe, accumulate_gradients
from tests.building import load, token_policy_over, trainer
from tests.seeing import (
    BOTH,
    CLIP,
    PICTURE,
    PICTURES,
    WORDS,
    asked,
    distance,
    kept,
    plain_inputs,
    rollout,
)

pytest.importorskip("transformers")

SMALL = "mask_patches(ratio=0.6, patch=3)"
"""PAPO's change for pictures of a few patches."""


def token_policy(name: str, folder: str | Path, **settings: Any) -> TokenPolicy:
    return token_policy_over(load(name, folder, **settings), max_tokens=5)


def under(policy: TokenPolicy, made: Rollout, change: str, limit: int = 100) -> Tensor:
    """Log-probs of all decisions under a change."""
    dense = torch.zeros_like(made.decisions.log_probs)
    with torch.no_grad():
        for part in made.steps.split(made.decisions.loss_mask, limit):
            dense[part.rows, part.positions] = policy.score(made, part, frozenset({f"log_probs@{change}"}))[
                f"log_probs@{change}"
            ]
    return dense


def loss_of(change: str = SMALL) -> LossRecipe:
    terms = [f"perception(gamma=0.5, change='{change}')", f"double_entropy(eta1=0.1, eta2=0.3, change='{change}')"]
    return LossRecipe.of("ppo(low=0.2, high=0.2)", "per_sample", terms=terms)


def gradients(policy: TokenPolicy, made: Rollout, loss: LossRecipe, limit: int = 100, scale: float = 1.0):
    """Gradients of a step's loss by parameter, and its tally; advantages differ from row to row."""
    policy.network.zero_grad()
    decisions = made.decisions
    advantages = scale * torch.sin(torch.arange(decisions.rows) + 1.0)[:, None].expand_as(decisions.log_probs)
    everyone = torch.arange(decisions.rows)
    tally = accumulate_gradients(
        policy,
        Batch([made], [everyone], decisions, advantages, decisions.loss_mask),
        torch.ones(decisions.rows, dtype=torch.bool),
        loss,
        micro_batch_size=limit,
        accelerator=Accelerator(cpu=True),
        on_policy=True,
    )
    return {n: p.grad.clone() for n, p in policy.network.named_parameters() if p.grad is not None}, tally


def hidden_by_hand(media: Media, index: int, seed: int, seen: tuple[int, int]) -> Media:
    """The picture with three of five patches black, pixel by pixel."""
    assert isinstance(media.source, Image)
    pixels = media.source.pixels.clone()
    (height, width), (rows, columns) = pixels.shape[1:], (-(-seen[0] // 3), -(-seen[1] // 3))
    generator = torch.Generator().manual_seed(derive(seed, "mask", index))
    hidden = set(torch.randperm(rows * columns, generator=generator)[: round(0.6 * rows * columns)].tolist())
    for y in range(height):
        for x in range(width):
            row, column = int((y + 0.5) * seen[0] / height) // 3, int((x + 0.5) * seen[1] / width) // 3
            if row * columns + column in hidden:
                pixels[:, y, x] = 0
    return Media("image", Image(pixels), media.options)


def said(policy: TokenPolicy, prompt: Prompt, completion: Tensor) -> Tensor:
    """Log-probs of a completion by the library's own forward pass."""
    logits = policy.network(**plain_inputs(policy.model, prompt, completion)).logits[0, -len(completion) - 1 : -1]
    logits = logits.index_fill(1, torch.tensor(sorted(policy.model.suppress_tokens)), -torch.inf)
    return logits.log_softmax(-1).gather(1, completion[:, None])[:, 0]


def test_the_gradient_is_that_of_a_naive_loop_over_rows(name, folder):
    """One row at a time, without padding, cache or parts: pictures masked by hand, the formula of the paper."""
    policy = token_policy(name, folder, freeze_vision=False)
    made = rollout(policy, [PICTURE, PICTURES, WORDS], group_size=2)
    got, tally = gradients(policy, made, loss_of(), limit=5)  # words and pictures in one part
    steps, decisions = kept(made), made.decisions
    policy.network.zero_grad()
    total, divergence = torch.zeros(()), 0.0
    for row in range(decisions.rows):
        prompt, slot = made.prompts[row], int(decisions.keys["prompt"][row])
        seen = steps.context.seen[int(steps.prompt[row])]
        media = iter(
            hidden_by_hand(one, index, derive(steps.seed, "change", slot), seen[index])
            for index, one in enumerate(prompt.media)
        )
        parts = [part if isinstance(part, str) else next(media) for turn in prompt.turns for part in turn.parts]
        completion = steps.ids[row][steps.real[row]]
        now = said(policy, prompt, completion)
        masked = said(policy, asked(prompt.id, *parts), completion) if prompt.media else now
        ratio = (now - masked).exp()
        gain = torch.stack([one - one.log() - 1 if one - one.log() - 1 < 10 else torch.tensor(10.0) for one in ratio])
        old, advantage = now.detach(), torch.sin(torch.tensor(row + 1.0))
        loss = -(now - old).exp() * advantage - 0.5 * gain - 0.1 * now - 0.3 * masked
        total = total + loss.mean() / decisions.rows
        divergence += float(gain.detach().mean()) / decisions.rows
    total.backward()
    wanted = {n: p.grad.clone() for n, p in policy.network.named_parameters() if p.grad is not None}
    assert divergence > 0.01
    assert tally.sums["term/perception"] == pytest.approx(-0.5 * divergence, rel=1e-3)
    assert tally.sums["loss"] == pytest.approx(float(total.detach()), rel=1e-4)
    assert distance(got, wanted) < 1e-4


def test_parts_and_shared_prefixes_leave_the_gradient_unchanged(name, folder):
    policy = token_policy(name, folder, freeze_vision=False)
    made = rollout(policy)
    wanted, _ = gradients(policy, made, loss_of())
    for limit in (1, 4):
        assert distance(gradients(policy, made, loss_of(), limit)[0], wanted) < 1e-5
    alone = token_policy_over(policy.model, max_tokens=5, share_prefix=False)
    assert distance(gradients(alone, made, loss_of())[0], wanted) < 1e-5


def test_the_ratio_stays_one_and_the_terms_are_counted(name, folder):
    policy = token_policy(name, folder)
    made = rollout(policy)
    _, tally = gradients(policy, made, loss_of(), limit=4)
    assert tally.ratio_gap < 1e-5
    assert tally.sums["term/perception"] < -0.01 < 0 < tally.sums["term/double_entropy"]


def test_what_a_change_leaves_as_it_is_has_exactly_no_term(name, folder):
    """A prompt of words, under any change; a clip of one frame repeated, when its frames are shuffled."""
    policy = token_policy(name, folder)
    made = rollout(policy, [WORDS, PICTURE])
    words = torch.tensor([prompt is WORDS for prompt in made.prompts])
    now = under(policy, made, "shuffle_frames")
    masked = under(policy, made, SMALL)
    assert torch.equal(masked[words], now[words]) and (masked[~words] != now[~words]).any()
    plain = LossRecipe.of("ppo(low=0.2, high=0.2)", "per_sample")
    term = LossRecipe.of("ppo(low=0.2, high=0.2)", "per_sample", terms=[f"perception(gamma=9, change='{SMALL}')"])
    only = rollout(policy, [WORDS])
    (with_term, tally), (without, _) = gradients(policy, only, term), gradients(policy, only, plain)
    assert tally.sums["term/perception"] == 0.0
    assert all(torch.equal(with_term[which], without[which]) for which in without)


def test_a_black_picture_has_nothing_to_hide(name, folder):
    black = asked("black", Media("image", Image(torch.zeros(3, 16, 16))), "what is it ?")
    policy = token_policy(name, folder)
    made = rollout(policy, [black])
    torch.testing.assert_close(under(policy, made, MASKED), under(policy, made, "shuffle_frames"), rtol=0, atol=1e-6)
    assert (under(policy, made, "blank") - under(policy, made, MASKED)).abs().max() > 1e-3  # grey is not black


def test_members_of_a_group_share_a_change_and_no_two_groups_or_rounds_do(name, folder):
    twin = dataclasses.replace(PICTURE)
    policy = token_policy(name, folder)
    made = rollout(policy, [PICTURE, twin], group_size=2)
    changed, rows = policy.changed_prompts.sequences(made, SMALL)
    assert rows.all() and changed.prompt.tolist() == [0, 0, 1, 1]

    def shown(sequences: Any) -> list[Tensor]:
        return [one[0].patches if hasattr(one[0], "patches") else one[0].tiles for one in sequences.context.media]

    first, second = shown(changed)
    assert not torch.equal(first, second)
    (later,) = shown(policy.changed_prompts.sequences(rollout(policy, [PICTURE], 2, seed=4), SMALL)[0])
    assert not torch.equal(first, later)
    (again,) = shown(policy.changed_prompts.sequences(rollout(policy, [PICTURE], 2), SMALL)[0])
    assert torch.equal(first, again)


def test_the_features_of_a_frozen_tower_are_computed_once_for_a_change(name, folder, monkeypatch):
    policy = token_policy(name, folder, freeze_vision=True)
    made = rollout(policy)
    seen = []
    compute = policy.model.features
    monkeypatch.setattr(policy.model, "features", lambda *given: seen.append(1) or compute(*given))
    under(policy, made, SMALL, limit=3)
    gradients(policy, made, loss_of(), limit=3)
    assert len(seen) == 1


def test_adapters_get_the_gradient_of_both_sides(name, folder):
    policy = token_policy(name, folder, lora_rank=2, freeze_vision=True)
    made = rollout(policy, [PICTURE, CLIP, BOTH])
    text = f"perception(gamma=1, limit=inf, change='{SMALL}'"
    both, one = (
        gradients(policy, made, LossRecipe.of("ppo", "per_sample", terms=[f"{text}{more})"]), scale=0.0)[0]
        for more in ("", ", both_sides=False")
    )
    assert all(".lora_" in which for which in both) and distance(both, one) > 0.1


def test_a_run_with_the_terms_of_papo_resumes_with_the_same_numbers(name, folder, tmp_path):
    prompts = [dataclasses.replace(one, id=str(number)) for number, one in enumerate([PICTURE, CLIP, BOTH, PICTURES])]
    short = SMALL.replace("3)", "4)")

    def fresh(where: Path) -> Any:
        terms = [f"perception(gamma=0.02, change='{short}')", f"double_entropy(eta1=0.03, eta2=0.03, change='{short}')"]
        loss = LossRecipe.of("ppo(low=0.2, high=0.28)", "per_decision", terms=terms)
        policy = token_policy(name, folder)
        return trainer(policy, where, prompts, reward=length, loss=loss, steps=4, updates=2, micro_batch_size=3)

    fresh(tmp_path / "whole").fit()
    killed = fresh(tmp_path / "broken")
    killed.run_round()
    killed.save()
    resumed = fresh(tmp_path / "broken")
    assert resumed.resume() and resumed.step == 2
    resumed.fit()
    whole, broken = (told(tmp_path / which) for which in ("whole", "broken"))
    assert whole == broken and all(line["term/perception"] < 0 for line in whole)
    assert all(line["ratio/first_minus_one"] < 1e-5 for line in whole)


def length(prompts: Any, outputs: Any) -> list[float]:
    return [float(output.tokens) for output in outputs]


def told(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    untold = ("seconds", "memory")
    return [{k: v for k, v in line.items() if not k.startswith("time/") and k not in untold} for line in lines]
