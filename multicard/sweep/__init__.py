"""Measure many runs: the cells of a sweep, on this machine or through SLURM."""
