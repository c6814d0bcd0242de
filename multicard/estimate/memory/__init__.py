"""Peak bytes of a run's tensors, by simulated steps on fake tensors.

A simulated step runs a real step's code on tensors that have sizes but no values.
"""
