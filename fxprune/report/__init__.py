"""Printers of an ``Inspection``: table, tree, JSON and SVG. They compute nothing that it does not hold."""
