"""Bytes of a run's tensors at its peak, by steps with tensors that have no values,
and what a GPU holds beside them.
"""
