"""etcd, API server, controller manager and scheduler, their certificates, and `kubectl` as their client.

Nothing here is about nodes, Kueue or anything else that is installed afterwards.
"""
