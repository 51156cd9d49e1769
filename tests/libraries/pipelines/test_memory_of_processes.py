"""The memory of published models on each process, computed without their weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import memory
from tests import ROOT


def test_the_table_of_the_page_is_what_the_command_prints(capsys):
    memory.main()
    printed = capsys.readouterr().out
    assert printed.count("\n") == 2 + len(memory.RUNS)
    assert printed in Path(ROOT, "docs/scaling.md").read_text(encoding="utf-8")


def test_a_sharded_model_is_a_part_and_its_largest_block_whole():
    """P parameters in fp32 take 16 P bytes alone; of two processes each has 8 P, and 24 bytes of each parameter of the
    largest block, with 8 of what is in no block."""
    run = memory.Run("", "sd3", "SD 3.5 Medium", 0, "float32")
    folder = memory.folder_of("SD 3.5 Medium")
    assert memory.gigabytes(run, folder, 1) == pytest.approx(16 * folder.parameters / 1e9)
    whole = memory.gigabytes(run, folder, 2) - 8 * folder.parameters / 1e9
    outside = folder.parameters - sum(folder.blocks.values())
    assert 24 * folder.block / 1e9 <= whole <= (24 * folder.block + 8 * outside) / 1e9 + 1e-9
