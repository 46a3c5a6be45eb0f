"""What ranks print: copied to the container's stdout, within a rate, and read for progress."""
