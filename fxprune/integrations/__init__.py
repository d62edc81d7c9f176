"""Training loops of other packages. Each file needs its package; nothing else in fxprune imports the file."""
