"""Its tests."""
