"""Clocks, memory counters, phase ranges, and the formulas on what they give."""
