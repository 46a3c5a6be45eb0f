"""Whether the nodes of a flavor can run what a checkpoint was taken on; the nodes are asked only before a restore."""
