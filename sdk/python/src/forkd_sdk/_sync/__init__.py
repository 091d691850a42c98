"""The synchronous shell. All but `transport` and `explore` is generated from `_async`."""
