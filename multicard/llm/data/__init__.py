"""The rows to tune on, and the tokenizers."""
