"""A training job from outside: submit, find and delete it, and say how it is (`status.describe`).

The controller writes what is read here; nothing here writes a controller's annotation.
"""
