"""Presets and papers as data: YAML files of records, which lists, ``mmgrpo explain`` and the pages are made from."""
