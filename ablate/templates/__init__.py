"""A working part of each slot to start from; `ablate init --part SLOT` copies one.

None of these modules is imported by the package, so that their parts are not registered.
"""
