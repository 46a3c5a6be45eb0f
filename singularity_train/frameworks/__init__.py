"""Adapters for frameworks that own the loop: their training goes on elsewhere without a changed line of logic.

Each module imports its framework; nothing else of the library imports them.

  transformers  Trainer of Hugging Face        lightning  Trainer of PyTorch Lightning
  accelerate    loops with an Accelerator      keeper     what all of them share
"""
