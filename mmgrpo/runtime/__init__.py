"""The run around the algorithm: configuration, checkpoints, processes, metrics, averaged weights, randomness."""
