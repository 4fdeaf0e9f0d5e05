"""From one graph to something that can be called."""
