"""Train a preference head, which serves as a reward: preference(weights='<folder>').

    mmgrpo train-reward --output runs/head                           # on the embedded pairs of scenes, minutes on a CPU
    mmgrpo train-reward --data hpdv3:HPDv3/train.json --heldout hpdv3:HPDv3/test.json --features my_clip:embed
    mmgrpo train --recipe visual/demo --rewards "preference(weights='runs/head')"

The head (two linear layers and a SiLU, as BaseReward) is trained with the Bradley-Terry likelihood, with its variant
that models ties (bradley_terry_ties, k = 5), or by regression to ratings. Its features are either those of a small
tower for images of 32 pixels, which is trained with it (scenes), or those of any frozen model: module:function of
prompts, outputs and device that returns [N, width], or embeddings of images and of texts, both [N, width].

With --lora-rank, the language model of reward_models.last_hidden:last_hidden(model='...') is trained too, by adapters
(BaseReward). With --user-groups K, K heads are trained for K groups of users who prefer different things, found by
expectation maximization (MaxMin-RLHF); the comparisons must say who ranked them (votes with a key user). The heads are
written to <output>/group-0, ..., and the group of each user to <output>/users.json; train a policy on them with
algorithm.combine=worst_stream.

--data and --heldout are benchmarks, written FORMAT:PATH as for 'mmgrpo evaluate-rewards'. The output folder contains
model.safetensors, preference.json (features, statistics, settings, accuracy) and nothing that must be trusted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mmgrpo.cli.errors import enter
from mmgrpo.cli.options import words
from mmgrpo.config.ranges import ANY_TEXT, COUNT, COUNT_OR_ZERO, DEVICE, POSITIVE, SEED, UPPER_BOUND, one_of
from mmgrpo.files import write_text
from mmgrpo.runtime.folder import refuse_output

if TYPE_CHECKING:
    from reward_models.evaluation.protocols import Benchmark
    from reward_models.preference import PreferenceModel


@dataclass
class Args:
    """The data, the features and the training of the head."""

    data: Annotated[str, ANY_TEXT] = "scenes:train"
    """Comparisons to train on."""
    heldout: Annotated[str, ANY_TEXT] = "scenes:heldout"
    """Comparisons to evaluate on; empty for none."""
    features: Annotated[str, ANY_TEXT] = "scenes"
    """scenes, or module:function(parameter=value) of a frozen model."""
    loss: Annotated[str, one_of("bradley_terry", "bradley_terry_ties", "regression")] = "bradley_terry_ties"
    """The likelihood of preferences, or the squared error of ratings."""
    epochs: Annotated[int, COUNT] = 6
    """Passes over the comparisons."""
    lr: Annotated[float, POSITIVE] = 2e-3
    """Largest learning rate of AdamW, with a cosine decay to 0."""
    batch_size: Annotated[int, COUNT] = 64
    """Pairs (or rated outputs) of a step."""
    weight_decay: Annotated[float, UPPER_BOUND] = 1e-2
    """Weight decay of AdamW."""
    hidden: Annotated[int, COUNT] = 128
    """Width between the two layers of the head."""
    lora_rank: Annotated[int, COUNT_OR_ZERO] = 0
    """Rank of adapters in the language model of the features, which are trained with the head; 0 freezes it."""
    user_groups: Annotated[int, COUNT] = 1
    """Groups of users; a head is trained for each."""
    user_rounds: Annotated[int, COUNT] = 10
    """Rounds in which users choose their head and heads are trained on their users, at most."""
    limit: Annotated[int, COUNT_OR_ZERO] = 0
    """Comparisons to train on; 0 for all."""
    seed: Annotated[int, SEED] = 0
    """Random seed for the initial weights and the order of pairs."""
    device: Annotated[str, DEVICE] = "auto"
    """Device of the head and its features."""
    output: Annotated[str, ANY_TEXT] = "preference_head"
    """Output folder."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, evaluate, save."""
    from mmgrpo.config.reading import from_arguments

    args = from_arguments(Args(), words(arguments), str(__doc__))
    from mmgrpo.config.registry import parse
    from mmgrpo.runtime.devices import accelerator
    from reward_models.evaluation.protocols import read_benchmark
    from reward_models.preference_training import Fitting, train

    if args.lora_rank and args.user_groups > 1:
        raise ValueError("--lora-rank: got adapters with --user-groups above 1, expected one of the two; choose one")
    written = r"(group-\d+/)?(model\.safetensors|preference\.json)|users\.json"
    first = "group-0/preference.json" if args.user_groups > 1 else "preference.json"
    refuse_output(Path(args.output), written, first, {"features", "training"})
    device = str(accelerator(args.device).device)
    features, parameters = parse(args.features, "--features")
    data = read_benchmark(args.data, args.limit)
    how = Fitting(args.loss, args.epochs, args.lr, args.batch_size, args.weight_decay, args.hidden, args.seed, device)
    record = {**vars(args), "comparisons": len(data.comparisons)}
    heldout = read_benchmark(args.heldout) if args.heldout else None
    folder = Path(args.output)
    if args.user_groups > 1:
        from reward_models.preference_users import train_groups

        models, users = train_groups(data.comparisons, args.user_groups, args.user_rounds, features, parameters, how)
        for number, model in enumerate(models):
            names = [name for name, group in users.items() if group == number]
            _finish(model, folder / f"group-{number}", {**record, "users": len(names)}, heldout, set(names), device)
        write_text(folder / "users.json", json.dumps(users, indent=1))
    elif args.lora_rank:
        from mmgrpo.files import write_tensors
        from reward_models.last_hidden import ADAPTERS
        from reward_models.preference_backbone import train_backbone

        model, adapters = train_backbone(data.comparisons, features, parameters, args.lora_rank, how)
        write_tensors(folder / ADAPTERS, adapters)
        _finish(model, folder, record, heldout, None, device)
    else:
        model = train(data.comparisons, features, parameters, how)
        _finish(model, folder, record, heldout, None, device)


def _finish(
    model: PreferenceModel,
    folder: Path,
    record: dict[str, Any],
    heldout: Benchmark | None,
    users: set[str] | None,
    device: str,
) -> None:
    """Save a head, and measure it as it was saved on the held-out comparisons; only on those of ``users``."""
    from mmgrpo.scoring import Scorer
    from reward_models.evaluation.evaluate import evaluate, score
    from reward_models.preference import load, save, scores_of

    model.description = replace(model.description, training=record)
    save(model, folder)
    if heldout and users is not None:
        heldout = replace(
            heldout, comparisons=tuple(comparison for comparison in heldout.comparisons if comparison.user in users)
        )
    if heldout and heldout.comparisons:
        load.cache_clear()
        saved = load(str(folder), device)
        judge = Scorer("head", lambda prompts, outputs: scores_of(saved, prompts, outputs, device))
        result = evaluate(heldout, score([judge], heldout.comparisons)["head"], record["seed"])
        accuracy = {key: result[key] for key in ("headline", "interval", "categories", "failed")}
        model.description = replace(model.description, training={**record, "heldout_accuracy": accuracy})
        save(model, folder)
        print(f"{heldout.name}: accuracy {result['headline']:.3f} ({heldout.protocol.note})")
    print(f"written: {folder}; as a reward: preference(weights='{folder}')")


if __name__ == "__main__":
    enter(main)
