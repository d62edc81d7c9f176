"""Entries x budgets x seeds on the same work: run, kept, and laid side by side."""
