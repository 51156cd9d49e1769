"""Reports of runs: HTML pages from templates, with tables, confidence intervals, figures, images and audio."""
