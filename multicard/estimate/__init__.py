"""Estimates of runs before they start: time, energy and memory."""
