"""Plan jobs on a node: choose the GPUs and the start of each, so that all end soonest."""
