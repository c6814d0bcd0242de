"""Faults caused for real: nothing is lost, nothing measured twice, nothing left running. See `__main__.py`."""
