"""The networks that a policy may be evaluated with, by name.

    present     the trained one; it has no name of its own
    reference   the one before training: frozen, unless a rule moves it
    old, ...    moving averages, earlier checkpoints, teachers, as ``algorithm.networks`` declares them

A named network is a set of values of the trained parameters: adapters of one base where adapters train, copies of the
trained weights where the network itself does. Within ``with networks(name)`` the parameters hold these values, without
a copy. Objectives ask for ``<name>.log_probs``, ``<name>.error`` and the like, and a policy evaluates what is asked.

A rule is a function that says at the end of every round what becomes of its network. With n optimizer steps so far

    named <- decay named + (1 - decay) present          decay 0 copies, decay 1 leaves it as it is

Rules depend on numbers that are equal on all ranks, and so do the networks; all are in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor, nn

from mmgrpo.config.needs import needs
from mmgrpo.config.ranges import (
    ANY_NUMBER,
    COUNT,
    COUNT_OR_ZERO,
    FRACTION,
    POSITIVE,
    POSITIVE_FRACTION,
    UPPER_BOUND,
    one_of,
    within,
)
from mmgrpo.config.registry import COMPARED, Bound, Network, Reward, bind_several, block, refuse_unknown, table_of
from mmgrpo.randomness import stream
from mmgrpo.runtime.checkpoint import STATE, flatten_optimizer, load_checkpoint, restore_optimizer
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.sharding import stored_copy, stored_like, swap_weights
from mmgrpo.types import Reference

NETWORKS = table_of("network")
"""Rules: functions that return the ``Move`` of a network at the end of a round."""

REFERENCE_NETWORK = "reference"
"""Name of the network before training, which every policy has."""

DECAY = within("[0, 1]")
BELOW_ONE = within("[0, 1)")


class Move(NamedTuple):
    """What becomes of a network at the end of a round."""

    decay: float = 1.0
    """Share of its present values that remains; 0 for a copy of the trained network."""
    kept: int = 0
    """The present trained network joins the earlier ones, of which so many are kept; 0: no earlier ones."""
    optimizer: bool = False
    """The optimizer begins anew, without its averages; the schedule of the learning rate goes on."""


@block(NETWORKS)
def average(
    step: int,
    *,
    name: str = "old",
    start: Annotated[float, DECAY] = 0.0,
    slope: Annotated[float, UPPER_BOUND] = 0.0,
    most: Annotated[float, DECAY] = 1.0,
    after: Annotated[int, COUNT_OR_ZERO] = 0,
    of: str = "",
    samples: bool = False,
    samples_after: Annotated[int, COUNT_OR_ZERO] = 0,
) -> Move:
    """A moving average of the trained network, or of the one named ``of``, of decay min(start + slope max(n - after,
    0), most); with ``samples`` it draws the rollouts, from optimizer step ``samples_after`` on.

    DiffusionNFT (2509.16117): type 1 slope .001, most .5; type 2 after 75, slope .0075, most .999. At n = 100 these are
    .1 and .1875. TR-DPO (2404.09656), soft: name reference, start 1 - alpha.
    """
    return Move(min(start + slope * max(step - after, 0), most))


@block(NETWORKS, requires={"evaluations": {"stall": True}})
def renewal(
    age: int,
    kl: float,
    stalled: Mapping[str, int],
    *,
    name: str = REFERENCE_NETWORK,
    every: Annotated[int, COUNT_OR_ZERO] = 0,
    above: Annotated[float, POSITIVE] = float("inf"),
    stall: Annotated[int, COUNT_OR_ZERO] = 0,
    by: Reward = "",
    optimizer: bool = False,
) -> Move:
    """A copy of the trained network, renewed ``every`` so many optimizer steps (0: never for its age), when the KL
    terms of the round's last step (``kl`` of the metrics, coefficients included) exceed ``above``, and after ``stall``
    evaluations without a new best held-out mean of the reward ``by`` (0: never; empty: the first reward).
    ``optimizer``: its averages begin anew then, too.

    TR-DPO (2404.09656), hard: every tau steps. GARDO (2512.24138): after m epochs or above a threshold. ProRL
    (2505.24864): when validation stalls, with a new optimizer; its stall rule is not printed, ours is counted in
    evaluations. ProRL v2 keeps the optimizer, every 200 to 500 steps.
    """
    waited = stalled.get(by, 0) if by else next(iter(stalled.values()), 0)
    due = kl > above or (every and age >= every) or (stall and waited >= stall)
    return Move(0.0, optimizer=optimizer) if due else Move()


@block(NETWORKS)
def earlier(
    age: int,
    *,
    name: str = "earlier",
    every: Annotated[int, COUNT] = 30,
    kept: Annotated[int, COUNT] = 1000,
    samples: bool = False,
) -> Move:
    """The trained network as of an earlier time: the one before training and one of ``every`` so many optimizer steps,
    of which every round draws one uniformly (SePPO, 2410.05255: every 30 updates); at most the last ``kept``. With
    ``samples`` it draws the rollouts."""
    return Move(1.0, kept if age >= every else 0)


@block(NETWORKS)
def frozen(*, path: str, name: str = "teacher", task: str = "") -> Move:
    """The trained network of another run of the same model, read from its folder ``model`` or from a checkpoint; with
    ``task`` for prompts of that task alone, so there is one teacher for each."""
    return Move()


@block(NETWORKS)
def base(*, name: str = REFERENCE_NETWORK) -> Move:
    """The network without its adapters, where a run goes on with existing ones (``model.lora_path``), which are else
    part of the reference; where the network itself trains, as it was before."""
    return Move()


@block(
    NETWORKS,
    requires={"hidden_states": {}},
    method="critic",
    gives={
        "value": "",
        "token_rewards": "",
        "group_share": "classes",
        "top_margin": "greedy",
        "greedy_margin": "greedy",
    },
    single="kind",
)
def critic(
    *,
    lr: Annotated[float, POSITIVE],
    name: str = "critic",
    lam: Annotated[float, DECAY] = 1.0,
    clip: Annotated[float, UPPER_BOUND] = 0.2,
    kl: Annotated[float, within("[0, inf)"), COMPARED] = 0.0,
    updates: Annotated[int, COUNT_OR_ZERO] = 1,
    start: str = "",
    warmup: Annotated[int, COUNT_OR_ZERO] = 0,
    classes: Annotated[float, within("[0, inf)")] = 0.0,
    greedy: Annotated[bool, COMPARED] = False,
    candidates: Annotated[int, COUNT, needs("greedy")] = 1,
    beta1: Annotated[float, BELOW_ONE] = 0.9,
    beta2: Annotated[float, BELOW_ONE] = 0.999,
) -> Move:
    """The value network of the credits ``gae`` and ``turn_gae``: a network that begins as the reference, with a linear
    head of value 0 on its last hidden states, and learns the returns of every round in ``updates`` steps of an AdamW of
    its own (``mmgrpo/rounds/critic.py``).

    ``lam``: that of its targets, 1 for the discounted sums of rewards (VC-PPO, 2503.01491). ``clip``: how far from that
    of the rollout a value may move before its error stops pulling further (PPO's usual .2; inf for none). ``kl``: every
    token earns -kl (log pi - log pi_ref), the penalty of RLHF within the reward (2203.02155). ``warmup``:
    the first so many optimizer steps train it alone. ``start``: a checkpoint of another run of the same model, whose
    critic it begins as (with ``updates=0`` it stays that one: DVPO, 2502.16944), or the folder of a reward model of the
    same architecture, whose head of one number it takes over (PPO-max, 2307.04964). ``classes``: so many times the
    variance between the mean rewards of two groups, to which a second head at the end of a text assigns it, are
    maximized beside (2310.11971, without its number), for ``classified_invariant`` and ``classified_high``. ``greedy``:
    records what ``conservative_td`` reads of the reference's likeliest tokens (B-Coder, 2310.03173); ``candidates``:
    an evaluation then draws so many times its samples and keeps those of the largest sum of Q - gamma V'.
    """
    return Move()


@block(
    NETWORKS,
    requires={"hidden_states": {}},
    method="prompt_value",
    gives={"predicted_reward": ""},
    single="kind",
)
def prompt_value(
    *,
    lr: Annotated[float, POSITIVE],
    name: str = "prompt_value",
    updates: Annotated[int, COUNT] = 1,
    beta1: Annotated[float, BELOW_ONE] = 0.9,
    beta2: Annotated[float, BELOW_ONE] = 0.999,
) -> Move:
    """The value network of prompts, for the sampler ``nearest_predicted``: begins as the reference, with a linear head
    of value 0 at the end of the prompt, and learns the mean reward of every group of a round by squared error, in
    ``updates`` steps of an AdamW of its own (PCL, 2510.01135, whose rate was not found;
    ``mmgrpo/rounds/prompt_value.py``)."""
    return Move()


@block(NETWORKS, requires={"hidden_states": {}}, method="guidance")
def guide(
    *,
    start: str,
    beta: Annotated[float, ANY_NUMBER],
    name: str = "guide",
    critic: str = "critic",
    top: Annotated[int, COUNT] = 20,
) -> Move:
    """A critic of another run of the same model, from its checkpoint ``start``, that guides the samples of evaluations:
    of the ``top`` most likely next tokens, log p + beta (V - mean V), V the value of the text with the token. Several
    guides, each with a ``name`` of its own, are added. Value-augmented sampling (2405.06639; 20), whose critic learns
    from samples of the frozen policy (``critic(lr=..., lam=0.95, warmup=...)`` for all steps of that run)."""
    return Move()


@block(NETWORKS, requires={"hidden_states": {}}, method="reward_network", single="kind")
def reward_model(
    *,
    lr: Annotated[float, POSITIVE],
    reward: Reward,
    rule: Reward,
    above: Annotated[float, within("(-inf, inf)")] = 0.0,
    hard: bool = False,
    by: Network = "",
    text: str = "\n\nThe right answer is {answer}.",
    rewrite: str = "\n\nA right answer:\n{sample}\n\nWrite it again, with another, wrong answer.",
    name: str = "reward_model",
    updates: Annotated[int, COUNT] = 1,
    beta1: Annotated[float, BELOW_ONE] = 0.9,
    beta2: Annotated[float, BELOW_ONE] = 0.999,
) -> Move:
    """The reward model of a run: begins as the reference, with a linear head of value 0 on the state before the last
    token of a sample, whose question is followed by ``text``, and gives ``reward``, a reward of the run
    (``own_judgement``), the sigmoid of what it says (``hard``: whether that exceeds .5).

    After the policy's steps of a round it learns pairs by the loss of Bradley and Terry, in ``updates`` steps: the
    first sample of each group of which the reward ``rule``, of weight 0, is more than ``above``, and what the policy,
    or the network ``by``, makes of it when ``rewrite`` follows the question, as far as the rule calls that wrong.

    Cooper (2508.05613, its code): lr=1e-5 to the policy's 1e-6, KL 1e-3, groups of 16; its reward model begins as one
    that was trained before, and another model rewrites (``mmgrpo/rounds/reward_network.py``).
    """
    return Move()


@block(NETWORKS, requires={"hidden_states": {}}, method="discriminator")
def discriminator(
    *,
    lr: Annotated[float, POSITIVE],
    reward: Reward,
    form: Annotated[str, one_of("gail", "irl")] = "gail",
    beta: Annotated[float, POSITIVE] = 1.0,
    tasks: Sequence[str] = (),
    warmup: Annotated[int, COUNT_OR_ZERO] = 0,
    name: str = "discriminator",
    updates: Annotated[int, COUNT] = 1,
    beta1: Annotated[float, BELOW_ONE] = 0.9,
    beta2: Annotated[float, BELOW_ONE] = 0.999,
) -> Move:
    """A reward that is learned from the answers of the data set: begins as the reference, with a linear head of value 0
    on the state before the last token, tells the policy's samples from the answers of their prompts, and gives
    ``reward``, a reward of the run (``own_judgement``). After the policy's steps of a round it learns its samples.

    ``form`` gail: D = sigma(s) is the probability that the policy wrote it, and -log D the reward (StepAgent's inverse
    RL, 2411.03817); irl: s is the reward and its difference over ``beta`` the likelihood of the answers (DR-IRL,
    2503.18991). ``tasks``: of prompts of these tasks alone (empty: of all), so each category has a discriminator
    with a ``name`` of its own. ``warmup``: it learns in the first so many optimizer steps alone, in which the policy
    waits (DR-IRL); 0: always, beside the policy (``mmgrpo/rounds/discriminator.py``). Rates were not found.
    """
    return Move()


@block(
    NETWORKS,
    requires={"hidden_states": {}},
    method="global_value",
    gives={"action_value": ""},
    single="kind",
)
def action_value(
    *,
    lr: Annotated[float, POSITIVE],
    gamma: Annotated[float, FRACTION] = 1.0,
    lam: Annotated[float, FRACTION] = 0.0,
    contexts: Annotated[int, COUNT_OR_ZERO] = 2,
    updates: Annotated[int, COUNT_OR_ZERO] = 1,
    warmup: Annotated[int, COUNT_OR_ZERO] = 0,
    start: str = "",
    reward: Annotated[Reward, needs("updates", 0)] = "",
    name: str = "action_value",
    beta1: Annotated[float, BELOW_ONE] = 0.9,
    beta2: Annotated[float, BELOW_ONE] = 0.999,
) -> Move:
    """The value of actions for the credit ``action_value``: begins as the reference, with a linear head of value 0 on
    the state behind every token, reads ``contexts`` other prompts of the round with the policy's answers before the
    prompt, and learns r + gamma of the next action's value by squared error (``lam`` 0; 1: the discounted reward).

    DVPO (2502.16944): one run trains it alone (``warmup`` of all its steps), the next has ``start`` at its checkpoint,
    updates=0, and as ``reward`` the name of one of the run (``own_judgement``), which is then the value of the last
    action, so nothing else is asked. Its numbers were not found (``mmgrpo/rounds/global_value.py``).
    """
    return Move()


@block(
    NETWORKS,
    requires={"hidden_states": {}, "turns": {}},
    method="turn_critic",
    gives={"turn_advantage": ""},
    single="kind",
)
def turn_critic(
    *,
    lr: Annotated[float, POSITIVE],
    name: str = "turn_critic",
    gamma: Annotated[float, FRACTION] = 0.95,
    tau: Annotated[float, POSITIVE_FRACTION] = 0.1,
    capacity: Annotated[int, COUNT] = 100_000,
    updates: Annotated[int, COUNT] = 50,
    batch: Annotated[int, COUNT] = 64,
    warmup: Annotated[int, COUNT_OR_ZERO] = 0,
    beta1: Annotated[float, BELOW_ONE] = 0.9,
    beta2: Annotated[float, BELOW_ONE] = 0.999,
) -> Move:
    """The critic of turns for the credit ``turn_advantage``: two Q and two V with slow copies, which learn from this
    and earlier rounds in ``updates`` steps of ``batch`` turns each (ArCHer, 2402.19446; gamma .95, tau .1, a memory of
    100,000, 50 updates as in its code; ``mmgrpo/rounds/turn_critic.py``). They read the hidden states of the reference,
    a network of this name. ``warmup``: the first so many optimizer steps train it alone (its 20 iterations)."""
    return Move()


def bind_networks(texts: Sequence[str]) -> tuple[Bound, ...]:
    """The rules of ``algorithm.networks``; ValueError for two of one name, and for two that draw the rollouts."""
    bounds = bind_several(texts, NETWORKS, "algorithm.networks")
    seen: set[tuple[str, str]] = set()
    for bound in bounds:
        name, task = name_of(bound), str(bound.parameters.get("task", ""))
        if not name.isidentifier() or name.startswith("_") or name.endswith("_"):
            raise ValueError(f"algorithm.networks: {bound.text}: got name '{name}', expected letters and digits")
        if (name, task) in seen:
            raise ValueError(
                f"algorithm.networks: {bound.text}: got the name '{name}' twice; give each network another name"
            )
        seen.add((name, task))
    names = {name for name, _ in seen}
    for rule in bounds:
        if source := rule.parameters.get("of", ""):
            refuse_unknown(f"algorithm.networks: {rule.text}", "network", source, names)
    drawing = [bound.text for bound in bounds if bound.parameters.get("samples")]
    if len(drawing) > 1:
        raise ValueError(f"algorithm.networks: got samples for {' and '.join(drawing)}, expected one that draws")
    return bounds


def name_of(rule: Bound) -> str:
    """The name of a rule's network."""
    return str(rule.parameters.get("name", rule.block.parameters["name"].default))


@runtime_checkable
class Referenced(Protocol):
    """A model with its trained network and the reference."""

    network: nn.Module

    @property
    def reference(self) -> Reference: ...


@runtime_checkable
class Replacing(Protocol):
    """A reference that is the trained network with other values of its parameters."""

    @property
    def values(self) -> Mapping[str, Tensor]: ...


class Networks:
    """The networks of a policy by name, and the rules by which they change."""

    def __init__(self, model: Referenced) -> None:
        self.model = model
        self.rules: tuple[Bound, ...] = ()
        self.seed = 0
        self.values: dict[str, dict[str, Tensor]] = {}
        """Values of the trained parameters by network and parameter; of earlier networks ``<name>@<step>``, of one of
        several teachers ``<name>:<task>``."""
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        """Of the networks that train alongside the policy (rules with a learning rate), whose values they hold."""
        self.changed: dict[str, int] = {}
        """Optimizer steps at which a network was last renewed or an earlier one was kept."""
        self.step = 0
        self.round = 0
        self.best: dict[str, float] = {}
        """The best held-out mean of each reward since a renewal, with the sign of its weight."""
        self.stalled: dict[str, int] = {}
        """Evaluations since then."""

    def follow(self, rules: Sequence[Bound], seed: int = 0) -> None:
        """Begin to keep the networks of these rules; all but teachers are the trained one as it is, and so is a moving
        reference (without adapters, where these train)."""
        self.rules, self.seed, self.step, self.round = tuple(rules), seed, 0, 0
        self.best, self.stalled = {}, {}
        self.values, self.changed = {}, {name_of(rule): 0 for rule in rules}
        for rule in rules:
            name, task = name_of(rule), rule.parameters.get("task", "")
            if "path" in rule.parameters:
                self.values[f"{name}:{task}" if task else name] = self._read(rule)
            elif rule.block.fn is base or "lr" in rule.parameters or rule.parameters.get("of"):
                self.values[name] = self._copy(adapters=False)
            else:
                bare = name == REFERENCE_NETWORK and self.model.reference.bare
                self.values[f"{name}@0" if rule.block.fn is earlier else name] = self._copy(adapters=not bare)
        self._make_optimizers()

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that train."""
        return {name: parameter for name, parameter in self.model.network.named_parameters() if parameter.requires_grad}

    @property
    def replacements(self) -> list[Mapping[str, Tensor]]:
        """All values that may take the place of the trained ones."""
        reference = self.model.reference
        return [*self.values.values(), *([reference.values] if isinstance(reference, Replacing) else [])]

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return (
            REFERENCE_NETWORK,
            *dict.fromkeys(name for rule in self.rules if (name := name_of(rule)) != REFERENCE_NETWORK),
        )

    @property
    def sampler(self) -> str:
        """Name of the network that draws the rollouts; empty for the present one."""
        for rule in self.rules:
            if rule.parameters.get("samples") and self.step >= rule.parameters.get("samples_after", 0):
                return name_of(rule)
        return ""

    def tasks(self, name: str) -> list[str]:
        """The tasks that have a network of their own under this name; empty for one network for all."""
        return [key.partition(":")[2] for key in self.values if key.startswith(f"{name}:")]

    @contextmanager
    def __call__(self, name: str, task: str = "") -> Iterator[nn.Module]:
        """The network of this name (and, of several, of this task) within a ``with`` block; empty: the present one."""
        values = self.values.get(self._key(name, task)) if name else None
        if name == REFERENCE_NETWORK and values is None:
            with self.model.reference() as network:
                yield network
        elif values is None:
            yield self.model.network
        else:
            with swap_weights(self.model.network, values):
                yield self.model.network

    @contextmanager
    def drawing(self, name: str) -> Iterator[None]:
        """The present network is that of this name within a ``with`` block, so the policy draws by it: also by a
        reference that is a copy of its own."""
        with self(name) as network:
            if network is self.model.network:
                yield
                return
            values = {key: parameter.detach() for key, parameter in network.named_parameters() if key in self.trained}
        with swap_weights(self.model.network, values):
            yield

    @torch.no_grad()
    def evaluate(
        self, name: str, tasks: Sequence[str], evaluate: Callable[[nn.Module, Int[Tensor, " some"]], Tensor]
    ) -> Tensor:
        """``evaluate(network, entries)`` of the network of this name for all entries, whose prompts have these
        ``tasks``; of several teachers each for the entries of its task, which are numbers on the host. ValueError for a
        task without one."""
        known = self.tasks(name)
        parts = []
        for task in sorted(set(tasks)) if known else [""]:
            entries = torch.tensor([entry for entry, t in enumerate(tasks) if t == task or not known])
            if known and task not in known:
                raise ValueError(
                    f"algorithm.networks: got a prompt of task '{task}' and networks '{name}' for {', '.join(known)}; "
                    f"add frozen(path=..., task='{task}'), or leave these prompts out"
                )
            with self(name, task) as network:
                parts.append((entries, evaluate(network, entries)))
        values = torch.cat([values for _, values in parts])
        return values[put(torch.cat([entries for entries, _ in parts]).argsort(), values.device)]

    def move(self, name: str, decay: float, of: str = "") -> None:
        """name <- decay name + (1 - decay) present, or the network ``of``, in place."""
        for key, parameter in self.trained.items():
            if decay < 1:
                source = self.values[of][key] if of else stored_copy(parameter, self.model.network)
                if decay == 0:
                    self.values[name][key].copy_(source)
                else:
                    self.values[name][key].lerp_(source, 1 - decay)

    def observe(self, means: Mapping[str, float]) -> None:
        """Take in an evaluation: the held-out mean of each reward, with the sign of its weight."""
        for name, mean in means.items() if self.rules else ():
            better = mean > self.best.get(name, float("-inf"))
            self.stalled[name] = 0 if better else self.stalled.get(name, 0) + 1
            self.best[name] = mean if better else self.best.get(name, float("-inf"))

    def advance(self, step: int, kl: float | int = 0.0, rules: Sequence[Bound] = ()) -> bool:
        """Apply the rules at the end of a round, after optimizer step ``step``; whether the optimizer begins anew.
        ``rules`` are those with the numbers of their schedules."""
        self.step, self.round, anew = step, self.round + 1, False
        for rule in rules or self.rules:
            name = name_of(rule)
            move = rule({"step": step, "age": step - self.changed[name], "kl": kl, "stalled": self.stalled})
            anew |= move.optimizer
            if move.kept:
                self.values[f"{name}@{step}"] = self._copy()
                for key in [key for key in self.values if key.startswith(f"{name}@")][: -move.kept]:
                    del self.values[key]
            elif move.decay < 1:
                self.move(name, move.decay, str(rule.parameters.get("of", "")))
            if move.kept or move.decay < 1:
                self.changed[name] = step
            if rule.parameters.get("stall") and move.decay == 0:
                self.stalled = dict.fromkeys(self.stalled, 0)
        return anew

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """The values of all networks, for a checkpoint; teachers are not in it, since they are read again."""
        kept = {f"network-{key}": values for key, values in self.values.items() if not self._is_read(key)}
        return kept | {
            f"learner-{name}": flatten_optimizer(optimizer)[0] for name, optimizer in self.optimizers.items()
        }

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps in addition to the values."""
        state = {"round": self.round, "changed": self.changed, "best": self.best, "stalled": self.stalled}
        return {
            **state,
            "learners": {name: flatten_optimizer(optimizer)[1] for name, optimizer in self.optimizers.items()},
        }

    def load(self, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], step: int) -> None:
        """Restore the networks of a checkpoint of optimizer step ``step``."""
        if not self.rules:
            return
        trained, network = self.trained, self.model.network
        read = {key: values for key, values in self.values.items() if self._is_read(key)}
        saved = {file.removeprefix("network-"): v for file, v in tensors.items() if file.startswith("network-")}
        if lacking := [key for key in self.values if key not in read and "@" not in key and key not in saved]:
            raise ValueError(
                f"algorithm.networks: the checkpoint has no network '{lacking[0]}', expected those that the run began "
                "with; resume with its configuration"
            )
        ordered = sorted(saved, key=lambda key: (key.partition("@")[0], int(key.partition("@")[2] or 0)))
        # Copies, since a product may round otherwise where a matrix begins at an odd place of a mapped file.
        self.values = {
            key: {
                n: stored_like(v.to(trained[n].device, copy=True), trained[n], network) for n, v in saved[key].items()
            }
            for key in ordered
        } | read
        self.step, self.round, self.changed = step, state["round"], dict(state["changed"])
        self.best, self.stalled = dict(state["best"]), dict(state["stalled"])
        self._make_optimizers()
        for name, optimizer in self.optimizers.items():
            restore_optimizer(optimizer, tensors.get(f"learner-{name}", {}), state["learners"][name])

    def _make_optimizers(self) -> None:
        """An AdamW for each network that trains alongside the policy, on its values themselves."""
        learning = {name_of(rule): rule for rule in self.rules if "lr" in rule.parameters}
        self.optimizers = {}
        for name, rule in learning.items():
            given = rule.parameters
            betas = (float(given.get("beta1", 0.9)), float(given.get("beta2", 0.999)))
            parameters = [nn.Parameter(self.values[name][key]) for key in self.trained]
            self.optimizers[name] = torch.optim.AdamW(parameters, lr=given["lr"], betas=betas, weight_decay=0.0)

    def _key(self, name: str, task: str) -> str:
        """The key of the values: of a task's own network, of the earlier one drawn for this round, or the name."""
        kept = [key for key in self.values if key.startswith(f"{name}@")]
        if kept:
            drawn = torch.randint(len(kept), (1,), generator=stream(self.seed, "network", name, self.round))
            return kept[int(drawn)]
        return f"{name}:{task}" if f"{name}:{task}" in self.values else name

    def _is_read(self, key: str) -> bool:
        return any("path" in rule.parameters and name_of(rule) == key.partition(":")[0] for rule in self.rules)

    def _copy(self, adapters: bool = True) -> dict[str, Tensor]:
        """The trained parameters; without ``adapters`` these add nothing."""
        copies = {name: stored_copy(parameter, self.model.network) for name, parameter in self.trained.items()}
        if not adapters:
            for name in [name for name in copies if ".lora_B." in name]:
                copies[name].zero_()
        return copies

    def _read(self, rule: Bound) -> dict[str, Tensor]:
        """The values of a saved network, by the names of the trained parameters."""
        path = Path(str(rule.parameters["path"]))
        if not path.is_dir():
            raise FileNotFoundError(f"algorithm.networks: {rule.text}: the folder {path} does not exist")
        if (path / STATE).is_file():
            tensors = load_checkpoint(path).tensors
            values = tensors["ema"] if "ema" in tensors else tensors["weights"]
        else:
            values = self.model.reference.read(path)
        trained = self.trained
        if values.keys() != trained.keys() or any(values[n].shape != p.shape for n, p in trained.items()):
            other = [n for n, p in trained.items() if n not in values or values[n].shape != p.shape]
            raise ValueError(
                f"algorithm.networks: {rule.text}: got a network of other weights, expected those that this run trains "
                f"({len(other)} differ, {(other or sorted(values.keys() - trained.keys()))[:1]}); take the same model "
                "and the same adapters"
            )
        network = self.model.network
        return {
            n: stored_like(values[n].to(parameter.device, parameter.dtype), parameter, network)
            for n, parameter in trained.items()
        }
