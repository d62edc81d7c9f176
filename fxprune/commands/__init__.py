"""The subcommands of ``fxprune``: a module each, with ``add_parser``, which registers a function to run."""
