"""Who lives, on budget."""
