"""Which job of a list runs where and when on a node, so that all end soonest."""
