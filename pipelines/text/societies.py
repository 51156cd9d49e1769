"""Societies of agents, roles of one model, as programs (``mmgrpo.policies.programs``) and examples of one's own.

    answer_together   agents who answer at the same time and read each other, with one joint reward (MAGRPO)
    contribute        agents who contribute to a common good one after the other (MAC-SPGG)
    serve             a fleet: every sample of a prompt is a vehicle, which chooses an order (OSPO)
    staff             a model that first decides who is to work, and then is these (MasHost)

The words that agents are told are ours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from mmgrpo.policies.programs import Ask, Calls, Given
from mmgrpo.types import Output, Prompt, Text

AGENTS = ("first", "second")
TURNS = 2


def answer_together(prompt: Prompt, seed: int, member: int) -> Calls:
    """Two agents answer at the same time, twice; in the second turn each has read what both said. The text is the last
    answers, which the run's rewards judge together: one number for the joint action (MAGRPO, arXiv:2508.04652)."""
    said, answers = "", list[str]()
    for _ in range(TURNS):
        answers = []
        for agent in AGENTS:
            answers.append((yield Ask(f"{prompt.text}{said}\nYou are the {agent} of two agents. Do your part.", agent)))
        said = "".join(f"\n{agent}: {answer}" for agent, answer in zip(AGENTS, answers, strict=True))
    return "\n".join(answers)


def contribute(prompt: Prompt, seed: int, member: int) -> Calls:
    """Three agents, each of which reads those before it, name what the row's answer, a list, has; what an agent adds is
    its contribution, and each of them is paid by ``public_goods`` (MAC-SPGG, arXiv:2508.02076)."""
    wanted = [str(word) for word in (prompt.answer if isinstance(prompt.answer, list | tuple) else [prompt.answer])]
    said, qualities = list[str](), list[float]()
    for number in range(3):
        before = "".join(f"\nAgent {place + 1}: {text}" for place, text in enumerate(said))
        question = f"{prompt.text}{before}\nYou are agent {number + 1} of 3. Add to it."
        said.append((yield Ask(question, f"agent {number + 1}")))
        words = set(re.findall(r"\w+", said[-1]))
        qualities.append(sum(word in words for word in wanted) / max(1, len(wanted)))
    return Given("\n".join(said), sum(qualities), public_goods(qualities))


def public_goods(
    qualities: Sequence[float],
    cost: float = 0.3,
    synergy: float = 0.5,
    share: float = 1.8,
    threshold: float = 0.0,
    penalty: float = 0.0,
) -> list[float]:
    """What each of n agents earns in a sequential game of a public good: -cost q_i^2 + synergy q_i sum_(j<i) q_j +
    share sum(q) / n - penalty [sum(q) < threshold].

    The paper states a strictly convex cost, a synergy with predecessors, a share of the good and a penalty below a
    threshold; the functions and numbers were not found and are ours. Qualities 1, 1, 1: 1.5, 2, 2.5.
    """
    total, before = sum(qualities), [0.0, *accumulate(qualities)]
    common = share * total / len(qualities) - penalty * (total < threshold)
    return [-cost * q * q + synergy * q * sofar + common for q, sofar in zip(qualities, before)]


def serve(prompt: Prompt, seed: int, member: int) -> Calls:
    """One vehicle of a fleet, the one of the sample's number, chooses an order: samples of a prompt are the vehicles of
    a time step (OSPO, arXiv:2507.15351). The row's ``meta`` has ``vehicles``, places on a line, and ``orders``, pairs
    of a place and a price; data.group_size is the number of vehicles."""
    vehicles, orders = _fleet(prompt)
    place = vehicles[member % len(vehicles)]
    offers = ", ".join(f"{number}: at {at}, pays {price}" for number, (at, price) in enumerate(orders))
    return (yield Ask(f"{prompt.text}\nYou are at {place}. Orders: {offers}. Answer with a number.", "vehicle"))


def fares(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """The reward of ``serve``: an order pays its price less the way to it, to the nearest of the vehicles that chose
    it, of equally near ones the first; others earn nothing. Rows of a prompt are its vehicles in their order."""
    seen, earned = dict[str, int](), list[float]()
    chosen: dict[tuple[str, int], list[tuple[float, int, int]]] = {}
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        vehicles, orders = _fleet(prompt)
        member = seen[prompt.id] = seen.get(prompt.id, -1) + 1
        number = re.search(r"\d+", output.text if isinstance(output, Text) else "")
        order = int(number[0]) if number else len(orders)
        if order < len(orders):
            gap = abs(vehicles[member % len(vehicles)] - orders[order][0])
            chosen.setdefault((prompt.id, member // len(vehicles) * len(orders) + order), []).append((gap, row, order))
        earned.append(0.0)
    for several in chosen.values():
        gap, row, order = min(several)
        earned[row] = float(_fleet(prompts[row])[1][order][1] - gap)
    return earned


def _fleet(prompt: Prompt) -> tuple[list[float], list[tuple[float, float]]]:
    meta: Any = prompt.meta
    if not (meta.get("vehicles") and meta.get("orders")):
        raise ValueError(
            f"prompt '{prompt.id}': got meta {sorted(meta)}, expected vehicles and orders; add both columns"
        )
    return meta["vehicles"], [(at, price) for at, price in meta["orders"]]


ROLES = {"solver": "Solve it.", "critic": "Say what is wrong so far.", "writer": "Write the answer."}
MOST = 4
"""Roles of a system."""


def staff(prompt: Prompt, seed: int, member: int) -> Calls:
    """The model decides step by step who joins a system of agents, by the name of a role or 'stop', and is then each of
    them in turn; each reads those before it. Steps and work are one sample, compared as whole systems; a step that
    names no role costs .1 (after MasHost, arXiv:2506.08507, whose rewards of actions were not found)."""
    team, paid = list[str](), list[float]()
    for _ in range(MOST):
        known = f"{prompt.text}\nTeam so far: {', '.join(team) or 'nobody'}. Roles: {', '.join(ROLES)}."
        choice = (yield Ask(f"{known} Who joins? Answer with a role, or stop.", "host")).strip().lower()
        paid.append(0.0 if choice in (*ROLES, "stop") else -0.1)
        if choice == "stop":
            break
        team += [choice] if choice in ROLES else []
    said = ""
    for role in team or ["writer"]:
        answer = yield Ask(f"{prompt.text}{said}\nYou are the {role}. {ROLES[role]}", role)
        said += f"\n{role}: {answer}"
        paid.append(0.0)
    return Given(answer, rewards=paid)
