"""One step learned, checkpointed and evaluated; settings and recipes; results and progress."""
