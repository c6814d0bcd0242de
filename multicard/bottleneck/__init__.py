"""What bounds a run: steps with one cost taken away, and what follows from their times."""
