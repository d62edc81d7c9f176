"""Other people's training loops. Each file needs a package of its own, and nothing else of fxprune imports it."""
