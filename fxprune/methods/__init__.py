"""Who decides what dies: every method of the paper behind one interface, one small file each."""

from fxprune.methods import bar, ib, interpolative, lzr, magnitude, morphnet, random, vq
from fxprune.methods.method import METHODS, Method, make_method, register

__all__ = ["METHODS", "Method", "bar", "ib", "interpolative", "lzr", "magnitude", "make_method", "morphnet", "random",
           "register", "vq"]  # fmt: skip
