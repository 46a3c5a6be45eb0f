"""containerd and kubelet of each node, and the images that every node has from the start."""
