"""One module for each part, with one function: `run(kit, result)`. It fills the result; PartError ends it.

Nothing here prints, or bounds its own time: `runner` does.
"""
