"""The package as users get it: a wheel and an sdist that hold what the checkout holds, installed outside of it."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PathDistribution
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT
from tests.journeys.cli.running import call, read_lines, summary

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("mmgrpo", "pipelines", "reward_models")
DIST_INFO = f"mmgrpo-{PROJECT['version']}.dist-info"


# Runs each command of its input in a copy of itself, which has imported the libraries and nothing of ours.
SERVER = """
import json, os, runpy, sys, traceback
import accelerate, torch, transformers

for line in sys.stdin:
    program, arguments, folder, printed = json.loads(line)
    number = os.fork()
    if not number:
        status = 1
        try:
            os.chdir(folder)
            for descriptor, name in enumerate(printed, 1):
                os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), descriptor)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.argv = [program, *arguments]
            sys.path[0] = "" if arguments[:1] == ["-c"] else os.path.dirname(program)
            if arguments[:1] == ["-c"]:
                sys.argv = ["-c", *arguments[2:]]
                exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
            else:
                runpy.run_path(program, run_name="__main__")
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Installed:
    """An environment that holds the wheel and nothing else of ours, and a process of its Python."""

    folder: Path
    server: subprocess.Popen[str]

    def run(self, *command: object, cwd: Path) -> str:
        """What a program of the environment prints, started in ``cwd`` as by a user who has no checkout."""
        process = self.start(*command, cwd=cwd)
        assert process.returncode == 0, process.stderr[-3000:]
        return process.stdout

    def start(self, *command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        """A program of the environment at its end, whatever it was."""
        program, *arguments = map(str, command)
        assert self.server.stdin is not None and self.server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            printed = [Path(folder) / name for name in ("out", "err")]
            place = str(self.folder / "bin" / program)
            self.server.stdin.write(json.dumps([place, arguments, str(cwd), [*map(str, printed)]]) + "\n")
            self.server.stdin.flush()
            status = int(self.server.stdout.readline())
            return subprocess.CompletedProcess(command, status, *(path.read_text() for path in printed))


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the wheel and the sdist of the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    for target in ("wheel", "sdist"):
        build(sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    """The wheel of the checkout."""
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Iterator[Installed]:
    """The wheel in an environment of its own, which borrows every other package from the one that runs the tests.

    A folder that a .pth file names is searched, but its own .pth files are not read, so a development install
    of mmgrpo in there does not bring the checkout along.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", python]
    build(*pip, "install", "--no-deps", "--no-index", "--no-compile", wheel, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    borrowed = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (site / "borrowed.pth").write_text("".join(f"{path}\n" for path in borrowed))
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MMGRPO_DEBUG")
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    server = subprocess.Popen(
        [folder / "bin" / "python", "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**inherited, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    with server:
        yield Installed(folder, server)


def build(*command: object, cwd: Path) -> None:
    """Run a tool that builds or installs, offline."""
    process = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=cwd)
    assert process.returncode == 0, f"{process.stderr[-2000:]}\nThe tools are in the extra dev: make setup"


def package_files(*which: str) -> set[str]:
    """The files of the packages that git lists: those it tracks, unless ``which`` says otherwise."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout of git, which alone could list the files that belong into the wheel")
    command = ["git", "ls-files", "-z", *which, *PACKAGES]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listing.split("\0") if name and (ROOT / name).is_file()}


# ---- what is inside


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert package_files() - names == set()
    metadata = {name for name in names if name.startswith(f"{DIST_INFO}/")}
    # A file that is not committed yet is there too, like one that is.
    assert names - metadata - package_files("--cached", "--others", "--exclude-standard") == set()
    assert f"{DIST_INFO}/licenses/LICENSE" in metadata
    for kind in (".py", "recipes/flow_grpo.yaml", "scenes/train.jsonl", ".safetensors", "page.html", "py.typed"):
        assert any(name.endswith(kind) for name in names), kind
    assert not any("tests" in name.split("/") for name in names)


@pytest.mark.slow
def test_the_wheel_says_what_pyproject_says(wheel):
    distribution = PathDistribution(zipfile.Path(wheel, f"{DIST_INFO}/"))
    metadata = distribution.metadata
    assert (metadata["Name"], metadata["Version"]) == ("mmgrpo", PROJECT["version"])
    assert metadata["Requires-Python"] == ">=3.11" and metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    points: dict[str, dict[str, str]] = {}
    for point in distribution.entry_points:
        points.setdefault(point.group, {})[point.name] = point.value
    assert points == {"console_scripts": PROJECT["scripts"], **PROJECT["entry-points"]}
    assert set(points) == {"console_scripts", "mmgrpo.families", "mmgrpo.rewards", "mmgrpo.weights"}


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(built, wheel, tmp_path):
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    assert {"pyproject.toml", "README.md", "LICENSE", "tests", "scripts"} <= {path.name for path in folder.iterdir()}
    build(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path, cwd=folder)
    again, first = zipfile.ZipFile(tmp_path / wheel.name), zipfile.ZipFile(wheel)
    assert {file.filename: file.CRC for file in again.infolist()} == {
        file.filename: file.CRC for file in first.infolist()
    }


def test_the_versions_of_python_that_are_named_are_those_whose_requirements_are_resolved():
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("PYTHON_VERSIONS")]
    label = "Programming Language :: Python :: "
    named = [text.removeprefix(label) for text in PROJECT["classifiers"] if text.startswith(label)]
    assert line.partition(":=")[2].split() == named and PROJECT["requires-python"] == f">={named[0]}"


# ---- what it needs

OPTIONAL = PROJECT["optional-dependencies"]
(LINE,) = re.findall(r"^EXTRAS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
TESTED = LINE.split(",")
"""The extras that are installed for the tests."""


def needed(extras: Iterable[str]) -> list[Requirement]:
    """What the project and some of its extras require, by pyproject.toml."""
    return [Requirement(text) for text in [*PROJECT["dependencies"], *chain(*(OPTIONAL[extra] for extra in extras))]]


def pinned(file: str) -> dict[str, set[str]]:
    """Package to its versions in a file of requirements; there are several where they differ by Python or system."""
    versions: dict[str, set[str]] = {}
    for line in (ROOT / file).read_text().splitlines():
        if re.match(r"[A-Za-z0-9]", line):
            one = Requirement(line.removesuffix("\\"))
            versions.setdefault(canonicalize_name(one.name), set()).add(str(one.specifier).removeprefix("=="))
    return versions


def test_a_package_has_one_lowest_version_in_all_extras():
    """That which ``make lowest`` installs, whichever of them are asked for."""
    bounds: dict[str, set[str]] = {}
    for one in needed(TESTED):
        bounds.setdefault(canonicalize_name(one.name), set()).add(str(one.specifier))
    assert not {name: several for name, several in bounds.items() if len(several) > 1}
    assert all(text.startswith(">=") for (text,) in bounds.values())


def test_the_lock_file_has_the_tested_versions_of_all_that_is_required_and_names_no_index():
    locked, tested = pinned("requirements.lock"), pinned("constraints-cpu.txt")
    for one in needed(TESTED):
        versions = locked[canonicalize_name(one.name)]
        assert versions and all(one.specifier.contains(version, prereleases=True) for version in versions), one
    assert {name: locked.get(name) for name in tested} == tested
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text and " @ " not in text and "\n-" not in text
    blocks = re.split(r"\n(?=[A-Za-z0-9])", text)[1:]
    assert len(blocks) >= len(locked) > len(tested) and all(" --hash=sha256:" in block for block in blocks)


# ---- what it does


@pytest.mark.slow
def test_what_is_imported_is_the_wheels_copy(installed, tmp_path):
    code = f"import json, sys, {', '.join(PACKAGES)}; " + (
        f"print(json.dumps([[module.__file__ for module in ({', '.join(PACKAGES)})], sys.path]))"
    )
    files, path = json.loads(installed.run("python", "-c", code, cwd=tmp_path))
    for package, file in zip(PACKAGES, files):
        assert Path(file).match(f"site-packages/{package}/__init__.py") and Path(file).is_relative_to(installed.folder)
    assert str(ROOT) not in path


@pytest.mark.slow
def test_everything_that_the_wheel_offers_can_be_loaded(installed, tmp_path):
    code = (
        "from importlib.metadata import distribution; "
        "print(*[point.name for point in distribution('mmgrpo').entry_points if point.load() is not None])"
    )
    expected = [*PROJECT["scripts"], *(name for group in PROJECT["entry-points"].values() for name in group)]
    assert sorted(installed.run("python", "-c", code, cwd=tmp_path).split()) == sorted(expected)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["recipes", "rewards"])
def test_an_installed_command_lists_what_the_checkout_lists(command, installed, tmp_path, capsys):
    call(command)
    assert installed.run("mmgrpo", command, cwd=tmp_path) == capsys.readouterr().out


@pytest.mark.slow
def test_an_installed_command_trains_the_embedded_default(installed, tmp_path):
    options = ["--recipe", "visual/demo", "--steps", 2, "--threads", 1, "--eval.prompts", 4]
    installed.run("mmgrpo", "train", *options, "--data.prompts-per-step", 2, "--data.group-size", 4, cwd=tmp_path)
    folder = tmp_path / "runs" / "demo"
    lines = read_lines(folder / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2] and all(math.isfinite(line["loss"]) for line in lines)
    end = summary(folder)
    assert (end["steps"], end["family"], end["eval"]["after"]["scene_all"]["n"]) == (2, "sd3", 4)
    assert yaml.safe_load((folder / "config.yaml").read_text())["model"]["path"] == "embedded:visual/scenes/base"
    assert "scene_all" in (folder / "report.html").read_text() and any((folder / "model").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.slow
def test_the_commands_of_the_readme_start_without_a_checkout(installed, tmp_path):
    installed.run("mmgrpo", "questions", "--train", 16, "--tune", 8, "--heldout", 8, cwd=tmp_path)
    assert "data.train 16" in installed.run("mmgrpo", "train", "--dry-run", "--recipe", "vlm/demo", cwd=tmp_path)


# Packages that are None in sys.modules are found by nobody and imported by nobody, as if they were not installed.
MISSING = """
import sys
sys.modules.update(dict.fromkeys({names}))
sys.argv[1:] = {arguments}
from mmgrpo.cli.main import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "packages", "words"),
    [
        ("demo", ["gradio"], ["demo"]),
        ("serve", ["fastapi", "uvicorn"], ["serve-rewards", "--reward", "jpeg_compressibility"]),
        ("visual", ["diffusers"], ["sample", "--prompts", "a red circle"]),
        ("speech", ["soundfile"], ["train", "--recipe", "speech/whisper_adapt", "--dry-run"]),
        ("ray", ["ray"], ["launch", "ray", "--processes", "2", "--name", "x"]),
    ],
)
def test_a_missing_extra_is_one_line_that_names_what_to_install(extra, packages, words, installed, tmp_path):
    """By the names of its packages, since a wheel from a file need not be on any index."""
    code = MISSING.format(names=packages, arguments=words)
    ended = installed.start("python", "-c", code, cwd=tmp_path)
    last = ended.stderr.strip().splitlines()[-1]
    assert ended.returncode == 2 and "Traceback" not in ended.stderr and last.startswith("error: "), ended.stderr[
        -2000:
    ]
    command = re.search(r"pip install ((?:'[^']+' ?)+)", last)
    assert command, last
    assert {Requirement(one) for one in re.findall(r"'([^']+)'", command[1])} == {
        Requirement(one) for one in OPTIONAL[extra]
    }
