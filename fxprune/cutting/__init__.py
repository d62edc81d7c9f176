"""A trained net cut without training: channels chosen by what their loss costs, weights fitted by least squares."""
