"""One of two processes that watch each other: ``HOW`` it ends, and ``WHICH`` of the two does so."""

from __future__ import annotations

import os
import signal
import sys
import time

from accelerate import Accelerator

from mmgrpo.runtime.heartbeat import watch_processes

if __name__ == "__main__":
    how, which = sys.argv[1:]
    accelerator = Accelerator(cpu=True)
    mine = accelerator.process_index == int(which)
    with watch_processes(accelerator, "the command", patience=4):
        if mine and how in ("killed", "exchanges"):
            os.kill(os.getpid(), signal.SIGKILL)
        if mine and how == "raises":
            raise ValueError("the reason")
        if how == "exchanges":
            accelerator.wait_for_everyone()
        elif how != "ends":
            time.sleep(500)
    print("done", flush=True)
    accelerator.end_training()
