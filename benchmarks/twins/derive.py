"""A twin of a recipe or preset: its blocks, with what its size demands."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.config.plugins import recipe, recipes
from mmgrpo.config.presets import CATALOGUE
from mmgrpo.config.reading import build, load_yaml
from mmgrpo.config.settings import Algorithm, Config, config_class
from mmgrpo.family import Family, Settings, family
from mmgrpo.types import Policy

if TYPE_CHECKING:
    from mmgrpo.trainer import Trainer

VERSION = 1
"""Of the worlds and of ``SIZES``: part of the hash of every twin."""

SIZES: Mapping[str, Mapping[str, Any]] = {
    "plane": {"rounds": 16, "prompts": 24, "lr": 5e-3},
    "words": {"rounds": 12, "prompts": 16, "lr": 4e-3},
    "scale": {"rounds": 16, "prompts": 24, "lr": 2e-2},
}
"""Rounds, prompts per round and learning rate of each world, for all of its twins alike."""

ROUNDS: Mapping[str, int] = {
    "visual/granular_grpo": 6,
    "visual/flash_grpo": 96,
    "visual/demo": 24,
    "visual/demo_video": 32,
    "several_epochs": 12,
    "visual/tdm_r1": 20,
    "visual/fdfo": 40,
}
"""Rounds of twins whose rounds are dear (a plan for every step), or tell little (a branch at one step; of four samples
that begin with other noise, Flash-GRPO; of pairs, FDFO)."""

RATES: Mapping[str, float] = {"visual/demo": 2e-3, "visual/flash_grpo": 2e-3, "several_epochs": 1e-2}
"""Learning rates of twins that overshoot with that of their world (one draws in two steps, one compares four samples
of other noise), and of one that overshoots without its clip."""

MOST_STEPS = 20
"""Largest number of denoising steps."""

MOST_GUIDANCE = 2.0
"""Largest classifier-free guidance, since two numbers overshoot with more."""

ALL = 1_000_000
"""A limit of memory that is none."""

SCALES: Mapping[str, Mapping[str, Any]] = {
    "visual/prdp": {"objective": "regression_proximal(beta=0.1, clip=1.6, dimensions=2)"},
    "speech/dragon_audio": {"objective": "diffusion_kto(beta=5)"},
    "speech/f5r_tts": {"terms": ["kl_transition(coef=0.01)"]},
    "visual/seppo": {"objective": "seppo(beta=2.0)"},
    "preset/diffusion_dpo": {
        "objective": "preference(link='logistic', pairs='best_worst', anchor='reference', reduce='step', beta=1.0)"
    },
    "visual/gdro": {"objective": "gdro(beta=1.2, tau=0.05, gamma=0.5)"},
    "visual/tdm_r1": {
        "networks": [
            "learner(name='fake', objective='fake_score', terms=['kl_velocity(coef=0.02)'], lr=1e-2, beta1=0.0)",
            "learner(name='surrogate', objective='surrogate_preference(beta=10.0, clip=1e-3)', "
            "terms=['kl_velocity(coef=1e-3)'], aggregation='boundary_weighted', lr=1e-2)",
            "average(name='old', of='surrogate', start=0.001, slope=0.001, most=0.3)",
            "base",
        ]
    },
}
"""Constants that belong to the scale of rewards or to the numbers of a latent: temperatures between log-ratios, or
errors, and rewards, which are a thousand times smaller where two numbers take the place of thousands; and learning
rates of networks that train alongside the policy."""

FRAMES = 2
"""Frames of twins of video recipes."""

NO_TWIN = {
    "text/demo": "its blocks are those of text/toolrl",
    "visual/awm": "preset/awm is, with the plain error",
    "visual/d3po": "preset/d3po is, in groups",
    "visual/demo_draft": "it draws with the gradient of a reward",
    "visual/demo_edit": "its blocks are those of visual/demo, with a source",
    "visual/diffusion_dpo": "it trains on given pairs; preset/diffusion_dpo draws them",
    "visual/flow_opd": "it needs teachers",
    "visual/gardo": "its gate and its diversity name rewards of images",
    "text/gigpo": "it compares turns",
    "vlm/peek": "it looks at images by a tool",
    "vlm/ttrv": "its reward is a vote, whose gain says nothing of a right answer",
    "vlm/video_r1": "it compares with shuffled frames",
    "vlm/vision_r1": "its weights follow two rewards of boxes",
}
"""Recipes whose blocks need what no world has."""

NEEDS = {"flow_opd": "it needs teachers", "srum": "it needs judged regions of given images"}
"""Presets that need what no world has."""

OF_PRESETS: Mapping[str, Mapping[str, Any]] = {"flow_grpo_cps": {"kernel": "cps(a=0.7)"}}
"""Sampling of presets that belong to other than the base's."""

CLIPPED: Mapping[str, Mapping[str, Any]] = {
    "optim": {"epochs": 4},
    "algorithm": {"objective": "ppo(low=1e-2, high=1e-2)"},
}
"""What the twin ``several_epochs`` changes of ``visual/flow_grpo_fast``: no recipe trains so often on its samples that
the clip decides."""

BASES = {"gaussian": "visual/flow_grpo", "matching": "visual/diffusion_nft"}
"""The recipe whose sampling and optimizer a preset without a recipe takes, by the kind of its decisions."""


@dataclasses.dataclass(frozen=True)
class Twin:
    """A recipe or preset at the size of a world."""

    name: str
    """``visual/flow_grpo``, ``preset/dppo``."""
    world: str
    family: str
    section: Mapping[str, Any]
    """The recipe after its substitutions."""

    @property
    def hash(self) -> str:
        """Of all that the twin is, without its name."""
        text = json.dumps([VERSION, self.world, self.family, self.section], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def config(self, **changes: Any) -> Config:
        """Its configuration, with changes of fields outside the sections."""
        owner: Family = family(self.family)
        return build(config_class(owner.sections), {**self.section, **changes}, f"twin of {self.name}")


@cache
def twins() -> dict[str, Twin]:
    """All twins by name: of every recipe, of every preset for denoising and matching policies that no recipe has, and
    one whose clip decides."""
    made: dict[str, Twin] = {}
    used: set[str] = set()
    for name, path in sorted(recipes().items()):
        section = load_yaml(path)
        if name not in NO_TWIN:
            used.add(section["algorithm"]["preset"])
            made[name] = derive_twin(name, section)
    for preset, entry in CATALOGUE.items():
        if entry.policies in BASES and preset not in used and preset not in NEEDS:
            section = load_yaml(recipe(BASES[entry.policies]))
            section["algorithm"] = {"preset": preset}
            section["sampling"] |= OF_PRESETS.get(preset, {})
            if entry.policies == "gaussian" and reads_steps(preset):
                section["sampling"]["completion_steps"] = section["sampling"]["steps"]
            made[f"preset/{preset}"] = derive_twin(f"preset/{preset}", section)
    section = load_yaml(recipe("visual/flow_grpo_fast"))
    made["several_epochs"] = derive_twin(
        "several_epochs", {**section, **{part: section[part] | dict(values) for part, values in CLIPPED.items()}}
    )
    return made


def reads_steps(preset: str) -> bool:
    """Whether a preset needs rewards of single steps."""
    from mmgrpo.advantages.estimate import AdvantageRecipe

    return "step_rewards" in AdvantageRecipe.of(build(Algorithm, {"preset": preset}, preset)).fields


def derive_twin(name: str, section: Mapping[str, Any]) -> Twin:
    """The twin of a recipe's settings: blocks, sampling, groups and optimizer stay, sizes are those of a world."""
    kind = section["model"]["family"]
    fields = {field.name for field in dataclasses.fields(family(kind).sections.sampling)}
    world = "plane" if "plan" in fields else "words" if "max_tokens" in fields else "scale"
    size = SIZES[world]
    sampling, algorithm = dict(section.get("sampling", {})), dict(section["algorithm"])
    optim, data = dict(section["optim"]), dict(section.get("data", {}))
    model = {"family": kind, "path": "twin"}
    optim |= {"lr": RATES.get(name, size["lr"]), "warmup": 0, "micro_batch_size": ALL}
    kept = {key: data[key] for key in ("group_size", "reference_in_group") if key in data}
    if world == "plane":
        model |= {
            key: section["model"][key] for key in ("guidance", "true_cfg_scale", "head") if key in section["model"]
        }
        for part in (model, sampling):
            scales = {key: value for key, value in part.items() if key.endswith(("guidance", "cfg_scale"))}
            part |= {key: min(float(value), MOST_GUIDANCE) for key, value in scales.items()}
        sampling["forward_batch_size"] = ALL
        for key in ("steps", "evaluation_steps"):
            sampling[key] = min(sampling[key], MOST_STEPS)
        algorithm |= SCALES.get(name, {})
        rewards = ["near", "close"][: len([reward for reward in section["rewards"] if "weight=0)" not in str(reward)])]
    elif world == "words":
        # A longest answer is two words and the end; media and their caches are gone.
        sampling = {key: value for key, value in sampling.items() if key in ("temperature", "search", "truncated")}
        sampling |= {"max_tokens": 4, "evaluation_temperature": 1.0}
        rewards = ["said"]
    else:
        rewards = ["near_class"]
    changed = {
        "name": "twin",
        "steps": ROUNDS.get(name, size["rounds"]) * optim.get("updates", 1) * optim.get("epochs", 1),
        "model": model,
        "data": {**kept, "prompts_per_step": size["prompts"]},
        "sampling": sampling,
        "algorithm": algorithm,
        "rewards": rewards,
        "optim": optim,
        "eval": {"samples": 4},
    }
    return Twin(name, world, kind, changed)


def policy_of(twin: Twin, config: Config) -> Policy:
    """The world's policy as the family of the recipe would make it."""
    from benchmarks.twins import worlds

    if twin.world == "plane":
        return plane_policy(twin, config)
    if twin.world == "scale":
        from mmgrpo.policies.categorical import CategoricalPolicy

        return CategoricalPolicy(worlds.Scale())
    from mmgrpo.policies.token import TokenPolicy
    from mmgrpo.policies.walks import walk_of

    sampling = config.sampling
    return TokenPolicy(
        worlds.words(),
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        evaluation_temperature=sampling.evaluation_temperature,
        walk=walk_of(search=sampling.search, reference_in_group=config.data.reference_in_group),
        train_truncated=sampling.truncated == "train",
    )


def plane_policy(twin: Twin, config: Config) -> Policy:
    from benchmarks.twins.worlds import Plane
    from pipelines.denoising import policy_over

    owner, sampling, options = family(twin.family), config.sampling, config.model
    scale = "true_cfg_scale" if "true_cfg_scale" in vars(options) else "guidance"
    usual = float(vars(options).get(scale, 1.0))
    prediction = "epsilon" if sampling.kernel.startswith(("ddim", "consistency")) else "flow"
    prediction = "drawn" if vars(options).get("head") == "drawn" else prediction
    frames = FRAMES if "frames" in vars(options) else 1
    model = Plane(prediction, frames, sampling.grid, usual)
    drawing, evaluation, reference = (
        None if (other := float(vars(sampling).get(f"{use}_guidance", 0.0)) or usual) == usual else model.variant(other)
        for use in ("rollout", "evaluation", "reference")
    )
    policy = policy_over(
        model, config, "cpu", drawing, evaluation, reference, float(vars(sampling).get("reference_guidance", 0.0) or 1)
    )
    policy.settings = Settings(owner, config)
    return policy


def prompts_of(twin: Twin) -> dict[str, Any]:
    """Training and held-out prompts."""
    from benchmarks.twins import worlds

    if twin.world == "words":
        return {"prompts": worlds.sayings(False), "heldout": worlds.sayings(True)}
    return {"prompts": worlds.angles(0.0), "heldout": worlds.angles(0.5)}


def trainer_of(twin: Twin, seed: int, folder: Path, given: Mapping[str, Any]) -> Trainer:
    """A trainer of a twin on the given prompts."""
    import torch
    from accelerate import Accelerator

    from benchmarks.twins import worlds
    from mmgrpo.api import make_trainer, refuse_preset
    from mmgrpo.inputs import load
    from mmgrpo.scoring import Scorer

    config = twin.config(seed=seed, output_dir=str(folder), name="run", save_every=ALL, groups_kept=0, samples_shown=0)
    config.check()
    refuse_preset(config.algorithm.preset, family(twin.family).decisions(config))
    torch.manual_seed(seed)
    scorers = [Scorer(name, getattr(worlds, name), trusted=True) for name in config.rewards]
    return make_trainer(
        config,
        None,
        lambda _: load(config, None, lambda _: policy_of(twin, config), dict(given)),
        scorers,
        Accelerator(cpu=True),
    )


def train_twin(twin: Twin, seed: int, folder: Path) -> dict[str, Any]:
    """Train once: held-out rewards prompt by prompt before and after, and the mean reward of every round."""
    trainer = trainer_of(twin, seed, folder, prompts_of(twin))
    trainer.fit()
    reward, stride = trainer.scorers[0].name, trainer.optim.steps_per_round
    lines = [json.loads(line) for line in (trainer.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "before": list(trainer.before["heldout"].values[reward]),
        "after": list(trainer.after["heldout"].values[reward]),
        "curve": [line[f"reward/{reward}/mean"] for line in lines[::stride]],
    }
