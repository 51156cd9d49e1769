"""Rounds of networks of published sizes with random weights: seconds, throughput, memory, share of the card's peak.
Speed, not learning; beside it what others report of their runs (mmgrpo/catalogue/speeds.yaml).

    mmgrpo bench gpu                      # some minutes on one card
    mmgrpo bench gpu --toy                # tiny networks, for a machine without one

Every network is written as a checkpoint of random weights first: a tiny one of its family, whose configuration is given
the published sizes. Text encoders and VAEs stay tiny, so a round is the network's own. One round is warm-up; one
more is run under a counter of floating-point operations, backward passes included, and its seconds do not count; on a
card torch also counts in it how often the host waits for the device.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from mmgrpo.catalogue.speeds import speeds
from mmgrpo.config.ranges import ANY_TEXT, COUNT, within
from mmgrpo.files import write_text
from mmgrpo.runtime.work import PEAKS


@dataclass(frozen=True)
class Size:
    """A network: its family, where its configuration lies in a checkpoint, and the published sizes in it."""

    family: str
    folder: str
    sizes: Mapping[str, Any]
    model: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    group: int = 8
    preset: str = ""
    algorithm: Mapping[str, Any] = field(default_factory=dict)


LORA = {"lora_rank": 32, "gradient_checkpointing": True, "dtype": "bfloat16"}
QWEN = {"num_hidden_layers": 36, "hidden_size": 2048, "intermediate_size": 11008, "num_attention_heads": 16}
QWEN |= {"num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 128000}
QWEN |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}}
LARGER = {"num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28}
LARGER = {**QWEN, **LARGER, "num_key_value_heads": 4, "tie_word_embeddings": False}
KL = {"terms": ["kl_k3(coef=0.04)"]}
"""A second pass of log-probs, that of the reference; old ones are those of sampling, and are not computed again."""
MEDIUM = {"num_layers": 24, "num_attention_heads": 24, "attention_head_dim": 64, "caption_projection_dim": 1536}
MEDIUM |= {"pos_embed_max_size": 384, "dual_attention_layers": list(range(13))}
SMALL = {**LORA, "height": 256, "width": 256}
SIZES: Mapping[str, Size] = {
    "sd3.5-medium": Size("sd3", "transformer", MEDIUM, SMALL, {"steps": 10}),
    "sd3.5-medium-nft": Size("sd3", "transformer", MEDIUM, SMALL, {"steps": 10}, preset="diffusion_nft"),
    "flux.1-12b": Size(
        "flux",
        "transformer",
        {"num_layers": 19, "num_single_layers": 38, "num_attention_heads": 24, "attention_head_dim": 128}
        | {"axes_dims_rope": [16, 56, 56]},
        SMALL,
        {"steps": 6},
        4,
    ),
    "qwen-image-20b": Size(
        "qwen_image",
        "transformer",
        {"num_layers": 60, "num_attention_heads": 24, "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56]},
        SMALL,
        {"steps": 6},
        4,
    ),
    "wan2.1-1.3b": Size(
        "wan",
        "transformer",
        {"num_layers": 30, "num_attention_heads": 12, "attention_head_dim": 128, "ffn_dim": 8960},
        {**LORA, "height": 128, "width": 128, "frames": 17},
        {"steps": 8},
        4,
    ),
    "qwen2.5-vl-3b": Size("qwen_vl", "", {"text_config": QWEN}, LORA, {"max_tokens": 128}, 16),
    "qwen2.5-vl-3b-kl": Size("qwen_vl", "", {"text_config": QWEN}, LORA, {"max_tokens": 128}, 16, algorithm=KL),
    "qwen2.5-vl-7b": Size("qwen_vl", "", {"text_config": LARGER}, LORA, {"max_tokens": 128}, 16),
    "qwen2.5-vl-7b-kl": Size("qwen_vl", "", {"text_config": LARGER}, LORA, {"max_tokens": 128}, 16, algorithm=KL),
    "whisper-large-v3": Size(
        "whisper",
        "",
        {"d_model": 1280, "encoder_layers": 32, "decoder_layers": 32, "encoder_attention_heads": 20}
        | {"decoder_attention_heads": 20, "encoder_ffn_dim": 5120, "decoder_ffn_dim": 5120},
        LORA,
        {"max_tokens": 64},
    ),
}
"""Networks by name, some with another algorithm than GRPO without a KL. Of a language model the language part has its
published size, and the vision tower is tiny."""


ABOUT = "Speed, not learning: random weights of published sizes, rewards that cost nothing, tiny encoders and VAEs."
NOTES = (
    "Reported rows are those of their sources, with other sizes, lengths, rewards and cards: they say what is "
    "usual, and are no comparison. Their samples a second and updates an hour are computed from the seconds of an "
    "update where they are not stated. MFU here: operations of an update by the shapes of the weights, without "
    "recomputation and prompts of token models, in the seconds of the update; elsewhere as the source defines it."
)
DETAILS = (
    "An evaluation is a token or a denoising step of one sample. The share of peak counts the operations that are "
    "really done, backward passes and recomputation included, in all seconds of a round. Waits: how often the "
    "host waited for the card in one round."
)


@dataclass
class Args:
    """What is measured."""

    networks: Annotated[list[str], ANY_TEXT] = field(default_factory=lambda: list(SIZES))
    """Networks, of those that the benchmark knows."""
    toy: bool = False
    """Leave the networks tiny and compute in fp32: a check of the benchmark itself."""
    rounds: Annotated[int, COUNT] = 2
    """Rounds to measure, after one for warm-up."""
    device: Annotated[str, ANY_TEXT] = "auto"
    """Device of the networks."""
    threads: Annotated[int, within("[1, 1024]")] = 1
    """CPU threads of torch."""
    output: Annotated[str, ANY_TEXT] = "benchmarks"
    """Output folder."""


def run(args: Args, machine: str, command: str) -> None:
    """Measure the networks and write ``gpu-<card>.json`` and ``.md``, which are those of one kind of card."""
    if unknown := sorted(set(args.networks) - SIZES.keys()):
        raise ValueError(f"--networks: got '{unknown[0]}', expected some of {', '.join(SIZES)}")
    rows: list[dict[str, Any]] = []
    for name in args.networks:
        with tempfile.TemporaryDirectory(prefix="bench-gpu-") as place:
            try:
                rows.append({"network": name, **measure_network(SIZES[name], args, Path(place), machine)})
            except Exception as error:  # one that does not fit leaves the others
                rows.append({"network": name, "error": f"{type(error).__name__}: {str(error)[:200]}"})
        print(json.dumps(rows[-1]), flush=True)
    out = Path(args.output)
    out.mkdir(parents=True, exist_ok=True)
    name = "gpu-" + "-".join(re.findall(r"[a-z0-9.]+", machine.partition(",")[0].lower()))
    content = {"about": ABOUT, "machine": machine, "command": command, "toy": args.toy, "rows": rows}
    write_text(out / f"{name}.json", json.dumps(content, indent=2))
    write_text(out / f"{name}.md", "\n".join(page(rows, machine, command)) + "\n")


def measure_network(size: Size, args: Args, place: Path, machine: str) -> dict[str, Any]:
    """The numbers of one network."""
    from mmgrpo.cli.train import counted_in
    from mmgrpo.family import family
    from mmgrpo.runtime.memory import needs, read_folder
    from mmgrpo.runtime.work import work

    path = checkpoint(size, place / "model", args.toy)
    config = settings(size, path, args)
    lines = rounds(config, place / "timed", 1 + args.rounds)
    timed = lines[1:]
    spent = {name: sum(line[f"time/{name}"] for line in timed) / len(timed) for name in ("rollout", "reward", "update")}
    operations, waits = count_work(config, place / "counted")
    peak = peak_of(machine)
    evaluations = sum(line["rollout/evaluations"] for line in timed) / len(timed)
    folder = read_folder(Path(path))
    known = counted_in(config, folder)
    needed = sum(needs(folder, config, processes=1, **known).values()) / 1e9 if folder else None
    seconds = sum(spent.values())
    once = replace(config, model=replace(config.model, gradient_checkpointing=False))  # what MFU counts
    totals = family(size.family).arithmetic(config).totals
    trained = work(known["counts"], once, totals, known["reference"])[1] or None
    samples = config.data.prompts_per_step * config.data.group_size
    return {
        "parameters": folder.parameters if folder else None,
        "seconds": seconds,
        **spent,
        "samples per second": samples / seconds,
        "updates per hour": 3600 * config.optim.updates * config.optim.epochs / seconds,
        "operations of the update": trained,
        "MFU": trained / spent["update"] / peak if peak and trained else None,
        "evaluations per second": evaluations / max(spent["rollout"], 1e-9),
        "operations": operations,
        "share of peak": operations / seconds / peak if peak else None,
        "waits": waits,
        "peak GB": max(line["memory"] for line in lines) * 2**30 / 1e9,
        "dry-run GB": needed,
    }


def peak_of(machine: str) -> float | None:
    """Dense bf16 operations per second of the card that a machine names; None without a card that is known."""
    import torch

    known = (value for part, value in PEAKS.items() if part in machine)
    return next(known, None) if torch.cuda.is_available() else None


def checkpoint(size: Size, folder: Path, toy: bool) -> str:
    """A checkpoint with random weights: the family's tiny one, whose network has the published sizes unless ``toy``."""
    import importlib

    from mmgrpo.family import family

    path = Path(importlib.import_module(family(size.family).module).tiny(folder))
    if toy:
        return str(path)
    import diffusers
    import torch
    import transformers

    inner = path / size.folder
    config = json.loads((inner / "config.json").read_text())
    for name, value in size.sizes.items():
        config[name] = (
            {**config[name], **value} if isinstance(value, Mapping) and isinstance(config.get(name), dict) else value
        )
    name = config.get("_class_name") or config["architectures"][0]
    if name == "Qwen2_5_VLForConditionalGeneration":
        config["vision_config"]["out_hidden_size"] = config["text_config"]["hidden_size"]
    for file in inner.glob("*.safetensors*"):
        file.unlink()
    library: Any = diffusers if "_class_name" in config else transformers
    kind: Any = getattr(library, name)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        if library is diffusers:
            network = kind.from_config(config)
        else:
            network = kind(kind.config_class.from_dict(config))
    finally:
        torch.set_default_dtype(before)
    network.save_pretrained(inner)
    return str(path)


def settings(size: Size, path: str, args: Args) -> Any:
    """The configuration of a run of a network."""
    from mmgrpo.config.reading import usual
    from mmgrpo.config.settings import config_class
    from mmgrpo.family import family

    kind = config_class(family(size.family).sections)
    config = usual(kind, size.preset) if size.preset else kind()
    model = {"family": size.family, "path": path, "device": args.device}
    small = {"max_tokens": 5} if "max_tokens" in size.sampling else {"steps": 4}
    toy = {"height": 16, "width": 16} if "height" in size.model else {}
    toy |= {"frames": 5} if "frames" in size.model else {}
    return replace(
        config,
        model=replace(config.model, **model, **(toy | {"lora_rank": 4} if args.toy else size.model)),
        sampling=replace(config.sampling, **(small if args.toy else size.sampling)),
        data=replace(config.data, prompts_per_step=2, group_size=4 if args.toy else size.group),
        optim=replace(config.optim, micro_batch_size=4),
        algorithm=replace(config.algorithm, **size.algorithm),
        eval=replace(config.eval, skip=True),
        rewards=["sizes"],
        trackers=[],
        threads=args.threads,
        groups_kept=0,
        save_every=1_000_000,
        save_every_minutes=0,
    )


def rounds(
    config: Any,
    place: Path,
    steps: int,
    prompts: Sequence[Any] = (),
    watch: Callable[[Any], object] = lambda policy: None,
) -> list[dict[str, Any]]:
    """The metrics of a run of some steps, of a policy that ``watch`` is given before; it is evaluated on the first
    prompt, where it is."""
    from mmgrpo.api import execute
    from mmgrpo.data.splits import Splits
    from mmgrpo.family import family
    from mmgrpo.inputs import RunInputs

    owner, prompts = family(config.model.family), prompts or prompts_of(config.model.family)
    config = replace(config, steps=steps, output_dir=str(place), name="run")

    def start(accelerator: Any) -> RunInputs:
        policy = owner.policy(config, str(accelerator.device), prompts)
        watch(policy)
        return RunInputs(policy, Splits(prompts, [] if config.eval.skip else prompts[:1]), [], {}, 0)

    try:
        return execute(config, owner, start, [sizes]).metrics
    finally:
        shutil.rmtree(place, ignore_errors=True)  # the saved model of a large network


def count_work(config: Any, place: Path) -> tuple[int, int | None]:
    """Floating-point operations of one round, and on CUDA how often the host waited for the device."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    on_card = torch.cuda.is_available()
    with warnings.catch_warnings(record=True) as caught, FlopCounterMode(display=False) as counter:
        warnings.simplefilter("always")
        if on_card:
            torch.cuda.set_sync_debug_mode("warn")
        try:
            rounds(config, place, 1)
        finally:
            if on_card:
                torch.cuda.set_sync_debug_mode("default")
    waits = sum("synchroniz" in str(warning.message) for warning in caught)
    return counter.get_total_flops(), waits if on_card else None


def sizes(prompts: Sequence[Any], outputs: Sequence[Any]) -> list[float]:
    """Reward: a number that costs nothing and differs between samples."""
    return [float(place % 5) for place, _ in enumerate(outputs)]


def prompts_of(name: str) -> list[Any]:
    """Two prompts that the tiny model of a family reads."""
    import torch

    from mmgrpo.types import Audio, Image, Media, Prompt, Turn

    if name == "qwen_vl":
        media = [Media("image", Image(torch.full((3, 32, 32), shade))) for shade in (0.2, 0.8)]
        words = "which ?"
    elif name == "whisper":
        media = [
            Media("audio", Audio(torch.sin(torch.arange(16_000) * pace)[None] / 2, 16_000)) for pace in (0.02, 0.03)
        ]
        words = ""
    else:
        return [Prompt("a red square", "0"), Prompt("blue", "1")]
    return [
        Prompt(words, str(number), turns=(Turn("user", (medium, words) if words else (medium,)),))
        for number, medium in enumerate(media)
    ]


def page(rows: Sequence[Mapping[str, Any]], machine: str, command: str) -> list[str]:
    """The tables as Markdown: what was measured with what others report, and the parts of what was measured."""
    lines = ["# Rounds on this machine", "", ABOUT, "", machine, "", f"`{command}`", ""]
    lines += ["| run | by | cards | samples a second and card | updates an hour | MFU of updates | peak GB |"]
    lines += ["| --- " * 7 + "|"]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['network']} | {row['error']} |" + " |" * 5)
            continue
        speed = f"{row['samples per second']:.3g}", f"{row['updates per hour']:.3g}"
        peak = f"{row['peak GB']:.2f}" + ("" if row["dry-run GB"] is None else f" (dry run {row['dry-run GB']:.2f})")
        lines.append(line(row["network"], "measured here", "1", *speed, percent(row["MFU"]), peak))
    for name, report in speeds().items():
        cells = [f"{report.count} x {report.cards}", "-" if report.per_second is None else f"{report.per_second:.3g}"]
        cells += ["-" if report.seconds is None else f"{3600 / report.seconds:.3g}"]
        cells += ["-" if report.mfu is None else f"{report.mfu} %", "-" if report.peak is None else f"{report.peak:g}"]
        lines.append(
            line(name, f"reported by [{report.by}]({report.source})" + f": {report.note}" * bool(report.note), *cells)
        )
    lines += ["", NOTES, ""]
    lines += ["| network | parameters | s a round | rollout / reward / update | evaluations a second | share of peak |"]
    lines[-1] += " waits |"
    lines += ["| --- " * 7 + "|"]
    for row in [row for row in rows if "error" not in row]:
        parts = " / ".join(f"{row[name]:.2f}" for name in ("rollout", "reward", "update"))
        cells = [row["network"], f"{row['parameters'] or 0:,}", f"{row['seconds']:.2f}", parts]
        cells += [f"{row['evaluations per second']:.0f}", percent(row["share of peak"])]
        lines.append(line(*cells, "-" if row["waits"] is None else str(row["waits"])))
    return [*lines, "", DETAILS]


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
