"""What ``fxprune demo`` and the examples share: a small residual net, and scikit-learn's digits."""

from fxprune.demo.digits import digits, loaders
from fxprune.demo.net import DigitNet

__all__ = ["DigitNet", "digits", "loaders"]
