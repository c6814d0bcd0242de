"""What a run leaves on disk, and how records are told apart, compared and shown."""
