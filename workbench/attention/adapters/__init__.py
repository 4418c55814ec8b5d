"""Thin adapters to other libraries, which are optional: what is not installed is refused with how to install it.

Written from the libraries' documentation. No adapter has ever yet run on hardware: tests hold their calls (layouts,
lengths, block tables, windows, scales) against stand-ins that compute with torch. So ``auto`` passes them over, and
only their names take them. A module has one class, ``Adapter``, which imports the library when it is made.
"""
