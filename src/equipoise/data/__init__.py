"""Training data: images, the stream of steps in which they arrive, and the memory of old images."""
