"""Check the project itself. These tools are not installed with it."""
