"""How far a run has come: when its checkpoints are due, what they contain, and how a run goes on from one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from mmgrpo.runtime.averaging import Ema
from mmgrpo.runtime.checkpoint import (
    abandon_after,
    flatten_optimizer,
    load_checkpoint,
    load_intact,
    restore_network,
    restore_optimizer,
    save_checkpoint,
    trained_tensors,
)
from mmgrpo.runtime.distributed import largest
from mmgrpo.runtime.folder import discard_replaced


@dataclass
class Checkpoints:
    """The checkpoints of a run, ``<run>/checkpoints/step-000120``: all on which the rest of the run depends."""

    folder: Path
    """The run folder."""
    accelerator: Accelerator
    every: int = 50
    """Optimizer steps between checkpoints."""
    every_minutes: float = 10.0
    """Minutes after which a checkpoint is due whatever the step; 0 for no such limit."""
    keep: int = 2
    run: str = ""
    """Id of the run, which its checkpoints repeat."""
    saved: int = 0
    """Step of the newest checkpoint; 0 if there is none."""
    clock: float = field(default_factory=time.monotonic)
    """When the newest checkpoint was written, or the run started."""

    @property
    def latest(self) -> Path:
        """The newest checkpoint."""
        return self.folder / "checkpoints" / f"step-{self.saved:06d}"

    def due(self, before: int, step: int, last: int) -> bool:
        """Whether a checkpoint is due at ``step`` after a round that began at step ``before``; on all ranks alike.

        A round may have several steps, so that a multiple of ``every`` may lie within it.
        """
        minutes = largest((time.monotonic() - self.clock) / 60, self.accelerator)
        late = self.every_minutes > 0 and minutes >= self.every_minutes
        return late or step >= last or step // self.every > before // self.every

    def save(
        self, step: int, network: nn.Module, optimizer: torch.optim.Optimizer, ema: Ema | None, state: Mapping[str, Any]
    ) -> None:
        """Write the checkpoint of ``step``; the first one completes a replacement of an earlier run."""
        if self.accelerator.is_main_process:
            tensors, moments = flatten_optimizer(optimizer)
            weights = trained_tensors(network)
            groups = {"weights": weights, "optimizer": tensors}
            if ema is not None:
                groups["ema"] = dict(zip(weights, ema.shadow, strict=True))
            state = {**state, "optimizer": moments}
            save_checkpoint(self.folder / "checkpoints", step, groups, state, self.keep, self.run)
            discard_replaced(self.folder)
        self.saved, self.clock = step, time.monotonic()
        self.accelerator.wait_for_everyone()

    def restore(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, ema: Ema | None, last: int | None = None
    ) -> Mapping[str, Any] | None:
        """Restore the newest intact checkpoint, at most that of step ``last``, in place; its state, or None.

        Later checkpoints are set aside. The main process decides, since it alone renames.
        """
        folder, checkpoint = self.folder / "checkpoints", None
        if self.accelerator.is_main_process:
            checkpoint = load_intact(folder, self.run, last)
            if checkpoint is not None:
                abandon_after(folder, checkpoint.step)
        step = int(largest(-1.0 if checkpoint is None else float(checkpoint.step), self.accelerator))
        if step < 0:
            return None
        checkpoint = checkpoint or load_checkpoint(folder / f"step-{step:06d}")
        tensors, state = checkpoint.tensors, checkpoint.state
        restore_network(network, tensors["weights"])
        restore_optimizer(optimizer, tensors["optimizer"], state["optimizer"])
        if ema is not None:
            averages = tensors["ema"]
            names = trained_tensors(network)
            ema.shadow = [averages[name].to(value.device) for name, value in names.items()]
        self.saved, self.clock = step, time.monotonic()
        return state
