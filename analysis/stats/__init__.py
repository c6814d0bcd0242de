"""Statistics of repeated runs: intervals, verdicts and effects."""
