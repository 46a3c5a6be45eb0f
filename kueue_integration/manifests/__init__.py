"""A valid TrainSpec as Kubernetes objects. Pure: no cluster is asked, and no rule is checked here."""
