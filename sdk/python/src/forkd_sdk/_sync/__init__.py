"""The synchronous shell. Some modules are written twice; the others are generated from `_async`."""
