"""Every write interrupted once, on purpose: by SIGKILL, and by errors of the system."""
