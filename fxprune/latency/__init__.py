"""Time on this machine: measured, modelled as a cost, and used to decide between ways of writing a join."""
