"""A user's own Job becomes a managed one: by `singularityctl adopt`, or when it is created with our label.

`patch` is the change as a pure function, and `eligibility` says which Jobs it fits. `review` is what the API server is
answered, which asks the controller about labelled Jobs. `recreate` replaces a Job that exists already. Both ways give
the same object.

No other change of a Job is made here, and nothing here decides about a Job that is managed already.
"""
