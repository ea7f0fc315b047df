"""Errors of equipoise, files, processes and settings: what every other package uses."""
