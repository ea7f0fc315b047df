"""What all HTML pages share: templates, scripts and style, charts with their data, and figures as image files."""
