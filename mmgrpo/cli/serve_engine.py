"""Draw the completions of a run in another process, on another device or on another machine.

    mmgrpo serve-engine --engine vllm --port 8800 -- --config my_run.yaml
    mmgrpo serve-engine --engine sampler -- --recipe vlm/demo --model.device cuda:1
    mmgrpo train --config my_run.yaml --rollout.engine served --rollout.url http://127.0.0.1:8800     # uses it

What follows ``--`` are the options of ``mmgrpo train``: those of the run that uses it. The run sends its weights before
every round and states that the engine holds them; what the engine was started with is never drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Annotated

from mmgrpo.cli.errors import enter
from mmgrpo.cli.options import options, words
from mmgrpo.cli.serve_rewards import token_for
from mmgrpo.config.extras import install
from mmgrpo.config.ranges import ANY_TEXT, THREADS, one_of, within


@dataclass
class Args:
    """The engine, and where it is served."""

    engine: Annotated[str, one_of("sampler", "vllm")] = "vllm"
    """vllm, or sampler, our own."""
    host: Annotated[str, ANY_TEXT] = "127.0.0.1"
    """Address to listen on. Any but that of this machine itself needs a token."""
    port: Annotated[int, within("[0, 65535]")] = 8800
    """Port to listen on; 0 takes a free one, which is printed."""
    token_file: Annotated[str, ANY_TEXT] = ""
    """File with the token that runs must send; empty: none is needed."""
    threads: Annotated[int, THREADS] = 0
    """CPU threads of torch; 0 leaves the choice to torch."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until stopped."""
    args, run = split(words(arguments))
    token = token_for(args.host, args.token_file)
    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise ModuleNotFoundError(f"a server of engines needs {' and '.join(missing)}: {install('serve')}")
    from mmgrpo.cli.train import read
    from mmgrpo.family import family, refuse_absent_engine, refuse_engine

    config = read(run, "The options of the run.")
    config = replace(config, rollout=replace(config.rollout, engine=args.engine, url=[]))
    owner = family(config.model.family)
    refuse_engine(config, owner)
    refuse_absent_engine(config)
    assert owner.engines is not None
    config.check()
    owner.check(config)
    import torch

    from mmgrpo.engines.served import application
    from mmgrpo.runtime import devices
    from mmgrpo.scoring.server import Running

    if args.threads:
        torch.set_num_threads(args.threads)
    engine = owner.engines.make(owner, config, str(devices.accelerator(config.model.device).device))
    server = Running(application(engine, token), args.host, args.port, 60.0)
    print(f"{engine.name} of {config.model.path}: {server.url}", flush=True)
    server.run()


def split(given: Sequence[str]) -> tuple[Args, list[str]]:
    """The options of the command, and those of ``mmgrpo train`` behind ``--``."""
    place = given.index("--") if "--" in given else len(given)
    return options(Args, given[:place], __doc__, "mmgrpo serve-engine"), list(given[place + 1 :])


if __name__ == "__main__":
    enter(main)
