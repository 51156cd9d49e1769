"""What is said of a word that no setting has is a setting that can be given where it was written."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import pytest
import tyro

from mmgrpo.cli.evaluate import Evaluate
from mmgrpo.cli.sample import Sample
from mmgrpo.cli.source import with_sections
from mmgrpo.config.advice import OF_OTHERS, argument, first_words, in_python, meant, usage_errors
from mmgrpo.config.reading import setting_names
from mmgrpo.config.settings import config_class
from mmgrpo.family import family

TEXT = setting_names(config_class(family("qwen_vl").sections))
IMAGES = setting_names(config_class(family("sd3").sections))
EVALUATE = setting_names(with_sections(Evaluate, family("qwen_vl").sections))
SAMPLE = setting_names(with_sections(Sample, family("sd3").sections))


@pytest.mark.rows
@pytest.mark.parametrize(
    ("name", "settings", "setting"),
    [
        ("stpes", TEXT, "steps"),
        ("optim.lrr", TEXT, "optim.lr"),
        ("optim.rl", TEXT, "optim.lr"),
        ("otpim.lr", TEXT, "optim.lr"),
        ("eval.evry", TEXT, "eval.every"),
        ("lr", TEXT, "optim.lr"),
        ("optim.group_size", TEXT, "data.group_size"),
        ("optim.learning_rate", TEXT, "optim.lr"),
        ("max_completion_length", TEXT, "sampling.max_tokens"),
        ("max_tokens", TEXT, "sampling.max_tokens"),
        ("max_token", TEXT, "sampling.max_tokens"),
        ("max_tokens", IMAGES, ""),  # was rollout.max_staleness
        ("model.task", TEXT, ""),  # was model.fps
        ("lora", TEXT, "model.lora_rank"),  # was rollout.lora
        ("model.lora", IMAGES, "model.lora_rank"),
        ("limit", TEXT, "eval.prompts"),  # was data.skip_limit
        ("eval.prompts", EVALUATE, "limit"),  # was prompts, the texts themselves
        ("eval.prompts", SAMPLE, "limit"),
        ("eval.samples", EVALUATE, "samples"),
        ("output", TEXT, "output_dir"),
        ("zzz", TEXT, ""),
        ("zzz", [], ""),
    ],
)
def test_what_is_meant_is_a_setting_of_the_place(name, settings, setting):
    assert meant(name, settings) == setting


def test_names_of_others_are_answered_by_settings_that_some_command_has():
    assert {*OF_OTHERS.values()} <= {*TEXT, *EVALUATE}
    assert not any(
        name in settings and other in settings for name, other in OF_OTHERS.items() for settings in (TEXT, EVALUATE)
    )


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("optim.lr", "optim={'lr': ...}"),
        ("eval.every", "evaluation={'every': ...}"),
        ("data.group_size", "group_size=..."),
        ("data.train", "prompts=..."),
        ("algorithm.preset", "preset=..."),
        ("sampling.max_tokens", "max_tokens=... of the policy"),
        ("save_every", "save_every=..."),
        ("overwrite", "overwrite=True"),
    ],
)
def test_a_setting_is_spelled_as_a_program_gives_it(setting, words):
    assert argument(setting) == words


def test_advice_is_given_in_the_words_of_python_where_python_asked():
    text = "continue it with --resume, replace it with --overwrite, or choose another --name (--optim.lr, --eval.every)"
    assert in_python(text, TEXT) == (
        "continue it with resume=True, replace it with overwrite=True, or choose another name=... "
        "(optim={'lr': ...}, evaluation={'every': ...})"
    )
    assert in_python("raise --data.group-size, or --sampling.max-tokens", TEXT) == (
        "raise group_size=..., or max_tokens=... of the policy"
    )
    for other in ("a--b -x 3--4", "'mmgrpo evaluate' writes one with --output", "torchrun --nproc_per_node 2"):
        assert in_python(other, TEXT) == other


@dataclass
class Options:
    file: tyro.conf.Positional[str]
    count: int = 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["a", "--count", "x"], "--count.*'x'"),
        ([], "file|STR"),
        (["a", "--conut", "3"], "--conut"),
        (["a", "--count"], "--count"),
    ],
)
def test_what_parsers_print_of_a_wrong_command_line_is_an_error_of_one_line(given, words, capsys):
    with pytest.raises(ValueError, match=rf"^the command line: .*({words})") as error, usage_errors():
        tyro.cli(Options, args=given, prog="mmgrpo options")
    assert not {*"\n╭│─╰|"} & {*str(error.value)} and "---" not in str(error.value)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("signs", ["╭─╮│╰╯", " -    "])
def test_a_box_is_read_in_either_alphabet(signs):
    left, rule, right, side, low, end = signs
    first = f"{left}{rule} Value error {rule * 4}{right}" if left.strip() else f" Value error \n {rule * 9} "
    box = [first, f"{side} Error parsing --count:   {side}", f"{side} 'x' is none. {side}"]
    box += [f"{side} {rule * 9} {side}", f"{side} Argument helptext {side}", f"{low}{rule * 9}{end}"]
    assert first_words("\n".join(box)) == "error parsing --count: 'x' is none"


def test_what_argparse_prints_is_one_too(capsys):
    with pytest.raises(ValueError, match="^the command line: .*--zz"), usage_errors():
        argparse.ArgumentParser().parse_args(["--zz"])
    with pytest.raises(SystemExit), usage_errors():
        argparse.ArgumentParser().parse_args(["--help"])
    assert "--help" in capsys.readouterr().out
