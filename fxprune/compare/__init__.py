"""Methods compared on the same task, at several budgets and seeds: run, kept, and put side by side."""
