"""containerd and kubelet of each node, and the images that every node has from the start.

Nothing here is about the control plane, or about what is installed afterwards.
"""
