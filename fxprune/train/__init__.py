"""The loop behind ``fxprune.prune``: distillation, phases, checkpoints, logs, progress."""
