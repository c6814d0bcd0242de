"""Read runs as rows: their folders, columns and steps, and which runs may be averaged."""
