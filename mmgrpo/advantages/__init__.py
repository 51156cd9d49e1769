"""From rewards to advantages: pure functions of (values, key, stat).

    combine -> for each (stream, key): (value - baseline) / scale -> shape -> credit -> advantages [B, T]
    select determines which rows enter the statistics and which are trained

Each file has one table of blocks; ``estimate`` composes them, ``presets`` names choices of them.
This module imports nothing, so reading the presets does not load torch.
"""
