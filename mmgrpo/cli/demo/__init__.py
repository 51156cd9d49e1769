"""Look at models in a browser: what training changed, groups with their advantages, rewards, curves, blind votes.

    mmgrpo demo                                  # the runs in runs/, and the embedded models
    mmgrpo demo runs/demo runs/vlm_demo          # these runs
    mmgrpo demo --family sd3 --before stabilityai/stable-diffusion-3.5-medium --after runs/a/model

Everything stays on this machine: the page is served to it alone, nothing is sent anywhere, and of the disk only the
named runs can be seen. Models are loaded when a tab first needs them.

The configuration of a run is a recipe, which can name functions: it is code, so name only runs that you trust.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from mmgrpo.cli.options import options
from mmgrpo.config.extras import install
from mmgrpo.config.ranges import ANY_TEXT, COUNT, THREADS, within


@dataclass
class Args:
    """What to open, and where it is served."""

    runs: Annotated[tyro.conf.Positional[list[str]], ANY_TEXT] = field(default_factory=list)
    """Run folders, or folders of runs; by default runs/, if there is one."""
    before: Annotated[str, ANY_TEXT] = ""
    """A model, by path or hub id, to compare with --after."""
    after: Annotated[str, ANY_TEXT] = ""
    """The model that training made of --before: a path (of saved LoRA weights too) or a hub id."""
    family: Annotated[str, ANY_TEXT] = ""
    """Model family of --before and --after ('mmgrpo families' lists them)."""
    rewards: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Rewards of the samples of --before and --after, written name(parameter=value); a run has its own."""
    votes: Annotated[str, ANY_TEXT] = "votes.jsonl"
    """File of the votes; 'mmgrpo evaluate-rewards' reads it."""
    host: Annotated[str, ANY_TEXT] = "127.0.0.1"
    """Address to listen on. Any but that of this machine itself needs a password."""
    port: Annotated[int, within("[0, 65535]")] = 7860
    """Port to listen on; 0 takes a free one, which is printed."""
    share: bool = False
    """Also open a public address through the servers of Gradio, which needs a password."""
    password_file: Annotated[str, ANY_TEXT] = ""
    """File with the password that visitors must give (the user is "mmgrpo"); empty: none is needed."""
    max_mebibytes: Annotated[int, within("[1, 1e5]")] = 20
    """Largest upload, in MiB."""
    waiting: Annotated[int, COUNT] = 64
    """Requests that may wait; further ones get HTTP 503."""
    device: Annotated[str, ANY_TEXT] = "auto"
    """Device of models and rewards."""
    threads: Annotated[int, THREADS] = 0
    """CPU threads of torch; 0 leaves the choice to torch."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the demo until it is interrupted."""
    args = options(Args, arguments, __doc__)
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise ModuleNotFoundError(f"the demo needs the package gradio: {install('demo')} ({error})") from error
    from mmgrpo.cli.demo.app import serve

    serve(args)
