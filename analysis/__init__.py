"""What was measured, read from run folders (result.json, steps.parquet, environment.json) and from nothing else."""
