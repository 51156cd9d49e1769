"""Runs of a few steps that must not depend on the number of processes; ``test_distributed.py`` starts this file.

RANK=0 WORLD_SIZE=2 ... python tests/unit/runtime/distributed_worker.py FOLDER
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from accelerate import Accelerator
from safetensors.torch import save_file

from mmgrpo.data.images import Unreadable
from mmgrpo.files import write_text
from mmgrpo.policies.categorical import CategoricalPolicy
from mmgrpo.policies.token import TokenPolicy
from mmgrpo.prompts.drawing import PromptOrder
from mmgrpo.runtime.distributed import gather_texts, largest
from mmgrpo.scoring import Scorer
from mmgrpo.trainer import Trainer
from mmgrpo.types import Answer, Image, Media, Output, Prompt, Request, Turn
from mmgrpo.update import LossRecipe
from pipelines.readable import filter_readable
from tests.building import algorithm_blocks, load, matching_policy_over, misses, near_one, recipe, trainer
from tests.seeing import PICTURE, WORDS, write_model
from tests.speaking import TableModel, near_answer, table_prompts
from tests.toys import ToyModel, toy_policy, toy_prompts


def rows(folder: Path, accelerator: Accelerator) -> Trainer:
    further = {"further": toy_prompts(5)}
    return denoising("every_step", folder, accelerator, updates=2, epochs=2, extra=further, error_rates=[misses()])


def tree(folder: Path, accelerator: Accelerator) -> Trainer:
    loss = LossRecipe.of("ppo(low=1e-3, high=1e-3)", "per_decision", terms=["kl_velocity(coef=0.1)"])
    advantages = recipe(baseline="none", scale="none", credit="tree_depth(beta=1.0)")
    return denoising("branch_tree(splits=[0,2])", folder, accelerator, loss=loss, advantages=advantages)


def branches(folder: Path, accelerator: Accelerator) -> Trainer:
    blocks = algorithm_blocks("granular_grpo")
    return denoising("one_step_branch(draw='all', intervals=[1,2])", folder, accelerator, **blocks)


def resampled(folder: Path, accelerator: Accelerator) -> Trainer:
    """The first two prompts of the order never have spread, so the first round draws twice."""
    without = set(map(str, PromptOrder(8, 0).take(0, 2)))

    def reward(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        values = near_one(prompts, outputs)
        return [0.0 if p.id in without else value for p, value in zip(prompts, values, strict=True)]

    advantages = recipe(select=["drop_zero_spread"])
    return denoising(
        "every_step",
        folder,
        accelerator,
        reward=reward,
        advantages=advantages,
        prompts_per_step=2,
        redraws=3,
        prompts=8,
    )


def load_toy() -> Any:
    from pipelines.text.causal_lm import toy

    return toy(["say", "a", "b"])


def tokens(folder: Path, accelerator: Accelerator, **settings: Any) -> Trainer:
    """Completions of different lengths on different ranks, and a loss that couples a group's rows."""

    def short(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        return [-float(len(output.text)) for output in outputs]  # type: ignore[union-attr]

    policy = TokenPolicy(load_toy(), max_tokens=5)
    prompts = [Prompt(f"say {word}", word) for word in ("a", "b", "a b", "b a")]
    settings = {"lr": 1e-3, "accelerator": accelerator, **algorithm_blocks("gvpo"), **settings}
    return trainer(policy, folder, prompts, reward=short, steps=3, **settings)


def conversing(folder: Path, accelerator: Accelerator) -> Trainer:
    """Completions of several turns, whose tools reward each of them and name their states, and some of which fail."""
    from tests.unit.policies.test_tools import PROMPTS, Walk, few_calls, policy_of

    class Paid(Walk):
        def reset(self, prompt: Prompt, seed: int) -> None:
            super().reset(prompt, seed)
            self.id = prompt.id

        def turn_reward(self) -> float:
            if self.place == 1 and self.id == "1":
                os._exit(1)
            return float(self.place)

    blocks = algorithm_blocks("gigpo", terms=[])
    policy = policy_of(tools=[Paid])
    return trainer(policy, folder, PROMPTS, reward=few_calls, steps=3, lr=1e-3, accelerator=accelerator, **blocks)


def ahead(folder: Path, accelerator: Accelerator) -> Trainer:
    """Rounds that an engine of each process draws while the trainer computes, with the weights of the round before."""
    from mmgrpo.engines.engine import Synchronized, parameters
    from mmgrpo.engines.sampler import OwnSampler

    made = tokens(folder, accelerator, staleness=1, sampler=["variance_weighted"])
    policy: Any = made.policy
    other = OwnSampler(TokenPolicy(load_toy(), max_tokens=5))
    weights = lambda: parameters(policy.network)  # noqa: E731
    policy.draw_with(Synchronized(other, weights, policy.model, max_gap=1e-4, overlaps=True))
    return made


def sighted(folder: Path, accelerator: Accelerator) -> Trainer:
    """A trained vision tower, and prompts with and without images: in the first round only the second of two processes
    calls the tower, in the second only the first, in the third none."""
    if accelerator.is_main_process:  # transformers saves nothing in other processes
        write_model("qwen_vl", folder / "base")
    accelerator.wait_for_everyone()
    family = load("qwen_vl", folder / "base", freeze_vision=False, keep_reference=True)
    asked_first = [WORDS, PICTURE, PICTURE, WORDS, WORDS, WORDS]
    order = PromptOrder(len(asked_first), 0).take(0, len(asked_first))
    prompts = [replace(prompt, id=str(place)) for place, prompt in enumerate(asked_first)]
    prompts = [prompts[order.index(place)] for place in range(len(order))]

    def short(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        return [-float(len(output.text)) for output in outputs]  # type: ignore[union-attr]

    policy = TokenPolicy(family, max_tokens=4)
    blocks = algorithm_blocks("grpo")
    return trainer(policy, folder, prompts, reward=short, steps=3, lr=1e-3, accelerator=accelerator, **blocks)


def choices(folder: Path, accelerator: Accelerator) -> Trainer:
    """One decision a sample, compared with the network before training."""
    policy = CategoricalPolicy(TableModel(4, 7))
    blocks = algorithm_blocks("dmospeech2")
    return trainer(
        policy, folder, table_prompts(4), reward=near_answer, steps=3, lr=1e-3, accelerator=accelerator, **blocks
    )


def odd(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 for an odd class, 0 for an even one."""
    return [float(int(output.text) % 2) for output in outputs]  # type: ignore[union-attr]


def clipped(objective: str, folder: Path, accelerator: Accelerator) -> Trainer:
    """Three updates of one round, all decisions clipped in the last two; weight decay and momentum go on."""
    policy, prompts = CategoricalPolicy(TableModel(4, 7)), table_prompts(4)
    loss = LossRecipe.of(f"{objective}(low=1e-6, high=1e-6)", "per_sample")
    settings: dict[str, Any] = {"prompts_per_step": 4, "group_size": 16, "steps": 3, "epochs": 3, "lr": 1e-2}
    advantages = recipe(scale="none")
    return trainer(
        policy, folder, prompts, reward=odd, loss=loss, advantages=advantages, accelerator=accelerator, **settings
    )


def hinge(folder: Path, accelerator: Accelerator) -> Trainer:
    """A term that looks at the whole step: from the second update on the constraint on its mean KL pulls back."""
    policy, prompts = CategoricalPolicy(TableModel(4, 7)), table_prompts(4)
    settings: dict[str, Any] = {"prompts_per_step": 4, "group_size": 16, "steps": 3, "epochs": 3, "lr": 1e-2}
    return trainer(
        policy, folder, prompts, reward=odd, accelerator=accelerator, **settings, **algorithm_blocks("disco")
    )


def networks(folder: Path, accelerator: Accelerator) -> Trainer:
    """Rollouts of a moving average, and a reference that is renewed."""
    rules = ["average(slope=0.1, most=0.5, samples=True)", "renewal(every=2)"]
    loss = LossRecipe.of("ppo(low=0.2, high=0.2)", "per_sample", terms=["kl_k3(coef=0.1)"], networks=rules)
    return denoising("every_step", folder, accelerator, loss=loss)


def denoising(plan: str, folder: Path, accelerator: Accelerator, prompts: int = 5, **settings: Any) -> Trainer:
    settings = {"reward": near_one, "prompts_per_step": 4, "steps": 3, "lr": 1e-3, **settings}
    policy = toy_policy(plan, steps=6)
    return trainer(policy, folder, toy_prompts(prompts), heldout=toy_prompts(3), accelerator=accelerator, **settings)


def offline(folder: Path, accelerator: Accelerator) -> Trainer:
    """Given answers of different lengths on different ranks, then samples."""
    from pipelines.text.causal_lm import toy

    def short(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        return [-float(len(output.text)) for output in outputs]  # type: ignore[union-attr]

    policy = TokenPolicy(toy(["say", "a", "b"]), max_tokens=5)
    policy.keep_reference()
    answers = (Answer("a b a", None, 1.0), Answer("b", None, 0.0))
    prompts = [Prompt(f"say {word}", word, answers=answers[: 1 + n] + answers) for n, word in enumerate(("a", "b"))]
    prompts += [Prompt(f"say {word}", word, answers=answers) for word in ("a b", "b a")]
    blocks = algorithm_blocks("dpo")
    more: dict[str, Any] = {"prompts_per_step": 4, "steps": 3, "lr": 1e-3, "offline": 0.6}
    return trainer(policy, folder, prompts, reward=short, accelerator=accelerator, **more, **blocks)


def remembered(changes: dict[str, Any], folder: Path, accelerator: Accelerator) -> Trainer:
    """What a run keeps between rounds, and rows that only some processes have."""
    from pipelines.text.causal_lm import toy

    def short(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        return [float(output.tokens < 3) for output in outputs]  # type: ignore[union-attr]

    policy = TokenPolicy(toy(["say", "a", "b"]), max_tokens=5)
    prompts = [Prompt(f"say {word}", word, word) for word in ("a", "b", "a b", "b a")]
    blocks = algorithm_blocks("dr_grpo", aggregation="per_sample", **changes)
    more: dict[str, Any] = {"prompts_per_step": 2, "steps": 3, "lr": 1e-3, "given": prompts}
    more = more if "supervised" in changes else {**more, "given": ()}
    return trainer(policy, folder, prompts, reward=short, accelerator=accelerator, **more, **blocks)


def pictured(folder: Path, accelerator: Accelerator) -> Trainer:
    """Replayed and given images."""
    policy = matching_policy_over(
        ToyModel(), steps=4, draws=2, error="velocity", evaluation_steps=4, forward_batch_size=9
    )
    given = (Answer("", Media("image", Image(torch.ones(3, 1, 1))), 1.0),)
    prompts = [replace(prompt, answers=given) for prompt in toy_prompts(2)]
    blocks = algorithm_blocks("grpo", replay="replay(count=2)", added="answers", terms=[])
    return trainer(policy, folder, prompts, reward=near_one, steps=3, lr=1e-3, accelerator=accelerator, **blocks)


def learners(folder: Path, accelerator: Accelerator) -> Trainer:
    """Networks that train alongside the policy, one of them on whole groups."""
    policy = matching_policy_over(
        ToyModel(), steps=4, draws=2, error="velocity", evaluation_steps=4, forward_batch_size=9, boundaries=True
    )
    settings: dict[str, Any] = {"reward": near_one, "steps": 3, "lr": 1e-3, **algorithm_blocks("tdm_r1")}
    return trainer(policy, folder, toy_prompts(4), accelerator=accelerator, **settings)


def criticized(folder: Path, accelerator: Accelerator) -> Trainer:
    """Value networks of texts, with a classifier, and of prompts."""
    from pipelines.text.causal_lm import toy

    def short(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        return [float(output.tokens < 3) for output in outputs]  # type: ignore[union-attr]

    prompts = [Prompt(f"say {word}", word) for word in ("a", "b", "a b", "b a")]
    networks = ["critic(lr=1e-2, updates=2, classes=1.0)", "prompt_value(lr=1e-2)"]
    drawn = {"sampler": ["nearest_predicted(candidates=2)"], "trackers": ["reward_moments"]}
    blocks = algorithm_blocks("ppo", networks=networks, transform=["running", "classified_invariant"], **drawn)
    more: dict[str, Any] = {"prompts_per_step": 4, "steps": 3, "lr": 1e-3}
    policy = TokenPolicy(toy(["say", "a", "b"]), max_tokens=5)
    return trainer(policy, folder, prompts, reward=short, accelerator=accelerator, **more, **blocks)


def in_windows(folder: Path, accelerator: Accelerator) -> Trainer:
    """Completions that go on in the next round, whichever process drew their beginning."""
    from tests.unit.rounds.test_windows import run

    return run(folder, prompts_per_step=2, group_size=16, steps=3, lr=1e-3, accelerator=accelerator)


def turn_values(folder: Path, accelerator: Accelerator) -> Trainer:
    """A critic of turns, which learns from a memory of the turns of all processes."""
    from tests.unit.rounds.test_turn_critic import run

    return run(folder, prompts_per_step=2, steps=3, lr=1e-3, accelerator=accelerator)


def values_of_actions(folder: Path, accelerator: Accelerator) -> Trainer:
    """Values of actions that are learned in the first round, behind other completions of the policy."""
    from tests.unit.rounds.test_global_value import run

    return run(folder, prompts_per_step=2, steps=3, lr=1e-3, accelerator=accelerator)


def values_of_evaluations(folder: Path, accelerator: Accelerator) -> Trainer:
    """A critic of what the reference would do next, by which evaluations are ranked."""
    from tests.unit.rounds.test_q_values import run

    return run(folder, prompts_per_step=2, steps=3, lr=1e-3, accelerator=accelerator)


def discriminated(folder: Path, accelerator: Accelerator) -> Trainer:
    """A discriminator of samples and answers."""
    from tests.unit.rounds.test_discriminator import made

    return made(folder, prompts_per_step=4, steps=3, accelerator=accelerator)


def playing(folder: Path, accelerator: Accelerator) -> Trainer:
    """Questions, answers and verdicts of the policy about documents."""
    from tests.unit.test_self_play import run

    def said(prompt: Prompt, drawn: Output) -> str:
        if "Ask a question" in prompt.text:
            return "<question>what</question><answer>b</answer>"
        heads = crc32(drawn.text.encode()) % 2  # type: ignore[union-attr]
        return ("yes", "no")[heads] if "Proposed answer" in prompt.text else ("b", "x")[heads]

    made = run(folder, None, clusters=4, steps=3, accelerator=accelerator)
    policy: Any = made.policy
    draw = policy.rollout

    def rollout(request: Request) -> Any:
        found = draw(request)
        texts = map(said, found.prompts, found.outputs)
        return replace(found, outputs=[replace(one, text=text) for one, text in zip(found.outputs, texts, strict=True)])

    policy.rollout = rollout
    return made


def rubrics(folder: Path, accelerator: Accelerator) -> Trainer:
    """A rubric that is written anew after every round, of proposals whose order it tells."""
    from tests.unit.test_judging import SCORED, echo, nothing, prompts

    def said(text: str) -> str:
        if text.startswith(("Criteria", "Proposed")):
            return f"[{5 + crc32(text.encode()) % 50}] better than {text[-30:]}"
        return str(crc32(text.encode()) % 5)

    more: dict[str, Any] = {"prompts_per_step": 2, "steps": 3, "lr": 1e-3, "scorers": [Scorer("own", nothing)]}
    blocks = algorithm_blocks("dr_grpo", aggregation="per_sample", judging=[SCORED.replace("every=2", "every=1")])
    return trainer(echo(said), folder, prompts("open"), accelerator=accelerator, **more, **blocks)


def rewarded(folder: Path, accelerator: Accelerator) -> Trainer:
    """A reward model that learns pairs, of which some processes have none."""
    from pipelines.text.causal_lm import toy

    def short(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        return [float(output.tokens < 3) for output in outputs]  # type: ignore[union-attr]

    rule = "reward_model(lr=1e-2, reward='learned', rule='short', above=0.5, text='', rewrite=' {sample} b')"
    blocks = algorithm_blocks("dr_grpo", aggregation="per_sample", networks=[rule])
    scorers = [Scorer("short", short), Scorer("learned", lambda prompts, outputs: [None] * len(outputs))]
    more: dict[str, Any] = {"prompts_per_step": 4, "steps": 3, "lr": 1e-3, "scorers": scorers}
    prompts = [Prompt(f"say {word}", word) for word in ("a", "b", "a b", "b a")]
    return trainer(
        TokenPolicy(toy(["say", "a", "b"]), max_tokens=5), folder, prompts, accelerator=accelerator, **more, **blocks
    )


def stopped_early(folder: Path, accelerator: Accelerator) -> Trainer:
    """A reward that is only logged and never rises ends the run after three evaluations."""
    flat = Scorer("flat", lambda prompts, outputs: [0.5] * len(outputs), weight=0.0)
    followed = {"every": 1, "patience": 3, "patience_reward": "flat", "scorers": [Scorer("reward", near_one), flat]}
    return denoising("every_step", folder, accelerator, steps=9, **followed)


REMEMBERED: dict[str, dict[str, Any]] = {
    "sampled by the ledger": {"sampler": ["variance_weighted", "retire(at=2.0)"]},
    "replayed": {"replay": "replay(count=2, strategy='random')", "supervised": "nll(coef=0.1, count=2)"},
    "replayed where it failed": {
        "replay": "replay(count=1, above=0.0, when='failed', replaces=True, old='recomputed')"
    },
    "hinted": {"hint": "staged(above=0.5)"},
    "refined": {"added": "refined(text=' {sample}', when='failed', above=0.5)"},
    "corrected": {"added": "corrected(text=' a', answer=' {answer}', tokens=3)"},
    "judging": {"judging": ["verdicts(point=' {sample} a', pair=' {first} b {second}', turns=1, above=0.5)"]},
}


def joint(folder: Path, accelerator: Accelerator) -> Trainer:
    """Texts of different lengths, from each of which images are drawn, and a loss for either."""
    from mmgrpo.policies.joint import JointPolicy

    def rewrite(prompt: Prompt, text: Output) -> Prompt:
        return replace(prompt, answer=len(text.text) / 10)  # type: ignore[union-attr]

    policy = JointPolicy(TokenPolicy(load_toy(), max_tokens=5), toy_policy(steps=4), count=2, rewrite=rewrite)
    prompts = [Prompt(f"say {word}", word) for word in ("a", "b", "a b", "b a")]
    parts = ["text(per='trace')", "image(objective='grpo_guard(clip=1e-3)')"]
    settings: dict[str, Any] = {"lr": 1e-3, "rates": ["image=0.5"], "epochs": 2, "accelerator": accelerator}
    return trainer(
        policy, folder, prompts, reward=near_one, steps=3, **settings, **algorithm_blocks("grpo", parts=parts, terms=[])
    )


CASES: dict[str, Callable[[Path, Accelerator], Trainer]] = {
    "rows": rows,
    "tree": tree,
    "branches": branches,
    "resampled": resampled,
    "tokens": tokens,
    "conversing": conversing,
    "ahead": ahead,
    "offline": offline,
    "sighted": sighted,
    "choices": choices,
    "joint": joint,
    "hinge": hinge,
    "networks": networks,
    "learners": learners,
    "criticized": criticized,
    "in windows": in_windows,
    "turn values": turn_values,
    "rubrics": rubrics,
    "values of actions": values_of_actions,
    "values of evaluations": values_of_evaluations,
    "discriminated": discriminated,
    "playing": playing,
    "rewarded": rewarded,
    "pictured": pictured,
    "stopped early": stopped_early,
    **{name: partial(remembered, changes) for name, changes in REMEMBERED.items()},
    **{f"clipped {name}": partial(clipped, name) for name in ("ppo", "gspo", "gspo_token", "sequence_sum")},
}


def run(folder: Path, cases: Sequence[str]) -> None:
    """Train the cases and leave its metrics, evaluations and this process's weights in the folder."""
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    for name in cases:
        made = CASES[name](folder / name, accelerator)
        made.fit()
        weights = {key: value.detach().contiguous() for key, value in made.trained.items()}
        save_file(weights, folder / name / f"weights-{accelerator.process_index}.safetensors")
        tables = {"ledger": made.ledger.tensors(), **made.callbacks.tables()}
        kept = {f"{group}.{one}": value.contiguous() for group, table in tables.items() for one, value in table.items()}
        save_file(kept, folder / name / f"kept-{accelerator.process_index}.safetensors")
    write_text(
        folder / f"largest-{accelerator.process_index}", str(largest(float(accelerator.process_index), accelerator))
    )
    mine = ["é", "", "long — one"] if accelerator.process_index == 0 else ["second"]
    write_text(folder / f"texts-{accelerator.process_index}", "|".join(gather_texts(mine, accelerator)))
    opened: list[str] = []

    def look(media: Media) -> None:
        opened.append(str(media.source))
        if media.source in ("b", "e"):
            raise Unreadable(f"{media.source} is bad, says process {accelerator.process_index}")

    shown = [Prompt("", name, turns=(Turn("user", (Media("image", name),)),)) for name in "abcdebe"]
    kept, skipped = filter_readable(shown, look, workers=1)
    lines = ["".join(opened), "".join(prompt.id for prompt in kept), *(one.reason for one in skipped)]
    write_text(folder / f"readable-{accelerator.process_index}", "\n".join(lines))
    if accelerator.is_main_process:
        write_text(folder / "processes", str(accelerator.num_processes))
    accelerator.end_training()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
