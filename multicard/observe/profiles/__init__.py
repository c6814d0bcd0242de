"""Reads the files of Kineto (torch.profiler) and Nsight Systems into one table of metrics.

python -m multicard profile FILE...
"""
