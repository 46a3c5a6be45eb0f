"""Empty nodes of training jobs before they are upgraded: save each job, move it, and say where it went.

`plan` decides and is pure, `look` reads one job, `departure` asks, `nodes` cordons, `run` is the loop around them.

Nothing here asks Kueue for other quota, or ends a job that cannot be saved: it is named and stays.
"""
