"""A process that dies ends the run on all processes, in bounded time, with the command that goes on.

Processes wait for each other in collective operations, by default for ten minutes (NCCL) to half an hour (gloo), also
where one of them has been killed or has raised an error. Here every process counts in a store of their own, and ends
when another's count has stood still for ``PATIENCE`` seconds or another has reported an error.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from accelerate import Accelerator
from torch.distributed import TCPStore

from mmgrpo.runtime.distributed import largest

INTERVAL, PATIENCE, GRACE = 2.0, 30.0, 5.0
"""Seconds between two counts, until a process whose count stands still is taken for dead, and from then to the end,
within which a process may still end by itself."""
FAILED = "failed"
LOST = 75
"""Exit status of a process that ends because another does not answer: a failure that may be temporary."""


PEER_GONE = r"Connection (closed|reset) by peer|Broken pipe|remote process exited"
"""What gloo and NCCL say in a process that exchanged with one that is no more."""


@contextmanager
def watch_processes(accelerator: Accelerator, again: str, patience: float = PATIENCE) -> Iterator[None]:
    """A ``with`` block that ends on all processes when one of them fails; ``again`` is the command that goes on."""
    if accelerator.num_processes == 1:
        yield
        return
    rank, world, first = accelerator.process_index, accelerator.num_processes, accelerator.is_main_process
    host, wait = os.environ.get("MASTER_ADDR", "127.0.0.1"), timedelta(seconds=patience)
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=wait) if first else None
    port = int(largest(float(store.port if store else 0), accelerator))
    try:
        store = store or TCPStore(host, port, is_master=False, timeout=wait)
    except RuntimeError:  # of torch.distributed: a network that opens some ports only
        store = None
    if largest(float(store is None), accelerator) or store is None:
        if first:
            print(f"port {port} of {host} cannot be reached: a process that dies is noticed late", flush=True)
        yield
        return
    accelerator.wait_for_everyone()
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(store, rank, world, ended, again, patience), daemon=True)
    watch.start()
    try:
        yield
        accelerator.wait_for_everyone()  # the store lives in the first process
    except Exception as error:
        if gone := re.search(PEER_GONE, str(error)):
            print(f"process {rank} ends, since another has ended ({gone[0]}); resume with: {again}", flush=True)
            raise SystemExit(LOST) from None
        _report(store, f"process {rank} has failed ({type(error).__name__}: {error})")
        if first:
            time.sleep(2 * INTERVAL)  # until the others have read it
        else:
            print(f"process {rank} has failed; resume with: {again}", flush=True)
        raise
    finally:
        ended.set()
        watch.join(GRACE)


def _report(store: TCPStore, text: str) -> None:
    try:
        store.set(FAILED, text)
    except RuntimeError:  # the process that holds the store is gone, which the others notice
        return


def _watch(store: TCPStore, rank: int, world: int, ended: threading.Event, again: str, patience: float) -> None:
    """Count, and end this process when another has failed or stands still."""
    seen = {other: (-1, time.monotonic()) for other in range(world) if other != rank}
    why, status = "", LOST
    while not ended.wait(min(INTERVAL, patience / 4)):
        try:
            store.add(f"alive-{rank}", 1)
            if store.check([FAILED]):
                why, status = store.get(FAILED).decode(), 1
            for other, (before, since) in seen.items():
                present = store.add(f"alive-{other}", 0)
                if present != before:
                    seen[other] = (present, time.monotonic())
                elif time.monotonic() - since > patience:
                    why = why or f"process {other} has not answered for {patience:g} seconds"
        except RuntimeError:
            why = "process 0 has ended"
        if why and not ended.wait(GRACE):
            print(f"process {rank} ends, since {why}; resume with: {again}", flush=True)
            os._exit(status)
