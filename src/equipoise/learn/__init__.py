"""Learning one step: networks, losses, the correction, the base class of methods, and the training loop."""
