"""The machine and the cluster: devices, links, NVML, SLURM, the nodes of a run."""
