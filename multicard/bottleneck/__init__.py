"""What bounds a run: steps without one cost each, and the diagnosis from their times."""
