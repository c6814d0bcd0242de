"""What tests of tuning have ranks do."""
