"""The papers' experiments and printed figures."""
