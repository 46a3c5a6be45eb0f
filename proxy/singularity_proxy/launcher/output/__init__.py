"""What ranks print: copied to the container's stdout, within a rate, and read for progress.

Nothing here decides about a rank by what it prints.
"""
