"""One battery over every family in the table: what must hold whatever a model sees, draws, hears or says."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from accelerate import Accelerator
from torch import Tensor

from mmgrpo.api import make_trainer
from mmgrpo.config.ranges import check_ranges
from mmgrpo.config.reading import build, load_yaml, option_names, read_config, write_yaml
from mmgrpo.config.settings import Config, config_class
from mmgrpo.data.splits import Splits
from mmgrpo.family import Family, families
from mmgrpo.inputs import RunInputs
from mmgrpo.runtime.finite import NotFinite
from mmgrpo.types import Policy, Prompt, Request, Rollout, Text
from mmgrpo.update import Batch, LossRecipe, accumulate_gradients
from pipelines.export import scores
from tests.building import denoising_policy_over, load, module
from tests.libraries.families.examples import EXAMPLES, OWN
from tests.tiny import maker, tiny_checkpoint

GROUP = 4
NAMES = sorted(families())
ADAPTED = [name for name in NAMES if "lora_rank" in {f.name for f in fields(families()[name].sections.model)}]
RANKS = [(name, rank) for rank in (0, 2) for name in (ADAPTED if rank else NAMES)]
"""Families, whole and with adapters."""


@pytest.fixture(scope="module")
def tiny() -> Any:
    """The folder of a family's tiny checkpoint."""
    return lambda name: str(tiny_checkpoint(maker(name)))


def config_of(name: str, path: str, **model: Any) -> Config:
    """A small run of the family's tiny model."""
    example, config = EXAMPLES[name], config_class(families()[name].sections)()
    return replace(
        config,
        name="run",
        steps=2,
        model=replace(config.model, **{"family": name, "path": path, "device": "cpu", **example.model, **model}),
        sampling=replace(config.sampling, **example.sampling),
        data=replace(config.data, prompts_per_step=len(example.prompts), group_size=GROUP),
        optim=replace(config.optim, lr=1e-2),
        trackers=[],
        threads=1,
    )


def kind(name: str) -> tuple[object, ...]:
    """What decides which of the core's code runs a family: its decisions, what its sampling can be told, whether it is
    shown something and whether it draws frames."""
    owner, example = families()[name], EXAMPLES[name]
    told = frozenset(one.name for one in fields(owner.sections.sampling))
    return owner.modality, owner.decisions(config_of(name, "")), owner.image_input, bool(example.fps), told


def few(cases: Sequence[Any]) -> list[Any]:
    """The first case of every kind of family; the others are nightly. For what the core does for all of a kind alike:
    that each family's own functions are right is held by samples, scores, saved models and norms of gradients."""
    kinds: set[tuple[object, ...]] = set()
    chosen = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        own = (*kind(values[0]), *values[1:])
        chosen.append(pytest.param(*values, marks=[pytest.mark.nightly] if own in kinds else []))
        kinds.add(own)
    return chosen


LOADED: dict[Any, tuple[Policy, dict[str, Tensor]]] = {}
"""Policies that several tests take, and the weights that each of them begins with."""


def shared_policy(name: str, path: str, weights: str = "", **model: Any) -> Policy:
    """A policy of the tiny model; without options, or with adapters alone, it is loaded once for all tests."""
    if not weights and model.keys() <= {"lora_rank"}:
        key = name, *model.values()
        if key not in LOADED:
            made = policy_of(name, path, weights, **model)
            LOADED[key] = made, {word: value.clone() for word, value in made.network.state_dict().items()}
        policy, state = LOADED[key]
        policy.network.load_state_dict(state)
        policy.network.zero_grad(set_to_none=True)
        return policy
    return policy_of(name, path, weights, **model)


def policy_of(name: str, path: str, weights: str = "", **model: Any) -> Policy:
    """A policy of the tiny model, of its own."""
    config = config_of(name, path, **model)
    return family(name).policy(config, "cpu", EXAMPLES[name].prompts, weights=weights)


def family(name: str) -> Family:
    return families()[name]


def rollout_of(name: str, policy: Policy) -> Rollout:
    prompts = EXAMPLES[name].prompts
    return policy.rollout(Request(prompts, range(len(prompts)), GROUP, seed=3))


def rescored(policy: Policy, rollout: Rollout, name: str = "log_probs", limit: int = 7) -> Tensor:
    """The trained decisions scored again, in order."""
    return scores(policy, rollout, name, limit)


def shake(policy: Policy, size: float = 0.05) -> None:
    """Move every trained weight a little."""
    with torch.no_grad():
        for number, parameter in enumerate(policy.network.parameters()):
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
                parameter += size * noise.to(parameter.dtype)


def gradients(policy: Policy, rollout: Rollout, limit: int) -> dict[str, Tensor]:
    """The gradient of a clipped loss over one rollout, taken in parts of ``limit`` network evaluations."""
    policy.network.zero_grad(set_to_none=True)
    decisions = rollout.decisions
    rows = len(decisions.loss_mask)
    advantages = torch.linspace(-1, 1, rows)[:, None].expand_as(decisions.log_probs).contiguous()
    batch = Batch([rollout], [torch.arange(rows)], decisions, advantages, decisions.loss_mask)
    accumulate_gradients(
        policy,
        batch,
        torch.ones(rows, dtype=torch.bool),
        LossRecipe.of("ppo(low=0.2, high=0.2)", "per_sample"),
        micro_batch_size=limit,
        accelerator=Accelerator(cpu=True),
        on_policy=True,
    )
    return {name: p.grad.clone() for name, p in policy.network.named_parameters() if p.grad is not None}


def test_every_row_is_of_a_family() -> None:
    assert OWN.keys() <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_family_that_takes_pictures_says_so(name) -> None:
    if families()[name].modality == "visual":
        shown = [bool(one.media) for one in EXAMPLES[name].prompts]
        assert all(shown) if families()[name].image_input else not any(shown)


@pytest.mark.parametrize("name", NAMES)
def test_the_ratio_is_one_before_the_first_update(name, tiny):
    policy = shared_policy(name, tiny(name))
    shake(policy)
    rollout = rollout_of(name, policy)
    sampled = rollout.decisions.log_probs[rollout.decisions.loss_mask]
    assert sampled.numel() > 0 and getattr(policy.model, "device", torch.device("cpu")) == torch.device("cpu")  # type: ignore[attr-defined]
    torch.testing.assert_close(rescored(policy, rollout), sampled, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", few(NAMES))
def test_a_network_that_has_become_nan_is_refused_by_both_samplers(name, tiny):
    policy = shared_policy(name, tiny(name))
    with torch.no_grad():
        for parameter in policy.network.parameters():
            if parameter.requires_grad:
                parameter.fill_(math.nan)
    prompts = EXAMPLES[name].prompts
    for sample in (policy.rollout, policy.sample):
        with pytest.raises(NotFinite, match="sampled"):
            sample(Request(prompts, range(len(prompts)), GROUP, seed=3))


TOKENS = [name for name in NAMES if "max_tokens" in {f.name for f in fields(families()[name].sections.sampling)}]
READ = [name for name in TOKENS if all(one.text for one in EXAMPLES[name].prompts)]
"""Families whose prompts are texts that a tokenizer decodes again."""
SHOWN = [name for name in TOKENS if any(one.media for one in EXAMPLES[name].prompts)]
"""Families of token policies whose prompts show or play something."""


@pytest.mark.parametrize("name", READ)
def test_a_prompt_decoded_holds_the_words_of_its_row_and_one_beginning(name, tiny):
    model: Any = shared_policy(name, tiny(name)).model  # type: ignore[attr-defined]
    context = model.encode(EXAMPLES[name].prompts)
    for row, prompt in enumerate(EXAMPLES[name].prompts):
        ids = context.ids[row][context.real[row]].tolist()
        text = "".join(model.tokenizer.decode(ids).split())
        assert "".join(prompt.text.split()) in text and "'type'" not in text and "type:" not in text
        assert ids.count(model.tokenizer.bos_token_id) == (model.tokenizer.bos_token is not None)
    if name != "codec_speech":  # whose completions are codes
        assert model.spell("a")[-1] in model.end_ids


@pytest.mark.parametrize("name", SHOWN)
def test_the_same_tokens_are_scored_under_other_media(name, tiny):
    policy = shared_policy(name, tiny(name))
    shake(policy)
    rollout = rollout_of(name, policy)
    blank, own = rescored(policy, rollout, "log_probs@blank"), rescored(policy, rollout)
    mask = rollout.decisions.loss_mask
    rows = torch.arange(len(mask))[:, None].expand_as(mask)[mask].tolist()
    moved = [
        (bool(prompt.media), gap)
        for row, gap in zip(rows, (blank - own).abs().tolist())
        for prompt in [rollout.prompts[row]]
    ]
    assert max(gap for shown, gap in moved if shown) > 1e-4
    assert all(gap == 0 for shown, gap in moved if not shown)
    if instead := family(name).blank(EXAMPLES[name].prompts):  # a sound has no blank one
        steps: Any = rollout.steps
        replaced = replace(steps, context=policy.model.encode(instead), features=None)  # type: ignore[attr-defined]
        expected = rescored(policy, replace(rollout, steps=replaced))
        torch.testing.assert_close(blank, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", few(NAMES))
def test_splitting_rows_and_decisions_leaves_the_gradient_unchanged(name, tiny):
    policy = shared_policy(name, tiny(name))
    shake(policy)
    rollout = rollout_of(name, policy)
    whole, cut = gradients(policy, rollout, 1000), gradients(policy, rollout, 5)
    assert whole.keys() == cut.keys() and whole
    largest = max(float(gradient.abs().max()) for gradient in whole.values())
    assert largest > 0
    for key, gradient in whole.items():  # group norms of U-Nets amplify what convolutions round: 2.5e-5 was seen
        torch.testing.assert_close(cut[key], gradient, rtol=1e-3, atol=5e-4 * largest, msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_has_the_norm_that_is_stored(name, tiny):
    """``python -m tests.libraries.families.gradient_norms NAME`` stores another, after a change that is meant."""
    from tests.libraries.families import gradient_norms as norms  # which takes its rollouts from here

    if name not in norms.stored():
        pytest.skip(f"no norm of {name} is stored: python -m tests.libraries.families.gradient_norms {name}")
    number, tolerance = norms.expected(norms.stored()[name], norms.kind())
    assert norms.norm_of(name, shared_policy(name, tiny(name))) == pytest.approx(number, rel=tolerance), norms.kind()


@pytest.mark.parametrize("name", few(ADAPTED))
def test_without_its_adapters_a_model_is_its_base(name, tiny):
    base, adapted = shared_policy(name, tiny(name)), shared_policy(name, tiny(name), lora_rank=2)
    # Of these, adapters of 0.3 make predictions of 28 times the size of noise, which a rollout refuses.
    shake(adapted, {"stable_audio": 0.1, "stable_audio3": 0.03}.get(name, 0.3))
    rollout = rollout_of(name, adapted)
    reference = rescored(adapted, rollout, "reference.log_probs")
    torch.testing.assert_close(reference, rescored(base, rollout), rtol=0, atol=1e-6)
    assert (rescored(adapted, rollout) - reference).abs().max() > 1e-4


@pytest.mark.parametrize(("name", "rank"), few(RANKS))
def test_two_steps_change_all_that_trains_and_nothing_else(name, rank, tiny, tmp_path):
    config = replace(config_of(name, tiny(name), **({"lora_rank": rank} if rank else {})), output_dir=str(tmp_path))
    config.algorithm = replace(config.algorithm, preset="rloo", objective="policy_gradient", terms=[], keys=["prompt"])
    # Small steps: random networks leave the sizes of states at larger ones, which the rollout refuses.
    config.optim = replace(config.optim, lr=1e-5)
    policy = family(name).policy(config, "cpu", EXAMPLES[name].prompts)
    before = {key: value.clone() for key, value in policy.network.named_parameters()}
    start = lambda accelerator: RunInputs(policy, Splits(EXAMPLES[name].prompts))  # noqa: E731
    trainer = make_trainer(config, family(name), start, [unlike], Accelerator(cpu=True))
    trainer.run_round()
    trainer.run_round()
    moved = {key for key, value in policy.network.named_parameters() if not torch.equal(value, before[key])}
    trained = {key for key, value in policy.network.named_parameters() if value.requires_grad}
    assert moved <= trained
    assert len(moved) > 0.5 * len(trained)  # some layers of a tiny model are never reached


DRAWN = [
    name for name in NAMES if families()[name].modality == "visual" and families()[name].sections.process != "tokens"
]
"""Generators that denoise."""


@pytest.mark.parametrize("name", few(DRAWN))
def test_the_frozen_parts_of_a_pipeline_take_no_gradient(name, tiny):
    policy = shared_policy(name, tiny(name), lora_rank=2)
    parts = policy.model.frozen_parts().values()  # type: ignore[attr-defined]
    own = {id(parameter) for parameter in policy.network.parameters()}
    others = [parameter for part in parts for parameter in part.parameters() if id(parameter) not in own]
    assert others and not any(parameter.requires_grad for parameter in others)


@pytest.mark.parametrize("name", DRAWN)
def test_a_size_is_the_model_s_own_or_a_multiple_of_its_unit(name, tiny):
    """The error names the nearest size, which is taken, and which the latents follow."""
    example, folder = EXAMPLES[name], tiny(name)
    own = load(name, folder, height=0, width=0)
    assert own.latent_shape() == own.shape == (tuple(example.latents) or own.shape) and own.fps == example.fps
    side, axis = [("height", -2), ("width", -1)][DRAWN.index(name) % 2]  # the other is read in the same way
    with pytest.raises(ValueError, match=rf"{side}.*7.*nearest.* \d+") as error:
        load(name, folder, **{side: 7})
    unit = int(str(error.value).split()[-1])
    clip = {"fps": 7.5} if example.fps else {}
    once, twice = (load(name, folder, **{side: times * unit}, **clip) for times in (1, 2))
    assert once.fps == clip.get("fps", example.fps)
    if own.streams:  # a flat latent, whose sound is as long whatever the frames' size
        assert twice.streams["video"] == 2 * once.streams["video"] > 0
    else:
        assert twice.shape[axis] == 2 * once.shape[axis] > 0


@pytest.mark.parametrize("name", few(DRAWN))
def test_guidance_doubles_the_evaluations_of_a_row(name, tiny):
    """By the option that the family names, which therefore has the scale of classifier-free guidance."""
    option = families()[name].guidance
    for scale, evaluations in ((1.0, 1), (2.0, 2)):
        assert shared_policy(name, tiny(name), **{option: scale}).model.evaluations_per_row == evaluations  # type: ignore[attr-defined]


READING = [name for name in DRAWN if EXAMPLES[name].inputs]


@pytest.mark.parametrize("name", READING)
def test_words_are_encoded_in_as_many_tokens_as_are_read(name, tiny):
    tokens = EXAMPLES[name].model.get("max_sequence_length", 512) + (77 if name == "sd3" else 0)  # those of CLIP
    model, state = shared_policy(name, tiny(name)).model, torch.get_rng_state()  # type: ignore[attr-defined]
    words, *_ = model.encode(EXAMPLES[name].prompts).tensors
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn
    assert words.shape[:2] == (len(EXAMPLES[name].prompts), tokens)


@pytest.mark.parametrize("name", sorted(set(DRAWN) - {"qwen_image_edit"}))  # which counts with the picture
def test_a_prompt_that_would_be_cut_is_refused_before_it_is_encoded(name, tiny):
    with pytest.raises(ValueError, match=r"\d+ (tokens|words)"):
        shared_policy(name, tiny(name)).model.architecture.check(Prompt("a " * 600))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", READING)
def test_the_network_is_told_time_and_guidance_in_its_own_units(name, tiny):
    told, policy = [], shared_policy(name, tiny(name))

    def listen(_, given, named):
        guidance = named.get("guidance")
        told.append((named.get("timestep", given[1:2]), 0 if guidance is None else guidance))

    heard = policy.network.register_forward_pre_hook(listen, with_kwargs=True)
    model, prompts = policy.model, EXAMPLES[name].prompts  # type: ignore[attr-defined]
    x = torch.zeros(len(prompts), *model.latent_shape())
    with torch.no_grad():
        model.predict(policy.network, x, torch.full((len(prompts),), 0.7), model.encode(prompts))
    heard.remove()
    for time, guidance in told:
        (time,) = time if isinstance(time, tuple) else (time,)
        # The tokens of a given frame are at time 0.
        assert time[time != 0].unique().tolist() == [pytest.approx(EXAMPLES[name].inputs[0], rel=1e-6)]
        assert torch.as_tensor(guidance).unique().tolist() == [EXAMPLES[name].inputs[1]]


DENOISERS = [name for name in NAMES if family(name).decisions(config_of(name, "")) == "gaussian"]
GUIDED = {name: families()[name].guidance for name in DENOISERS}
"""Family to the option that is its scale of guidance."""


@pytest.mark.parametrize("name", GUIDED)
def test_guidance_doubles_the_evaluations_of_a_round(name):
    plain, guided = (family(name).arithmetic(config_of(name, "", **{GUIDED[name]: scale})) for scale in (1.0, 2.0))
    assert plain.totals["samples"] == guided.totals["samples"] == plain.groups * GROUP
    for part in ("evaluations to sample", "evaluations to train"):
        assert guided.totals[part] == 2 * plain.totals[part] > 0


KERNELS_OF = {
    "flow": ("flow_sde(a=0.7)", "flow_sde_wan", "dance(eta=0.3)", "cps(a=0.8)", "flow_ddim(eta=0.7)", "edm_churn"),
    "diffusion": ("ddim(eta=1.0)", "ddim(eta=0.5)"),
}


def exactly(model: Any) -> Any:
    """The prediction of a network that has learned data N(0, 1) on every entry: linear in x."""

    def predict(network: Any, x: Tensor, time: Tensor, conditioning: Any) -> Tensor:
        if model.prediction == "v":
            slope = torch.zeros(len(x))
        elif model.prediction == "epsilon":
            slope = (1 - model.scheduler.alphas_cumprod[time.cpu()]).sqrt()
        else:
            slope = (2 * time - 1) / ((1 - time).square() + time.square())
        return slope.view(-1, *[1] * (x.dim() - 1)) * x

    return predict


@pytest.mark.parametrize("name", DENOISERS)
def test_states_have_the_size_of_noise_and_data_with_every_kernel(name, tiny, monkeypatch):
    """On the levels of the checkpoint's own scheduler: the log-probs of states of any size repeat."""
    policy: Any = shared_policy(name, tiny(name))
    monkeypatch.setattr(type(policy.model), "decode", lambda model, latents, conditioning: [Text("")] * len(latents))
    monkeypatch.setattr(policy.model, "predict", exactly(policy.model), raising=False)
    for text in KERNELS_OF[policy.grid.process]:
        chosen = denoising_policy_over(policy.model, kernel=text, steps=10, evaluation_steps=10)
        [walk] = rollout_of(name, chosen).steps.walks  # type: ignore[attr-defined]
        rms = walk.states.flatten(1).square().view(walk.grid.steps, -1).mean(1).sqrt()  # of the noise and every step
        assert float(rms.min()) > 0.5 and float(rms.max()) < 2, (text, rms)
        assert float(walk.std[:-1].max()) < 1.5, (text, walk.std)


@pytest.mark.parametrize("name", few(DENOISERS))
def test_states_and_means_are_kept_in_fp32_so_that_half_precision_scores_repeat_exactly(name, tiny):
    """Scored again in the batch of their step: the same bits, since nothing is rounded in between."""
    policy: Any = shared_policy(name, tiny(name), dtype="bfloat16")
    rollout = rollout_of(name, policy)
    steps: Any = rollout.steps
    [walk] = steps.walks
    assert walk.states.dtype == walk.means.dtype == torch.float32 == rollout.decisions.log_probs.dtype
    assert not any(torch.equal(kept, kept.bfloat16().float()) for kept in (walk.states[1:], walk.means[1:]))
    only = torch.zeros_like(rollout.decisions.loss_mask)
    only[:, 1] = True
    [part] = steps.split(only, 1000)
    with torch.no_grad():
        again = policy.score(rollout, part, frozenset({"log_probs"}))["log_probs"]
    assert torch.equal(again, rollout.decisions.log_probs[part.rows, part.positions])


@pytest.mark.parametrize("name", few([name for name in NAMES if EXAMPLES[name].layers]))
def test_adapters_on_unusual_layers_are_all_found_when_they_are_loaded(name, tiny, tmp_path):
    targets = EXAMPLES[name].layers
    options = {"lora_rank": 2, "lora_targets": targets}
    policy = shared_policy(name, tiny(name), **options)
    adapted = {key for key, value in policy.network.named_parameters() if value.requires_grad}
    assert all(any(f"{target}.lora_A" in key for key in adapted) for target in targets)
    shake(policy)
    rollout = rollout_of(name, policy)
    policy.save(tmp_path / "saved")
    again = shared_policy(name, tiny(name), weights=str(tmp_path / "saved"), **options)
    ours, theirs = dict(policy.network.named_parameters()), dict(again.network.named_parameters())
    assert all(torch.equal(ours[key], theirs[key]) for key in adapted)
    assert torch.equal(rescored(policy, rollout), rescored(again, rollout))


def unlike(prompts: Any, outputs: Any) -> list[float]:
    """A reward that differs within every group."""
    return [float(place % GROUP) for place in range(len(outputs))]


@pytest.mark.parametrize(("name", "rank"), RANKS)
def test_a_saved_model_goes_on_exactly(name, rank, tiny, tmp_path):
    options = {"lora_rank": rank} if rank else {}
    policy = shared_policy(name, tiny(name), **options)
    shake(policy)
    saved = tmp_path / "new" / "model"
    for _ in range(2):  # into a folder that is not there, and into one that is
        policy.save(saved)
    again = shared_policy(name, tiny(name), weights=str(saved), **options)
    ours, theirs = dict(policy.network.named_parameters()), dict(again.network.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    rollout = rollout_of(name, policy)
    assert torch.equal(rescored(policy, rollout), rescored(again, rollout))


@pytest.mark.parametrize("name", few(NAMES))
def test_options_go_through_yaml_and_the_command_line(name, tmp_path):
    kind = config_class(family(name).sections)
    config = replace(kind(), model=replace(kind().model, family=name, path="some/where"), steps=7)
    config.algorithm = build(type(config.algorithm), {"preset": "dr_grpo"}, "the test")
    write_yaml(tmp_path / "config.yaml", config)
    section = load_yaml(tmp_path / "config.yaml")
    assert asdict(read_config(kind, [], section, "the file", "")) == asdict(config)
    arguments = [word for option, value in written(asdict(config)) for word in (option, *value)]
    assert asdict(read_config(kind, arguments, {}, "nothing", "")) == asdict(config)
    assert {option for option, _ in written(asdict(config))} <= set(option_names(kind))


def written(section: dict[str, Any], prefix: str = "--") -> list[tuple[str, list[str]]]:
    """Every option as it is written on a command line."""
    options: list[tuple[str, list[str]]] = []
    for key, value in section.items():
        name = prefix + key.replace("_", "-")
        if isinstance(value, dict):
            options += written(value, f"{name}.")
        elif isinstance(value, bool):
            options += [(name, [])] if value else []
        else:
            options.append((name, [str(item) for item in (value if isinstance(value, list) else [value])]))
    return options


@pytest.mark.parametrize("name", NAMES)
def test_every_family_says_what_it_is_and_where_its_recipes_are(name):
    chosen = family(name)
    assert chosen.about and chosen.modality and chosen.architectures
    sections = chosen.sections
    assert {"family", "path", "device"} <= {f.name for f in fields(sections.model)}
    config = config_of(name, "some/where")
    chosen.check(config)
    assert chosen.decisions(config) in ("tokens", "gaussian", "matching")
    assert chosen.arithmetic(config).groups >= 1
    assert yaml.safe_dump(asdict(copy.deepcopy(config)))
    assert Path(module(name).__file__ or "").is_file()


def options_of(name: str) -> set[str]:
    """Names of the options of a family's model."""
    return {one.name for one in fields(families()[name].sections.model)}


@pytest.mark.parametrize("name", [name for name in DRAWN if families()[name].module.startswith("pipelines.")])
def test_a_size_is_refused_by_the_configuration_alone_in_the_words_of_the_loader(name, tiny):
    path = tiny(name)
    owner: Any = families()[name]
    owner.refuse_model(config_of(name, path), path)
    config = config_of(name, path, width=16_383)  # odd, and too large where there is a limit
    with pytest.raises(ValueError, match=r"^model\.width.*16383") as early:
        owner.refuse_model(config, path)
    with pytest.raises(ValueError, match="^width") as late:
        owner.policy(config, "cpu")
    assert str(early.value) == f"model.{late.value}"


@pytest.mark.parametrize("name", [name for name in NAMES if "frames" in options_of(name)])
def test_a_number_of_frames_is_refused_by_the_configuration_alone(name, tiny):
    config = config_of(name, tiny(name))
    config = replace(config, sampling=replace(config.sampling, evaluation_frames=6))
    owner: Any = families()[name]
    with pytest.raises(ValueError, match=r"^sampling\.evaluation_frames.*6.*5"):
        owner.refuse_model(config, config.model.path)


@pytest.mark.parametrize("name", [name for name in NAMES if "guidance" in options_of(name)])
def test_a_scale_of_guidance_below_one_is_refused_with_the_value_that_is_none(name, tmp_path):
    option = families()[name].guidance
    with pytest.raises(ValueError, match=rf"model\.{option}.*0\.5.*\b1 is no guidance"):
        check_ranges(config_of(name, str(tmp_path), **{option: 0.5}))
