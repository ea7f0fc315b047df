"""The version, for those who are imported by the package itself."""

__version__ = "0.1.0"
