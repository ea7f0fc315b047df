"""The version, imported by modules that the package itself imports."""

__version__ = "0.2.0"
