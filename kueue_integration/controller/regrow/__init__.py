"""Regrowth: more workers, or an earlier flavor, for a job that was shrunk or moved, when quota is free. Pure."""
