"""What commands print before their own first line: nothing of the libraries."""

from __future__ import annotations

import logging
import subprocess
import warnings

import pytest

from mmgrpo.cli import errors
from tests.journeys.cli import quick
from tests.journeys.cli.running import COMMAND, environment


@pytest.fixture
def quiet(monkeypatch):
    """The filters of the commands, in a process that goes on afterwards."""
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()
        errors.silence()
        yield caught
    for name in errors.LOGGED:
        logging.getLogger(name).removeFilter(errors.is_news)


def warned(category: type[Warning], module: str, caught: list[warnings.WarningMessage]) -> bool:
    """Whether a warning that a module causes is shown."""
    caught.clear()
    warnings.warn_explicit("words", category, f"/somewhere/{module}.py", 1, module=module)
    return bool(caught)


@pytest.mark.parametrize("category", [FutureWarning, DeprecationWarning])
def test_deprecations_are_shown_in_the_users_own_code_alone(category, quiet):
    assert warned(category, "my_rewards", quiet) and warned(category, "torchery.mine", quiet)
    for module in ("torch.nn.utils.weight_norm", "torch", "diffusers.models.attention", "pipelines.speech.dit"):
        assert not warned(category, module, quiet)
    assert not warned(SyntaxWarning, "/usr/lib/site-packages/pydub/utils", quiet)
    assert warned(UserWarning, "torch.cuda", quiet)  # the driver is too old, for example


def test_of_what_libraries_log_only_what_no_user_can_act_on_is_dropped(quiet, caplog):
    reading = logging.getLogger("transformers.utils.import_utils")
    reading.warning("`CLIPImageProcessor` requires torchvision (not installed); falling back to `...Pil`")
    reading.warning("the weights are random")
    casting = logging.getLogger("diffusers.models.modeling_utils")
    for names in ("[]", "['norm']"):
        casting.warning(f"There are modules in AutoencoderKL that should be kept in float32: {names}. Casting ...")
    shown = [record.getMessage() for record in caplog.records]
    assert len(shown) == 2 and "random" in shown[0] and "['norm']" in shown[1]


def test_our_own_warnings_are_one_line_and_others_keep_their_place(quiet):
    ours = str(errors.ROOT / "mmgrpo" / "trainer.py")
    assert warnings.formatwarning("words", UserWarning, ours, 7) == "warning: words\n"
    assert "/my/rewards.py:7" in warnings.formatwarning("words", UserWarning, "/my/rewards.py", 7)
    assert "trainer.py:7" in warnings.formatwarning("words", RuntimeWarning, ours, 7)


# Stable Diffusion 3 imports the processors of CLIP and Siglip, and sets the precision of its VAE.
SIZE = ["--model.height", 16, "--model.width", 16, "--threads", 1]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("command", "first"),
    [
        pytest.param(
            ["sample", "--prompts", "a red square", *SIZE, "--sampling.evaluation-steps", 2],
            "loading ",
            marks=pytest.mark.nightly,
        ),
        (
            ["train", *quick.SCENES, *SIZE, "--steps", 1, "--rewards", "jpeg_compressibility", "--eval.prompts", 2],
            "a rollout: ",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_libraries_print_nothing_before_the_first_line_and_no_warnings(command, first, sd3_folder, tmp_path):
    small = [
        "--data.prompts-per-step",
        1,
        "--data.group-size",
        2,
        "--sampling.steps",
        2,
        "--sampling.evaluation-steps",
        2,
    ]
    options = [*command, "--model.path", sd3_folder, *(small if command[0] == "train" else ())]
    ended = subprocess.run(
        [*COMMAND, *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env=environment(),
    )
    assert ended.returncode == 0 and ended.stdout.startswith(first), ended.stdout[-3000:]
    for words in ("[transformers]", "torchvision", "kept in float32", "Warning"):
        assert words not in ended.stdout
