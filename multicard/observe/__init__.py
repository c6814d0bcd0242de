"""What a run does to its machine: profiles, energy, and what limits it."""
