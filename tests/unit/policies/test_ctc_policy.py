"""One transcript a sample, on a table of frames: likelihoods, duplicates, training against enumeration, learning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from mmgrpo.advantages.estimate import estimate
from mmgrpo.config.presets import BASE, CATALOGUE, PRESETS
from mmgrpo.policies.ctc import CtcModel, CtcPolicy
from mmgrpo.trainer import Trainer
from mmgrpo.types import Output, Policy, Prompt, Request, Rollout
from mmgrpo.update import Batch, accumulate_gradients
from pipelines.training import FrozenCopy
from reward_models.rules.transcripts import word_errors
from tests.building import algorithm_blocks, rescored, trainer
from tests.unit.policies.test_alignments import every_transcript

FRAMES, LETTERS = 5, "a-bc"  # the blank is label 1
PROMPTS = [Prompt("", str(number), answer=answer) for number, answer in enumerate(("abc", "cc", "b"))]


class Spelling:
    """A row of logits for every prompt and frame; a prompt's id is its row."""

    blank = 1

    def __init__(self, seed: int = 0, spread: float = 1.0, frames: int = FRAMES) -> None:
        self.network: nn.Module = nn.Embedding(len(PROMPTS), frames * len(LETTERS))
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.network.weight.copy_(spread * torch.randn(self.network.weight.shape, generator=random))
        self.reference = FrozenCopy(self.network)
        self.reference.keep()
        self.passes = 0

    def encode(self, prompt: Prompt) -> int:
        return int(prompt.id)

    def logits(self, network: nn.Module, clip: int) -> Tensor:
        self.passes += 1
        return network(torch.tensor(clip)).view(-1, len(LETTERS))

    def decode(self, transcript: Sequence[int]) -> str:
        return "".join(LETTERS[label] for label in transcript)

    def save(self, folder: Path, network: nn.Module) -> None:
        folder.mkdir(parents=True, exist_ok=True)


def policy(seed: int = 0, spread: float = 1.0, **settings) -> CtcPolicy:
    return CtcPolicy(Spelling(seed, spread), **settings)


def rollout(made: CtcPolicy, group_size: int = 8, seed: int = 3) -> Rollout:
    return made.rollout(Request(PROMPTS, range(3), group_size, seed))


def letters_wrong(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Reward: minus the number of wrong letters."""
    return [-float(word_errors(prompt.answer, output.text)) for prompt, output in zip(prompts, outputs, strict=True)]


def test_it_is_a_policy_and_its_table_a_recognizer():
    made = policy()
    assert isinstance(made, Policy) and isinstance(made.model, CtcModel)


@pytest.mark.parametrize("search", ["sample", "beam"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_log_probs_are_sums_over_all_paths_of_the_tempered_frames(temperature, search):
    made = policy(temperature=temperature, search=search)
    rolled = rollout(made)
    assert rolled.decisions.log_probs.shape == (24, 1) and rolled.evaluations == 3
    for number in range(3):
        logits = made.network.weight[number].detach().double().view(FRAMES, -1)
        every = every_transcript((logits / temperature).log_softmax(-1))
        for row in range(8 * number, 8 * number + 8):
            wanted = every[rolled.steps.labels[row]]
            assert float(rolled.decisions.log_probs[row, 0]) == pytest.approx(float(wanted), abs=2e-6)
            assert rolled.outputs[row].text == made.model.decode(rolled.steps.labels[row])


def test_a_clip_takes_one_pass_per_rollout_and_per_update_however_many_transcripts_it_has():
    made = policy()
    rolled = rollout(made, group_size=16)
    assert made.model.passes == 3
    mask = rolled.decisions.loss_mask
    for limit, sizes in ((1, [16, 16, 16]), (2, [32, 16]), (3, [48])):
        made.model.passes = 0
        assert [len(part.rows) for part in rolled.steps.split(mask, limit)] == sizes
        rescored(made, rolled, limit=limit)
        assert made.model.passes == 3
    some = mask.clone()
    some[:17] = False
    assert [part.rows.tolist() for part in rolled.steps.split(some, 1)] == [[*range(17, 32)], [*range(32, 48)]]
    assert list(rolled.steps.split(torch.zeros_like(mask), 4)) == []


def gradient_of_a_round(made: CtcPolicy, rolled: Rollout, preset: str) -> Tensor:
    """What one update of a preset adds to the gradient, with minus the wrong letters as the reward."""
    rewards = torch.tensor(letters_wrong(rolled.prompts, rolled.outputs))[:, None]
    blocks, valid = algorithm_blocks(preset), torch.ones(len(rewards), 1, dtype=torch.bool)
    told = estimate(rewards, valid, torch.ones(1), rolled.decisions, blocks["advantages"])
    batch = Batch([rolled], [torch.arange(len(rewards))], rolled.decisions, told.advantages, told.loss_mask)
    accumulate_gradients(
        made,
        batch,
        torch.ones(len(rewards), dtype=torch.bool),
        blocks["loss"],
        micro_batch_size=2,
        accelerator=Accelerator(cpu=True),
        on_policy=True,
    )
    assert made.network.weight.grad is not None
    gradient, made.network.weight.grad = made.network.weight.grad.clone(), None
    return gradient


def enumerated(made: CtcPolicy) -> list[dict[tuple[int, ...], Tensor]]:
    return [every_transcript(row.view(FRAMES, -1).log_softmax(-1)) for row in made.network.weight]


def test_sampled_mwer_counts_every_duplicate_as_often_as_it_was_drawn():
    """(1/N) sum_i (W_i - mean W) d log p(y_i), of enumerated sums over paths (arXiv:1712.01818)."""
    made = policy(spread=2.5)
    rolled = rollout(made, group_size=12)
    ours, every = gradient_of_a_round(made, rolled, "mwer"), enumerated(made)
    labels, loss = rolled.steps.labels, torch.zeros(())
    for number in range(3):
        rows = range(12 * number, 12 * number + 12)
        assert len({labels[row] for row in rows}) < 12
        for row in rows:  # equal transcripts have equal log-probs, to the last bit
            twins = [other for other in rows if labels[other] == labels[row]]
            assert rolled.decisions.log_probs[twins].unique().numel() == 1
        errors = -torch.tensor(letters_wrong([PROMPTS[number]] * 12, rolled.outputs[rows.start : rows.stop]))
        scores = torch.stack([every[number][labels[row]] for row in rows])
        loss = loss + ((errors - errors.mean()) @ scores) / 36
    (wanted,) = torch.autograd.grad(loss, made.network.weight)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-6)
    assert wanted.abs().max() > 1e-2


def test_mwer_over_the_list_of_a_beam_has_the_gradient_of_its_expected_errors():
    """sum_i P_i W_i with P_i = p_i / sum_j p_j, differentiated by itself (arXiv:1712.01818, eq. 6)."""
    made = policy(search="beam")
    rolled = rollout(made, group_size=4)
    ours, every = gradient_of_a_round(made, rolled, "mwer_n_best"), enumerated(made)
    expected = torch.zeros(())
    for number in range(3):
        rows = range(4 * number, 4 * number + 4)
        group = [rolled.steps.labels[row] for row in rows]
        assert len(set(group)) == 4
        errors = -torch.tensor(letters_wrong([PROMPTS[number]] * 4, rolled.outputs[rows.start : rows.stop]))
        expected = expected + torch.stack([every[number][one] for one in group]).softmax(0) @ errors / 3
    (wanted,) = torch.autograd.grad(expected, made.network.weight)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-6)
    assert wanted.abs().max() > 1e-2


def test_evaluation_takes_the_likeliest_label_of_every_frame_or_draws_at_its_temperature():
    made = policy()
    with torch.no_grad():  # aa-ab, cc-cc and nothing
        for row, path in enumerate(((0, 0, 1, 0, 2), (3, 3, 1, 3, 3), (1, 1, 1, 1, 1))):
            made.network.weight[row] = torch.nn.functional.one_hot(torch.tensor(path), 4).flatten().float()
    first, other = (made.sample(Request(PROMPTS, range(3), 2, seed)) for seed in (0, 1))
    assert [one.text for one in first] == ["aab", "aab", "cc", "cc", "", ""] and first == other
    assert [one.tokens for one in first] == [3, 3, 2, 2, 0, 0]
    drawing = CtcPolicy(made.model, evaluation_temperature=1.0)
    drawn = [drawing.sample(Request(PROMPTS, range(3), 20, seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2] and len({one.text for one in drawn[0][:20]}) > 5
    cold = CtcPolicy(made.model, evaluation_temperature=0.02)
    assert cold.sample(Request(PROMPTS, range(3), 2, 0)) == first


def test_what_cannot_be_sampled_is_refused():
    with pytest.raises(ValueError, match="temperature 0.0.*0"):
        policy(temperature=0.0)
    with pytest.raises(ValueError, match="'greedy'"):
        policy(search="greedy")
    short = CtcPolicy(Spelling(frames=1), search="beam")  # one frame: a, b, c or nothing
    assert len(rollout(short, group_size=4).outputs) == 12
    with pytest.raises(ValueError, match="'0'.*4 transcripts.*1.*5"):
        rollout(short, group_size=5)


def begins_right(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Reward of 0 or 1, as several presets want it: the first letter, or nothing at all."""
    return [float(output.text[:1] in prompt.answer) for prompt, output in zip(prompts, outputs, strict=True)]


REFUSED = {"edge_grpo": "entropy", "high_entropy": "entropy", "tree_grpo": "algorithm.keys.*tree"}
REFUSED |= {"treerpo": r"algorithm\.credit.*tree", "t1": "entropy", "ospo": "entropy"} | dict.fromkeys(
    ("gr_dpo", "gr_ipo", "sft"), r"data\.offline"
)
REFUSED |= dict.fromkeys(("vineppo", "clip_delta", "text2grad", "subpo"), r"sampling\.states")
REFUSED |= dict.fromkeys(("gigpo", "igpo", "turn_ppo", "archer"), r"sampling\.tools")
REFUSED |= dict.fromkeys(("module_grpo", "agent_flow", "magrpo"), r"sampling\.tools")
REFUSED |= dict.fromkeys(("ppo", "ppo_max", "b_coder"), "critic") | {"polychromic_ppo": "answer_class"}
REFUSED |= dict.fromkeys(("papo_g", "papo_d"), "changed") | {"tw_grpo": "divergence", "rapo": "entropy"}
REFUSED |= {"rover": "certainty", "prorl": r"eval\.every", "tgdpo": "teacher.log_probs"}
REFUSED |= {
    name: rf"algorithm\.{line}"
    for name, blocks in PRESETS.items()
    for line in ("replay", "supervised", "hint", "added")
    if blocks[line] != BASE[line]
}
REFUSED |= dict.fromkeys(("gtpo", "hapo_entropy", "entropy_advantage", "critique_grpo"), "entropy") | {
    "ucas": "certainty",
    "sepo": "conditional_entropy",
    "rmt": r"algorithm\.(hint|supervised)",
}
REFUSED |= dict.fromkeys(("rto", "opd", "va_opd"), "teacher.log_probs")
"""Presets that need what this policy has not."""


FITTING = [name for name, one in CATALOGUE.items() if one.policies in ("any", "tokens")]
FIRST = {PRESETS[name]["objective"].partition("(")[0]: name for name in reversed(FITTING) if name not in REFUSED}
"""A preset of each objective, which reads what this policy gives; the other blocks read numbers of any policy."""


@pytest.mark.parametrize(
    "preset",
    [
        name if name in (*REFUSED, *FIRST.values()) else pytest.param(name, marks=pytest.mark.nightly)
        for name in FITTING
    ],
)
def test_a_preset_trains_it_or_is_refused(preset, tmp_path):
    made = policy()
    blocks = algorithm_blocks(preset)

    def build() -> Trainer:
        return trainer(
            made, tmp_path, PROMPTS, reward=begins_right, prompts_per_step=3, group_size=8, steps=2, **blocks
        )

    if preset in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[preset]):
            build().fit()
        return
    before = made.network.weight.clone()
    build().fit()
    assert not torch.equal(made.network.weight, before) and bool(made.network.weight.isfinite().all())


WORDS = [Prompt("", str(number), answer=answer) for number, answer in enumerate(("abc", "ca", "b"))]


@pytest.mark.learning
@pytest.mark.parametrize(("preset", "search"), [("mwer", "sample"), ("grpo", "sample"), ("mwer_n_best", "beam")])
@pytest.mark.parametrize("seed", range(3))
def test_a_table_learns_to_spell(preset, search, seed, tmp_path):
    """Six of six seeds end without an error, with each of the three; one wrong letter in all is allowed here."""
    made = trainer(
        policy(seed, spread=0.3, search=search),
        tmp_path,
        WORDS,
        reward=letters_wrong,
        heldout=WORDS,
        prompts_per_step=3,
        group_size=16,
        steps=60,
        lr=0.1,
        seed=seed,
        **algorithm_blocks(preset),
    )
    result = made.fit()["eval"]
    assert result["before"]["reward"]["mean"] < -1.3
    assert result["after"]["reward"]["mean"] > -0.34
