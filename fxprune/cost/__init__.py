"""What a network costs: counted, expected, or in time."""
