"""A rewriter and a generator from the command line: a language model writes texts, an image model draws by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from mmgrpo.cli.train import read
from mmgrpo.family import family
from mmgrpo.types import Prompt, Request, Text
from pipelines.visual.rewriter import FAMILY, part_of
from pipelines.visual.written_prompts import add_plan, rewrite
from tests.journeys.cli.running import call, read_lines
from tests.tiny import maker

SIZE = {"height": 16, "width": 16, "max_sequence_length": 48}


def brightness(prompts, outputs):
    return [float(output.pixels.mean()) for output in outputs]


def redness(prompts, outputs):
    return [float(output.pixels[0].mean() - output.pixels[2].mean()) for output in outputs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Recipes of a tiny language model and a tiny generator, and prompts."""
    made = tmp_path_factory.mktemp("rewriter")
    models = {name: str(made / name) for name in ("causal_lm", "sd3")}
    for name in models:
        maker(name)(made / name)
    writer = {"model": {"family": "causal_lm", "path": models["causal_lm"]}, "sampling": {"max_tokens": 5}}
    generator = {
        "model": {"family": "sd3", "path": models["sd3"], "lora_rank": 2, **SIZE},
        "sampling": {"steps": 3, "evaluation_steps": 2},
        "algorithm": {"preset": "flow_grpo"},
    }
    (made / "writer.yaml").write_text(yaml.safe_dump(writer))
    (made / "generator.yaml").write_text(yaml.safe_dump(generator))
    (made / "prompts.txt").write_text("".join(f"a {word} square\n" for word in ("red", "blue", "green", "grey")))
    return made


def options(folder: Path, **changes) -> list[str]:
    """The command line of a run of 4 prompts, 2 texts and 2 images."""
    given = {
        "--model.family": "rewriter",
        "--model.writer": folder / "writer.yaml",
        "--model.generator": folder / "generator.yaml",
        "--sampling.instruction": "how many {prompt}",
        "--data.train": folder / "prompts.txt",
        "--data.prompts-per-step": 4,
        "--data.group-size": 4,
        "--output-dir": folder / "runs",
        "--steps": 2,
        **changes,
    }
    parts = ["text(per='trace', weights={'brightness': 1})", "image(preset='flow_grpo', weights={'redness': 1})"]
    several = {"--algorithm.parts": parts, "--rewards": [f"{__name__}:brightness", f"{__name__}:redness"]}
    lists = {name: given.pop(name, several[name]) for name in several}
    words = [word for name, value in given.items() for word in (name, str(value))]
    return [*words, *(word for name, values in lists.items() if values for word in (name, *values))]


@pytest.mark.slow
def test_both_parts_train_and_load_in_their_own_families(folder, capsys, copied):
    given = options(folder, **{"--name": "both", "--optim.rates": "text=0.1", "--data.heldout": ""})
    call("train", *given)
    text = capsys.readouterr().out
    assert "4 prompts x 2 texts x 2 images = 16 images" in text
    run = folder / "runs" / "both"
    lines = read_lines(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    assert {"text/loss", "image/loss", "text/entropy", "image/clip/high", "reward/redness/mean"} <= lines[0].keys()
    assert lines[0]["ratio/first_minus_one"] < 1e-5 and lines[0]["grad_norm"] > 0
    config = read(["--config", str(run / "config.yaml")], "")
    joint = FAMILY.policy(config, "cpu", training=False, weights=str(run / "model"))
    untrained = FAMILY.policy(config, "cpu", training=False)
    for name, policy in {"text": joint.first, "image": joint.second}.items():
        owner, made = part_of(config, name)
        alone = owner.policy(made, "cpu", training=False, weights=str(run / "model" / name))
        same = dict(alone.network.named_parameters())
        before = dict(untrained.network[name].named_parameters())
        assert all(torch.equal(value, same[key]) for key, value in policy.network.named_parameters())
        assert any(not torch.equal(value, before[key]) for key, value in policy.network.named_parameters())
    images = joint.sample(Request([Prompt("a red square", "0")], [0], 2, seed=1))
    assert [tuple(image.pixels.shape) for image in images] == [(3, 16, 16)] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trained", "metric"), [("image", "clip/high"), pytest.param("text", "group/advantage", marks=pytest.mark.nightly)]
)
def test_one_part_alone_trains_as_its_own_family_does(trained, metric, folder, copied):
    parts = {"--model.trained": trained, "--algorithm.parts": [], "--algorithm.preset": "grpo"}
    parts |= {"--algorithm.terms": "kl_k3(coef=0.1)"}
    call("train", *options(folder, **{"--name": trained, "--steps": 1, "--data.heldout": "", **parts}))
    run = folder / "runs" / trained
    assert metric in read_lines(run / "metrics.jsonl")[0]
    assert [path.name for path in (run / "model").iterdir() if path.is_dir()] == [trained]


def test_what_does_not_fit_together_is_refused_before_a_model_is_loaded(folder, tmp_path):
    def written(name: str, **model) -> Path:
        section = yaml.safe_load((folder / f"{name}.yaml").read_text())
        section["model"] |= model
        path = tmp_path / f"{len([*tmp_path.iterdir()])}.yaml"
        path.write_text(yaml.safe_dump(section))
        return path

    for changes, match in [
        ({"--data.group-size": 5}, "data.group_size.*5.*2"),
        ({"--sampling.instruction": "rewrite"}, "sampling.instruction.*{prompt}"),
        ({"--model.writer": folder / "generator.yaml"}, "model.writer.*'sd3' makes Image.*Text"),
        ({"--model.generator": written("generator", family="sd33")}, "'sd33'.*sd3"),
        ({"--model.generator": written("generator", path=str(folder / "causal_lm"))}, "causal_lm"),
        ({"--model.generator": written("generator", forget_encoders=True)}, "forget_encoders"),
        ({"--algorithm.parts": ["text(preset='flow_grpo')", "image"]}, "'flow_grpo'.*tokens"),
        ({"--algorithm.parts": ["text", "video"]}, "algorithm.parts.*'video'.*image, text"),
        ({"--algorithm.parts": []}, "algorithm.parts.*'text'"),
    ]:
        with pytest.raises((ValueError, FileNotFoundError), match=match):
            call("train", "--dry-run", *options(folder, **changes))


@pytest.mark.parametrize(
    ("preset", "texts", "plan", "objectives"),
    [
        ("unigrpo", 8, "random_window(size=3, before=0.08, shared_noise=False)", ("1e-2", "guard(clip=1e-6)")),
        ("dual_grpo", 2, "random_window(size=2, before=0.5)", ("0.2", "1e-5")),
    ],
)
def test_a_preset_of_both_parts_gives_each_what_it_has(preset, texts, plan, objectives, folder, capsys):
    given = {"--algorithm.preset": preset, "--algorithm.parts": [], "--rewards": ["jpeg_compressibility"]}
    section = yaml.safe_load((folder / "generator.yaml").read_text())
    section["sampling"]["steps"] = 6
    (folder / "longer.yaml").write_text(yaml.safe_dump(section))
    words = options(folder, **given, **{"--data.group-size": 8, "--model.generator": folder / "longer.yaml"})
    config = read(words, "")
    assert family("rewriter") is FAMILY and config.sampling.texts == texts
    assert config.sampling.keep_prompt == (preset == "unigrpo")
    made = {name: part_of(config, name)[1] for name in ("text", "image")}
    assert made["image"].sampling.plan == plan
    assert all(one in made[name].algorithm.objective for name, one in zip(made, objectives, strict=True))
    call("train", "--dry-run", *words)
    assert f"4 prompts x {texts} texts x {8 // texts} images" in capsys.readouterr().out
    with pytest.raises(ValueError, match="algorithm.parts.*'image'"):
        call("train", "--dry-run", *options(folder, **given, **{"--data.group-size": 8, "--model.trained": "text"}))


def test_a_text_is_cut_to_what_the_generator_reads():
    class Reads:
        """Up to three words, and not every one."""

        def check(self, prompt: Prompt) -> None:
            if len(prompt.text.split()) > 3 or "odd" in prompt.text:
                raise ValueError(prompt.text)

    prompt = Prompt("a", "0", answer=1)
    with pytest.warns(UserWarning, match="model.generator"):
        assert rewrite(Reads(), prompt, Text("one two odd three four")).text == "one two three"
    whole = rewrite(Reads(), prompt, Text(" one two "))
    assert whole == replace(prompt, text="one two") and whole.answer == 1
    assert (
        add_plan(Reads(), prompt, Text("one two")).text == "a. one two"
        and add_plan(Reads(), prompt, Text(" ")) is prompt
    )
    with pytest.warns(UserWarning, match="sampling.plan_tokens"):
        assert add_plan(Reads(), prompt, Text("one two odd three")).text == "a. one two"
