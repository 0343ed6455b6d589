"""The training loop of one island, and what it is made of."""
