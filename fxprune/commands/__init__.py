"""The subcommands of ``fxprune``: a module each, with its help texts, ``add_options`` and the function to ``run``."""
