"""The asynchronous shell: transport, and the classes that users see."""
