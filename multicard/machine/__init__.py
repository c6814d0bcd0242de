"""What the machine and the cluster are: devices, links, NVML, SLURM, the nodes of a run."""
