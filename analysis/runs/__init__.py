"""Runs as rows: which there are, their columns, their steps, and which may be averaged."""
