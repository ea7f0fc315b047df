"""What is learned from: images, the stream of steps they arrive in, and the memory of old ones."""
