"""The configuration: typed, checked and refused before anything starts. Imports no torch."""
