"""Data sets of images, and the loaders that make batches of them."""
