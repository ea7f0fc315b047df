"""Shared parts of all HTML pages: templates, scripts and style, charts with their data, and charts as image files."""
