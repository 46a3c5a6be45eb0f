"""A few lines in a training script that make its state movable: any flavor, any number of workers, no privileges."""
