"""A run's folder: checkpoints, metrics, the record of what ran."""
