"""The version, in one place: the package and the build both read it here."""

__version__ = "0.1.0.dev0"
