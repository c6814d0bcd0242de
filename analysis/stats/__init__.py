"""Intervals: bootstrap, Student, Wilson and Newcombe."""
