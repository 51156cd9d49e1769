"""What a user sets: settings and their ranges, files that hold them, blocks and presets by name, extensions."""
