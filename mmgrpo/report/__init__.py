"""Reports of runs: HTML pages from templates, figures, tables with intervals, pictures and sounds."""
