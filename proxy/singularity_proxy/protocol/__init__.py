"""The protocols between the parts of the project: names, messages, the barrier page, the checkpoint manifest.

Standard library only, importable everywhere (Airflow worker, controller, sidecar, the user's interpreter). No I/O
lives here, and nothing here may import another package of this project.
"""

VERSION = "0.1.0"
"""Of the release: package, chart and images have the same."""
