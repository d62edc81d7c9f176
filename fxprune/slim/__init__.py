"""From a hardened network to the slim one: compiled, checked, told."""
