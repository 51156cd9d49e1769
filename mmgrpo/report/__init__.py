"""Reports of runs: HTML pages, figures, tables with intervals, audio players."""
