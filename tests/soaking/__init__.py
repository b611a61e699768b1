"""A random mix of everything on real processes, for as long as one likes; see ``__main__``."""
