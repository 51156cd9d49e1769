"""From rewards to advantages: pure functions of (values, key, stat).

    combine -> for each (stream, key): (value - baseline) / scale -> shape -> credit -> advantages [B, T]
    select says which rows make the statistics and which are trained

Each file holds one table of blocks; ``estimate`` puts them together, ``presets`` names choices of them.
This module imports nothing, so that reading the presets does not load torch.
"""
