"""Whether the nodes of a flavor can continue a checkpoint. The nodes are read only before a restore."""
