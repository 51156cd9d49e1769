"""Serve rewards over HTTP, for runs on this or on other machines.

    mmgrpo serve-rewards --reward "ocr(device='cuda:1')" --reward jpeg_compressibility
    mmgrpo serve-rewards --reward my_module:my_reward --port 9000
    mmgrpo serve-rewards --reward ocr --host 0.0.0.0 --token-file token.txt
    mmgrpo train --rewards "served(reward='ocr', url='http://127.0.0.1:8700')"      # uses them

Every reward has a process of its own, which may crash or hang without ending the server. GET /health answers 200 once
all are loaded; GET /manifests lists them; POST /score scores. docs/rewards.md describes the requests. SIGTERM or Ctrl-C
ends the server after the requests that it is working on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mmgrpo.cli.errors import enter
from mmgrpo.cli.options import options
from mmgrpo.config.extras import install
from mmgrpo.config.ranges import ANY_TEXT, COUNT, COUNT_OR_ZERO, THREADS, within
from mmgrpo.config.registry import parse

if TYPE_CHECKING:
    from mmgrpo.scoring.batching import Batches
    from mmgrpo.scoring.manifest import Manifest

MEBI = 1 << 20


@dataclass
class Args:
    """The rewards, where they are served, and what a request may contain."""

    reward: Annotated[tyro.conf.UseAppendAction[list[str]], ANY_TEXT] = field(default_factory=list)
    """A reward, written name(parameter=value) as in a recipe; repeat the option for several. Its timeout (by default
    600 seconds) limits a request, from its arrival to its values."""
    host: Annotated[str, ANY_TEXT] = "127.0.0.1"
    """Address to listen on. Any but that of this machine itself needs a token."""
    port: Annotated[int, within("[0, 65535]")] = 8700
    """Port to listen on; 0 takes a free one, which is printed."""
    token_file: Annotated[str, ANY_TEXT] = ""
    """File with the token that clients must send; empty: none is needed."""
    max_batch: Annotated[int, COUNT_OR_ZERO] = 0
    """Outputs of several requests that are scored together, at most; 0 scores each request by itself, so its
    values do not depend on the others, not even in rounding."""
    max_wait: Annotated[float, within("[0, 60]")] = 0.005
    """Seconds to wait for further requests with which a batch may be filled up to --max-batch."""
    max_waiting: Annotated[int, COUNT] = 256
    """Requests that may wait for a reward; further ones get HTTP 429."""
    max_mebibytes: Annotated[int, within("[1, 1e6]")] = 1024
    """Largest request, in MiB; media may take four times as much once decoded."""
    max_pixels: Annotated[int, COUNT] = 1 << 24
    """Largest image or frame, in pixels."""
    max_seconds: Annotated[float, within("(0, 1e6]")] = 1800.0
    """Longest video or audio of a request, in seconds."""
    max_in_flight: Annotated[int, within("[1, 1e6]")] = 4096
    """Bodies of all requests that are being read or scored, and their media once decoded, in MiB; further requests
    get HTTP 429."""
    header_seconds: Annotated[float, within("(0, 1e6]")] = 30.0
    """Seconds within which the headers of a request must come."""
    body_seconds: Annotated[float, within("(0, 1e6]")] = 120.0
    """Seconds within which the body of a request must come."""
    drain: Annotated[float, within("[0, inf]")] = 600.0
    """Seconds that requests have to end once the server is asked to stop."""
    device: Annotated[str, ANY_TEXT] = "auto"
    """Device of the rewards that do not name their own."""
    threads: Annotated[int, THREADS] = 0
    """CPU threads of torch, in each reward's process; 0 leaves the choice to torch."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until stopped."""
    args = options(Args, arguments, __doc__)
    token = token_for(args.host, args.token_file)
    if not args.reward:
        raise ValueError("got no reward, expected at least one, e.g. --reward ocr; 'mmgrpo rewards' lists them")
    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise ModuleNotFoundError(f"a server of rewards needs {' and '.join(missing)}: {install('serve')}")
    import torch

    from mmgrpo.runtime import devices
    from mmgrpo.scoring.envelope import Limits
    from mmgrpo.scoring.server import Running, application

    if args.threads:
        torch.set_num_threads(args.threads)
    device = str(devices.accelerator(args.device).device)
    several = [batches(text, args, device) for text in args.reward]
    rewards = {reward.name: reward for reward in several}
    if len(rewards) < len(several):
        raise ValueError("got two rewards of one name, expected different ones; rename one with log_as=...")
    errors: list[Exception] = []

    def on_failure(error: Exception) -> None:
        errors.append(error)
        server.stop()

    most = args.max_mebibytes * MEBI
    limits = Limits(body=most, pixels=args.max_pixels, decoded=4 * most, seconds=args.max_seconds)
    app = application(rewards, token, limits, on_failure, args.body_seconds, args.max_in_flight * MEBI)
    server = Running(app, args.host, args.port, args.drain, args.header_seconds)
    print(f"{', '.join(rewards)}: {server.url}", flush=True)
    server.run()
    if errors:
        raise ValueError(f"a reward could not be loaded: {errors[0]}") from errors[0]


def token_for(host: str, file: str) -> str:
    """The token of a server that listens at an address; ValueError where other machines reach it and there is none."""
    token = read_token(file)
    if not token and not is_loopback(host):
        raise ValueError(
            f"--host {host} is reachable from other machines; set --token-file to a file with a random token"
        )
    return token


def read_token(file: str) -> str:
    """The token in a file, without white space around it; ValueError for a file without one."""
    if not file:
        return ""
    token = Path(file).expanduser().read_text(encoding="utf-8").strip()
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(
            f"--token-file {file}: got a token of {len(token)} characters, expected at least 16 printable ASCII "
            "characters without spaces; make one: python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return token


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address, one of version 6 with or without brackets."""
    from mmgrpo.scoring.served import is_local

    host = host.strip("[]")
    return is_local(f"http://[{host}]" if ":" in host else f"http://{host}")


def batches(text: str, args: Args, device: str) -> Batches:
    """A reward of the server from its text; unknown names and wrong parameters are errors here."""
    from mmgrpo.rewards import entries, scorer
    from mmgrpo.scoring.batching import Batches, Joining
    from mmgrpo.scoring.load import TIMEOUT

    name, parameters = parse(text, "--reward")
    entry = entries().get(name)
    if entry is not None and entry.elsewhere:
        raise ValueError(f"--reward {name}: got a reward of another server, expected one that is computed here")
    if not parameters.pop("process", True):
        raise ValueError(f"--reward {name}: got process=False, expected a process of its own: a server ends with none")
    timeout = parameters.setdefault("timeout", TIMEOUT)
    title = str(parameters.get("log_as", name.split(":")[-1]))
    written = ", ".join(f"{key}={value!r}" for key, value in parameters.items())

    def load() -> Callable[..., Any]:
        loaded = scorer(f"{name}({written})", device)
        reward.manifest = loaded.manifest  # what a function of the user's own declares is known from here on
        return loaded.fn

    reward = Batches(
        title,
        load,
        entry and entry.read_manifest(),
        timeout=float(timeout),
        joining=Joining(args.max_batch, args.max_wait),
        waiting=args.max_waiting,
        warm_up=lambda function: warm_up(function, reward.manifest),
    )
    return reward


def warm_up(function: Callable[..., Any], manifest: Manifest | None) -> None:
    """Score one made-up output, which loads the weights; an error then is one of the server, before anybody waits.

    A reward that reads more than the text of a prompt, and media if there are any, could not score it, and is only
    loaded.
    """
    import torch

    from mmgrpo.types import Audio, Image, Output, Prompt, Text, Video

    if manifest is None or manifest.needs_media or set(manifest.reads) - {"text", "media"}:
        return
    seconds = torch.arange(32_000) / 16_000
    outputs: dict[str, Output] = {
        "Text": Text("a red circle", tokens=3),
        "Image": Image(torch.full((3, 64, 64), 0.5)),
        "Video": Video(torch.full((4, 3, 64, 64), 0.5), 8.0),
        "Audio": Audio(0.1 * torch.sin(2 * torch.pi * 440 * seconds)[None], 16_000),
    }
    function([Prompt("a red circle", "warm-up")], [outputs[manifest.scores[0]]])


if __name__ == "__main__":
    enter(main)
