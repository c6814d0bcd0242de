"""Policies over a sweep or a list of jobs: which cell to measure next, and what runs where."""
