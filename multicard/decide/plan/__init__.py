"""Plans of jobs on a node: the GPUs and the start of each, so that all end soonest."""
