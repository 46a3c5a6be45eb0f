"""A user's own Job becomes a managed one: by `singularityctl adopt`, or when it is created with our label.

`patch` is the change as a pure function. Which Jobs it fits is the chart's to say (`adoption.yaml`): `judge` asks the
API server. `review` is what the API server is answered, which asks the controller about labelled Jobs. `recreate`
replaces a Job that exists already. Both ways give the same object.

No other change of a Job is made here, and nothing here decides about a Job that is managed already.
"""
