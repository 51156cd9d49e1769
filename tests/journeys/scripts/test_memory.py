"""Memory and hours of published models, computed without their weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import hours, memory
from tests import ROOT


@pytest.mark.parametrize(("script", "rows"), [(memory, memory.RUNS), (hours, hours.MODELS)])
@pytest.mark.nightly
def test_the_table_of_the_page_is_what_the_command_prints(script, rows, capsys):
    script.main()
    printed = capsys.readouterr().out
    assert printed.count("\n") == 2 + len(rows)
    assert printed in Path(ROOT, "docs/scaling.md").read_text(encoding="utf-8")


def test_a_sharded_model_is_a_part_and_its_largest_block_whole():
    """P parameters in fp32 take 16 P bytes alone; each of two processes has 8 P, and 24 bytes for each parameter of the
    largest block."""
    run = memory.Run("", "sd3", "SD 3.5 Medium", 0, "float32")
    folder = memory.folder_of("SD 3.5 Medium")
    assert memory.gigabytes(run, folder, 1) == pytest.approx(16 * folder.parameters / 1e9)
    assert memory.gigabytes(run, folder, 2) == pytest.approx((8 * folder.parameters + 24 * folder.block) / 1e9)
