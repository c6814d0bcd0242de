"""Checks of the project itself; nothing here is installed with it."""
