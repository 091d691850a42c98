"""A project whose tests need a lot of state."""
