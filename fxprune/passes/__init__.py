"""One pass per file; each takes values and returns values."""
