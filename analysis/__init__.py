"""Analysis of runs, from their folders alone (result.json, steps.parquet, environment.json)."""
