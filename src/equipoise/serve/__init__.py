"""A page to teach and try a model, and an API: `equipoise serve`.

A separate process makes all changes to the model (``worker``), so that predictions continue meanwhile. The server
answers from one version at a time (``snapshot``) and replaces it as a whole (``current``).
"""
