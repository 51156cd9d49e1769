"""The commands: the outermost room, which imports every other and is imported by none.

``mmgrpo <command>`` and the scripts in ``scripts/`` are two ways to the same functions.
"""
