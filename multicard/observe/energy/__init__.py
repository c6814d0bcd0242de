"""Energy and state of the GPUs while a run works."""
