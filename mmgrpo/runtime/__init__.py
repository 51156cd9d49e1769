"""What a run needs around the algorithm: configuration, checkpoints, processes, metrics, optimizer, randomness."""
