"""Damaged and hostile inputs for every reader of equipoise: ``python -m tests.fuzz``."""
