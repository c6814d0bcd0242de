"""The Weights & Biases mirror of a record."""
