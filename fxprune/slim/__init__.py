"""From a hardened network to the slim one: compiled, compared, reported."""
