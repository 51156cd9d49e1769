"""Lists, tables and colours fit the output, whatever it is."""

from __future__ import annotations

import io
import sys

import pytest

from mmgrpo.runtime.progress import Lines, progress_bar
from mmgrpo.terminal import UNLIMITED, columns_of, definitions, paragraph, sections, style_text, table, width

TEXT = "a text of several words, longer than a narrow terminal, with a name_of_" + 30 * "x"
ROWS = [("a", TEXT), ("a_longer_name", TEXT), ("b", "")]
NUMBERS = [["scene_all", "0.535", "+0.035 [+0.004, +0.070]"], ["clean", "–", "-1.5 %"]]


class Terminal(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch):
    """A terminal of so many columns as standard output."""

    def of(columns: int) -> None:
        monkeypatch.setattr(sys, "stdout", Terminal())
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)

    return of


@pytest.mark.parametrize("columns", [24, 40, 60, 80, 200])
def test_everything_fits_into_the_columns_and_nothing_is_lost(columns, screen):
    screen(columns)
    parts = (
        paragraph(TEXT, "  "),
        definitions(ROWS),
        sections({"One": ROWS, "None": [], "Two": ROWS}),
        table(["reward", "before", "difference (95 %)"], NUMBERS),
    )
    assert max(columns_of(line) for lines in parts for line in lines) <= columns
    assert ["".join("".join(lines).split()) for lines in parts[:2]] == [
        "".join(text.split()) for text in (TEXT, "".join(name + text for name, text in ROWS))
    ]
    shown = "".join("".join(parts[3]).split())
    assert all("".join(cell.split()) in shown for row in NUMBERS for cell in row)
    assert not any("None" in line for line in parts[2])


def test_a_pipe_is_not_wrapped_unless_it_is_given_a_width(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert width() == UNLIMITED and len(definitions(ROWS)) == 3
    monkeypatch.setenv("COLUMNS", "60")
    assert width() == 60 and len(definitions(ROWS)) > 3


def test_columns_of_tables_line_up_numbers_on_the_right(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert table(["reward", "n", "runs"], [["a", "5", "x"], ["bb", "1,000", ""]]) == [
        "reward      n  runs",
        "a           5  x",
        "bb      1,000",
    ]
    assert table(["reward", "n"], []) == ["reward  n"]


def test_wide_letters_take_two_columns_and_accents_and_styles_none(screen):
    screen(80)
    assert columns_of("日本") == 4 and columns_of("e\u0301") == 1
    assert style_text("a", "bold", "green") == "\x1b[1;32ma\x1b[0m" and columns_of(style_text("ab", "bold")) == 2


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_there_are_no_colours_where_nobody_wants_or_sees_them(name, value, screen, monkeypatch):
    screen(80)
    assert style_text("a", "bold") != "a" == style_text("a")
    monkeypatch.setenv(name, value)
    assert style_text("a", "bold") == "a"
    monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert style_text("a", "bold") == "a"


def test_progress_in_a_log_is_a_line_per_interval_and_one_at_the_end_of_a_bar_that_stays(monkeypatch):
    log, clock = io.StringIO(), iter([0.0, 10.0, 31.0, 40.0, 41.0, 50.0, 99.0, 100.0])
    monkeypatch.setattr("mmgrpo.runtime.progress.time.monotonic", lambda: next(clock))
    lines = Lines(log, interval=30.0)
    for text in ("\r1 of 9", "\r2 of 9", "\r3 of 9  ", "\n", "\n"):
        lines.write(text)
    assert log.getvalue() == "2 of 9\n3 of 9\n"
    lines.write("\r" + 9 * " ")  # a bar that does not stay
    lines.write("\r")
    assert log.getvalue() == "2 of 9\n3 of 9\n"


@pytest.mark.parametrize("dumb", [False, True])
def test_a_log_and_a_dumb_terminal_have_no_control_characters(dumb, monkeypatch):
    shown = Terminal() if dumb else io.StringIO()
    monkeypatch.setenv("TERM", "dumb" if dumb else "xterm")
    monkeypatch.setattr(sys, "stderr", shown)
    with progress_bar(title="train", total=3, done=1, unit="step", stays=True) as bar:
        for _ in range(2):
            bar.set_postfix_str("reward 0.5")
            bar.update(1)
            assert list(progress_bar(range(2), "evaluate")) == [0, 1]
    (line,) = shown.getvalue().splitlines()
    assert line.startswith("train: 3 of 3, ") and line.endswith("reward 0.5") and line.isprintable()


def test_a_terminal_has_a_bar_that_overwrites_itself(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert [*progress_bar(range(2), "evaluate")] == [0, 1] and "\revaluate" in sys.stderr.getvalue()  # type: ignore
