"""What users ask of a job that is there already: resize, migrate, checkpoint, pause, resume; and when a save is due.

Requests are stored and judged here. The controller carries them out.

Nothing here carries a request out: the controller does.
"""
