"""Rows to tune on, and the tokenizers."""
