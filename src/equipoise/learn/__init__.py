"""How one step is learned: networks, losses, the correction, what a method is, and the only training loop."""
