"""A slim net as Python source and weights, for machines that have torch and nothing else."""
