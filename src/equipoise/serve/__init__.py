"""A page where a model learns, and an API: `equipoise serve`.

A process of its own does the work that changes a model (``worker``), so that predictions go on meanwhile. The server
answers from one version at a time (``snapshot``) and replaces it whole (``current``).
"""
