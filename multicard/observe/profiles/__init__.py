"""Reads what Kineto (torch.profiler) and Nsight Systems wrote, into one table of metrics.

python -m multicard profile FILE...
"""
