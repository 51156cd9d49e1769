"""The commands: the outermost package, which may import all others and is imported by none.

``mmgrpo <command>`` and the scripts in ``scripts/`` call the same functions.
"""
