"""Who decides what dies: every method of the paper behind one interface, one small file each."""

from fxprune.methods import bar, bar_paper, ib, interpolative, lzr, magnitude, morphnet, random, reconstruction, vq
from fxprune.methods.method import METHODS, Method, make_method, register

__all__ = ["METHODS", "Method", "bar", "bar_paper", "ib", "interpolative", "lzr", "magnitude", "make_method",
           "morphnet", "random", "reconstruction", "register", "vq"]  # fmt: skip
