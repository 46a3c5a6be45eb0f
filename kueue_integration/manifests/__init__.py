"""A valid TrainSpec as Kubernetes objects. Pure: nothing here asks a cluster, or checks a rule."""
