"""Intervals: of steps that are alike, of runs that differ, Student, Wilson and Newcombe."""
