"""Processes: starting ranks, what ended them, where they meet, what they save."""
