"""The commands of `python -m analysis`, a file each."""
