"""Time on this machine: measured, modelled as a cost, and used to choose how joins are written."""
