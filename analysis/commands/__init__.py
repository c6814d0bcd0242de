"""What `python -m analysis` offers: one file a command."""
