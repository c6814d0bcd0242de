"""Read clocks and memory counters, mark phases, and compute statistics of what was measured."""
