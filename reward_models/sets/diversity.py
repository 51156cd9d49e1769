"""How much a sample differs from the others of its prompt, and how varied a text is in itself.

Alone they reward anything that differs. Blocks read them with a reward of correctness: ``divided(by='crowding')``
and ``bonus(by='formula_novelty')`` (docs/algorithms.md).
"""

from __future__ import annotations

import functools
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mmgrpo.config.names import nearest
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt, Text
from reward_models.rules.groups import groups
from reward_models.rules.parsing import texts
from reward_models.sets.embeddings import LAYOUT, embeddings_of

embedded_reward = functools.partial(
    reward, "Text", "Image", "Video", "Audio", group=True, check="reward_models.sets.embeddings:check_embed"
)

BUCKETS = 512
BLEU = (0.02, 0.1, 0.15, 0.25, 0.38)
"""Weights of 1- to 5-grams in DIVER (arXiv:2509.26209), as released; they sum to .9."""
BEGINNING = 1000
"""Characters of a text that are compared, as there."""
SEARCHED = 8000
"""Characters of a text in which formulas are looked for."""


def bag_of_words(outputs: Sequence[Output]) -> Tensor:
    """Square roots of the counts of a text's words and pairs of words, hashed into 512 numbers, [B, 512]: no model, and
    cosines that are never negative. An encoder of sentences also knows synonyms."""
    rows = torch.zeros(len(outputs), BUCKETS)
    for row, output in zip(rows, outputs, strict=True):
        if not isinstance(output, Text):
            raise TypeError(f"embed: bag_of_words: got an output of kind {type(output).__name__}, expected Text")
        words = output.text.casefold().split()
        for gram in [*words, *map(" ".join, pairwise(words))]:
            row[zlib.crc32(gram.encode()) % BUCKETS] += 1
    return rows.sqrt()


@embedded_reward(
    range=(-inf, inf),
    scale="sum of cosines with the prompt's outputs",
    source="DRA-GRPO, arXiv:2505.09655",
)
def crowding(
    prompts: Sequence[Prompt], outputs: Sequence[Output], embed: str = LAYOUT, device: str = "cpu"
) -> list[float]:
    """The sum of an output's cosines with all outputs of its prompt, itself included: 1 for one that is orthogonal to
    the others, G where all are alike. The divisor of DRA-GRPO (arXiv:2505.09655), which takes jina-embeddings-v2-small.

    (1, 0), (1, 0), (0, 1), (.6, .8): 2.6, 2.6, 1.8, 3. NaN for an output without an embedding.
    """
    unit = normalize(embeddings_of(outputs, embed, device, "crowding"), dim=1)
    return of_groups(prompts, unit, lambda group: (group @ group.T).sum(1).tolist())


def of_groups(prompts: Sequence[Prompt], vectors: Tensor, measure: Callable[[Tensor], Sequence[float]]) -> list[float]:
    """A value of each output from the vectors of its prompt's outputs, [n, d]; NaN for one without a vector."""
    values = [math.nan] * len(prompts)
    for rows in groups(prompts):
        there = [row for row in rows if bool(vectors[row].isfinite().all())]
        for row, value in zip(there, measure(vectors[there]) if there else (), strict=True):
            values[row] = value
    return values


@embedded_reward(
    range=(1, inf),
    scale="sqrt(N / n), from 1",
    source="DiverseGRPO, arXiv:2512.21514",
)
def cluster_rarity(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    *,
    clusters: int,
    sigma: float,
    embed: str = LAYOUT,
    device: str = "cpu",
) -> list[float]:
    """sqrt(N / n): N samples of the prompt, n of them in the output's cluster of a spectral clustering.

    Of 6 in clusters of 4 and 2: 1.2247 and 1.7321. The affinity of two outputs is exp(-d^2 / (2 sigma^2)), d = 1 -
    cosine. DiverseGRPO, arXiv:2512.21514, adds it to the reward before groups are normalized, with weight 3 and
    DreamSim as embedding; number of clusters and sigma were not found. NaN for an output without an embedding.
    """
    unit = normalize(embeddings_of(outputs, embed, device, "cluster_rarity"), dim=1)

    def rarity(group: Tensor) -> list[float]:
        distance = 1 - group.double() @ group.double().T
        names = spectral_clusters(torch.exp(-distance.square() / (2 * sigma**2)), clusters)
        return [math.sqrt(len(group) / int((names == name).sum())) for name in names]

    return of_groups(prompts, unit, rarity)


def spectral_clusters(affinity: Tensor, count: int) -> Tensor:
    """The cluster of each row of a symmetric affinity: rows of the ``count`` leading eigenvectors of D^-1/2 A D^-1/2,
    of unit length (Ng, Jordan, Weiss 2001), in Lloyd's iterations from centres far apart; the same each time."""
    count = min(count, len(affinity))
    if count < 2:
        return torch.zeros(len(affinity), dtype=torch.long)
    root = affinity.sum(1).rsqrt()
    _, vectors = torch.linalg.eigh(root[:, None] * affinity * root)
    points = normalize(vectors[:, -count:], dim=1)
    centres = points[:1]
    while len(centres) < count:
        centres = torch.cat([centres, points[torch.cdist(points, centres).amin(1).argmax()][None]])
    names = torch.cdist(points, centres).argmin(1)
    for _ in range(100):
        centres = torch.stack(
            [points[names == k].mean(0) if bool((names == k).any()) else centres[k] for k in range(count)]
        )
        before, names = names, torch.cdist(points, centres).argmin(1)
        if torch.equal(before, names):
            break
    return names


@embedded_reward(
    range=(-inf, inf),
    scale="smallest cosine distance in the group",
    source="GARDO, arXiv:2512.24138",
)
def nearest_distance(
    prompts: Sequence[Prompt], outputs: Sequence[Output], embed: str = LAYOUT, device: str = "cpu"
) -> list[float]:
    """The smallest cosine distance of an output to another one of its prompt: 0 for one that has a twin. ``diversity``
    reads it (GARDO, arXiv:2512.24138, by DINOv3 ViT-L). NaN for an output without an embedding or without another.

    (1, 0), (1, 0), (0, 1), (.6, .8): 0, 0, .2, .2.
    """
    unit = normalize(embeddings_of(outputs, embed, device, "nearest_distance"), dim=1)

    def distances(group: Tensor) -> list[float]:
        cosines = group @ group.T - 3 * torch.eye(len(group), dtype=group.dtype)
        return (1 - cosines.amax(1)).clamp_min(0).tolist() if len(group) > 1 else [math.nan] * len(group)

    return of_groups(prompts, unit, distances)


def log_volume(rows: Tensor) -> float:
    """log det(I + K), K the cosines of the rows: monotone and submodular, so repetition gains least.

    Orthogonal rows: n log 2. Two equal rows: log 3 = 1.099 in place of 1.386.
    """
    unit = normalize(rows.double(), dim=1)
    return float(torch.logdet(torch.eye(len(rows), dtype=torch.float64) + unit @ unit.T))


@embedded_reward(
    range=(0, inf),
    scale="marginal log volume",
    source="submodular RL, arXiv:2307.13372",
)
def coverage(
    prompts: Sequence[Prompt], outputs: Sequence[Output], embed: str = LAYOUT, device: str = "cpu"
) -> list[float]:
    """F(all) - F(all others), F = ``log_volume`` of the prompt's outputs: the marginal gain of each, whatever its place
    (submodular reinforcement learning, arXiv:2307.13372, whose gains are those of the steps of one trajectory, in their
    order)."""
    vectors = embeddings_of(outputs, embed, device, "coverage")

    def gains(group: Tensor) -> list[float]:
        whole = log_volume(group)
        return [whole - log_volume(torch.cat([group[:i], group[i + 1 :]])) for i in range(len(group))]

    return of_groups(prompts, vectors, gains)


@reward(
    "Text",
    range=(0, inf),
    scale="what the steps cover",
    source="submodular RL, arXiv:2307.13372",
    check="reward_models.sets.diversity:check_step_coverage",
)
def step_coverage(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    of: str = "words",
    embed: str = "bag_of_words",
    device: str = "cpu",
) -> list[float]:
    """A set function of the steps of a text, its parts between empty lines, to which a step adds the less the more the
    steps before it have said: the number of different words (``words``), or ``log_volume`` of the steps (``volume``).

    For ``sampling.states: judged(by='step_coverage')``, by which each step is rewarded by its marginal gain (submodular
    reinforcement learning, arXiv:2307.13372). Steps of {1, 2}, {2, 3} and {1, 3}: 2, 3 and 3.
    """
    values = []
    for output in texts(outputs, "step_coverage"):
        steps = [part for part in re.split(r"\n\s*\n", output.text) if part.strip()]
        if of == "words":
            values.append(float(len(set(re.findall(r"\w+", output.text.casefold())))))
        else:
            values.append(
                log_volume(embeddings_of([Text(s) for s in steps], embed, device, "step_coverage")) if steps else 0.0
            )
    return values


def check_step_coverage(of: str = "words", **more: str) -> None:
    """Before a run starts: the set function is known."""
    if of not in ("words", "volume"):
        raise ValueError(f"rewards: step_coverage: got of={of!r}, expected words or volume")


def bleu(candidate: Sequence[str], reference: Sequence[str]) -> float:
    """exp(sum_n w_n log p_n) times the brevity penalty, p_n the clipped precision of n-grams plus one in numerator and
    denominator, so none is 0 (the smoothing is ours)."""
    if not candidate or not reference:
        return 0.0
    total = 0.0
    for n, weight in enumerate(BLEU, 1):
        grams, others = (Counter(zip(*(x[i:] for i in range(n)), strict=False)) for x in (candidate, reference))
        total += weight * math.log((sum((grams & others).values()) + 1) / (sum(grams.values()) + 1))
    return math.exp(total + min(0.0, 1 - len(reference) / len(candidate)))


@reward("Text", group=True, source="DIVER, arXiv:2509.26209")
def text_novelty(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Mean over the other samples of the prompt of 1 - BLEU-5, taken in both directions (DIVER, arXiv:2509.26209,
    text), of the first 1,000 characters; 0 for a single sample."""
    words = [output.text[:BEGINNING].split() for output in texts(outputs, "text_novelty")]
    values = [0.0] * len(outputs)
    for rows in groups(prompts):
        for row in rows:
            others = [1 - (bleu(words[row], words[j]) + bleu(words[j], words[row])) / 2 for j in rows if j != row]
            values[row] = sum(others) / len(others) if others else 0.0
    return values


@reward("Text", group=True, range=(0, 1), source="MMR1, arXiv:2509.21268")
def distinct_ngrams(prompts: Sequence[Prompt], outputs: Sequence[Output], n: int = 3) -> list[float]:
    """The different sequences of ``n`` words over all of them in the samples of the prompt, the same for each sample; 0
    without any. Distinct-3, a diversity of trajectories of MMR1 (arXiv:2509.21268; its code counts tokens), of weight 0
    for the tracker ``last_score``. "a b c d" and "a b c": two of three."""
    words = [output.text.split() for output in texts(outputs, "distinct_ngrams")]
    values = [0.0] * len(outputs)
    for rows in groups(prompts):
        grams = [gram for row in rows for gram in zip(*(words[row][i:] for i in range(n)), strict=False)]
        for row in rows:
            values[row] = len(set(grams)) / max(1, len(grams))
    return values


_FORMULA = re.compile(
    r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]|([\w.^()+*/-]+(?: [+*/-] [\w.^()]+)* ?= ?[^\s=,;]+)",
    re.DOTALL,
)
"""Between dollars or in \\( \\), \\[ \\]; or an equation in running text, whose left side has no other words."""


def formulas(text: str) -> frozenset[str]:
    """The formulas of a text without spaces: what stands between dollars or in \\( \\), and equations of a line."""
    matches = ("".join(next(part for part in match if part).split()) for match in _FORMULA.findall(text[:SEARCHED]))
    return frozenset(formula.rstrip(".,;") for formula in matches)


@reward("Text", group=True, source="DIVER, arXiv:2509.26209")
def formula_novelty(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """The share of a sample's formulas that no other sample of the prompt has, 0 without formulas (DIVER,
    arXiv:2509.26209, equations). {x, y}, {y, z}, {y}: .5, .5, 0."""
    every = [formulas(output.text) for output in texts(outputs, "formula_novelty")]
    values = [0.0] * len(outputs)
    for rows in groups(prompts):
        for row in rows:
            rest = frozenset().union(*(every[other] for other in rows if other != row))
            values[row] = len(every[row] - rest) / len(every[row]) if every[row] else 0.0
    return values


FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a an the and or but nor so yet if then because while although though as since until when where that which who
        whom whose this these those of in on at by for with about against between into through during before after above
        below to from up down over under again i you he she it we they me him her us them my your his its our their is
        are was were be been being have has had do does did will would shall should can could may might must not no""",
    )
)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _different(values: Sequence[object]) -> float:
    """The share of the values that are different."""
    return len({*values}) / len(values) if values else 0.0


def _entropy(words: Sequence[str], sentences: Sequence[Sequence[str]]) -> float:
    shares = [count / len(words) for count in Counter(words).values()]
    return -sum(p * math.log(p) for p in shares) / math.log(len(words)) if len(words) > 1 else 0.0


def _lengths(words: Sequence[str], sentences: Sequence[Sequence[str]]) -> float:
    lengths = [len(sentence) for sentence in sentences]
    mean = sum(lengths) / max(1, len(lengths))
    return min(1.0, math.sqrt(sum((n - mean) ** 2 for n in lengths) / len(lengths)) / mean) if mean else 0.0


def _apart(words: Sequence[str], sentences: Sequence[Sequence[str]]) -> float:
    pairs = [({*a}, {*b}) for a, b in pairwise(sentences)]
    return sum(1 - len(a & b) / len(a | b) for a, b in pairs) / len(pairs) if pairs else 0.0


def _yule(words: Sequence[str], sentences: Sequence[Sequence[str]]) -> float:
    squares = sum(count**2 for count in Counter(words).values())
    return 1 - (squares - len(words)) / len(words) ** 2 if words else 0.0


DIVERSITIES: dict[str, Callable[[Sequence[str], Sequence[Sequence[str]]], float]] = {
    "lexical": lambda words, sentences: _different(words),
    "entropy": _entropy,
    "sentence_lengths": _lengths,
    "sentence_patterns": lambda words, sentences: _different([tuple(sentence[:2]) for sentence in sentences]),
    "neighbours": _apart,
    "yule": _yule,
    "bigrams": lambda words, sentences: _different([*pairwise(words)]),
    "function_words": lambda words, sentences: _different([word for word in words if word in FUNCTION_WORDS]),
}
"""Measures in [0, 1] of the words and sentences of a text: the share of different words; the entropy of its words over
the log of their number; std over mean of the sentences' lengths, at most 1; the share of different beginnings of two
words of its sentences; 1 - Jaccard of the words of neighbouring sentences; 1 - (sum f^2 - N) / N^2 (Yule's K over 10^4
subtracted from 1); the shares of different pairs of words and of different function words."""


@reward(
    "Text",
    scale="mean of its measures",
    source="MultiRole-R1, arXiv:2507.20187",
    check="reward_models.sets.diversity:check_text_diversity",
)
def text_diversity(
    prompts: Sequence[Prompt], outputs: Sequence[Output], of: Sequence[str] = tuple(DIVERSITIES)
) -> list[float]:
    """How varied a text is in itself, in [0, 1]: the mean of eight measures (``DIVERSITIES``).

    MultiRole-R1 (arXiv:2507.20187), R = .9 accuracy + .1 diversity (rewards ``roles`` and this): diversity never
    outweighs correctness. The names of the measures are its; the formulas are ours, as its appendix was not read.
    """
    values = []
    for output in texts(outputs, "text_diversity"):
        words, parts = _words(output.text), map(_words, re.split(r"[.!?\n]+", output.text))
        sentences = [part for part in parts if part]
        values.append(sum(DIVERSITIES[name](words, sentences) for name in of) / len(of))
    return values


def check_text_diversity(of: Sequence[str] = tuple(DIVERSITIES)) -> None:
    """Before a run starts: the measures are known."""
    for name in of or [""]:
        if name not in DIVERSITIES:
            raise ValueError(f"rewards: text_diversity: of: unknown '{name}'.{nearest(name, DIVERSITIES)}")


@reward(
    "Text",
    range=(0, 2),
    reads=("answer",),
    source="DR-IRL, arXiv:2503.18991",
    check="reward_models.sets.embeddings:check_embed",
)
def reference_distance(
    prompts: Sequence[Prompt], outputs: Sequence[Output], embed: str = "bag_of_words", device: str = "cpu"
) -> list[float]:
    """1 - the mean over the sentences of the row's answer of the largest cosine with a sentence of the output: how far
    a sample is from the demonstration, 0 where it says all of it (DR-IRL, arXiv:2503.18991). Of weight 0, for
    ``dynamic_scaling(by='reference_distance')``."""
    values = []
    for prompt, output in zip(prompts, texts(outputs, "reference_distance"), strict=True):
        if not isinstance(prompt.answer, str) or not prompt.answer.strip():
            raise ValueError(f"prompt '{prompt.id}': got answer {prompt.answer!r:.200}, expected the text of an answer")
        sides = [[Text(s) for s in _sentences(text)] for text in (prompt.answer, output.text)]
        if not sides[1]:
            values.append(1.0)
            continue
        demo, said = (normalize(embeddings_of(side, embed, device, "reference_distance"), dim=1) for side in sides)
        values.append(1 - float((demo @ said.T).max(1).values.mean()))
    return values


def _sentences(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"(?<=[.!?])\s+|\n+", text) if part.strip()]
