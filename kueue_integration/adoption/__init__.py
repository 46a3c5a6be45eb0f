"""A user's own Job becomes a managed one: by `singularityctl adopt`, or at admission by a MutatingAdmissionPolicy.

`patch` is the change as a pure function, and `eligibility` says which Jobs it fits. `admission_policy` writes both down
in CEL for the API server. `recreate` replaces a Job that exists already. Both ways give the same object.

No other change of a Job is made here, and nothing here decides about a Job that is managed already.
"""
