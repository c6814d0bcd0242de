"""Observation of runs: profiles, energy, and what limits them."""
